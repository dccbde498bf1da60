"""A law of networks: whether frames are built early or late changes nothing.

Each shipped scenario runs three times: frames are built where they are sent; where they reach the
last wire; and nowhere, as nobody looks. The bytes on the last wires are the same, and so is
everything that was measured. So do small networks of kinds that no shipped scenario has.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fabric.line import Direction
from ibwire.scenario import read_scenario
from ibwire.scenario.run import Network
from ibwire.scenario.shipped import load, shipped
from ibwire.scenario.specs import Scenario

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


def run(scenario: Scenario, seed: int, *, record: bool, early: bool) -> tuple[object, list[Line]]:
    network = Network(scenario, seed)
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


def check(scenario: Scenario) -> None:
    late, late_frames = run(scenario, 1, record=True, early=False)
    early, early_frames = run(scenario, 1, record=True, early=True)
    unseen, _ = run(scenario, 1, record=False, early=False)

    assert late_frames == early_frames
    assert len(late_frames) > 2
    assert late == early == unseen


@pytest.mark.parametrize("name", list(scenarios()))
def test_frames_built_late_have_the_same_bytes(name: str) -> None:
    check(load(name))


CUT_THROUGH = """
[topology]
kind = "star"
hosts = 3
[switch]
cut_through = true
[[wire]]
between = ["h0", "s0"]
rate = "10 Gb/s"
[[flow]]
from = ["h1", "h2"]
to = "h0"
size = "20 kB"
"""


@pytest.mark.parametrize("rate", ["10 Gb/s", "100 Gb/s"])
def test_cut_through_is_the_same_for_frames_built_late(rate: str) -> None:
    """A slower line, and a line that is busy: both make frames wait for their end."""
    check(read_scenario(CUT_THROUGH.replace("10 Gb/s", rate).encode(), "x.toml"))
