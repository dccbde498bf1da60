"""A plan of what happens to frames between two sides, and the plan at work.

    seed = 7

    [[from.a]]
    drop = { connection = 1, psn = 3, nth = 1 }
    [[from.b]]
    cnp = { opcode = "RC_RDMA_READ_RESPONSE_MIDDLE", nth = 10 }

Rules stand by the side that the frames come from; they are those of `ibwire.impair.plan`.
A `Way` carries them out for one direction, without sockets, files or clocks, and tells
what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import ScriptError
from ibwire.base.node import Frame
from ibwire.base.toml import Document, hint, read_content
from ibwire.base.units import Time
from ibwire.impair import PlanError, build_pipe
from ibwire.impair.columns import read
from ibwire.impair.match import locate
from ibwire.impair.replies import Answer, Answering, Partners
from ibwire.impair.rules import Rules
from ibwire_layers import opcodes
from ibwire_layers.headers import BTH

SIDES = ("a", "b")


@dataclass(frozen=True, slots=True)
class Event:
    """A rule has done something to a frame."""

    time_ns: int
    """Of day."""
    side: str
    """The side that the frame came from: what the interface is called, or `a` or `b`."""
    rule: int
    """Number of the rule among those of its side; the first is 1."""
    action: str
    frame: int
    """Number of the frame among those from its side; the first is 1."""
    packet: int | None
    """Number of the frame in the capture."""
    header: dict[str, Any]
    """Opcode, destination QPN and PSN as it came; empty for what carries no BTH."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": "event",
            "time_ns": self.time_ns,
            "from": self.side,
            "rule": self.rule,
            "action": self.action,
            "frame": self.frame,
            "packet": self.packet,
            **self.header,
        }

    def __str__(self) -> str:
        where = f"from {self.side}: frame {self.frame}"
        if self.packet is not None:
            where += f", packet {self.packet}"
        return f"{where}: {self.action} (rule {self.rule}){_in_words(self.header)}"


class Taken(NamedTuple):
    """What has become of a frame that was handed to the rules."""

    leaving: list[Frame]
    """What leaves now on the other side; the same object where it is as it came."""
    answers: list[Frame]
    """What goes back to where the frame came from."""
    met: list[tuple[int, str]]
    """Which rules did something, from 1, and what."""


