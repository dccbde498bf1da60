"""What a score says: of known trials, of planted faults, and of devices without a fault."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from random import Random

import pytest
from click.testing import CliRunner, Result

from bench.fuzz_score import command
from ibwire.fuzz.case import Packet, Post, Step, Wait, from_json
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.comparison import ExactComparison
from ibwire.fuzz.judge.findings import verdicts
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire_layers.opcodes import INFO, OpCode
from mutants.baseline import Baseline, library
from mutants.engine import copied
from mutants.score import (
    GENERATORS,
    Score,
    Trial,
    false_alarms,
    score,
    sooner,
    total,
    trial,
)
from mutants.table import FUZZED, ROLES

EASY = "transport-version-ignored"
"""Found within a few hundred packets by either generator."""


def of(*packets: int | None) -> Score:
    trials = tuple(Trial(each) if each is None else Trial(each, "answer") for each in packets)
    return Score("sample", "responder", "stateful", trials)


# What trials come to.


def test_the_median_is_that_of_the_seeds() -> None:
    assert of(50, 3, 7, 900, 8).median == 8


def test_a_seed_that_finds_nothing_counts_as_infinitely_late() -> None:
    assert of(50, None, 7, None, 8).median == 50


def test_a_fault_is_found_when_three_of_five_seeds_find_it() -> None:
    assert of(1, None, 1, None, 1).is_found
    assert not of(1, None, None, None, 1).is_found
    assert of(1, None, None, None, 1).median == math.inf


def test_a_fault_is_found_sooner_by_the_generator_with_the_lower_median() -> None:
    def scored(fault: str, generator: str, *packets: int | None) -> Score:
        return replace(of(*packets), fault=fault, generator=generator)

    late, early = scored("a", "stateful", 5, 30, None), scored("a", "baseline", 1, 20, 500)
    others = [scored("b", "stateful", 5), scored("b", "baseline", 5)]
    lost = [scored("c", "stateful", None), scored("c", "baseline", 9)]

    found = sooner([late, early, *others, *lost], "stateful", "baseline")

    assert found == [(late, early), (lost[0], lost[1])]


def test_a_total_counts_faults_once_and_findings_by_seed() -> None:
    short = Trial(5, "answer", minimised=5, replays=True)
    long = Trial(5, "crash", minimised=6, replays=True)
    lost = Trial(5, "crash", minimised=1, replays=False)
    found = Score("one", "responder", "stateful", (short, long, lost))
    missed = Score("other", "responder", "stateful", (Trial(None), Trial(None), short))

    result = total([found, missed])

    assert (result.faults, result.found, result.by_crash) == (2, 1, 1)
    assert (result.findings, result.short, result.replayed) == (4, 3, 3)


# Trials.


@pytest.mark.slow
@pytest.mark.parametrize("generator", GENERATORS)
def test_a_planted_fault_is_found_and_its_saved_case_replays(generator: str) -> None:
    (result,) = score([EASY], [generator], seeds=1, cap=2000)

    (found,) = result.trials
    assert found.packets is not None
    assert found.kind in ("answer", "memory", "completion")
    assert 1 <= found.minimised <= 5
    assert found.replays


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("generator", GENERATORS)
def test_nothing_is_found_on_a_device_without_a_fault(role: str, generator: str) -> None:
    target = managed_emulation if role == "cm" else Emulation

    assert trial(target, role, GENERATORS[generator](1, role), 1000) == Trial(None)


@pytest.mark.slow
def test_a_trial_gives_up_at_the_cap_and_not_before() -> None:
    target = copied(FUZZED[EASY])["ibwire.fuzz.targets.emulated_device"].Emulation
    make = GENERATORS["stateful"](1, "responder")
    needed = trial(target, "responder", make, 2000).packets
    assert needed is not None
    assert needed > 1

    assert trial(target, "responder", make, needed).packets == needed
    assert trial(target, "responder", make, needed - 1) == Trial(None)


@pytest.mark.slow
def test_a_saved_case_that_shows_nothing_does_not_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutants.score.from_json", lambda text: replace(from_json(text), steps=()))
    target = copied(FUZZED[EASY])["ibwire.fuzz.targets.emulated_device"].Emulation

    found = trial(target, "responder", GENERATORS["stateful"](1, "responder"), 2000)

    assert found.packets is not None
    assert not found.replays


@pytest.mark.slow
def test_a_score_does_not_depend_on_processes_or_order() -> None:
    names = [EASY, "every-gap-packet-naked"]

    alone = list(score(names, seeds=2, cap=100))
    shared = list(score(names[::-1], seeds=2, cap=100, jobs=2))

    count = len(GENERATORS)
    assert [each.fault for each in alone] == [names[0]] * count + [names[1]] * count
    assert [each.generator for each in alone] == [*GENERATORS, *GENERATORS]
    assert shared == alone[count:] + alone[:count]


@pytest.mark.slow
def test_no_profile_raises_an_alarm_against_itself() -> None:
    results = list(false_alarms(600))

    assert len(results) == 5 * len(ROLES)
    assert all(each.packets == 200 for each in results)
    assert [each.findings for each in results] == [()] * len(results)


@pytest.mark.slow
def test_a_profile_held_against_the_standard_is_seen_to_differ() -> None:
    results = list(false_alarms(150, ["spec", "rxe"], reference="spec"))

    assert [(each.profile, each.role) for each in results] == [("rxe", role) for role in ROLES]
    findings = [finding for each in results for finding in each.findings]
    assert set(findings) & {choice.about for choice in CHOICES if not choice.allowed}
    assert not [finding for finding in findings if finding.startswith("unstable")]


# The baseline.


def test_the_library_is_that_of_boofuzz() -> None:
    """What `BitField(width=8)` of boofuzz 0.4.2 iterates over, as its own output."""
    ranges = [(0, 42), (54, 74), (75, 95), (118, 138), (246, 256)]

    assert library(8) == [value for begin, end in ranges for value in range(begin, end)]
    assert library(1) == [0, 1]
    assert len(library(16)) == 140
    assert library(16)[10:12] == [2038, 2039]


def talk(role: str, number: int, *, has_paths: bool = True) -> list[tuple[Step, str]]:
    """A case of the baseline: what it does, and what a right device says to that."""
    generator = Baseline(Random(number), role, has_paths=has_paths)
    binding = Binding(PEER_ADDRESS, ADDRESS)
    duel = ExactComparison(
        binding, Emulation(generator.connection), Emulation(generator.connection)
    )
    said = []
    while (step := generator.next(duel.reference)) is not None:
        assert duel.step(step) is None
        said.append((step, verdicts(duel.expected)))
    return said


@pytest.mark.slow
def test_all_that_the_baseline_sends_before_the_fuzzed_request_is_right() -> None:
    before = [answer for number in range(300) for _, answer in talk("responder", number)[:-2]]

    assert len(before) > 200
    assert not [answer for answer in before if "NAK" in answer]
    assert {"ACK", "READ_RESPONSE_ONLY", "ATOMIC_ACKNOWLEDGE"} <= set(before)


@pytest.mark.slow
def test_a_case_of_the_baseline_has_one_fuzzed_request_and_a_right_one_after_it() -> None:
    fuzzed = []
    for number in range(300):
        *before, (wrong, _), (probe, _) = talk("responder", number)
        assert all(isinstance(step, Packet) and not step.why for step, _ in before)
        assert isinstance(wrong, Packet)
        assert probe == Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=64)
        fuzzed.append(wrong)

    assert all(each.why for each in fuzzed)
    assert {each.opcode for each in fuzzed} == {
        int(opcode) for opcode, info in INFO.items() if opcode < 0x20 and not info.is_response
    }


@pytest.mark.slow
def test_as_a_server_the_baseline_answers_what_the_device_asks_for() -> None:
    talks = [talk("requester", number) for number in range(100)]

    for said in talks:
        kinds = [type(step) for step, _ in said]
        assert kinds[0] is Post
        assert kinds[-1] is Wait
        answers = [step for step, _ in said if isinstance(step, Packet)]
        assert [bool(answer.why) for answer in answers] == [False] * (len(answers) - 1) + [True]


# The command.


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["--jobs", "1", "--seeds", "1", *arguments])


@pytest.mark.slow
def test_the_command_says_when_each_generator_found_a_fault() -> None:
    result = invoke("--only", EASY, "--cap", "2000", "--clean-packets", "0")

    head, row, _, ours, baseline, paths, *ratios = result.output.splitlines()
    assert result.exit_code == 0
    assert head.split() == ["fault", "role", *GENERATORS, "shortest", "case"]
    assert row.split()[:2] == [EASY, "responder"]
    assert ours.startswith("stateful: 1 of 1 found (100%), 0 of them by a crash;")
    assert baseline.startswith("baseline: 1 of 1 found")
    assert paths.startswith("paths: 1 of 1 found")
    assert ratios == [
        "stateful finds 1.00 times as many as baseline",
        "stateful finds 1.00 times as many as paths",
        *(line for line in ratios if "sooner" in line or line.startswith("  ")),
    ]
    assert sum("is sooner on" in line for line in ratios) == 2


@pytest.mark.slow
def test_the_simple_baseline_has_one_message_with_one_value() -> None:
    for number in range(100):
        said = talk("responder", number, has_paths=False)
        assert [bool(step.why) for step, _ in said if isinstance(step, Packet)] == [True]


@pytest.mark.slow
def test_as_json_there_is_an_object_for_each_fault_total_and_profile() -> None:
    result = invoke(
        "--only",
        EASY,
        "--cap",
        "60",
        "--clean-packets",
        "60",
        "--generator",
        "stateful",
        "--json",
    )

    objects = [json.loads(line) for line in result.output.splitlines()]
    assert [each["kind"] for each in objects] == ["score", "total"] + ["clean"] * 27
    assert objects[0]["median"] == objects[0]["trials"][0]["packets"]


def test_a_fault_that_the_table_does_not_have_is_wrong_usage() -> None:
    result = invoke("--only", "no-such-fault")

    assert result.exit_code == 2
    assert "no mutant 'no-such-fault'" in result.output
