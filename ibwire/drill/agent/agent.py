"""The verbs of drill scripts on a device under test: a program for its host, with pyverbs.

    python3 agent.py --device rxe0 --port 18516

Of ibwire it needs this file and agent_server.py beside it, and agent_cm.py for scripts about
connection management. `ibwire drill --connect agent` connects by TCP, and shows the token that is
printed here at the start; each question is a line of JSON, and so is its reply: docs/drill.md has
the questions. Numbers are those of libibverbs/verbs.h and rdma/rdma_cma.h. Everything made for a
connection is closed when it ends. Several connections may be open at a time; each has its own
device context.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    import pyverbs.enums as e  # type: ignore[import-not-found]
    from pyverbs.addr import GID, AHAttr, GlobalRoute  # type: ignore[import-not-found]
    from pyverbs.cq import CQ  # type: ignore[import-not-found]
    from pyverbs.device import Context  # type: ignore[import-not-found]
    from pyverbs.mr import MR, MW, MWBindInfo  # type: ignore[import-not-found]
    from pyverbs.pd import PD  # type: ignore[import-not-found]
    from pyverbs.pyverbs_error import (  # type: ignore[import-not-found]
        PyverbsError,
        PyverbsRDMAError,
    )
    from pyverbs.qp import (  # type: ignore[import-not-found]
        QP,
        QPAttr,
        QPCap,
        QPEx,
        QPInitAttr,
        QPInitAttrEx,
    )
    from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr  # type: ignore[import-not-found]
    from pyverbs.wr import SGE, RecvWR, SendWR  # type: ignore[import-not-found]
except ImportError as missing:
    if __name__ != "__main__":
        raise
    sys.exit(f"error: {missing}: the agent needs pyverbs of rdma-core (Debian: python3-pyverbs)")

if TYPE_CHECKING or __package__:
    from ibwire.drill.agent import agent_server
else:  # on the host of a device
    try:
        import agent_server
    except ImportError:
        sys.exit("error: agent_server.py is not beside agent.py")

Manager = agent_server.Manager

MAXIMUM_MOVED = 1 << 22
"""Bytes of memory that one question reads or writes."""

MAXIMUM_REGISTERED = 1 << 26
"""Bytes of memory for one connection."""

MAXIMUM_REGISTERED_IN_ALL = 1 << 28
"""Bytes of memory for all connections."""

MAXIMUM_OBJECTS = 1024
"""Regions and windows of one connection."""

LARGEST_PORT = 0xFFFF

Answer = dict[str, Any]

HOPS = 64
"""Hop limit of the device's packets: it may be behind a router; the default of pyverbs is 1."""

DEFAULT_PKEY = 0xFFFF
"""P_Key at index 0 of every device."""

ROCE_V2 = 1
"""IBV_GID_TYPE_SYSFS_ROCE_V2."""

V4_MAPPED = bytes(10) + b"\xff\xff"
"""First bytes of a GID that is an IPv4 address (RFC 4291)."""

LINK_LOCAL = b"\xfe\x80"
"""First bytes of the GID that a device makes of its MAC address, or of its port's GUID."""

BATCH = 64
"""Completions polled at a time."""

BIND_ID = (1 << 64) - 1
"""`wr_id` of the request that binds a window, which only the agent posts."""

ATOMICS = (e.IBV_WR_ATOMIC_CMP_AND_SWP, e.IBV_WR_ATOMIC_FETCH_AND_ADD)
RDMA = (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM, e.IBV_WR_RDMA_READ)
SENDS = (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM, e.IBV_WR_SEND_WITH_INV, e.IBV_WR_LOCAL_INV)

FLUSH, ATOMIC_WRITE = 14, 15
"""Of `ibv_wr_opcode`. Only extended queue pairs can post them, and not every pyverbs has them."""

