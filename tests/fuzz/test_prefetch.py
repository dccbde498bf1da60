"""Processes that work ahead of a run: the result is that of one process."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe, active_children
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from ibwire.cli.fuzz import command
from ibwire.fuzz import prefetch
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Role
from ibwire.fuzz.coverage import Coverage
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.profiles import choices_of
from ibwire.fuzz.prefetch import Prefetcher
from ibwire.fuzz.report import HISTORY, Report
from ibwire.fuzz.run_file import Session, Settings
from ibwire.fuzz.targets.emulator import is_python, target
from ibwire.fuzz.vocabulary.vocabularies import QUEUE_PAIR
from ibwire.rc.profile import PROFILES
from processes import ending

ASKED = "10.77.0.2"
"""The device that receives requests in captures/."""


@dataclass(frozen=True)
class Done:
    """What came of a run, and in which strides."""

    findings: list[Finding]
    report: Report
    coverage: list[tuple[object, int]]
    """Cells in the order in which they were first covered."""
    next_case: int
    strides: list[int]
    """Cases of each advance."""

    @property
    def result(self) -> tuple[object, ...]:
        """All that must be the same."""
        report = self.report
        return (
            self.findings,
            self.coverage,
            self.next_case,
            report.packets,
            report.cases,
            report.seen,
            report.taken,
            report.unstable,
        )


def run(
    settings: Settings,
    jobs: int,
    packets: int,
    disturb: Callable[[], object] = bool,
    resumed: tuple[int, Report] | None = None,
) -> Done:
    """disturb: called after every advance."""
    first, report = resumed or (0, Session.new(settings).report)
    tested = target(settings.target)
    campaign: Campaign = Campaign(
        tested.testbed(settings.role),
        settings.maker(),
        profile=settings.profile,
        first=first,
        report=report,
        # Explaining takes long; only the profile rxe has deviations to explain.
        explains=not is_python(settings.target),
        minimises=False,
    )
    strides = []
    with Prefetcher(settings, jobs) as ahead:
        while report.packets < packets:
            before = report.cases
            ahead.advance(campaign, packets, bool)
            strides.append(report.cases - before)
            disturb()
    coverage: list[tuple[object, int]] = list(report.coverage.counts.items())
    return Done(report.findings, report, coverage, campaign.next_case, strides)


CLEAN = Settings(role=Role.RESPONDER, seed=3)


def test_a_process_looks_for_garbage_as_rarely_as_the_command() -> None:
    before = gc.get_threshold()
    ours, theirs = Pipe()
    ours.close()
    try:
        gc.set_threshold(700, 10, 10)
        prefetch._work(CLEAN, theirs)
        found = gc.get_threshold()[0]
    finally:
        gc.set_threshold(*before)

    assert found == 50_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "packets"),
    [
        ("responder", 4000),
        pytest.param("both", 8000, marks=pytest.mark.slow),
        pytest.param("cm", 16_000, marks=pytest.mark.slow),
    ],
)
def test_where_nothing_is_seen_whole_histories_are_taken_over(
    role: str, packets: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with a module that each process imports when it starts, too."""
    (tmp_path / "multiprocessing.py").write_text("raise SystemExit('another module')")
    monkeypatch.chdir(tmp_path)
    settings = Settings(role=Role(role))
    alone, shared = run(settings, 1, packets), run(settings, 2, packets)

    assert shared.result == alone.result
    assert set(alone.strides) == {1}
    assert HISTORY in shared.strides
    assert shared.strides.count(HISTORY) == (alone.report.cases - 1) // HISTORY


@pytest.mark.slow
def test_the_deviations_of_rxe_are_found_by_the_same_packets() -> None:
    settings = Settings(target="emu:rxe", role=Role.BOTH)
    alone, shared = run(settings, 1, 1000), run(settings, 2, 1000)

    assert len(alone.findings) > 5
    assert shared.result == alone.result