class Way:
    """One direction: its rules, and the frames that are on their way for longer."""

    LIMIT = 256 << 20
    """Bytes of frames that may wait."""

    def __init__(
        self, side: str, rules: Any, seed: int, partners: Partners, opposite: Partners
    ) -> None:
        """The rules of a side as TOML has them.

        partners: of what goes this way. opposite: of what comes towards it. Raises `PlanError`.
        """
        self.side = side
        self.partners = partners
        self.arrived = 0
        """Frames."""
        self.overflow = 0
        """Frames that were lost because too many waited."""
        self.unread = 0
        """Packets that the kernel had merged, to which nothing was done."""
        self._answers: list[Frame | None] = []
        self.rules: Rules = build_pipe(
            rules,
            seed=seed,
            name=side,
            path=("from", side),
            answering=Answering(self._answers.append, opposite),
        )
        self.actions = [next(iter(rule)) for rule in rules]
        self._waiting: list[tuple[Time, int, Frame]] = []
        self._waiting_size = 0
        self._count = 0

    def concerned(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> Sequence[int]:
        """Which of the next frames must be handed to `take`; while a rule holds one, all.

        data, starts, lengths: as for `columns.read`. The others pass as they are.
        """
        if self.partners.wanted:
            self.partners.see(read(data, starts, lengths))
        return self.rules.concerned(data, starts, lengths)

    def take(self, frame: Frame, now: Time) -> Taken:
        """Hand a frame to the rules."""
        leaving = self._leaving(self.rules(frame, now), now)
        met = [(number + 1, self.actions[number]) for number in self.rules.met]
        answers = [each for each in self._answers if each is not None]
        self._answers.clear()
        return Taken(leaving, answers, met)

    def poll_timeout(self) -> Time | None:
        """When `due` has something; `None` for never."""
        times = [self._waiting[0][0]] if self._waiting else []
        held = self.rules.poll_timeout()
        if held is not None:
            times.append(held + 1)
        return min(times, default=None)

    def due(self, now: Time) -> Iterator[tuple[Time, Frame]]:
        """The frames whose time to leave has come, in order, with that time."""
        held = self.rules.poll_timeout()
        if held is not None and held < now:
            for delay, frame in self.rules.release(now):
                self._put_off(held + delay, frame)
        while self._waiting and self._waiting[0][0] <= now:
            yield self._next()

    def rest(self, now: Time) -> Iterator[tuple[Time, Frame]]:
        """All frames that still wait, because it is over."""
        until = self.rules.poll_timeout()
        for delay, frame in self.rules.release(now, all_of_them=True):
            self._put_off((now if until is None else until) + delay, frame)
        while self._waiting:
            yield self._next()

    def hits(self) -> list[dict[str, Any]]:
        """What each rule has done: number, action, frames; for answers those without one."""
        told: list[dict[str, Any]] = []
        for number, (stage, action) in enumerate(zip(self.rules.stages, self.actions, strict=True)):
            found: Any = stage
            told.append({"rule": number + 1, "action": action, "frames": found.hits})
            if isinstance(stage, Answer) and stage.unanswered:
                told[-1]["unanswered"] = stage.unanswered
        return told

    def _leaving(self, passing: list[tuple[Time, Frame]], now: Time) -> list[Frame]:
        leaving = []
        for delay, frame in passing:
            if delay:
                self._put_off(now + delay, frame)
            else:
                leaving.append(frame)
        return leaving

    def _put_off(self, time: Time, frame: Frame) -> None:
        if self._waiting_size + len(frame) + _ENTRY > self.LIMIT:
            self.overflow += 1
            return
        self._count += 1
        self._waiting_size += len(frame) + _ENTRY
        heappush(self._waiting, (time, self._count, frame))

    def _next(self) -> tuple[Time, Frame]:
        time, _, frame = heappop(self._waiting)
        self._waiting_size -= len(frame) + _ENTRY
        return time, frame


class Plan(NamedTuple):
    """A plan that has been read, ready to begin."""

    description: str
    ways: tuple[Way, Way]


def shipped() -> dict[str, str]:
    """The plans of this package: name and first line of the comment."""
    return {
        name: read_plan(file.read_bytes(), name).description
        for name, file in sorted(_shipped_files().items())
    }


def load_plan(name: str, seed: int | None = None) -> Plan:
    """The plan in a file, or the one of that name that is shipped when it has no suffix.

    seed: instead of the one in the plan. Raises `ScriptError`, which says where it is wrong.
    """
    path = Path(name)
    if path.suffix != _SUFFIX and not path.exists():
        plans = _shipped_files()
        if name not in plans:
            raise ScriptError(name, None, None, f"no such plan{hint(name, plans)}")
        return read_plan(plans[name].read_bytes(), name, seed)
    return read_plan(read_content(path), name, seed)


def read_plan(content: bytes, name: str, seed: int | None = None) -> Plan:
    """A plan from the bytes of its file, whose name is for messages only."""
    top = Document(content, name).top
    written = top.take_int("seed", 1, 0, (1 << 63) - 1)
    table = top.table("from") or top.absent("from")
    both = [_listed(table.take(side)) for side in SIDES]
    table.end()
    top.end()
    chosen = written if seed is None else seed
    going, coming = Partners(), Partners()
    try:
        a = Way("a", both[0], chosen, going, coming)
        b = Way("b", both[1], chosen, coming, going)
    except PlanError as error:
        raise top.error_at(error.key_path, error.reason, at_key=error.at_key) from None
    return Plan(_description(content), (a, b))


def header_of(frame: Frame) -> dict[str, Any]:
    """What an event says of a frame."""
    at = locate(frame).bth
    if at < 0 or at + BTH.SIZE > len(frame):
        return {}
    return {
        "opcode": opcodes.name_of(frame[at]),
        "dest_qp": int.from_bytes(frame[at + 5 : at + 8]),
        "psn": int.from_bytes(frame[at + 9 : at + 12]),
    }


def _listed(rules: Any) -> Any:
    """A single table is a list of one rule."""
    if rules is None:
        return []
    return [rules] if isinstance(rules, dict) else rules


def _description(content: bytes) -> str:
    """The first line of the comment at the top."""
    first = content.decode().partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _shipped_files() -> dict[str, Traversable]:
    folder = files("ibwire") / "plans"
    return {
        file.name.removesuffix(_SUFFIX): file
        for file in folder.iterdir()
        if file.name.endswith(_SUFFIX)
    }


def _in_words(header: dict[str, Any]) -> str:
    if not header:
        return ""
    return f": {header['opcode']} qp {header['dest_qp']:#x} psn {header['psn']}"


Tell = Callable[[Event], None]
"""Takes events as they happen."""

_SUFFIX = ".toml"
_ENTRY = 128
"""Bytes that a frame which waits takes beside its own."""
