"""What a response does to the requests that wait: reference/transport#responses."""

from __future__ import annotations

from typing import Any

import pytest

from each_case import each_case
from ibwire.rc.attributes import EventType, QPState
from ibwire.rc.profile import CONNECTX, PROFILES, RDMAVT, RXE, SPEC, Profile
from ibwire.rc.work import SGE, SendFlags, SendWR, WCStatus, WROpcode
from ibwire.testing import Peer, statuses, summaries
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet

R = OpCode
OK = WCStatus.SUCCESS

every_profile = each_case("profile", PROFILES.values(), ids=lambda p: p.name)


def open_lone(**given: Any) -> Peer:
    """With a peer that keeps no credits, as after its first acknowledgement."""
    lone = Peer(mtu=256, **given)
    lone.qp.sends.credits.limited = False
    return lone


def reth(packet: Packet) -> h.RETH:
    found = packet.extension(h.RETH)
    assert found is not None
    return found


@every_profile
def test_an_ack_completes_every_send_and_write_up_to_its_psn(profile: Profile) -> None:
    lone = open_lone(profile=profile)
    for wr_id in range(4):
        lone.request(WROpcode.RDMA_WRITE, 8, wr_id=wr_id)

    lone.receive_ack(502)

    assert statuses(lone.poll_send_cq()) == [(0, OK), (1, OK), (2, OK)]


@every_profile
def test_an_ack_in_the_middle_of_a_message_completes_nothing(profile: Profile) -> None:
    lone = open_lone(profile=profile)
    lone.request(WROpcode.RDMA_WRITE, 1000)

    lone.receive_ack(501)

    assert statuses(lone.poll_send_cq()) == []
    assert lone.qp.sends.una == 502
    lone.receive_ack(503)
    assert statuses(lone.poll_send_cq()) == [(0, OK)]


@pytest.mark.parametrize("psn", [504, 600, 500 + (1 << 23) - 1])
def test_rule_2_answers_to_what_was_never_sent_are_dropped(psn: int) -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_WRITE, 1000)

    lone.receive_ack(psn)
    lone.receive_ack(psn, syndrome=0x61)

    assert statuses(lone.poll_send_cq()) == []
    assert lone.qp.state is QPState.RTS
    assert lone.qp.counters.unexpected_responses == 2


@pytest.mark.parametrize("syndrome", [0x1F, 0x60, 0x61, 0x2C])
def test_rule_1_an_answer_without_a_request_is_dropped(syndrome: int) -> None:
    lone = open_lone()

    assert lone.receive_ack(500, syndrome=syndrome) == []
    assert lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 500, b"abcd") == []
    assert lone.qp.state is QPState.RTS


@each_case("syndrome", [0x1F, 0x60, 0x61, 0x62, 0x63, 0x2C])
@each_case("psn", [499, 500 - (1 << 23)])
def test_rule_3_ghost_answers_change_nothing(psn: int, syndrome: int) -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_WRITE, 8)

    lone.receive_ack(psn & 0xFFFFFF, syndrome=syndrome)

    assert statuses(lone.poll_send_cq()) == []
    assert lone.qp.state is QPState.RTS
    assert lone.qp.counters.ghost_acks == 1
    assert lone.receive_ack(500) == []
    assert statuses(lone.poll_send_cq()) == [(0, OK)]


def test_a_second_answer_completes_nothing_twice() -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=2)

    lone.receive_ack(500)
    lone.receive_ack(500)

    assert statuses(lone.poll_send_cq()) == [(1, OK)]


