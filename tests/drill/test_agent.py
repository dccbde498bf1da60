"""The agent on a device of ours, and what asks it: the verbs of a script on both ways."""

from __future__ import annotations

import errno
import importlib
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire.base.errors import PeerError, VerbsError
from ibwire.drill.targets.remote import Remote
from ibwire.drill.targets.target import Unable
from ibwire.rc.attributes import QPState
from ibwire.rc.device import gid_of
from ibwire.rc.memory import Access
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WCOpcode, WCStatus, WROpcode
from ibwire.verbs import Network, install_as_pyverbs, uninstall, use

Answer = Callable[[dict[str, Any]], Any]

GIDS = gid_of("10.0.0.1"), gid_of("10.0.0.2")
"""Of the two devices of a network of the verbs face."""

OWN_QPN = 0x77

CREATE = {
    **dict.fromkeys(("max_send_wr", "max_recv_wr", "send_cqe", "recv_cqe"), 1),
    "type": 2,
    "size": 64,
    "srq": False,
    "access": 1,
}
"""What a program wants of its first queue pair: RC (enum ibv_qp_type), local write."""

DOCS = Path(__file__).parents[2] / "docs" / "drill.md"


@pytest.fixture
def agent() -> Iterator[Any]:
    """An agent on the first device."""
    install_as_pyverbs()
    try:
        module = importlib.import_module("ibwire.drill.agent.agent")
        device = importlib.import_module("pyverbs.device")
        with use(Network()) as network:
            context = device.Context(name="ibwire0")

            def has_event() -> bool:
                network.deliver_events()
                return bool(context._events)

            yield module.Agent(context, has_event)
    finally:
        uninstall()


@pytest.fixture
def ask(agent: Any) -> Answer:
    """A question there, the answer back, as lines."""
    return lambda question: json.loads(agent.answer(json.dumps(question).encode()))


def remote(ask: Answer, **given: int) -> Remote:
    return Remote(ask, given, GIDS, OWN_QPN)


# The two together.


def test_a_queue_pair_comes_up_as_asked_for(ask: Answer) -> None:
    found = remote(ask)

    assert found.state is QPState.RTS
    assert found.symbols["size"] == 1 << 16
    assert found.symbols["end"] == found.symbols["va"] + (1 << 16)


@pytest.mark.parametrize("state", [QPState.RESET, QPState.RTR, QPState.SQD, QPState.ERR])
def test_a_queue_pair_stops_in_the_state_asked_for(ask: Answer, state: QPState) -> None:
    assert remote(ask, state=state).state is state


def test_memory_is_written_and_read(ask: Answer) -> None:
    found = remote(ask)
    address = found.symbols["va"] + 100

    found.write(address, b"some bytes")

    assert found.read(address - 2, 14) == b"\0\0some bytes\0\0"


def test_memory_has_the_bounds_of_its_region(ask: Answer) -> None:
    found = remote(ask)

    with pytest.raises(Unable, match="no memory for 2 bytes"):
        found.read(found.symbols["end"] - 1, 2)


def test_regions_have_names_keys_and_an_end(ask: Answer) -> None:
    found = remote(ask)

    found.register("other", 4096, int(Access.LOCAL_WRITE), other_pd=True)
    found.write(found.symbols["other.va"], b"x")
    found.deregister("other")

    assert found.symbols["other.end"] - found.symbols["other.va"] == 4096
    with pytest.raises(Unable, match="no memory for 1 bytes"):
        found.read(found.symbols["other.va"], 1)


def test_requests_have_as_many_pieces_of_memory_as_the_queue_pair_takes(ask: Answer) -> None:
    three = remote(ask, max_send_sge=3, max_recv_sge=2)
    va, lkey = three.symbols["va"], three.symbols["lkey"]
    pieces = [SGE(va, 8, lkey), SGE(va + 100, 0, lkey), SGE(va + 64, 5, lkey)]

    three.post_send(SendWR(WROpcode.RDMA_WRITE, pieces, wr_id=1))
    three.post_recv(RecvWR(pieces[:2], 2))
    for refused in (pieces, pieces * 2):
        with pytest.raises(VerbsError):
            three.post_recv(RecvWR(refused, 3))
    with pytest.raises(VerbsError):
        three.post_send(SendWR(WROpcode.RDMA_WRITE, pieces * 2, wr_id=4))
    three.modify({}, QPState.ERR)

    completions, _ = three.collect()
    assert [wc.wr_id for wc in completions["send"]] == [1]
    assert [wc.wr_id for wc in completions["recv"]] == [2]


