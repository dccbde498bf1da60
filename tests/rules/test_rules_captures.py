"""What is found in captures of real traffic: habits by name, and nothing that is not there."""

from collections import Counter
from pathlib import Path

import pytest

from each_case import each_case
from examples import sampled
from ibwire.rules.findings import ANY, Severity
from rules.check_frames import grave, ids, judge, judge_capture, read_frames

CAPTURES = Path(__file__).parents[2] / "captures"
NAMES = sorted(path.name for path in CAPTURES.glob("*.pcap*"))
BY_HAND = {"probe-odd-frames.pcap"}
"""Captures of frames that were made wrong on purpose."""

# Read in the facts about rxe and in the captures themselves with tshark.
HABITS = {
    "rnr-multi-packet.pcap": {"naks.after-rnr": 9, "naks.rnr-new": 1},
    "nak-send-too-big.pcap": {"naks.too-long": 1},
    "ecn-ce.b.pcap": {"congestion.no-cnp": 11},
    "drop-read-response.b.pcap": {"reads.replay": 1},
    "drop-one-last.a.pcap": {"repeat.unasked-ack": 7},
    "rc-pingpong.pcap": {"repeat.needless": 1},
    "send-lat.pcap": {"repeat.needless": 1},
    "cm-rping.pcap": {"psn_acks.ack-req-mad": 5},
}

# What the host program did wrong in each experiment (its table of experiments).
ODD = {
    "atomics.aligned": "FETCH_ADD unaligned",
    "congestion.cnp-form": "CNP (0x81), with BECN 0",
    "constant.p-key": "P_Key 0x7fff, 0x1234 and 0x0000, then a good frame with 0xffff",
    "integrity.p-key": "P_Key 0x0000",
    "integrity.tver": "BTH TVer=1",
    "integrity.reserved": "resv7 0x7f",
    "integrity.pad-bytes": "pad=3, 61 bytes: the pad bytes go on counting",
    "lengths.padding": "61 bytes, no pad (length not 4n)",
    "lengths.write": "WRITE_ONLY RETH length != payload",
    "sequences.opcode": "unknown opcode 0x1f",
    "sequences.order": "SEND_FIRST then WRITE_ONLY",
    "sequences.service": "UD opcode on RC QP",
    "psn_acks.ack-req": "UD opcode on RC QP, with AckReq",
    "repeat.same": "the good SEND_ONLY after an odd frame has its PSN",
}


@each_case("name", sampled((name for name in NAMES if name not in BY_HAND), 5))
def test_real_traffic_shows_nothing_graver_than_a_note(name: str) -> None:
    assert grave(judge_capture(CAPTURES / name)) == []


@each_case("name", sampled((name for name in NAMES if name not in BY_HAND), 5))
def test_a_capture_of_rxe_shows_nothing_but_damage_to_who_expects_rxe(name: str) -> None:
    expected = {"integrity.damaged", "cm.rejected"} if "reject" in name else {"integrity.damaged"}
    assert ids(judge_capture(CAPTURES / name, "rxe")) <= expected


@pytest.mark.parametrize("name", HABITS)
def test_habits_of_rxe_are_notes_that_name_it(name: str) -> None:
    found = judge_capture(CAPTURES / name)

    counts: Counter[str] = Counter()
    for finding in found:
        counts[finding.rule.id] += finding.count
    assert {rule: counts[rule] for rule in HABITS[name]} == HABITS[name]
    habits = [finding for finding in found if finding.rule.id in HABITS[name]]
    assert all("rxe" in finding.rule.habits for finding in habits)
    assert all(finding.severity is Severity.NOTE for finding in habits)


def test_a_rejected_request_names_the_reason_and_who_rejected_it() -> None:
    """A REQ for port 7174 (0x1061c06 in tshark), and REJ with reason 8."""
    (finding,) = judge_capture(CAPTURES / "cm-reject.pcap", ANY)

    assert (finding.rule.id, finding.severity) == ("cm.rejected", Severity.NOTE)
    assert (finding.location.src, finding.numbers) == ("10.77.0.2", [2])
    assert finding.text == "port 7174 rejected: invalid service id"


def test_a_request_that_is_sent_twice_without_a_response_is_found() -> None:
    (time, request), _ = read_frames(CAPTURES / "cm-reject.pcap")

    (finding,) = judge([(time, request), (time + 4_000_000_000, request)], ANY)
    assert (finding.rule.id, finding.location.src) == ("cm.unanswered", "10.77.0.1")
    assert finding.numbers == [1, 2]


@pytest.mark.parametrize("name", ["drop-atomic-ack.b.pcap", "drop-one-ack.b.pcap"])
def test_nobody_is_blamed_for_a_response_that_the_wire_dropped(name: str) -> None:
    """The wire dropped the response after this point (`.wire.json`): the retransmission is due."""
    assert judge_capture(CAPTURES / name, ANY) == []


def test_what_rxe_always_does_is_wrong_in_a_connectx() -> None:
    found = judge_capture(CAPTURES / "rnr-multi-packet.pcap", "connectx")

    severities = {finding.rule.id: finding.severity for finding in found}
    assert severities["naks.after-rnr"] is Severity.ERROR
    assert severities["integrity.mig-req"] is Severity.WARNING


def test_every_odd_frame_of_the_probes_is_found() -> None:
    found = judge_capture(CAPTURES / "probe-odd-frames.pcap")

    assert {each.rule.id for each in found if each.severity > Severity.NOTE} == ODD.keys()


@each_case("name", sampled((name for name in NAMES if name not in BY_HAND), 5))
def test_headers_alone_raise_no_alarm(name: str) -> None:
    """A snap length of 128 bytes: no ICRC can be checked."""
    assert grave(judge(read_frames(CAPTURES / name), snaplen=128)) == []


@pytest.mark.parametrize("name", ["chaos.a.pcap", "chaos.b.pcap", "loss-ack-only.a.pcap"])
@pytest.mark.parametrize("start", sampled([40, 111, 200, 333], 2))
def test_a_capture_that_begins_in_the_middle_raises_no_alarm(name: str, start: int) -> None:
    assert grave(judge(read_frames(CAPTURES / name)[start:])) == []


@pytest.mark.parametrize("name", ["chaos.a.pcap", "loss-ack-only.b.pcap", "rnr-multi-packet.pcap"])
@pytest.mark.parametrize("source", [b"\x0a\x4d\x00\x01", b"\x0a\x4d\x00\x02"])
def test_one_direction_alone_raises_no_alarm(name: str, source: bytes) -> None:
    frames = read_frames(CAPTURES / name)

    assert grave(judge([each for each in frames if each[1][26:30] == source])) == []


def test_more_reads_outstanding_than_agreed_are_found() -> None:
    """perftest says in its line of text how many READs may be outstanding: 8, here made 2."""
    frames = [
        (time, frame.replace(b"0000:0008:", b"0000:0002:"))
        for time, frame in read_frames(CAPTURES / "read-bw-ipv6.pcap")
    ]

    found = [each for each in judge(frames) if each.rule.id == "reads.outstanding"]
    assert [each.location.dst_qpn for each in found] == [0x57]
    assert found[0].text == "8 READs and atomics outstanding, expected at most 2"
