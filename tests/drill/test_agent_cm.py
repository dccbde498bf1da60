"""What the agent has librdmacm do, with a library that only notes it."""

from __future__ import annotations

import ctypes
import errno
import importlib
import socket
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ibwire.rc.attributes import QPAttrMask as Mask
from ibwire.rc.attributes import QPState
from ibwire.verbs import Network, install_as_pyverbs, uninstall, use

CREATE = {
    **dict.fromkeys(("max_send_wr", "max_recv_wr", "send_cqe", "recv_cqe"), 1),
    "type": 2,
    "size": 64,
    "srq": False,
    "access": 1,
}
"""What a program wants of its queue pair: RC (enum ibv_qp_type), local write."""

CONNECT_REQUEST, REJECTED, ESTABLISHED, DISCONNECTED, TIMEWAIT_EXIT = 4, 8, 9, 10, 15
"""rdma_cm_event_type (rdma_cma.h)."""

DEPTHS = {"initiator_depth": 1, "responder_resources": 1}

SERVICE = 0x01061C06
"""TCP port 7174 (IBA annex A11)."""

GID_V4 = "0000:0000:0000:0000:0000:ffff:0a00:0002"
GID_V6 = "fd00:0000:0000:0000:0000:0000:0000:0002"
LINK_LOCAL = "febf:ffff:0000:0000:0000:0000:0000:0002"

MASKS = {
    QPState.INIT: Mask.STATE | Mask.PKEY_INDEX | Mask.PORT | Mask.ACCESS_FLAGS,
    QPState.RTR: Mask.STATE
    | Mask.AV
    | Mask.PATH_MTU
    | Mask.DEST_QPN
    | Mask.RQ_PSN
    | Mask.MAX_DEST_RD_ATOMIC
    | Mask.MIN_RNR_TIMER,
    QPState.RTS: Mask.STATE
    | Mask.TIMEOUT
    | Mask.RETRY_CNT
    | Mask.RNR_RETRY
    | Mask.SQ_PSN
    | Mask.MAX_QP_RD_ATOMIC,
}
"""What each transition of an RC queue pair needs (`qp_state_table` of Linux core/verbs.c)."""


class Library:
    """librdmacm, as far as it says something back."""

    def __init__(self, module: Any) -> None:
        self.called: list[tuple[Any, ...]] = []
        self.events: deque[Any] = deque()
        self.fails: dict[str, int] = {}
        self.depth_of_peer = 1
        self._module = module
        self._ends = socket.socketpair()
        self._fd = ctypes.c_int(self._ends[0].fileno())
        self._made = 0

    def close(self) -> None:
        for each in self._ends:
            each.close()

    def tell(self, event: int, connection: int, status: int = 0) -> None:
        self.events.append(self._module.Event(id=connection, event=event, status=status))

    def names(self) -> list[str]:
        """Functions that were called, without those that only look."""
        looking = ("rdma_get_cm_event", "rdma_ack_cm_event")
        return [name for name, *_ in self.called if name not in looking]

    def rdma_create_event_channel(self) -> int:
        return ctypes.addressof(self._fd)

    def rdma_create_id(self, channel: int | None, made: Any, context: None, space: int) -> int:
        self._made += 1
        made._obj.value = self._made
        return self._answer("rdma_create_id", channel is not None, space)

    def rdma_get_cm_event(self, channel: int, pointer: Any) -> int:
        if not self.events:
            return -1
        pointer._obj.contents = self.events.popleft()
        return 0

    def rdma_init_qp_attr(self, connection: int, attr: Any, mask: Any) -> int:
        told = attr._obj
        mask._obj.value = int(MASKS[QPState(told.qp_state)])
        told.port_num, told.path_mtu, told.dest_qp_num = 1, 3, 0x123
        told.rq_psn, told.sq_psn, told.timeout, told.retry_cnt = 0x456, 0x789, 19, 6
        told.ah_attr.dgid[:] = [0, int.from_bytes(bytes.fromhex("0000ffff0a000001"), "little")]
        told.max_dest_rd_atomic = self.depth_of_peer
        told.ah_attr.port_num, told.ah_attr.hop_limit = 1, 64
        return self._answer("rdma_init_qp_attr", connection, told.qp_state)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._answer(name, *arguments)

    def _answer(self, name: str, *arguments: Any) -> int:
        self.called.append((name, *arguments))
        ctypes.set_errno(self.fails.get(name, 0))
        return -1 if name in self.fails else 0


