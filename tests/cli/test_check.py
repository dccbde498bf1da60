"""`ibwire check`: what it prints, and how it ends."""

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from capture.handmade import NANOSECONDS, pcap_header, pcap_record
from connections.talk import Talk
from ibwire.cli.check import command
from ibwire.cli.run import command as run
from ibwire.rules.catalogue import RULES
from rules.broken_rules import CONVERSATIONS


def check(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def write(path: Path, frames: list[tuple[int, bytes]]) -> Path:
    stream = io.BytesIO(pcap_header(magic=NANOSECONDS))
    stream.seek(0, io.SEEK_END)
    for time, frame in frames:
        stream.write(pcap_record(frame, time // 1_000_000_000, time % 1_000_000_000))
    path.write_bytes(stream.getvalue())
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """One NAK too many."""
    talk = Talk()
    dict(CONVERSATIONS)["naks.once"](talk, True)
    return write(tmp_path / "broken.pcap", talk.frames)


def test_packets_that_were_captured_at_two_interfaces_are_counted_in_a_warning(
    tmp_path: Path,
) -> None:
    # a sends 14 requests, of which 1 is dropped; b sends a NAK and an ACK.
    both = tmp_path / "both.pcapng"
    CliRunner().invoke(run, ["one-lost-packet", "-o", str(both), "--tap", "a", "--tap", "b"])
    assert "15 packets were captured again at another interface" in check(both).stderr


def test_a_finding_is_one_line_with_rule_place_packets_and_section(broken: Path) -> None:
    result = check(broken)

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "error    naks.once  connection 1, 10.0.0.2 > 10.0.0.1 qp=0x000011: PSN 1 NAKed again "
        "(first NAK: packet 5), although it was not sent in between; packet 6  "
        "[IBA 9.7.5.1, 9.9.3; docs/reference/transport.md#psn-ahead]",
        f"{broken}: 12 RDMA packets: 1 error, 0 warnings, 0 notes",
    ]


def test_json_has_one_object_a_finding(broken: Path) -> None:
    lines = check("--json", broken).stdout.splitlines()

    assert [json.loads(line) for line in lines] == [
        {
            "rule": "naks.once",
            "severity": "error",
            "source": str(broken),
            "connection": 1,
            "direction": 1,
            "src": "10.0.0.2",
            "dst": "10.0.0.1",
            "dst_qpn": 0x11,
            "count": 1,
            "packets": [6],
            "text": "PSN 1 NAKed again (first NAK: packet 5), although it was not sent in between",
            "sentence": "A missing packet is NAKed only once until it arrives.",
            "section": "IBA 9.7.5.1, 9.9.3",
            "habits": [],
        }
    ]


def test_a_note_names_the_implementation_whose_habit_it_is(captures: Path) -> None:
    result = check(captures / "rnr-multi-packet.pcap")

    assert result.exit_code == 0
    habit = next(line for line in result.stdout.splitlines() if "naks.after-rnr" in line)
    assert habit.startswith("note ")
    assert "9 packets: 14, 28, " in habit
    assert "a habit of rxe" in habit


def test_a_profile_hides_its_habits(captures: Path) -> None:
    result = check("--profile", "rxe", captures / "rnr-multi-packet.pcap")

    assert len(result.stdout.splitlines()) == 1
    assert result.stdout.endswith("100 RDMA packets: 0 errors, 0 warnings, 0 notes\n")


def test_the_profile_of_another_implementation_makes_them_errors(captures: Path) -> None:
    assert check("--profile", "connectx", captures / "rnr-multi-packet.pcap").exit_code == 1


@pytest.mark.parametrize(
    ("level", "status"), [("note", 1), ("warning", 0), ("error", 0), ("never", 0)]
)
def test_notes_fail_only_when_asked_for(captures: Path, level: str, status: int) -> None:
    result = check("--fail-on", level, captures / "rnr-multi-packet.pcap")

    assert result.exit_code == status


def test_never_means_never(broken: Path) -> None:
    assert check("--fail-on", "never", broken).exit_code == 0


def test_only_and_ignore_take_rules_and_families(broken: Path) -> None:
    assert check("--only", "naks.once", broken).exit_code == 1
    assert check("--only", "naks", broken).exit_code == 1
    assert check("--only", "reads", broken).exit_code == 0
    assert check("--ignore", "naks", broken).exit_code == 0
    assert check("--only", "naks", "--ignore", "naks.once", broken).exit_code == 0


def test_an_unknown_rule_is_wrong_usage(broken: Path) -> None:
    result = check("--only", "naks.twice", broken)

    assert result.exit_code == 2
    assert "no rule or family 'naks.twice'" in result.stderr


def test_rules_are_listed_without_a_capture() -> None:
    result = check("--rules")

    assert result.exit_code == 0
    assert all(rule.id in result.stdout for rule in RULES.values())


def test_a_note_at_many_places_is_one_line(captures: Path) -> None:
    """16 connections of rxe: 32 directions with MigReq 0."""
    lines = check("--profile", "spec", captures / "srq-pingpong.pcap").stdout.splitlines()

    assert len(lines) == 2
    assert "32 directions" in lines[0]


def test_a_capture_without_rdma_says_so(tmp_path: Path) -> None:
    result = check(write(tmp_path / "tcp.pcap", [(0, bytes(60))]))

    assert result.exit_code == 0
    assert result.stdout.endswith("no RDMA packet among 1 frame\n")


def test_several_captures_are_judged_each_by_itself(broken: Path, captures: Path) -> None:
    lines = check(captures / "fmt-pcap-nano.pcap", broken).stdout.splitlines()

    assert lines[-1] == "broken.pcap: 12 RDMA packets: 1 error, 0 warnings, 0 notes"
    assert any(line.startswith("fmt-pcap-nano.pcap: ") for line in lines)


def test_a_damaged_file_is_judged_up_to_the_damage(broken: Path) -> None:
    broken.write_bytes(broken.read_bytes()[:-7])

    result = check(broken)

    assert result.exit_code == 3
    assert "naks.once" in result.stdout
    assert str(broken) in result.stderr


CLEAN = ("rcx-all-ops.pcap", "cm-rping.pcap", "uc-write-bw.pcap", "ud-pingpong.pcap")


@pytest.mark.parametrize("name", CLEAN)
def test_clean_traffic_yields_nothing(captures: Path, name: str) -> None:
    """What rxe has in every packet (MigReq 0, AckReq on QP1) is not worth a word by itself."""
    result = check("--fail-on", "note", captures / name)

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1


def test_traits_of_an_implementation_are_notes_for_the_specification(captures: Path) -> None:
    result = check("--profile", "spec", captures / "cm-rping.pcap")

    assert "integrity.mig-req" in result.stdout
    assert "psn_acks.ack-req-mad" in result.stdout
    assert result.exit_code == 0
