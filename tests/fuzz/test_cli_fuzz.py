"""`ibwire fuzz`: what it prints, what it keeps, and how it ends."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from shutil import rmtree
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner, Result

from each_case import each_case
from ibwire.cli import main
from ibwire.cli.fuzz import command
from ibwire.cli.fuzzing import Budget, BudgetType
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Role
from ibwire.fuzz.coverage import Coverage
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.witness import Fingerprint, fingerprint
from ibwire.fuzz.report import Report
from ibwire.fuzz.run_file import load
from ibwire.fuzz.saved import parse_case
from ibwire.fuzz.targets.emulator import target
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.fuzz.watchdog import watchdog
from mutants.engine import copied

PLANTED = "py:mutants.target:icrc-ignored"
"""A device with a fault that no choice describes."""


@pytest.fixture(scope="module", autouse=True)
def _one_copy_of_each_device() -> Iterator[None]:
    """Modules with a planted fault are copied once, not for each command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mutants.target.copied", cache(copied))
        yield


def fuzz(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["fuzz", *map(str, arguments)])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run against rxe."""
    directory = tmp_path_factory.mktemp("fuzz") / "run"
    result = fuzz("--target", "emu:hns", "--budget", "200", "-o", directory)
    assert result.exit_code == 1, result.output
    return directory


# Targets.

OWN = """
from dataclasses import replace

from ibwire.fuzz.targets.emulator import emulator
from ibwire.rc.profile import SPEC


def open_target(name, argument):
    times = list(SPEC.rnr_timer_us)
    times[12] = int(argument)
    return emulator(name, replace(SPEC, rnr_timer_us=tuple(times)))
"""

RNR_WAIT = """
  post_send RDMA_WRITE wr_id=1 len=64
  > WRITE_ONLY psn len=64
  < ACKNOWLEDGE psn rnr=12
  +640us > WRITE_ONLY psn len=64