def test_a_piece_that_is_no_piece_is_refused(ask: Answer) -> None:
    remote(ask)

    answer = ask({"do": "post_recv", "wr_id": 1, "sge": [4096, 8, 1, 4096]})

    assert "unable" in answer


def test_completions_come_once_with_all_that_they_say(ask: Answer) -> None:
    found = remote(ask)
    found.post_recv(RecvWR([], 7))
    found.post_send(SendWR(WROpcode.RDMA_READ, [SGE(found.symbols["va"], 8, 1)], wr_id=9))

    found.modify({}, QPState.ERR)
    completions, events = found.collect()

    assert [(wc.wr_id, wc.status) for wc in completions["recv"]] == [(7, WCStatus.WR_FLUSH_ERR)]
    assert [wc.wr_id for wc in completions["send"]] == [9]
    assert events == []
    assert found.collect() == ({"send": [], "recv": []}, [])


def test_a_failed_verb_has_the_error_number_of_the_device(ask: Answer) -> None:
    found = remote(ask)

    with pytest.raises(VerbsError) as error:
        found.modify({}, QPState.RTR)

    assert error.value.errno == errno.EINVAL


@pytest.mark.parametrize("opcode", [WROpcode.FLUSH, WROpcode.ATOMIC_WRITE])
def test_what_only_extended_queue_pairs_post_is_posted(ask: Answer, opcode: WROpcode) -> None:
    found = remote(ask)
    address = found.symbols["va"]
    found.post_send(SendWR(opcode, wr_id=9, remote_addr=address, length=8, atomic_data=bytes(8)))
    found.post_send(SendWR(WROpcode.RDMA_WRITE, wr_id=10))

    found.modify({}, QPState.ERR)
    completions, _ = found.collect()

    assert [wc.wr_id for wc in completions["send"]] == [9, 10]


def test_a_library_without_flush_has_plain_queue_pairs(
    agent: Any, ask: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        importlib.import_module("ibwire.drill.agent.agent"), "EXTENDED", {14: 0, 15: 0}
    )
    found = remote(ask)

    assert type(agent.qp).__name__ == "QP"
    with pytest.raises(Unable, match="post_send: no work request with opcode 14"):
        found.post_send(SendWR(WROpcode.FLUSH))


