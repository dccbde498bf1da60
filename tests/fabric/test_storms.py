"""Pause storms, the watchdog, and which queues wait (reference/fabric#watchdog, #deadlock)."""

from typing import Any

import pytest

from each_case import each_case
from fabric.hosts import Network, frame
from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, US
from ibwire.fabric.lossless import PauseStorm, SwitchSettings
from ibwire.fabric.switch import Action, Watchdog
from ibwire.fabric.topology import Link, Topology, star
from ibwire.fabric.waiting import deadlock, explain, waits

BUFFER = 1 << 20


def stormed(watchdog: Watchdog | None = None, *, priorities: tuple[int, ...] = (3,)) -> Network:
    """h0 sends to h1, which pauses its switch from 10 us to 3 ms."""
    storm = PauseStorm(host="h1", start=10 * US, end=3 * MS, priorities=priorities, quanta=20_000)
    settings = SwitchSettings(buffer=BUFFER, watchdog=watchdog)
    run = Network(star(3), settings, storms=[storm])
    run.hosts[0].to_send.extend(frame(1, number=number) for number in range(1000))
    return run


def dog(action: Action = Action.DROP) -> Watchdog:
    return Watchdog(
        detection_time=200 * US, restoration_time=300 * US, poll_interval=100 * US, action=action
    )


def test_storm_stops_a_flow_and_its_sender() -> None:
    run = stormed()

    run.simulator.run(until=2 * MS)

    # The pause frame arrives after 1 us and its 84 bytes of line time.
    arrivals = [time for time, _ in run.hosts[1].got]
    assert max(arrivals) < 12 * US + 200_000
    assert run.network.switches["s0"].is_pausing(0, 3)
    assert len(run.hosts[0].to_send) > 600
    run.simulator.run()
    # 20,000 quanta are 102.4 us, repeated after 51.2 us: the last one leaves at most 51.2 us
    # before the end and lasts for 102.4 us.
    late = min(time for time, _ in run.hosts[1].got if time > 2 * MS)
    assert 3 * MS + 51 * US < late < 3 * MS + 106 * US
    assert len(run.hosts[1].got) == 1000


def test_storm_of_plain_pause_frames_stops_every_priority() -> None:
    run = stormed(priorities=())
    run.hosts[2].to_send.extend(frame(1, by=2, dscp=0) for _ in range(100))

    run.simulator.run(until=2 * MS)

    pauses = run.network.wires[run.topology.links[1]][0].b_to_a.pause.pauses
    assert len(set(pauses)) == 1
    # At 10 us, at 61.2 us, and so on.
    assert pauses[0] == (2000 - 10 - 2) * 1000 // 51_200 + 1
    assert len(run.hosts[1].got) < 200


def test_watchdog_drops_a_stormed_queue_and_frees_its_sender() -> None:
    run = stormed(dog())

    run.simulator.run(until=2 * MS)

    switch = run.network.switches["s0"]
    watch = switch.watch(1, 3)
    # Blocked since 11 us; the first poll after 211 us is at 300 us.
    assert watch.storms == 1
    assert watch.is_stormed
    assert not run.hosts[0].to_send
    assert not switch.is_pausing(0, 3)
    assert switch.buffered == 0
    assert switch.counters[1].discarded["watchdog"] == 1000 - len(run.hosts[1].got)
    resumed = min(time for time, _ in run.hosts[0].sent if time > 100 * US)
    assert 300 * US < resumed < 302 * US


def test_watchdog_restores_a_queue_after_the_storm() -> None:
    run = stormed(dog())
    run.simulator.run()

    # The last of the pauses, 51.2 us apart, ends at 3.083 ms; three polls find the queue quiet.
    assert run.network.switches["s0"].watch(1, 3).restored == 1
    assert run.simulator.now == 3300 * US
    before = len(run.hosts[1].got)
    run.hosts[0].to_send.extend(frame(1) for _ in range(10))
    run.simulator.run()
    assert len(run.hosts[1].got) == before + 10


def test_watchdog_that_forwards_ignores_the_pause() -> None:
    run = stormed(dog(Action.FORWARD))

    run.simulator.run(until=2 * MS)

    assert len(run.hosts[1].got) == 1000
    assert run.dropped == 0
    late = min(time for time, _ in run.hosts[1].got if time > 100 * US)
    assert 300 * US < late < 302 * US