"""
"""A script that passes if the wait of timer code 12 is 0.64 ms (IBA 9.7.5.2.8, table 45)."""


@pytest.mark.parametrize(("wait", "passes"), [(640, True), (64, False)])
def test_own_target_is_found_in_the_current_directory_and_has_its_own_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: int, passes: bool
) -> None:
    (tmp_path / "own_rnr_timer.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])

    tested = target(f"py:own_rnr_timer:{wait}")

    assert tested.fulfils(RNR_WAIT) is passes


# Runs.


def test_nothing_found_is_a_summary_and_status_0() -> None:
    result = fuzz("--budget", "200", "--seed", 3)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("200 packets, ")
    assert lines[0].endswith(" seed 3")
    assert lines[1:4] == [
        "target    emu",
        "reference profile spec",
        "findings  none",
    ]
    assert lines[4].startswith("coverage  ")


def test_run_may_be_written_or_omitted() -> None:
    first, second = fuzz("run", "--budget", "60"), fuzz("--budget", "60")

    assert first.stdout.splitlines()[1:] == second.stdout.splitlines()[1:]


def test_a_finding_has_rule_steps_and_what_came() -> None:
    result = fuzz("--target", "emu:hns", "--stop-after", 1)

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("F0001  ")
    assert lines[1].startswith("  rule      ")
    assert lines[2] == "  found     by a case of the fingerprint"
    assert any(line.startswith("       1    ") for line in lines)
    assert any(line.startswith("  expected  ") for line in lines)
    assert any(line.startswith("  got       ") for line in lines)
    assert any(line.startswith("findings  1") for line in lines)


@pytest.mark.slow
def test_json_has_an_object_a_finding_and_one_for_the_run() -> None:
    result = fuzz("--target", "emu:rxe", "--budget", "150", "--json")
    *findings, run = map(json.loads, result.stdout.splitlines())

    assert result.exit_code == 1
    assert [each["kind"] for each in findings] == ["finding"] * len(findings)
    assert findings[0]["number"] == 1
    assert findings[0]["case"]["ibwire-fuzz-case"] == 1
    assert findings[0]["steps"]
    assert (run["kind"], run["packets"], run["target"]) == ("run", 150, "emu:rxe")
    assert list(run["findings"]) == [each["bucket"] for each in findings]


@pytest.mark.slow
def test_the_same_seed_finds_the_same() -> None:
    arguments = ("--target", "emu:rxe", "--budget", "150", "--json", "--seed", 5)
    first, second = (fuzz(*arguments).stdout.splitlines()[:-1] for _ in range(2))

    assert first
    assert first == second


@pytest.mark.slow
def test_a_mutant_is_found() -> None:
    result = fuzz("--target", "py:mutants.target:foreign-domain-open", "--stop-after", 1)

    assert result.exit_code == 1
    assert "(an R_Key of another protection domain)" in result.stdout
    assert "#remote-key" in result.stdout


@pytest.mark.slow
def test_a_connection_manager_may_be_attacked(tmp_path: Path) -> None:
    mutant = ("--target", "py:mutants.target:repeated-req-connects-twice")
    arguments = ("--role", "cm", *mutant, "--stop-after", 1, "-o", tmp_path / "out")
    result = fuzz(*arguments)

    assert result.exit_code == 1
    assert "< REQ #" in result.stdout
    assert fuzz("replay", tmp_path / "out" / "F0001", *mutant).exit_code == 1
    assert fuzz("replay", tmp_path / "out" / "F0001", "--target", "emu").exit_code == 0
    assert fuzz("cover", tmp_path / "out").stdout.startswith(" " * 8)


@each_case(
    ("arguments", "reason"),
    [
        ("--target emu:windows", "target 'emu:windows', not emu, one of emu:spec"),
        ("--role responder --ops reply", "--ops: 'reply' is not one of parser"),
        ("--target eth0", "target 'eth0', not emu, one of emu:spec"),
        ("--ops psn,all", "--ops: 'all' is not one of parser, length"),
        ("--role cm --ops psn", "--ops: 'psn' is not one of order"),
        ("--ops=", "'': a name is missing"),
        ("--ops psn,", "'psn,': a name is missing"),
        ("--seed-capture README.md", "--seed-capture needs --device, the address of the device"),
        ("--device 10.0.0.2", "--device is an address in a capture: give --seed-capture"),
        ("--qpn 5", "--qpn is of a recorded exchange: give --seed-capture"),
        ("--budget 3x", "'3x' is not a budget such as 100kpkt, 10min or 1Mpkt,1h"),
        ("--budget 0", "0 is nothing"),
        ("--budget 1k,2k", "1k,2k says the same thing twice"),
        ("--target py:nowhere:x", "target 'py:nowhere:x': No module named 'nowhere'"),
        ("--target py:", "target 'py:': Empty module name"),
        ("--target py:json:x", "target 'py:json:x': module 'json' has no attribute 'open_target'"),
        ("--target py:mutants.target:nothing", "no mutant 'nothing'"),
        (
            "--target py:mutants.target:nowhere.toml:x",
            "target 'py:mutants.target:nowhere.toml:x': nowhere.toml: No such file or directory",
        ),
        ("--rate 10 --service 7174", "--rate, --service: --dev and --peer are"),
        ("--default-route-too", "--default-route-too: --dev and --peer are"),
        ("replay . --tolerance 5", "--tolerance: --dev and --peer are required"),
        ("min . --restart ./again", "--restart: --dev and --peer are required"),
        (
            "--dev lo --peer 10.0.0.2 --token t --hardware-timestamps",
            "--hardware-timestamps requires --tap",
        ),
        ("--dev lo", "--dev and --peer are required"),
        ("--dev lo --peer 10.0.0.2 --target emu", "--target: only without --dev"),
        ("min . --dev lo --peer 10.0.0.2 --target emu", "--target: only without --dev"),
        ("--dev lo --peer 10.0.0.2 --service 9 --port 1", "--host, --port: only without --service"),
        ("--target live:10.0.0.2", "'live:10.0.0.2' is on a link: give --dev and --peer"),
        ("--resume nowhere", "'nowhere' does not exist"),
        ("nonsense", "No such command 'nonsense'"),
    ],
)
def test_what_cannot_be_is_wrong_usage(arguments: str, reason: str) -> None:
    result = fuzz(*arguments.split())

    assert result.exit_code == 2
    assert reason in result.output.replace("\n", " ")


@each_case(
    ("text", "budget"),
    [
        ("20000", Budget(20_000, None)),
        ("100kpkt", Budget(100_000, None)),
        ("1.5M", Budget(1_500_000, None)),
        ("90s", Budget(None, 90)),
        ("10min", Budget(None, 600)),
        ("1Mpkt, 2h", Budget(1_000_000, 7200)),
    ],
)
def test_a_budget_is_packets_a_time_or_both(text: str, budget: Budget) -> None:
    assert BudgetType().convert(text, None, None) == budget


def test_time_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by a second whenever it is read, before each case."""
    seconds = iter(range(1000))
    monkeypatch.setattr("ibwire.cli.fuzz_run.time.monotonic", lambda: float(next(seconds)))

    result = fuzz("--budget", "5s", "--json")

    assert json.loads(result.stdout)["cases"] == 4


