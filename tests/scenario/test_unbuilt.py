"""A law of networks: whether frames are built early or late changes nothing.

Each shipped scenario runs three times: frames are built where they are sent; where they reach the
last wire; and nowhere, as nobody looks. The bytes on the last wires are the same, and so is
everything that was measured.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fabric.sim import Direction
from ibwire.scenario.run import Network
from ibwire.scenario.shipped import load, shipped

QUICK = {"incast-dcqcn", "one-lost-packet"}
Line = tuple[str, Time, Frame]


class Recorder:
    """A stage that keeps the frames of a line, and may have another before it."""

    def __init__(self, line: Direction, lines: list[Line]) -> None:
        self.line, self.lines, self.before = line, lines, line.stage

    def __call__(self, frame: Frame, now: Time) -> Iterable[tuple[Time, Frame]]:
        found = [(0, frame)] if self.before is None else self.before(frame, now)
        self.lines.append((self.line.name, now, frame))
        return found


def run(name: str, seed: int, *, record: bool, early: bool) -> tuple[object, list[Line]]:
    network = Network(load(name), seed)
    hosts = {id(host) for host in network.hosts.values()}
    lines: list[Line] = []
    for wire in network.simulator.wires:
        for line in (wire.a_to_b, wire.b_to_a):
            if early:
                line.takes_unbuilt = False
            if record and id(line.far.node) in hosts:
                line.stage = Recorder(line, lines)
    outcome = network.run()
    counters = [qp.counters for qp in outcome.qps]
    measured = outcome.ended, outcome.virtual_time, outcome.metrics, outcome.by_connection
    return (*measured, counters), lines


def scenarios() -> Iterable[Any]:
    for name in sorted(shipped()):
        marks = () if name in QUICK else (pytest.mark.slow,)
        yield pytest.param(name, id=name, marks=marks)


@pytest.mark.parametrize("name", list(scenarios()))
def test_frames_built_late_have_the_same_bytes(name: str) -> None:
    late, late_frames = run(name, 1, record=True, early=False)
    early, early_frames = run(name, 1, record=True, early=True)
    unseen, _ = run(name, 1, record=False, early=False)

    assert late_frames == early_frames
    assert len(late_frames) > 2
    assert late == early == unseen