EXTENDED = {
    FLUSH: getattr(e, "IBV_QP_EX_WITH_FLUSH", 0),
    ATOMIC_WRITE: getattr(e, "IBV_QP_EX_WITH_ATOMIC_WRITE", 0),
}


NUMBERS = {
    **dict.fromkeys(("len", "size", "offset"), MAXIMUM_REGISTERED),
    **dict.fromkeys(("max_send_wr", "max_recv_wr", "send_cqe", "recv_cqe"), 1 << 22),
    **dict.fromkeys(("wr_id", "address", "remote_addr", "compare_add", "swap"), (1 << 64) - 1),
    **dict.fromkeys(("service", "sge"), (1 << 64) - 1),
}
"""Largest number of each argument; that of others is `LARGEST`."""

LARGEST = (1 << 32) - 1


class Unable(Exception):
    """A feature that this device, or this version of a library, does not have."""


class Memory:
    """Counts the bytes registered for all connections."""

    def __init__(self, most: int = MAXIMUM_REGISTERED_IN_ALL) -> None:
        self.most = most
        self.taken = 0


class Agent:
    """A device and the verbs objects made on it.

    has_event: whether an asynchronous event waits; pyverbs has only a call that blocks.
    make_manager: makes the connection manager of a queue pair, for scripts that need it.
    find: called with the GID of each peer before packets are sent to it. memory: counts what is
    registered, also by other agents.
    """

    def __init__(
        self,
        context: Any,
        has_event: Callable[[], bool],
        make_manager: Callable[[Any], Manager] | None = None,
        find: Callable[[str], object] = lambda gid: None,
        memory: Memory | None = None,
    ) -> None:
        self.context = context
        self._memory = memory or Memory()
        self._find = find
        self.has_event = has_event
        self._make_manager = make_manager or _rdma_manager
        self._forget()

    def _forget(self) -> None:
        self.manager: Manager | None = None
        self.qp: Any = None
        self.queues: dict[str, Any] = {}
        self.srq: Any = None
        self.pds: list[Any] = []
        self.windows: list[Any] = []
        self.regions: list[Any] = []
        """`None` for one that is deregistered: pyverbs follows null pointers of a closed one."""
        self.registered = 0
        self.bound: list[int] = []

    def close(self) -> None:
        """Close everything in the required order: windows keep their queue pair open."""
        self._drain_events()
        queues = self.queues.values()
        made = [self.manager, *self.windows, self.qp, self.srq, *self.regions, *queues, *self.pds]
        for each in made:
            if each is not None:
                each.close()
        self._drain_events()
        self._memory.taken -= self.registered
        self._forget()

    def end(self) -> None:
        """Close everything, and the device context."""
        self.close()
        self.context.close()

    def answer(self, line: bytes) -> bytes:
        """The reply to a question, each a line."""
        try:
            question = json.loads(line)
            handler = HANDLERS[question.pop("do")]
            check_numbers(question)
            answer: Answer = {"ok": handler(self, **question)}
        except PyverbsRDMAError as error:
            answer = {"errno": error.error_code, "reason": str(error)}
        except OSError as error:
            answer = {"errno": error.errno or 0, "reason": str(error)}
        except (Unable, NotImplementedError, PyverbsError) as error:
            answer = {"unable": str(error)}
        except _NONSENSE as error:
            # A malformed request, or an attribute that this pyverbs does not know.
            answer = {"unable": f"{type(error).__name__}: {error}"}
        return json.dumps(answer).encode() + b"\n"

    # Questions.

    def about(self) -> Answer:
        """Name and access flags of the device."""
        access = [
            value
            for name, value in vars(e).items()
            if name.startswith("IBV_ACCESS_") and isinstance(value, int)
        ]
        return {"device": str(self.context.name), "access": sum(set(access))}

    def create(
        self,
        type: int,
        size: int,
        srq: bool,
        max_send_wr: int,
        max_recv_wr: int,
        send_cqe: int,
        recv_cqe: int,
        access: int,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
    ) -> Answer:
        """Make a queue pair in RESET, with its queues and a region; the former one is closed."""
        self.close()
        self.pds.append(PD(self.context))
        region = self.register(size, access)
        self.queues["send"] = CQ(self.context, send_cqe)
        self.queues["recv"] = CQ(self.context, recv_cqe)
        if srq:
            self.srq = SRQ(self.pds[0], SrqInitAttr(SrqAttr(max_recv_wr, max_recv_sge)))
        self.qp = self._queue_pair(
            qp_type=type,
            scq=self.queues["send"],
            rcq=self.queues["recv"],
            cap=QPCap(
                max_send_wr=max_send_wr,
                max_recv_wr=max_recv_wr,
                max_send_sge=max_send_sge,
                max_recv_sge=max_recv_sge,
                max_inline_data=256,
            ),
            srq=self.srq,
            sq_sig_all=0,
        )
        return {"qpn": self.qp.qp_num, **region}

    def _queue_pair(self, **wish: Any) -> Any:
        """An extended queue pair where the device has one for FLUSH and ATOMIC WRITE."""
        operations = sum(EXTENDED.values())
        if operations:
            mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            more = {"pd": self.pds[0], "comp_mask": mask, "send_ops_flags": operations}
            try:
                return QPEx(self.context, QPInitAttrEx(**wish, **more))
            except PyverbsRDMAError:
                pass  # other errors show in the plain queue pair
        return QP(self.pds[0], QPInitAttr(**wish))

    def register(self, len: int, access: int, other_pd: bool = False) -> Answer:
        """Register zeroed memory."""
        if self.registered + len > MAXIMUM_REGISTERED:
            raise Unable(f"more than {MAXIMUM_REGISTERED} bytes of memory")
        if self._memory.taken + len > self._memory.most:
            raise Unable(f"more than {self._memory.most} bytes of memory for all programs")
        self._check_objects()
        if other_pd:
            self.pds.append(PD(self.context))
        region = MR(self.pds[-1] if other_pd else self.pds[0], len, access)
        # Counted when it exists, also if it cannot be zeroed: it is closed at the end only.
        self.regions.append(region)
        self.registered += len
        self._memory.taken += len
        region.write(bytes(len), len)
        return {"region": self.regions.index(region), **_keys(region)}

    def _check_objects(self) -> None:
        if len(self.regions) + len(self.windows) >= MAXIMUM_OBJECTS:
            raise Unable(f"more than {MAXIMUM_OBJECTS} regions and windows")

    def bind(self, region: int, address: int, len: int, access: int) -> Answer:
        """Bind a type 2 memory window to the queue pair."""
        self._check_objects()
        memory = self._open_region(region)
        window = MW(self.pds[0], e.IBV_MW_TYPE_2)
        self.windows.append(window)
        request = SendWR(
            opcode=e.IBV_WR_BIND_MW, wr_id=BIND_ID, num_sge=0, send_flags=e.IBV_SEND_SIGNALED
        )
        request.set_bind_wr(window, MWBindInfo(memory, address, len, access))
        self.qp.post_send(request)
        for _ in range(1000):
            found = self.queues["send"].poll(1)[1]
            if found:
                if found[0].status != e.IBV_WC_SUCCESS:
                    raise Unable(f"the window cannot be bound: status {found[0].status}")
                # The consumer's byte of the key goes up by one (ibv_inc_rkey).
                rkey = window.rkey
                return {"rkey": rkey & ~0xFF | (rkey + 1) & 0xFF}
            select.select([], [], [], 0.001)
        raise Unable("the window is not bound within a second")

    def deregister(self, region: int) -> None:
        """Deregister memory."""
        self._open_region(region).close()
        self.regions[region] = None

    def modify(
        self,
        mask: int,
        fields: dict[str, int],
        peer_gid: str,
        own_gid: str,
        pkey: int = DEFAULT_PKEY,
    ) -> None:
        """Modify the queue pair by fields of `QPAttr` and the mask of the valid ones."""
        attr = QPAttr()
        for name, value in fields.items():
            setattr(attr, name, value)
        if mask & e.IBV_QP_AV:
            self._find(peer_gid)
            index = self._gid_index(own_gid)
            route = GlobalRoute(dgid=GID(peer_gid), sgid_index=index, hop_limit=HOPS)
            attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        if mask & e.IBV_QP_PKEY_INDEX and pkey != DEFAULT_PKEY:
            attr.pkey_index = self._pkey_index(pkey)
        self.qp.modify(attr, mask)

    def post_recv(self, wr_id: int, sge: list[int] | None) -> None:
        """Post a receive request, to the shared queue if there is one."""
        pieces = self._pieces(sge)
        request = RecvWR(wr_id=wr_id, num_sge=len(pieces), sg=pieces)
        (self.srq or self.qp).post_recv(request)

    def post_send(
        self,
        opcode: int,
        wr_id: int,
        sge: list[int] | None,
        flags: int,
        remote_addr: int,
        rkey: int,
        imm_data: int,
        invalidate_rkey: int,
        compare_add: int,
        swap: int,
        length: int = 0,
        flush_type: int = 0,
        flush_level: int = 0,
        atomic_data: str = "",
    ) -> None:
        """Post a send request; the last four arguments are for FLUSH and ATOMIC WRITE."""
        if EXTENDED.get(opcode) and isinstance(self.qp, QPEx):
            self.qp.wr_start()
            self.qp.wr_id, self.qp.wr_flags = wr_id, flags
            if opcode == FLUSH:
                self.qp.wr_flush(rkey, remote_addr, length, flush_type, flush_level)
            else:
                self.qp.wr_atomic_write(rkey, remote_addr, bytes.fromhex(atomic_data))
            self.qp.wr_complete()
            return
        if opcode not in (*ATOMICS, *RDMA, *SENDS):
            raise Unable(f"no work request with opcode {opcode}")
        if flags & e.IBV_SEND_INLINE and sge is not None:
            for start in range(0, len(sge), 3):
                self._check_inline(*sge[start : start + 3])
        is_invalidating = opcode in (e.IBV_WR_SEND_WITH_INV, e.IBV_WR_LOCAL_INV)
        pieces = self._pieces(sge)
        request = SendWR(
            wr_id=wr_id,
            opcode=opcode,
            num_sge=len(pieces),
            sg=pieces,
            send_flags=flags,
            # One word of memory: immediate data is sent with the byte order that it has there.
            imm_data=invalidate_rkey if is_invalidating else socket.htonl(imm_data),
        )
        if opcode in ATOMICS:
            request.set_wr_atomic(rkey, remote_addr, compare_add, swap)
        elif opcode in RDMA:
            request.set_wr_rdma(rkey, remote_addr)
        self.qp.post_send(request)

    def write(self, region: int, offset: int, data: str) -> None:
        """Write bytes in hexadecimal to memory."""
        content = bytes.fromhex(data)
        self._region(region, offset, len(content)).write(content, len(content), offset)

    def read(self, region: int, offset: int, len: int) -> str:
        """Read memory."""
        content: bytes = self._region(region, offset, len).read(len, offset)
        return content.hex()

    def collect(self) -> Answer:
        """Completions and asynchronous events since the last call."""
        events = []
        while self.has_event():
            event = self.context.get_async_event()
            events.append(int(event.event_type))
            event.ack()
        found = {
            name: [_completion(each) for each in queue.poll(BATCH)[1]]
            for name, queue in self.queues.items()
        }
        return {**found, "events": events}

    def state(self) -> int:
        """The state of the queue pair."""
        return int(self.qp.query(e.IBV_QP_STATE)[0].qp_state)

    def manage(self, what: str, **given: Any) -> Any:
        """Pass a command to the connection manager."""
        if self.manager is None:
            self.manager = self._make_manager(self.qp)
        return getattr(self.manager, what)(**given)

    def _region(self, number: int, offset: int, size: int) -> Any:
        """The region with these bytes; pyverbs does not check the bounds."""
        region = self._open_region(number)
        if not 0 <= offset <= offset + size <= region.length:
            raise Unable(f"no {size} bytes at {offset} of a region of {region.length}")
        if size > MAXIMUM_MOVED:
            raise Unable(f"{size} bytes at a time, at most {MAXIMUM_MOVED}")
        return region

    def _open_region(self, number: int) -> Any:
        region = self.regions[number]
        if region is None:
            raise Unable(f"region {number} is deregistered")
        return region

    def _check_inline(self, address: int, length: int, _: int) -> None:
        """Inline data is copied by the library, which needs no key: it must be of a region."""
        for region in self.regions:
            if region is not None and (
                region.buf <= address and address + length <= region.buf + region.length
            ):
                return
        raise Unable(f"inline data of {length} bytes at {address:#x} is outside of the regions")

    def _gid_index(self, gid: str) -> int:
        """Index of a GID of the device, for RoCE v2."""
        wanted = GID(gid).gid
        for index in range(self.context.query_port(1).gid_tbl_len):
            if self.context.query_gid(1, index).gid == wanted and (
                self.context.query_gid_type(1, index) == ROCE_V2
            ):
                return index
        raise Unable(f"the device has no GID {gid} for RoCE v2")

    def _pkey_index(self, pkey: int) -> int:
        """Index of a P_Key of the device."""
        for index in range(self.context.query_port(1).pkey_tbl_len):
            if self.context.query_pkey(1, index) == socket.htons(pkey):
                return index
        raise Unable(f"the device has no P_Key {pkey:#06x}")

    def _pieces(self, sge: list[int] | None) -> list[Any]:
        """SGEs of a work request, three numbers each; pyverbs requires one even for no bytes."""
        if not sge:
            region = self._open_region(0)
            return [SGE(region.buf, 0, region.lkey)]
        return [SGE(*sge[start : start + 3]) for start in range(0, len(sge), 3)]

    def _drain_events(self) -> None:
        while self.has_event():
            self.context.get_async_event().ack()