def test_what_the_fingerprint_shows_is_reported_when_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clock that stands still until the fingerprint is taken."""
    now = [0.0]

    def fingerprint_for_hours(*arguments: object) -> Fingerprint:
        now[0] = 10_000.0
        return fingerprint(*arguments)

    monkeypatch.setattr("ibwire.cli.fuzz_run.time.monotonic", lambda: now[0])
    monkeypatch.setattr("ibwire.fuzz.campaign.fingerprint", fingerprint_for_hours)
    result = fuzz("--target", "emu:hns", "--budget", "1h", "--json")

    *found, run = map(json.loads, result.stdout.splitlines())
    assert len(found) > 1
    assert all(each["origin"].startswith("witness of ") for each in found)
    assert run["cases"] <= 1


def test_time_ends_the_search_for_a_shorter_case_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], []

    def searching(
        case: Case, shows: object, *, is_over: Callable[[], bool], is_enough: object
    ) -> Case:
        told.append(is_over())
        now[0] = 100.0
        told.append(is_over())
        return case

    monkeypatch.setattr("ibwire.cli.fuzz_run.time.monotonic", lambda: now[0])
    monkeypatch.setattr("ibwire.fuzz.targets.emulator.minimise", searching)
    result = fuzz("--target", PLANTED, "--budget", "100s", "--json")

    assert told == [False, True]
    assert len(json.loads(result.stdout.splitlines()[-1])["findings"]) == 1


# Directories.


def test_a_run_keeps_what_it_finds(done: Path) -> None:
    index = json.loads((done / "run.json").read_text())

    assert index["target"] == "emu:hns"
    assert [each["number"] for each in index["findings"]] == [
        int(path.name[1:]) for path in sorted(done.glob("F*"))
    ]
    assert {path.name for path in (done / "F0001").iterdir()} >= {
        "case.drill",
        "original.drill",
        "case.pcapng",
        "report.txt",
    }


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = fuzz("-o", tmp_path, "--budget", "100")

    assert result.exit_code == 2
    assert "is not empty: name a new one, or --resume it" in result.output.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_that_cannot_be_kept_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = fuzz("-o", tmp_path / "file" / "out", "--budget", "100")

    assert result.exit_code == 1
    assert "not a directory" in result.output
    assert "packets" not in result.output


@pytest.mark.slow
def test_resumed_run_reports_nothing_twice(tmp_path: Path) -> None:
    fuzz("--target", "emu:rxe", "--budget", "200", "-o", tmp_path / "out")
    before = json.loads((tmp_path / "out" / "run.json").read_text())
    result = fuzz("--resume", tmp_path / "out", "--budget", "300", "--json")
    *findings, run = map(json.loads, result.stdout.splitlines())
    after = json.loads((tmp_path / "out" / "run.json").read_text())

    assert result.exit_code == 1
    assert (before["packets"], run["packets"], after["packets"]) == (200, 500, 500)
    told = {each["bucket"] for each in before["findings"]}
    assert told
    assert not told & {each["bucket"] for each in findings}
    assert after["next_case"] > before["next_case"]
    assert len(after["findings"]) == len(before["findings"]) + len(findings)


def test_resumed_run_keeps_its_settings(done: Path) -> None:
    result = fuzz("--resume", done, "--seed", 9)

    assert result.exit_code == 2
    assert f"--seed 9: the run in {done} has 0" in result.output.replace("\n", " ")


def test_known_findings_are_not_reported_and_new_ones_are(tmp_path: Path) -> None:
    """hns has two known deviations; the fault of the other device is a new one."""
    known = tmp_path / "known"
    first = fuzz("--target", "emu:hns", "--budget", 1, "-o", known)
    again = fuzz("--target", "emu:hns", "--budget", 1, "--known", known / "run.json", "--json")
    other = fuzz("--target", PLANTED, "--stop-after", 1, "--known", known, "--json")

    assert first.exit_code == 1
    assert again.exit_code == 0, again.output
    assert sorted(json.loads(again.stdout)["known"].values()) == [1, 1]
    assert other.exit_code == 1
    assert "ICRC" in json.loads(other.stdout.splitlines()[0])["bucket"]


def test_known_findings_that_are_not_met_are_named(tmp_path: Path) -> None:
    known = tmp_path / "known"
    first = fuzz("--target", "emu:hns", "--budget", 1, "-o", known)
    names = [line for line in first.stdout.splitlines() if line.startswith("F000")]

    again = fuzz("--target", "emu", "--budget", 1, "--known", known)
    met = fuzz("--target", "emu:hns", "--budget", 1, "--known", known)

    lines = again.stdout.splitlines()
    at = lines.index("known     0 of 2, seen 0 times")
    assert lines[at + 1].split()[:2] == ["not", "met"]
    listed = [" ".join(line.split()) for line in lines[at + 1 : at + 3]]
    assert listed == [f"not met {' '.join(names[0].split())}", " ".join(names[1].split())]
    assert "repaired" in lines[at + 3]
    assert "known     2 of 2, seen 2 times" in met.stdout
    assert "not met" not in met.stdout


def test_known_causes_beside_the_group_are_known_too() -> None:
    report = Report(Coverage(vocabulary_for(Role.BOTH).coverage))
    report.accept("a READ response: aeth.msn", ["the MSN of a READ"])

    assert report.is_accepted(["another", "the MSN of a READ"])
    assert not report.is_accepted(["another"])
    assert report.accepted == {"a READ response: aeth.msn": 1}


def test_known_findings_are_those_of_a_run(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty", tmp_path / "text"
    empty.mkdir()
    text.write_text("F0001")

    for place, reason in (
        (empty, "empty: no run.json; expected the directory of a run of ibwire fuzz"),
        (text, "text: no JSON"),
    ):
        result = fuzz("--budget", 1, "--known", place)
        assert result.exit_code == 2
        assert reason in result.output.replace("\n", " ")


def test_sarif_has_each_finding_with_its_rule(tmp_path: Path) -> None:
    path = tmp_path / "found.sarif"
    fuzz("--target", "emu:hns", "--budget", 1, "--sarif", path)
    run = json.loads(path.read_text())["runs"][0]

    assert {each["ruleId"] for each in run["results"]} == {"reserved-bits", "limited-message"}
    rules = run["tool"]["driver"]["rules"]
    assert len(rules) == 2
    assert all(each["level"] == "error" for each in run["results"])
    assert all(
        re.search(r"^F\d{4} .*: .*; expected: .*; got: .", each["message"]["text"])
        for each in run["results"]
    )
    assert {each["shortDescription"]["text"].partition(" (IBA ")[0] for each in rules} == {
        "reserved bits",
        "limited message",
    }


def test_a_damaged_run_does_not_go_on(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"ibwire-fuzz-run": 3}')
    result = fuzz("--resume", tmp_path)

    assert result.exit_code == 2
    assert f"{tmp_path}/run.json: target: missing" in result.output


@pytest.mark.slow
def test_junit_has_the_findings_of_the_whole_run(tmp_path: Path) -> None:
    fuzz("--target", "emu:rxe", "--budget", "60", "-o", tmp_path / "out")
    arguments = ("--resume", tmp_path / "out", "--budget", "60", "--junit", tmp_path / "out.xml")
    fuzz(*arguments)
    index = json.loads((tmp_path / "out" / "run.json").read_text())
    cases = ElementTree.parse(tmp_path / "out.xml").getroot()

    assert [case.get("name") for case in cases] == [
        f"F{each['number']:04} {each['bucket']}" for each in index["findings"]
    ]


def test_an_interrupted_run_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_case, found = Campaign.one_case, list[Finding]()

    def interrupted(
        campaign: Campaign, packets: int, *, is_over: Callable[[], bool]
    ) -> Finding | None:
        if found:
            raise KeyboardInterrupt
        finding = one_case(campaign, packets, is_over=is_over)
        found.extend([finding] if finding else [])
        return finding

    monkeypatch.setattr(Campaign, "one_case", interrupted)
    result = fuzz("--target", "emu:hns", "-o", tmp_path / "out")
    index = json.loads((tmp_path / "out" / "run.json").read_text())

    assert result.exit_code == 130
    assert "interrupted; the findings so far are saved" in result.stderr
    assert [each["bucket"] for each in index["findings"]] == [found[0].bucket]
    assert "findings  1" in result.stdout


def test_a_finding_is_kept_that_was_being_made_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(case: Case, *_: object, **__: object) -> Case:
        raise KeyboardInterrupt

    monkeypatch.setattr("ibwire.fuzz.targets.emulator.minimise", interrupted)
    result = fuzz("--target", PLANTED, "-o", tmp_path / "out")
    index = json.loads((tmp_path / "out" / "run.json").read_text())

    assert result.exit_code == 130
    assert len(index["findings"]) == 1
    assert fuzz("replay", tmp_path / "out" / "F0001", "--target", PLANTED).exit_code == 1
    assert index["next_case"] == index["cases"]


def test_a_case_that_was_being_made_short_is_written(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(case: Case, *_: object, **__: object) -> Case:
        raise KeyboardInterrupt

    monkeypatch.setattr("ibwire.fuzz.targets.emulator.minimise", interrupted)
    short = tmp_path / "short.drill"
    result = fuzz("min", done / "F0001", "-o", short)

    assert result.exit_code == 130
    assert "interrupted; the case may not be as short as possible" in result.stderr
    assert _steps(short) == _steps(done / "F0001" / "original.drill")


# Files that cannot be written.


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", ["--budget 100 --junit", "min {} -o"])
def test_full_disk_is_reported_with_the_file(done: Path, arguments: str) -> None:
    result = fuzz(*arguments.format(done / "F0001").split(), "/dev/full")

    assert result.exit_code == 1
    assert "error: /dev/full: cannot be written: no space left on device" in result.stderr


def test_finding_that_cannot_be_written_is_reported_and_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is removed; earlier findings are still printed."""
    one_case = Campaign.one_case

    def losing(campaign: Campaign, packets: int, *, is_over: Callable[[], bool]) -> Finding | None:
        found = one_case(campaign, packets, is_over=is_over)
        if found is not None and found.number == 2:
            rmtree(tmp_path / "out")
        return found

    monkeypatch.setattr(Campaign, "one_case", losing)
    result = fuzz("--target", "emu:hns", "-o", tmp_path / "out", "--junit", tmp_path / "out.xml")

    assert result.exit_code == 1
    assert (
        result.stderr
        == f"error: {tmp_path / 'out' / 'F0002'}: cannot be written: no such file or directory\n"
    )
    assert "F0002  " in result.stdout
    assert "findings  2" in result.stdout
    assert "saved " not in result.stdout
    assert ElementTree.parse(tmp_path / "out.xml").getroot().get("failures") == "2"


