"""Which other choices make the reference do what a target does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ibwire.fuzz.case import Case, RunsAway
from ibwire.fuzz.judge.choices import Choice
from ibwire.fuzz.judge.comparison import FATAL, Difference
from ibwire.fuzz.judge.findings import Distance, distance
from ibwire.rc.profile import Profile

FEW = 3
"""How many of the choices that reduce the distance most are tried together with another one."""

Replay = Callable[[Case, Profile], Difference | None]
"""Carries a case out against a reference: how the target differs, if it does."""


def explanation(
    case: Case, profile: Profile, choices: Sequence[Choice], replay: Replay
) -> Profile | None:
    """The reference with other choices that does what the target does; `None` if none does."""
    try:
        nearest, difference = explained(case, profile, choices, replay)
    except RunsAway:
        return None
    return nearest if difference is None else None


def explained(
    case: Case, profile: Profile, choices: Sequence[Choice], replay: Replay
) -> tuple[Profile, Difference | None]:
    """The reference with those choices that explain the most of a case, and what is left.

    Raises `RunsAway` when the reference does not come to rest.
    """
    while (difference := replay(case, profile)) is not None:
        if difference.kind in FATAL:
            break  # the reference stops where the target does
        nearer = _nearer(case, profile, distance(difference), choices, replay)
        if nearer is None:
            break
        profile = nearer
    return profile, difference


def single_explanations(
    case: Case, profile: Profile, choices: Sequence[Choice], replay: Replay
) -> Iterator[tuple[Choice, Profile]]:
    """The single choices that explain a case."""
    for choice in choices:
        for variant in choice.variants(profile):
            if _replayed(case, variant, replay) is None:
                yield choice, variant


def changed(one: Profile, other: Profile, choices: Sequence[Choice]) -> list[Choice]:
    """The choices in which two profiles differ."""
    return [each for each in choices if getattr(one, each.name) != getattr(other, each.name)]


def with_values(profile: Profile, other: Profile, choices: Sequence[Choice]) -> Profile:
    """A profile with the values that another one has for these choices."""
    changes: dict[str, Any] = {each.name: getattr(other, each.name) for each in choices}
    return replace(profile, **changes)


class _Endless:
    """A reference that does not come to rest."""


def _replayed(case: Case, profile: Profile, replay: Replay) -> Difference | _Endless | None:
    try:
        return replay(case, profile)
    except RunsAway:
        return _Endless()


def _nearer(
    case: Case, profile: Profile, best: Distance, choices: Sequence[Choice], replay: Replay
) -> Profile | None:
    """The choice that explains all, or two that do, or the one that brings nearest."""
    near: list[tuple[Distance, int, Choice, Profile]] = []
    for choice in choices:
        for variant in choice.variants(profile):
            found = _replayed(case, variant, replay)
            if found is None:
                return variant
            if not isinstance(found, _Endless) and (reached := distance(found)) < best:
                near.append((reached, len(near), choice, variant))
    near.sort(key=itemgetter(0, 1))
    for _, _, first, nearer in near[:FEW]:
        for choice in choices:
            if choice is first:
                continue
            for variant in choice.variants(nearer):
                if _replayed(case, variant, replay) is None:
                    return variant
    return near[0][3] if near else None
