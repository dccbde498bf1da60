"""The story of a connection, for captures with known impairments.

The golden texts were read line by line against tshark's listing and against what the
wire between the two capture points did. They are what this prints into a pipe:

    ibwire explain captures/NAME.pcap > tests/diagnosis/golden/NAME.txt
"""

import json
import random
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connections.talk import Talk
from each_case import each_case
from emulated_traffic import feed
from examples import sampled, scaled
from ibwire.connections.analysis import Analysis
from ibwire.diagnosis.record import Recorder
from ibwire.diagnosis.story import Frames, Story
from ibwire.diagnosis.wording import duration, packets
from ibwire.dissect import read
from ibwire_layers.opcodes import OpCode

CAPTURES = Path(__file__).parents[2] / "captures"
GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))


class Everything:
    def __contains__(self, number: int) -> bool:
        return True


def stories(path: Path, every: bool = False) -> list[Story]:
    recorder = Recorder(Everything())
    analysis = Analysis(recorder)
    times = []
    for columns in read(path):
        times += columns["frame.time_ns"].tolist()
        analysis.take(columns)
    analysis.finish()
    frames = Frames(Path(path).name, times[0] if times else 0, times[-1] if times else 0)
    return [Story(record, frames, every) for record in recorder.records()]


def story(name: str, every: bool = False) -> Any:
    (found,) = stories(CAPTURES / f"{name}.pcap", every)
    return found


def text_of(result: Any, width: int = 100) -> str:
    return "\n".join(line.text for line in result.lines(width)) + "\n"


def flat(result: Any) -> Any:
    """The text as one line, so that it can be searched."""
    return " ".join(text_of(result).split())


def wire(name: str) -> Counter[Any]:
    """Impairments between the points a and b, counted by direction and action."""
    truth = json.loads((CAPTURES / f"{name}.wire.json").read_text())
    return Counter((action["dir"], action["act"]) for action in truth["actions"])


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_story_is_the_one_that_was_read_against_tshark(golden: Any) -> None:
    assert text_of(story(golden.stem)) + "\n" == golden.read_text()


# The wire.json of these captures lists the impairments between the points a and b.


@pytest.mark.parametrize("name", ["drop-one-middle", "drop-one-last"])
def test_one_request_lost_is_lost_after_a_and_before_b(name: str) -> None:
    assert wire(name) == {("ab", "loss"): 1}

    assert "1 packet from A to B lost, damaged or delayed after this point" in flat(
        story(f"{name}.a")
    )
    assert "1 packet from A to B lost before this point" in flat(story(f"{name}.b"))


@pytest.mark.parametrize("name", ["drop-one-ack", "drop-atomic-ack", "drop-read-response"])
def test_one_response_lost_is_lost_after_b_on_its_way_to_a(name: str) -> None:
    assert wire(name) == {("ba", "loss"): 1}

    assert "1 response of B lost, damaged or delayed after this point" in flat(story(f"{name}.b"))


@pytest.mark.parametrize("name", ["drop-one-ack", "drop-atomic-ack"])
def test_capture_at_a_does_not_show_whether_request_or_response_was_lost(name: str) -> None:
    assert "a request of A or its response" in story(f"{name}.a").verdict


def test_lost_read_response_is_lost_before_a() -> None:
    result = flat(story("drop-read-response.a"))

    assert "B's response to a READ or atomic with PSN 102 did not arrive here" in result
    assert "its ACK timer had expired" in result


def test_every_loss_before_b_is_counted() -> None:
    lost = wire("loss-both-2pc")["ab", "loss"]

    assert f"The network lost {lost} packets from A to B" in story("loss-both-2pc.b").verdict


def test_reordered_packets_are_not_called_lost() -> None:
    reordered = wire("reorder-ab-3pc")["ab", "reorder"]

    verdict = story("reorder-ab-3pc.b").verdict

    assert f"{reordered} packets from A to B were reordered" in verdict
    assert "lost" not in verdict


