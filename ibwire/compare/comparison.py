"""Two captures of one path: what happened to each frame between the two points.

between = compare("client.pcap", "server.pcap")
for key, direction in between.directions.items():
    print(key.src, key.dst, direction.lost)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from ibwire.base.errors import CaptureError
from ibwire.capture.stream import Source
from ibwire.compare.clocks import RESOLUTION_NS, Clocks, Times, compare_clocks
from ibwire.compare.pairing import WINDOW, Capture, Pairing
from ibwire.compare.tally import Late, Pair, Single, Tallies, Tally
from ibwire.connections.flow import FlowKey, Flows
from ibwire.connections.summary import COPIES_PROBLEM
from ibwire_layers.opcodes import name_of


def compare(one: Source, other: Source, *, window: int = WINDOW) -> Between:
    """Match the frames of two captures, taken at two points of the same path.

    one, other: paths, `-` for standard input, or open binary files.
    window: frames of each capture that are kept at most to look for the same frame
    in the other. Raises `CaptureError` for a file that cannot be opened or is not a
    capture; one that is damaged further on is compared up to there.
    """
    flows = Flows()
    with ExitStack() as stack:
        first = Capture(one, stack, flows, window)
        captures = first, Capture(other, stack, flows, window)
        tallies = Tallies()
        Pairing(captures, tallies, window).run()
    return _Judgement(captures, flows, tallies).between()


class Evidence(StrEnum):
    """How it was decided at which point a direction's frames passed first, the surest first."""

    HOPS = "the time to live is higher there"
    DAMAGE = "frames are undamaged there, and have a wrong ICRC at the other point"
    MARKS = "frames have no congestion mark there that they have at the other point"
    BOTH_WAYS = "frames are seen earlier there, and those of the other direction later"
    LOSSES = "frames are seen there that the other point lacks"
    COPIES = "frames are seen once there, and twice at the other point"
    ORDER = "PSNs go back less often there"
    CLOCKS = "frames are seen there first, if the clocks agree"
    NONE = "the captures do not show it: the first capture is assumed"


class Found(NamedTuple):
    """A frame to which something happened between the two points."""

    frame: int | None
    """Number in the capture of the sender's side; None when it is not in it."""
    received: int | None
    """Number in the capture of the receiver's side; None when it is not in it."""
    opcode: int
    psn: int
    reason: str = ""
    """For damage: what shows it."""

    def to_json(self) -> dict[str, Any]:
        """As an object for JSON, without what there is not."""
        fields: dict[str, Any] = {
            "frame": self.frame,
            "received": self.received,
            "opcode": self.opcode,
            "opcode_name": name_of(self.opcode),
            "psn": self.psn,
            "reason": self.reason,
        }
        return {name: value for name, value in fields.items() if value not in (None, "")}


class Delay(NamedTuple):
    """How long frames were under way, in nanoseconds."""

    min_ns: int
    p50_ns: int
    p99_ns: int


@dataclass(slots=True)
class DirectionBetween:
    """What happened to the packets of one direction between the two points."""

    sender: int
    """Which capture is the sender's side: 0 is `one`, 1 is `other`."""
    sender_path: str
    decided_by: Evidence
    matched: int = 0
    """Frames seen at both points, whole or damaged."""
    lost: list[Found] = field(default_factory=list)
    """Frames that passed the first point and not the second."""
    damaged: list[Found] = field(default_factory=list)
    """Frames that were whole at the first point and are not at the second."""
    duplicated: list[Found] = field(default_factory=list)
    """Duplicates at the receiver's side of frames that were sent once."""
    reordered: list[Found] = field(default_factory=list)
    """Frames that arrive after one that was sent later (RFC 4737, 3.3)."""
    marked: list[Found] = field(default_factory=list)
    """Frames that got the mark for congestion experienced."""
    unsent: list[Found] = field(default_factory=list)
    """Frames of the receiver's side that the sender's capture lacks: it missed them, or they
    came by another way."""
    not_covered: int = 0
    """Frames of either capture from when, or where, the other one was not running."""
    delay: Delay | None = None
    """None when the clocks do not allow it."""

    def to_json(self) -> dict[str, Any]:
        """The fields that `flows --json` adds to the object of a direction."""
        return {
            "sender_capture": self.sender_path,
            "sender_decided_by": self.decided_by.value,
            "matched_packets": self.matched,
            "lost_between": [found.to_json() for found in self.lost],
            "damaged_between": [found.to_json() for found in self.damaged],
            "duplicated_between": [found.to_json() for found in self.duplicated],
            "reordered_between": [found.to_json() for found in self.reordered],
            "marked_between": [found.to_json() for found in self.marked],
            "unsent": [found.to_json() for found in self.unsent],
            "not_covered": self.not_covered,
            "one_way_delay_ns": self.delay and self.delay._asdict(),
        }


