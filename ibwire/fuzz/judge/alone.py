"""The choices of a target in a single case, which is not part of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibwire.fuzz.case import Case
from ibwire.fuzz.judge.choices import Choice
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.explanation import Replay, changed, explained, with_values
from ibwire.rc.profile import Profile

Shown = Callable[[Choice, Profile, Profile], bool]
"""What the witnesses of a choice say; given are the references with it and without it."""


def explained_alone(
    case: Case,
    profile: Profile,
    choices: Sequence[Choice],
    replay: Replay,
    *,
    is_shown: Shown,
    is_refuted: Shown,
) -> tuple[Profile, Difference | None]:
    """The reference with those choices that explain the most of a case, and what is left.

    A choice that explains only a part of a case must be shown by its own witness: else it may be
    one that the target does not make, which hides a fault and shows another difference instead. One
    that explains all must not be refuted by it: a target that does the usual thing there does not
    make the choice.

    is_shown: whether a witness shows a choice. is_refuted: whether one speaks against it.
    """

    def _is_wrong(choice: Choice, with_it: Profile, without_it: Profile) -> bool:
        if difference is not None or choice.is_always_shown or choice.is_by_witness_alone:
            return not is_shown(choice, with_it, without_it)
        return is_refuted(choice, with_it, without_it)

    while True:
        nearest, difference = explained(case, profile, choices, replay)
        wrong = [
            choice
            for choice in changed(profile, nearest, choices)
            if _is_wrong(choice, nearest, with_values(nearest, profile, [choice]))
        ]
        if not wrong:
            return nearest, difference
        choices = [choice for choice in choices if choice not in wrong]
