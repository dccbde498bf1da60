"""The fingerprint of a target: which known choices it makes, each shown by its own witness.

A witness is a short case that shows one choice and no other. Nothing is taken over into the
reference that its witness does not show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from ibwire.fuzz.case import Case, CaseError, Connection, NeverConnects, RunsAway, Step
from ibwire.fuzz.judge.choices import MOST_PERCENT, USUAL_PERCENT, Choice
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.explanation import (
    Replay,
    changed,
    explanation,
    single_explanations,
    with_values,
)
from ibwire.fuzz.judge.findings import fields_at_fault, has_other_payload, signature
from ibwire.rc.profile import PROFILES, SPEC, Profile

WITNESS = "witness of "
"""How the origin of a witness begins."""


@dataclass(frozen=True, slots=True)
class Witness:
    """The shortest case that shows a choice."""

    name: str
    """Field of `Profile`."""
    connection: Connection
    steps: tuple[Step, ...]

    def case(self, profile: str) -> Case:
        """The case with a reference of this name."""
        return Case(self.connection, self.steps, profile, f"{WITNESS}{self.name}")


@dataclass(slots=True)
class Fingerprint:
    """What the witnesses have shown."""

    profile: Profile
    """The reference with the choices of the target."""
    shown: dict[str, Case] = field(default_factory=dict)
    """The witness of each choice, by field."""
    unexplained: list[Case] = field(default_factory=list)
    """Witnesses in which the target does what no choice explains."""
    is_unlike: bool = False
    """Whether the target has differed from the reference in most witnesses."""


ENOUGH = 2
"""Witnesses that differ in one way and that no choices explain, before others are not tried."""

MOST_LOST = 3
"""Witnesses that a target does not survive, before it is given no more."""


def fingerprint(
    cases: Sequence[tuple[str, Case]], profile: Profile, choices: Sequence[Choice], trials: Trials
) -> Fingerprint:
    """Carry out the witnesses, each with its field, until nothing new is shown.

    What `trials` know already is not carried out again: after a witness that has crashed the
    target, the fingerprint is taken from the start.
    """
    found = Fingerprint(profile)
    try:
        differs = [name for name, case in cases if not _agrees(case, profile, trials)]
        found.is_unlike = len(differs) > len(cases) // 2
        while _singles(found, cases, choices, trials) or _together(found, cases, choices, trials):
            pass
        found.unexplained = [case for _, case in cases if not _agrees(case, found.profile, trials)]
    except _GivesUp:
        found.unexplained = trials.endless
    return found


class _GivesUp(Exception):
    """A target does not survive its trials."""


class Trials:
    """Carries the witnesses out, each once against each reference.

    One that a target does not survive is carried out once, whatever it is compared with. failures:
    what is raised when the target has crashed.
    """

    def __init__(self, replay: Replay, failures: tuple[type[Exception], ...] = ()) -> None:
        self._replay = replay
        self._failures = failures
        self._known: dict[tuple[int, Profile], _Outcome] = {}
        self._lost: dict[int, Difference | CaseError] = {}
        self.endless: list[Case] = []
        """Witnesses from which the target did not come back."""
        self.fatal: list[Case] = []
        """Witnesses in which the target crashed."""

    def __call__(self, case: Case, profile: Profile) -> Difference | None:
        """How the target differs in a witness; raises as `replay` does, each time again."""
        found = self._outcome(case, profile)
        if isinstance(found, Exception):
            raise found
        return found

    def _outcome(self, case: Case, profile: Profile) -> _Outcome:
        key = id(case), profile
        if key in self._known:
            return self._known[key]
        if id(case) in self._lost:
            return self._lost[id(case)]
        if len(self._lost) >= MOST_LOST:
            raise _GivesUp
        found = self._known[key] = self._carry_out(case, profile)
        return found

    def _carry_out(self, case: Case, profile: Profile) -> _Outcome:
        try:
            found = self._replay(case, profile)
        except NeverConnects as error:
            self._lost[id(case)] = error
            return error
        except (CaseError, RunsAway) as error:
            return error
        except self._failures:
            self._lost[id(case)] = CaseError("the target has crashed in it")
            self.fatal.append(case)
            raise
        if found is not None and found.kind is Kind.ENDLESS:
            self._lost[id(case)] = found
            self.endless.append(case)
        return found


_Outcome = Difference | CaseError | RunsAway | None
"""How the target differs; or why there is nothing to compare."""


def differing(cases: Sequence[tuple[str, Case]], profile: Profile, replay: Replay) -> set[str]:
    """The choices with a witness in which a target differs from a reference."""
    return {name for name, case in cases if not _agrees(case, profile, replay)}


def is_shown(
    name: str, cases: Sequence[tuple[str, Case]], profile: Profile, other: Profile, replay: Replay
) -> bool:
    """Whether a witness of a choice is explained by one reference and not by the other.

    No other one may speak against it, in which the choice would show other values.
    """
    shown = False
    for field_name, case in cases:
        if field_name != name:
            continue
        explains = _agrees(case, profile, replay)
        if _agrees(case, other, replay):
            if not explains:
                return False
        elif explains:
            shown = True
    return shown


def is_spoken_against(
    name: str, cases: Sequence[tuple[str, Case]], profile: Profile, other: Profile, replay: Replay
) -> bool:
    """Whether a target does in a witness of a choice what the reference without it does alone."""
    own = [case for field_name, case in cases if field_name == name]
    return any(_agrees(case, other, replay) and not _agrees(case, profile, replay) for case in own)


def is_refuted(
    name: str, cases: Sequence[tuple[str, Case]], profile: Profile, other: Profile, replay: Replay
) -> bool:
    """Whether a target does in all witnesses of a choice what the reference without it does.

    It does not count where the reference with the choice does the same.
    """
    own = [case for field_name, case in cases if field_name == name]
    showing = [case for case in own if not _agrees(case, profile, replay)]
    return bool(showing) and all(_agrees(case, other, replay) for case in own)


def _singles(
    found: Fingerprint,
    cases: Sequence[tuple[str, Case]],
    choices: Sequence[Choice],
    replay: Replay,
) -> bool:
    """Take over the choices whose witness they explain alone; whether there was one."""
    before = len(found.shown)
    for name, case in cases:
        if name in found.shown or _agrees(case, found.profile, replay):
            continue
        if name in _replaced_by(found.shown, choices):
            continue
        constants = _replaced_by([name], choices)
        if _is_of_constants(case, found.profile, constants, choices, replay):
            continue
        own = [
            _measured(each, case, found.profile, replay) for each in choices if each.name == name
        ]
        # The other witnesses of the choice, with other values, must not speak against it.
        right = [
            each
            for field_name, each in cases
            if field_name == name and _agrees(each, found.profile, replay)
        ]
        # Nor may those of what it replaces, of the same timer: cases of RNR waits have no other.
        right += [
            each
            for field_name, each in cases
            if field_name in constants
            and bool(each.connection.timeout) == bool(case.connection.timeout)
        ]
        for _, variant in single_explanations(case, found.profile, own, replay):
            if all(_agrees(each, variant, replay) for each in right):
                found.profile = variant
                found.shown[name] = case
                break
    return len(found.shown) > before


def _replaced_by(names: Collection[str], choices: Sequence[Choice]) -> Collection[str]:
    """The choices of constant values which a device does not make that makes these choices."""
    return {other for each in choices if each.name in names for other in each.replaces}


def _is_of_constants(
    case: Case,
    profile: Profile,
    constants: Collection[str],
    choices: Sequence[Choice],
    replay: Replay,
) -> bool:
    """Whether one of these choices of constant values explains a case.

    It has witnesses of its own, which decide whether the device makes it.
    """
    measured = [
        _measured(each, case, profile, replay) for each in choices if each.name in constants
    ]
    return any(True for _ in single_explanations(case, profile, measured, replay))


def _measured(choice: Choice, case: Case, profile: Profile, replay: Replay) -> Choice:
    """A choice with the values that a target may have in its witness; the one that is measured."""
    try:
        is_tried = choice.is_measured or choice.in_witness
        difference = replay(case, profile) if is_tried else None
    except RunsAway:
        return choice
    if difference is None:
        return choice
    if choice.in_witness:  # all of them let a device send less
        is_less = len(difference.got) < len(difference.expected)
        return replace(choice, values=(*choice.values, *choice.in_witness)) if is_less else choice
    is_of_time = difference.kind is Kind.TIME
    sides = (difference.expected, difference.got) if is_of_time else difference.times
    if isinstance(choice.values[0], tuple):
        percents = _percents(*sides, usual=profile.ack_timer_percent)
        return replace(choice, values=(percents,)) if percents else choice
    due, sent = (next(iter(each), 0) for each in sides)
    if not isinstance(due, int) or not isinstance(sent, int) or not due:
        return choice
    percent, rest = divmod(getattr(profile, choice.name) * sent, due)
    is_allowed = not rest and USUAL_PERCENT < percent <= MOST_PERCENT
    return replace(choice, values=(percent,)) if is_allowed else choice


def _percents(due: Sequence[object], sent: Sequence[object], usual: int) -> tuple[int, ...]:
    """How long the ACK timer runs each time in percent of the nominal time; none if that is not
    allowed. due, sent: when retries are, in ps from the first packet. usual: the percentage of the
    reference, the same each time.
    """
    wait = next(iter(due), 0)
    if not isinstance(wait, int) or not wait:
        return ()
    found: list[int] = []
    last = 0
    for time in sent:
        if not isinstance(time, int):
            return ()
        percent, rest = divmod(usual * (time - last), wait)
        if rest or not USUAL_PERCENT <= percent <= MOST_PERCENT:
            return ()
        found.append(percent)
        last = time
    while len(found) > 1 and found[-1] == found[-2]:
        found.pop()
    return tuple(found)


def _together(
    found: Fingerprint,
    cases: Sequence[tuple[str, Case]],
    choices: Sequence[Choice],
    replay: Replay,
) -> bool:
    """Take over choices that show in every packet, and therefore only together.

    Where few witnesses differ, only choices whose own witness differs are tried; none that
    shows alone.
    """
    differs = [name for name, case in cases if not _agrees(case, found.profile, replay)]
    hidden = set() if found.is_unlike else {name for name, _ in cases}.difference(differs)
    alone = {each.name for each in choices if each.is_by_witness_alone or _shows_alone(each)}
    left_out = hidden | found.shown.keys() | alone
    open_choices = [each for each in choices if each.name not in left_out]
    in_vain: Counter[object] = Counter()
    for _, case in cases:
        nature = _nature(case, found.profile, replay)
        if nature is None or in_vain[nature] >= ENOUGH:
            continue
        other = explanation(case, found.profile, open_choices, replay)
        if other is None:
            in_vain[nature] += 1
            continue
        accepted = [
            choice
            for choice in changed(found.profile, other, open_choices)
            if _is_needed(case, choice, other, found.profile, replay)
            and _is_acceptable(choice, cases, other, found.profile, replay)
        ]
        both = with_values(found.profile, other, accepted)
        if accepted and _agrees(case, both, replay):
            found.profile = both
            for choice in accepted:
                own = (one for name, one in cases if name == choice.name)
                found.shown[choice.name] = next(own, case)  # some show in other witnesses only
            return True
    return False


def _shows_alone(choice: Choice) -> bool:
    """Whether a choice shows in its own witness, and no known implementation makes it, which might
    make others that show in every packet.
    """
    usual = getattr(SPEC, choice.name)
    return choice.is_always_shown and all(
        getattr(each, choice.name) == usual for each in PROFILES.values()
    )


def _is_acceptable(
    choice: Choice,
    cases: Sequence[tuple[str, Case]],
    profile: Profile,
    usual: Profile,
    replay: Replay,
) -> bool:
    """Whether a choice may be taken over: if it is allowed, unless a witness of it shows the usual
    thing, else if a witness shows it. profile, usual: the references with and without it.
    """
    other = with_values(profile, usual, [choice])
    if choice.allowed:
        return not is_spoken_against(choice.name, cases, profile, other, replay)
    return is_shown(choice.name, cases, profile, other, replay)


def _nature(case: Case, profile: Profile, replay: Replay) -> object:
    """What a target does otherwise, equal for many cases of one cause; `None` for nothing."""
    try:
        difference = replay(case, profile)
    except RunsAway:
        return "endless"
    except CaseError:
        return None
    if difference is None:
        return None
    return signature(difference), *fields_at_fault(difference), has_other_payload(difference)


def _is_needed(
    case: Case, choice: Choice, profile: Profile, usual: Profile, replay: Replay
) -> bool:
    return not _agrees(case, with_values(profile, usual, [choice]), replay)


def _agrees(case: Case, profile: Profile, replay: Replay) -> bool:
    """Whether a target does what a reference does, or cannot have such a case."""
    try:
        return replay(case, profile) is None
    except RunsAway:
        return False
    except CaseError:
        return True