def test_unwritable_outputs_are_reported_before_anything_is_done(
    done: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for arguments in (
        ("--junit", tmp_path),
        ("--junit", tmp_path / "file" / "out.xml"),
        ("min", done / "F0001", "-o", tmp_path / "file" / "short.json"),
    ):
        result = fuzz(*arguments)

        assert result.exit_code == 2
        assert f"{arguments[-1]}: " in result.stderr
        assert result.stdout == ""


def test_a_place_that_can_be_written_is_left_as_it_was_when_nothing_is_done(
    tmp_path: Path,
) -> None:
    (tmp_path / "case.json").write_text("{}")
    (tmp_path / "kept.json").write_text("kept")
    for name in ("short.json", "kept.json"):
        result = fuzz("min", tmp_path / "case.json", "-o", tmp_path / name)

        assert result.exit_code == 2

    assert not (tmp_path / "short.json").exists()
    assert (tmp_path / "kept.json").read_text() == "kept"


def test_junit_may_go_where_the_findings_go(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fuzz("--budget", "60", "-o", out, "--junit", out / "out.xml")

    assert ElementTree.parse(out / "out.xml").getroot().get("failures") == "0"


# The report at the end.


def test_all_choices_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = [choice for choice in CHOICES if choice.allowed]

    def taking(campaign: Campaign, packets: int, *, is_over: Callable[[], bool]) -> None:
        campaign.report.packets = packets
        campaign.report.taken = {choice.name: "" for choice in allowed}

    monkeypatch.setattr(Campaign, "one_case", taking)
    told = fuzz().stdout

    assert len(allowed) > 10
    assert f"choices   {allowed[0].about} ({allowed[0].rule})\n" in told
    assert all(f"          {each.about} ({each.rule})\n" in told for each in allowed[1:])


def test_differences_that_did_not_recur_are_counted_in_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flaky(campaign: Campaign, packets: int, *, is_over: Callable[[], bool]) -> None:
        campaign.report.packets = packets
        for number in range(15):
            campaign.report.count_unstable(f"kind {number}")

    monkeypatch.setattr(Campaign, "one_case", flaky)
    lines = fuzz().stdout.splitlines()

    assert lines[-11] == "unstable  kind 0: 1"
    assert lines[-2:] == [
        "          kind 9: 1",
        "          and 5 more: --json, and run.json of -o, have all",
    ]


@pytest.mark.parametrize("has_finding", [False, True])
def test_differences_that_there_was_no_time_for_are_counted_in_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_finding: bool
) -> None:
    def hurried(campaign: Campaign, packets: int, *, is_over: Callable[[], bool]) -> None:
        campaign.report.packets = packets
        campaign.report.seen.update(["a finding"] * has_finding)
        for number in (1, 2, 2):
            campaign.report.unexamined[f"kind {number}"] += 1

    monkeypatch.setattr(Campaign, "one_case", hurried)
    lines = fuzz("-o", str(tmp_path / "run")).stdout.splitlines()

    assert lines[lines.index("pending   2 kinds of difference, seen 3 times:") + 1 : -1] == [
        *["          most are probably other effects of the findings above;"] * has_finding,
        "          a run examines differences in a quarter of its time;",
        "          a longer run or --resume examines these, too",
    ]
    assert load(tmp_path / "run").report.unexamined == {"kind 1": 1, "kind 2": 2}


# Devices that do not come back.


@pytest.mark.slow
def test_a_device_that_does_not_come_back_is_a_finding_that_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "replay"):
        monkeypatch.setattr(f"ibwire.cli.fuzz_{name}.watchdog", partial(watchdog, 0.05))
    table = tmp_path / "faults.toml"
    table.write_text(LOOPS)
    out = tmp_path / "out"
    mutant = ("--target", f"py:mutants.target:{table}:loops")
    arguments = ("--role", "responder", *mutant, "--stop-after", 1)
    result = fuzz(*arguments, "-o", out)

    assert result.exit_code == 1
    assert "F0001  READ_REQUEST of no bytes: it does not come to rest" in result.stdout
    assert "  got       does not come back for 0.05 s of processor time" in result.stdout
    assert fuzz("replay", out / "F0001", *mutant).exit_code == 1
    assert fuzz("replay", out / "F0001", "--target", "emu").exit_code == 0


