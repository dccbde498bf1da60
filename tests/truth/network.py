"""Runs the network of a set: its links, flows and settings, with real packets.

The sets share a wire: a data packet has 1106 bytes of line time, which is a packet of an RC
message at path MTU 1024, and takes 88 ns on a line of 100 Gb/s, because ns-3 HPCC has whole
nanoseconds. So the lines here have 100.545 Gb/s. Every packet asks for an ACK. With HPCC a packet
carries 42 bytes of telemetry, with TIMELY 8 of a time stamp, which stand here as line time.

With packets of one length many events fall on one instant, so their order counts, and a frame that
is a nanosecond late may change what follows. Messages are SENDs, as the first packet of a WRITE is
longer, and lines that carry no data have the delay with which frames arrive in time (`Mode.back`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import Any, Self

from ibwire.base import telemetry
from ibwire.base.units import ETHERNET_OVERHEAD, NS, S, Time
from ibwire.fabric import Simulator
from ibwire.fabric.lossless import LosslessNetwork, SwitchSettings
from ibwire.fabric.pause import is_mac_control
from ibwire.fabric.switch import Ramp
from ibwire.fabric.switch.port import PriorityRules
from ibwire.fabric.topology import Link, Topology
from ibwire.impair import Chance, Loss
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.congestion import (
    DCQCN,
    DCTCP,
    HPCC,
    HPCC_MODEL,
    UNLIMITED,
    DCTCPParameters,
    Feedback,
    HPCCParameters,
    NotificationPoint,
    Parameters,
    Timely,
    TimelyParameters,
)
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.cq import CompletionChannel, CompletionQueue
from ibwire.rc.device import Device
from ibwire.rc.profile import SPEC
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, RecvWR, SendWR, WROpcode

MTU = 1024
PACKET = 1106
"""Bytes of line time of a data packet."""
_PAUSE = 43
"""Bytes of line time of a pause frame there."""
PRIORITY = 3
PROFILE = replace(SPEC, name="truth", ack_request_interval=1, live_credits=False)
DEFAULT_BUFFER = 32
"""MiB; that of the simulator where a set names none."""


class WholeNanoseconds:
    """DCQCN on the clock of the other simulator: gaps between packets are rounded down.

    Classes of compiled modules cannot be subclassed, so it has one.
    """

    def __init__(self, parameters: Parameters, line_bps: int) -> None:
        self._dcqcn = DCQCN(parameters, line_bps)
        self.next_send: Time = 0

    def set_gain(self, gain: float) -> None:
        """Change g, which is a multiple of 1/1024 in the parameters."""
        self._dcqcn._gain = gain

    @property
    def rate(self) -> float:
        """Bits a second."""
        return self._dcqcn.rate

    @property
    def cuts(self) -> int:
        """How often the rate was cut."""
        return self._dcqcn.cuts

    def sent(self, size: int, now: Time) -> None:
        """A packet begins to leave."""
        self._dcqcn.sent(size, now)
        is_held = self._dcqcn.next_send > now
        self.next_send = now + _whole(size, self._dcqcn.rate) if is_held else now

    def notified(self, now: Time) -> None:
        """A CNP has arrived."""
        self._dcqcn.notified(now)

    def advance(self, now: Time) -> None:
        """Do what the timers have to do until now."""
        self._dcqcn.advance(now)


class _Model:
    """The parts of a control that are peculiar to the other simulator: its clock, its window."""

    rate: float
    window: float = UNLIMITED
    has_telemetry = False
    _limit = UNLIMITED
    _varies = False

    def gap(self, size: int) -> Time:
        """How long bytes take at the rate, rounded down."""
        return _whole(size, self.rate)

    def limit(self, bdp: float, line_bps: int, *, varies: bool) -> Self:
        """Take a window of this many bytes, in proportion to the rate if it `varies`."""
        self._limit = bdp * MTU / _PAYLOAD / line_bps
        self._line_bps = line_bps
        self._varies = varies
        self._set_limit()
        return self

    def acknowledged(self, feedback: Feedback, now: Time) -> None:
        """A request was acknowledged."""
        parent: Any = super()
        if hasattr(parent, "acknowledged"):
            parent.acknowledged(feedback, now)
        self._set_limit()

    def _set_limit(self) -> None:
        self.window = max(self._limit * (self.rate if self._varies else self._line_bps), 1)

    _line_bps = 1


class WindowedDCQCN(_Model, WholeNanoseconds):
    """DCQCN with a window."""


class WholeHPCC(_Model, HPCC):
    """HPCC as the other simulator has it."""

    has_telemetry = True


class WholeDCTCP(_Model, DCTCP):
    """DCTCP as the other simulator has it."""


class WholeTimely(_Model, Timely):
    """TIMELY as the other simulator has it."""

    def sent(self, size: int, now: Time) -> None:
        """A packet begins to leave, with a time stamp that is not in the frame here."""
        super().sent(size + Mode.TIMELY.stamp, now)


@dataclass(slots=True)
class Flow:
    """One message from a host to another, and when it was acknowledged."""

    source: str
    target: str
    packets: int
    start: Time
    qp: QueuePair
    wr: SendWR
    is_posted: bool = False
    done: Time | None = None
    """When its completion came."""

    def post(self) -> None:
        """Hand the message to its queue pair."""
        self.qp.post_send(self.wr)
        self.is_posted = True

    @property
    def duration(self) -> Time | None:
        """From the start to the last ACK; `None` for a message that has not ended."""
        return None if self.done is None else self.done - self.start


class Run:
    """A network of a set with its flows."""

    def __init__(
        self,
        setup: Mapping[str, Any],
        *,
        seed: int = 1,
        loss: float = 0,
        timeout: int = 0,
        watched: Iterable[tuple[str, int]] = (),
    ) -> None:
        """loss: probability that a link loses a frame. timeout: code of the ACK timer. watched:
        ports of switches, counted from 1, whose first pause is noted as that of hosts is."""
        self._timeout = timeout
        self._tables: dict[str, dict[str, list[int]]] | None = None
        self._ports: dict[str, list[tuple[Link, str]]] = {}
        config = setup.get("config", {})
        self.mode = mode = Mode(config.get("cc", 1))
        self.simulator = Simulator(seed, arrivals_first=True)
        links = [_link(*each, packet=mode.packet) for each in setup["links"]]
        self._nominal = {
            link.rate_bps: bits_per_second(each[2])
            for link, each in zip(links, setup["links"], strict=True)
        }
        """The rate that a line has by its name, by its rate here."""
        flows = flows_of(setup)
        numbers = {end for link in links for end in (link.a, link.b)}
        switches = {f"n{number}" for number in _switches(setup)}
        hosts = sorted(numbers - switches, key=_number)
        self.topology = Topology(hosts, sorted(switches, key=_number), links)
        trip = self._longest_trip() if mode.has_feedback or config.get("has_win") else (0, 0)
        self.devices = {
            host: Device(
                host,
                f"10.0.{_number(host) >> 8}.{_number(host) + 1 & 255}",
                profile=PROFILE,
                **_control(mode, config, self.line(host), *trip),
            )
            for host in hosts
        }
        self.network = LosslessNetwork(
            self.simulator,
            self.topology,
            {host: (device, device.mac) for host, device in self.devices.items()},
            SwitchSettings(
                buffer=int(config.get("buf", DEFAULT_BUFFER) * (1 << 20)),
                rules=partial(self._rules, _ramps(config)),
                overhead=ETHERNET_OVERHEAD + mode.stamp,
                has_telemetry=mode is Mode.HPCC,
            ),
            wire_overhead=ETHERNET_OVERHEAD + mode.stamp,
        )
        self._shorten_back(flows, mode)
        self._memory = {
            host: self._register(device, flows, host) for host, device in self.devices.items()
        }
        self._channel = CompletionChannel()
        self._by_queue: dict[int, Flow] = {}
        """The flow of each completion queue, by its identity."""
        self.flows = [self._flow(*flow) for flow in flows]
        self.first_pauses: dict[tuple[str, int], Time] = {}
        """When the first pause frame arrived, by node and port, which counts from 1."""
        for port in {*((host, 1) for host in hosts), *watched}:
            self._watch(*port)
        if loss:
            for wire in self.simulator.wires:
                for line in (wire.a_to_b, wire.b_to_a):
                    line.stage = Loss(Chance(loss, seed=seed, name=line.name))

    def _shorten_back(self, flows: Sequence[tuple[str, str, int, Time]], mode: Mode) -> None:
        """Give frames on lines that carry no data the whole nanoseconds that they take there."""
        tables = self.topology.next_hops()
        lines = set()
        for source, target in {flow[:2] for flow in flows}:
            waiting = [(source, self.topology.ports(source)[0])]
            while waiting:
                node, (link, following) = waiting.pop()
                (wire,) = self.network.wires[link]
                lines.add(id(wire.a_to_b if link.a == node else wire.b_to_a))
                if following != target:
                    ports = self.topology.ports(following)
                    waiting += [(following, ports[port]) for port in tables[following][target]]
        for wire in self.simulator.wires:
            for line in (wire.a_to_b, wire.b_to_a):
                if id(line) not in lines:
                    # An empty line takes a picosecond.
                    line.numerator, line.denominator = 0, 1
                    nominal = self._nominal[line.rate_bps]
                    first, later = _whole(_PAUSE, nominal), _whole(mode.back, nominal)
                    line.delay += first - 1
                    if later > first:
                        line.stage = partial(_delayed, later - first)

    def _rules(self, ramps: Mapping[int, Ramp], link: Link) -> Mapping[int, PriorityRules]:
        """A port as the other simulator sets it up (third.cc there): three times of headroom what
        the line carries in its delay, and alpha twice for each halving that brings the rate of
        the port down to that of the first host, from 1/8 to 1 at most."""
        rate = nominal = self._nominal[link.rate_bps]
        host = self.line(self.topology.hosts[0])
        alpha = Fraction(1, 8)
        while rate > host and alpha < 1:
            rate, alpha = rate // 2, alpha * 2
        rules = PriorityRules(
            is_lossless=True,
            reserve=4096,
            headroom=nominal * (link.delay // NS) // 8 // 10**9 * 3,
            alpha=alpha,
            ramp=ramps.get(nominal, ramps.get(0)),
        )
        return {PRIORITY: rules}

    def line(self, host: str) -> int:
        """Bits a second of the line of a host, by its name."""
        return self._nominal[self.topology.ports(host)[0][0].rate_bps]

    def _watch(self, node: str, port: int) -> None:
        ends = [
            line
            for _, wire, places in self.network.ends
            for place, line in zip(places, (wire.b_to_a, wire.a_to_b), strict=True)
            if place == (node, port - 1)
        ]
        if not ends:
            raise ValueError(f"{node} has no port {port}")
        (line,) = ends
        passed = line.stage

        def note(frame: bytes, now: Time) -> list[tuple[Time, bytes]]:
            if is_mac_control(frame):
                arrival = now + line.time_of(len(frame) + line.overhead) + line.delay
                self.first_pauses.setdefault((node, port), arrival)
            return [(0, frame)] if passed is None else list(passed(frame, now))

        line.stage = note

    def run(self, limit: Time = 1 * S) -> None:
        """Run until all flows have ended, or until the limit."""
        self.run_until(max(flow.start for flow in self.flows))
        self.advance(limit, until_ended=True)

    def run_until(self, time: Time) -> None:
        """Run to a time, and post the messages that begin until then.

        A host takes turns from the first packet on between those that begin at the same time.
        """
        waiting = [flow for flow in self.flows if not flow.is_posted and flow.start <= time]
        for start, flows in groupby(sorted(waiting, key=_start), key=_start):
            self.advance(start)
            begun = list(flows)
            for flow in begun:
                flow.post()
            for flow in begun:
                self.simulator.kick(flow.qp.device)
        self.advance(time)

    def advance(self, until: Time, *, until_ended: bool = False) -> None:
        """Run to a time, or until all flows have ended, and note when each of them does."""
        left = sum(flow.done is None for flow in self.flows)
        events = self._channel.events

        def note() -> bool:
            nonlocal left
            while events:
                flow = self._by_queue[id(events.popleft())]
                flow.done = self.simulator.now
                left -= 1
            return until_ended and not left

        self.simulator.run(until=until, stop=note)

    @property
    def end(self) -> Time:
        """When the last flow had ended; raises `ValueError` if one has not."""
        ends = [flow.done for flow in self.flows]
        if None in ends:
            raise ValueError(f"{ends.count(None)} of {len(ends)} flows have not ended")
        return max(end for end in ends if end is not None)

    def alone(self, flow: Flow) -> float:
        """Nanoseconds of a flow that has the network to itself: its packets on the slowest line,
        one packet on each of the others, and the delays there and back."""
        links = self._links(flow.source, flow.target)
        each = [PACKET * 8 * 10**9 // self._nominal[link.rate_bps] for link in links]
        trip = 2 * sum(link.delay // NS for link in links)
        return flow.packets * max(each) + sum(each) - max(each) + trip

    def _longest_trip(self) -> tuple[int, int]:
        """Nanoseconds of the longest round trip, and the largest product with the rate in bytes.

        As the other simulator has it: delays twice, and the payload of a packet on each line.
        """
        rtt = bdp = 0
        for source in self.topology.hosts:
            for target in self.topology.hosts:
                if source == target:
                    continue
                path = self._links(source, target)
                rates = [self._nominal[link.rate_bps] for link in path]
                sending = sum(_PAYLOAD * 8 * 10**9 // rate for rate in rates)
                trip = 2 * sum(link.delay // NS for link in path) + sending
                rtt = max(rtt, trip)
                bdp = max(bdp, trip * min(rates) // 10**9 // 8)
        return rtt, bdp

    def _links(self, source: str, target: str) -> list[Link]:
        """The links of a shortest way between two hosts."""
        if self._tables is None:
            self._tables = self.topology.next_hops()
        if not self._ports:
            names = (*self.topology.hosts, *self.topology.switches)
            self._ports = {name: self.topology.ports(name) for name in names}
        link, node = self._ports[source][0]
        found = [link]
        while node != target:
            link, node = self._ports[node][self._tables[node][target][0]]
            found.append(link)
        return found

    def paused(self) -> dict[str, Time]:
        """For how long each port was stopped by pause frames; ports count from 1."""
        now = self.simulator.now
        return {
            f"{_number(node)}:{port + 1}": line.pause.time_stopped(PRIORITY, now)
            for _, wire, ends in self.network.ends
            for (node, port), line in zip(ends, (wire.a_to_b, wire.b_to_a), strict=True)
            if line.pause is not None
        }

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
        completions = CompletionQueue(near.emit, 4, self._channel)
        completions.arm()
        qp = near.create_qp(QPInit(QPType.RC, near_pd, completions, near.create_cq(1)))
        peer = far.create_qp(QPInit(QPType.RC, far_pd, far.create_cq(1), far.create_cq(1)))
        for one, other in ((qp, peer), (peer, qp)):
            address = AddressVector(
                dgid=other.device.gids[0], sl=PRIORITY, traffic_class=26 << 2 | 2
            )
            bring_up(one, address, dest_qp_num=other.number, path_mtu=3, timeout=self._timeout)
        data = [SGE(local.iova, packets * MTU, local.lkey)]
        peer.post_recv(RecvWR([SGE(remote.iova, packets * MTU, remote.lkey)]))
        wr = SendWR(WROpcode.SEND, data)
        flow = Flow(source, target, packets, start, qp, wr)
        self._by_queue[id(completions)] = flow
        return flow


def _delayed(time: Time, frame: bytes, now: Time) -> list[tuple[Time, bytes]]:
    """Delay a frame, unless it is a pause frame."""
    return [(0 if is_mac_control(frame) else time, frame)]


def _start(flow: Flow) -> Time:
    return flow.start


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


def _link(a: int, b: int, rate: str, delay_ns: int, *, packet: int) -> Link:
    return Link(f"n{a}", f"n{b}", _rate(bits_per_second(rate), packet), delay_ns * NS)


class Mode(Enum):
    """How senders control congestion, by the number that the other simulator has for it."""

    NONE = 0
    DCQCN = 1
    HPCC = 3
    TIMELY = 7
    DCTCP = 8

    @property
    def has_feedback(self) -> bool:
        """Whether acknowledgements move the rate."""
        return self not in (Mode.NONE, Mode.DCQCN)

    @property
    def stamp(self) -> int:
        """Bytes of a time stamp, which is not in the frames here."""
        return 8 if self is Mode.TIMELY else 0

    @property
    def back(self) -> int:
        """Bytes of line time of an ACK there; a CNP is a flag of it."""
        return 88 if self is Mode.HPCC else 60

    @property
    def packet(self) -> int:
        """Bytes of line time of a data packet."""
        return PACKET + (telemetry.SIZE if self is Mode.HPCC else self.stamp)


MODES = frozenset(mode.value for mode in Mode)


def _control(
    mode: Mode, config: Mapping[str, Any], line: int, rtt_ns: int, bdp: int
) -> dict[str, Any]:
    """How devices control congestion: not at all, or by a model with the values of a set."""
    if not config.get("qcn", 1) or mode is Mode.NONE:
        return {}
    least = megabits(config.get("minr", "100Mb/s"))
    step, step_after = megabits(config.get("ai", "5Mb/s")), megabits(config.get("hai", "50Mb/s"))
    gain = config.get("g", 1 / 256)

    def make() -> Any:
        control: Any
        if mode is Mode.HPCC:
            hpcc = HPCCParameters(
                eta=config.get("u", 0.95),
                max_stage=config.get("mi_thresh", 0),
                ai_bps=step * 10**6,
                min_bps=least * 10**6,
                base_rtt=rtt_ns * NS,
                has_window=False,
            )
            control = WholeHPCC(hpcc, line, bdp=bdp)
        elif mode is Mode.TIMELY:
            timely = TimelyParameters(
                delta_bps=step * 10**6, hai_bps=step_after * 10**6, min_bps=least * 10**6
            )
            control = WholeTimely(timely, line)
        elif mode is Mode.DCTCP:
            ai = megabits(config.get("dctcp_ai", "1000Mb/s"))
            dctcp = DCTCPParameters(
                g=gain, ai_bps=ai * 10**6, min_bps=least * 10**6, has_window=False
            )
            control = WholeDCTCP(dctcp, line)
        else:
            named = {
                "rp_min_rate": least,
                "rp_ai_rate": step,
                "rp_hai_rate": step_after,
                "rp_time_reset": config.get("rp_timer", 300),
                "rp_threshold": config.get("fr", 1),
                "rp_dce_tcp_rtt": config.get("alpha_us", 1),
                "rp_rate_reduce_monitor_period": config.get("dec_us", 4),
            }
            kind = WindowedDCQCN if config.get("has_win") else WholeNanoseconds
            control = kind(replace(HPCC_MODEL, **named), line)
            control.set_gain(gain)
        if config.get("has_win"):
            control.limit(bdp, line, varies=bool(config.get("varwin")))
        return control

    return {"rate_control": make, "notification": NotificationPoint(interval=0)}


def _ramps(config: Mapping[str, Any]) -> dict[int, Ramp]:
    """When frames are marked, by the rate of a line; 0 for all others."""
    if "kmin" in config:
        return {0: _ramp(config["kmin"], config["kmax"], config["pmax"])}
    return {int(bps): _ramp(*limits) for bps, limits in config.get("rates", {}).items()}


def _ramp(minimum: float, maximum: float, probability: float) -> Ramp:
    """minimum, maximum: in units of 1,000 bytes."""
    return Ramp(minimum=int(minimum * 1000), maximum=int(maximum * 1000), probability=probability)


def bits_per_second(text: str) -> int:
    """`100Gbps`, `5Mb/s`, `1.6Tbps` or `2500000000bps` in bits a second."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"the rate {text!r} is not of the form 100Gbps or 5Mb/s")
    return int(Fraction(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " "))


def megabits(text: str) -> int | float:
    """`5Mb/s` or `1Gb/s` in megabits a second."""
    found = Fraction(bits_per_second(text), 10**6)
    return int(found) if found.denominator == 1 else float(found)


_RATE = re.compile(r"([0-9.]+) ?([KMGTkmgt]?)(?:b/s|bps|bit/s)")


def _rate(nominal: int, packet: int) -> int:
    """Bits a second of a line on which a packet takes whole nanoseconds, rounded down."""
    return -(-packet * 8 * S // _whole(packet, nominal))


def _whole(size: int, rate: float) -> Time:
    """How long bytes take in whole nanoseconds, as ns-3 rounds: a floating-point number of seconds
    becomes one with 64 binary places (int64x64-128.h), and that is cut to nanoseconds."""
    seconds = size * 8 / int(rate)
    return (int(seconds * 2**64) * 10**9 >> 64) * NS


def _number(name: str) -> int:
    return int(name[1:])


_PAYLOAD = 1058
"""Bytes of a flow that a packet carries there."""
