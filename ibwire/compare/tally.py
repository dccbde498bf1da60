"""What two captures show of each flow, before its direction between them is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ibwire.compare.clocks import Samples
from ibwire.compare.fingerprint import Frames, Kind
from ibwire.compare.pairing import Alone
from ibwire_layers import psn as psn_circle

MOST_FINDINGS = 100_000
"""Findings of one kind that are kept of a flow."""


class Pair(NamedTuple):
    """A frame that is not the same in both captures; pairs are (in the first, in the second)."""

    numbers: tuple[int, int]
    opcode: int
    psn: int
    bad: tuple[bool, bool]
    """The ICRC is wrong, or it is not a transport packet any more."""
    ip_fault: tuple[bool, bool]
    marked: tuple[bool, bool]
    loose: bool
    """Something changed that no checksum covers."""


class Single(NamedTuple):
    """A frame of one capture that ought to be in the other."""

    number: int
    opcode: int
    psn: int
    twin: int
    """Number in the other capture of an identical frame; 0 without one."""
    bad: bool


class Late(NamedTuple):
    """A frame that comes after one that it precedes in the other capture."""

    number: int
    partner: int
    """Its number in the other capture."""
    opcode: int
    psn: int


_Finding = TypeVar("_Finding", Pair, Single, Late)


@dataclass(slots=True)
class Tally:
    """What was found of one flow; pairs have one for each capture."""

    matched: int = 0
    hops: int = 0
    """Frames whose time to live is higher in the first capture, less those where it is lower."""
    bad: list[int] = field(default_factory=lambda: [0, 0])
    """Frames that are good in the other capture, and not in this."""
    loose: int = 0
    """Frames of which something changed that no checksum covers."""
    samples: Samples = field(default_factory=Samples)
    changed: list[Pair] = field(default_factory=list)
    singles: tuple[list[Single], list[Single]] = field(default_factory=lambda: ([], []))
    late: tuple[list[Late], list[Late]] = field(default_factory=lambda: ([], []))
    latest: list[int] = field(default_factory=lambda: [0, 0])
    """The highest number in the other capture of the frames that have left."""
    backwards: list[int] = field(default_factory=lambda: [0, 0])
    """How often a PSN is lower than the one before."""
    last_psn: list[int | None] = field(default_factory=lambda: [None, None])
    not_covered: int = 0
    dropped: int = 0
    """Findings for which there was no room."""

    def mostly(self, count: int) -> bool:
        """Whether this is true of most frames, and so not of one by accident."""
        return 2 * count > self.matched

    def keep(self, findings: list[_Finding], new: list[_Finding]) -> None:
        """Add findings to a list, as long as there is room."""
        room = max(0, MOST_FINDINGS - len(findings))
        findings += new[:room]
        self.dropped += len(new[room:])


class Tallies:
    """Takes what is found, flow by flow."""

    def __init__(self) -> None:
        self.flows: dict[int, Tally] = {}
        self.jumps: list[tuple[int, int, int]] = []
        """Capture, frame, and by how many nanoseconds its clock moved against the other."""
        self.unknown = [0, 0]
        """Damaged frames of each capture that are of no known flow, and like no other frame."""

    def paired(self, one: Frames, other: Frames) -> None:
        """The same frames in both captures."""
        for flow, rows in _by_flow(one["flow"]):
            tally = self._tally(flow)
            first, second = one[rows], other[rows]
            tally.matched += len(rows)
            tally.samples.add(first["time"], second["time"] - first["time"])
            whole = (first["kind"] <= Kind.CUT) & (second["kind"] <= Kind.CUT)
            for side, (here, there) in enumerate(((first, second), (second, first))):
                worse = (here["kind"] >= Kind.BAD) & (there["kind"] < Kind.BAD)
                tally.bad[side] += int(worse.sum())
            hops = np.sign(first["ttl"].astype(np.int16) - second["ttl"])
            tally.hops += int(hops[whole].sum())
            loose = whole & (first["loose"] != second["loose"])
            tally.loose += int(loose.sum())
            changed = loose | ~whole
            for name in ("ip_fault", "marked"):
                changed |= first[name] != second[name]
            at = np.flatnonzero(changed)
            tally.keep(tally.changed, list(map(_pair, first[at], second[at], loose[at].tolist())))

    def left(self, side: int, frames: Frames) -> None:
        """Frames that were paired, in the order of their capture."""
        for flow, rows in _by_flow(frames["flow"]):
            tally, found = self._tally(flow), frames[rows]
            partner = found["partner"]
            highest = np.maximum.accumulate(np.maximum(partner, tally.latest[side]))
            tally.latest[side] = int(highest[-1])
            psn = found["psn"].astype(np.int64)
            last = tally.last_psn[side]
            step = np.diff(psn, prepend=psn[0] if last is None else last) & psn_circle.MASK
            tally.backwards[side] += int((step >= psn_circle.HALF).sum())
            tally.last_psn[side] = int(psn[-1])
            late = found[partner < highest][["number", "partner", "opcode", "psn"]]
            tally.keep(tally.late[side], list(map(Late._make, late.tolist())))

    def alone(self, side: int, alone: Alone) -> None:
        """Frames that were not, in the order of their capture."""
        for flow, rows in _by_flow(alone.frames["flow"]):
            if flow < 0:
                self.unknown[side] += len(rows)
                continue
            tally, covered = self._tally(flow), alone.covered[rows]
            tally.not_covered += int((~covered).sum())
            found = alone.frames[rows[covered]][["number", "opcode", "psn", "twin", "kind"]]
            tally.keep(
                tally.singles[side],
                [Single._make((*frame, kind == Kind.BAD)) for *frame, kind in found.tolist()],
            )

    def jumped(self, side: int, number: int, by_ns: int) -> None:
        """The clock of a capture jumped against the other's, at about this frame."""
        if len(self.jumps) < MOST_FINDINGS:
            self.jumps.append((side, number, by_ns))

    def _tally(self, flow: int) -> Tally:
        return self.flows.setdefault(flow, Tally())


def _by_flow(flow: npt.NDArray[np.int32]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """The rows of each flow, in order."""
    order = np.argsort(flow, kind="stable")
    flows, start = np.unique(flow[order], return_index=True)
    return list(zip(flows.tolist(), np.split(order, start[1:]), strict=False))


def _pair(first: np.void, second: np.void, loose: bool) -> Pair:
    sound = first if first["kind"] <= second["kind"] else second
    return Pair(
        (int(first["number"]), int(second["number"])),
        int(sound["opcode"]),
        int(sound["psn"]),
        (bool(first["kind"] >= Kind.BAD), bool(second["kind"] >= Kind.BAD)),
        (bool(first["ip_fault"]), bool(second["ip_fault"])),
        (bool(first["marked"]), bool(second["marked"])),
        loose,
    )