@pytest.fixture
def host() -> Iterator[SimpleNamespace]:
    """A `manager` of a queue pair `qp` in RESET, its `library`, and the `module` that it is of.

    `load` is what loads the library otherwise.
    """
    install_as_pyverbs()
    try:
        agent = importlib.import_module("ibwire.drill.agent.agent")
        module = importlib.import_module("ibwire.drill.agent.agent_cm")
        device = importlib.import_module("pyverbs.device")
        with use(Network()), pytest.MonkeyPatch.context() as patch:
            owner = agent.Agent(device.Context(name="ibwire1"), lambda: False)
            owner.create(**CREATE)
            library, load = Library(module), module._librdmacm
            patch.setattr(module, "_librdmacm", lambda: library)
            yield SimpleNamespace(
                manager=module.RDMAManager(owner.qp),
                qp=owner.qp,
                library=library,
                module=module,
                load=load,
            )
            library.close()
    finally:
        uninstall()


def state(host: SimpleNamespace) -> QPState:
    return QPState(host.qp.query(int(Mask.STATE))[0].qp_state)


# Layouts.


@pytest.mark.parametrize(
    ("name", "offset"),
    {
        "path_mtu": 8,
        "qkey": 16,
        "dest_qp_num": 28,
        "qp_access_flags": 32,
        "cap": 36,
        "ah_attr": 56,
        "alt_ah_attr": 88,
        "pkey_index": 120,
        "max_rd_atomic": 126,
        "port_num": 129,
        "timeout": 130,
        "rnr_retry": 132,
    }.items(),
)
def test_attributes_lie_where_the_library_writes_them(
    host: SimpleNamespace, name: str, offset: int
) -> None:
    """`struct ibv_qp_attr` of verbs.h on a processor of 64 bits, counted by hand."""
    assert getattr(host.module.Attributes, name).offset == offset


@pytest.mark.parametrize(
    ("name", "offset"),
    [("flow_label", 16), ("sgid_index", 20), ("dlid", 24), ("sl", 26), ("port_num", 30)],
)
def test_an_address_lies_where_the_library_writes_it(
    host: SimpleNamespace, name: str, offset: int
) -> None:
    """`struct ibv_ah_attr`, which begins with an `ibv_global_route`."""
    assert getattr(host.module.Address, name).offset == offset


def test_parameters_lie_where_the_library_reads_them(host: SimpleNamespace) -> None:
    """`struct rdma_conn_param` of rdma_cma.h."""
    assert host.module.Parameters.rnr_retry_count.offset == 13
    assert host.module.Parameters.qp_num.offset == 16


def test_an_event_lies_where_the_library_writes_it(host: SimpleNamespace) -> None:
    """`struct rdma_cm_event`: two pointers before what it is."""
    assert host.module.Event.event.offset == 16
    assert host.module.Event.status.offset == 20


@pytest.mark.parametrize(
    ("gid", "expected"),
    [
        (GID_V4, "0200 1c06 0a000002 0000000000000000"),
        (GID_V6, "0a00 1c06 00000000 fd000000000000000000000000000002 00000000"),
    ],
)
def test_who_listens_is_at_the_address_of_the_device(
    host: SimpleNamespace, gid: str, expected: str
) -> None:
    """sockaddr_in and sockaddr_in6: a little-endian family, a big-endian port."""
    host.manager.listen(service=SERVICE, backlog=3, gid=gid)

    bound = ("rdma_bind_addr", 1, bytes.fromhex(expected))
    assert host.library.called == [("rdma_create_id", True, 0x106), bound, ("rdma_listen", 1, 3)]


# What an application does.


def test_the_queue_pair_is_in_rtr_before_the_rep_is_sent(host: SimpleNamespace) -> None:
    host.library.tell(CONNECT_REQUEST, 0x77)

    host.manager.accept(**DEPTHS)

    attributes, _ = host.qp.query(-1)
    assert state(host) is QPState.RTR
    assert (attributes.dest_qp_num, attributes.rq_psn, attributes.path_mtu) == (0x123, 0x456, 3)
    assert attributes.ah_attr.dgid == GID_V4[:-1] + "1"
    assert host.library.names() == ["rdma_init_qp_attr", "rdma_init_qp_attr", "rdma_accept"]
    name, connection, parameters = host.library.called[-1]
    assert (name, connection) == ("rdma_accept", 0x77)
    assert parameters._obj.qp_num == host.qp.qp_num
    assert parameters._obj.rnr_retry_count == 7


@pytest.mark.parametrize(("wanted", "served", "expected"), [(7, 2, 2), (2, 7, 2), (7, 0, 0)])
def test_no_more_is_served_than_the_one_wants_and_the_other_accepts(
    host: SimpleNamespace, wanted: int, served: int, expected: int
) -> None:
    """The kernel has the REP not yet when it says how to come to RTR (`cm_init_qp_rtr_attr`)."""
    host.library.depth_of_peer = wanted
    host.library.tell(CONNECT_REQUEST, 0x77)

    host.manager.accept(initiator_depth=1, responder_resources=served)

    attributes, _ = host.qp.query(-1)
    assert attributes.max_dest_rd_atomic == expected


