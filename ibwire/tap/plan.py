"""A fault plan for frames between two sides, and its state while it is applied.

    seed = 7

    [[from.a]]
    drop = { connection = 1, psn = 3, nth = 1 }
    [[from.b]]
    cnp = { opcode = "RC_RDMA_READ_RESPONSE_MIDDLE", nth = 10 }

Rules belong to the side that the frames come from; they are those of `ibwire.impair.plan`.
A `Direction` applies them to the frames of one direction, without sockets, files or clocks.
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
    """A rule has acted on a frame."""

    time_ns: int
    """Time since the epoch."""
    side: str
    """The side that the frame came from: the name of the interface, or `a` or `b`."""
    rule: int
    """Number of the rule on its side, from 1."""
    action: str
    frame: int
    """Number of the frame on its side, from 1."""
    packet: int | None
    """Number of the frame in the capture."""
    header: dict[str, Any]
    """Opcode, destination QPN and PSN on arrival; empty without a BTH."""

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


class Outcome(NamedTuple):
    """The result of passing a frame to the rules."""

    leaving: list[Frame]
    """Frames that leave on the other side now; the same object if it is unchanged."""
    answers: list[Frame]
    """Frames that go back to the sender."""
    met: list[tuple[int, str]]
    """Numbers of the rules that acted, from 1, and their actions."""


class Direction:
    """One direction: its rules, and its delayed frames."""

    LIMIT = 256 << 20
    """Bytes of delayed frames."""

    def __init__(
        self, side: str, rules: Any, seed: int, partners: Partners, opposite: Partners
    ) -> None:
        """rules: of a side, as parsed from TOML.

        partners: of this direction. opposite: of the other direction. Raises `PlanError`.
        """
        self.side = side
        self.partners = partners
        self.arrived = 0
        """Frames."""
        self.overflow = 0
        """Frames that were lost because too many were delayed."""
        self.unread = 0
        """Packets merged by the kernel, to which no rule was applied."""
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
        """Which of the next frames must be passed to `take`; all while a rule holds one.

        data, starts, lengths: as for `columns.read`. The others pass unchanged.
        """
        if self.partners.wanted:
            self.partners.see(read(data, starts, lengths))
        return self.rules.concerned(data, starts, lengths)

    def take(self, frame: Frame, now: Time) -> Outcome:
        """Pass a frame to the rules."""
        leaving = self._leaving(self.rules(frame, now), now)
        met = [(number + 1, self.actions[number]) for number in self.rules.met]
        answers = [each for each in self._answers if each is not None]
        self._answers.clear()
        return Outcome(leaving, answers, met)

    def poll_timeout(self) -> Time | None:
        """When `due` has frames; `None` for never."""
        times = [self._waiting[0][0]] if self._waiting else []
        held = self.rules.poll_timeout()
        if held is not None:
            times.append(held + 1)
        return min(times, default=None)

    def due(self, now: Time) -> Iterator[tuple[Time, Frame]]:
        """The delayed frames that leave by now, in order, with their times."""
        held = self.rules.poll_timeout()
        if held is not None and held < now:
            for delay, frame in self.rules.release(now):
                self._delay(held + delay, frame)
        while self._waiting and self._waiting[0][0] <= now:
            yield self._next()

    def rest(self, now: Time) -> Iterator[tuple[Time, Frame]]:
        """All delayed and held frames, at the end."""
        until = self.rules.poll_timeout()
        for delay, frame in self.rules.release(now, all_of_them=True):
            self._delay((now if until is None else until) + delay, frame)
        while self._waiting:
            yield self._next()

    def hits(self) -> list[dict[str, Any]]:
        """For each rule: number, action, number of frames; for replies also frames without one."""
        result: list[dict[str, Any]] = []
        for number, (stage, action) in enumerate(zip(self.rules.stages, self.actions, strict=True)):
            found: Any = stage
            result.append({"rule": number + 1, "action": action, "frames": found.hits})
            if isinstance(stage, Answer) and stage.unanswered:
                result[-1]["unanswered"] = stage.unanswered
        return result

    def _leaving(self, passing: list[tuple[Time, Frame]], now: Time) -> list[Frame]:
        leaving = []
        for delay, frame in passing:
            if delay:
                self._delay(now + delay, frame)
            else:
                leaving.append(frame)
        return leaving

    def _delay(self, time: Time, frame: Frame) -> None:
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
    """A plan that was read, with its state."""

    description: str
    ways: tuple[Direction, Direction]


def shipped() -> dict[str, str]:
    """The shipped plans: name and first line of the comment."""
    return {
        name: read_plan(file.read_bytes(), name).description
        for name, file in sorted(_shipped_files().items())
    }


def load_plan(name: str, seed: int | None = None) -> Plan:
    """The plan in a file, or the shipped plan of that name, if it has no suffix.

    seed: instead of that in the plan. A `ScriptError` gives the place of a mistake.
    """
    path = Path(name)
    if path.suffix != _SUFFIX and not path.exists():
        plans = _shipped_files()
        if name not in plans:
            raise ScriptError(name, None, None, f"no such plan{hint(name, plans)}")
        return read_plan(plans[name].read_bytes(), name, seed)
    return read_plan(read_content(path), name, seed)


def read_plan(content: bytes, name: str, seed: int | None = None) -> Plan:
    """A plan from the contents of its file; name: for messages."""
    top = Document(content, name).top
    written = top.take_int("seed", 1, 0, (1 << 63) - 1)
    table = top.table("from") or top.absent("from")
    both = [_listed(table.take(side)) for side in SIDES]
    table.end()
    top.end()
    chosen = written if seed is None else seed
    going, coming = Partners(), Partners()
    try:
        a = Direction("a", both[0], chosen, going, coming)
        b = Direction("b", both[1], chosen, coming, going)
    except PlanError as error:
        raise top.error_at(error.key_path, error.reason, at_key=error.at_key) from None
    return Plan(_description(content), (a, b))


def header_of(frame: Frame) -> dict[str, Any]:
    """The header fields of a frame in an event."""
    at = locate(frame).bth
    if at < 0 or at + BTH.SIZE > len(frame):
        return {}
    return {
        "opcode": opcodes.name_of(frame[at]),
        "dest_qp": int.from_bytes(frame[at + 5 : at + 8]),
        "psn": int.from_bytes(frame[at + 9 : at + 12]),
    }


def _listed(rules: Any) -> Any:
    """The rules as a list; a single table is a list of one rule."""
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


ReportEvent = Callable[[Event], None]
"""Takes each event when it happens."""

_SUFFIX = ".toml"
_ENTRY = 128
"""Memory of a delayed frame in addition to its bytes."""