LOOPS = '''
[[mutant]]
name = "loops"
module = "rc/responder.py"
old = """    def _handle_read(self, packet: TransportPacket) -> bool:
"""
new = """    def _handle_read(self, packet: TransportPacket) -> bool:
        while not packet.dma_len:
            pass
"""
'''


# Cases.


@pytest.mark.slow
def test_a_finding_replays_on_its_target_and_not_on_the_reference(done: Path) -> None:
    for directory in sorted(done.glob("F*")):
        again, right = fuzz("replay", directory), fuzz("replay", directory, "--target", "emu")

        assert again.exit_code == 1, again.output
        assert "differs at step " in again.stdout
        assert right.exit_code == 0, right.output
        assert "no difference between emu and the reference" in right.stdout


@pytest.mark.parametrize("command", ["replay", "min"])
def test_a_run_is_no_case_whatever_its_target_is(command: str, done: Path, tmp_path: Path) -> None:
    """Python code is not run unless it is named."""
    text = (done / "run.json").read_text()
    (tmp_path / "run.json").write_text(text.replace('"emu:hns"', '"py:nowhere:"'))
    result = fuzz(command, tmp_path)

    assert result.exit_code == 2
    assert "expected a finding of a run, such as DIR/F0001" in result.output.replace("\n", " ")