@every_profile
@pytest.mark.parametrize(
    "answer",
    [
        (R.RC_ACKNOWLEDGE, b"", {"syndrome": 0x1F}),
        (R.RC_RDMA_READ_RESPONSE_ONLY, bytes(8), {"syndrome": 0x1F}),
        (R.RC_ACKNOWLEDGE, b"", {"syndrome": 0x60}),
    ],
    ids=["ACK", "READ response", "NAK"],
)
def test_rule_5_an_answer_beyond_an_unanswered_read_asks_for_the_read_again(
    answer: tuple[int, bytes, dict[str, int]], profile: Profile
) -> None:
    """Implied NAK: older SENDs and WRITEs complete, the READ does not (loss-ack-only.a)."""
    lone = open_lone(profile=profile)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)
    lone.request(WROpcode.RDMA_READ, 600, wr_id=2)
    lone.request(WROpcode.RDMA_READ, 8, wr_id=3)
    opcode, payload, said = answer

    heard = lone.receive_packet(opcode, 504, payload, **said)

    assert statuses(lone.poll_send_cq()) == [(1, OK)]
    assert summaries(heard) == ["RDMA_READ_REQUEST 501", "RDMA_READ_REQUEST 504"]
    assert lone.qp.counters.implied_naks == 1


@pytest.mark.parametrize("opcode", [WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.ATOMIC_WRITE])
def test_rule_5_an_atomic_without_its_answer_is_asked_for_again(opcode: WROpcode) -> None:
    lone = open_lone()
    lone.request(opcode, 8, wr_id=1, atomic_data=bytes(8))
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=2)

    heard = lone.receive_ack(501)

    assert [p.bth.psn for p in heard] == [500, 501]
    assert statuses(lone.poll_send_cq()) == []


def test_rule_4_after_an_implied_nak_only_the_missing_answer_counts() -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_READ, 8, wr_id=1)
    lone.request(WROpcode.RDMA_READ, 8, wr_id=2)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 501, bytes(8), syndrome=0x1F)

    assert lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 501, bytes(8), syndrome=0x1F) == []
    assert statuses(lone.poll_send_cq()) == []
    assert lone.qp.counters.implied_naks == 1
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 500, bytes(8), syndrome=0x1F)
    lone.receive_packet(R.RC_RDMA_READ_RESPONSE_ONLY, 501, bytes(8), syndrome=0x1F)
    assert statuses(lone.poll_send_cq()) == [(1, OK), (2, OK)]


def responses(
    lone: Peer, first: int, sizes: list[int], names: list[str], fill: bytes = b"r"
) -> list[Packet]:
    """READ responses one after the other; what leaves because of them."""
    heard = []
    for index, (size, name) in enumerate(zip(sizes, names, strict=True)):
        opcode = OpCode[f"RC_RDMA_READ_RESPONSE_{name}"]
        said = {} if name == "MIDDLE" else {"syndrome": 0x1F}
        heard += lone.receive_packet(opcode, first + index, fill * size, **said)
    return heard


@pytest.mark.parametrize(
    ("profile", "restarts"),
    [(SPEC, True), (RDMAVT, True), (CONNECTX, True), (RXE, False)],
    ids=lambda value: getattr(value, "name", value),
)
def test_rule_6_a_gap_inside_a_read(profile: Profile, restarts: bool) -> None:
    """Restarts at the first missing PSN; rxe waits for its timer (drop-read-response.a)."""
    lone = open_lone(profile=profile)
    lone.request(WROpcode.RDMA_READ, 1024)
    responses(lone, 500, [256], ["FIRST"])

    heard = responses(lone, 502, [256], ["MIDDLE"])

    assert summaries(heard) == (["RDMA_READ_REQUEST 501"] if restarts else [])
    if restarts:
        assert (reth(heard[0]).va, reth(heard[0]).dma_len) == (0x5000 + 256, 768)
        assert responses(lone, 503, [256], ["LAST"]) == []  # one restart for one loss


@every_profile
@pytest.mark.parametrize("names", [["FIRST", "MIDDLE", "LAST"], ["MIDDLE", "MIDDLE", "LAST"]])
def test_rule_9_a_restarted_read_may_go_on_with_either(names: list[str], profile: Profile) -> None:
    """A peer starts the READ again or, as rxe does, continues where it was."""
    lone = open_lone(profile=profile)
    lone.request(WROpcode.RDMA_READ, 1024, wr_id=7)
    responses(lone, 500, [256], ["FIRST"], b"a")
    lone.wait(70 * 10**9)  # the timer

    responses(lone, 501, [256, 256, 256], names, b"b")

    assert statuses(lone.poll_send_cq()) == [(7, OK)]
    assert lone.memory[:1024] == b"a" * 256 + b"b" * 768


