"""The recorded responder: what the emulated one reproduces, infers, and reports."""

from __future__ import annotations

import io
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire.capture import PcapWriter
from ibwire.rc.profile import PROFILES, RXE, SPEC
from ibwire.replay.conversation import ROLES, Conversation
from ibwire_layers.errors import DecodeError, EncodeError
from ibwire_layers.headers import AETH
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet
from replay.recording import capture_of, edited, records_of, replayed

CAPTURES = Path(__file__).parents[2] / "captures"
INDEX = tomllib.loads((CAPTURES / "index.toml").read_text(encoding="utf-8"))["capture"]

RESPONSES = range(OpCode.RC_RDMA_READ_RESPONSE_FIRST, OpCode.RC_ATOMIC_ACKNOWLEDGE + 1)

# What a responder was sent is not what its peer sent, where the wire damages requests, or answers
# so that requests come again for another reason than the emulated responder can know.
DAMAGED = (
    "chaos",
    "corrupt-both-3pc",
    "drop-atomic-ack",
    "drop-one-ack",
    "drop-one-last",
    "drop-read-response",
    "dup-both-3pc",
    "loss-ack-only",
    "loss-both-2pc",
    "reorder-ab-3pc",
)
NO_RECEIVERS_VIEW = {f"{name}.a.pcap" for name in DAMAGED}
NO_SENDERS_VIEW = {
    **{f"{name}.b.pcap": "taken at the responder's end of a damaged wire" for name in DAMAGED},
    "drop-one-middle.b.pcap": "taken at the responder's end of a damaged wire",
    "reorder-ab-3pc.a.pcap": "one request of 304 differs, see docs/respond.md",
    "probe-odd-frames.pcap": "sent by hand, not by a requester",
}


def responses_in(entry: dict[str, Any]) -> int:
    """RC responses by tshark's count of opcodes."""
    return sum(n for code, n in entry["opcodes"].items() if int(code, 16) in RESPONSES)


def kinds(report: Any) -> Any:
    return set(report.inferred)


@each_case(
    "entry",
    [entry for entry in INDEX if entry["file"] not in NO_RECEIVERS_VIEW],
    ids=lambda entry: entry["file"],
)
def test_rxe_reproduces_every_response_of_every_shipped_capture(entry: dict[str, Any]) -> None:
    reports = replayed(CAPTURES / entry["file"])

    # One experiment of the probe sends an ACK to a queue pair that has asked for nothing.
    strays = 1 if entry["file"] == "probe-odd-frames.pcap" else 0
    assert sum(r.responses for r in reports) == responses_in(entry) - strays
    assert [d for r in reports for d in r.differences] == []
    assert all(r.equal == r.responses for r in reports)


@each_case(
    "entry",
    [entry for entry in INDEX if entry["file"] not in NO_SENDERS_VIEW],
    ids=lambda entry: entry["file"],
)
def test_rxe_reproduces_every_request_of_every_shipped_capture(entry: dict[str, Any]) -> None:
    reports = replayed(CAPTURES / entry["file"], role="requester")

    assert [d for r in reports for d in r.differences] == []
    assert all(r.equal == r.requests for r in reports)


def test_an_empty_receive_queue_is_inferred_from_the_rnr_nak() -> None:
    (report,) = replayed(CAPTURES / "rnr-late-recv.pcap")

    # The index: nine responses have the syndrome 0x32, RNR NAK with timer code 18.
    assert report.inferred["receive queue empty, RNR timer code 18"].count == 9


def test_a_sequence_nak_after_each_rnr_nak_is_rxe_alone() -> None:
    """reference/habits#rxe-rnr-nak: nine of nine in this capture, none by the specification."""
    capture = CAPTURES / "rnr-multi-packet.pcap"
    (rxe,) = replayed(capture, profile=RXE)
    (spec,) = replayed(capture, profile=SPEC)

    assert rxe.differences == []
    assert len(spec.differences) == 9
    assert all(d.field == "packet" and d.emulated is None for d in spec.differences)


