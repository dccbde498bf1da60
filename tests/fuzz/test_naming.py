"""Names, rules and groups of findings: true for the planted fault, and one for each cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Any

import pytest

from ibwire.base.units import MS
from ibwire.fuzz.case import (
    BAD,
    Case,
    Connect,
    Connection,
    Packet,
    Post,
    Receive,
    Step,
    Value,
    Wait,
)
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.naming import Name, name_of
from ibwire.fuzz.judge.request_names import request
from ibwire.fuzz.judge.response_names import about as response
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.queue_pair.execution import moments
from ibwire.rc.memory import Access
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.score import names_rule
from mutants.table import EDGES, FIRMWARE, FUZZED, INTERACTIONS, VALUES, read_mutants

TABLES = (INTERACTIONS, EDGES, FIRMWARE, VALUES)
PLANTED = reduce(or_, map(read_mutants, TABLES), FUZZED)

SEND = Packet(int(OpCode.RC_SEND_ONLY))
SEND_LAST = Packet(int(OpCode.RC_SEND_LAST), length=8)
WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8)
WRITE_FIRST = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256, fields={"reth.dma_len": 512})
READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8})
ADD = Packet(int(OpCode.RC_FETCH_ADD))
SWAP = Packet(int(OpCode.RC_COMPARE_SWAP))
INVALIDATE = Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE))


UC_SEND_FIRST = Packet(int(OpCode.UC_SEND_FIRST), length=256)
UC_SEND_MIDDLE = Packet(int(OpCode.UC_SEND_MIDDLE), length=256)
UC_FIRST = Packet(int(OpCode.UC_RDMA_WRITE_FIRST), length=256, at=7)


USUAL = Connection()


@lru_cache(maxsize=2)  # one test asks for the same several times
def faulty(fault: str) -> Any:
    """The class of a device with a planted fault."""
    return copied(PLANTED[fault])[Emulation.__module__].Emulation


def named(fault: str, *steps: Step, connection: Connection = USUAL) -> Name:
    """The name of what a case shows on a device with a planted fault."""
    case = Case(connection, steps)
    difference = EmulatorTestbed(faulty(fault)).replay(case, SPEC)
    assert difference is not None
    assert difference.step == len(steps) - 1
    return name_of(case, difference, SPEC)


def wrong(packet: Packet, **fields: object) -> Packet:
    given = {name.replace("__", "."): value for name, value in fields.items()}
    return packet.altered(fields={**packet.fields, **given})


CASES: Sequence[tuple[str, Sequence[Step], str]] = (
    ("icrc-ignored", [SEND.altered(icrc=BAD)], "SEND_ONLY (a wrong ICRC): ACK instead of nothing"),
    (
        "pkey-ignored",
        [wrong(READ, bth__pkey=0x1234)],
        "READ_REQUEST (a wrong P_Key): READ_RESPONSE_ONLY instead of nothing",
    ),
    (
        "atomic-unaligned",
        [wrong(ADD, atomiceth__va=("va", 4))],
        "FETCH_ADD (an atomic at an unaligned address): "
        "ATOMIC_ACKNOWLEDGE instead of NAK INVALID_REQUEST",
    ),
    (
        "atomic-inside-a-write",
        [WRITE_FIRST, ADD],
        "FETCH_ADD (an atomic inside a WRITE): ATOMIC_ACKNOWLEDGE instead of NAK INVALID_REQUEST",
    ),
    (
        "rnr-nak-names-the-psn-before",
        [SEND],
        "SEND_ONLY (no receive request): RNR NAK wait=0.64ms with another bth.psn",
    ),
    (
        "retries-never-run-out",
        [Post(int(WROpcode.RDMA_WRITE), 8), Wait(2_000_000_000), Wait(2_000_000_000)],
        "a wait (the ACK timer): WRITE_ONLY instead of RETRY_EXC_ERR",
    ),
    ("credits-of-all-queue-pairs", [WRITE], "WRITE_ONLY: ACK with other credits"),
    (
        "ud-empty-datagram-dropped",
        [Packet(int(OpCode.UD_SEND_ONLY))],
        "UD_SEND_ONLY: no completion SUCCESS of a receive",
    ),
    (
        "qkey-of-the-work-request-always",
        [Post(int(WROpcode.SEND), remote=8)],
        "a posted SEND: UD_SEND_ONLY with another deth.qkey",
    ),
    (
        "refusal-drops-responses-elsewhere",
        [READ.altered(pair=1, held=True), wrong(WRITE, reth__rkey=0)],
        "WRITE_ONLY (while another queue pair answers): a READ_RESPONSE_ONLY is missing",
    ),
    (
        "rnr-wait-blocks-other-queue-pairs",
        [
            Post(int(WROpcode.SEND)),
            wrong(Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0)), aeth__syndrome=0x2C),
            Post(int(WROpcode.SEND), pair=1),
        ],
        "a posted SEND (while another queue pair waits after an RNR NAK): "
        "nothing instead of SEND_ONLY",
    ),
    (
        "atomic-result-in-one-sge",
        [
            Post(int(WROpcode.ATOMIC_FETCH_AND_ADD), sges=2),
            Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0)),
        ],
        "ATOMIC_ACKNOWLEDGE (a response for several SGEs): "
        "completion LOC_PROT_ERR of a posted ATOMIC_FETCH_AND_ADD "
        "instead of SUCCESS of a posted ATOMIC_FETCH_AND_ADD",
    ),
)

ACK = int(OpCode.RC_ACKNOWLEDGE)

EDGE_CASES: Sequence[tuple[str, Sequence[Step], str]] = (
    (
        "error-flushes-receives-of-others",
        [wrong(WRITE, reth__rkey=0)],
        "WRITE_ONLY (an unknown R_Key): "
        "a completion WR_FLUSH_ERR of a receive of another queue pair, which is not due",
    ),
    (
        "retries-of-all-queue-pairs",
        [
            Post(int(WROpcode.RDMA_WRITE), pair=1),
            Post(int(WROpcode.RDMA_WRITE)),
            Wait(1_048_576_000),
            Wait(1_048_576_000),
        ],
        "a wait (the ACK timer): RETRY_EXC_ERR instead of WRITE_ONLY",
    ),
    (
        "later-keys-read-as-zeros",
        [Post(int(WROpcode.SEND), 257, sges=3, wrong_lkey=3)],
        "a posted SEND (a wrong L_Key): SEND_FIRST instead of LOC_PROT_ERR",
    ),
    (
        "full-members-only",
        [WRITE],
        "WRITE_ONLY: nothing instead of ACK, as if packets between a full and a limited member "
        "were dropped",
    ),
    (
        "full-last-refused",
        [
            Packet(int(OpCode.UC_SEND_FIRST), length=256),
            Packet(int(OpCode.UC_SEND_LAST), length=256),
        ],
        "UC_SEND_LAST (a SEND that ends with a full packet): no completion SUCCESS of a receive",
    ),
    (
        "read-without-its-odd-byte",
        [wrong(READ, reth__dma_len=513)],
        "READ_REQUEST: READ_RESPONSE_LAST instead of READ_RESPONSE_MIDDLE",
    ),
    (
        "restart-across-the-wrap",
        [
            Post(int(WROpcode.RDMA_READ), 769),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 0), 256),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_MIDDLE), ("una", 1), 256),
        ],
        "READ_RESPONSE_MIDDLE (a gap in the responses of a READ at the PSN wrap): "
        "nothing instead of READ_REQUEST",
    ),
    (
        "no-timeout-after-an-rnr-wait",
        [
            Post(int(WROpcode.RDMA_WRITE)),
            wrong(Packet(ACK, ("una", 0)), aeth__syndrome=0x25),
            Wait(60_000_000),
            Wait(2_000_000_000),
        ],
        "a wait (the ACK timer): no completion RETRY_EXC_ERR of a posted RDMA_WRITE",
    ),
    (
        "credits-go-back",
        [
            Post(int(WROpcode.RDMA_WRITE)),
            wrong(Packet(ACK, ("una", 0)), aeth__syndrome=0),
            Post(int(WROpcode.SEND)),
        ],
        "a posted SEND after a response with credits: nothing instead of SEND_ONLY",
    ),
    (
        "cut-header-read",
        [wrong(SEND, bth__opcode=0x45)],
        "SEND_ONLY (a packet shorter than the headers of its opcode): error in _read_deth",
    ),
    (
        "atomic-write-of-any-length",
        [wrong(Packet(int(OpCode.RC_ATOMIC_WRITE), length=8), bth__pad_count=3)],
        "ATOMIC_WRITE (an ATOMIC WRITE that is not of 8 bytes): "
        "READ_RESPONSE_ONLY instead of NAK INVALID_REQUEST",
    ),
    (
        "transport-version-ignored",
        [wrong(ADD, bth__tver=1).altered(held=True), SEND],
        "FETCH_ADD (another transport version): ATOMIC_ACKNOWLEDGE instead of nothing",
    ),
    (
        "replay-behind-newer-responses-at-the-wrap",
        [
            Packet(int(OpCode.RC_SEND_ONLY_WITH_IMMEDIATE)).altered(held=True),
            SWAP.altered(held=True),
            SWAP.altered(psn=("expected", -1)),
        ],
        "COMPARE_SWAP (a duplicate atomic at the PSN wrap): an ATOMIC_ACKNOWLEDGE too many",
    ),
    (
        "invalidated-window-stays-open",
        [INVALIDATE, Connect(USUAL), wrong(INVALIDATE, bth__ack_req=0)],
        "SEND_ONLY_WITH_INVALIDATE (a SEND with invalidate): "
        "completion REM_INV_REQ_ERR of a receive instead of SUCCESS of a receive, "
        "as if a SEND ONLY with invalidate had left the window open",
    ),
    (
        "duplicate-write-stored",
        [
            wrong(READ, reth__dma_len=517).altered(held=True),
            Packet(int(OpCode.RC_RDMA_WRITE_FIRST), ("expected", -1), 8, at=9),
        ],
        "WRITE_FIRST (a duplicate WRITE): READ_RESPONSE_FIRST with other data",
    ),
    (
        "write-last-shorter-than-said",
        [
            wrong(READ, reth__dma_len=424).altered(held=True),
            Packet(
                int(OpCode.RC_RDMA_WRITE_FIRST),
                length=256,
                fields={"reth.dma_len": 257},
                held=True,
            ),
            wrong(Packet(int(OpCode.RC_RDMA_WRITE_LAST)), bth__ack_req=0),
        ],
        "WRITE_LAST (a WRITE with less in its end than its RETH says): "
        "nothing instead of NAK INVALID_REQUEST",
    ),
)
"""What names were false about: other queue pairs, what a right device ignores, the wrap."""

MORE_CASES: Sequence[tuple[str, Sequence[Step], str]] = (
    (
        "region-ends-one-byte-late",
        [wrong(UC_FIRST, reth__dma_len=8193)],
        "UC_WRITE_FIRST (a range that ends behind its region): other bytes in its memory",
    ),
    (
        "uc-error-ends-it",
        [Packet(int(OpCode.UC_RDMA_WRITE_ONLY), length=1024)],
        "UC_WRITE_ONLY (a payload that does not fit the path MTU): "
        "the queue pair goes to the error state",
    ),
    (
        "foreign-domain-open",
        [
            Packet(
                int(OpCode.RC_FLUSH),
                fields={"reth.rkey": ("foreign.rkey", 0), "reth.va": ("foreign.va", 0)},
            )
        ],
        "FLUSH (an R_Key of another protection domain): "
        "READ_RESPONSE_ONLY instead of NAK REMOTE_ACCESS_ERROR",
    ),
    (
        "refused-packet-counts-as-taken",
        [SEND, SEND.altered(psn=("expected", 1))],
        "SEND_ONLY (a request behind a refused one): RNR NAK wait=0.64ms instead of nothing, "
        "as if a request that draws an RNR NAK took its PSN",
    ),
    (
        "duplicate-acknowledged-with-its-psn",
        [SEND.altered(psn=("expected", 1 << 23))],
        "SEND_ONLY (a PSN at the edge of the duplicates): ACK with another bth.psn",
    ),
    (
        "queue-pair-permissions-ignored",
        [WRITE.altered(held=True), READ],
        "READ_REQUEST (a request that the queue pair does not allow): "
        "READ_RESPONSE_ONLY instead of NAK INVALID_REQUEST",
    ),
    (
        "rnr-nak-drops-waiting-responses",
        [READ.altered(held=True), SEND],
        "SEND_ONLY (while earlier responses wait): a READ_RESPONSE_ONLY is missing",
    ),
    (
        "repeated-packet-has-older-bytes",
        [Post(int(WROpcode.RDMA_WRITE), 513), Wait(67_108_900_000)],
        "a wait (the ACK timer): WRITE_MIDDLE with other data",
    ),
    (
        "request-ends-the-rnr-wait",
        [
            Post(int(WROpcode.SEND)),
            wrong(Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0)), aeth__syndrome=0x2C),
            SEND,
        ],
        "SEND_ONLY (during the wait after an RNR NAK): a SEND_ONLY too many",
    ),
    (
        "request-restarts-the-ack-timer",
        [
            Post(int(WROpcode.SEND)),
            Wait(524_288_000),
            SEND,
            Wait(524_288_000),
        ],
        "a wait (the ACK timer): nothing instead of a retransmitted SEND_ONLY",
    ),
    (
        "responses-dropped-inside-a-request",
        [
            Packet(int(OpCode.RC_SEND_FIRST), length=256),
            Post(int(WROpcode.SEND)),
            Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0)),
        ],
        "ACKNOWLEDGE (while a request is being received): no completion SUCCESS of a posted SEND",
    ),
    (
        "full-read-takes-one-psn-more",
        [wrong(READ, reth__dma_len=512), WRITE],
        "WRITE_ONLY after a READ of an exact multiple of the path MTU: ACK with another aeth.msn",
    ),
)

CONNECTIONS = {
    "rnr-nak-names-the-psn-before": Connection(receives=0),
    "retries-never-run-out": Connection(timeout=8, retry_cnt=1),
    "credits-of-all-queue-pairs": Connection(pairs=2),
    "refusal-drops-responses-elsewhere": Connection(pairs=2),
    "rnr-wait-blocks-other-queue-pairs": Connection(pairs=2),
    "region-ends-one-byte-late": Connection(service="UC"),
    "uc-error-ends-it": Connection(service="UC"),
    "refused-packet-counts-as-taken": Connection(receives=0),
    "queue-pair-permissions-ignored": Connection(access=int(Access.REMOTE_WRITE)),
    "rnr-nak-drops-waiting-responses": Connection(receives=0),
    "request-restarts-the-ack-timer": Connection(timeout=8),
    "ud-empty-datagram-dropped": Connection(service="UD"),
    "qkey-of-the-work-request-always": Connection(service="UD"),
    "error-flushes-receives-of-others": Connection(pairs=2),
    "retries-of-all-queue-pairs": Connection(timeout=8, retry_cnt=2, pairs=2),
    "full-members-only": Connection(pkey_index=1),
    "full-last-refused": Connection(service="UC"),
    "restart-across-the-wrap": Connection(sq_psn=0xFFFFFF),
    "replay-behind-newer-responses-at-the-wrap": Connection(rq_psn=0xFFFFFF),
    "no-timeout-after-an-rnr-wait": Connection(timeout=8, retry_cnt=0),
    "transport-version-ignored": Connection(receives=0),
}


@pytest.mark.parametrize(
    ("fault", "steps", "text"),
    [
        pytest.param(*each, id=each[0], marks=() if each[0] in FUZZED else pytest.mark.slow)
        for each in CASES
    ]
    + [pytest.param(*each, id=each[0], marks=pytest.mark.slow) for each in EDGE_CASES]
    + [pytest.param(*each, id=each[0], marks=pytest.mark.slow) for each in MORE_CASES],
)
def test_name_and_rule_are_those_of_the_planted_fault(
    fault: str, steps: Sequence[Step], text: str
) -> None:
    """The rule is the one that the table of mutants names."""
    name = named(fault, *steps, connection=CONNECTIONS.get(fault, Connection()))

    planted = PLANTED[fault].fuzz
    assert planted is not None
    assert name.text == text
    assert names_rule(name.rule, planted.rule)


NEWEST_FLUSHED_FIRST = '''
[[mutant]]
name = "newest-receive-flushed-first"
module = "rc/receive.py"
old = """
            self.current = self.waiting.popleft()
