"""Links that fail in the middle of a run: what is lost, what is rerouted, what comes back."""

from typing import Any

import pytest

from fabric.hosts import Network, frame
from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, US
from ibwire.fabric.lossless import Outage
from ibwire.fabric.topology import Link, leaf_spine, star

DATA = [frame(1, number=number) for number in range(1000)]
FRAME_TIME = (len(DATA[0]) + 24) * 80
"""At 100 Gb/s a byte takes 80 ps."""


def numbers(got: list[tuple[int, bytes]]) -> list[int]:
    return [int.from_bytes(each[51:54]) for _, each in got]


def two_ways(**options: Any) -> Network:
    """h0 and h1 at two leaves with two spines between them; the flow takes one of them."""
    found = Network(leaf_spine(2, 2, 1), **options)
    found.hosts[0].to_send.extend(DATA)
    return found


def way_taken() -> tuple[Link, Link]:
    """The link from leaf0 to the spine that the flow takes, and the one to the other spine."""
    run = two_ways()
    run.simulator.run()
    over = {link.b: link for link in run.topology.links if link.a == "leaf0" and link.b != "h0"}
    one, other = over["spine0"], over["spine1"]
    return (one, other) if run.network.wires[one][0].a_to_b.free_at else (other, one)


def test_frames_take_the_other_way_once_a_link_has_failed() -> None:
    used, _ = way_taken()
    run = two_ways(outages=[Outage(used, at=20 * US)])

    run.simulator.run()

    got = numbers(run.hosts[1].got)
    missing = set(range(1000)) - set(got)
    # In 20 us 220 frames have left the host. What is lost is on the cable of 1 us or in the queue.
    assert missing
    assert missing <= set(range(int(17 * US / FRAME_TIME), int(21 * US / FRAME_TIME)))
    assert len(missing) == run.lost + run.dropped
    assert got == sorted(got)


def test_frames_are_dropped_until_switches_far_away_know_of_the_failure() -> None:
    used, _ = way_taken()
    spine = used.b
    far = next(link for link in leaf_spine(2, 2, 1).links if (link.a, link.b) == ("leaf1", spine))
    run = two_ways(outages=[Outage(far, at=20 * US)], reroute_after=30 * US)

    run.simulator.run()

    (port,) = [
        number
        for number, (_, peer) in enumerate(run.network.topology.ports(spine))
        if peer == "leaf1"
    ]
    count = run.network.switches[spine].counters[port].discarded["link down"]
    # Frames reach the spine for 30 us, one each 88 ns.
    assert count == pytest.approx(30 * US / FRAME_TIME, abs=2)
    assert len(run.hosts[1].got) == 1000 - run.lost - run.dropped


def test_link_that_comes_back_is_used_again() -> None:
    used, other = way_taken()
    run = two_ways(outages=[Outage(used, at=20 * US, until=40 * US)])
    wire = run.network.wires[other][0]

    run.simulator.run()

    # Only in these 20 us the other way is taken.
    sent = run.network.switches["leaf0"].counters
    ports = [link for link, _ in run.topology.ports("leaf0")]
    by_other = sum(sent[ports.index(other)].sent)
    assert by_other == pytest.approx(20 * US / FRAME_TIME, abs=2)
    assert wire.a_to_b.lost == 0
    assert run.network.down == []


def test_host_is_cut_off_and_goes_on_when_its_link_is_back() -> None:
    topology = star(2)
    run = Network(topology, outages=[Outage(topology.links[1], at=10 * US, until=1 * MS)])
    run.hosts[0].to_send.extend(DATA)

    run.simulator.run(until=2 * MS)

    (switch,) = run.network.switches.values()
    reasons = switch.counters[0].dropped + switch.counters[1].discarded
    # The host knows nothing of the failure: at 88 us its last frame has left.
    assert reasons["no route"] > 800
    assert len(run.hosts[1].got) == 1000 - run.lost - run.dropped
    assert switch.buffered == 0
    run.hosts[0].to_send.extend(DATA)
    run.simulator.run()
    assert len(run.hosts[1].got) == 2000 - run.lost - run.dropped


def test_failed_link_leaves_no_host_paused() -> None:
    topology = star(3)
    run = Network(topology, outages=[Outage(topology.links[2], at=100 * US)])
    for host in run.hosts[:2]:
        host.to_send.extend(frame(2, number=number) for number in range(1500))
    (switch,) = run.network.switches.values()
    run.simulator.run(until=99 * US)
    assert switch.is_pausing(0, 3)
    assert switch.is_pausing(1, 3)

    run.simulator.run()

    assert not switch.is_pausing(0, 3)
    assert not run.hosts[0].to_send
    assert switch.counters[2].discarded["link down"] > 100
    assert len(run.hosts[2].got) + run.lost + run.dropped == 3000


def test_pause_of_a_port_ends_with_its_link() -> None:
    topology = star(3)
    run = Network(topology)
    for host in run.hosts[:2]:
        host.to_send.extend(frame(2, number=number) for number in range(1500))
    run.simulator.run(until=99 * US)
    (wire,) = run.network.wires[topology.links[0]]
    pause = wire.a_to_b.pause
    assert pause is not None
    assert pause.paused == 1 << 3

    run.network.fail(topology.links[0])
    run.network.restore(topology.links[0])

    assert pause.paused == 0
    run.simulator.run()
    assert len(run.hosts[2].got) + run.lost + run.dropped == 3000


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Outage(Link("a", "b"), -1),
        lambda: Outage(Link("a", "b"), 5, 5),
        lambda: Network(star(2), outages=[Outage(Link("h0", "h9"), 1)]),
        lambda: Network(star(2), reroute_after=-1),
    ],
)
def test_impossible_outages_are_refused(wrong: Any) -> None:
    with pytest.raises(EncodeError):
        wrong()