def test_a_refused_key_is_inferred_from_the_nak() -> None:
    (report,) = replayed(CAPTURES / "nak-bad-rkey-write-multi.pcap")

    assert "key invalid, without permission, or out of bounds" in kinds(report)


def test_a_small_receive_buffer_is_inferred_from_the_nak() -> None:
    (report,) = replayed(CAPTURES / "nak-send-too-big.pcap")

    assert "receive buffer too small" in kinds(report)


def test_a_request_lost_behind_the_capture_point_is_inferred_from_the_nak_for_it() -> None:
    (report,) = replayed(CAPTURES / "drop-one-middle.a.pcap")

    assert "lost after the capture point, as a NAK for it shows" in kinds(report)


def test_keys_and_ranges_are_listed() -> None:
    """The manifest: the client wrote 10,000 bytes to 0x382a0000."""
    (report,) = replayed(CAPTURES / "drop-one-middle.a.pcap")

    assert "key 0x00008977 opens 0x382a0000 to 0x382a2710 for remote_write" in kinds(report)


def test_memory_that_its_owner_changes_between_two_reads_is_no_difference() -> None:
    """rping's client fills its buffer anew before each of ten READs."""
    reports = replayed(CAPTURES / "cm-rping.pcap")
    (server_reads,) = [r for r in reports if "memory changed by its owner" in r.inferred]

    assert server_reads.inferred["memory changed by its owner"].count == 9
    assert server_reads.differences == []


def with_aeth(packet: Any, **fields: Any) -> Any:
    extensions = tuple(
        replace(each, **fields) if isinstance(each, AETH) else each for each in packet.extensions
    )
    return replace(packet, extensions=extensions)


@pytest.mark.parametrize(
    ("fields", "name"), [({"msn": 0x123456}, "msn"), ({"syndrome": 0x05}, "syndrome")]
)
def test_another_aeth_in_the_recording_is_a_difference(fields: Any, name: str) -> None:
    def edit(number: int, packet: Any) -> Any:
        return with_aeth(packet, **fields) if number == 17 else packet

    reports = replayed(edited(CAPTURES / "drop-atomic-ack.b.pcap", edit))

    found = [(d.packet, d.field, d.recorded) for r in reports for d in r.differences]
    assert found == [(17, name, fields[name])]


def test_another_read_payload_shorter_by_a_word_is_a_difference() -> None:
    def edit(number: int, packet: Any) -> Any:
        if packet.bth.opcode == OpCode.RC_RDMA_READ_RESPONSE_LAST:
            return replace(packet, payload=packet.payload[:-4])
        return packet

    reports = replayed(edited(CAPTURES / "rcx-all-ops.pcap", edit))

    assert {d.field for r in reports for d in r.differences} == {"payload length"}


def test_another_atomic_result_is_a_difference() -> None:
    def edit(number: int, packet: Any) -> Any:
        if number != 17:
            return packet
        head, result = packet.extensions
        return replace(packet, extensions=(head, replace(result, orig=result.orig + 1)))

    (report,) = replayed(edited(CAPTURES / "drop-atomic-ack.b.pcap", edit))

    assert [(d.packet, d.field) for d in report.differences] == [(17, "original")]


def test_a_response_that_is_missing_from_the_recording_is_a_difference() -> None:
    removed: int | None = None

    def edit(number: int, packet: Any) -> Any:
        nonlocal removed
        if packet.bth.opcode == OpCode.RC_ACKNOWLEDGE and removed is None:
            removed = packet.bth.psn
            return None
        return packet

    reports = replayed(edited(CAPTURES / "rcx-all-ops.pcap", edit))

    (difference,) = [d for r in reports for d in r.differences]
    assert difference.recorded is None
    assert f"psn={removed:#08x}" in difference.emulated  # type: ignore[operator]


