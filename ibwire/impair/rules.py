"""A pipe that calls each stage only for the frames that may concern it.

Nearly every frame passes a plan unchanged. So the rules are not called one by one: a table,
which is filled as queue pairs appear, gives the rules for an opcode, queue pair and PSN. Only
rules that may concern any frame, such as random loss, are called for every frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from ibwire.base.node import Frame, Pipe, Stage
from ibwire.base.units import Time
from ibwire.impair.columns import UNREAD, read
from ibwire.impair.match import All, Match, Pick, Sightings, locate
from ibwire.impair.stages import Passing, Reorder
from ibwire_layers.outer import LinkType


class Rule(Protocol):
    """A stage with its selection of frames and a count of frames that it acted on."""

    pick: Pick
    hits: int

    def __call__(self, frame: Frame, now: Time, /) -> Passing:
        """The frames that come out for one."""
        ...


class Rules(Pipe):
    """A pipe of rules with the same results as a `Pipe` with the same stages.

    sightings: shared by the rules; every frame is recorded there before any rule is called.
    """

    __slots__ = (
        "_everything",
        "_interests",
        "_kept",
        "_link_type",
        "_reorders",
        "met",
        "sightings",
    )

    LIMIT = 1 << 16
    """Entries of the table; above it the table is cleared."""

    FEW = 8
    """Frames below which parsing one by one is faster than `columns.read`, which takes 40 us."""

    def __init__(
        self,
        *stages: Stage,
        sightings: Sightings,
        link_type: int = LinkType.ETHERNET,
    ) -> None:
        super().__init__(*stages)
        self.met: list[int] = []
        """Numbers of the rules that acted on the last frame, from 0."""
        self.sightings = sightings
        """Connections and PSNs that the rules count by."""
        self._link_type = link_type
        self._everything = tuple(
            number for number, stage in enumerate(stages) if _match_of(stage) is None
        )
        """Rules that may concern any frame."""
        self._reorders = [
            (number, stage) for number, stage in enumerate(stages) if isinstance(stage, Reorder)
        ]
        self._interests: dict[int, _Interest] = {}
        """By destination QPN and opcode."""
        self._kept = 0

    def __call__(self, frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        """The frames that leave the last stage, with their delays from `now`."""
        self.met.clear()
        return self._through(0, frame, now)

    @property
    def holding(self) -> bool:
        """Whether a rule holds a frame back until others have passed, so that it must see all."""
        return any(stage.held is not None for _, stage in self._reorders)

    def poll_timeout(self) -> Time | None:
        """When a held frame is released; `None` for never."""
        times = [stage.until for _, stage in self._reorders if stage.held is not None]
        return min(times, default=None)

    def release(self, now: Time, *, all_of_them: bool = False) -> list[tuple[Time, Frame]]:
        """The frames that come out of held frames whose time is over, or of all held frames."""
        self.met.clear()
        leaving = []
        for number, stage in self._reorders:
            if stage.held is not None and (all_of_them or now > stage.until):
                frame, stage.held = stage.held, None
                leaving += self._through(number + 1, frame, now)
        return leaving

    def concerned(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> Sequence[int]:
        """Rows of the frames for which a rule must be called.

        data, starts, lengths: as for `columns.read`. While a rule holds a frame it must see all
        frames, which the result does not include.
        """
        if not self.stages:
            return ()
        if self._everything or len(starts) < self.FEW:
            return range(len(starts))
        rows: list[int] = []
        known = self._interests
        found = read(data, starts, lengths)
        for row, (key, psn) in enumerate(zip(found.keys, found.psns, strict=True)):
            if key < 0:
                if key == UNREAD:
                    rows.append(row)
                continue
            interest = known.get(key)
            if interest is None:
                interest = self._learn(key, psn)
            if interest.always or psn in interest.by_psn:
                rows.append(row)
        return rows

    def _through(self, first: int, frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        for number in self._concern(frame, first):
            if number < first:
                continue
            stage = self.stages[number]
            assert _is_rule(stage)
            hits = stage.hits
            passing = stage(frame, now)
            if stage.hits != hits:
                self.met.append(number)
            # In most cases the rule lets the frame pass after all.
            if isinstance(passing, tuple) and len(passing) == 1 and passing[0] == (0, frame):
                continue
            return [
                (delay + more, out)
                for delay, each in passing
                for more, out in self._through(number + 1, each, now + delay)
            ]
        return [(0, frame)]

    def _concern(self, frame: Frame, first: int) -> Sequence[int]:
        """Numbers of the rules to call for a frame, in order.

        first: the first rule it can come to; above 0 it comes out of a rule.
        """
        if len(self._everything) == len(self.stages):
            return self._everything
        at = locate(frame, self._link_type).bth
        if at < 0:
            numbers = self._everything
        else:
            key = int.from_bytes(frame[at + 5 : at + 8]) << 8 | frame[at]
            psn = int.from_bytes(frame[at + 9 : at + 12])
            interest = self._interests.get(key)
            if interest is None:
                if first:  # what a rule has written is no connection that was seen
                    return range(first, len(self.stages))
                interest = self._learn(key, psn)
            numbers = interest.by_psn.get(psn, interest.always)
        if self.holding:
            held = (number for number, stage in self._reorders if stage.held is not None)
            return sorted({*numbers, *held})
        return numbers

    def _learn(self, key: int, psn: int) -> _Interest:
        """Fill the table for packets to a new pair of queue pair and opcode."""
        dest_qp, opcode = key >> 8, key & 0xFF
        self.sightings.note(dest_qp, opcode, psn)
        always = []
        by_psn: dict[int, list[int]] = {}
        for number, stage in enumerate(self.stages):
            match = _match_of(stage)
            psns = None if match is None else match.psns(dest_qp, opcode)
            if psns is None:
                always.append(number)
            else:
                for each in psns:
                    by_psn.setdefault(each, []).append(number)
        interest = _Interest(
            tuple(always),
            {each: tuple(sorted([*always, *some])) for each, some in by_psn.items()},
        )
        self._kept += 1 + len(by_psn)
        if self._kept > self.LIMIT:
            self._interests.clear()
            self._kept = 1 + len(by_psn)
        self._interests[key] = interest
        return interest


class _Interest(NamedTuple):
    """Rules to call for packets to one queue pair with one opcode, in order."""

    always: tuple[int, ...]
    """For any PSN."""
    by_psn: dict[int, tuple[int, ...]]
    """For some PSNs, including those of `always`."""


def _match_of(stage: Stage) -> Match | None:
    """The header conditions that a rule checks first; `None` without any."""
    pick = stage.pick if _is_rule(stage) else None
    if isinstance(pick, All) and pick.picks:
        pick = pick.picks[0]
    return pick if isinstance(pick, Match) and pick.reads_headers else None


def _is_rule(stage: Stage) -> TypeGuard[Rule]:
    return hasattr(stage, "pick") and hasattr(stage, "hits")