@pytest.mark.parametrize("command", ["replay", "min"])
def test_a_run_is_no_case(command: str, done: Path) -> None:
    result = fuzz(command, done, "--target", "emu")

    assert result.exit_code == 2
    assert f"{done}: no " in result.output.replace("\n", " ")
    assert "expected a finding of a run, such as DIR/F0001" in result.output.replace("\n", " ")


@pytest.mark.parametrize(("name", "status"), [("beyond", 1), ("inside", 0)])
def test_one_case_of_a_table_is_replayed(tmp_path: Path, name: str, status: int) -> None:
    """The emulated rxe differs where a WRITE reaches beyond its memory, not inside of it."""
    path = tmp_path / "table.drill"
    path.write_text(
        "choice mig_req=0\ncases what, packet {\n  beyond, WRITE_ONLY psn va=end-7 len=8 ack\n"
        "  inside, WRITE_ONLY psn len=8 ack\n}\n< $packet\n"
    )

    result = fuzz("replay", path, "--target", "emu:rxe", "--case", name)

    assert result.exit_code == status, result.output


def test_a_replay_is_also_an_object(done: Path) -> None:
    told = json.loads(fuzz("replay", done / "F0001" / "case.drill", "--json").stdout)

    assert (told["kind"], told["target"], told["differs"]) == ("replay", "emu:hns", True)
    assert told["expected"] != told["got"]