def test_a_response_that_nothing_asked_for_is_a_difference() -> None:
    records = records_of(CAPTURES / "rnr-late-recv.pcap")
    doubled = [each for r in records for each in ([r, r] if r.number == 11 else [r])]
    (report,) = replayed(capture_of(doubled))

    # Packet 11 is the first RNR NAK, so the requester seems to be refused once more.
    assert report.responses == 13
    assert report.has_differences


def test_requests_without_any_answer_are_no_difference() -> None:
    def edit(number: int, packet: Any) -> Any:
        return None if packet.bth.opcode in RESPONSES else packet

    reports = replayed(edited(CAPTURES / "rcx-all-ops.pcap", edit))

    assert sum(r.requests for r in reports) == 25
    assert all(not r.responses and not r.has_differences for r in reports)
    assert any("no answer recorded" in what for r in reports for what in r.inferred)


def test_a_capture_that_begins_inside_a_connection_is_replayed_from_the_first_whole_message() -> (
    None
):
    """The ping-pong has five messages in each direction; two of each are left out."""
    records = records_of(CAPTURES / "vlan-rc-pingpong.pcap")
    reports = replayed(capture_of(records[25:]))

    assert [d for r in reports for d in r.differences] == []
    assert any("MSN" in what for r in reports for what in r.inferred)
    assert sum(r.equal for r in reports) == 6


def test_an_msn_that_is_off_by_one_is_inferred_at_the_start_of_a_capture() -> None:
    """The second of 50 messages is the first here: MSN 2 (tshark)."""
    records = records_of(CAPTURES / "drop-one-middle.b.pcap")
    (report,) = replayed(capture_of(records[11:]))

    assert not report.differences
    assert "MSN 2 of the first response" in report.inferred


def test_an_msn_that_is_off_by_one_is_a_difference_where_the_cm_shows_the_start() -> None:
    def edit(number: int, packet: Any) -> Any:
        aeth = next((each for each in packet.extensions if isinstance(each, AETH)), None)
        return packet if aeth is None else with_aeth(packet, msn=aeth.msn + 1)

    reports = replayed(edited(CAPTURES / "cm-rping.pcap", edit))

    assert {d.field for r in reports for d in r.differences} == {"msn"}


@pytest.mark.parametrize(
    ("name", "start", "left_out"),
    [
        ("drop-one-middle.b", 12, {"request in the middle of a message": 13}),
        ("chaos.b", 13, {"request that is retransmitted": 41, "request in the middle": 4}),
        ("rnr-multi-packet", 30, {"request that is retransmitted before its response": 7}),
    ],
)
def test_packets_before_the_first_whole_message_are_counted(
    name: str, start: int, left_out: dict[str, int]
) -> None:
    """Counted in tshark: requests before the first message that the responder acknowledges."""
    (report,) = replayed(capture_of(records_of(CAPTURES / f"{name}.pcap")[start:]))

    requests = {w: each.count for w, each in report.left_out.items() if w.startswith("request")}
    assert not report.differences
    assert sorted(requests.values()) == sorted(left_out.values())
    assert all(any(what.startswith(each) for each in left_out) for what in requests)


@pytest.mark.parametrize(
    ("start", "equal"),
    [
        pytest.param(317, 202, id="READ behind unfinished SENDs"),
        pytest.param(318, 202, id="READ before the path MTU is known"),
        pytest.param(329, 196, id="MSN of all responses to a READ"),
        pytest.param(371, 158, id="READ that continues one before the capture"),
        pytest.param(373, 121, id="READ whose responses came before"),
        pytest.param(531, 10, id="atomics behind a READ"),
    ],
)
def test_what_was_before_the_capture_is_no_difference(start: int, equal: int) -> None:
    """Counted in tshark: responses from the first PSN on that is replayed."""
    (report,) = replayed(capture_of(records_of(CAPTURES / "chaos.b.pcap")[start:]))

    assert not report.differences
    assert report.equal == equal


def test_differences_that_packets_before_the_capture_may_explain_are_named_so() -> None:
    """READs are retransmitted whose responses were before: the MSN shows it, but too late."""
    (report,) = replayed(capture_of(records_of(CAPTURES / "chaos.b.pcap")[385:]))

    assert {d.field for d in report.differences} == {"msn"}
    assert any("begins inside the connection" in what for what in report.inferred)


