"""Which choices of the reference a finding needs: without the others its case shows the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ibwire.fuzz.case import Case, CaseError, RunsAway
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import fields_at_fault, signature, wrong_fields
from ibwire.fuzz.judge.profiles import choices_of
from ibwire.fuzz.minimise import without_groups
from ibwire.rc.profile import PROFILES, Profile

Replay = Callable[[Case, Profile], Difference | None]


def needed_choices(
    case: Case, difference: Difference, profile: Profile, base: str, replay: Replay
) -> Profile:
    """The reference with only those choices that a difference would not be the same without.

    profile: the reference with all choices. base: the name of the one without any.
    """
    usual, wanted = PROFILES[base], _nature(difference)

    def is_same(other: Profile) -> bool:
        try:
            found = replay(case, other)
        except (CaseError, RunsAway):
            return False
        return found is not None and _nature(found) == wanted

    if is_same(usual):
        return usual
    taken = choices_of(profile, base)

    def with_only(names: Sequence[str]) -> Profile:
        changes: dict[str, Any] = {
            name: getattr(usual, name) for name in taken if name not in names
        }
        return replace(profile, **changes)

    names: Sequence[str] = tuple(taken)
    size = len(names)
    while size := size // 2:
        names = without_groups(names, lambda kept: is_same(with_only(kept)), size)
    return with_only(names)


def _nature(difference: Difference) -> object:
    """Where and in what a target differs."""
    if difference.kind is Kind.ANSWER:
        return difference.step, signature(difference), wrong_fields(difference)
    fields = fields_at_fault(difference)
    return difference.step, difference.kind, difference.expected, difference.got, fields
