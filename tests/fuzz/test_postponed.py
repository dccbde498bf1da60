"""Differences for which there was no time when they were seen, and what explaining may cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.scripted import Scripted
from fuzz.test_campaign import READ, WRITE, Mute
from fuzz.test_prefetch import run
from ibwire.fuzz import run_file
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, CaseError, Connect, Connection, Role, RunsAway
from ibwire.fuzz.condense import joined
from ibwire.fuzz.coverage import Coverage
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import bucket_of, kind_of
from ibwire.fuzz.minimise import minimise
from ibwire.fuzz.report import MAXIMUM_POSTPONED, Postponed, Report
from ibwire.fuzz.run_file import LONGEST_POSTPONED, Session, Settings, load
from ibwire.fuzz.targets import emulator, testbed
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import HURRIED_TRIALS, EmulatorTestbed, Open
from ibwire.fuzz.targets.testbed import EXPLAINING, MINIMUM_PACKETS, STEPS_PER_PACKET
from ibwire.fuzz.vocabulary.vocabularies import QUEUE_PAIR, vocabulary_for
from ibwire.rc.profile import SPEC, Profile
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import MUTANTS, Mutant

SWAP = replace(WRITE, opcode=int(OpCode.RC_COMPARE_SWAP), length=0)


class Hurried(EmulatorTestbed):
    """Explains nothing until it may; knows no finding by its name alone."""

    is_hurried = True

    def __init__(self, open_device: Open = Mute) -> None:
        super().__init__(open_device)
        self.witnesses = []

    def explains_too_much(self, report: Report) -> bool:
        return self.is_hurried

    def finding_of(self, *_: object, **__: object) -> str:
        return ""


def campaign_of(testbed: EmulatorTestbed, report: Report | None = None) -> Campaign:
    """A case of a step each."""
    steps = [WRITE, READ, SWAP, SWAP]
    return Campaign(
        testbed,
        lambda number: Scripted(steps[number]),
        first=report.cases if report is not None else 0,
        report=report,
        explains=False,
    )


def of_kind(kind: str, what: str = "", *, steps: int = 1, bucket: str = "") -> Postponed:
    case = Case(Connection(), (WRITE,) * steps)
    return Postponed(case, bucket or f"{kind}, {what}, {steps}", kind, what, packet=1)


def test_what_was_postponed_is_counted_and_found_when_there_is_time() -> None:
    tested = Hurried()
    campaign = campaign_of(tested)
    before = list(campaign.run(4))
    left = dict(campaign.report.unexamined)
    tested.is_hurried = False

    found = list(campaign.run(4))

    assert before == []
    assert left == {
        "WRITE_ONLY in IDLE: silence instead of ACK": 1,
        "READ_REQUEST in IDLE: silence instead of READ_RESPONSE_ONLY": 1,
        "COMPARE_SWAP in IDLE: silence instead of ATOMIC_ACKNOWLEDGE": 2,
    }
    report = campaign.report
    assert (dict(report.unexamined), report.postponed) == ({}, {})
    assert sum(report.seen.values()) == 4
    assert [each.packet for each in found] == [1, 2, 3]
    assert report.packets == 4


def test_the_search_for_the_last_postponed_difference_is_not_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = []

    def limited(*args: Any, **options: Any) -> Case:
        limits.append(options.get("trials"))
        return minimise(*args, **options)

    monkeypatch.setattr(emulator, "minimise", limited)
    tested = Hurried()
    campaign = campaign_of(tested)
    assert list(campaign.run(3)) == []
    tested.is_hurried = False

    assert len(list(campaign.run(3))) == 3
    hurried = [HURRIED_TRIALS, None]  # and once more for what is a finding
    assert limits == [*hurried, *hurried, None]


def test_a_difference_that_is_known_does_not_wait_for_others() -> None:
    tested = Hurried()
    campaign = campaign_of(tested)
    report = campaign.report
    assert campaign.one_case(3) is None
    report.led_to["READ_REQUEST in IDLE: silence instead of READ_RESPONSE_ONLY"] = "its name"
    tested.connect(Connection(), SPEC)  # the next case goes on with used devices
    tested.is_hurried = False

    assert campaign.one_case(3) is None

    assert report.seen == {"its name": 1}
    assert list(report.postponed) == ["WRITE_ONLY in IDLE: silence instead of ACK"]


def test_what_was_postponed_is_found_in_a_resumed_run(tmp_path: Path) -> None:
    session = Session.new(Settings())
    first = campaign_of(Hurried(), session.report)
    assert list(first.run(4)) == []
    session.save(tmp_path, first)
    rested = Hurried()
    rested.is_hurried = False
    resumed = campaign_of(rested, load(tmp_path).report)

    whole = Hurried()
    whole.is_hurried = False
    assert [each.bucket for each in resumed.run(4)] == [
        each.bucket for each in campaign_of(whole).run(4)
    ]


@pytest.mark.parametrize("error", [RunsAway("endless"), CaseError("no such pair")])
def test_what_the_reference_can_no_longer_be_given_is_unstable(error: Exception) -> None:
    class Changed(Hurried):
        def replay(self, case: Case, profile: Profile) -> Difference | None:
            if READ in case.steps:
                raise error
            return super().replay(case, profile)

    tested = Changed()
    campaign = campaign_of(tested)
    assert list(campaign.run(4)) == []
    tested.is_hurried = False

    found = list(campaign.run(4))

    assert [each.packet for each in found] == [1, 3]
    report = campaign.report
    assert report.unstable == {"READ_REQUEST in IDLE: silence instead of READ_RESPONSE_ONLY": 1}
    assert (dict(report.unexamined), report.postponed) == ({}, {})


def test_a_long_postponed_case_is_not_saved_but_counted(tmp_path: Path) -> None:
    session = Session.new(Settings())
    campaign = campaign_of(Hurried(), session.report)
    for steps in (LONGEST_POSTPONED, LONGEST_POSTPONED + 1):
        campaign.report.postpone(of_kind("kind", steps=steps))
    session.save(tmp_path, campaign)

    report = load(tmp_path).report

    assert [len(each.case.steps) for each in report.postponed.values()] == [LONGEST_POSTPONED]
    assert sum(report.unexamined.values()) == 2


def behind(history: int, steps: int, bucket: str) -> Postponed:
    """A case of so many steps, behind another one."""
    before, case = (Case(Connection(), (WRITE,) * number) for number in (history, steps))
    return Postponed(joined([before], case), bucket, bucket, "", packet=1)


def saved(tmp_path: Path, *postponed: Postponed) -> list[int]:
    """The steps of the cases that a run file has of these."""
    session = Session.new(Settings())
    campaign = campaign_of(Hurried(), session.report)
    for each in postponed:
        campaign.report.postpone(each)
    session.save(tmp_path, campaign)
    return [len(each.case.steps) for each in load(tmp_path).report.postponed.values()]


def test_of_a_case_behind_a_long_history_the_case_is_saved(tmp_path: Path) -> None:
    cases = behind(10, 5, "short"), behind(LONGEST_POSTPONED, 5, "long")

    assert saved(tmp_path, *cases) == [16, 5]


def test_no_more_steps_are_saved_than_fit_and_each_case_alone_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "STEPS_OF_POSTPONED", 50)
    cases = behind(30, 5, "third"), behind(20, 5, "second"), behind(8, 2, "first")

    assert saved(tmp_path, *cases) == [5, 26, 11]
    assert saved(tmp_path, *cases, behind(1, 50, "last")) == [5, 26, 11]


def test_a_postponed_difference_with_an_unprintable_name_is_refused(tmp_path: Path) -> None:
    session = Session.new(Settings())
    campaign = campaign_of(Hurried(), session.report)
    campaign.report.postponed["bucket"] = of_kind("a\x1bkind", bucket="bucket")
    session.save(tmp_path, campaign)

    with pytest.raises(CaseError, match=r"postponed\[0\].kind: 'a\\x1bkind', not a line of text"):
        load(tmp_path)


class Counting(Emulation):
    """Answers nothing in its third connection, and in later ones."""

    def __init__(self, connection: Connection) -> None:
        self.connections = 1
        super().__init__(connection)

    def reconnect(self, connection: Connection) -> None:
        self.connections += 1
        super().reconnect(connection)

    def answers(self) -> list[bytes]:
        sent = super().answers()
        return sent if self.connections < 3 else []


def test_a_postponed_difference_keeps_what_came_before_its_case() -> None:
    tested = Hurried(Counting)
    campaign = Campaign(tested, lambda number: Scripted(WRITE), explains=False)
    assert list(campaign.run(3)) == []
    tested.is_hurried = False

    (found,) = campaign.run(3)

    assert sum(isinstance(step, Connect) for step in found.case.steps) == 2


def empty() -> Report:
    return Report(Coverage(QUEUE_PAIR.coverage))


def test_kinds_that_were_not_examined_come_first_then_short_cases() -> None:
    report = empty()
    known, long, short, other = (
        of_kind("known"),
        of_kind("new", "a new packet", steps=9),
        of_kind("new", "a new packet", steps=2),
        of_kind("known", "another packet", steps=5),
    )
    report.note_examined(of_kind("known"), is_new=False)
    for each in (known, long, short, other):
        report.postpone(each)

    order = []
    while (following := report.next_postponed) is not None:
        order.append(following)
        report.take_postponed(following)

    assert order == [short, long, other, known]
    assert not report.unexamined


def test_of_equal_kinds_packets_with_an_opcode_that_was_not_examined_come_first() -> None:
    report = empty()
    report.note_examined(of_kind("kind", bucket="WRITE_ONLY in IDLE"), is_new=False)
    for bucket in ("WRITE_ONLY in WAITING", "ACKNOWLEDGE in WAITING"):
        report.postpone(of_kind("kind", bucket=bucket))

    following = report.next_postponed

    assert following is not None
    assert following.bucket == "ACKNOWLEDGE in WAITING"


def test_an_effect_that_was_not_examined_comes_before_combinations_of_known_ones() -> None:
    """An RNR NAK with another wait among what follows from a wrong count of PSNs."""
    report = empty()
    for kind in ("answer, answer, aeth.msn", "answer, answer, bth.psn", "silence, answer"):
        for _ in range(3):
            report.note_examined(of_kind(f"answer, request, {kind}"), is_new=False)
    rnr_nak = of_kind("answer, request, RNR NAK, RNR NAK", steps=9)
    field = of_kind("answer, request, answer, answer, aeth.msn, payload", steps=9)
    both = of_kind("answer, request, answer, answer, aeth.msn, bth.psn", "a new packet")
    crash = of_kind("crash: a, b, c, d, e", steps=10)
    for each in (both, crash, field, rnr_nak):
        report.postpone(each)

    assert {each.kind for each in report.postponed_in_order[:3]} == {
        each.kind for each in (rnr_nak, field, crash)
    }
    for each in (rnr_nak, field, crash):
        report.note_examined(each, is_new=False)
    assert report.next_postponed == both


def test_an_rnr_nak_with_another_wait_has_no_empty_list_of_fields() -> None:
    send = replace(WRITE, opcode=int(OpCode.RC_SEND_ONLY))
    tested = EmulatorTestbed(
        lambda connection: Emulation(replace(connection, min_rnr_timer=13)),
    )

    difference = tested.replay(Case(Connection(receives=0), (send,)), SPEC)

    assert difference is not None
    assert bucket_of(difference, send, "IDLE") == "SEND_ONLY in IDLE: another RNR NAK"


def test_completions_with_different_statuses_differ_in_kind() -> None:
    """Queue, wr_id, status, opcode, byte_len, imm_data and flags."""
    good, flushed, refused = ((0, 1, status, 0, 0, 0, 0) for status in (0, 5, 11))

    def kind(*got: object) -> str:
        return kind_of(Difference(0, Kind.COMPLETION, [good], got), WRITE)

    assert len({kind(flushed), kind(refused), kind()}) == 3
    assert kind(flushed) == kind((0, 2, 5, 0, 0, 0, 0))


def test_completions_that_differ_in_other_fields_are_of_another_kind_and_bucket() -> None:
    """Each of them may be a fault of its own, however often another one was examined."""
    due = (1, 1, 0, 128, 8, 0, 0)
    others = [(1, 1, 0, 128, 9, 0, 0), (1, 1, 0, 128, 8, 1, 0)]
    found = [Difference(0, Kind.COMPLETION, [due], [other]) for other in others]

    kinds = [kind_of(each, WRITE) for each in found]

    assert len(set(kinds)) == 2
    assert [bucket_of(each, WRITE, "IDLE") for each in found] == [
        "WRITE_ONLY in IDLE: completion (completion.byte_len)",
        "WRITE_ONLY in IDLE: completion (completion.imm_data)",
    ]
    assert "effect: completion, completion.imm_data" in of_kind(kinds[1]).effects


def test_a_kind_that_was_a_new_finding_comes_before_one_that_was_not() -> None:
    report = empty()
    report.note_examined(of_kind("in vain"), is_new=False)
    report.note_examined(of_kind("in vain"), is_new=False)
    report.note_examined(of_kind("new"), is_new=True)
    for kind in ("in vain", "new"):
        report.postpone(of_kind(kind))

    assert report.next_postponed == of_kind("new")


def test_of_a_bucket_the_shortest_case_is_kept() -> None:
    report = empty()
    for steps in (5, 2, 7):
        report.postpone(of_kind("kind", steps=steps, bucket="bucket"))

    assert report.postponed == {"bucket": of_kind("kind", steps=2, bucket="bucket")}
    assert report.unexamined == {"bucket": 3}


def test_one_of_a_bucket_is_examined_for_all() -> None:
    report = empty()
    for _ in range(3):
        report.postpone(of_kind("a choice", bucket="a choice"))
        report.postpone(of_kind("a finding", bucket="a finding"))
    report.led_to["a finding"] = "its name"
    report.seen["its name"] = 1

    for bucket in ("a choice", "a finding"):
        report.take_postponed(report.postponed[bucket])

    assert (dict(report.unexamined), report.postponed) == ({}, {})
    assert report.seen == {"its name": 3}


def test_no_more_is_kept_than_there_may_be_and_the_likeliest_is_not_dropped() -> None:
    report = empty()
    report.note_examined(of_kind("known"), is_new=False)
    report.postpone(of_kind("new"))
    for steps in range(1, MAXIMUM_POSTPONED + 50):
        report.postpone(of_kind("known", steps=steps))

    assert len(report.postponed) == MAXIMUM_POSTPONED
    assert report.next_postponed == of_kind("new")
    assert sum(report.unexamined.values()) == MAXIMUM_POSTPONED + 50


FAULTY = (
    "write-last-shorter-than-said",
    "duplicate-atomic-answered-anew",
    "pkey-ignored",
    "key-of-an-empty-write-checked",
    "padding-of-a-write-stored",
    "rnr-nak-leaks",
    "reserved-syndrome-acknowledges",
)
"""Faults that show at many places, some of them in a later connection."""

OF_ONE_SEARCH = 12_000
"""What one search costs at most while others wait: 150 cases of 60 steps, each with devices."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("packets", [1500, 6000])
def test_explaining_takes_its_share_and_one_search_at_most(seed: int, packets: int) -> None:
    patches = tuple(patch for name in FAULTY for patch in MUTANTS[name].patches)
    device = copied(Mutant("many", patches))[Emulation.__module__].Emulation
    make = vocabulary_for(Role.BOTH).generators(seed, Role.BOTH, ())
    campaign = Campaign(EmulatorTestbed(device), make)

    found = list(campaign.run(packets))

    of_run = max(campaign.report.packets, MINIMUM_PACKETS) * STEPS_PER_PACKET
    assert campaign.explained <= of_run // (EXPLAINING - 1) + OF_ONE_SEARCH
    assert campaign.report.postponed
    assert found


@pytest.mark.slow
def test_what_is_postponed_is_the_same_with_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testbed, "MINIMUM_PACKETS", 0)
    settings = Settings(target="py:mutants.target:rnr-nak-leaks", role=Role.RESPONDER)
    alone, shared = run(settings, 1, 1500), run(settings, 2, 1500)

    assert alone.report.in_vain
    assert shared.result == alone.result
    assert shared.report.postponed == alone.report.postponed
    assert shared.report.in_vain == alone.report.in_vain
