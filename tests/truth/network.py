"""Runs the network of a set: its links, flows and settings, with real packets.

The sets share a wire: a data packet has 1106 bytes of line time, which is a packet of an RC
message at path MTU 1024, and takes 88 ns on a line of 100 Gb/s, because ns-3 HPCC has whole
nanoseconds. So the lines here have 100.545 Gb/s. Every packet asks for an ACK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ibwire.base.units import GBPS, MS, NS, S, Time
from ibwire.fabric import Simulator
from ibwire.fabric.lossless import LosslessNetwork, SwitchSettings
from ibwire.fabric.sim import ETHERNET_OVERHEAD
from ibwire.fabric.topology import Link, Topology
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.device import Device
from ibwire.rc.profile import SPEC
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, WC, SendWR, WROpcode

MTU = 1024
PACKET = 1106
"""Bytes of line time of a data packet."""
PRIORITY = 3
PROFILE = replace(SPEC, name="truth", ack_request_interval=1)
DEFAULT_BUFFER = 32
"""MiB; that of the simulator where a set names none."""


class TimedQueue(CompletionQueue):
    """A completion queue that notes when its first completion came."""

    simulator: Simulator
    done: Time | None = None

    def push(self, wc: WC) -> bool:
        """Add a completion."""
        if self.done is None:
            self.done = self.simulator.now
        return super().push(wc)


@dataclass(slots=True)
class Flow:
    """One message from a host to another, and when it was acknowledged."""

    source: str
    target: str
    packets: int
    start: Time
    qp: QueuePair
    completions: TimedQueue
    wr: SendWR

    @property
    def duration(self) -> Time | None:
        """From the start to the last ACK; `None` for a message that has not ended."""
        return None if self.completions.done is None else self.completions.done - self.start


class Run:
    """A network of a set with its flows."""

    def __init__(self, setup: Mapping[str, Any], *, seed: int = 1) -> None:
        self.simulator = Simulator(seed)
        config = setup.get("config", {})
        links = [_link(*each) for each in setup["links"]]
        flows = flows_of(setup)
        numbers = {end for link in links for end in (link.a, link.b)}
        switches = {f"n{number}" for number in _switches(setup)}
        hosts = sorted(numbers - switches, key=_number)
        self.topology = Topology(hosts, sorted(switches, key=_number), links)
        self.devices = {
            host: Device(
                host, f"10.0.{_number(host) >> 8}.{_number(host) + 1 & 255}", profile=PROFILE
            )
            for host in hosts
        }
        self.network = LosslessNetwork(
            self.simulator,
            self.topology,
            {host: (device, device.mac) for host, device in self.devices.items()},
            SwitchSettings(
                buffer=config.get("buf", DEFAULT_BUFFER) << 20,
                headroom=_headroom,
                scales_alpha=True,
                overhead=ETHERNET_OVERHEAD,
            ),
        )
        self._memory = {
            host: self._register(device, flows, host) for host, device in self.devices.items()
        }
        self.flows = [self._flow(*flow) for flow in flows]

    def run(self, limit: Time = 100 * MS) -> None:
        """Run until all flows have ended, or until the limit."""
        waiting = sorted(self.flows, key=lambda flow: flow.start)
        for flow in waiting:
            self.simulator.run(until=flow.start)
            flow.qp.post_send(flow.wr)
            self.simulator.kick(flow.qp.device)
        left = list(self.flows)

        def ended() -> bool:
            while left and left[-1].completions.done is not None:
                left.pop()
            return not left

        self.simulator.run(until=limit, stop=ended)

    @property
    def end(self) -> Time:
        """When the last flow had ended; raises `ValueError` if one has not."""
        ends = [flow.completions.done for flow in self.flows]
        if None in ends:
            raise ValueError(f"{ends.count(None)} of {len(ends)} flows have not ended")
        return max(end for end in ends if end is not None)

    @property
    def drops(self) -> int:
        """Frames that switches have dropped."""
        return sum(
            port.dropped.total()
            for switch in self.network.switches.values()
            for port in switch.counters
        )

    def _register(self, device: Device, flows: Sequence[Any], host: str) -> Any:
        packets = max((flow[2] for flow in flows if host in flow[:2]), default=1)
        pd = device.alloc_pd()
        return pd, pd.register(packets * MTU, int(ALL_ACCESS))

    def _flow(self, source: str, target: str, packets: int, start: Time) -> Flow:
        (near_pd, local), (far_pd, remote) = self._memory[source], self._memory[target]
        near, far = self.devices[source], self.devices[target]
        completions = TimedQueue(near.emit, 4)
        completions.simulator = self.simulator
        qp = near.create_qp(QPInit(QPType.RC, near_pd, completions, near.create_cq(1)))
        peer = far.create_qp(QPInit(QPType.RC, far_pd, far.create_cq(1), far.create_cq(1)))
        for one, other in ((qp, peer), (peer, qp)):
            address = AddressVector(
                dgid=other.device.gids[0], sl=PRIORITY, traffic_class=26 << 2 | 2
            )
            bring_up(one, address, dest_qp_num=other.number, path_mtu=3, timeout=0)
        wr = SendWR(
            WROpcode.RDMA_WRITE,
            [SGE(local.iova, packets * MTU, local.lkey)],
            remote_addr=remote.iova,
            rkey=remote.rkey,
        )
        return Flow(source, target, packets, start, qp, completions, wr)


def flows_of(setup: Mapping[str, Any]) -> list[tuple[str, str, int, Time]]:
    """Source, target, packets and start of each flow of a set."""
    if "packets_each" in setup:
        return [
            (f"n{sender}", f"n{setup['receiver']}", setup["packets_each"], 0)
            for sender in range(setup["senders"])
        ]
    return [
        (f"n{source}", f"n{target}", -(-size // _PAYLOAD), start * NS)
        for source, target, _, size, start in setup["flows"]
    ]


def _switches(setup: Mapping[str, Any]) -> set[int]:
    """The numbers of the nodes with more than one link."""
    ends = [end for link in setup["links"] for end in link[:2]]
    return {end for end in ends if ends.count(end) > 1}


def _link(a: int, b: int, rate: str, delay_ns: int) -> Link:
    nominal = int(rate.removesuffix("Gbps")) * GBPS
    bits = PACKET * 8
    # A packet takes whole nanoseconds there, rounded down.
    return Link(f"n{a}", f"n{b}", bits * S // (bits * S // nominal // NS * NS), delay_ns * NS)


def _headroom(link: Link) -> int:
    """Three times what the nominal rate carries in the delay (reference/fabric#shared-buffer)."""
    nominal = round(link.rate_bps / (25 * GBPS)) * 25 * GBPS
    return 3 * nominal * link.delay // (8 * S)


def _number(name: str) -> int:
    return int(name[1:])


_PAYLOAD = 1058
"""Bytes of a flow that a packet carries there."""
