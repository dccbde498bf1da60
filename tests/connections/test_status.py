"""The status of connections: shipped captures with known contents, and conversations by hand.

Which status a capture must have follows from what `captures/index.toml` says of it, and from what
the wire did (`*.wire.json`).
"""

import ipaddress
import re
import struct
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connections.talk import Talk
from connections.test_tracker import heard
from each_case import each_case
from emulated_traffic import pcap
from ibwire.capture import open_capture
from ibwire.connections import Connection, End, analyse, unreachable
from ibwire.connections.analysis import Analysis
from ibwire.connections.counts import DirectionCounts
from ibwire.connections.ending import Ending, Trouble
from ibwire.connections.ranking import worst_first
from ibwire.connections.status import MEANINGS, Status, status_of
from ibwire.connections.unreachable import Unreachable
from ibwire.dissect import Columns
from ibwire_layers.opcodes import OpCode, Service

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "captures"

EXPECTED = {
    # Everything is answered, nothing is lost.
    "cm-rping.pcap": {"ok": 2},
    "cm-ucmatose.pcap": {"ok": 4},
    "ecn-ce.a.pcap": {"ok": 1},  # taken before the link that marks
    "fmt-pcap-nano.pcap": {"ok": 1},
    "fmt-pcapng.pcapng": {"ok": 1},
    "rcx-all-ops.pcap": {"ok": 1},
    "rcx-ipv6.pcap": {"ok": 1},
    "read-bw-ipv6.pcap": {"ok": 1},
    "srq-pingpong.pcap": {"ok": 16},
    "uc-write-bw.pcap": {"ok": 1},
    "ud-pingpong.pcap": {"ok": 1},
    "vlan-rc-pingpong.pcap": {"ok": 1},
    # Duplicates of the network, which the receivers drop.
    "dup-both-3pc.a.pcap": {"ok": 1},
    "dup-both-3pc.b.pcap": {"ok": 1},
    # One loss, and the retransmission that repairs it.
    "drop-atomic-ack.a.pcap": {"recovered": 1},
    "drop-atomic-ack.b.pcap": {"recovered": 1},
    "drop-one-ack.a.pcap": {"recovered": 1},
    "drop-one-ack.b.pcap": {"recovered": 1},
    "drop-one-last.a.pcap": {"recovered": 1},
    "drop-one-last.b.pcap": {"recovered": 1},
    "drop-one-middle.a.pcap": {"recovered": 1},
    "drop-one-middle.b.pcap": {"recovered": 1},
    "drop-read-response.a.pcap": {"recovered": 1},
    "drop-read-response.b.pcap": {"recovered": 1},
    # Timers of rxe that expire too soon.
    "rc-pingpong.pcap": {"recovered": 1},
    "send-lat.pcap": {"recovered": 1},
    # One time without a receive buffer, until the messages get through.
    "rnr-late-recv.pcap": {"recovered": 1},
    "rnr-multi-packet.pcap": {"recovered": 1},
    # All 90 READs, WRITEs, SENDs and atomics complete; faults over the whole time.
    "chaos.a.pcap": {"degraded": 1},
    "chaos.b.pcap": {"degraded": 1},
    "corrupt-both-3pc.a.pcap": {"degraded": 1},
    "corrupt-both-3pc.b.pcap": {"degraded": 1},
    "loss-ack-only.a.pcap": {"degraded": 1},
    "loss-ack-only.b.pcap": {"degraded": 1},
    "reorder-ab-3pc.a.pcap": {"degraded": 1},
    "reorder-ab-3pc.b.pcap": {"degraded": 1},
    # Four losses of requests within one stretch of retransmissions.
    "loss-both-2pc.a.pcap": {"recovered": 1},
    "loss-both-2pc.b.pcap": {"recovered": 1},
    # CE marks of the link.
    "ecn-ce.b.pcap": {"degraded": 1},
    # NAKs that end the connection: 0x62 is a remote access error, 0x63 an operational one.
    "nak-bad-rkey-write.pcap": {"remote-error(access)": 1},
    "nak-bad-rkey-write-multi.pcap": {"remote-error(access)": 1},
    "nak-send-too-big.pcap": {"remote-error(operational)": 1},
    # A requester that gives up.
    "retry-exceeded.pcap": {"retry-exceeded": 1},
    "rnr-exceeded.pcap": {"rnr-exceeded": 1},
}
"""Status of the connections of each capture."""