@dataclass(slots=True)
class Between:
    """What two captures of one path say together."""

    paths: tuple[str, str]
    directions: dict[FlowKey, DirectionBetween]
    """In the order in which the captures show them."""
    clock_offset_ns: int | None
    """How far the clock of the second capture is ahead, when the first frame passed; None when
    no frame is in both. Where only one direction was seen it includes the shortest delay."""
    clock_uncertain_ns: int | None
    """What the offset may be wrong by; None when that is not known."""
    clock_drift_ppm: float
    problems: list[str]
    """What makes the result doubtful or incomplete, in words."""
    errors: list[CaptureError]
    """Damage of the files; everything before it was compared."""

    def to_json(self) -> dict[str, Any]:
        """Everything as one object for JSON."""
        return {
            "captures": list(self.paths),
            "clock_offset_ns": self.clock_offset_ns,
            "clock_uncertain_ns": self.clock_uncertain_ns,
            "clock_drift_ppm": round(self.clock_drift_ppm, 3),
            "problems": self.problems,
            "directions": [
                {"src": key.src, "dst": key.dst, "src_qpn": key.src_qpn, "dst_qpn": key.dst_qpn}
                | direction.to_json()
                for key, direction in self.directions.items()
            ],
        }


_Path = tuple[str, str]
"""Source and destination address."""