def test_a_read_answered_in_one_piece_of_the_rest() -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_READ, 300, wr_id=7)
    responses(lone, 500, [256], ["FIRST"])
    lone.wait(70 * 10**9)

    responses(lone, 501, [44], ["ONLY"])

    assert statuses(lone.poll_send_cq()) == [(7, OK)]


WRONG_LENGTHS = [
    ([255], ["FIRST"]),
    ([0], ["FIRST"]),
    ([257], ["FIRST"]),
    ([256, 200], ["FIRST", "MIDDLE"]),
    ([256, 256, 87], ["FIRST", "MIDDLE", "LAST"]),
    ([256, 256, 89], ["FIRST", "MIDDLE", "LAST"]),
    ([256, 256, 0], ["FIRST", "MIDDLE", "LAST"]),
    ([256, 256, 256], ["FIRST", "MIDDLE", "MIDDLE"]),
    ([256, 256], ["FIRST", "LAST"]),
    ([88], ["ONLY"]),
    ([600], ["ONLY"]),
    ([0], ["ONLY"]),
]


@each_case(
    ("profile", "status"),
    [
        (SPEC, WCStatus.BAD_RESP_ERR),
        (CONNECTX, WCStatus.BAD_RESP_ERR),
        (RDMAVT, WCStatus.LOC_LEN_ERR),
    ],
    ids=lambda value: value.name,
)
@each_case(("sizes", "names"), WRONG_LENGTHS)
def test_rule_7_a_read_response_of_the_wrong_length(
    sizes: list[int], names: list[str], profile: Profile, status: WCStatus
) -> None:
    """A READ of 600 bytes at path MTU 256."""
    lone = open_lone(profile=profile)
    lone.request(WROpcode.RDMA_READ, 600, wr_id=1)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=2)

    responses(lone, 500, sizes, names)

    assert statuses(lone.poll_send_cq()) == [(1, status), (2, WCStatus.WR_FLUSH_ERR)]
    assert lone.qp.state is QPState.ERR
    assert lone.memory[600:] == bytes((1 << 16) - 600)


MISPLACED: list[tuple[str, WROpcode, int, bytes, dict[str, int]]] = [
    ("READ response to a WRITE", WROpcode.RDMA_WRITE, R.RC_RDMA_READ_RESPONSE_ONLY, bytes(8),
     {"syndrome": 0x1F}),
    ("atomic answer to a WRITE", WROpcode.RDMA_WRITE, R.RC_ATOMIC_ACKNOWLEDGE, b"",
     {"syndrome": 0x1F}),
    ("atomic answer to a READ", WROpcode.RDMA_READ, R.RC_ATOMIC_ACKNOWLEDGE, b"",
     {"syndrome": 0x1F}),
    ("READ response to an atomic", WROpcode.ATOMIC_FETCH_AND_ADD, R.RC_RDMA_READ_RESPONSE_ONLY,
     bytes(8), {"syndrome": 0x1F}),
    ("atomic answer to an ATOMIC WRITE", WROpcode.ATOMIC_WRITE, R.RC_ATOMIC_ACKNOWLEDGE, b"",
     {"syndrome": 0x1F}),
    ("MIDDLE first", WROpcode.RDMA_READ, R.RC_RDMA_READ_RESPONSE_MIDDLE, bytes(256), {}),
    ("LAST first", WROpcode.RDMA_READ, R.RC_RDMA_READ_RESPONSE_LAST, bytes(8),
     {"syndrome": 0x1F}),
    ("data with a NAK", WROpcode.RDMA_READ, R.RC_RDMA_READ_RESPONSE_ONLY, bytes(8),
     {"syndrome": 0x62}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "status"),
    [
        (SPEC, WCStatus.BAD_RESP_ERR),
        (CONNECTX, WCStatus.BAD_RESP_ERR),
        (RDMAVT, WCStatus.LOC_QP_OP_ERR),
    ],
    ids=lambda value: value.name,
)
@pytest.mark.parametrize(
    ("opcode", "answer", "payload", "said"),
    [pytest.param(*case[1:], id=case[0]) for case in MISPLACED],
)
def test_rule_8_an_answer_of_the_wrong_kind(
    opcode: WROpcode,
    answer: int,
    payload: bytes,
    said: dict[str, int],
    profile: Profile,
    status: WCStatus,
) -> None:
    lone = open_lone(profile=profile)
    lone.request(opcode, 8, wr_id=1, atomic_data=bytes(8))

    lone.receive_packet(answer, 500, payload, **said)

    assert statuses(lone.poll_send_cq()) == [(1, status)]
    assert lone.qp.state is QPState.ERR