OTHERS = {
    "cm-reject.pcap": "packets of the connection manager only",
    "probe-odd-frames.pcap": "fifty experiments, see below",
}
"""Captures that are not in `EXPECTED`, and why."""


def status_counts(path: Path) -> Counter[str]:
    summary, damage = analyse([str(path)])
    assert not damage
    return Counter(str(each.status) for each in summary.connections)


@each_case("name", EXPECTED)
def test_status_of_shipped_captures_is_what_was_done(name: str) -> None:
    assert status_counts(CAPTURES / name) == EXPECTED[name]


def test_every_shipped_capture_has_an_expected_status() -> None:
    index = tomllib.loads((CAPTURES / "index.toml").read_text(encoding="utf-8"))

    assert {each["file"] for each in index["capture"]} == EXPECTED.keys() | OTHERS.keys()


def test_experiments_with_fatal_naks_end_in_remote_errors() -> None:
    """The index lists syndromes 0x61 four times and 0x62 twice, each on its own connection."""
    found = status_counts(CAPTURES / "probe-odd-frames.pcap")

    assert found["remote-error(invalid-request)"] == 4
    assert found["remote-error(access)"] == 2


# The table.


def test_every_status_has_a_meaning_and_the_page_has_the_same() -> None:
    page = (ROOT / "docs" / "flows.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)

    assert list(MEANINGS) == list(Status)
    assert rows == [(str(status), *meaning) for status, meaning in MEANINGS.items()]


def test_severity_is_the_order_of_the_table() -> None:
    assert [status.severity for status in Status] == list(range(len(Status)))
    assert [status for status in Status if status.is_failure] == [
        Status.RETRY_EXCEEDED,
        Status.RNR_EXCEEDED,
        Status.REMOTE_ERROR,
        Status.REFUSED,
        Status.CM_REJECTED,
    ]


def evidence(**given: Any) -> Any:
    """A connection with one packet each way, and these facts of end 0."""
    facts: dict[str, Any] = {
        "is_reliable": True,
        "drops_late_packets": False,
        "cm_rejected": "",
        "refused": "",
        "trouble": None,
        "other_packets": 1,
    } | given
    ending = Ending(trouble=facts.pop("trouble"))
    other = DirectionCounts()
    other.packets = facts.pop("other_packets")
    known = {"is_reliable", "drops_late_packets", "cm_rejected", "refused"}
    named = {name: facts.pop(name) for name in known}
    counts = DirectionCounts()
    counts.packets = 100
    for name, value in facts.items():
        setattr(counts, name, value)
    return SimpleNamespace(
        directions=(counts, other), endings=(ending, Ending()), exchange_status=None, **named
    )


@each_case(
    ("expected", "given"),
    [
        ("ok", {}),
        ("ok", {"duplicates": 2, "reordered": 3}),
        ("ok", {"lost": 1}),  # acknowledged, and only the capture missed it
        ("recovered", {"damaged": 1}),
        ("recovered", {"retransmissions": 1, "retransmitted": 4}),
        ("recovered", {"retransmissions": 1}),
        ("recovered", {"naks": {"psn_sequence_error": 1}}),
        ("recovered", {"rnr_naks": 1}),
        ("ok", {"retransmitted": 1}),  # responses to a duplicated READ
        ("recovered", {"retransmitted": 1, "other_packets": 0}),
        ("recovered", {"retransmissions": 2, "disturbances": 2, "retransmitted": 50}),
        ("degraded", {"retransmissions": 3, "disturbances": 3, "retransmitted": 2}),
        ("recovered", {"retransmissions": 3, "disturbances": 3, "retransmitted": 1}),
        ("degraded", {"marked": 1}),
        ("degraded", {"cnps": 1}),
        ("degraded", {"lost": 1, "is_reliable": False}),
        ("degraded", {"damaged": 1, "is_reliable": False}),
        ("ok", {"duplicates": 1, "is_reliable": False}),
        ("ok", {"reordered": 1, "is_reliable": False}),
        ("degraded", {"reordered": 1, "is_reliable": False, "drops_late_packets": True}),
        ("unresolved", {"trouble": Trouble.NAK, "marked": 1}),
        ("unresolved", {"trouble": Trouble.RETRANSMITTED}),
        ("unresolved", {"cut_short": 1}),
        ("unresolved", {"trouble": Trouble.REQUESTS_MISSING, "other_packets": 0}),
        ("unanswered", {"trouble": Trouble.RETRANSMITTED, "other_packets": 0}),
        ("retry-exceeded", {"trouble": Trouble.RETRANSMITTED, "retries_exceeded": 1}),
        ("retry-exceeded", {"retries_exceeded": 1}),
        ("rnr-exceeded", {"retries_exceeded": 1, "rnr_retries_exceeded": 1}),
        ("rnr-exceeded", {"rnr_retries_exceeded": 1}),
        ("remote-error(access)", {"naks": {"remote_access_error": 1}, "retries_exceeded": 1}),
        ("remote-error(code-7)", {"naks": {"psn_sequence_error": 1, "code_7": 1}}),
        ("refused(port unreachable)", {"refused": "port unreachable"}),
        ("cm-rejected(stale connection)", {"cm_rejected": "stale connection", "refused": "x"}),
    ],
)
def test_status_follows_from_the_evidence(expected: str, given: dict[str, Any]) -> None:
    of_end_0, of_end_1 = evidence(**given), evidence(**given)
    of_end_1.directions = of_end_1.directions[::-1]
    of_end_1.endings = of_end_1.endings[::-1]

    assert str(status_of(of_end_0)) == expected
    assert str(status_of(of_end_1)) == expected


# How the requests of an end stand when the capture ends.

ONLY = OpCode.RC_SEND_ONLY
NAK = 0x60  # PSN sequence error
RNR = 0x2E  # wait 1.28 ms


def ended(talk: Talk) -> tuple[str, Ending]:
    """The status, and how the requests of end 0 stood."""
    connection, _ = heard(talk)
    for number, ending in enumerate(connection.endings):
        assert number == 0 or ending.trouble is None
    return str(connection.status), replace(connection.endings[0], silence_ns=0)


def test_a_message_in_flight_is_no_trouble() -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 13, 64, ack_req=1)

    assert ended(talk) == ("ok", Ending(open_messages=1))