def test_damaged_packets_are_counted_as_damaged() -> None:
    damaged = wire("corrupt-both-3pc")["ab", "corrupt"]

    verdict = story("corrupt-both-3pc.b").verdict

    assert f"{damaged} packets from A to B arrived here damaged" in verdict


def test_duplicates_are_counted_and_cause_no_incident() -> None:
    duplicates = wire("dup-both-3pc")["ab", "dup"]

    result = story("dup-both-3pc.b")

    assert not result.incidents
    assert f"Nothing was lost. {duplicates} packets arrived twice" in result.verdict


def test_marked_packets_are_counted_and_the_missing_cnp_is_reported() -> None:
    marked = wire("ecn-ce")["ab", "ce"]

    result = flat(story("ecn-ce.b"))

    assert f"{marked} of 60 packets from A to B carry the CE mark" in result
    assert "B sends no CNP" in result


def test_each_kind_of_impairment_is_counted_separately() -> None:
    truth = wire("chaos")

    verdict = story("chaos.b").verdict

    assert f"The network lost {truth['ab', 'loss']} packets from A to B" in verdict
    assert f"{truth['ab', 'corrupt']} packets from A to B arrived here damaged" in verdict
    assert f"{truth['ab', 'reorder']} packets from A to B were reordered" in verdict


# The manifest of the captures describes these, with the completions of both programs.


def test_rnr_naks_are_counted_with_their_wait() -> None:
    result = story("rnr-late-recv")

    assert result.incidents[0].rnr_naks == 9
    assert "A must wait 5.12 ms" in flat(result)
    assert "although the RNR NAK asks to wait" not in flat(result)


def test_sequence_naks_after_an_rnr_nak_are_not_losses() -> None:
    result = story("rnr-multi-packet")

    assert result.incidents[0].rnr_naks == 9
    assert result.incidents[0].names_of_causes == {"no_buffer"}


@pytest.mark.parametrize(
    ("name", "said", "status"),
    [
        (
            "retry-exceeded",
            "after 4 transmissions of PSN 2500259 without a response",
            "IBV_WC_RETRY_EXC_ERR",
        ),
        ("rnr-exceeded", "after 3 RNR NAKs for PSN 129814", "IBV_WC_RNR_RETRY_EXC_ERR"),
    ],
)
def test_requester_gives_up_after_its_last_try(name: str, said: str, status: str) -> None:
    result = story(name)

    assert f"A gave up {said}" in result.verdict
    assert status in flat(result)


@pytest.mark.parametrize(
    ("name", "error", "status"),
    [
        ("nak-bad-rkey-write", "remote access error for WRITE ONLY #12", "REM_ACCESS_ERR"),
        ("nak-bad-rkey-write-multi", "remote access error for WRITE FIRST #12", "REM_ACCESS_ERR"),
        ("nak-send-too-big", "remote operational error for SEND ONLY #12", "REM_OP_ERR"),
    ],
)
def test_fatal_nak_names_the_request_and_what_to_check(name: str, error: str, status: str) -> None:
    result = story(name)

    assert error in result.verdict
    assert "Check" in result.verdict
    assert f"IBV_WC_{status}" in flat(result)


def changed(*refusal: int) -> str:
    """The story of a SEND FIRST that is retransmitted as SEND ONLY, and perhaps refused."""
    talk = Talk()
    talk.ask(OpCode.RC_SEND_FIRST, 0, 256)
    talk.ask(OpCode.RC_SEND_LAST, 1, 64, ack_req=1)
    talk.answer(0, 0, 0x60)
    talk.ask(OpCode.RC_SEND_ONLY, 0, 256)
    talk.ask(OpCode.RC_SEND_LAST, 1, 64, ack_req=1)
    talk.answer(1, 1, *refusal)
    return told_of(talk)