@pytest.mark.parametrize(
    ("fault", "role", "packets"),
    [
        pytest.param("rnr-nak-leaks", "responder", 1500, marks=pytest.mark.slow),
        pytest.param("reserved-syndrome-acknowledges", "requester", 5000, marks=pytest.mark.slow),
        pytest.param("repeated-req-connects-twice", "cm", 500, marks=pytest.mark.slow),
    ],
)
def test_a_mutant_is_found_by_the_same_packets(fault: str, role: str, packets: int) -> None:
    settings = Settings(target=f"py:mutants.target:{fault}", role=Role(role))
    alone, shared = run(settings, 1, packets), run(settings, 2, packets)

    assert alone.findings
    assert shared.result == alone.result


@pytest.mark.slow
def test_a_choice_that_is_taken_over_makes_a_new_plan() -> None:
    """hns: allowed choices only, so histories are whole again when they are taken."""
    settings = Settings(target="emu:hns", role=Role.RESPONDER)
    alone, shared = run(settings, 1, 7000), run(settings, 2, 7000)

    assert alone.report.taken
    assert shared.result == alone.result
    assert HISTORY in shared.strides


def test_finding_of_a_witness_is_not_minimised_when_time_is_up() -> None:
    campaign = Campaign(target("emu:hns").testbed(Role.BOTH), CLEAN.maker())
    ahead = Prefetcher(CLEAN, 2)
    ahead._workers.append(cast(Any, None))  # which has nothing to do before the first history

    found = ahead.advance(campaign, 100_000, lambda: True)

    assert found is not None
    assert campaign.state.search.is_over()


@pytest.mark.slow
def test_a_history_with_another_reference_is_thrown_away() -> None:
    """The case that comes next is the one that was expected, but the reference is hns by now."""
    tested, make = target("emu"), CLEAN.maker()
    campaign = Campaign(tested.testbed(Role.RESPONDER), make)
    taken = Report(Coverage(QUEUE_PAIR.coverage), taken=choices_of(PROFILES["hns"], "spec"))
    with Prefetcher(CLEAN, 2) as ahead:
        ahead.advance(campaign, 100_000, bool)
        other = Campaign(
            tested.testbed(Role.RESPONDER),
            make,
            first=campaign.next_case,
            report=taken,
            explains=False,  # a fingerprint would show that the target is not like hns
        )
        ahead.advance(other, 100_000, bool)

    assert campaign.report.cases == HISTORY
    assert other.report.cases == 1


@pytest.mark.slow
def test_recorded_traffic_is_the_same_in_every_process(captures: Path) -> None:
    settings = Settings(
        role=Role.RESPONDER, capture=str(captures / "rc-pingpong.pcap"), device=ASKED
    )
    alone, shared = run(settings, 1, 4500), run(settings, 2, 4500)

    assert shared.result == alone.result
    assert HISTORY in shared.strides


@pytest.mark.slow
def test_resumed_run_is_the_same_as_with_one_process() -> None:
    """The first part ends amid a case, so that histories begin elsewhere."""
    parts = []
    for jobs in (1, 2):
        first = run(CLEAN, jobs, 321)
        parts.append(run(CLEAN, jobs, 4567, resumed=(first.next_case, first.report)))

    assert parts[0].result == parts[1].result
    assert HISTORY in parts[1].strides


@pytest.mark.slow
def test_a_budget_that_a_history_spends_exactly_ends_in_its_last_case() -> None:
    """What follows the last packet of a case is not carried out then."""
    campaign = Campaign(target("emu").testbed(Role.RESPONDER), CLEAN.maker())
    history = campaign.prefetch(bool)
    assert history is not None

    alone, shared = run(CLEAN, 1, history.packets), run(CLEAN, 2, history.packets)

    assert shared.result == alone.result
    assert shared.strides == [1] * HISTORY


# Processes that fail.


@pytest.mark.slow
@pytest.mark.parametrize("how_many", [1, 2])
def test_a_process_that_is_killed_changes_nothing(how_many: int) -> None:
    victims = [how_many]

    def disturb() -> None:
        while victims[0]:
            victims[0] -= 1
            active_children()[0].kill()

    alone, shared = run(CLEAN, 1, 7000), run(CLEAN, 2, 7000, disturb)

    assert shared.result == alone.result
    assert 1 in shared.strides[:-1]