def test_a_nak_at_the_end_is_open() -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 14, 64, ack_req=1)
    talk.answer(13, 3, NAK)

    assert ended(talk) == ("unresolved", Ending(1, Trouble.NAK))


def test_an_rnr_nak_at_the_end_is_open() -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 13, 64, ack_req=1)
    talk.answer(13, 3, RNR)

    assert ended(talk) == ("unresolved", Ending(1, Trouble.RNR))


def test_a_retransmission_is_open_until_it_is_answered() -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 13, 64, ack_req=1)
    talk.wait(70_000)
    talk.ask(ONLY, 13, 64, ack_req=1)

    assert ended(talk) == ("unresolved", Ending(1, Trouble.RETRANSMITTED))

    talk.answer(13, 4)

    assert ended(talk) == ("recovered", Ending())


def test_a_retransmission_of_what_was_acknowledged_here_is_open() -> None:
    """The requester lacks the ACK: it was lost after this point."""
    talk = Talk()
    talk.sends(10, 3)
    talk.wait(70_000)
    talk.ask(ONLY, 12, 64, ack_req=1)

    assert ended(talk) == ("unresolved", Ending(0, Trouble.RETRANSMITTED))

    talk.answer(12, 3)

    assert ended(talk) == ("recovered", Ending())


def test_a_missing_request_is_open() -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 14, 64, ack_req=1)

    assert ended(talk) == ("unresolved", Ending(1, Trouble.REQUESTS_MISSING))


def test_a_missing_read_response_is_open() -> None:
    talk = Talk()
    talk.sends(10, 1)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 11, length=3 * 1024, ack_req=1)
    talk.answer(11, 2, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=1024)
    talk.answer(13, 2, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=1024)

    assert ended(talk) == ("unresolved", Ending(1, Trouble.RESPONSES_MISSING))


@pytest.mark.parametrize(
    ("us", "expected"),
    [(999_000, ("ok", None)), (1_001_000, ("unresolved", Trouble.SILENCE))],
)
def test_silence_is_trouble_after_a_second(us: int, expected: tuple[str, Any]) -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 13, 64, ack_req=1)
    talk.frames.append((talk.frames[-1][0] + us * 1000, bytes(60)))  # of something else

    status, ending = ended(talk)

    assert (status, ending.trouble) == expected