def check_numbers(given: dict[str, Any]) -> None:
    """Raise `Unable` for a number that is negative, too large or not a whole one."""
    for name, value in given.items():
        if isinstance(value, dict):
            check_numbers(value)
            continue
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int | float):
                continue
            largest = NUMBERS.get(name, LARGEST)
            if isinstance(number, float) or not 0 <= number <= largest:
                raise Unable(f"{name} is {number}, not a whole number from 0 to {largest}")


_NONSENSE = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip

QUESTIONS = (
    "about", "create", "register", "bind", "deregister", "modify",
    "post_recv", "post_send", "write", "read", "collect", "state",
)  # fmt: skip

MANAGER_QUESTIONS = (
    "listen", "unlisten", "connect", "accept", "reject", "delay", "ready",
    "disconnect", "cm_events",
)  # fmt: skip


def _managed(name: str) -> Callable[..., Any]:
    # A closure, as a question could set an argument with a default.
    return lambda agent, **given: agent.manage(name, **given)


HANDLERS: dict[str, Callable[..., Any]] = {
    **{name: getattr(Agent, name) for name in QUESTIONS},
    **{name: _managed(name) for name in MANAGER_QUESTIONS},
}


def open_agent(device: str, memory: Memory | None = None) -> Agent:
    """An agent with a new device context, and the descriptor of its events.

    Raises `Refused` for a device that cannot be opened.
    """
    before = _event_files()
    try:
        context = Context(name=device)
    except (PyverbsError, OSError) as error:
        raise agent_server.Refused(f"{device} cannot be opened: {error}") from None
    poll = select.poll()
    for number in _event_files() - before:
        poll.register(number, select.POLLIN)
    return Agent(context, lambda: bool(poll.poll(0)), memory=memory)