def test_a_retransmission_with_another_opcode_is_an_error_of_the_sender() -> None:
    """IBA 9.7.5.1.4; docs/reference/transport.md#resume-write."""
    assert (
        "Verdict: remote-error(invalid-request). B refused A's request: invalid request for SEND "
        "LAST #5 (PSN 1, 64 bytes). "
        "A retransmitted PSN 0 as SEND ONLY (#4), and had sent it as SEND FIRST (#1). That is an "
        "error of A's RDMA implementation, not of the programs or the network."
    ) in changed(0x61)
    assert "Verdict: recovered. A retransmitted PSN 0 as SEND ONLY (#4)" in changed()


def test_stale_timer_is_called_harmless() -> None:
    (incident,) = story("rc-pingpong").incidents

    assert incident.is_harmless
    assert incident.needless == incident.retransmitted == 2


def test_timer_that_expires_before_the_response_arrives_is_called_harmless() -> None:
    # tshark: #136 retransmits #135, and #137 and #138 acknowledge both.
    (incident,) = story("send-lat").incidents

    assert incident.is_harmless
    assert "B acknowledges everything twice: nothing was lost" in flat(story("send-lat"))


def told_of(talk: Talk) -> str:
    recorder = Recorder(Everything())
    analysis = Analysis(recorder)
    feed(analysis, talk.frames)
    analysis.finish()
    (record,) = recorder.records()
    return str(flat(Story(record, Frames("x", talk.frames[0][0], talk.frames[-1][0]))))


@pytest.mark.parametrize(("late", "is_needless"), [(True, True), (False, False)])
def test_a_late_response_to_the_first_transmission_shows_that_nothing_was_lost(
    late: bool, is_needless: bool
) -> None:
    """As rxe in a busy guest: an ACK of PSN 11, then of duplicates, with its newest PSN."""
    talk = Talk()
    talk.sends(9, 1)
    for _ in range(2):
        for psn in (10, 11, 12):
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=int(psn > 10))
        talk.wait(0 if talk.frames[6:] else 67_000)
    if late:
        talk.answer(11, 3)
    for _ in range(3):
        talk.answer(12, 4)

    told = told_of(talk)

    assert ("nothing was lost, B was slow or the timeout too short" in told) is is_needless
    assert ("its first response was lost before this point" in told) is not is_needless


def test_cnp_without_a_mark_shows_congestion_after_this_point() -> None:
    (result,) = [
        result
        for result in stories(CAPTURES / "probe-odd-frames.pcap")
        if any(each.cnps for each in result.connection.directions)
    ]

    assert "1 CNP from A (#135) asked B to slow down" in flat(result)
    assert "The network after this point is congested" in result.verdict


@pytest.mark.parametrize("name", ["rcx-all-ops", "rcx-ipv6", "vlan-rc-pingpong", "srq-pingpong"])
def test_nothing_went_wrong_in_clean_captures(name: str) -> None:
    for result in stories(CAPTURES / f"{name}.pcap"):
        assert not result.incidents
        assert result.verdict.startswith("Nothing went wrong")


def test_similar_incidents_are_summarised_unless_all_are_requested() -> None:
    few, every = story("loss-ack-only.a"), story("loss-ack-only.a", every=True)

    titles = re.compile(r"^Incident \d+", re.MULTILINE)
    assert len(titles.findall(text_of(every))) == len(every.incidents)
    assert len(titles.findall(text_of(few))) < len(few.incidents)
    assert "more incidents" in flat(few)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in text_of(story("chaos.b"), width).splitlines():
        assert len(line) <= width


@each_case("path", sampled(sorted(CAPTURES.glob("*.pcap")), 3), ids=lambda path: path.stem)
def test_every_completed_message_and_every_event_is_counted_once(path: Path) -> None:
    recorder = Recorder(Everything())
    analysis = Analysis(recorder)
    for columns in read(path):
        analysis.take(columns)
    analysis.finish()

    for record in recorder.records():
        events = [event for part in record.line for event in part.events] + record.marks
        assert sorted(map(id, events)) == sorted(map(id, record.events))
        if record.connection.is_reliable:
            result = sum(sum(part.messages.values()) for part in record.line)
            assert result == sum(each.completed for each in record.connection.directions)