class _Judgement:
    """Decides which way each direction goes, and what its differences mean."""

    def __init__(self, captures: tuple[Capture, Capture], flows: Flows, tallies: Tallies) -> None:
        self._captures = captures
        self._paths = captures[0].path, captures[1].path
        self._tallies = tallies
        self._keys = {flow: flows.keys[flow] for flow in sorted(tallies.flows)}
        self._by_path: dict[_Path, list[Tally]] = {}
        for flow, key in self._keys.items():
            self._by_path.setdefault((key.src, key.dst), []).append(tallies.flows[flow])
        self._differences = {
            path: np.concatenate([tally.samples.all() for tally in found], axis=1)
            for path, found in self._by_path.items()
        }
        self._problems: list[str] = []

    def between(self) -> Between:
        """The result."""
        senders = {path: self._sender(path) for path in self._by_path}
        clocks = self._clocks(senders)
        directions = {}
        for flow, key in self._keys.items():
            tally = self._tallies.flows[flow]
            sender, evidence = senders[key.src, key.dst]
            directions[key] = self._direction(key, tally, sender, evidence)
            delays = clocks.delays(tally.samples.all(), sender == 0) if clocks else None
            if delays is not None and delays.size:
                directions[key].delay = Delay(*_percentiles(delays))
        self._report_captures()
        self._report_flows()
        return Between(
            self._paths,
            directions,
            clocks.offset_ns if clocks else None,
            clocks.uncertain_ns if clocks else None,
            clocks.drift * 1e6 if clocks else 0.0,
            self._problems,
            [capture.error for capture in self._captures if capture.error],
        )

    # Which way.

    def _sender(self, path: _Path) -> tuple[int, Evidence]:
        """The capture that frames of a path pass first, and the evidence for it.

        Evidence for one point in one direction is evidence for the other point in the
        opposite direction.
        """
        back = self._by_path.get((path[1], path[0]), [])
        for evidence, weigh in _EVIDENCE.items():
            weight = weigh(self._by_path[path]) - weigh(back)
            if evidence is Evidence.LOSSES:
                both_ways = self._lead(path, path[::-1])
                if both_ways:
                    return int(both_ways < 0), Evidence.BOTH_WAYS
            if weight:
                return int(weight < 0), evidence
        alone = self._lead(path)
        return (int(alone < 0), Evidence.CLOCKS) if alone else (0, Evidence.NONE)

    def _lead(self, *paths: _Path) -> int:
        """By how many nanoseconds a path's frames are in the first capture earlier, in general.

        With two paths: earlier than those of the second one.
        """
        found = [self._differences.get(path, np.zeros((2, 0), np.int64))[1] for path in paths]
        if not all(len(differences) for differences in found):
            return 0
        middle = [int(np.median(differences)) for differences in found]
        lead = middle[0] - middle[1] if len(middle) > 1 else middle[0]
        return lead if abs(lead) > RESOLUTION_NS else 0

    # When.

    def _clocks(self, senders: dict[_Path, tuple[int, Evidence]]) -> Clocks | None:
        ways: tuple[list[Times], list[Times]] = ([], [])
        for path, (sender, _) in senders.items():
            ways[sender].append(self._differences[path])
        empty = np.zeros((2, 0), np.int64)
        forward, backward = (np.concatenate([empty, *way], axis=1) for way in ways)
        clocks = compare_clocks(forward, backward)
        if self._tallies.jumps or any(capture.jumps for capture in self._captures):
            self._report_jumps()
            # Times from before and after have nothing to say to each other.
            return Clocks(clocks.offset_ns, None, consistent=False) if clocks else None
        if clocks:
            self._report_clocks(clocks, forward, backward)
        return clocks

    def _report_clocks(self, clocks: Clocks, forward: Times, backward: Times) -> None:
        one, other = self._paths
        if not clocks.consistent:
            self._problems.append(
                "the clocks disagree: no offset and drift explain the times of "
                f"{one} and {other}, so there are no one-way delays"
            )
            return
        ahead = f"the clock of {other} is {_span(clocks.offset_ns)}"
        if clocks.uncertain_ns is None:
            sign = 1 if forward.size else -1
            if sign * clocks.offset_ns < -RESOLUTION_NS:
                self._problems.append(f"{ahead} or more: frames arrive before they are sent")
            self._problems.append(
                "only frames of one direction are in both captures: the clock offset includes "
                "the delay of the fastest frame, so there are no one-way delays"
            )
            return
        drift = f", and gains {clocks.drift * 1e6:.1f} ppm" if clocks.drift else ""
        if abs(clocks.offset_ns) > clocks.uncertain_ns + RESOLUTION_NS or drift:
            self._problems.append(f"{ahead}, accurate to {clocks.uncertain_ns / 1e6:.3f} ms{drift}")

    def _report_jumps(self) -> None:
        for capture in self._captures:
            for number, by_ns in capture.jumps[:_MOST_REPEATED]:
                self._problems.append(
                    f"{capture.path}: the times go back by {-by_ns / 1e9:.3f} s at frame {number}"
                )
        for side, number, by_ns in self._tallies.jumps[:_MOST_REPEATED]:
            self._problems.append(
                f"the clocks disagree: at about frame {number} of {self._paths[side]} they move "
                f"apart by {by_ns / 1e9:.3f} s, so there are no one-way delays"
            )

    # What.

    def _direction(
        self, key: FlowKey, tally: Tally, sender: int, evidence: Evidence
    ) -> DirectionBetween:
        direction = DirectionBetween(sender, self._paths[sender], evidence, tally.matched)
        direction.not_covered = tally.not_covered
        receiver = 1 - sender
        if any(other.matched for other in self._by_path[key.src, key.dst]):
            direction.lost = [_sent(single) for single in tally.singles[sender]]
            for single in tally.singles[receiver]:
                _place(direction, single)
        else:
            direction.not_covered += len(tally.singles[0]) + len(tally.singles[1])
        excused = any(map(tally.mostly, tally.bad)), tally.mostly(tally.loose)
        for pair in tally.changed:
            frame, received = pair.numbers[sender], pair.numbers[receiver]
            reason = _damage(pair, sender, receiver, excused)
            if reason:
                found = Found(frame, received, pair.opcode, pair.psn, reason)
                direction.damaged.append(found)
            elif pair.marked[receiver] and not pair.marked[sender]:
                direction.marked.append(Found(frame, received, pair.opcode, pair.psn))
        direction.reordered = [_arrived(late) for late in tally.late[receiver]]
        for name in ("lost", "damaged", "duplicated", "reordered", "marked", "unsent"):
            getattr(direction, name).sort(key=lambda found: (found.frame or 0, found.received or 0))
        return direction

    # What else to say.

    def _report_captures(self) -> None:
        for capture in self._captures:
            if capture.copies:
                copies = COPIES_PROBLEM.format(capture.copies)
                self._problems.append(f"{capture.path}: {copies}")
            if capture.error:
                self._problems.append(f"{capture.error}; compared up to there")
            elif not capture.ended:
                self._problems.append(
                    f"{capture.path}: continues after the other capture ends; the rest was not read"
                )
        if self._keys and not any(tally.matched for tally in self._tallies.flows.values()):
            self._problems.append(
                "no frame is in both captures: they show different traffic or different times, "
                "or their clocks differ too much"
            )

    def _report_flows(self) -> None:
        for path, tallies in self._by_path.items():
            arrow = f"{path[0]} -> {path[1]}"
            frames = sum(len(side) for tally in tallies for side in tally.singles)
            if any(tally.matched for tally in self._tallies.flows.values()) and not any(
                tally.matched for tally in tallies
            ):
                self._problems.append(
                    f"{arrow}: none of {frames} frames is in both captures; either only one point "
                    "sees this direction, or all its frames are lost"
                )
        for side, name in enumerate(self._paths):
            if any(tally.mostly(tally.bad[side]) for tally in self._tallies.flows.values()):
                self._problems.append(
                    f"{name}: most frames have a wrong ICRC here and a correct one in the other "
                    "capture: it is added or removed on the way, so damage cannot be detected"
                )
        dropped = sum(tally.dropped for tally in self._tallies.flows.values())
        if dropped:
            self._problems.append(f"{dropped} more findings are not listed")
        for name, count in zip(self._paths, self._tallies.unknown, strict=True):
            if count:
                self._problems.append(
                    f"{name}: {count} damaged frames match no frame of the other capture"
                )


