"""Laws of networks of switches, on random topologies and schedules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from examples import scaled
from fabric.hosts import Network, frame
from ibwire.base.node import Frame
from ibwire.base.units import GBPS, MS, NS, US, S, Time
from ibwire.fabric import Outcome
from ibwire.fabric.lossless import Outage, SwitchSettings
from ibwire.fabric.switch.routing import Strategy
from ibwire.fabric.switch.scheduling import QUANTUM
from ibwire.fabric.topology import (
    Link,
    Topology,
    dumbbell,
    fat_tree,
    leaf_spine,
    parking_lot,
    rail_optimised,
    star,
)

LARGEST = 4096 + 100
LATENCY: Time = 400 * NS
LOSSLESS, LOSSY = 26, 0
"""DSCPs of priorities 3 and 0."""


def headroom(link: Link) -> int:
    """What a link carries in twice its delay and in the latency of its switch, and a frame that is
    being sent at each end."""
    return link.rate_bps * (2 * link.delay + LATENCY) // (8 * S) + 2 * LARGEST + 100


WAYS = st.sampled_from(
    [
        {},
        {"latency": LATENCY},
        {"is_cut_through": True, "latency": LATENCY},
        {"is_cut_through": True, "strategy": Strategy.SPRAY},
        {"strategy": Strategy.FLOWLET, "flowlet_gap": 1 * US},
        {"path_weights": {"spine0": 3, "core0": 2}},
    ]
)
"""How switches pass frames on."""


@dataclass(frozen=True)
class Burst:
    """Frames that a host sends to another from a time on."""

    source: int
    target: int
    count: int
    size: int
    dscp: int
    start: Time


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    delay = draw(st.sampled_from([100_000, 1 * US, 3 * US]))
    make: Callable[[], Topology] = draw(
        st.sampled_from(
            [
                lambda: star(4, delay=delay),
                lambda: dumbbell(2, 2, middle_bps=40 * GBPS, delay=delay),
                lambda: leaf_spine(2, 2, 2, delay=delay),
                lambda: fat_tree(2, delay=delay),
                lambda: parking_lot(3, delay=delay),
                lambda: rail_optimised(2, 2, spines=1, delay=delay),
            ]
        )
    )
    return make()


@st.composite
def schedules(draw: st.DrawFn, dscps: tuple[int, ...]) -> tuple[Topology, list[Burst]]:
    topology = draw(topologies())
    hosts = st.integers(0, len(topology.hosts) - 1)
    burst = st.builds(
        Burst,
        source=hosts,
        target=hosts,
        count=st.integers(1, 120),
        size=st.sampled_from([64, 1024, 4096]),
        dscp=st.sampled_from(dscps),
        start=st.integers(0, 20 * US),
    )
    bursts = draw(st.lists(burst, min_size=1, max_size=5))
    return topology, [each for each in bursts if each.source != each.target]


def network(
    topology: Topology,
    bursts: list[Burst],
    shared: int,
    way: dict[str, Any] | None = None,
    **options: Any,
) -> Network:
    """A network with little more than its headroom, and the bursts as they begin."""
    largest = max(
        sum(headroom(link) + 2000 for link, _ in topology.ports(name)) for name in topology.switches
    )
    found = Network(
        topology,
        SwitchSettings(buffer=largest + shared, reserve=2000, headroom=headroom, **(way or {})),
        **options,
    )
    for each in bursts:

        def begin(each: Burst = each) -> None:
            source = each.source, 0xC000 + each.target
            frames = [
                frame(each.target, by=source[0], dscp=each.dscp, size=each.size, number=number)
                for number in range(each.count)
            ]
            found.hosts[each.source].to_send.extend(frames)
            found.simulator.kick(found.hosts[each.source])

        found.network.timetable.add(each.start, begin)
    found.simulator.kick(found.network.timetable)
    return found


SHARED = st.sampled_from([20_000, 100_000])


@settings(max_examples=scaled(25))
@given(schedules((LOSSLESS,)), SHARED, WAYS)
def test_no_frame_of_a_lossless_priority_is_lost(
    schedule: tuple[Topology, list[Burst]], shared: int, way: dict[str, Any]
) -> None:
    topology, bursts = schedule
    run = network(topology, bursts, shared, way)

    outcome = run.simulator.run(until=50 * MS)

    assert outcome is not Outcome.UNTIL
    assert run.dropped == 0
    assert sum(len(host.got) for host in run.hosts) == sum(each.count for each in bursts)
    assert all(switch.buffered == 0 for switch in run.network.switches.values())


@settings(max_examples=scaled(25))
@given(schedules((LOSSLESS, LOSSY)), SHARED, st.integers(0, 40 * US), st.booleans(), WAYS)
def test_every_frame_arrives_waits_or_is_dropped_with_a_reason(
    schedule: tuple[Topology, list[Burst]],
    shared: int,
    until: Time,
    fails: bool,
    way: dict[str, Any],
) -> None:
    topology, bursts = schedule
    outages = [Outage(topology.links[-1], at=10 * US, until=30 * US)] if fails else []
    run = network(topology, bursts, shared, way, outages=outages)

    for time in (until, 50 * MS):
        run.simulator.run(until=time)

        sent = sum(len(host.sent) for host in run.hosts)
        got = sum(len(host.got) for host in run.hosts)
        waiting = sum(
            switch.waiting_by_source(port, lane).total()
            for name, switch in run.network.switches.items()
            for port in range(len(topology.ports(name)))
            for lane in range(8)
        )
        on_way = sent - got - waiting - run.dropped - run.lost
        # A line carries at most what fits into its delay and the latency of its switch, and the
        # frame that is being sent.
        most = sum(
            2 * (link.rate_bps * (link.delay + LATENCY) // (8 * S) // 64 + 1)
            for link in topology.links
        )
        assert 0 <= on_way <= most
    assert on_way == 0


@settings(max_examples=scaled(10))
@given(schedules((LOSSLESS, LOSSY)), st.integers(0, 1000), WAYS)
def test_same_seed_same_bytes(
    schedule: tuple[Topology, list[Burst]], seed: int, way: dict[str, Any]
) -> None:
    def trace() -> str:
        digest = hashlib.sha256()
        run = network(*schedule, 20_000, way, seed=seed)
        run.simulator.run(until=50 * MS)
        for host in run.hosts:
            for time, each in host.got:
                digest.update(time.to_bytes(8) + each)
        return digest.hexdigest()

    assert trace() == trace()


@settings(max_examples=scaled(20))
@given(schedules((LOSSLESS,)), WAYS)
def test_paused_priority_sends_nothing_after_its_pause_has_arrived(
    schedule: tuple[Topology, list[Burst]], way: dict[str, Any]
) -> None:
    topology, bursts = schedule
    run = network(topology, bursts, 20_000, way)
    lines = []
    for wire in run.simulator.wires:
        for line in (wire.a_to_b, wire.b_to_a):
            events: list[tuple[Time, int]] = []

            def note(each: Frame, now: Time, events: list[tuple[Time, int]] = events) -> None:
                # The quanta of priority 3: after 14 + 4 bytes and three others.
                events.append((now, int.from_bytes(each[24:26])))

            starts: list[Time] = []

            def see(
                each: Frame, now: Time, starts: list[Time] = starts
            ) -> list[tuple[Time, Frame]]:
                if each[12:14] == b"\x08\x00":
                    starts.append(now)
                return [(0, each)]

            line.pause.observe = note
            line.stage = see
            lines.append((line.rate_bps, events, starts))

    run.simulator.run(until=50 * MS)

    for rate, events, starts in lines:
        for index, (time, quanta) in enumerate(events):
            end = time + quanta * 512 * S // rate
            if index + 1 < len(events):
                end = min(end, events[index + 1][0])
            # At the very instant the line may have been asked before the frame was whole.
            assert [start for start in starts if time < start < end] == []


@settings(max_examples=scaled(15))
@given(
    st.sampled_from([star(3), dumbbell(2, 1), leaf_spine(2, 1, 2)]),
    st.tuples(st.integers(1, 8), st.integers(1, 8)),
    st.tuples(*[st.sampled_from([64, 512, 1024, 4096])] * 2),
)
def test_weighted_priorities_share_a_line_by_their_weights(
    topology: Topology, weights: tuple[int, int], sizes: tuple[int, int]
) -> None:
    """Two hosts each fill a priority of the line to a third one (reference/fabric#scheduling)."""
    run = Network(
        topology,
        SwitchSettings(
            buffer=4 << 20, lossless=(1, 2), weights=dict(zip((1, 2), weights, strict=True))
        ),
    )
    to = len(run.hosts) - 1
    for source, (lane, size) in enumerate(zip((1, 2), sizes, strict=True)):
        each = frame(to, by=source, dscp=lane * 8, size=size)
        run.hosts[source].to_send.extend([each] * (2_000_000 // len(each)))

    run.simulator.run(until=160 * US)

    # From 20 us on both have frames waiting; the turns of one are at most this many bytes.
    got = [each for time, each in run.hosts[to].got if time > 20 * US]
    sent = [sum(len(each) + 4 for each in got if each[15] >> 5 == lane) for lane in (1, 2)]
    quanta = [QUANTUM * weight // min(weights) for weight in weights]
    turns = [size / quantum for size, quantum in zip(sent, quanta, strict=True)]
    assert min(sent) > 0
    assert abs(turns[0] - turns[1]) <= 2 + 2 * LARGEST / QUANTUM


@settings(max_examples=scaled(15))
@given(schedules((LOSSLESS, LOSSY)), WAYS)
def test_counters_equal_what_passes_the_links(
    schedule: tuple[Topology, list[Burst]], way: dict[str, Any]
) -> None:
    topology, bursts = schedule
    run = network(topology, bursts, 20_000, way)
    passed: dict[str, list[Frame]] = {}
    for wire in run.simulator.wires:
        for line in (wire.a_to_b, wire.b_to_a):
            seen = passed[line.name] = []
            line.stage = lambda each, now, seen=seen: seen.append(each) or [(0, each)]

    run.simulator.run(until=50 * MS)

    for name, switch in run.network.switches.items():
        for port, (link, _) in enumerate(topology.ports(name)):
            (wire,) = run.network.wires[link]
            line = wire.a_to_b if link.a == name else wire.b_to_a
            data = [each for each in passed[line.name] if each[12:14] == b"\x08\x00"]
            pauses = [each for each in passed[line.name] if each[12:14] == b"\x88\x08"]
            counters = switch.counters[port]
            assert sum(counters.sent) == len(data)
            assert sum(counters.sent_bytes) == sum(map(len, data))
            resumes = sum(each[24:26] == bytes(2) for each in pauses)
            # A resume that follows its pause before that has left replaces it.
            assert resumes <= sum(counters.resumes_sent)
            assert bool(pauses) == bool(sum(counters.pauses_sent))