LENGTHS_IN_RXE = [None] * 5 + [WCStatus.LOC_PROT_ERR, None, WCStatus.LOC_PROT_ERR] + [None] * 2
LENGTHS_IN_RXE += [OK, None]


@each_case(("case", "status"), list(zip(WRONG_LENGTHS, LENGTHS_IN_RXE, strict=True)), ids=str)
def test_rxe_waits_for_more_after_a_read_response_of_the_wrong_length(
    case: tuple[list[int], list[str]], status: WCStatus | None
) -> None:
    """rxe_comp.c `do_read`: what fits is stored; all of it and LAST or ONLY complete the READ."""
    lone = open_lone(profile=RXE)
    lone.request(WROpcode.RDMA_READ, 600, wr_id=1)

    responses(lone, 500, *case)

    assert statuses(lone.poll_send_cq()) == ([] if status is None else [(1, status)])
    assert lone.qp.state is (QPState.ERR if status is WCStatus.LOC_PROT_ERR else QPState.RTS)
    assert lone.memory[600:] == bytes((1 << 16) - 600)


@pytest.mark.parametrize(
    ("opcode", "answer", "payload", "said"),
    [pytest.param(*case[1:], id=case[0]) for case in MISPLACED if "ATOMIC WRITE" not in case[0]],
)
def test_rxe_fails_only_what_a_read_response_answers_and_completes_the_rest(
    opcode: WROpcode, answer: int, payload: bytes, said: dict[str, int]
) -> None:
    """rxe_comp.c `check_ack`: the status is still that of success; both end the connection."""
    lone = open_lone(profile=RXE)
    lone.request(opcode, 8, wr_id=1, atomic_data=bytes(8))

    lone.receive_packet(answer, 500, payload, **said)

    is_fatal = answer == R.RC_RDMA_READ_RESPONSE_ONLY and opcode is not WROpcode.RDMA_READ
    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.FATAL_ERR if is_fatal else OK)]
    assert lone.qp.state is QPState.ERR


def test_rule_9_first_after_first_is_wrong() -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_READ, 1024, wr_id=1)

    responses(lone, 500, [256, 256], ["FIRST", "FIRST"])

    assert statuses(lone.poll_send_cq()) == [(1, WCStatus.BAD_RESP_ERR)]


@pytest.mark.parametrize("psn", [500, 501, 502])
def test_rule_10_an_ack_inside_a_read_does_not_complete_it(psn: int) -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_READ, 1024)

    assert lone.receive_ack(psn) == []
    assert statuses(lone.poll_send_cq()) == []
    assert lone.qp.state is QPState.RTS


def test_ack_of_the_last_psn_of_a_read_shows_that_its_response_was_lost() -> None:
    """As qib `do_rc_ack`: the responder acknowledges it with its responses alone."""
    lone = open_lone()
    lone.request(WROpcode.RDMA_READ, 1024)

    assert summaries(lone.receive_ack(503)) == ["RDMA_READ_REQUEST 500"]
    assert statuses(lone.poll_send_cq()) == []


@every_profile
def test_a_read_response_acknowledges_everything_before_it(profile: Profile) -> None:
    lone = open_lone(profile=profile)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)
    lone.request(WROpcode.RDMA_READ, 600, wr_id=2)

    responses(lone, 501, [256], ["FIRST"])

    assert statuses(lone.poll_send_cq()) == [(1, OK)]