"""
new = """
            self.current = self.waiting.pop()
"""
'''


def test_requests_flushed_in_another_order_are_one_cause_whatever_the_error(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(NEWEST_FLUSHED_FIRST)
    mutant = read_mutants(tmp_path / "table.toml")["newest-receive-flushed-first"]
    device = copied(mutant)[Emulation.__module__].Emulation
    names = []
    for packet in (wrong(ADD, atomiceth__va=("end", -4)), Packet(int(OpCode.RC_SEND_FIRST))):
        case = Case(USUAL, [packet])
        difference = EmulatorTestbed(device).replay(case, SPEC)
        assert difference is not None
        names.append(name_of(case, difference, SPEC))

    assert names[0].text == (
        "FETCH_ADD (an atomic at an unaligned address): requests are flushed in another order"
    )
    assert {each.rule for each in names} == {"IBA 10.3.1.7; docs/reference/transport.md#flush"}
    assert names[0].group == names[1].group


def test_a_flag_of_a_completion_that_is_missing_is_named() -> None:
    expected = (1, 0, 0, 129, 0, 7, 2, 0, 0, 18, 0)
    case = Case(USUAL, [Packet(int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE))])

    name = name_of(
        case, Difference(0, Kind.COMPLETION, [expected], [(*expected[:6], 0, *expected[7:])]), SPEC
    )

    assert name.text == "WRITE_ONLY_WITH_IMMEDIATE: completion without the flag WITH_IMM"


def test_a_flush_of_address_0_begins_before_its_region() -> None:
    reference = Emulation(USUAL, SPEC)
    fields: dict[str, Value] = {"reth.va": 0, "reth.dma_len": 8}

    about = request(reference, Packet(int(OpCode.RC_FLUSH), fields=fields))

    assert about.what == "a range that begins before its region"


@pytest.mark.parametrize("opcode", [WROpcode.FLUSH, WROpcode.ATOMIC_WRITE])
def test_the_response_to_a_flush_or_atomic_write_is_in_its_place(opcode: WROpcode) -> None:
    """Annex A19: READ RESPONSE ONLY without payload."""
    reference = Emulation(USUAL, SPEC)
    reference.post_send(Post(int(opcode)))
    reference.answers()
    empty = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), ("una", 0))
    psn = reference.psn("una")

    found = [response(reference, each, psn) for each in (empty, empty.altered(length=4))]

    assert [each and each.what for each in found] == [
        "a right response",
        "a READ response of the wrong length",
    ]


def test_a_response_that_is_taken_is_not_called_malformed() -> None:
    reference = Emulation(USUAL, SPEC)
    reference.post_send(Post(int(WROpcode.RDMA_WRITE)))
    reference.answers()
    solicited = Packet(ACK, ("una", 0), fields={"bth.se": 1})

    about = response(reference, solicited, reference.psn("una"))

    assert about is not None
    assert about.what == "an ACK"


def test_one_cause_is_one_group_in_every_operation() -> None:
    groups = {named("icrc-ignored", each.altered(icrc=BAD)).group for each in (SEND, WRITE, READ)}

    assert len(groups) == 1


def test_different_faults_of_keys_are_different_groups() -> None:
    behind = named("region-ends-one-byte-late", wrong(WRITE, reth__va=("end", -7)))
    foreign = named(
        "foreign-domain-open",
        wrong(WRITE, reth__rkey=("foreign.rkey", 0), reth__va=("foreign.va", 0)),
    )

    assert behind.group != foreign.group
    assert "behind its region" in behind.text
    assert "another protection domain" in foreign.text


def test_another_source_port_of_a_right_response_has_its_own_rule() -> None:
    case = Case(steps=(WRITE,))
    (moment,) = moments(case, SPEC)
    ((_, frame),) = moment.answers
    port = slice(34, 36)  # behind 14 bytes of Ethernet and 20 of IPv4
    other = bytes([*frame[: port.start], 0x12, 0x34, *frame[port.stop :]])

    name = name_of(case, Difference(0, Kind.ANSWER, [frame], [other]), SPEC)

    assert "with another udp.src_port" in name.text
    assert name.rule.endswith("#udp-source-port")


def test_a_response_of_which_only_the_icrc_is_wrong_is_called_so() -> None:
    case = Case(steps=(READ,))
    (moment,) = moments(case, SPEC)
    ((_, frame),) = moment.answers
    other = bytes([*frame[:-1], frame[-1] ^ 1])

    name = name_of(case, Difference(0, Kind.ANSWER, [frame], [other]), SPEC)

    assert name.text == "READ_REQUEST: READ_RESPONSE_ONLY with a wrong ICRC"
    assert name.rule == "IBA 7.8.1; docs/reference/wire-formats.md#icrc"


def test_a_difference_in_a_wait_after_a_packet_ahead_has_a_name() -> None:
    case = Case(steps=(WRITE.altered(psn=("expected", 1)), Wait(MS)))

    name = name_of(case, Difference(1, Kind.EVENT, [], [0]), SPEC)

    assert name.text.startswith("a wait")


@pytest.mark.parametrize("missing", [1, 4])
def test_a_response_with_fewer_bytes_is_called_so(missing: int) -> None:
    """Whether its padding tells it or only the length of its packet."""
    case = Case(steps=(READ,))
    (moment,) = moments(case, SPEC)
    ((_, frame),) = moment.answers
    other = bytearray(frame[: -4 - missing] + bytes(-missing % 4) + frame[-4:])
    other[16:18] = (len(other) - 14).to_bytes(2)  # total length of IPv4, behind Ethernet
    other[38:40] = (len(other) - 34).to_bytes(2)  # length of UDP, behind 20 bytes of IPv4
    other[43] |= -missing % 4 << 4  # PadCnt of the BTH, behind 8 bytes of UDP

    name = name_of(case, Difference(0, Kind.ANSWER, [frame], [bytes(other)]), SPEC)

    assert name.text == f"READ_REQUEST: READ_RESPONSE_ONLY with {8 - missing} bytes instead of 8"
    page = "docs/reference/transport.md"
    assert name.rule == f"IBA 9.7.2, 9.4.4; {page}#segmentation, {page}#reth"


def test_the_queue_pair_of_a_device_on_a_link_is_no_other_one() -> None:
    """Its peer has other numbers than that of an emulated device."""
    case = Case(steps=(WRITE,))
    (moment,) = moments(case, SPEC)
    ((_, frame),) = moment.answers
    expected = bytes([*frame[:47], 0x00, 0x12, 0x34, *frame[50:]])  # destination QP of the BTH
    got = bytes([*expected[:-5], expected[-5] ^ 1, *expected[-4:]])  # MSN, in front of the ICRC

    name = name_of(case, Difference(0, Kind.ANSWER, [expected], [got]), SPEC)

    assert name.text == "WRITE_ONLY: ACK with another aeth.msn"


NO_DATA = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0))
RNR_NAK = NO_DATA.altered(fields={"aeth.syndrome": 0x21})
IMMEDIATE = Packet(int(OpCode.RC_SEND_ONLY_WITH_IMMEDIATE))
TIMEOUT = 1_048_576_000
"""The timeout with code 8, 4.096 us * 2^8, in ps (IBA 9.7.6.1.3)."""
LONG = 8_120_000_000
AT_RISK: Sequence[tuple[str, Connection, Sequence[Step], str, str]] = (
    (
        "solicited-write-not-asked-for",
        USUAL,
        [
            Post(int(WROpcode.RDMA_READ), 257),
            NO_DATA,
            Post(int(WROpcode.RDMA_WRITE_WITH_IMM), 257, solicited=True),
        ],
        "a posted RDMA_WRITE_WITH_IMM: WRITE_LAST_WITH_IMMEDIATE with another bth.se",
        "solicited-event",
    ),
    (
        "no-replay-behind-an-rnr-nak",
        Connection(mtu=512, receives=2),
        [
            wrong(READ, reth__va=("va", 3491), reth__dma_len=1024),
            *[IMMEDIATE] * 3,
            wrong(READ, reth__va=("va", 3491), reth__dma_len=1024).altered(
                psn=("expected", -4), held=True
            ),
            Packet(int(OpCode.RC_SEND_FIRST)),
        ],
        "SEND_FIRST (while a duplicate READ is to be answered): a READ_RESPONSE_FIRST is missing",
        "duplicate-read",
    ),
    (
        "uc-completes-what-is-incomplete",
        Connection(service="UC"),
        [
            Packet(int(OpCode.UC_SEND_FIRST), length=256),
            Packet(int(OpCode.UC_SEND_ONLY), ("expected", -1)),
        ],
        "UC_SEND_ONLY (a message of UC with an old PSN): "
        "it completes the message before this one, which has no end",
        "uc",
    ),
    (
        "key-of-an-empty-write-checked",
        USUAL,
        [
            Connect(Connection(service="UC")),
            Packet(int(OpCode.UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE), fields={"reth.rkey": 0}),
        ],
        "UC_WRITE_ONLY_WITH_IMMEDIATE (a request of no bytes with a wrong key): "
        "no completion SUCCESS of a receive",
        "zero-length",
    ),
    (
        "psn-compared-without-wrap",
        Connection(mtu=1024, rq_psn=16606129),
        [
            Packet(
                int(OpCode.RC_RDMA_WRITE_FIRST),
                length=1024,
                fields={"reth.dma_len": 2048},
                held=True,
            ),
            Packet(int(OpCode.RC_RDMA_WRITE_LAST), length=1024, held=True),
            WRITE.altered(psn=("expected", 1 << 22)),
        ],
        "WRITE_ONLY (a request behind a gap across the PSN wrap): "
        "a NAK PSN_SEQUENCE_ERROR is missing",
        "psn-order",
    ),
    (
        "retries-never-run-out",
        Connection(retry_cnt=1),
        [
            Post(int(WROpcode.RDMA_READ), 257),
            Wait(67_108_900_000),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_MIDDLE), ("una", 1)),
        ],
        "READ_RESPONSE_MIDDLE (a gap in the responses of a READ): "
        "READ_REQUEST instead of RETRY_EXC_ERR",
        "retry-count",
    ),
    (
        "rnr-nak-leaks",
        Connection(receives=0),
        [
            WRITE,
            *[SEND] * 8,
            Packet(int(OpCode.RC_SEND_MIDDLE), length=256),
        ],
        "SEND_MIDDLE (a MIDDLE without its FIRST) after a request without a receive request: "
        "nothing instead of NAK INVALID_REQUEST",
        "receive-missing",
    ),
    (
        "rnr-nak-is-for-all-queue-pairs",
        Connection(pairs=2, rnr_retry=1),
        [
            Post(int(WROpcode.SEND)),
            Post(int(WROpcode.SEND), pair=1),
            RNR_NAK,
            RNR_NAK.altered(pair=1, held=True),
            Wait(500 * MS),
        ],
        "a wait (the wait after an RNR NAK): RNR_RETRY_EXC_ERR instead of SEND_ONLY",
        "rnr-retry",
    ),
    (  # it is the held packet that writes
        "second-sge-keeps-the-offset",
        Connection(service="UC", sges=3),
        [UC_SEND_FIRST, UC_SEND_MIDDLE.altered(held=True), Wait(1)],
        "UC_SEND_MIDDLE (into a receive of several SGEs): other bytes in its memory",
        "segmentation",
    ),
    (
        "uc-loses-the-receive-request",
        Connection(service="UC", srq=1),
        [UC_SEND_FIRST.altered(length=0)],
        "UC_SEND_FIRST (a SEND FIRST that is too short): no completion LOC_LEN_ERR of a receive",
        "uc",
    ),
    (
        "exact-fit-refused",
        Connection(service="UC", srq=1, room=512),
        [UC_SEND_FIRST, Packet(int(OpCode.UC_SEND_LAST), length=256)],
        "UC_SEND_LAST (a SEND that fills its receive with a full packet): "
        "completion LOC_LEN_ERR of a receive instead of SUCCESS of a receive",
        "receive-too-short",
    ),
    (  # dropped: no byte is written
        "room-without-last-sge",
        Connection(service="UC", sges=3),
        [UC_SEND_FIRST, UC_SEND_MIDDLE, UC_SEND_MIDDLE],
        "UC_SEND_MIDDLE (into a receive of several SGEs): other bytes in its memory",
        "receive-too-short",
    ),
    (  # misplaced: where its bytes belong none are written either
        "second-sge-keeps-the-offset",
        Connection(service="UC", sges=3),
        [UC_SEND_FIRST, UC_SEND_MIDDLE],
        "UC_SEND_MIDDLE (into a receive of several SGEs): other bytes in its memory",
        "segmentation",
    ),
    (  # the ACK is for the packet that is held
        "ack-request-inside-a-message-ignored",
        Connection(),
        [
            Packet(int(OpCode.RC_SEND_FIRST), length=256, fields={"bth.ack_req": 0}),
            Packet(int(OpCode.RC_SEND_MIDDLE), length=256, held=True),
            Post(int(WROpcode.RDMA_WRITE), 600),
        ],
        "SEND_MIDDLE: nothing instead of ACK",
        "ack-due",
    ),
)
"""What the case of another difference has on its way: the rule is not about that."""

ADD_ASKED = Post(int(WROpcode.ATOMIC_FETCH_AND_ADD), 8)
READ_ASKED = Post(int(WROpcode.RDMA_READ), 8)
ADDED = Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0))
NEVER_SENT = "slot-of-atomic-never-free"

HELD_BACK: Sequence[tuple[str, Connection, Sequence[Step], str, str]] = (
    (
        NEVER_SENT,
        Connection(max_rd_atomic=1),
        [ADD_ASKED, ADDED, READ_ASKED],
        "a posted RDMA_READ: nothing instead of READ_REQUEST",
        "read-limit",
    ),
    (
        NEVER_SENT,
        USUAL,
        [ADD_ASKED, replace(READ_ASKED, fence=True), ADDED],
        "ATOMIC_ACKNOWLEDGE: nothing instead of READ_REQUEST",
        "fence",
    ),
    (
        "ssn-counted-for-all-pairs",
        Connection(pairs=2),
        [Post(int(WROpcode.SEND)), Post(int(WROpcode.SEND), pair=1)],
        "a posted SEND: nothing instead of SEND_ONLY",
        "qp-state-actions",
    ),
)
"""What holds requests back, which are never sent: how messages are cut is no matter of it."""

WAITING_ACK = "waiting-ack-of-another-lost"
DROPPED = "rnr-nak-drops-waiting-responses"
LOWERED = "credits-go-back"
READ_RESPONSE_FIRST = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 0), length=256)
NEEDED: Sequence[tuple[str, Connection, Sequence[Step], str, str]] = (
    (  # seven retries and the end, and one retry less
        "rnr-nak-uses-retry-cnt",
        Connection(timeout=8),
        [
            Post(int(WROpcode.RDMA_READ)),
            NO_DATA.altered(fields={"aeth.syndrome": 0x25}),
            Wait(LONG),
        ],
        "a wait (the ACK timer): RETRY_EXC_ERR instead of READ_REQUEST, "
        "as if an RNR NAK used up one of the retries of retry_cnt",
        "retry-count",
    ),
    (  # what comes before a duplicate ACK counts for no retry behind it
        "duplicate-ack-restarts-timer",
        Connection(timeout=8),
        [
            Post(int(WROpcode.RDMA_WRITE)),
            *[Wait(TIMEOUT)] * 3,
            Wait(TIMEOUT // 2),
            NO_DATA.altered(psn=("una", -1)),
            Wait(TIMEOUT // 2),
        ],
        "a wait (the ACK timer): nothing instead of a retransmitted WRITE_ONLY",
        "ack-timer",
    ),
    (  # a PSN exactly 2^23 away is older (transport.md#psn-order), so the response is a duplicate
        "duplicate-ack-restores-retries",
        Connection(timeout=8, retry_cnt=2),
        [
            Post(int(WROpcode.RDMA_READ)),
            *[Wait(TIMEOUT)] * 2,
            Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 1 << 23)),
            Wait(TIMEOUT),
        ],
        "a wait (the ACK timer): READ_REQUEST instead of RETRY_EXC_ERR",
        "retry-count",
    ),
    (  # a path that is armed changes when no retry is left
        "retries-of-all-queue-pairs",
        Connection(retry_cnt=1, pairs=3, rearmed=1),
        [
            Post(int(WROpcode.RDMA_READ), 257),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 1)),
            Post(int(WROpcode.ATOMIC_CMP_AND_SWP), pair=1),
            Post(int(WROpcode.RDMA_READ), pair=1),
            Packet(
                int(OpCode.RC_RDMA_READ_RESPONSE_FIRST),
                ("una", 1),
                fields={"bth.mig_req": 0},
                pair=1,
            ),
        ],
        "READ_RESPONSE_FIRST (with an alternate path): COMPARE_SWAP with another bth.mig_req",
        "retry-count",
    ),
    (
        "gap-forgotten-when-another-goes-on",
        Connection(pairs=2),
        [
            READ.altered(psn=("expected", 1)),
            WRITE.altered(pair=1),
            READ.altered(psn=("expected", 1), held=True),
            Packet(int(OpCode.RC_SEND_LAST), length=8),
        ],
        "SEND_LAST (while a request behind a gap is to be answered): "
        "a NAK PSN_SEQUENCE_ERROR too many",
        "psn-ahead",
    ),
    (
        "full-last-refused",
        USUAL,
        [
            Packet(int(OpCode.RC_SEND_FIRST), length=256),
            Packet(int(OpCode.RC_SEND_LAST_WITH_INVALIDATE), length=256),
        ],
        "SEND_LAST_WITH_INVALIDATE (a SEND that ends with a full packet): "
        "NAK INVALID_REQUEST instead of ACK",
        "packet-length",
    ),
    (
        "full-last-refused",
        Connection(service="UC", room=512),
        [UC_SEND_FIRST, Packet(int(OpCode.UC_SEND_LAST), length=256)],
        "UC_SEND_LAST (a SEND that fills its receive with a full packet): "
        "no completion SUCCESS of a receive",
        "packet-length, docs/reference/transport.md#receive-too-short",
    ),
    (
        "invalidated-window-stays-open",
        USUAL,
        [INVALIDATE, Connect(USUAL), INVALIDATE],
        "SEND_ONLY_WITH_INVALIDATE (a SEND with invalidate): REM_INV_REQ_ERR instead of ACK, "
        "as if a SEND ONLY with invalidate had left the window open",
        "invalidate",
    ),
    (
        WAITING_ACK,
        Connection(pairs=2),
        [
            wrong(IMMEDIATE, bth__ack_req=0).altered(pair=1),
            SEND.altered(psn=("expected", -1), held=True),
            Receive(2, pair=1),
        ],
        "SEND_ONLY (while another queue pair answers): an ACK is missing",
        "qp-state-actions",
    ),
    (
        "error-drops-replies-of-others",
        Connection(pairs=2),
        [ADD.altered(length=8, held=True), ADD.altered(length=8, pair=1)],
        "FETCH_ADD (while another queue pair answers): a NAK INVALID_REQUEST is missing",
        "qp-state-actions",
    ),
    (  # a NAK of the last packet acknowledges those before it, and completes nothing
        "ack-inside-message-completes",
        USUAL,
        [
            Post(int(WROpcode.RDMA_WRITE), 513),
            NO_DATA.altered(psn=("una", 2), fields={"aeth.syndrome": 0x61}),
        ],
        "ACKNOWLEDGE (a NAK INVALID_REQUEST inside a message): "
        "completion SUCCESS of a posted RDMA_WRITE "
        "instead of REM_INV_REQ_ERR of a posted RDMA_WRITE",
        "ack-coalescing",
    ),
    (
        "refused-request-completes",
        USUAL,
        [Post(int(WROpcode.RDMA_WRITE)), NO_DATA.altered(fields={"aeth.syndrome": 0x61})],
        "ACKNOWLEDGE (a NAK INVALID_REQUEST): "
        "completion SUCCESS of a posted RDMA_WRITE "
        "instead of REM_INV_REQ_ERR of a posted RDMA_WRITE",
        "completion-status",
    ),
    (
        "key-of-empty-sge-checked",
        Connection(room=4136, service="UD", sges=4, wrong_lkey=2),
        [Packet(int(OpCode.UD_SEND_ONLY), length=4096)],
        "UD_SEND_ONLY (into a receive of several SGEs, one of 0 bytes): "
        "completion LOC_PROT_ERR of a receive instead of SUCCESS of a receive",
        "memory-access",
    ),
    (  # the timers of two queue pairs expire in another order
        "timer-restarts-with-each-request",
        Connection(mtu=512, timeout=10, pairs=2),
        [
            Post(int(WROpcode.RDMA_READ), pair=1),
            Wait(1_597_150_000),
            Post(int(WROpcode.RDMA_READ)),
            Post(int(WROpcode.RDMA_WRITE), pair=1),
            Wait(4_194_304_001),
        ],
        "a wait (the ACK timer): on queue pair 2 it retransmits READ_REQUEST too late",
        "ack-timer",
    ),
    (  # responses to several queue pairs may come in any order
        WAITING_ACK,
        Connection(pairs=2),
        [
            WRITE.altered(psn=("expected", -1), held=True),
            SEND.altered(pair=1, held=True),
            SWAP.altered(pair=1),
        ],
        "COMPARE_SWAP (while another queue pair answers): an ACK is missing",
        "qp-state-actions",
    ),
    (  # the last packet has the PSN of those before it
        DROPPED,
        Connection(receives=0),
        [SEND.altered(held=True), SEND.altered(held=True), SEND_LAST],
        "SEND_LAST (while earlier responses wait): an RNR NAK wait=0.64ms is missing",
        "ack-order, docs/reference/transport.md#receive-missing",
    ),
    (  # a sequence NAK has the PSN that is expected
        DROPPED,
        Connection(receives=0),
        [SEND.altered(psn=("expected", 1), held=True), SEND],
        "SEND_ONLY (while a request behind a gap is to be answered): "
        "a NAK PSN_SEQUENCE_ERROR is missing",
        "ack-order, docs/reference/transport.md#psn-ahead",
    ),
    (
        DROPPED,
        Connection(receives=1),
        [SEND.altered(held=True), SEND],
        "SEND_ONLY (while earlier responses wait): an ACK is missing",
        "ack-order, docs/reference/transport.md#ack-due",
    ),
    (  # where another packet follows at once, only that shows what a held one has stored
        "padding-of-a-write-stored",
        USUAL,
        [
            wrong(WRITE_FIRST, reth__dma_len=509),
            Packet(int(OpCode.RC_RDMA_WRITE_LAST), length=253, held=True),
            wrong(READ, reth__dma_len=768),
        ],
        "READ_REQUEST after WRITE_LAST: READ_RESPONSE_MIDDLE with other data",
        "reth, docs/reference/wire-formats.md#padding",
    ),
    (  # without the packet that is refused the message would go on
        "rnr-nak-forgets-message",
        Connection(receives=0),
        [WRITE_FIRST, Packet(int(OpCode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE), length=256), READ],
        "READ_REQUEST (a READ inside a WRITE) after a request without a receive request: "
        "READ_RESPONSE_ONLY instead of NAK INVALID_REQUEST",
        "receive-missing",
    ),
    (  # it is not the queue pair that has ended which goes on
        "slots-of-others-freed-by-error",
        Connection(pairs=2),
        [
            Post(int(WROpcode.RDMA_READ), 8),
            Post(int(WROpcode.RDMA_READ), 8, fence=True),
            READ.altered(psn=("expected", 1), held=True),
            Packet(int(OpCode.RC_RDMA_WRITE_MIDDLE), length=256, pair=1),
        ],
        "WRITE_MIDDLE (while another queue pair answers): a READ_REQUEST too many",
        "qp-state-actions",
    ),
    (  # some bytes of it are stored
        "odd-write-across-a-page",
        Connection(service="UC"),
        [UC_FIRST.altered(fields={"reth.va": ("va", 4001), "reth.dma_len": 512})],
        "UC_WRITE_FIRST: other bytes in its memory",
        "reth",
    ),
    (  # the key is seen to be wrong, and called another mistake
        "bad-key-of-an-atomic-misnamed",
        USUAL,
        [wrong(ADD, atomiceth__rkey=("rkey", 1))],
        "FETCH_ADD (an R_Key with another low byte): "
        "NAK INVALID_REQUEST instead of NAK REMOTE_ACCESS_ERROR",
        "remote-key",
    ),
    (  # a packet to the other queue pair of the connection
        "read-inside-a-send",
        Connection(pairs=2),
        [
            Packet(int(OpCode.RC_SEND_FIRST), length=256, fields={"bth.dest_qp": ("qpn", 1)}),
            READ.altered(pair=1),
        ],
        "READ_REQUEST (a READ inside a SEND): READ_RESPONSE_ONLY instead of NAK INVALID_REQUEST",
        "opcode-sequence",
    ),
    (  # the timer expires in time, and not all is retransmitted
        "ghost-ack-completes",
        USUAL,
        [
            Post(int(WROpcode.RDMA_WRITE), 513),
            NO_DATA.altered(psn=("una", -2)),
            Wait(100 * MS),
        ],
        "a wait after a response to an acknowledged PSN: a WRITE_FIRST is missing",
        "response-duplicate",
    ),
    (  # a NAK with a reserved code acknowledges what is before it, as every NAK does
        "ack-inside-message-completes",
        USUAL,
        [
            Post(int(WROpcode.RDMA_WRITE), 513),
            NO_DATA.altered(psn=("una", 2), fields={"aeth.syndrome": 0x64}),
        ],
        "ACKNOWLEDGE (a reserved syndrome inside a message): "
        "a completion SUCCESS of a posted RDMA_WRITE, which is not due",
        "ack-coalescing",
    ),
    (
        LOWERED,
        USUAL,
        [
            Post(int(WROpcode.RDMA_READ), 513),
            READ_RESPONSE_FIRST.altered(fields={"aeth.syndrome": 5}),
            NO_DATA.altered(fields={"aeth.syndrome": 0, "aeth.msn": ("ssn", 0)}),
            Post(int(WROpcode.SEND_WITH_IMM)),
            Post(int(WROpcode.SEND)),
        ],
        "a posted SEND after a response with fewer credits: nothing instead of SEND_ONLY",
        "credits-limit",
    ),
    (
        LOWERED,
        USUAL,
        [
            Post(int(WROpcode.RDMA_READ), 512),
            READ_RESPONSE_FIRST.altered(fields={"aeth.syndrome": 5}),
            Packet(
                int(OpCode.RC_RDMA_READ_RESPONSE_LAST),
                ("una", 0),
                length=256,
                fields={"aeth.syndrome": 0, "aeth.msn": ("ssn", 1)},
            ),
            Post(int(WROpcode.SEND)),
            Post(int(WROpcode.SEND), 257),
        ],
        "a posted SEND after a response with fewer credits: a SEND_LAST is missing",
        "credits-limit",
    ),
)
"""What a minimised case needs, which the rule is about."""


@pytest.mark.parametrize(
    ("fault", "connection", "steps", "text", "rule"),
    [pytest.param(*each, id=each[0]) for each in (*AT_RISK, *NEEDED, *HELD_BACK)],
)
def test_what_a_case_has_on_its_way_is_not_blamed(
    fault: str, connection: Connection, steps: Sequence[Step], text: str, rule: str
) -> None:
    name = named(fault, *steps, connection=connection)

    assert name.text == text
    assert name.rule.endswith(f"#{rule}")


def test_an_exception_in_malformed_packets_of_several_operations_is_one_group() -> None:
    cut = [WRITE.altered(cut=21), SWAP.altered(cut=27)]  # inside the RETH, inside the AtomicETH
    names = [named("cut-header-read", each) for each in cut]
    groups = {each.group for each in names}

    assert "_read_reth" in names[0].text
    assert "_read_atomic" in names[1].text
    assert len(groups) == 1


def test_a_refusal_is_one_group_whether_or_not_an_ack_is_due() -> None:
    empty = wrong(WRITE.altered(length=0), reth__rkey=0)
    fault = "key-of-an-empty-write-checked"

    assert named(fault, empty).group == named(fault, wrong(empty, bth__ack_req=0)).group


def test_an_ignored_response_may_arm_a_path_by_its_migration_bit() -> None:
    early = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_LAST), ("una", 1), fields={"bth.mig_req": 0})
    connection = Connection(timeout=10, retry_cnt=0, rearmed=1)

    name = named(
        "responses-do-not-arm", ADD_ASKED, early, Wait(4_194_304_001), connection=connection
    )

    assert name.text == "a wait (with an alternate path): RETRY_EXC_ERR instead of FETCH_ADD"
    assert name.rule.endswith("#migration")


def test_a_message_that_a_part_of_it_completes_breaks_the_rule_of_acks() -> None:
    asked = Post(int(WROpcode.RDMA_WRITE), 513)
    part = wrong(Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 1)), aeth__syndrome=0x1F)
    not_ready = wrong(Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 2)), aeth__syndrome=0x33)

    for packet in (part, not_ready):
        name = named("ack-inside-message-completes", asked, packet)
        assert name.text.endswith("a completion SUCCESS of a posted RDMA_WRITE, which is not due")
        assert name.rule.endswith("#ack-coalescing")


def test_a_case_is_named_whose_last_connection_has_more_queue_pairs() -> None:
    later = Connection(timeout=8, retry_cnt=2, pairs=2)
    wait = Wait(TIMEOUT)

    name = named(
        "retries-never-run-out",
        *[Post(int(WROpcode.RDMA_WRITE)), wait, Connect(later), Post(int(WROpcode.RDMA_WRITE))],
        *[wait, wait, wait],
        connection=Connection(timeout=8),
    )

    assert name.text == "a wait (the ACK timer): WRITE_ONLY instead of RETRY_EXC_ERR"
    assert name.rule.endswith("#retry-count")


def test_a_waiting_ack_that_is_dropped_breaks_the_rule_of_acks_due() -> None:
    name = named(
        "nak-withdraws-acks",
        SEND.altered(held=True),
        SEND.altered(psn=("expected", 1), held=True),
        wrong(SEND, bth__ack_req=0),
    )

    assert name.text == "SEND_ONLY (while earlier responses wait): nothing instead of ACK"
    assert name.rule.endswith("#ack-due")


@pytest.mark.parametrize("anchor", ["remote-key", "memory-windows"])
def test_a_range_behind_a_window_breaks_the_rules_of_keys_and_of_windows(anchor: str) -> None:
    behind = wrong(WRITE, reth__va=("mw.end", -7), reth__rkey=("mw.rkey", 0))

    name = named("window-to-end-of-region", behind)

    assert "a range that ends behind its window" in name.text
    assert f"#{anchor}" in name.rule


def test_a_time_says_what_is_retransmitted_then() -> None:
    connection = Connection(timeout=8)
    name = named(
        "rnr-wait-of-the-code-before",
        Post(int(WROpcode.RDMA_WRITE)),
        wrong(Packet(ACK, ("una", 0)), aeth__syndrome=44),
        Wait(20 * MS),
        connection=replace(connection, timeout=0),
    )

    assert name.text == "a wait (the wait after an RNR NAK): it retransmits WRITE_ONLY too early"