@pytest.mark.slow
def test_a_case_is_made_short_again(tmp_path: Path) -> None:
    """As found by a case of the run; what a witness finds is short already."""
    found, short = tmp_path / "out" / "F0001", tmp_path / "short.drill"
    # Without the short cases of the opening.
    fuzz("--target", PLANTED, "--ops", "parser", "--stop-after", 1, "-o", found.parent)
    result = fuzz("min", found, "--target", PLANTED, "-o", short)

    assert result.exit_code == 1
    assert len(_steps(short)) < len(_steps(found / "original.drill"))
    assert fuzz("replay", short, "--target", PLANTED).exit_code == 1
    assert fuzz("replay", short, "--target", "emu").exit_code == 0


def _steps(path: Path) -> list[object]:
    return list(parse_case(path.read_bytes(), str(path)).steps)


@pytest.mark.parametrize("verb", ["replay", "min"])
def test_a_case_with_which_the_reference_does_not_rest(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(
        '{"ibwire-fuzz-case": 1, "profile": "rxe", "connection": {"timeout": 1}, "steps": '
        '[{"step": "post", "opcode": "SEND"}, {"step": "wait", "time": 10000000000000000}]}'
    )
    result = fuzz(verb, path, "--target", "emu:rxe")

    assert result.exit_code == 2
    assert "the reference does not come to rest: more than 512 timeouts" in result.output


def test_a_case_that_shows_nothing_cannot_be_made_short(done: Path) -> None:
    result = fuzz("min", done / "F0001", "--target", "emu")

    assert result.exit_code == 0
    assert "no difference" in result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "no JSON: "),
        (b"\xff", "case.json:1:1: not UTF-8"),
        (b"\x0a\x0d\x0d\x0a\x1c\x00", "case.json: a capture; expected a case"),
        (b"\xd4\xc3\xb2\xa1\x02\x00", "case.json: a capture; expected a case"),
        (b'{"ibwire-fuzz-case": 1, "stops": []}', "stops: no such key"),
        (
            b'{"ibwire-fuzz-case": 1, "profile": "x", "steps": [{"step": "wait", "time": 1}]}',
            "profile: 'x', not one of spec",
        ),
        (
            b'{"ibwire-fuzz-case": 1, "choices": {"mig_req": "2"}, '
            b'"steps": [{"step": "wait", "time": 1}]}',
            "choices.mig_req: '2', not one of 0, 1",
        ),
        (
            b'{"ibwire-fuzz-case": 1, "steps": [{"step": "packet", "opcode": 10, '
            b'"fields": {"reth.va": "nowhere"}}]}',
            "case.json: steps[0]: nowhere: this connection has no nowhere",
        ),
        (
            b'{"ibwire-fuzz-case": 1, "steps": [{"step": "packet", "opcode": 4, '
            b'"fields": {"reth.va": 1}}]}',
            "case.json: steps[0].fields.reth.va: SEND_ONLY has no such header",
        ),
        (
            b'{"ibwire-fuzz-case": 1, "steps": [{"step": "packet", "opcode": 4, "length": 70000}]}',
            "steps[0].length: 70000, not a number from 0 to 32768",
        ),
        (
            b'{"ibwire-fuzz-case": 1, "steps": [{"step": "packet", "opcode": 4, '
            b'"fields": {"bth.psn": 5}}]}',
            "steps[0].fields.bth.psn: the key psn of the step says it",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["replay", "min"])
def test_damaged_case_is_reported_with_the_position(
    tmp_path: Path, verb: str, content: bytes, reason: str
) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(content)
    result = fuzz(verb, path)

    assert result.exit_code == 2
    assert reason in result.output


def test_coverage_is_a_table(done: Path) -> None:
    result = fuzz("cover", done)
    lines = result.stdout.splitlines()

    assert result.exit_code == 0
    assert lines[0].split() == ["IDLE", "SEND", "WRITE", "WAITING", "RNR", "WAIT", "ERROR"]
    assert lines[1].startswith("SEND_FIRST ")
    assert "." in lines[1].split()


def test_coverage_counts_every_packet(done: Path) -> None:
    told = json.loads(fuzz("cover", done, "--json").stdout)
    counts = [
        count for row in told["table"].values() for cell in row.values() for count in cell.values()
    ]

    assert sum(counts) == 200
    assert told["answers"] == len(counts)


def test_help_names_the_commands() -> None:
    with click.Context(command) as context:
        text = command.get_help(context)

    for name in ("run", "replay", "min", "cover"):
        assert f"\n  {name} " in text
