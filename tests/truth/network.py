"""Runs the network of a set: its links, flows and settings, with real packets.

The sets share a wire: a data packet has 1106 bytes of line time, which is a packet of an RC
message at path MTU 1024, and takes 88 ns on a line of 100 Gb/s, because ns-3 HPCC has whole
nanoseconds. So the lines here have 100.545 Gb/s. Every packet asks for an ACK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ibwire.base.units import ETHERNET_OVERHEAD, GBPS, MS, NS, S, Time
from ibwire.fabric import Simulator
from ibwire.fabric.lossless import LosslessNetwork, SwitchSettings
from ibwire.fabric.pause import is_mac_control
from ibwire.fabric.switch import Ramp
from ibwire.fabric.topology import Link, Topology
from ibwire.impair import Chance, Loss
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.congestion import DCQCN, HPCC_MODEL, NotificationPoint
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


class WholeNanoseconds(DCQCN):
    """DCQCN on the clock of the other simulator: gaps between packets are rounded down."""

    def sent(self, size: int, now: Time) -> None:
        """A packet begins to leave."""
        super().sent(size, now)
        self.next_send = now + (self.next_send - now) // NS * NS


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
    is_posted: bool = False

    def post(self) -> None:
        """Hand the message to its queue pair."""
        self.qp.post_send(self.wr)
        self.is_posted = True

    @property
    def duration(self) -> Time | None:
        """From the start to the last ACK; `None` for a message that has not ended."""
        return None if self.completions.done is None else self.completions.done - self.start


class Run:
    """A network of a set with its flows."""

    def __init__(
        self, setup: Mapping[str, Any], *, seed: int = 1, loss: float = 0, timeout: int = 0
    ) -> None:
        """loss: probability that a link loses a frame. timeout: code of the ACK timer."""
        self._timeout = timeout
        self.simulator = Simulator(seed)
        self._tables: dict[str, dict[str, list[int]]] | None = None
        config = setup.get("config", {})
        links = [_link(*each) for each in setup["links"]]
        flows = flows_of(setup)
        numbers = {end for link in links for end in (link.a, link.b)}
        switches = {f"n{number}" for number in _switches(setup)}
        hosts = sorted(numbers - switches, key=_number)
        self.topology = Topology(hosts, sorted(switches, key=_number), links)
        self.devices = {
            host: Device(
                host,
                f"10.0.{_number(host) >> 8}.{_number(host) + 1 & 255}",
                profile=PROFILE,
                **_control(config, self.topology.ports(host)[0][0]),
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
                ramps=_ramps(config),
                overhead=ETHERNET_OVERHEAD,
            ),
        )
        self._memory = {
            host: self._register(device, flows, host) for host, device in self.devices.items()
        }
        self.flows = [self._flow(*flow) for flow in flows]
        self.first_pauses: dict[str, Time] = {}
        """When the first pause frame arrived, by host."""
        for host in hosts:
            self._watch(host)
        if loss:
            for wire in self.simulator.wires:
                for line in (wire.a_to_b, wire.b_to_a):
                    line.stage = Loss(Chance(loss, seed=seed, name=line.name))

    def _watch(self, host: str) -> None:
        ((link, _),) = self.topology.ports(host)
        (wire,) = self.network.wires[link]
        line = wire.b_to_a if link.a == host else wire.a_to_b

        def note(frame: bytes, now: Time) -> list[tuple[Time, bytes]]:
            if is_mac_control(frame):
                bits = (len(frame) + line.overhead) * 8
                self.first_pauses.setdefault(host, now + bits * S // line.rate_bps + line.delay)
            return [(0, frame)]

        line.stage = note

    def run(self, limit: Time = 100 * MS) -> None:
        """Run until all flows have ended, or until the limit."""
        for flow in sorted(self.flows, key=lambda flow: flow.start):
            if not flow.is_posted:
                self.simulator.run(until=flow.start)
                flow.post()
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

    def hops(self, source: str, target: str) -> int:
        """Links between two hosts."""
        tables = self.topology.next_hops() if self._tables is None else self._tables
        self._tables = tables
        node, count = self.topology.ports(source)[0][1], 1
        while node != target:
            node = self.topology.ports(node)[tables[node][target][0]][1]
            count += 1
        return count

    def post(self) -> None:
        """Post all messages that begin at once."""
        for flow in self.flows:
            flow.post()

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
            bring_up(one, address, dest_qp_num=other.number, path_mtu=3, timeout=self._timeout)
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
    return Link(f"n{a}", f"n{b}", _rate(nominal), delay_ns * NS)


def _headroom(link: Link) -> int:
    """Three times what the nominal rate carries in the delay (reference/fabric#shared-buffer)."""
    return 3 * _nominal(link) * link.delay // (8 * S)


def _nominal(link: Link) -> int:
    """The rate of a line by its name: a whole number of gigabits a second, of 5 or more."""
    return round(link.rate_bps / (5 * GBPS)) * 5 * GBPS


def _control(config: Mapping[str, Any], link: Link) -> dict[str, Any]:
    """How devices control congestion: not at all, or by DCQCN."""
    if not config.get("qcn", 1) or config.get("cc") == 0:
        return {}
    named = {
        "rp_min_rate": megabits(config.get("minr", "100Mb/s")),
        "rp_ai_rate": megabits(config.get("ai", "5Mb/s")),
        "rp_hai_rate": megabits(config.get("hai", "50Mb/s")),
        "rp_time_reset": config.get("rp_timer", 300),
        "rp_threshold": config.get("fr", 1),
        "rp_dce_tcp_rtt": config.get("alpha_us", 1),
        "rp_rate_reduce_monitor_period": config.get("dec_us", 4),
        "rp_dce_tcp_g": round(1024 * (1 - config.get("g", 1 / 256))),
    }
    parameters = replace(HPCC_MODEL, **named)
    return {
        "rate_control": lambda: WholeNanoseconds(parameters, _nominal(link)),
        "notification": NotificationPoint(interval=0),
    }


def _ramps(config: Mapping[str, Any]) -> dict[int, Ramp]:
    """When frames are marked, by the rate of a line here."""
    if "kmin" in config:
        return {0: _ramp(config["kmin"], config["kmax"], config["pmax"])}
    return {_rate(int(bps)): _ramp(*limits) for bps, limits in config.get("rates", {}).items()}


def _ramp(minimum: int, maximum: int, probability: float) -> Ramp:
    return Ramp(minimum=minimum * 1000, maximum=maximum * 1000, probability=probability)


def megabits(text: str) -> int:
    """`5Mb/s` or `1Gb/s` in megabits a second."""
    return int(text.removesuffix("b/s")[:-1]) * (1000 if "G" in text else 1)


def _rate(nominal: int) -> int:
    """Bits a second of a line on which a packet takes whole nanoseconds, rounded down."""
    bits = PACKET * 8
    return bits * S // (bits * S // nominal // NS * NS)


def _number(name: str) -> int:
    return int(name[1:])


_PAYLOAD = 1058
"""Bytes of a flow that a packet carries there."""
