"""A network of switches between devices: a topology with its settings, made ready to run.

`LosslessNetwork` makes the switches of a topology, with a buffer, headroom for each port,
routing tables and flow control on every link, and joins the devices of its hosts to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame, Node, Stage
from ibwire.base.units import ETHERNET_OVERHEAD, S, Time
from ibwire.fabric.line import Direction
from ibwire.fabric.llr import LLR, RetryLink
from ibwire.fabric.pause import LANES, LONGEST, QUANTUM_BITS, pause_frame, pfc_frame
from ibwire.fabric.sim import Simulator, Wire
from ibwire.fabric.switch.classes import Classifier, Remark
from ibwire.fabric.switch.cut_through import CutThrough
from ibwire.fabric.switch.marking import Ramp
from ibwire.fabric.switch.port import PortSettings, PriorityRules
from ibwire.fabric.switch.routing import FLOWLET_GAP, Router, Strategy
from ibwire.fabric.switch.switch import FCS, Switch
from ibwire.fabric.switch.watchdog import Watchdog
from ibwire.fabric.timetable import Timetable
from ibwire.fabric.topology import Link, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSettings:
    """What a switch is like, or all of a network."""

    buffer: int
    """Bytes of each switch."""
    lossless: tuple[int, ...] = (3,)
    """Priorities that pause instead of dropping."""
    reserve: int = 4096
    """Bytes of each port and lossless priority."""
    headroom: Callable[[Link], int] | None = None
    """Bytes of headroom for a link; by default three times what it carries in its delay."""
    alpha: Fraction = Fraction(1, 8)
    ramps: Mapping[int, Ramp] = field(default_factory=dict)
    """When frames are marked, by the rate of the port in bits a second; 0 for all other rates."""
    strict: tuple[int, ...] = ()
    weights: Mapping[int, int] = field(default_factory=dict)
    classifier: Classifier = field(default_factory=Classifier)
    strategy: Strategy = Strategy.ECMP
    overhead: int = FCS
    """Bytes that a frame takes in the buffer besides its own."""
    latency: Time = 0
    """From the arrival of a frame to its place in the buffer and in a queue."""
    is_cut_through: bool = False
    """Whether frames begin to leave before they have arrived whole (`CutThrough`)."""
    path_weights: Mapping[str, int] = field(default_factory=dict)
    """How often a neighbour is taken, beside others that lead to the same host."""
    flowlet_gap: Time = FLOWLET_GAP
    """Time without a packet after which a flow may take another port, for `Strategy.FLOWLET`."""
    remarks: Mapping[int, Remark] = field(default_factory=dict)
    """What switches write into frames, by priority."""
    watchdog: Watchdog | None = None
    """For queues that a neighbour pauses for too long."""
    pauses_port: bool = False
    """Whether pauses are of IEEE 802.3x, for the whole port, and not of PFC."""
    has_telemetry: bool = False
    """Whether switches write their queues into packets that have room (`ibwire.base.telemetry`)."""
    rules: Callable[[Link], Mapping[int, PriorityRules]] | None = None
    """The rules of each priority of a port, in place of those that `lossless`, `reserve`,
    `headroom`, `alpha` and `ramps` give."""

    def port(self, link: Link) -> PortSettings:
        """The port at a link."""
        if self.rules is not None:
            return PortSettings(link.rate_bps, self.rules(link))
        lossless = PriorityRules(
            is_lossless=True,
            reserve=self.reserve,
            headroom=(self.headroom or default_headroom)(link),
            alpha=self.alpha,
            ramp=self.ramps.get(link.rate_bps, self.ramps.get(0)),
        )
        return PortSettings(link.rate_bps, dict.fromkeys(self.lossless, lossless))


@dataclass(frozen=True, slots=True)
class Outage:
    """A link that fails at a time, and comes back at another or never."""

    link: Link
    at: Time
    until: Time | None = None

    def __post_init__(self) -> None:
        if self.at < 0:
            raise EncodeError("at", self.at, "0 or above")
        if self.until is not None and self.until <= self.at:
            raise EncodeError("until", self.until, f"above {self.at}, as the link fails then")


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseStorm:
    """A host that pauses its switch again and again, as a broken NIC does."""

    host: str
    start: Time
    end: Time
    """No pause is sent at this time or later; the last one lasts on for its quanta."""
    priorities: tuple[int, ...] = (3,)
    """Empty for pause frames of IEEE 802.3x, which stop the whole port."""
    quanta: int = LONGEST
    """Of each pause, which is repeated after half of it."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise EncodeError("end", self.end, f"above {self.start}, as the storm starts then")
        if not 2 <= self.quanta <= LONGEST:
            raise EncodeError("quanta", self.quanta, f"from 2 to {LONGEST}")
        for each in self.priorities:
            if not 0 <= each < LANES:
                raise EncodeError("priority", each, f"0 to {LANES - 1}")


