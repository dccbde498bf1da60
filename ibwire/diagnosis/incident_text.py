"""The text of an incident, as a value: its title, its steps and its causes.

Repeated steps are summarised: several of a kind in a row, and rounds that each
end with a retransmission.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from ibwire.diagnosis.causes import FoundCause, Reason
from ibwire.diagnosis.record import Incident
from ibwire.diagnosis.wording import PHRASES, count, duration, packets, span, times


class IncidentEnd(StrEnum):
    """How an incident ended."""

    OPEN = "open"
    """Not before the capture ended."""
    RECOVERED = "recovered"
    HARMLESS = "harmless"
    """It delayed nothing."""
    REFUSED = "refused"
    """A NAK ended the connection."""
    GIVEN_UP = "given_up"
    """The requester stopped."""
    RESET = "reset"
    """The queue pair was reset, or its number used again."""


_ENDS = {
    IncidentEnd.OPEN: "not resolved when the capture ends",
    IncidentEnd.RECOVERED: "recovered after {took}",
    IncidentEnd.HARMLESS: "harmless",
    IncidentEnd.REFUSED: "the connection ends",
    IncidentEnd.GIVEN_UP: "{r} gives up",
    IncidentEnd.RESET: "cut short: {r} restarted",
}


class Step(NamedTuple):
    """One line of an incident."""

    time_ns: int
    numbers: tuple[int, int]
    """The first and the last packet; (0, 0) for none."""
    text: str
    key: str = ""
    """Equal for steps that report the same kind of thing."""
    delay_ns: int | None = None
    many: str = ""
    """The text for three or more of these in a row; `{n}` is their number, `{p}` their packets."""


@dataclass(slots=True)
class IncidentText:
    """An incident in words."""

    incident: Incident
    causes: list[FoundCause] = field(default_factory=list)
    """In the order in which they showed."""
    steps: list[Step] = field(default_factory=list)
    retransmitted: int = 0
    needless: int = 0
    """Retransmitted packets that had arrived, or were retransmitted only to keep the order."""
    rnr_naks: int = 0
    refusal: str = ""
    """The refused request in words, when a NAK ended the connection."""
    look: str = ""
    change: str = ""
    """The request that was changed when it was retransmitted, in words."""
    given_up: str = ""
    """After what the requester gave up, in words; empty if it did not."""
    stall_ns: int | None = None
    """From the first transmission of the affected request to its response, of a READ from the last
    response before those that are missing; `None` without one."""
    may_be_cut: bool = False
    """Missing packets may be among those that were left out because their headers are cut."""
    names: tuple[str, str] = ("A", "B")
    """Requester and responder."""

    def because(self, name: Reason, number: int, count: int = 1) -> None:
        """Note a cause; number: of the packet that shows it."""
        cause = self.cause(name)
        if cause is None:
            cause = FoundCause(name)
            self.causes.append(cause)
        cause.count += count
        cause.frames.append(number)

    def cause(self, name: Reason) -> FoundCause | None:
        """The cause of this name, if it is one."""
        return next((each for each in self.causes if each.name is name), None)

    @property
    def names_of_causes(self) -> frozenset[Reason]:
        """Its causes."""
        return frozenset(each.name for each in self.causes)

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for incidents that have the same description."""
        return self.incident.end, self.names_of_causes, self.incident.recovered is None

    @property
    def title(self) -> str:
        """What happened and how it ended."""
        parts = [
            phrase(each.name, each.count, self.names, is_most=self.may_be_cut)
            for each in self.causes
            if each.name is not Reason.GIVEN_UP
        ]
        if self.retransmitted:
            parts.append(f"{count(self.retransmitted, 'packet')} retransmitted")
        return "; ".join([*parts, self.outcome])

    @property
    def is_harmless(self) -> bool:
        """Whether it delayed nothing."""
        return self.incident.recovered is not None and (
            not self.retransmitted or self.names_of_causes == {Reason.STALE_TIMER}
        )

    @property
    def end(self) -> IncidentEnd:
        """How it ended."""
        if self.refusal:
            return IncidentEnd.REFUSED
        if self.given_up:
            return IncidentEnd.GIVEN_UP
        if self.incident.is_cut:
            return IncidentEnd.RESET
        if self.stall_ns is None:
            return IncidentEnd.OPEN
        return IncidentEnd.HARMLESS if self.is_harmless else IncidentEnd.RECOVERED

    @property
    def is_open(self) -> bool:
        """Whether it was not resolved when the capture ended."""
        return self.end is IncidentEnd.OPEN

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        took = duration(self.stall_ns or 0)
        return _ENDS[self.end].format(r=self.names[0], took=took)


def phrase(
    why: Reason,
    number: int,
    names: tuple[str, str],
    verdict: bool = False,
    is_least: bool = False,
    is_most: bool = False,
) -> str:
    """A cause in words; names: requester and responder.

    is_least: there may have been more. is_most: there may have been fewer.
    """
    return PHRASES[why][verdict].format(
        r=names[0],
        s=names[1],
        n=count(number, "packet"),
        a=count(number, "response"),
        k=count(number, "RNR NAK"),
        w="was" if number == 1 else "were",
        it="it" if number == 1 else "them",
        t=times(number),
        least="up to " if is_most else "at least " if is_least else "",
    )


def summed_up(steps: Sequence[Step]) -> list[Step]:
    """The steps, with repeated rounds summarised."""
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
    """The steps, with runs of equal ones joined into one."""
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
    """The steps, divided after each retransmission."""
    rounds: list[list[Step]] = [[]]
    for step in steps:
        rounds[-1].append(step)
        if step.key.startswith("retransmission"):
            rounds.append([])
    return [each for each in rounds if each]


def _summary(rounds: Sequence[Sequence[Step]]) -> Step:
    signs = [each[0].numbers[0] for each in rounds if len(each) > 1]
    agains = [n for each in rounds for n in range(each[-1].numbers[0], each[-1].numbers[1] + 1)]
    delays = [each[-1].delay_ns for each in rounds if each[-1].delay_ns is not None]
    text = f"{len(rounds)} more rounds of the same kind: "
    if signs:
        text += f"refused in {packets(signs)}; "
    first = [each[-1].numbers[0] for each in rounds]
    text += (
        f"retransmitted from {packets(first)} on"
        if agains != first
        else f"retransmitted in {packets(first)}"
    )
    if delays:
        text += f", after {span(delays)}"
    return Step(rounds[0][0].time_ns, (0, 0), f"{text}.")


SHOWN = 2
"""Rounds of the same kind that are shown one by one."""
