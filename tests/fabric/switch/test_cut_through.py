"""Latency and cut-through of switches, with times by hand.

reference/fabric#cut-through.
"""

from __future__ import annotations

import pytest

from fabric.hosts import Network, frame
from ibwire.base.errors import EncodeError
from ibwire.base.node import Stage
from ibwire.base.units import GBPS, NS, US, Time
from ibwire.fabric.llr import LLR
from ibwire.fabric.lossless import SwitchSettings
from ibwire.fabric.topology import Topology, dumbbell, star
from ibwire.impair import Corrupt

BYTE: Time = 80
"""Of a line of 100 Gb/s."""
WHOLE: Time = (len(frame(1)) + 24) * BYTE
HEADER: Time = 64 * BYTE


def network(topology: Topology, *, cuts: bool = True, latency: Time = 0) -> Network:
    settings = SwitchSettings(buffer=4 << 20, is_cut_through=cuts, latency=latency)
    return Network(topology, settings)


def arrivals(run: Network, *sources: int, to: int) -> list[Time]:
    """When frames arrive that hosts send at once."""
    for source in sources:
        run.hosts[source].to_send.append(frame(to, by=source))
    run.simulator.run()
    return [time for time, _ in run.hosts[to].got]


@pytest.mark.parametrize("latency", [0, 300 * NS])
def test_one_switch(latency: Time) -> None:
    stored = arrivals(network(star(2), cuts=False, latency=latency), 0, to=1)
    passed = arrivals(network(star(2), latency=latency), 0, to=1)

    assert stored == [2 * WHOLE + 2 * US + latency]
    assert passed == [HEADER + WHOLE + 2 * US + latency]


def test_each_further_switch_costs_the_time_of_a_header() -> None:
    run = network(dumbbell(1, 1), latency=50 * NS)

    assert arrivals(run, 0, to=1) == [2 * HEADER + WHOLE + 3 * US + 100 * NS]


def test_line_of_another_speed_gets_whole_frames() -> None:
    run = network(dumbbell(1, 1, middle_bps=50 * GBPS))

    assert arrivals(run, 0, to=1) == [WHOLE + 2 * WHOLE + WHOLE + 3 * US]


def test_busy_line_gets_the_next_frame_after_the_first() -> None:
    run = network(star(3))

    first, second = arrivals(run, 0, 1, to=2)

    assert first == HEADER + WHOLE + 2 * US
    assert second == first + WHOLE


def damage() -> Stage:
    return Corrupt(bits=3, seed=1)


def test_damaged_frame_is_dropped_where_it_is_stored() -> None:
    run = network(star(2), cuts=False)
    run.simulator.wires[0].a_to_b.stage = damage()

    assert arrivals(run, 0, to=1) == []
    counters = run.network.switches["s0"].counters[0]
    assert (dict(counters.dropped), counters.stomped) == ({"damaged": 1}, 0)


def test_damaged_frame_has_passed_before_its_end_is_checked() -> None:
    run = network(star(2))
    run.simulator.wires[0].a_to_b.stage = damage()

    assert arrivals(run, 0, to=1) == [HEADER + WHOLE + 2 * US]
    counters = run.network.switches["s0"].counters[0]
    assert (dict(counters.dropped), counters.stomped) == ({}, 1)
    assert run.hosts[1].got[0][1] != frame(1)


def test_damaged_frame_ends_at_the_next_switch_that_stores() -> None:
    cuts = SwitchSettings(buffer=4 << 20, is_cut_through=True)
    stores = SwitchSettings(buffer=4 << 20)
    run = Network(dumbbell(1, 1), {"s0": cuts, "s1": stores})
    run.simulator.wires[0].a_to_b.stage = damage()

    assert arrivals(run, 0, to=1) == []
    assert run.network.switches["s0"].counters[0].stomped == 1
    drops = [dict(each.dropped) for each in run.network.switches["s1"].counters]
    assert {"damaged": 1} in drops


def test_damaged_frame_that_has_to_wait_is_dropped() -> None:
    run = network(star(3))
    run.simulator.wires[1].a_to_b.stage = damage()

    assert arrivals(run, 0, 1, to=2) == [HEADER + WHOLE + 2 * US]
    assert run.network.switches["s0"].counters[1].dropped == {"damaged": 1}


@pytest.mark.parametrize(
    ("settings", "llr", "text"),
    [
        (SwitchSettings(buffer=4 << 20, latency=-1), None, "latency"),
        (SwitchSettings(buffer=4 << 20, is_cut_through=True), LLR(), "llr"),
    ],
)
def test_impossible_settings_are_refused(
    settings: SwitchSettings, llr: LLR | None, text: str
) -> None:
    with pytest.raises(EncodeError, match=text):
        Network(star(2), settings, llr=llr)