@pytest.mark.slow
def test_silent_process_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibwire.fuzz.prefetch.MOST_POLLS", 2)
    victims = [1]

    def disturb() -> None:
        while victims[0]:
            victims[0] -= 1
            for child in active_children():
                assert child.pid is not None
                os.kill(child.pid, signal.SIGSTOP)

    alone, shared = run(CLEAN, 1, 4000), run(CLEAN, 2, 4000, disturb)

    assert shared.result == alone.result
    assert not active_children()


@pytest.mark.slow
def test_ctrl_c_is_not_for_the_processes() -> None:
    def disturb() -> None:
        for child in active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGINT)

    shared = run(CLEAN, 2, 7000, disturb)

    assert shared.strides.count(HISTORY) == (shared.report.cases - 1) // HISTORY > 1


def test_no_wait_after_time_is_up() -> None:
    campaign = Campaign(target("emu").testbed(Role.RESPONDER), CLEAN.maker())
    with Prefetcher(CLEAN, 2) as ahead:
        assert ahead.advance(campaign, 10_000, lambda: True) is None

    assert campaign.report.cases == 1
    assert not active_children()


@pytest.mark.slow
def test_failure_of_the_reference_is_reported_by_the_campaign(tmp_path: Path) -> None:
    """The capture is gone: the other processes end silently, the campaign has read it."""
    gone = Settings(role=Role.RESPONDER, capture=str(tmp_path / "gone.pcap"), device=ASKED)
    campaign = Campaign(target("emu").testbed(Role.RESPONDER), CLEAN.maker())
    with Prefetcher(gone, 2) as ahead:
        while campaign.report.packets < 500:
            ahead.advance(campaign, 500, bool)

    assert campaign.report.packets == 500


# The command.


@pytest.mark.slow
def test_run_reports_and_saves_the_same(tmp_path: Path) -> None:
    told, kept = [], []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        arguments = ["--target", "emu:rxe", "--budget", "100", "-o", str(out), "--jobs", jobs]
        result = CliRunner().invoke(command, [*arguments, "--json"])
        *findings, summary = (json.loads(line) for line in result.stdout.splitlines())
        told.append((result.exit_code, findings, {**summary, "seconds": 0}))
        files = sorted(path for path in out.rglob("*") if path.suffix != ".txt" and path.is_file())
        kept.append({str(path.relative_to(out)): path.read_bytes() for path in files})

    assert told[0] == told[1]
    assert kept[0] == kept[1]
    assert "F0003/case.drill" in kept[0]


def test_a_device_on_a_link_has_no_processes_that_work_ahead() -> None:
    link = ["--dev", "lo", "--peer", "192.0.2.7", "--jobs", "2"]
    result = CliRunner().invoke(command, link)

    assert result.exit_code == 2
    assert "--jobs: only without --dev, for an emulator" in result.stderr


@pytest.mark.slow
def test_ctrl_c_leaves_no_processes_and_no_tracebacks(tmp_path: Path) -> None:
    """As a terminal does: every process of the group gets the signal.

    A process that still ran would keep its end of stderr open, and there would be no end to it.
    """
    arguments = ["--target", "emu:rxe", "--budget", "1h", "--jobs", "2", "-o", tmp_path / "out"]
    # A job in the background of a shell ignores it, and so would all that it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with ending() as processes:
        command = [sys.executable, "-m", "ibwire", "fuzz", *map(str, arguments)]
        run = processes.start(command, start_new_session=True)
        signal.signal(signal.SIGINT, before)
        assert run.stdout is not None
        found = run.stdout.readline()
        os.killpg(run.pid, signal.SIGINT)
        _, told = run.communicate(timeout=60)

    assert found.startswith("F0001")
    assert told == "error: interrupted; the findings so far are saved\n"
    assert run.returncode == 130