def test_watchdog_that_alerts_only_counts() -> None:
    run = stormed(dog(Action.ALERT))

    run.simulator.run(until=2 * MS)

    assert run.network.switches["s0"].watch(1, 3).storms == 1
    assert len(run.hosts[1].got) < 200
    assert run.dropped == 0


def test_short_pauses_are_no_storm() -> None:
    run = Network(star(9), SwitchSettings(buffer=BUFFER, watchdog=dog()))
    for number, host in enumerate(run.hosts[:8]):
        host.to_send.extend(frame(8, by=number) for _ in range(200))

    run.simulator.run()

    switch = run.network.switches["s0"]
    assert sum(port.pauses_sent[3] for port in switch.counters) > 5
    assert not any(switch.watch(port, 3).storms for port in range(9))
    assert len(run.hosts[8].got) == 1600


# Which queues wait for which.


def ring(watchdog: Watchdog | None = None) -> Network:
    """Three switches in a circle; each host sends two switches on, clockwise."""
    names = ["s0", "s1", "s2"]
    links = [Link(f"h{number}", name) for number, name in enumerate(names)]
    links += [Link("s0", "s1"), Link("s1", "s2"), Link("s2", "s0")]
    topology = Topology(["h0", "h1", "h2"], names, links)
    routes = {
        "s0": {"h2": ["s1"], "h1": ["s1"]},
        "s1": {"h0": ["s2"], "h2": ["s2"]},
        "s2": {"h1": ["s0"], "h0": ["s0"]},
    }
    run = Network(topology, SwitchSettings(buffer=300_000, watchdog=watchdog), routes=routes)
    for number, host in enumerate(run.hosts):
        to = (number + 2) % 3
        host.to_send.extend(frame(to, by=number) for _ in range(500))
    return run


def test_circle_of_waiting_is_found_and_named() -> None:
    run = ring()

    run.simulator.run(until=2 * MS)

    found = waits(run.network)
    circle = deadlock(found)
    assert {(wait.queue.node, wait.queue.neighbour) for wait in circle} == {
        ("s0", "s1"),
        ("s1", "s2"),
        ("s2", "s0"),
    }
    assert {wait.queue.priority for wait in circle} == {3}
    text = explain(run.network)
    assert text.startswith("deadlock: s")
    assert "s0 to s1 (priority 3) waits for s1 to s2 (priority 3)" in text
    assert "h0 to s0 (priority 3): waits for s0 to s1 (priority 3)" in text
    before = [len(host.got) for host in run.hosts]
    run.simulator.run(until=20 * MS)
    assert [len(host.got) for host in run.hosts] == before


def test_watchdog_resolves_a_deadlock() -> None:
    run = ring(dog())

    run.simulator.run(until=20 * MS)

    assert deadlock(waits(run.network)) == []
    assert run.dropped > 0
    assert sum(len(host.got) for host in run.hosts) + run.dropped == 1500


def test_who_waits_for_a_host_that_pauses() -> None:
    run = stormed()

    run.simulator.run(until=2 * MS)

    found = waits(run.network)
    assert deadlock(found) == []
    assert explain(run.network).splitlines() == [
        "h0 to s0 (priority 3): waits for s0 to h1 (priority 3)",
        f"{found[1].frames} frames s0 to h1 (priority 3): h1 pauses it",
    ]
    assert found[1].frames == run.network.switches["s0"].queued(1, 3) // (len(frame(1)) + 4)


def test_nobody_waits_in_a_network_that_has_finished() -> None:
    run = stormed()
    run.simulator.run()

    assert explain(run.network) == ""


@each_case(
    "wrong",
    [
        lambda: PauseStorm(host="h0", start=5, end=5),
        lambda: PauseStorm(host="h0", start=0, end=5, quanta=1),
        lambda: PauseStorm(host="h0", start=0, end=5, priorities=(8,)),
        lambda: Network(star(2), storms=[PauseStorm(host="s0", start=0, end=5)]),
        lambda: Watchdog(detection_time=0),
        lambda: Watchdog(action="explode"),
    ],
)
def test_impossible_storms_and_watchdogs_are_refused(wrong: Any) -> None:
    with pytest.raises(EncodeError):
        wrong()