def test_a_device_without_extended_queue_pairs_has_plain_ones(
    agent: Any, ask: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libibverbs says EOPNOTSUPP (`ibv_create_qp_ex`); here for an unknown operation."""
    monkeypatch.setattr(
        importlib.import_module("ibwire.drill.agent.agent"), "EXTENDED", {14: 1 << 40}
    )
    found = remote(ask)

    assert type(agent.qp).__name__ == "QP"
    found.post_send(SendWR(WROpcode.RDMA_WRITE))


def test_a_partition_key_is_found_in_the_table_of_the_device(agent: Any, ask: Answer) -> None:
    agent.context.device.pkeys += [0x1234, 0x7FFF]

    remote(ask, pkey=0x7FFF)

    attributes, _ = agent.qp.query(0x10)  # IBV_QP_PKEY_INDEX
    assert attributes.pkey_index == 2


def test_what_the_agent_has_not_got_is_no_failure_of_the_device(ask: Answer) -> None:
    with pytest.raises(Unable, match="the device has no P_Key 0x7fff"):
        remote(ask, pkey=0x7FFF)
    with pytest.raises(Unable, match="the device has no GID"):
        Remote(ask, {}, (gid_of("10.0.0.9"), GIDS[1]), OWN_QPN)
    with pytest.raises(Unable, match="path MTU 77"):
        remote(ask, mtu=77)


def test_everything_is_gone_with_the_next_connection(ask: Answer) -> None:
    before = remote(ask)
    before.register("other", 4096, int(Access.LOCAL_WRITE))
    before.post_recv(RecvWR([], 7))

    after = remote(ask)

    assert after.qpn != before.qpn
    assert after.collect() == ({"send": [], "recv": []}, [])
    assert set(after.regions) == {"mr"}


# The agent alone.


def test_everything_is_closed_at_the_end_of_a_program(agent: Any, ask: Answer) -> None:
    remote(ask)

    agent.end()

    assert agent.qp is None
    assert not agent.context._open


def test_two_programs_have_queue_pairs_of_their_own_and_share_the_limit_of_memory(
    agent: Any, ask: Answer
) -> None:
    module = importlib.import_module("ibwire.drill.agent.agent")
    device = importlib.import_module("pyverbs.device")
    memory = module.Memory(most=100)
    both = [
        module.Agent(device.Context(name="ibwire0"), lambda: False, memory=memory) for _ in "ab"
    ]
    create = json.dumps({**CREATE, "do": "create"}).encode()

    first, second = (json.loads(each.answer(create)) for each in both)
    both[0].end()
    again = json.loads(both[1].answer(create))

    assert "qpn" in first["ok"]
    assert second == {"unable": "more than 100 bytes of memory for all programs"}
    assert again["ok"]["qpn"] != first["ok"]["qpn"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=scaled(200))
@given(
    question=st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=9),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["do", "len", "region", "sge"]), inner)
            ),
        ).map(lambda value: json.dumps(value).encode()),
        st.sampled_from(["create", "write", "read", "modify", "post_send", "bind", "collect"]).map(
            lambda name: json.dumps({"do": name}).encode()
        ),
    )
)
def test_nonsense_is_answered(agent: Any, question: bytes) -> None:
    answer = json.loads(agent.answer(question))

    assert set(answer) <= {"ok", "errno", "reason", "unable"}


def test_more_memory_than_a_script_may_have_is_not_registered(ask: Answer) -> None:
    remote(ask)

    answers = [ask({"do": "register", "len": 1 << 25, "access": 1}) for _ in "ab"]

    assert "ok" in answers[0]
    assert answers[1] == {"unable": "more than 67108864 bytes of memory"}


@pytest.mark.parametrize("length", [-1, -(1 << 40), 1 << 27, 1 << 80, 0.5, math.nan])
def test_a_length_that_is_none_is_refused_before_it_is_counted(
    agent: Any, ask: Answer, length: float
) -> None:
    """A negative length would make room for more than the limit."""
    remote(ask)
    before = agent.registered

    answer = ask({"do": "register", "len": length, "access": 1})

    assert answer == {"unable": f"len is {length}, not a whole number from 0 to 67108864"}
    assert agent.registered == before


@pytest.mark.parametrize(
    "question",
    [
        {"do": "create", **CREATE, "size": -1},
        {"do": "create", **CREATE, "max_recv_wr": 1 << 40},
        {"do": "post_recv", "wr_id": 1 << 64, "sge": None},
        {"do": "post_recv", "wr_id": 1, "sge": [0, -1, 0]},
        {"do": "modify", "mask": 1, "fields": {"qp_state": -1}, "peer_gid": "", "own_gid": ""},
        {"do": "bind", "region": -1, "address": 0, "len": 1, "access": 1},
        {"do": "deregister", "region": -1},
    ],
)
def test_a_number_that_no_device_has_is_refused(ask: Answer, question: dict[str, Any]) -> None:
    found = remote(ask)

    answer = ask(question)

    assert "not a whole number from 0 to" in answer["unable"]
    assert found.state is QPState.RTS


def test_a_program_has_a_limit_of_regions_and_windows(agent: Any, ask: Answer) -> None:
    found = remote(ask)
    module = importlib.import_module("ibwire.drill.agent.agent")
    for _ in range(module.MAXIMUM_OBJECTS - 1):
        found.register("more", 1, int(Access.LOCAL_WRITE))

    with pytest.raises(Unable, match="more than 1024 regions and windows"):
        found.register("one more", 1, int(Access.LOCAL_WRITE))
    with pytest.raises(Unable, match="more than 1024 regions and windows"):
        found.bind("window", found.symbols["va"], 8, int(Access.REMOTE_READ))


def test_a_read_has_a_limit(ask: Answer) -> None:
    found = remote(ask, size=1 << 23)

    with pytest.raises(Unable, match="4194305 bytes at a time, at most 4194304"):
        found.read(found.symbols["va"], (1 << 22) + 1)


def test_the_addresses_of_a_device_are_those_of_its_gids(agent: Any) -> None:
    module = importlib.import_module("ibwire.drill.agent.agent")

    assert module.device_addresses(agent.context) == ["10.0.0.1"]


@pytest.mark.parametrize(("offset", "length"), [(65536, 1), (1, 65536), (0, 65537)])
def test_what_is_outside_of_a_region_is_not_touched(ask: Answer, offset: int, length: int) -> None:
    """pyverbs reads and writes at any address."""
    remote(ask)

    answer = ask({"do": "read", "region": 0, "offset": offset, "len": length})

    assert answer == {"unable": f"no {length} bytes at {offset} of a region of 65536"}


POST_RECV = {"do": "post_recv", "wr_id": 1, "sge": None}

POST_SEND = {
    **dict.fromkeys(("remote_addr", "rkey", "imm_data", "invalidate_rkey"), 0),
    **dict.fromkeys(("compare_add", "swap", "wr_id"), 0),
    "do": "post_send",
    "opcode": 2,  # IBV_WR_SEND
    "flags": 0,
    "sge": None,
}


@pytest.mark.parametrize(
    "question",
    [
        {"do": "write", "region": 0, "offset": 0, "data": "00"},
        {"do": "read", "region": 0, "offset": 0, "len": 1},
        {"do": "bind", "region": 0, "address": 0, "len": 1, "access": 1},
        {"do": "deregister", "region": 0},
        POST_RECV,
        POST_SEND,
    ],
)
def test_a_deregistered_region_is_not_used(ask: Answer, question: dict[str, Any]) -> None:
    """pyverbs follows null pointers of one that is closed."""
    remote(ask)

    assert ask({"do": "deregister", "region": 0}) == {"ok": None}

    assert ask(question) == {"unable": "region 0 is deregistered"}


@pytest.mark.parametrize(("offset", "length"), [(-1, 8), (65529, 8), (0, 65537)])
def test_inline_data_is_that_of_a_region(ask: Answer, offset: int, length: int) -> None:
    """The library copies it without a key: it could be any memory of the agent."""
    found = remote(ask)
    va, key = found.symbols["va"], 0
    inline = {**POST_SEND, "flags": 8}  # IBV_SEND_INLINE

    inside = ask({**inline, "sge": [va + 65528, 8, key]})
    outside = ask({**inline, "sge": [va + offset, length, key]})
    ask({"do": "deregister", "region": 0})
    closed = ask({**inline, "sge": [va, 8, key]})

    assert inside == {"ok": None}
    assert "is outside of the regions" in outside["unable"]
    assert "is outside of the regions" in closed["unable"]


def test_every_request_is_documented(agent: Any) -> None:
    names = importlib.import_module("ibwire.drill.agent.agent").HANDLERS
    table = DOCS.read_text().partition("### The agent's protocol")[2].partition("\n## ")[0]

    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(names)


# The connection manager of a host.


class Managed:
    """A connection manager that notes what it is asked."""

    def __init__(self, qp: Any) -> None:
        self.qp = qp
        self.asked: list[Any] = []
        self.is_closed = False

    def cm_events(self) -> list[dict[str, int]]:
        return [{"event": 8, "status": 28}, {"event": 10, "status": -110}]

    def reject(self, **given: int) -> None:
        self.asked.append(given)

    def disconnect(self) -> None:
        raise OSError(errno.EINVAL, "rdma_disconnect: Invalid argument")

    def delay(self, **given: int) -> None:
        raise NotImplementedError("no function for it")

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def managed(agent: Any) -> list[Managed]:
    """The managers that the agent makes."""
    made: list[Managed] = []

    def make(qp: Any) -> Managed:
        made.append(Managed(qp))
        return made[-1]

    agent._make_manager = make
    return made


def test_a_manager_is_made_on_demand_and_closed_with_its_queue_pair(
    agent: Any, ask: Answer, managed: list[Managed]
) -> None:
    manager = remote(ask).manager()
    manager.do("reject", {})
    manager.do("reject", {"reason": 35})
    first = agent.qp
    remote(ask)

    (made,) = managed
    assert made.asked == [{"reason": 28}, {"reason": 35}]
    assert made.qp is first
    assert made.is_closed
    assert agent.manager is None


def test_events_of_a_manager_have_the_reason_of_a_rej(ask: Answer, managed: list[Managed]) -> None:
    """Other events have an errno there, which says nothing more (`cma_ib_handler`)."""
    events = remote(ask).manager().events[""]

    assert [(each.kind.name, each.reason) for each in events] == [
        ("REJECTED", 28),
        ("DISCONNECTED", 0),
    ]


def test_what_a_manager_refuses_is_no_more_than_what_it_cannot_do(
    ask: Answer, managed: list[Managed]
) -> None:
    manager = remote(ask).manager()

    with pytest.raises(VerbsError) as error:
        manager.do("disconnect", {})
    with pytest.raises(Unable, match="needs delay: no function for it"):
        manager.do("delay", {"service_timeout": 20})
    assert error.value.errno == errno.EINVAL


def test_a_question_cannot_choose_the_method_of_a_manager(
    ask: Answer, managed: list[Managed]
) -> None:
    remote(ask).manager().do("reject", {})

    answer = ask({"do": "disconnect", "_name": "close"})

    assert answer.keys() == {"unable"}
    assert not managed[0].is_closed


@pytest.mark.parametrize("event", [6, 11, 14])
def test_an_event_that_scripts_have_no_name_for_is_a_reason_to_leave_a_case_out(
    event: int,
) -> None:
    """CONNECT_ERROR, DEVICE_REMOVAL and ADDR_CHANGE of `rdma_cm_event_type`."""
    answers = {**GOOD, "cm_events": [{"event": event, "status": 0}]}
    manager = remote(lambda asked: {"ok": answers[asked["do"]]}).manager()

    with pytest.raises(Unable, match=f"has received event {event}"):
        assert manager.events


def test_addresses_and_services_go_without_saying(ask: Answer) -> None:
    asked: list[dict[str, Any]] = []

    def note(question: dict[str, Any]) -> Any:
        asked.append(question)
        return {"ok": GOOD.get(question["do"])}

    manager = remote(note).manager()
    manager.do("listen", {"backlog": 3})
    manager.do("connect", {"response_timeout": 10})

    # TCP port 7174 (IBA annex A11), and the two IPv4 addresses as GIDs.
    assert asked[-2:] == [
        {"do": "listen", "service": 0x01061C06, "backlog": 3, "gid": gid(1)},
        {
            "do": "connect",
            "service": 0x01061C06,
            "gid": gid(2),
            "own_gid": gid(1),
            "response_timeout": 10,
            "initiator_depth": 1,
            "responder_resources": 1,
        },
    ]


def gid(last: int) -> str:
    return f"0000:0000:0000:0000:0000:ffff:0a00:{last:04x}"


def test_without_the_second_file_there_is_no_manager(
    ask: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("ibwire.drill.agent.agent")
    monkeypatch.setattr(module, "__package__", "ibwire.nowhere")

    with pytest.raises(Unable, match=r"needs listen: agent_cm.py is not beside agent.py"):
        remote(ask).manager().do("listen", {})


# An agent that lies.

GOOD: dict[str, Any] = {
    "about": {"device": "x", "access": 15},
    "create": {"qpn": 5, "region": 0, "va": 4096, "rkey": 1, "lkey": 2},
    "modify": None,
    "state": 3,
    "read": "00",
    "collect": {"send": [], "recv": [], "events": []},
    "cm_events": [],
}

SUCCESS = {"wr_id": 1, "status": 0, "opcode": 0, "byte_len": 8, "flags": 0, "imm_data": 0}


@each_case(
    ("question", "answer"),
    [
        ("about", None),
        ("about", {"device": "x"}),
        ("create", {"qpn": "5"}),
        ("create", {"qpn": 5, "region": 0, "va": None}),
        ("state", 99),
        ("state", [3]),
        ("read", 5),
        ("read", "xy"),
        ("collect", []),
        ("collect", {"send": [], "recv": []}),
        ("collect", {"send": [{}], "recv": [], "events": []}),
        ("collect", {"send": [{**SUCCESS, "status": 99}], "recv": [], "events": []}),
        ("collect", {"send": [{**SUCCESS, "opcode": 77}], "recv": [], "events": []}),
        ("collect", {"send": 5, "recv": [], "events": []}),
        ("collect", {"send": [], "recv": [], "events": [999]}),
        ("cm_events", None),
        ("cm_events", [5]),
        ("cm_events", [{"event": 8}]),
        ("cm_events", [{"event": 8, "status": "x"}]),
        ("cm_events", [{"event": 8, "status": math.inf}]),
        ("cm_events", [{"event": 99, "status": 0}]),
        ("cm_events", [{"event": -1, "status": 0}]),
    ],
)
def test_an_answer_that_makes_no_sense_is_the_agents_fault(question: str, answer: Any) -> None:
    answers = {**GOOD, question: answer}

    with pytest.raises(PeerError):
        use_all(remote(lambda asked: {"ok": answers[asked["do"]]}))


@each_case("answer", [None, [], {}, {"errno": "EINVAL", "reason": "x"}, "ok"])
def test_an_answer_of_another_form_is_the_agents_fault(answer: Any) -> None:
    with pytest.raises(PeerError, match="the agent answers"):
        remote(lambda asked: answer)


def test_a_completion_is_read_with_all_its_numbers() -> None:
    answers = {**GOOD, "collect": {"send": [SUCCESS], "recv": [], "events": [3]}}

    completions, events = remote(lambda asked: {"ok": answers[asked["do"]]}).collect()

    (wc,) = completions["send"]
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (1, WCStatus.SUCCESS, WCOpcode.SEND, 8)
    assert [event.name for event in events] == ["QP_ACCESS_ERR"]


def use_all(found: Remote) -> None:
    assert found.state
    found.read(found.symbols["va"], 1)
    found.collect()
    assert not found.manager().events


def test_what_is_posted_reaches_the_agent_as_it_is() -> None:
    asked: list[dict[str, Any]] = []

    def ask(question: dict[str, Any]) -> Any:
        asked.append(question)
        return {"ok": GOOD.get(question["do"])}

    found = remote(ask)
    found.post_send(
        SendWR(
            WROpcode.ATOMIC_CMP_AND_SWP,
            [SGE(4096, 8, 2)],
            SendFlags.SIGNALED | SendFlags.FENCE,
            wr_id=5,
            imm_data=6,
            invalidate_rkey=7,
            remote_addr=8,
            rkey=9,
            compare_add=10,
            swap=11,
        )
    )

    wish = {"opcode": 5, "wr_id": 5, "sge": [4096, 8, 2], "flags": 3, "imm_data": 6}
    wish |= {"invalidate_rkey": 7, "remote_addr": 8, "rkey": 9, "compare_add": 10, "swap": 11}
    assert asked[-1] == {"do": "post_send", **wish}

    found.post_send(SendWR(WROpcode.FLUSH, length=12, flush_type=3, flush_level=1))
    assert asked[-1].items() >= {"length": 12, "flush_type": 3, "flush_level": 1}.items()
    found.post_send(SendWR(WROpcode.ATOMIC_WRITE, atomic_data=b"12345678"))
    assert asked[-1]["atomic_data"] == b"12345678".hex()


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("port", ["70000", "65536", "-1", "x"])
def test_a_port_that_tcp_lacks_is_wrong_usage(
    port: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("ibwire.drill.agent.agent")
    monkeypatch.setattr(sys, "argv", ["agent.py", "--device", "nosuch", f"--port={port}"])

    with pytest.raises(SystemExit):
        module.main()

    assert f"--port: '{port}' is not a whole number from 0 to 65535" in capsys.readouterr().err


def test_a_host_without_pyverbs_gets_an_error_with_the_reason() -> None:
    agent = Path(__file__).parents[2] / "ibwire" / "drill" / "agent" / "agent.py"
    script = (
        "import runpy, sys; sys.modules['pyverbs'] = None; "
        f"runpy.run_path({str(agent)!r}, run_name='__main__')"
    )

    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "the agent needs pyverbs of rdma-core (Debian: python3-pyverbs)" in ended.stderr