def test_a_connection_that_is_established_brings_the_queue_pair_up(host: SimpleNamespace) -> None:
    host.library.tell(CONNECT_REQUEST, 0x77)
    host.manager.accept(**DEPTHS)
    host.library.tell(ESTABLISHED, 0x77)
    host.library.tell(ESTABLISHED, 0x77)

    host.manager.handle()

    attributes, _ = host.qp.query(-1)
    assert state(host) is QPState.RTS
    assert (attributes.sq_psn, attributes.timeout, attributes.retry_cnt) == (0x789, 19, 6)
    assert host.manager.cm_events() == [
        {"event": CONNECT_REQUEST, "status": 0},
        *[{"event": ESTABLISHED, "status": 0}] * 2,
    ]
    assert host.manager.cm_events() == []


def test_a_queue_pair_that_does_not_come_up_ends_nothing(host: SimpleNamespace) -> None:
    host.library.tell(CONNECT_REQUEST, 0x77)
    host.manager.accept(**DEPTHS)
    host.library.fails["rdma_init_qp_attr"] = errno.EINVAL
    host.library.tell(ESTABLISHED, 0x77)

    host.manager.handle()

    assert state(host) is QPState.RTR


def test_the_active_side_gets_an_established_event(host: SimpleNamespace) -> None:
    host.manager.connect(service=SERVICE, gid=GID_V6, own_gid=GID_V6, **DEPTHS)
    asked = host.library.names()
    host.manager.ready()

    steps = ["rdma_resolve_addr", "rdma_resolve_route", "rdma_migrate_id", "rdma_connect"]
    assert asked == ["rdma_create_id", *steps]
    assert state(host) is QPState.RTS
    assert host.library.names()[-1] == "rdma_establish"
    assert host.manager.cm_events() == [{"event": ESTABLISHED, "status": 0}]


def test_who_asks_does_so_from_the_address_of_the_device(host: SimpleNamespace) -> None:
    host.manager.connect(service=SERVICE, gid=GID_V4[:-1] + "9", own_gid=GID_V4, **DEPTHS)

    source = bytes.fromhex("0200 0000 0a000002 0000000000000000")
    destination = bytes.fromhex("0200 1c06 0a000009 0000000000000000")
    assert ("rdma_resolve_addr", 1, source, destination, 2000) in host.library.called


def test_the_end_is_confirmed_and_what_is_over_dropped(host: SimpleNamespace) -> None:
    host.library.tell(CONNECT_REQUEST, 0x77)
    for event in (DISCONNECTED, TIMEWAIT_EXIT):
        host.library.tell(event, 0x77)
    host.library.tell(REJECTED, 0x78, 28)

    told = host.manager.cm_events()

    assert [each["event"] for each in told] == [4, 10, 15, 8]
    assert told[-1]["status"] == 28
    named = [call for call in host.library.called if call[0] != "rdma_ack_cm_event"]
    assert named == [("rdma_disconnect", 0x77), ("rdma_destroy_id", 0x77)]
    with pytest.raises(OSError, match="no connection was asked for"):
        host.manager.disconnect()


def test_nothing_is_left(host: SimpleNamespace) -> None:
    host.manager.listen(service=SERVICE, backlog=3, gid=GID_V4)
    host.manager.unlisten()
    host.manager.listen(service=SERVICE, backlog=3, gid=GID_V4)
    host.library.tell(CONNECT_REQUEST, 0x77)
    host.manager.handle()

    host.manager.close()

    ended = [call[1] for call in host.library.called if call[0] == "rdma_destroy_id"]
    assert ended == [1, 2, 0x77]
    assert host.library.names()[-1] == "rdma_destroy_event_channel"


@pytest.mark.parametrize("step", ["rdma_bind_addr", "rdma_listen"])
def test_of_a_listener_that_cannot_be_nothing_is_left(host: SimpleNamespace, step: str) -> None:
    host.library.fails[step] = errno.EADDRINUSE

    with pytest.raises(OSError, match=step):
        host.manager.listen(service=SERVICE, backlog=3, gid=GID_V4)

    assert host.library.called[-1] == ("rdma_destroy_id", 1)


def test_of_a_peer_that_is_not_found_nothing_is_left(host: SimpleNamespace) -> None:
    host.library.fails["rdma_resolve_addr"] = errno.ENETUNREACH

    with pytest.raises(OSError, match="rdma_resolve_addr"):
        host.manager.connect(service=SERVICE, gid=GID_V4, own_gid=GID_V4, **DEPTHS)

    assert host.library.called[-1] == ("rdma_destroy_id", 1)
    with pytest.raises(OSError, match="no connection was asked for"):
        host.manager.disconnect()


