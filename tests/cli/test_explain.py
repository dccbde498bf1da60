"""`ibwire explain`: which connection it tells, in which form, and what it says of bad input."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from connections.handshake_frames import Talk
from ibwire.capture import PcapWriter, open_capture
from ibwire.cli import main
from ibwire.cli.explain import command

MPA_REQUEST = b"MPA ID Req Frame" + bytes([0x40, 1, 0, 0])
MPA_REPLY = b"MPA ID Rep Frame" + bytes([0x40, 1, 0, 0])


def explain(*arguments: object, status: int = 0, **options: Any) -> Result:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(command, list(map(str, arguments)), **options)
    assert result.exit_code == status, result.output
    return result


def heads(text: str) -> list[int]:
    """The connections that have a story, by number."""
    return [int(number) for number in re.findall(r", connection (\d+): ", text)]


def test_story_ends_with_a_verdict(captures: Path) -> None:
    text = explain(captures / "drop-one-middle.b.pcap").stdout

    assert heads(text) == [1]
    assert text.split("\nVerdict: ")[1].startswith(
        "recovered. The network lost 1 packet from A to B"
    )


def test_what_cannot_be_read_twice_says_what_to_do(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    said = [explain(each, status=3).stderr for each in (tmp_path, pipe)]

    assert "cannot be opened: is a directory" in said[0]
    assert "pipe: cannot be read twice, as is needed here: save it" in said[1]


def test_pipes_get_no_colours(captures: Path) -> None:
    assert "\x1b" not in explain(captures / "drop-one-middle.b.pcap").stdout


def test_colours_change_no_word(captures: Path) -> None:
    plain = explain(captures / "drop-one-middle.b.pcap").stdout

    coloured = explain(captures / "drop-one-middle.b.pcap", color=True).stdout

    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_worst_connection_is_explained_and_the_others_are_listed(captures: Path) -> None:
    text = explain(captures / "probe-odd-frames.pcap").stdout

    (told,) = heads(text)
    assert "refused A's request: invalid request" in " ".join(text.split())
    assert "Other connections (--connection N explains one of them):" in text
    assert not re.search(rf"^ *{told}  RC", text, re.MULTILINE)
    assert re.search(r"^and \d+ more \(--all lists them\)$", text, re.MULTILINE)


# ibv_rc_pingpong said: local QPN 0x00006a (106), remote 0x000036 (54).


@pytest.mark.parametrize("qpn", ["106", "0x6a", "54", "0x000036"])
def test_queue_pair_of_either_end_finds_the_connection(captures: Path, qpn: str) -> None:
    text = explain("--qpn", qpn, captures / "rc-pingpong.pcap").stdout

    assert heads(text) == [1]
    assert "QP 106 (0x00006a)" in text
    assert "QP 54 (0x000036)" in text


def test_all_connections_of_a_queue_pair_are_told(captures: Path) -> None:
    text = explain("--qpn", 1, captures / "cm-rping.pcap").stdout

    every = explain("--connection", heads(text)[0], captures / "cm-rping.pcap").stdout
    assert len(heads(text)) >= 1
    assert every.split("\nVerdict")[0] in text


def test_connection_is_chosen_by_its_number(captures: Path) -> None:
    assert heads(explain("--connection", 3, captures / "probe-odd-frames.pcap").stdout) == [3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--qpn", "7"], "no packet of 7; there are 54, 106"),
        (["--qpn", "x"], "'x' is not a number, decimal or with 0x"),
        (["--qpn", str(1 << 24)], "does not fit 24 bits"),
        (["--connection", "2"], "no connection 2, there is 1"),
        (["--connection", "0"], "0 is not in the range"),
    ],
)
def test_wrong_choice_is_wrong_usage(captures: Path, arguments: list[str], said: str) -> None:
    result = explain(*arguments, captures / "rc-pingpong.pcap", status=2)

    assert said in " ".join(result.stderr.split())


def test_json_has_one_event_a_line_and_the_connection_in_the_last(captures: Path) -> None:
    """PSN 103 is lost on the link (drop-one-middle.wire.json), and 7 packets follow the NAK."""
    lines = explain("--json", captures / "drop-one-middle.b.pcap").stdout.splitlines()

    *events, connection = [json.loads(line) for line in lines]
    assert [event["kind"] for event in events] == ["lost", "nak", "retransmission"]
    assert [event["number"] for event in events] == [13, 19, 20]
    assert [event["psn"] for event in events] == [103, 103, 103]
    assert {event["incident"] for event in events} == {1}
    assert (connection["kind"], connection["status"]) == ("connection", "recovered")
    (incident,) = connection["incidents"]
    assert (incident["outcome"], incident["is_open"]) == ("recovered", False)
    assert (incident["first_number"], incident["retransmitted_packets"]) == (13, 7)
    (cause,) = incident["causes"]
    assert (cause["name"], cause["possible"]) == ("lost_before", ["lost_before"])
    assert (cause["count"], cause["frames"]) == (1, [13])
    assert cause["evidence"].startswith("A's request with PSN 103 did not arrive here")


def test_connection_management_alone_is_told_as_well(captures: Path) -> None:
    assert heads(explain(captures / "cm-reject.pcap").stdout)


def test_capture_without_rdma_says_so(captures: Path, tmp_path: Path) -> None:
    data = (captures / "rc-pingpong.pcap").read_bytes()
    size = 24 + 16 + int.from_bytes(data[32:36], "little")
    path = tmp_path / "arp.pcap"
    path.write_bytes(data[:size])

    assert explain(path).stdout == (
        "arp.pcap: no RDMA: none of 1 frames has a transport header of InfiniBand or RoCE.\n"
    )


@pytest.mark.parametrize(
    ("frames", "end"),
    [
        (Talk(port=4471).begin().say(0, MPA_REQUEST), "TCP port 4471 of 10.0.0.2"),
        (Talk(port=4471).say(1, MPA_REPLY), "TCP port 4471 of 10.0.0.2"),
        (Talk(port=4471).begin().say(0, b" " + MPA_REQUEST), ""),
        (Talk(port=4471).begin().say(0, MPA_REQUEST[:-1]), ""),
    ],
    ids=["request", "reply", "inside", "too short"],
)
def test_iwarp_is_named_if_it_is_certain(frames: Talk, end: str, tmp_path: Path) -> None:
    """RFC 5044, 7.1: an MPA request or reply frame has 20 bytes, and begins with its key."""
    path = tmp_path / "tcp.pcap"
    with PcapWriter(path) as writer:
        for number, frame in enumerate(frames.frames):
            writer.write(frame, number * 1000)

    told = explain(path).stdout

    iwarp = f"{end} carries iWARP (it begins with an MPA frame), which ibwire does not read.\n"
    assert told.endswith(f"; {iwarp}" if end else "of InfiniBand or RoCE.\n")


def test_damaged_capture_is_told_up_to_the_damage(captures: Path, tmp_path: Path) -> None:
    data = (captures / "rc-pingpong.pcap").read_bytes()
    path = tmp_path / "cut.pcap"
    path.write_bytes(data[: len(data) // 2])

    result = explain(path, status=3)

    assert heads(result.stdout) == [1]
    assert result.stderr.count("cut.pcap") == 1


def test_file_that_is_no_capture_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "text.pcap"
    path.write_text("this is no capture")

    result = explain(path, status=3)

    assert result.stdout == ""
    assert "text.pcap" in result.stderr


def test_missing_file_is_unreadable(tmp_path: Path) -> None:
    assert "none.pcap" in explain(tmp_path / "none.pcap", status=3).stderr


def test_standard_input_is_told_like_a_file(captures: Path) -> None:
    path = captures / "drop-one-middle.b.pcap"

    text = explain("-", input=path.read_bytes()).stdout

    assert text.replace("standard input", path.name) == explain(path).stdout


def test_packets_with_cut_headers_are_warned_of(captures: Path, tmp_path: Path) -> None:
    """tshark: 84 packets of chaos.b.pcap have headers beyond byte 60."""
    path = tmp_path / "short.pcap"
    with open_capture(captures / "chaos.b.pcap") as reader, PcapWriter(path) as writer:
        for record in reader.records():
            writer.write(record.data[:60], record.time_ns, record.wire_len)

    found = explain(path)
    assert "warning: 84 packets were cut" in found.stderr
    assert "The network lost up to 21 packets" in found.stdout
    assert "or left out here because its headers are cut" in " ".join(found.stdout.split())
    assert "Up to 17 packets from A to B lost before this point" in found.stdout


def test_frames_that_are_all_too_short_are_named(captures: Path, tmp_path: Path) -> None:
    """The BTH begins at byte 42: nothing of it is in 40 bytes."""
    path = tmp_path / "short.pcap"
    with open_capture(captures / "drop-one-ack.b.pcap") as reader, PcapWriter(path) as writer:
        records = list(reader.records())
        for record in records:
            writer.write(record.data[:40], record.time_ns, record.wire_len)

    said = f"{len(records)} of them are cut, after 40 bytes at most: capture more of each frame"
    assert said in explain(path).stdout
    for name in ("flows", "check"):
        result = CliRunner().invoke(main, [name, str(path)])
        assert said in result.output