def _rdma_manager(qp: Any) -> Manager:
    """The connection manager of this host, from the file `agent_cm.py`."""
    name = f"{__package__}.agent_cm" if __package__ else "agent_cm"
    try:
        manager: Manager = importlib.import_module(name).RDMAManager(qp)
    except ImportError:
        raise Unable("agent_cm.py is not beside agent.py") from None
    return manager


def _event_files() -> set[int]:
    """Descriptors of this process for asynchronous events."""
    names = {int(name): _target(name) for name in os.listdir("/proc/self/fd")}
    return {number for number, name in names.items() if "infinibandevent" in name}


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""  # the descriptor by which the directory was read


def _keys(region: Any) -> Answer:
    return {"va": region.buf, "rkey": region.rkey, "lkey": region.lkey}


def _completion(wc: Any) -> Answer:
    about = {"wr_id": wc.wr_id, "status": int(wc.status)}
    if wc.status == e.IBV_WC_SUCCESS:
        # Immediate data stands in memory as it came from the wire, an invalidated key does not.
        has_immediate = wc.wc_flags & e.IBV_WC_WITH_IMM
        about |= {
            "opcode": int(wc.opcode),
            "byte_len": wc.byte_len,
            "flags": int(wc.wc_flags),
            "imm_data": socket.ntohl(wc.imm_data) if has_immediate else wc.imm_data,
        }
    return about


