"""Applications in virtual time: what they compare, and that the comparison bites."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire.base.node import Frame
from ibwire.base.units import US, Time
from ibwire.rc.work import WCStatus
from ibwire.scenario import Network, read_scenario, run
from ibwire.scenario.workload import Choice, Contents, Receives, Traffic
from ibwire_layers.headers import AtomicAckETH
from ibwire_layers.packet import Packet


def network(text: str) -> Network:
    return Network(read_scenario(text.encode(), "x.toml"), 1)


def tamper(change: Any) -> Any:
    """A stage that changes the nth packet and makes its ICRC right again: a lying network."""

    def stage(frame: Frame, now: Time) -> Any:
        packet = Packet.parse(frame)
        changed = change(packet)
        return [(0, frame if changed is packet else replace(changed, icrc=None).build())]

    return stage


def flip_payload(packet: Any) -> Any:
    if not packet.payload:
        return packet
    damaged = bytearray(packet.payload)
    damaged[-1] ^= 1
    return replace(packet, payload=bytes(damaged))


def outcome_of(text: str, *, requests: Any = None, responses: Any = None) -> Any:
    built = network(text)
    wire = built.simulator.wires[0]
    wire.a_to_b.stage = requests and tamper(requests)
    wire.b_to_a.stage = responses and tamper(responses)
    return built.run()


@each_case("opcode", ["SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "ATOMIC_WRITE"])
def test_wrong_byte_in_a_request_is_noticed(opcode: str) -> None:
    outcome = outcome_of(f"[[workload]]\nopcode = '{opcode}'\ncount = 3", requests=flip_payload)

    assert outcome.metrics["success"] == 3
    assert (outcome.metrics["verified"], outcome.metrics["wrong"]) == (0, 3)
    assert not outcome.passed


def test_wrong_byte_in_a_read_response_is_noticed() -> None:
    outcome = outcome_of("[[workload]]\nopcode = 'RDMA_READ'", responses=flip_payload)

    assert (outcome.metrics["verified"], outcome.metrics["wrong"]) == (0, 1)


@pytest.mark.parametrize("opcode", ["ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP"])
def test_wrong_result_of_an_atomic_is_noticed(opcode: str) -> None:
    def lie(packet: Any) -> Any:
        extensions = tuple(
            replace(each, orig=each.orig ^ 1) if isinstance(each, AtomicAckETH) else each
            for each in packet.extensions
        )
        return replace(packet, extensions=extensions) if extensions != packet.extensions else packet

    outcome = outcome_of(f"[[workload]]\nopcode = '{opcode}'\ncount = 3", responses=lie)

    assert (outcome.metrics["verified"], outcome.metrics["wrong"]) == (0, 3)


def test_counter_that_something_else_has_changed_is_noticed() -> None:
    built = network("[[workload]]\nopcode = 'ATOMIC_FETCH_AND_ADD'\ncount = 3")
    (flow,) = built.flows.values()
    built.hosts["b"].at(50 * US, lambda now: flow._counter.store64(0, 0))

    assert built.run().metrics["wrong"] == 1


def test_wrong_immediate_is_noticed() -> None:
    def lie(packet: Any) -> Any:
        extensions = tuple(
            replace(each, imm_data=each.imm_data ^ 1) if hasattr(each, "imm_data") else each
            for each in packet.extensions
        )
        return replace(packet, extensions=extensions) if extensions != packet.extensions else packet

    outcome = outcome_of("[[workload]]\nopcode = 'SEND_WITH_IMM'\nsize = 10", requests=lie)

    assert outcome.metrics["wrong"] == 1


MIX = """
[[connection]]
count = 3
timeout = 6
mtu = 256
max_rd_atomic = 2
[[wire.faults.a]]
loss = 0.03
[[wire.faults.b]]
duplicate = 0.05
[[workload]]
opcode = ["SEND", "RDMA_WRITE", "RDMA_READ", "ATOMIC_FETCH_AND_ADD", "SEND_WITH_IMM",
          "ATOMIC_CMP_AND_SWP", "RDMA_WRITE_WITH_IMM", "FLUSH", "ATOMIC_WRITE"]