def frames_of(path: Path) -> Any:
    data = path.read_bytes()
    at, records = 24, []
    while at < len(data):
        size = 16 + struct.unpack_from("<I", data, at + 8)[0]
        records.append(data[at : at + size])
        at += size
    return data[:24], records


def impaired(records: Any, rng: Any) -> Any:
    """A capture with losses, duplicates, reordering and damage."""
    share = rng.random() * 0.3
    result = []
    for record in records:
        what = rng.random() / share if share else 9
        if what < 1 / 4:
            continue
        if what < 1 / 2:
            result.append(record)
        elif what < 3 / 4:
            result.insert(max(0, len(result) - rng.randrange(30)), record)
            continue
        elif what < 1:
            broken = bytearray(record)
            broken[rng.randrange(16, len(broken))] ^= 1 << rng.randrange(8)
            record = bytes(broken)
        result.append(record)
    return result[rng.randrange(len(result)) :] if result and rng.random() < 0.3 else result


@pytest.mark.slow
@settings(max_examples=scaled(40))
@given(
    st.sampled_from(["rcx-all-ops", "drop-one-last.a", "rnr-multi-packet", "probe-odd-frames"]),
    st.integers(0, 1 << 32),
)
def test_story_of_any_impaired_capture_names_packets_that_exist(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int
) -> None:
    header, records = frames_of(CAPTURES / f"{name}.pcap")
    records = impaired(records, random.Random(seed))
    path = tmp_path_factory.mktemp("story") / "impaired.pcap"
    path.write_bytes(header + b"".join(records))

    for result in stories(path):
        numbers = [int(number) for number in re.findall(r"#(\d+)", text_of(result))]
        assert all(1 <= number <= len(records) for number in numbers)


READ_RESPONSES = 13, 14, 15, 16, 18
"""Opcodes of READ responses and of the atomic acknowledge, of RC (IBA table 38)."""
UNTAGGED = 14 + 20 + 8
"""Where the BTH of an untagged frame over IPv4 begins; 20 later over IPv6."""


def without(path: Path, number: int, tmp_path: Path) -> Path:
    """A capture that has missed one frame."""
    header, records = frames_of(path)
    del records[number - 1]
    result = tmp_path / path.name
    result.write_bytes(header + b"".join(records))
    return result


def read_responses(path: Path, bth: int = UNTAGGED) -> list[int]:
    """Numbers of the frames, of which no other kind is as long and has such a byte there."""
    found = []
    for number, record in enumerate(frames_of(path)[1], 1):
        frame = record[16:]
        if len(frame) > bth + 12 and frame[bth - 6 : bth - 4] == (4791).to_bytes(2, "big"):
            found += [number] if frame[bth] in READ_RESPONSES else []
    return found


@pytest.mark.parametrize(
    ("name", "bth"),
    [("cm-rping", UNTAGGED), ("read-bw-ipv6", UNTAGGED + 20), ("rcx-all-ops", UNTAGGED)],
)
@pytest.mark.parametrize("which", [0, 1])
def test_a_response_that_only_the_capture_missed_is_not_lost_by_the_network(
    name: str, bth: int, which: int, tmp_path: Path
) -> None:
    path = CAPTURES / f"{name}.pcap"

    told = stories(without(path, read_responses(path, bth)[which], tmp_path))

    (one,) = [each for each in told if each.connection.is_reliable]
    assert "The network lost" not in one.verdict
    assert "missed" in one.verdict
    waiting = re.findall(r"At the end of the capture (\d+) messages? had not", flat(one))
    assert waiting == (["1"] if one.connection.status.status == "unresolved" else [])