def test_silence_is_trouble_after_twice_the_timeout_where_it_was_seen() -> None:
    """After 70 ms, and 100 ms for timers that are late, the next one is due at 240 ms."""
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 13, 64, ack_req=1)
    talk.wait(70_000)
    talk.ask(ONLY, 13, 64, ack_req=1)
    talk.answer(13, 4)
    talk.ask(ONLY, 14, 64, ack_req=1)
    last = talk.frames[-1][0]

    troubles = []
    for us in (239_000, 241_000):
        talk.frames.append((last + us * 1000, bytes(60)))
        troubles.append(ended(talk)[1].trouble)

    assert troubles == [None, Trouble.SILENCE]


def test_a_request_damaged_at_the_end_is_open() -> None:
    talk = Talk()
    talk.sends(10, 10)
    talk.ask(ONLY, 20, 64, ack_req=1)
    time_ns, frame = talk.frames[-1]
    talk.frames[-1] = time_ns, frame[:-1] + bytes([frame[-1] ^ 1])

    assert ended(talk) == ("unresolved", Ending(0, Trouble.DAMAGED))

    talk.wait(70_000)
    talk.ask(ONLY, 20, 64, ack_req=1)
    talk.answer(20, 11)

    assert ended(talk) == ("recovered", Ending())


def test_a_failed_requester_is_not_unresolved() -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 13, 64, ack_req=1)
    talk.answer(13, 3, 0x62)

    assert ended(talk) == ("remote-error(access)", Ending(open_messages=1))


def test_a_reset_during_trouble_is_unresolved() -> None:
    talk = Talk()
    talk.sends(10, 3)
    talk.ask(ONLY, 13, 64, ack_req=1)
    talk.answer(13, 3, RNR)
    talk.sends(5_000_000, 3)

    assert ended(talk) == ("unresolved", Ending())


def test_requests_of_one_direction_go_on_after_a_retransmission() -> None:
    talk = Talk()
    for psn in (10, 11, 12):
        talk.ask(ONLY, psn, 64, ack_req=1)
    talk.wait(70_000)
    talk.ask(ONLY, 12, 64, ack_req=1)

    assert ended(talk) == ("unanswered", Ending(trouble=Trouble.RETRANSMITTED))

    talk.ask(ONLY, 13, 64, ack_req=1)

    assert ended(talk) == ("recovered", Ending())


def test_a_nak_without_its_requests_is_open() -> None:
    talk = Talk()
    talk.answer(10, 1)
    talk.answer(11, 1, NAK)

    connection, _ = heard(talk)

    assert connection.status.status is Status.UNRESOLVED
    assert connection.endings[1].trouble is Trouble.NAK


def test_a_lost_packet_of_uc_degrades_the_connection() -> None:
    talk = Talk()
    for psn in (10, 11, 13):
        talk.ask(OpCode.UC_SEND_ONLY, psn, 64)

    assert ended(talk) == ("degraded", Ending())


# ICMP. A message quotes the packet that it is about, from its IP header on (RFC 792, RFC 4443).


def icmp(quoted: bytes, kind: int, code: int) -> bytes:
    """An ICMP message in IPv4 from 10.0.0.2 to 10.0.0.1."""
    size = 28 + len(quoted)
    head = struct.pack(">BBHHHBBHII", 0x45, 0, size, 0, 0, 64, 1, 0, 0x0A000002, 0x0A000001)
    return bytes(12) + b"\x08\x00" + head + bytes([kind, code]) + bytes(6) + quoted


def refused(
    code: int = 3, *, kind: int = 3, quoted_size: int | None = None, answers: bool = False
) -> str:
    """The status of a connection after its first request has met an ICMP message."""
    talk = Talk()
    talk.ask(ONLY, 10, 64, ack_req=1)
    time_ns, frame = talk.frames[-1]
    talk.frames.append((time_ns + 1000, icmp(frame[14:][:quoted_size], kind, code)))
    talk.wait(70_000)
    talk.ask(ONLY, 10, 64, ack_req=1)
    if answers:
        talk.answer(10, 1)
    connection, _ = heard(talk)
    return str(connection.status)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, "refused(network unreachable)"),
        (1, "refused(host unreachable)"),
        (3, "refused(port unreachable)"),
        (4, "refused(packet too big)"),
        (13, "refused(prohibited)"),
        (12, "unanswered"),  # for the type of service, which is not counted
    ],
)
def test_an_icmp_message_refuses_the_packets(code: int, expected: str) -> None:
    assert refused(code) == expected