@every_profile
def test_an_atomic_answer_stores_the_original_value_in_host_order(profile: Profile) -> None:
    """Big-endian on the wire, little-endian in memory (section 11)."""
    lone = open_lone(profile=profile)
    (asked,) = lone.request(WROpcode.ATOMIC_CMP_AND_SWP, 8, wr_id=1, compare_add=1, swap=2)

    lone.receive_packet(R.RC_ATOMIC_ACKNOWLEDGE, 500, syndrome=0x1F, orig=0x0102030405060708)

    atomic = asked.extension(h.AtomicETH)
    assert atomic is not None
    assert (atomic.swap, atomic.compare) == (2, 1)
    assert lone.memory[:8] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert statuses(lone.poll_send_cq()) == [(1, OK)]


FATAL = [
    (0x61, WCStatus.REM_INV_REQ_ERR),
    (0x62, WCStatus.REM_ACCESS_ERR),
    (0x63, WCStatus.REM_OP_ERR),
]


@every_profile
@pytest.mark.parametrize(("syndrome", "status"), FATAL)
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_a_fatal_nak_ends_the_request_it_names_and_completes_those_before(
    opcode: WROpcode, syndrome: int, status: WCStatus, profile: Profile
) -> None:
    lone = open_lone(profile=profile)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)
    lone.request(opcode, 8, wr_id=2)
    lone.request(WROpcode.SEND, 8, wr_id=3)

    lone.receive_ack(501, syndrome=syndrome)

    assert statuses(lone.poll_send_cq()) == [(1, OK), (2, status), (3, WCStatus.WR_FLUSH_ERR)]
    assert lone.qp.state is QPState.ERR
    assert lone.poll_events() == []  # events are for the responder's side


@every_profile
@pytest.mark.parametrize(
    ("syndrome", "rxe"),
    [
        *((code, OK) for code in (0x40, 0x5F)),
        *((code, WCStatus.REM_OP_ERR) for code in (0x64, 0x65, 0x7F)),
    ],
)
def test_reserved_syndromes(syndrome: int, rxe: WCStatus, profile: Profile) -> None:
    """Ignored; rxe ends the connection, with whatever status the request has (rxe_comp.c)."""
    lone = open_lone(profile=profile)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)

    assert lone.receive_ack(500, syndrome=syndrome) == []

    assert statuses(lone.poll_send_cq()) == ([(1, rxe)] if profile is RXE else [])
    assert lone.qp.state is (QPState.ERR if profile is RXE else QPState.RTS)


def test_a_sequence_nak_restarts_there_and_acknowledges_what_is_before() -> None:
    lone = open_lone()
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)
    lone.request(WROpcode.RDMA_WRITE, 1000, wr_id=2)

    heard = lone.receive_ack(502, syndrome=0x60)

    assert summaries(heard) == [
        "RDMA_WRITE_MIDDLE 502",
        "RDMA_WRITE_MIDDLE 503",
        "RDMA_WRITE_LAST 504",
    ]
    assert statuses(lone.poll_send_cq()) == [(1, OK)]
    assert lone.qp.counters.retransmitted == 3


@every_profile
def test_the_same_nak_again_changes_nothing(profile: Profile) -> None:
    """reorder-ab-3pc.a: one restart."""
    lone = open_lone(profile=profile, retry_cnt=1)
    lone.request(WROpcode.RDMA_WRITE, 1000)

    assert len(lone.receive_ack(501, syndrome=0x60)) == 3
    assert lone.receive_ack(501, syndrome=0x60) == []
    assert lone.receive_ack(501, syndrome=0x60) == []
    assert lone.qp.state is QPState.RTS


def test_responses_in_rtr_are_dropped() -> None:
    lone = Peer(mtu=256)
    lone.bring_to(QPState.RTR)
    dropped = lone.qp.counters.dropped

    lone.receive_ack(500)

    assert lone.qp.counters.dropped == dropped + 1