size = [0, 1, 255, 256, 257, 1000]
count = 36
window = 7
[[workload]]
sender = "b"
opcode = { RDMA_READ = 1, SEND = 1 }
size = { min = 0, max = 700 }
count = 20
window = 3
receives = { service = "2us" }
"""


@settings(max_examples=scaled(15))
@given(st.integers(0, 2**32))
def test_every_message_of_any_mix_under_faults_is_verified_in_both_directions(seed: int) -> None:
    outcome = run(read_scenario(MIX.encode(), "mix.toml"), seed)

    assert outcome.passed
    assert outcome.metrics["verified"] == 3 * 36 + 3 * 20


@each_case("link", ["rocev2", "rocev1", "ib"])
@each_case(
    ("kind", "opcodes"),
    [
        ("RC", ["SEND", "RDMA_READ"]),
        ("UC", ["SEND", "SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM"]),
        ("UD", ["SEND", "SEND_WITH_IMM"]),
    ],
)
def test_every_service_runs_on_every_link(link: str, kind: str, opcodes: list[str]) -> None:
    text = (
        f"link = '{link}'\n[[connection]]\ntype = '{kind}'\n[[workload]]\n"
        f"opcode = {opcodes}\nsize = [0, 3, 1024]\ncount = 12\nreceives.posted = 20\n"
        "[expect]\nverified = 12\n"
    )

    assert run(read_scenario(text.encode(), "x.toml")).passed


@pytest.mark.parametrize("kind", ["UC", "UD"])
def test_lost_messages_of_an_unreliable_service_are_counted_and_the_rest_verified(
    kind: str,
) -> None:
    text = (
        f"[[connection]]\ntype = '{kind}'\n[[wire.faults.a]]\ndrop = {{ nth = [2, 5] }}\n"
        "[[workload]]\nsize = 100\ncount = 8\n"
    )
    outcome = run(read_scenario(text.encode(), "x.toml"))

    assert outcome.passed
    assert outcome.metrics["success"] == 8
    assert (outcome.metrics["verified"], outcome.metrics["lost"]) == (6, 2)


@pytest.mark.parametrize(("kind", "loss"), [("UC", 0), ("UD", 0.1)])
def test_late_and_repeated_messages_of_an_unreliable_service_are_not_wrong(
    kind: str, loss: float
) -> None:
    text = (
        f"[[connection]]\ntype = '{kind}'\n[[wire.faults.a]]\nloss = {loss}\n"
        "[[wire.faults.a]]\nduplicate = { probability = 0.2, delay = '3us' }\n"
        "[[wire.faults.a]]\ndelay = { jitter = '20us', probability = 0.3 }\n"
        "[[workload]]\nsize = [200, 0, 1]\ncount = 200\nevery = '1us'\n"
    )
    metrics = run(read_scenario(text.encode(), "x.toml")).metrics

    assert metrics["wrong"] == 0
    assert metrics["faults"] > 50
    assert 100 < metrics["verified"] <= 200


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1"])
@pytest.mark.parametrize("kind", ["RC", "UC", "UD"])
def test_packets_of_an_ecn_capable_connection_are_marked(kind: str, address: str) -> None:
    peer = address[:-1] + "2"
    text = (
        f"[[node]]\nname = 'a'\naddress = '{address}'\n[[node]]\nname = 'b'\n"
        f"address = '{peer}'\n[[connection]]\ntype = '{kind}'\necn = ECN\n"
        "[[wire.faults.a]]\nmark_ecn = { every = 2 }\n[[workload]]\nsize = 100\ncount = 6\n"
        "every = '1us'\n"
    )
    marked = {
        ecn: run(read_scenario(text.replace("ECN", ecn).encode(), "x.toml"))
        for ecn in ("true", "false")
    }

    assert [hits for _, _, hits in marked["true"].hits] == [3]
    # Of a queue pair: packets that it received with a mark.
    assert marked["true"].metrics["ce_marked"] == 3
    assert marked["true"].metrics["verified"] == 6
    assert [hits for _, _, hits in marked["false"].hits] == [0]
    assert marked["false"].metrics["ce_marked"] == 0


@pytest.mark.parametrize("kind", ["RC", "UC", "UD"])
def test_traffic_class_is_in_every_packet(kind: str) -> None:
    text = (
        f"[[connection]]\ntype = '{kind}'\ntraffic_class = 0x69\n[[workload]]\n"
        "count = 3\nsize = 100\n"
    )
    seen = set()

    def watch(node: Any, event: Any, frame: Frame, now: Time) -> None:
        ip = Packet.parse(frame).route.ip
        seen.add((node, ip.dscp, ip.ecn))

    run(read_scenario(text.encode(), "x.toml"), observers=[watch])

    assert seen == {("a", 26, 1), ("b", 26, 1)}


def test_possible_values_of_a_message_are_those_that_are_picked() -> None:
    import random

    draw = random.Random(1)
    for choice in (Choice("abc"), Choice("abc", [2, 0, 1]), Choice("a", [3])):
        for number in range(4):
            picked = {choice.pick(number, draw) for _ in range(200)}
            assert picked == set(choice.possible(number))


def test_time_of_one_write_is_line_delay_and_acknowledgement() -> None:
    # Request: Ethernet 14, IPv4 20, UDP 8, BTH 12, RETH 16, 1024 bytes, ICRC 4, and 24 of line
    # overhead: 1122 bytes of 80 ps at 100 Gb/s. ACK with an AETH of 4: 86 bytes. 1 us each way.
    text = "[[workload]]\nopcode = 'RDMA_WRITE'\nsize = 1024\n"
    metrics = run(read_scenario(text.encode(), "x.toml")).metrics

    assert metrics["time"] == 1122 * 80 + 86 * 80 + 2_000_000
    assert metrics["goodput"] == 1024 * 8 * 10**12 // metrics["time"]
    assert metrics["packets"] == 2


def test_messages_leave_no_sooner_than_their_pace() -> None:
    text = "[[workload]]\nsize = 8\ncount = 5\nevery = '100us'\nstart = '7us'\n"
    metrics = run(read_scenario(text.encode(), "x.toml")).metrics

    # From the first post at 7 us to the end of the fifth, posted 400 us later.
    assert 402_000_000 < metrics["time"] < 403_000_000


def test_stagger_starts_each_queue_pair_later() -> None:
    text = "[[connection]]\ncount = 4\n[[workload]]\nsize = 8\nstagger = '50us'\n"
    outcome = run(read_scenario(text.encode(), "x.toml"))

    starts = [qp.tally.started for qp in outcome.qps if qp.tally]
    assert starts == [0, 50 * US, 100 * US, 150 * US]


def test_slow_receiver_works_on_one_message_after_the_other() -> None:
    text = (
        "[[workload]]\nsize = 64\ncount = 10\nreceives = { posted = 1, service = '20us' }\n"
        "[[connection]]\nmin_rnr_timer = 1\n"
    )
    metrics = run(read_scenario(text.encode(), "x.toml")).metrics

    # Nine times 20 us must pass before the tenth message has a receive.
    assert metrics["verified"] == 10
    assert metrics["time"] > 180_000_000


def test_receives_that_are_not_posted_again_run_out() -> None:
    text = (
        "[[workload]]\ncount = 10\nreceives = { posted = 4, repost = false }\n"
        "[[connection]]\nrnr_retry = 1\n"
    )
    metrics = run(read_scenario(text.encode(), "x.toml")).metrics

    assert metrics["verified"] == 4
    assert metrics["status.RNR_RETRY_EXC_ERR"] == 1


def test_small_receive_buffer_fails_both_ends() -> None:
    text = "[[workload]]\nsize = 100\nreceives.size = 99\n"
    metrics = run(read_scenario(text.encode(), "x.toml")).metrics

    assert metrics["status.REM_INV_REQ_ERR"] == 1
    assert metrics["receive_errors"] == 1
    assert metrics["naks.fatal"] == 1


@pytest.mark.parametrize("kind", ["UC", "UD"])
def test_wrong_byte_of_an_unreliable_service_is_noticed(kind: str) -> None:
    outcome = outcome_of(
        f"[[connection]]\ntype = '{kind}'\n[[workload]]\nsize = 90\ncount = 3",
        requests=flip_payload,
    )

    assert (outcome.metrics["verified"], outcome.metrics["wrong"]) == (0, 3)


@each_case(
    ("kind", "status"),
    [
        ("rkey", WCStatus.REM_ACCESS_ERR),
        ("bounds", WCStatus.REM_ACCESS_ERR),
        ("lkey", WCStatus.LOC_PROT_ERR),
    ],
)
@each_case("opcode", ["RDMA_WRITE", "RDMA_READ"])
def test_mistake_ends_the_connection_with_its_status(
    kind: str, status: WCStatus, opcode: str
) -> None:
    text = (
        f"[[workload]]\nopcode = '{opcode}'\nsize = 100\ncount = 5\nwindow = 1\n"
        f"mistake = {{ kind = '{kind}', message = 2 }}\n"
    )
    outcome = run(read_scenario(text.encode(), "x.toml"))

    assert outcome.metrics["success"] == 1
    assert outcome.metrics[f"status.{status.name}"] == 1
    assert outcome.metrics["wrong"] == outcome.metrics["unfinished"] == 0


def test_data_of_messages_in_a_row_differs() -> None:
    contents = Contents(1, 4096)
    pieces = {
        contents.data[place : place + 16]
        for flow in range(4)
        for place in (contents.place(flow, message) for message in range(2000))
    }

    assert len(pieces) == 8000


def test_weights_decide_how_often_a_value_is_drawn() -> None:
    import random

    choice = Choice(["often", "never", "seldom"], [9, 0, 1])
    draw = random.Random(5)
    drawn = [choice.pick(number, draw) for number in range(1000)]

    assert 850 < drawn.count("often") < 950
    assert "never" not in drawn


def test_memory_of_a_flow_is_known_before_it_is_made() -> None:
    traffic = Traffic(Choice(["x"]), Choice([100]), 5, 2, 0, Receives(3))

    # Two slots of 104 bytes at each end, three receives, and a little.
    assert 2 * 2 * 104 + 3 * 104 <= traffic.memory <= 2 * 2 * 104 + 3 * 104 + 1000
