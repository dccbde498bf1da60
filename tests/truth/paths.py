"""Transfers over a fat tree with one path for each flow, or one for each packet, by htsim.

The files name the hosts and sizes of a permutation and, for each way to choose a path, how long
the transfers took and how much was retransmitted. The paths are random on both sides.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ibwire.base.units import GBPS, NS, US, S, Time
from ibwire.fabric import Simulator
from ibwire.fabric.lossless import LosslessNetwork, SwitchSettings
from ibwire.fabric.switch.routing import Strategy
from ibwire.fabric.topology import Topology, fat_tree
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device
from ibwire.rc.profile import SPEC, Profile
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, SendWR, WROpcode

STRATEGIES = {
    "ecmp_host": Strategy.ECMP,
    "ecmp_rr": Strategy.ROUND_ROBIN,
    "ecmp_ar": Strategy.FLOWLET,
}
"""By their names there. `ecmp_rr` sends each packet of a flow by another path, `ecmp_ar` each
flowlet by the path with the shortest queue."""

MARGINS = {"ecmp_host": 1.35, "ecmp_rr": 2.0, "ecmp_ar": 1.35}
"""By which factor a figure may be outside of the range there. With go-back-N every packet out of
order costs a restart, and how far packets get out of order depends on the buffers, which are not
the same: the transfers here end 1.6 times as late, with as much retransmitted."""

_FLOW = re.compile(r"(\d+)->(\d+) .*?size (\d+)")
_MTU_CODE, _MTU = 5, 4096
_PRIORITY = 3


def transfer_times(
    matrix: list[str],
    strategy: Strategy,
    *,
    seed: int = 1,
    profile: Profile = SPEC,
    topology: Topology | None = None,
) -> tuple[list[Time], int]:
    """How long each transfer of a matrix took, and bytes that were retransmitted."""
    simulator = Simulator(seed)
    topology = topology or fat_tree(4)
    devices = [
        Device(name, f"10.0.{number >> 8}.{number + 1 & 255}", profile=profile)
        for number, name in enumerate(topology.hosts)
    ]
    LosslessNetwork(
        simulator,
        topology,
        {each.name: (each, each.mac) for each in devices},
        SwitchSettings(buffer=4 << 20, strategy=strategy),
    )
    senders = []
    for line in matrix:
        found = _FLOW.match(line)
        assert found is not None, line
        source, target, size = map(int, found.groups())
        ends, regions, queues = [], [], []
        for device in (devices[source], devices[target]):
            pd, cq = device.alloc_pd(), device.create_cq(4)
            regions.append(pd.register(size, int(ALL_ACCESS)))
            ends.append(device.create_qp(QPInit(QPType.RC, pd, cq, cq)))
            queues.append(cq)
        qp, peer = ends
        for one, other in ((qp, peer), (peer, qp)):
            address = AddressVector(dgid=other.device.gids[0], sl=_PRIORITY, traffic_class=104)
            bring_up(one, address, dest_qp_num=other.number, path_mtu=_MTU_CODE, timeout=8)
        data = [SGE(regions[0].iova, size, regions[0].lkey)]
        remote = regions[1]
        qp.post_send(SendWR(WROpcode.RDMA_WRITE, data, remote_addr=remote.iova, rkey=remote.rkey))
        senders.append((qp, queues[0]))
    ended: dict[int, Time] = {}

    def all_ended() -> bool:
        for qp, cq in senders:
            if cq.poll(1):
                ended[id(qp)] = simulator.now
        return len(ended) == len(senders)

    simulator.run(until=1 * S, stop=all_ended)
    assert len(ended) == len(senders), f"{len(senders) - len(ended)} transfers have not ended"
    return sorted(ended.values()), sum(qp.counters.retransmitted for qp, _ in senders) * _MTU


def topology_of(document: Mapping[str, Any]) -> Topology:
    """The fat tree that a file describes in words: its host slots, rate and delay of a hop."""
    text = document.get("topology", "")
    number = max(
        int(each) for line in document["matrix"] for each in _FLOW.match(line).groups()[:2]
    )
    slots = re.search(r"(\d+) host", text)
    hosts = int(slots[1]) if slots else number + 1
    k = next(each for each in range(2, 64, 2) if each**3 // 4 >= hosts)
    rate = re.search(r"(\d+)\s?G\b", text)
    hop = re.search(r"([\d.]+) (us|ns) a hop", text)
    delay = round(float(hop[1]) * {"us": US, "ns": NS}[hop[2]]) if hop else 1 * US
    return fat_tree(k, rate_bps=int(rate[1]) * GBPS if rate else 100 * GBPS, delay=delay)


def figures(document: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """The last completion in microseconds and megabytes retransmitted of each run, by strategy."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in document["runs"]:
        found[run["strategy"]]["last, us"].append(max(run["fct_us"]))
        found[run["strategy"]]["first, us"].append(min(run["fct_us"]))
        found[run["strategy"]]["retransmitted, MB"].append(run["retransmitted_bytes"] / 1e6)
    return found


def own_figures(
    matrix: list[str], strategy: Strategy, seed: int, topology: Topology
) -> dict[str, float]:
    """The same figures of one run here."""
    times, again = transfer_times(matrix, strategy, seed=seed, topology=topology)
    return {
        "last, us": times[-1] / US,
        "first, us": times[0] / US,
        "retransmitted, MB": again / 1e6,
    }