def device_addresses(context: Any) -> list[str]:
    """IP addresses of a device: its GIDs for RoCE v2, without the link-local ones."""
    found = []
    for index in range(context.query_port(1).gid_tbl_len):
        try:
            if context.query_gid_type(1, index) != ROCE_V2:
                continue
            # pyverbs writes a GID as eight groups of four digits.
            packed = bytes.fromhex(str(context.query_gid(1, index).gid).replace(":", ""))
        except (PyverbsError, OSError, ValueError):
            continue  # the table has a hole there
        if packed.startswith(V4_MAPPED):
            found.append(socket.inet_ntop(socket.AF_INET, packed[12:]))
        elif any(packed) and packed[:2] != LINK_LOCAL:
            found.append(socket.inet_ntop(socket.AF_INET6, packed))
    return list(dict.fromkeys(found))


def port_number(text: str) -> int:
    """A TCP port on a command line; the resolver takes larger ones modulo 65536."""
    if not (text.isascii() and text.isdigit() and int(text) <= LARGEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {LARGEST_PORT}")
    return int(text)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="The verbs of ibwire drill on this host's device.")
    parser.add_argument("--device", required=True)
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="local address to listen at, :: for all; default: those of the device",
    )
    parser.add_argument(
        "--port", type=port_number, default=agent_server.PORT, help="TCP port; 0 for any"
    )
    parser.add_argument(
        "--token",
        default=os.environ.get(agent_server.TOKEN_VARIABLE),
        help="what programs must show to be served; better in the variable "
        f"{agent_server.TOKEN_VARIABLE}, as other users can read a command line; default: a "
        "random one, which is printed",
    )
    wish = parser.parse_args()
    token, memory = wish.token or agent_server.new_token(), Memory()
    try:
        agent_server.check_token(token)
        context = open_agent(wish.device).context  # fails now for a missing device
        device = device_addresses(context)
        context.close()
        addresses = [wish.listen] if wish.listen else device or [agent_server.LOOPBACK]
        listening = agent_server.listen(addresses, wish.port)
    except (agent_server.Refused, agent_server.ListenError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    shown = None if wish.token else token
    print(agent_server.notice(listening, wish.device, shown, device), flush=True)
    try:
        server = agent_server.Server(listening, lambda: open_agent(wish.device, memory), token)
        agent_server.serve(server)
    except PyverbsError as error:  # nothing may be built on objects that cannot be closed
        raise SystemExit(f"error: {wish.device}: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