def test_a_requester_that_is_seen_in_the_middle_of_a_message_is_replayed_from_the_next() -> None:
    (report,) = replayed(
        capture_of(records_of(CAPTURES / "drop-one-middle.a.pcap")[11:]), role="requester"
    )

    assert not report.differences
    assert sum(each.count for each in report.left_out.values()) > 7
    assert report.equal == report.requests - sum(e.count for e in report.left_out.values())


def test_packets_that_the_snap_length_cut_are_counted() -> None:
    """Every packet of this capture that is longer than 128 bytes, by its frame length."""
    records = records_of(CAPTURES / "rc-pingpong.pcap")
    file = io.BytesIO()
    with PcapWriter(file) as writer:
        for record in records:
            writer.write(record.data[:128], record.time_ns, wire_len=len(record.data))
    conversation = Conversation(io.BytesIO(file.getvalue()))
    list(conversation.reports())

    long = [r for r in records if len(r.data) > 128 and r.data[36:38] == (4791).to_bytes(2)]
    assert conversation.skipped["cut"] == len(long) == 82


def test_frames_with_a_bad_icrc_never_reach_the_queue_pair() -> None:
    """A copy of each request with one bit flipped stands before it."""
    doubled = []
    for record in records_of(CAPTURES / "drop-atomic-ack.b.pcap"):
        broken = bytearray(record.data)
        broken[-5] ^= 1
        doubled += [replace(record, data=bytes(broken)), record]
    (report,) = replayed(capture_of(doubled))

    assert report.requests == 4
    assert report.equal == report.responses == 4


def test_only_requests_to_the_queue_pair_that_is_asked_for() -> None:
    (report,) = replayed(CAPTURES / "cm-ucmatose.pcap", qpn=0x95)

    assert report.dst_qpn == 0x95
    assert (report.requests, report.equal) == (5, 5)


def test_requests_from_a_second_capture_replace_those_of_the_first() -> None:
    """As for a wire that was captured at both ends: here both are the same."""
    path = CAPTURES / "rcx-all-ops.pcap"

    assert replayed(path, requests=path) == replayed(path)


damage = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.sampled_from(["drop", "double", "swap", "flip"]),
        st.integers(0, 500),
        st.integers(1, 255),
    ),
    max_size=12,
)


@settings(max_examples=scaled(60), deadline=None)
@given(
    st.sampled_from(
        ["rcx-all-ops", "rnr-late-recv", "cm-rping", "drop-read-response.b", "rcx-ipv6"]
    ),
    damage,
    st.sampled_from(sorted(ROLES)),
    st.sampled_from(sorted(PROFILES)),
)
def test_no_damage_to_a_capture_stops_the_replay(
    name: str, damage: Any, role: str, profile: Any
) -> None:
    records = records_of(CAPTURES / f"{name}.pcap")
    for place, kind, offset, mask in damage:
        index = place % len(records)
        record = records[index]
        if kind == "drop" and len(records) > 1:
            del records[index]
        elif kind == "double":
            records.insert(index, record)
        elif kind == "swap":
            records[index - 1], records[index] = record, records[index - 1]
        else:
            data = bytearray(record.data)
            data[offset % len(data)] ^= mask
            records[index] = replace(record, data=with_good_icrc(bytes(data)))

    for report in replayed(capture_of(records), role=role, profile=PROFILES[profile]):
        emulated = report.responses if role == "responder" else report.requests
        assert report.equal <= emulated
        unused = report.inferred or report.left_out
        assert report.has_differences or unused or report.equal == emulated


def with_good_icrc(data: Any) -> Any:
    """The frame with its ICRC computed anew, if it is still a RoCE frame."""
    try:
        return replace(Packet.parse(data, strict=False), icrc=None).build()
    except (DecodeError, EncodeError):
        return data
