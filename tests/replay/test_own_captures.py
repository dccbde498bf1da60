"""Captures that `ibwire run` writes, replayed by the profile that made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from examples import sampled
from ibwire.capture import open_capture
from ibwire.cli import main
from replay.recording import replayed

SPEC_READS = """
[[connection]]
mtu = 4096
[[wire.faults.a]]
drop = { opcode = "RC_SEND_MIDDLE", nth = 2 }
[[workload]]
opcode = ["SEND", "RDMA_READ", "ATOMIC_CMP_AND_SWP"]
size = 20000
count = 10
"""


def tapped(tmp_path: Path, scenario: str, node: str) -> Path:
    """The capture of a run at one node, or at all."""
    if "\n" in scenario:
        (tmp_path / "own.toml").write_text(scenario, encoding="utf-8")
        scenario = str(tmp_path / "own.toml")
    output = tmp_path / f"{node}.pcapng"
    arguments = ["run", scenario, "--seed", "1", "-o", str(output), "--tap", node]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return output


def reports_at(path: Path, role: str, address: Any) -> Any:
    """Reports of the connections whose emulated end was captured."""
    end = "destination" if role == "responder" else "source"
    result = CliRunner().invoke(
        main, ["respond", "--profile", "spec", "--as", role, "--json", str(path)]
    )
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [each for each in found if each[end] == address]


@pytest.mark.parametrize(
    "scenario",
    sampled([SPEC_READS, "corruption", "credit-starvation", "rnr-storm", "lost-read-response"], 2),
    ids=["reads", "corruption", "credit-starvation", "rnr-storm", "lost-read-response"],
)
def test_the_responder_of_a_run_is_reproduced(tmp_path: Path, scenario: Any) -> None:
    reports = reports_at(tapped(tmp_path, scenario, "b"), "responder", "10.0.0.2")

    assert reports
    assert [each["differences"] for each in reports] == [[] for _ in reports]
    assert all(each["equal"] == each["responses"] for each in reports)


@pytest.mark.parametrize("scenario", [SPEC_READS, "mtu-mismatch"], ids=["reads", "mtu-mismatch"])
def test_the_requester_of_a_run_is_reproduced(tmp_path: Path, scenario: Any) -> None:
    reports = reports_at(tapped(tmp_path, scenario, "a"), "requester", "10.0.0.1")

    assert reports
    assert [each["differences"] for each in reports] == [[] for _ in reports]


def test_an_ack_that_only_gives_credits_is_inferred_as_posted_receives(tmp_path: Path) -> None:
    """Each of the eight connections is refused until its owner posts a receive; an ACK follows."""
    reports = reports_at(tapped(tmp_path, "rnr-storm", "b"), "responder", "10.0.0.2")

    inferred = [{i["what"]: i["count"] for i in each["inferred"]} for each in reports]
    assert [each["receive requests were posted"] for each in inferred] == [1] * 8


def test_one_of_several_interfaces_with_the_same_packets(tmp_path: Path) -> None:
    path = tapped(tmp_path, "psn-wrap", "all")
    both = CliRunner().invoke(main, ["respond", "--profile", "spec", str(path)])
    arguments = ["respond", "--profile", "spec", "--interface", "1", str(path)]
    one = CliRunner().invoke(main, arguments)

    assert (both.exit_code, one.exit_code) == (1, 0)
    assert "choose one with --interface" in both.stderr
    assert one.stderr == ""


def test_an_interface_that_is_not_there_has_no_connections(tmp_path: Path) -> None:
    assert replayed(tapped(tmp_path, "psn-wrap", "all"), interface=7) == []


@pytest.mark.parametrize("role", ["responder", "requester"])
def test_times_of_the_output_never_go_back(tmp_path: Path, role: str) -> None:
    path = tapped(tmp_path, "rnr-storm", "all")
    output = tmp_path / "emulated.pcapng"
    CliRunner().invoke(
        main, ["respond", "--profile", "spec", "--as", role, "-o", str(output), str(path)]
    )

    with open_capture(output) as reader:
        times = [record.time_ns for record in reader.records()]
    assert times
    assert times == sorted(times)