def test_requests_beyond_what_is_kept_are_refused(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept: connections until they are over, and events until they are asked for."""
    monkeypatch.setattr(host.module, "MAXIMUM_KEPT", 2)
    for connection in (0x71, 0x72, 0x73):
        host.library.tell(CONNECT_REQUEST, connection)

    host.manager.handle()
    host.library.tell(TIMEWAIT_EXIT, 0x71)
    host.library.tell(CONNECT_REQUEST, 0x74)
    host.manager.handle()

    destroyed = [call[1] for call in host.library.called if call[0] == "rdma_destroy_id"]
    assert destroyed == [0x73, 0x71, 0x74]
    assert [each["event"] for each in host.manager.cm_events()] == [4, 4, 15]
    host.library.tell(CONNECT_REQUEST, 0x75)
    assert len(host.manager.cm_events()) == 1
    with pytest.raises(OSError, match="2 connections"):
        host.manager.listen(service=SERVICE, backlog=3, gid=GID_V4)


# What cannot be.


def test_without_a_manager_in_the_kernel_nothing_is_blamed_on_the_device(
    host: SimpleNamespace,
) -> None:
    """`rdma_create_event_channel` finds no /dev/infiniband/rdma_cm."""
    ctypes.set_errno(errno.ENODEV)
    host.library.rdma_create_event_channel = lambda: None

    with pytest.raises(NotImplementedError, match=r"no connection manager here: .*No such device"):
        host.module.RDMAManager(host.qp)


def test_an_older_library_has_no_reason_of_vendors_and_all_the_rest(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rdma_reject_ece came with RDMACM_1.3 (librdmacm.map)."""
    names = ("rdma_create_event_channel", *host.module.ARGUMENTS)
    functions = {name: SimpleNamespace() for name in names if name != "rdma_reject_ece"}
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(**functions))

    assert host.load().rdma_reject.argtypes is not None


def test_an_argument_of_a_wrong_type_is_a_type_error(host: SimpleNamespace) -> None:
    """ctypes has an error of its own, which the agent would not survive."""
    types = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    host.library.rdma_listen = ctypes.CFUNCTYPE(*types)(lambda *_: 0)

    with pytest.raises(TypeError, match="rdma_listen"):
        host.manager.listen(service=SERVICE, backlog=2.5, gid=GID_V4)


@pytest.mark.parametrize("depth", [-1, 255, 300])
def test_a_depth_that_is_no_number_of_the_protocol_is_refused(
    host: SimpleNamespace, depth: int
) -> None:
    """255 is RDMA_MAX_RESP_RES, as many as there can be, and 300 would be 44."""
    host.library.tell(CONNECT_REQUEST, 0x77)

    with pytest.raises(OSError, match=f"{depth} is not from 0 to 254") as error:
        host.manager.accept(initiator_depth=depth, responder_resources=1)

    assert error.value.errno == errno.EINVAL
    assert state(host) is QPState.RESET


def test_a_backlog_is_a_number_of_the_library(host: SimpleNamespace) -> None:
    with pytest.raises(OSError, match="4294967299 is not from 0 to 2147483647"):
        host.manager.listen(service=SERVICE, backlog=(1 << 32) + 3, gid=GID_V4)


def test_what_the_library_refuses_has_its_error_number(host: SimpleNamespace) -> None:
    host.library.fails["rdma_bind_addr"] = errno.EADDRINUSE

    with pytest.raises(OSError, match="rdma_bind_addr") as error:
        host.manager.listen(service=SERVICE, backlog=3, gid=GID_V4)

    assert error.value.errno == errno.EADDRINUSE
    with pytest.raises(OSError, match="no listener to end"):
        host.manager.unlisten()


@pytest.mark.parametrize(
    ("question", "given", "reason"),
    [
        ("delay", {"service_timeout": 20}, "the kernel decides about MRAs"),
        ("reject", {"reason": 3}, "no other reasons than CONSUMER_DEFINED"),
        ("listen", {"service": 5, "backlog": 1, "gid": GID_V4}, "0x5 is not a TCP port"),
        ("listen", {"service": SERVICE, "backlog": 1, "gid": LINK_LOCAL}, "febf.* is link-local"),
        (
            "connect",
            {"service": SERVICE, "gid": GID_V4, "own_gid": GID_V4, "max_cm_retries": 2, **DEPTHS},
            r"the kernel has max_cm_retries fixed at 20 and 15",
        ),
    ],
)
def test_commands_that_librdmacm_lacks_are_refused(
    host: SimpleNamespace, question: str, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotImplementedError, match=reason):
        getattr(host.manager, question)(**given)


def test_a_reason_of_vendors_has_a_function_of_its_own(host: SimpleNamespace) -> None:
    host.library.tell(CONNECT_REQUEST, 0x77)

    host.manager.reject(reason=28)
    host.manager.reject(reason=35)

    assert host.library.names() == ["rdma_reject", "rdma_reject_ece"]
