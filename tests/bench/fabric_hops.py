"""What a frame costs at each switch: InfiniBand with credits beside lossless Ethernet, in one run.

    python tests/bench/fabric_hops.py [--packets N] [--rounds N]

The same transfers, WRITEs with the transport of `ibwire.rc` and an ACK for each sixteenth packet:
eight hosts to one over a star, and permutations of 16 hosts. A hop is a packet, data or ACK, that a
switch sends; CPU time is that of the whole run over all hops, so it has the hosts too. Topologies
take turns; the table shows the median of each. Ethernet: tests/bench/fabric.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from fabric import MTU, PROFILE, Pairs, emulate, permutation
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.network import set_limits
from ibwire.fabric.infiniband.routing import Engine, bring_up
from ibwire.fabric.topology import fat_tree, star
from ibwire.scenario.infiniband import FabricTraffic

INCAST = [(sender, 8) for sender in range(8)]


def infiniband(key: str, pairs: Pairs, packets: int) -> tuple[int, float]:
    """Hops, and the CPU seconds they took."""
    subnet = generate(key)
    bring_up(subnet, Engine.UPDN)
    set_limits(subnet)
    traffic = FabricTraffic(subnet, profile=PROFILE)
    hosts = subnet.host_ports()
    for source, destination in pairs:
        traffic.add(hosts[source], hosts[destination], packets * MTU, mtu=MTU)
    begun = time.process_time()
    traffic.run()
    seconds = time.process_time() - begun
    assert all(each.arrived for each in traffic.transfers), "a transfer has not ended"
    switches = [node for node in subnet.nodes.values() if node.is_switch]
    hops = sum(port.counters.port_xmit_pkts for node in switches for port in node.external_ports())
    return hops, seconds


def ethernet(kind: str, pairs: Pairs, packets: int) -> tuple[int, float]:
    """The same of a network of Ethernet switches."""
    result = emulate(star(9) if kind == "star" else fat_tree(4), pairs, packets)
    return result.dequeues, result.seconds


def main() -> None:
    """Run the jobs and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--packets", type=int, default=8000, help="data packets of each job")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    each = options.packets // 16
    pairs = permutation(16, 16)
    jobs: dict[str, Callable[[], tuple[int, float]]] = {
        "Ethernet, star 8 to 1": lambda: ethernet("star", INCAST, 2 * each),
        "Ethernet, fat tree of 20 switches": lambda: ethernet("tree", pairs, each),
        "InfiniBand, star 8 to 1": lambda: infiniband("star:hosts=9", INCAST, 2 * each),
        "InfiniBand, fat tree of 20 switches": lambda: infiniband(
            "fattree:ports=4,levels=3", pairs, each
        ),
        "InfiniBand, torus 4x4": lambda: infiniband("torus:size=4x4,hosts=1", pairs, each),
        "InfiniBand, ring of 8": lambda: infiniband("ring:switches=8,hosts=2", pairs, each),
        "InfiniBand, Dragonfly+": lambda: infiniband(
            "dragonfly:groups=4,leaves=2,spines=2,hosts=2,links=1", pairs, each
        ),
    }
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in jobs}
    for _ in range(options.rounds):
        for name, job in jobs.items():
            found[name].append(job())
    print(f"{'':<38}{'hops':>9}{'us a hop':>10}")
    for name, runs in found.items():
        cost = statistics.median(seconds / hops for hops, seconds in runs)
        print(f"{name:<38}{runs[0][0]:>9,}{1e6 * cost:>10.1f}")


if __name__ == "__main__":
    main()