def test_an_icmp_message_may_end_before_the_queue_pair() -> None:
    """RFC 792 requires 8 bytes behind the IP header: those of UDP."""
    assert refused(quoted_size=28) == "refused(port unreachable)"


@each_case("size", range(28))
def test_an_icmp_message_that_is_cut_says_nothing(size: int) -> None:
    assert refused(quoted_size=size) in ("unanswered", "refused(port unreachable)")
    assert refused(quoted_size=size).startswith("unanswered") or size >= 24


def test_other_icmp_messages_say_nothing() -> None:
    assert refused(3, kind=8) == "unanswered"


def test_a_connection_that_goes_on_is_not_refused() -> None:
    assert refused(answers=True) == "recovered"


def test_an_icmp_message_about_another_queue_pair_says_nothing() -> None:
    talk = Talk()
    talk.ask(ONLY, 10, 64, ack_req=1)
    time_ns, frame = talk.frames[-1]
    quoted = bytearray(frame[14:])
    quoted[35] ^= 1  # the last byte of the destination queue pair
    talk.frames.append((time_ns + 1000, icmp(bytes(quoted), 3, 3)))

    connection, _ = heard(talk)

    assert str(connection.status) == "ok"


def test_an_icmpv6_message_refuses_the_packets() -> None:
    connection = Connection(1, (End("fd00::1", 0x11), End("fd00::2", 0x22)), Service.RC)
    connection.directions[0].packets = 1
    connection.unacknowledged[0] = 0, 1
    addresses = ipaddress.ip_address("fd00::1").packed + ipaddress.ip_address("fd00::2").packed
    quoted = struct.pack(">IHBB", 6 << 28, 100, 17, 64) + addresses
    quoted += struct.pack(">HHHH", 50000, 4791, 100, 0) + bytes(5) + b"\0\0\x22" + bytes(4)
    message = struct.pack(">IHBB", 6 << 28, 8 + len(quoted), 58, 64) + addresses[16:]
    message += addresses[:16] + bytes([1, 4]) + bytes(6) + quoted

    unreachable_of((1_000, bytes(12) + b"\x86\xdd" + message)).note([connection])

    assert str(connection.status) == "refused(port unreachable)"


QUOTES = (28, 36, 40, None)
"""Bytes of the quoted packet: to the end of UDP, the queue pair, the PSN, all."""


@pytest.mark.parametrize("size", QUOTES)
@pytest.mark.parametrize("quoted", range(4))
def test_a_late_icmp_message_does_not_refuse_what_was_acknowledged(
    size: int | None, quoted: int
) -> None:
    """About a request or a response of a connection that has finished."""
    talk = Talk()
    talk.sends(10, 2)
    time_ns, _ = talk.frames[-1]
    talk.frames.append((time_ns + 10**9, icmp(talk.frames[quoted][1][14:][:size], 3, 1)))

    connection, _ = heard(talk)

    assert str(connection.status) == "ok"


@pytest.mark.parametrize("size", QUOTES)
def test_an_icmp_message_about_a_request_in_flight_refuses_the_packets(size: int | None) -> None:
    talk = Talk()
    talk.sends(10, 2)
    talk.ask(ONLY, 12, 64, ack_req=1)
    time_ns, frame = talk.frames[-1]
    talk.frames.append((time_ns + 1000, icmp(frame[14:][:size], 3, 1)))

    connection, _ = heard(talk)

    assert str(connection.status) == "refused(host unreachable)"


def test_a_host_that_answers_an_older_request_refuses_nothing() -> None:
    talk = Talk()
    talk.sends(10, 2)
    talk.ask(ONLY, 12, 64, ack_req=1)
    talk.ask(ONLY, 13, 64, ack_req=1)
    time_ns, frame = talk.frames[-1]
    talk.frames.append((time_ns + 1000, icmp(frame[14:], 3, 1)))
    talk.answer(12, 3)

    connection, _ = heard(talk)

    assert str(connection.status) == "ok"