def test_a_completion_without_room_ends_the_connection() -> None:
    lone = open_lone()
    lone.send_cq.resize(1)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=1)
    lone.request(WROpcode.RDMA_WRITE, 8, wr_id=2)
    lone.request(WROpcode.RDMA_READ, 8, wr_id=3)

    responses(lone, 502, [8], ["ONLY"])

    assert statuses(lone.poll_send_cq()) == [(1, OK)]
    assert lone.qp.state is QPState.ERR
    assert lone.poll_events() == [EventType.CQ_ERR, EventType.QP_FATAL]
    assert lone.qp.poll_timeout() is None


def test_unsignalled_success_has_no_completion_and_failure_has_one() -> None:
    """IBA 10.7.3.1."""
    lone = open_lone()
    for wr_id in (1, 2):
        lone.request(WROpcode.RDMA_WRITE, 8, wr_id=wr_id, flags=0)
    lone.receive_ack(500)
    assert statuses(lone.poll_send_cq()) == []

    lone.receive_ack(501, syndrome=0x62)

    assert statuses(lone.poll_send_cq()) == [(2, WCStatus.REM_ACCESS_ERR)]


def test_only_requested_fields_of_a_completion() -> None:
    """READ: its length; opcodes of verbs.h (section 12)."""
    lone = open_lone()
    for opcode in (
        WROpcode.SEND,
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_READ,
        WROpcode.ATOMIC_CMP_AND_SWP,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.FLUSH,
        WROpcode.ATOMIC_WRITE,
    ):
        lone.request(opcode, 8, atomic_data=bytes(8), flags=SendFlags.SIGNALED)
    lone.receive_ack(501)
    responses(lone, 502, [8], ["ONLY"])
    for psn in (503, 504):
        lone.receive_packet(R.RC_ATOMIC_ACKNOWLEDGE, psn, syndrome=0x1F)
    for psn in (505, 506):
        responses(lone, psn, [0], ["ONLY"])

    wcs = lone.send_cq.poll(16)
    assert [int(wc.opcode) for wc in wcs] == [0, 1, 2, 3, 4, 8, 9]
    assert wcs[2].byte_len == 8
    assert all(wc.status is OK and wc.qp_num == lone.qp.number for wc in wcs)


@pytest.mark.parametrize("kind", ["READ", "atomic"])
def test_a_sink_without_local_write_fails_the_request(kind: str) -> None:
    lone = open_lone()
    region = lone.pd.register(64, 0)
    opcode = WROpcode.RDMA_READ if kind == "READ" else WROpcode.ATOMIC_FETCH_AND_ADD
    lone.qp.post_send(SendWR(opcode, [SGE(region.iova, 8, region.lkey)], remote_addr=0x5000))
    lone.transmit()

    if kind == "READ":
        responses(lone, 500, [8], ["ONLY"])
    else:
        lone.receive_packet(R.RC_ATOMIC_ACKNOWLEDGE, 500, syndrome=0x1F, orig=1)

    assert [status for _, status in statuses(lone.poll_send_cq())] == [WCStatus.LOC_PROT_ERR]
    assert lone.qp.state is QPState.ERR


@pytest.mark.parametrize("opcode", ["RDMA_READ_RESPONSE_ONLY", "ATOMIC_ACKNOWLEDGE", "ACKNOWLEDGE"])
def test_a_response_that_leaves_a_request_without_memory_ends_the_connection(opcode: str) -> None:
    """The first message is acknowledged by it, and then the second, half sent, is the oldest."""
    lone = open_lone()
    lone.request(WROpcode.SEND, 8, wr_id=1)
    pieces = [lone.sge(0, 256), SGE(1, 1, 1)]
    lone.qp.post_send(SendWR(WROpcode.SEND, pieces, SendFlags.SIGNALED, wr_id=2))
    assert len(lone.transmit()) == 1

    lone.receive_packet(OpCode[f"RC_{opcode}"], 501, syndrome=0x1F)

    assert statuses(lone.poll_send_cq()) == [(1, OK), (2, WCStatus.LOC_PROT_ERR)]
    assert lone.qp.state is QPState.ERR