def _weigh_hops(tallies: list[Tally]) -> int:
    # One frame alone proves nothing: a bit of it may have flipped.
    hops = sum(tally.hops for tally in tallies)
    return hops if 2 * abs(hops) > sum(tally.matched for tally in tallies) else 0


def _weigh_damage(tallies: list[Tally]) -> int:
    return sum(
        tally.bad[1] - tally.bad[0] for tally in tallies if not any(map(tally.mostly, tally.bad))
    )


def _weigh_marks(tallies: list[Tally]) -> int:
    return _sum(tallies, lambda pair: pair.marked[1] - pair.marked[0])


def _sum(tallies: list[Tally], weigh: Callable[[Pair], int]) -> int:
    return sum(weigh(pair) for tally in tallies for pair in tally.changed)


def _weigh_singles(tallies: list[Tally], duplicates: bool) -> int:
    """How many frames the first capture has more than the second, of those that matter."""
    if not any(tally.matched for tally in tallies):
        return 0
    one, other = (
        sum((single.twin > 0) == duplicates for tally in tallies for single in tally.singles[side])
        for side in (0, 1)
    )
    return one - other


_EVIDENCE: dict[Evidence, Callable[[list[Tally]], int]] = {
    Evidence.HOPS: _weigh_hops,
    Evidence.DAMAGE: _weigh_damage,
    Evidence.MARKS: _weigh_marks,
    Evidence.LOSSES: lambda tallies: _weigh_singles(tallies, duplicates=False),
    Evidence.COPIES: lambda tallies: -_weigh_singles(tallies, duplicates=True),
    Evidence.ORDER: lambda tallies: sum(
        tally.backwards[1] - tally.backwards[0] for tally in tallies
    ),
}
"""Evidence that the first capture is the sender's side, when it is above 0."""

_MOST_REPEATED = 10
"""Problems of one kind that are listed."""


def _sent(single: Single) -> Found:
    return Found(single.number, None, single.opcode, single.psn)


def _arrived(late: Late) -> Found:
    return Found(late.partner, late.number, late.opcode, late.psn)


def _place(direction: DirectionBetween, single: Single) -> None:
    """Say what a frame is that the receiver's side has and the sender's lacks."""
    found = Found(single.twin or None, single.number, single.opcode, single.psn)
    if single.bad and not single.twin:
        direction.damaged.append(found._replace(reason="ICRC"))
    elif single.twin:
        direction.duplicated.append(found)
    else:
        direction.unsent.append(found)


def _damage(pair: Pair, sender: int, receiver: int, excused: tuple[bool, bool]) -> str:
    """What shows that a frame was damaged on its way; empty when it was not.

    excused: whether most frames have a wrong ICRC at one point, or unprotected fields that changed.
    """
    if pair.bad[receiver] and not pair.bad[sender] and not excused[0]:
        return "ICRC"
    if pair.ip_fault[receiver] and not pair.ip_fault[sender]:
        return "IP checksum"
    # Routers rewrite these, but then in every frame.
    return "link header or unprotected fields" if pair.loose and not excused[1] else ""


def _percentiles(delays: Times) -> tuple[int, int, int]:
    low, middle, high = np.percentile(delays, (0, 50, 99))
    return int(low), int(middle), int(high)


def _span(offset_ns: int) -> str:
    """`12.345 ms ahead`."""
    return f"{abs(offset_ns) / 1e6:.3f} ms {'ahead' if offset_ns >= 0 else 'behind'}"