class LosslessNetwork:
    """The switches of a topology in a simulator, and the wires between all nodes.

    devices: the node of each host, with the MAC address by which it is reached. settings: of all
    switches, or by name of a switch. routes: neighbours by switch and host, in place of those on
    the shortest ways. outages: links that fail. reroute_after: time from the change of a link to
    new routes in all switches. storms: hosts that pause their switch.
    llr: link-level retry of all links, or by link. prepare: called for each switch before it is
    connected.
    Raises `BufferTooSmall` where the headroom does not fit.

    When a link fails, frames on it are lost, and its switches drop what waits for it. They stop
    using it at once where another port leads to the same host. Until all switches have new
    routes, frames are dropped where none does. A link that comes back is used again once the
    switches have new routes.
    """

    def __init__(
        self,
        simulator: Simulator,
        topology: Topology,
        devices: Mapping[str, tuple[Node, bytes]],
        settings: SwitchSettings | Mapping[str, SwitchSettings],
        *,
        routes: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
        wire_overhead: int = ETHERNET_OVERHEAD,
        outages: Iterable[Outage] = (),
        reroute_after: Time = 0,
        storms: Iterable[PauseStorm] = (),
        llr: LLR | Mapping[Link, LLR] | None = None,
        prepare: Callable[[str, Switch], None] | None = None,
    ) -> None:
        if reroute_after < 0:
            raise EncodeError("reroute_after", reroute_after, "0 or above")
        self.topology = topology
        self.switches: dict[str, Switch] = {}
        self.wires: dict[Link, list[Wire]] = {}
        """Wires by link; several for parallel links that are equal."""
        self.down: list[Link] = []
        """Links that do not work now."""
        self.timetable = Timetable("network")
        """Functions that are called at times of the run."""
        self._simulator = simulator
        self._macs = {host: mac for host, (_, mac) in devices.items()}
        self._reroute_after = reroute_after
        self.routes = routes or {}
        self.ends: list[tuple[Link, Wire, list[tuple[str, int]]]] = []
        """Each link with its wire, and the nodes and ports at its ends."""
        self._make_switches(settings)
        if prepare is not None:
            for name, switch in self.switches.items():
                prepare(name, switch)
        self._connect({name: node for name, (node, _) in devices.items()}, wire_overhead)
        self._settings = settings
        self._delay_frames()
        self.retries: dict[Link, list[RetryLink]] = {}
        """Link-level retry by link, of those that have it."""
        for link, wire, _ in self.ends:
            own = llr if isinstance(llr, LLR) or llr is None else llr.get(link)
            if own is not None:
                if any(line.head for line in (wire.a_to_b, wire.b_to_a)):
                    name = f"{link.a}-{link.b}"
                    raise EncodeError("llr", name, "of switches without cut-through")
                self.retries.setdefault(link, []).append(RetryLink(simulator, wire, own))
        self._discarding: dict[Direction, Stage | None] = {}
        """The stages of lines from hosts that are down."""
        for outage in outages:
            self._find(outage.link)
            self.timetable.add(outage.at, partial(self.fail, outage.link))
            if outage.until is not None:
                self.timetable.add(outage.until, partial(self.restore, outage.link))
        for storm in storms:
            self._host_line(storm.host)
            self.timetable.add(storm.start, partial(self._storm, storm))
        simulator.kick(self.timetable)

    def _make_switches(self, settings: SwitchSettings | Mapping[str, SwitchSettings]) -> None:
        topology, draw = self.topology, self._simulator.random
        tables = self._tables()
        for number, name in enumerate(topology.switches):
            own = settings if isinstance(settings, SwitchSettings) else settings[name]
            router = Router(
                tables[name],
                strategy=own.strategy,
                seed=draw(f"{name}/hash").getrandbits(32),
                queued=partial(self._queued, name),
                draw=draw(f"{name}/paths"),
                weights={
                    port: own.path_weights[neighbour]
                    for port, (_, neighbour) in enumerate(topology.ports(name))
                    if neighbour in own.path_weights
                },
                flowlet_gap=own.flowlet_gap,
            )
            ports = [own.port(link) for link, _ in topology.ports(name)]
            self.switches[name] = Switch(
                ports,
                router,
                buffer=own.buffer,
                name=name,
                mac=_FIRST_MAC + (number << 12),
                classifier=own.classifier,
                strict=own.strict,
                weights=own.weights,
                overhead=own.overhead,
                pauses_port=own.pauses_port,
                has_telemetry=own.has_telemetry,
                draw=draw(f"{name}/marks"),
                watchdog=own.watchdog,
                remarks=own.remarks,
            )

    def _connect(self, hosts: Mapping[str, Node], overhead: int) -> None:
        taken: Counter[str] = Counter()
        nodes = {**hosts, **self.switches}
        for link in self.topology.links:
            ends = []
            for name in (link.a, link.b):
                ends.append((name, taken[name]))
                taken[name] += 1
            wire = self._simulator.connect(
                nodes[link.a],
                nodes[link.b],
                ends[0][1],
                ends[1][1],
                rate_bps=link.rate_bps,
                delay=link.delay,
                overhead=overhead,
                flow_control=True,
                name=f"{link.a}-{link.b}",
            )
            self.wires.setdefault(link, []).append(wire)
            self.ends.append((link, wire, ends))

    def _delay_frames(self) -> None:
        """Give switches their latency, and their frames early where they cut through."""
        settings = self._settings
        for name, switch in self.switches.items():
            own = settings if isinstance(settings, SwitchSettings) else settings[name]
            if own.latency < 0:
                raise EncodeError("latency", own.latency, "0 or above")
            arriving: dict[int, Direction] = {}
            leaving: dict[int, Direction] = {}
            for _, wire, ends in self.ends:
                lines = wire.a_to_b, wire.b_to_a
                for at, (node, port) in enumerate(ends):
                    if node == name:
                        leaving[port], arriving[port] = lines[at], lines[not at]
            if own.latency or own.is_cut_through:
                for line in arriving.values():
                    line.latency = own.latency
                    line.stage = line.stage or _unchanged
            if own.is_cut_through:
                CutThrough(switch, arriving, leaving, partial(self._later, switch))

    def _later(self, switch: Switch, time: Time, action: Callable[[], None]) -> None:
        """Call a function at a time, which gives a switch work."""

        def act() -> None:
            action()
            self._simulator.kick(switch)

        self.timetable.add(time, act)
        self._simulator.kick(self.timetable)

    def _queued(self, name: str, port: int) -> int:
        return self.switches[name].queued(port)

    def fail(self, link: Link) -> None:
        """Take a link down now: what is on it and what waits for it is lost.

        Raises `EncodeError` for a link that is not in the topology.
        """
        link, wire, ends = self._find(link)
        if any(each is link for each in self.down):
            return
        self.down.append(link)
        self._simulator.cut(wire)
        for retry in self.retries.get(link, ()):
            retry.fail()
        for name, port in ends:
            if name in self.switches:
                self.switches[name].link_down(port)
                self._simulator.kick(self.switches[name])
            elif link not in self.retries:
                self._discard(wire.a_to_b if name == link.a else wire.b_to_a)
        self._reroute_later()

    def restore(self, link: Link) -> None:
        """Let a link that is down work again."""
        link, wire, ends = self._find(link)
        if not any(each is link for each in self.down):
            return
        self.down = [each for each in self.down if each is not link]
        for name, port in ends:
            if name in self.switches:
                self.switches[name].link_up(port)
        for line in (wire.a_to_b, wire.b_to_a):
            if line in self._discarding:
                line.stage = self._discarding.pop(line)
        self._simulator.mend(wire)
        for retry in self.retries.get(link, ()):
            retry.restore()
        self._reroute_later()

    def _discard(self, line: Direction) -> None:
        """Take what a host sends to a line that is down, and lose it.

        So its queue pairs time out and fail, as those of an adapter without a link.
        """

        def lose(frame: Frame, now: Time) -> Iterable[tuple[Time, Frame]]:
            line.lost += 1
            return ()

        self._discarding[line] = line.stage
        line.stage = lose
        line.free_at = self._simulator.now
        self._simulator.ask(line)

    def reroute(self) -> None:
        """Give all switches routes over the links that work now."""
        for name, table in self._tables().items():
            self.switches[name].router.update(table)

    def _storm(self, storm: PauseStorm) -> None:
        """Send one pause of a storm, and plan the next one."""
        line = self._host_line(storm.host)
        mac = int.from_bytes(self._macs[storm.host])
        if storm.priorities:
            frame = pfc_frame(mac, dict.fromkeys(storm.priorities, storm.quanta))
        else:
            frame = pause_frame(mac, storm.quanta)
        self._simulator.send_first(line, frame)
        following = self._simulator.now + storm.quanta * QUANTUM_BITS * S // line.rate_bps // 2
        if following < storm.end:
            self.timetable.add(following, partial(self._storm, storm))

    def _host_line(self, host: str) -> Direction:
        """The line from a host to its switch."""
        for link, wire, _ in self.ends:
            if host in (link.a, link.b) and host in self._macs:
                return wire.a_to_b if link.a == host else wire.b_to_a
        raise EncodeError("host", host, "a host of the network")

    def _reroute_later(self) -> None:
        if not self._reroute_after:
            self.reroute()
            return
        time = self._simulator.now + self._reroute_after
        self.timetable.add(time, self.reroute)
        self._simulator.kick(self.timetable)

    def _tables(self) -> dict[str, dict[bytes, list[int]]]:
        """Ports by switch and MAC address, over the links that work now."""
        hops = self.topology.routed(self.routes, without=self.down)
        return {
            name: {self._macs[host]: ports for host, ports in table.items()}
            for name, table in hops.items()
        }

    def _find(self, link: Link) -> tuple[Link, Wire, list[tuple[str, int]]]:
        """The link of the topology that is meant: itself, or the first that is equal."""
        for same in (True, False):
            for found in self.ends:
                if found[0] is link if same else found[0] == link:
                    return found
        raise EncodeError("link", f"{link.a}-{link.b}", "a link of the network")


def default_headroom(link: Link) -> int:
    """Three times the bytes that a link carries in its delay."""
    return 3 * link.rate_bps * link.delay // (8 * S)


def _unchanged(frame: Frame, now: Time) -> tuple[tuple[Time, Frame], ...]:
    return ((0, frame),)


_FIRST_MAC = 0x02_00_53_00_00_00
"""A locally administered address; each switch has 4096 of them."""