def test_an_icmp_message_about_an_acknowledged_packet_says_nothing_of_a_later_one() -> None:
    talk = Talk()
    talk.sends(10, 2)
    talk.ask(ONLY, 12, 64, ack_req=1)
    time_ns, _ = talk.frames[-1]
    talk.frames.append((time_ns + 1000, icmp(talk.frames[0][1][14:], 3, 1)))

    connection, _ = heard(talk)

    assert str(connection.status) == "ok"


def two_connections(*, size: int | None, is_second_open: bool) -> list[str]:
    """The statuses of two between the same addresses; a message quotes the open request of one."""
    talk = Talk()
    talk.sends(10, 2)
    for number in range(2):
        talk.ask(ONLY, 500 + number, 64, ack_req=1, dest_qp=0x44)
        talk.answer(500 + number, 1 + number, dest_qp=0x33)
    if is_second_open:
        talk.ask(ONLY, 502, 64, ack_req=1, dest_qp=0x44)
    talk.ask(ONLY, 12, 64, ack_req=1)
    time_ns, frame = talk.frames[-1]
    talk.frames.append((time_ns + 1000, icmp(frame[14:][:size], 3, 1)))
    analysis = Analysis()
    with open_capture(pcap(talk.frames)) as capture:
        for batch in capture.batches():
            analysis.take(Columns(batch))
    return [str(each.status) for each in analysis.finish().connections]


@pytest.mark.parametrize("size", QUOTES)
def test_an_icmp_message_refuses_no_other_connection(size: int | None) -> None:
    found = two_connections(size=size, is_second_open=False)

    assert found == ["refused(host unreachable)", "ok"]


def test_without_a_queue_pair_an_icmp_message_may_be_about_any_open_connection() -> None:
    assert two_connections(size=28, is_second_open=True) == ["ok", "ok"]
    assert two_connections(size=36, is_second_open=True) == ["refused(host unreachable)", "ok"]


def unreachable_of(*messages: tuple[int, bytes]) -> Unreachable:
    """What these frames with ICMP messages say, each with its time."""
    found = Unreachable()
    with open_capture(pcap(list(messages))) as capture:
        for batch in capture.batches():
            found.take(Columns(batch))
    return found


def request_to(qpn: int) -> bytes:
    """A request, from its IP header on."""
    talk = Talk()
    talk.ask(ONLY, 10, 64, dest_qp=qpn)
    return talk.frames[0][1][14:]


def reason_noted(messages: Unreachable, qpn: int = 0x22) -> str:
    """Why the request to this queue pair is refused."""
    connection = Connection(1, (End("10.0.0.1", 0x11), End("10.0.0.2", qpn)), Service.RC)
    connection.unacknowledged[0] = 10, 1
    messages.note([connection])
    return connection.refused


@pytest.mark.parametrize("is_turned", [False, True])
def test_of_icmp_messages_in_several_captures_the_newest_counts(is_turned: bool) -> None:
    parts = [
        unreachable_of((1_000, icmp(request_to(0x22), 3, 1))),
        unreachable_of((2_000, icmp(request_to(0x22), 3, 3))),
    ]
    first, second = reversed(parts) if is_turned else parts
    first.merge(second)

    assert reason_noted(first) == "port unreachable"


def test_captures_together_remember_as_many_destinations_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unreachable, "MOST", 2)
    first, second = (
        unreachable_of(*((1_000 + qpn, icmp(request_to(qpn), 3, 1)) for qpn in qpns))
        for qpns in ((0x31, 0x32), (0x32, 0x33))
    )
    first.merge(second)

    found = [bool(reason_noted(first, qpn)) for qpn in (0x31, 0x32, 0x33)]
    assert found == [True, True, False]


def test_worst_connection_is_first_whatever_it_cost() -> None:
    """A dead connection before one that has recovered from more RNR NAKs than that has timeouts."""
    paths = [str(CAPTURES / name) for name in ("rnr-multi-packet.pcap", "retry-exceeded.pcap")]
    summary, _ = analyse(paths)

    order = [str(each.status) for each in worst_first(summary.connections)]

    assert order == ["retry-exceeded", "recovered"]
