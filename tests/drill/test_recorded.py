"""A recorded exchange satisfies a script or does not; expected packets are those tshark shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ibwire.capture import open_capture
from ibwire.cli.drill import command

GAP = """// A lost packet draws one NAK, and the requester goes back to it.
section IBA 9.7.5.1.3

           < WRITE_MIDDLE psn
           < WRITE_MIDDLE psn+2 len=1024
for i in 3..6 {
           < WRITE_MIDDLE psn+$i
}
           < WRITE_LAST psn+7 ack
  +0..10ms > ACK psn+1 nak=PSN_SEQUENCE_ERROR msn=?before
           < WRITE_MIDDLE psn+1
for i in 2..6 {
           < WRITE_MIDDLE ?p
}
           < WRITE_LAST psn+7 ack
           > ACK $p+1 msn=$before+1
           poll recv nothing
"""
"""drop-one-middle: PSN 103 of a WRITE from 100 to 109 is lost (frame 19 of `.b` is the NAK)."""


def drill(tmp_path: Path, text: str, capture: Path, *arguments: str) -> Result:
    script = tmp_path / "s.drill"
    script.write_text(text)
    options = ["--capture", str(capture), "--device", "10.77.0.2", *arguments]
    return CliRunner().invoke(command, [str(script), *options])


def test_a_script_fits_from_some_packet_on(tmp_path: Path, captures: Path) -> None:
    result = drill(tmp_path, GAP, captures / "drop-one-middle.b.pcap")

    assert result.stdout == "1 script, 1 case, profile spec: all passed\n"


@pytest.mark.parametrize(
    ("right", "wrong", "expected", "got"),
    [
        (
            "ACK psn+1 nak",
            "ACK psn+2 nak",
            "ACKNOWLEDGE psn=psn+2 (104) msn=?before nak=PSN_SEQUENCE_ERROR "
            "from 3488.000 us to 13488.000 us",
            "ACKNOWLEDGE psn+1 (103) NAK PSN_SEQUENCE_ERROR msn=0 at 5005.000 us",
        ),
        (
            "psn+7 ack\n  +0",
            "psn+7 !ack\n  +0",
            "WRITE_LAST psn=psn+7 (109) ack_req=0",
            "WRITE_LAST psn+7 (109) len=784 ack",
        ),
        (
            "+0..10ms >",
            "+0..1ms >",
            "ACKNOWLEDGE psn=psn+1 (103) msn=?before nak=PSN_SEQUENCE_ERROR "
            "from 3488.000 us to 4488.000 us",
            "nothing",
        ),
        (
            "           poll recv nothing\n",
            "< ACK *\n",
            "ACKNOWLEDGE psn=*",
            "SEND_ONLY psn+8 (110) len=10 ack",
        ),
        (
            "           poll recv nothing\n",
            "< any psn+9\n",
            "any psn=psn+9 (111)",
            "SEND_ONLY psn+8 (110) len=10 ack",
        ),
    ],
)
def test_the_start_with_most_matches_is_reported(
    tmp_path: Path, captures: Path, right: str, wrong: str, expected: str, got: str
) -> None:
    text = GAP.replace(right, wrong)

    result = drill(tmp_path, text, captures / "drop-one-middle.b.pcap")

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[1:3] == [f"  expected  {expected}", f"  got       {got}"]


def test_a_wire_that_lost_nothing_yet_shows_no_gap(tmp_path: Path, captures: Path) -> None:
    """The other end of the same wire: the packet was sent."""
    assert drill(tmp_path, GAP, captures / "drop-one-middle.a.pcap").exit_code == 1


def test_silence_is_that_of_the_device(tmp_path: Path, captures: Path) -> None:
    capture = captures / "drop-one-middle.b.pcap"

    assert drill(tmp_path, "< WRITE_FIRST psn\n+5ms silence\n", capture).exit_code == 0
    assert drill(tmp_path, "< WRITE_FIRST psn\n+6ms silence\n", capture).exit_code == 1


def test_the_device_may_be_the_requester(tmp_path: Path, captures: Path) -> None:
    text = "> WRITE_FIRST psn\n> WRITE_MIDDLE psn+1\n"
    script = tmp_path / "s.drill"
    script.write_text(text)
    capture = str(captures / "drop-one-middle.b.pcap")

    arguments = [str(script), "--capture", capture, "--device", "10.77.0.1"]

    assert CliRunner().invoke(command, arguments).exit_code == 0


def test_what_was_damaged_on_its_way_was_not_received(tmp_path: Path, captures: Path) -> None:
    """corrupt-both-3pc.b, the receiver's side: frame 93 is damaged, frame 124 the NAK of its PSN;
    three acknowledgements of older messages come before that."""
    text = (
        "< WRITE_MIDDLE psn\n< WRITE_MIDDLE psn+2\n"
        "> upto 3 ACK *\n> ACK psn+1 nak=PSN_SEQUENCE_ERROR\n"
    )

    assert drill(tmp_path, text, captures / "corrupt-both-3pc.b.pcap").exit_code == 0


def test_packets_of_a_failure_are_written(tmp_path: Path, captures: Path) -> None:
    text = GAP.replace("ACK psn+1 nak", "ACK psn+2 nak")

    drill(tmp_path, text, captures / "drop-one-middle.b.pcap", "-o", str(tmp_path / "out"))

    assert (tmp_path / "out" / "s.pcapng").exists()


def test_what_was_received_keeps_its_time_also_behind_later_answers(
    tmp_path: Path, captures: Path
) -> None:
    """Frames 18, 19, 27, 20 and 21; `tshark -t r` has 0.313009 s for frame 10, the first."""
    text = "< WRITE_LAST 109 ack\n> ACK 103 nak=*\n> ACK 109\n< WRITE_MIDDLE 103\n< WRITE_LAST *\n"

    result = drill(tmp_path, text, captures / "drop-one-middle.b.pcap", "-o", str(tmp_path / "out"))

    line = result.stdout.split("line\n")[1].splitlines()
    told = [each.split()[:3] for each in line if each.strip() and each[0] != "-"]
    assert told[:-1] == [
        ["3488.000", "1", "<"],
        ["5005.000", "2", ">"],
        ["9468.000", "3", ">"],
        ["7277.000", "4", "<"],
        ["+", "8266.000", "<"],
    ]
    with open_capture(tmp_path / "out" / "s.pcapng") as reader:
        records = list(reader.records())
    assert [record.time_ns for record in records] == [
        3_488_000,
        5_005_000,
        7_277_000,
        8_266_000,
        9_468_000,
    ]
    assert records[3].comments[0] == "received by the device; no line of the script expects it"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--capture", "{captures}/drop-one-middle.b.pcap"], 2, "--capture needs --device"),
        (["--device", "10.77.0.2"], 2, "need --capture"),
        (["--capture", "nowhere.pcap", "--device", "10.77.0.2"], 3, "cannot be opened"),
        (["--capture", "{captures}/README.md", "--device", "10.77.0.2"], 3, "not a capture"),
        (["--capture", "{captures}/rc-pingpong.pcap", "--device", "::9"], 3, "no RoCEv2 packet"),
        (["--capture", "{captures}/rc-pingpong.pcap", "--device", "x"], 2, "is not an IP address"),
        (
            [
                "--capture",
                "{captures}/drop-one-middle.b.pcap",
                "--device",
                "10.77.0.2",
                "--qpn",
                "9",
            ],
            3,
            "no packet for queue pair 0x9 of 10.77.0.2",
        ),
    ],
)
def test_a_missing_option_or_packet_is_reported(
    tmp_path: Path, captures: Path, arguments: list[str], status: int, message: str
) -> None:
    script = tmp_path / "s.drill"
    script.write_text("> any\n")

    result = CliRunner().invoke(
        command, [str(script), *(each.format(captures=captures) for each in arguments)]
    )

    assert result.exit_code == status
    assert message in result.stderr


def test_a_field_of_what_is_sent_only_has_no_place_in_a_recording(
    tmp_path: Path, captures: Path
) -> None:
    result = drill(tmp_path, "< SEND_ONLY psn cut=3\n", captures / "drop-one-middle.b.pcap")

    assert result.exit_code == 2
    assert "s.drill:1:17: cut is not a field of SEND_ONLY" in result.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("post_recv wr_id=1\n", "has no packets, and a recording has nothing else"),
        ("impair > drop\n> any\n", "needs packets that are on their way"),
    ],
)
def test_what_a_recording_cannot_show_is_left_out(
    tmp_path: Path, captures: Path, text: str, reason: str
) -> None:
    result = drill(tmp_path, text, captures / "drop-one-middle.b.pcap")

    assert result.exit_code == 0
    assert result.stdout.startswith(f"skip  {tmp_path}/s.drill: {reason}")


@pytest.mark.parametrize("line", ["b > ACK", "unordered {\nb > ACK\n}"])
def test_scripts_with_several_queue_pairs_are_left_out(
    tmp_path: Path, captures: Path, line: str
) -> None:
    result = drill(tmp_path, f"qp b\n{line}\n", captures / "drop-one-middle.b.pcap")

    assert "needs several queue pairs: a recording has one" in result.stdout
    assert result.exit_code == 0
