"""A case of trouble in words, as a value: its title, its steps, and what it came from.

Steps that repeat themselves are summed up: several of a kind in a row, and
rounds, each of which ends with something being sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ibwire.diagnosis.record import Case
from ibwire.diagnosis.wording import PHRASES, Why, count, duration, packets, span, times


class Step(NamedTuple):
    """One line of a case."""

    time_ns: int
    numbers: tuple[int, int]
    """The first and the last packet; (0, 0) for none."""
    text: str
    key: str = ""
    """What steps have in common that are the same thing again."""
    delay_ns: int | None = None
    many: str = ""
    """What stands for three or more of these in a row; `{n}` is their number, `{p}` where."""


@dataclass(slots=True)
class IncidentText:
    """A case in words."""

    case: Case
    whys: Counter[Why] = field(default_factory=Counter)
    """Packets by what happened to them, or how often it did."""
    steps: list[Step] = field(default_factory=list)
    resent: int = 0
    needless: int = 0
    """Of what was sent again, what had arrived or had to go again only for its order."""
    rnr_naks: int = 0
    refusal: str = ""
    """In words, when a NAK ended the connection."""
    look: str = ""
    given_up: str = ""
    """In words, when the requester gave up."""
    stall_ns: int | None = None
    """From the first sending of what was in question to the answer; `None` without one."""
    names: tuple[str, str] = ("A", "B")
    """Requester and responder."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Cases that are told alike."""
        return self.case.end, frozenset(self.whys), self.case.recovered is None

    @property
    def title(self) -> str:
        """What happened and how it ended."""
        parts = [
            phrase(why, number, self.names)
            for why, number in self.whys.items()
            if why is not Why.GIVEN_UP
        ]
        if self.resent:
            parts.append(f"{count(self.resent, 'packet')} sent again")
        return "; ".join([*parts, self.outcome])

    @property
    def is_harmless(self) -> bool:
        """Nothing had to wait for it."""
        return self.case.recovered is not None and (
            not self.resent or set(self.whys) <= {Why.STALE_TIMER}
        )

    @property
    def outcome(self) -> str:
        """How it ended."""
        if self.refusal:
            return "the connection is dead"
        if self.given_up:
            return f"{self.names[0]} gives up"
        if self.case.is_cut:
            return f"cut short, {self.names[0]} began anew"
        if self.stall_ns is None:
            return "not over when the capture ends"
        if self.is_harmless:
            return "no harm done"
        return f"recovered after {duration(self.stall_ns)}"


def phrase(why: Why, number: int, names: tuple[str, str], verdict: bool = False) -> str:
    """A cause in words; names: requester and responder."""
    return PHRASES[why][verdict].format(
        r=names[0],
        s=names[1],
        n=count(number, "packet"),
        a=count(number, "answer"),
        k=count(number, "RNR NAK"),
        w="was" if number == 1 else "were",
        t=times(number),
    )


def summed_up(steps: Sequence[Step]) -> list[Step]:
    """The steps, with rounds that repeat themselves summed up."""
    rounds = _rounds(_together(steps))
    result: list[Step] = []
    at = 0
    while at < len(rounds):
        keys = [step.key for step in rounds[at]]
        upto = at + 1
        while upto < len(rounds) and [step.key for step in rounds[upto]] == keys and all(keys):
            upto += 1
        shown = upto - at if upto - at <= SHOWN + 1 else SHOWN
        result += [step for each in rounds[at : at + shown] for step in each]
        if shown < upto - at:
            result.append(_summary(rounds[at + shown : upto]))
        at = upto
    return result


def _together(steps: Sequence[Step]) -> list[Step]:
    """The steps, with those that are alike and follow each other made one."""
    result: list[Step] = []
    for many, group in groupby(steps, key=lambda step: step.many):
        alike = list(group)
        if not many or len(alike) <= SHOWN:
            result += alike
            continue
        where = packets(step.numbers[0] for step in alike)
        first, last = alike[0].numbers[0], alike[-1].numbers[1]
        text = many.format(n=f"{len(alike):,}", p=where)
        result.append(Step(alike[0].time_ns, (first, last), text))
    return result


def _rounds(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps, cut behind each that sends again."""
    rounds: list[list[Step]] = [[]]
    for step in steps:
        rounds[-1].append(step)
        if step.key.startswith("resend"):
            rounds.append([])
    return [each for each in rounds if each]


def _summary(rounds: Sequence[Sequence[Step]]) -> Step:
    signs = [each[0].numbers[0] for each in rounds if len(each) > 1]
    agains = [n for each in rounds for n in range(each[-1].numbers[0], each[-1].numbers[1] + 1)]
    delays = [each[-1].delay_ns for each in rounds if each[-1].delay_ns is not None]
    text = f"{len(rounds)} more rounds like these: "
    if signs:
        text += f"refused in {packets(signs)}; "
    first = [each[-1].numbers[0] for each in rounds]
    text += (
        f"sent again from {packets(first)} on"
        if agains != first
        else f"sent again in {packets(first)}"
    )
    if delays:
        text += f", after {span(delays)}"
    return Step(rounds[0][0].time_ns, (0, 0), f"{text}.")


SHOWN = 2
"""Rounds of the same kind that are told one by one."""