def test_a_read_that_32_later_messages_pass_over_was_answered(tmp_path: Path) -> None:
    path = CAPTURES / "cm-rping.pcap"

    told = stories(without(path, read_responses(path)[0], tmp_path))

    (one,) = [each for each in told if each.connection.is_reliable]
    assert one.verdict.startswith("The capture missed 1 response of A")
    assert "had not been acknowledged" not in flat(one)


def test_the_open_messages_of_the_time_line_and_of_the_verdict_are_the_same(
    tmp_path: Path,
) -> None:
    """After frame 11 a FETCH ADD lacks its response, and the one behind it has its own."""
    told = flat(*stories(without(CAPTURES / "drop-atomic-ack.a.pcap", 11, tmp_path)))

    assert "had not been acknowledged: FETCH ADD of A (#10). " in told
    assert "Not resolved when the capture ends: responses of B are missing" in told
    assert "1 message of A is not acknowledged" in told


def test_of_many_open_messages_three_are_named(tmp_path: Path) -> None:
    """read-bw-ipv6: 20 READs, the first 8 requests are #20 to #27, the first response is #28."""
    header, records = frames_of(CAPTURES / "read-bw-ipv6.pcap")
    path = tmp_path / "cut.pcap"
    path.write_bytes(header + b"".join(records[:27]))

    (one,) = [each for each in stories(path) if each.connection.is_reliable]

    assert "8 messages of A" not in one.verdict  # nothing of B: whether they are open is unknown
    path.write_bytes(header + b"".join(records[:28]))
    (one,) = [each for each in stories(path) if each.connection.is_reliable]
    named = "READ of A (#20), READ of A (#21), READ of A (#22) and 5 more."
    assert f"8 messages had not been acknowledged: {named}" in flat(one)


def sent_by(path: Path, sender: bytes, tmp_path: Path) -> Path:
    """The frames of one IPv4 address."""
    header, records = frames_of(path)
    result = tmp_path / path.name
    result.write_bytes(header + b"".join(r for r in records if r[16 + 26 : 16 + 30] == sender))
    return result


def test_a_read_that_is_resumed_shows_that_its_responder_exists(tmp_path: Path) -> None:
    """A retransmits PSN 102 to 108 of a READ that begins at PSN 100 (drop-read-response)."""
    path = sent_by(CAPTURES / "drop-read-response.a.pcap", bytes((10, 77, 0, 1)), tmp_path)

    (one,) = stories(path)

    assert one.connection.status.status == "unresolved"
    assert "A has responses of it" in one.verdict
    assert "It has the responses before PSN 102, which were not captured." in flat(one)


def test_a_queue_pair_that_a_handshake_names_may_exist() -> None:
    """Its program answered in TCP (frames 5 and 6 of retry-exceeded)."""
    verdict = story("retry-exceeded").verdict

    assert "A handshake in this capture names B's queue pair, but nothing was received" in verdict
    assert "does not exist" not in verdict


@each_case(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_500, "1.50 us"), (65_425_000, "65.4 ms"), (10**9, "1.00 s")],
)
def test_durations_have_three_digits(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_packets_are_named_as_runs_and_only_the_first_of_many() -> None:
    assert packets([20]) == "#20"
    assert packets([3, 1, 2, 9]) == "#1-3, #9"
    assert packets(range(1, 20, 2)) == "#1, #3, #5, #7, #9 and 5 more"


def test_a_side_names_the_psn_that_the_other_begins_with() -> None:
    """cm-rping: the first requests of both ends are packets 4 and 6 (tshark infiniband.bth.psn)."""
    (told,) = [each for each in stories(CAPTURES / "cm-rping.pcap") if each.connection.is_reliable]

    assert "A: REQ: to port 7174, QP 146, B begins with PSN 16521143" in flat(told)
    assert "B: REP: QP 94, A begins with PSN 4960639" in flat(told)
