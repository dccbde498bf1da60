"""A subnet in virtual time: packets move over its links, with credits, by its tables.

`PacketFabric` puts the nodes of a `Subnet` and the links between them into a simulator. The
subnet stays what subnet managers and tools see: its tables say how packets move, and its counters
count them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.base.node import Node as NetworkNode
from ibwire.base.units import Time
from ibwire.fabric.infiniband.adapter import AdapterPort
from ibwire.fabric.infiniband.adaptive import Alternatives
from ibwire.fabric.infiniband.errors import DamagedFrame, SymbolErrors
from ibwire.fabric.infiniband.link import LANES_OF_CODE, LinkEnd
from ibwire.fabric.infiniband.lrh import DELIMITERS, LRH_SIZE
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.subnet import Port, Subnet, data_rate
from ibwire.fabric.infiniband.switch import CutThroughSwitch
from ibwire.fabric.line import Direction
from ibwire.fabric.llr import RetryLink
from ibwire.fabric.sim import Simulator, Wire
from ibwire.fabric.timetable import Timetable
from ibwire_layers.attributes import PortState
from ibwire_layers.mad import Trap

FOREVER = 20
"""A HOQLife or LifeTimeValue that does not end."""

PortKey = tuple[str, int]
"""Name of a node and number of its port."""


class PacketFabric:
    """The nodes and links of a subnet in a simulator.

    devices: what sends and receives at the ports of adapters; a port without one takes what it
    receives and sends nothing. Links that are down, and ports without one, are left out.
    """

    def __init__(
        self,
        simulator: Simulator,
        subnet: Subnet,
        devices: Mapping[Port, NetworkNode],
        settings: FabricSettings | None = None,
    ) -> None:
        self.simulator = simulator
        self.subnet = subnet
        self.settings = settings or FabricSettings()
        self.switches: dict[str, CutThroughSwitch] = {}
        self.adapters: dict[PortKey, AdapterPort] = {}
        self.wires: dict[PortKey, Wire] = {}
        """The wire of each port, the same one at both of its ends."""
        self.peers: dict[PortKey, Port] = {}
        """The port at the other end of each link, also while it is down."""
        self.retries: dict[PortKey, RetryLink] = {}
        """Link-level retry of each port, the same one at both ends of a link."""
        self._alternatives = Alternatives() if self.settings.adaptive else None
        self.timetable = Timetable("fabric")
        """Functions that are called at times of the run."""
        self.activates = True
        """Whether links that come up again go to Active without a subnet manager."""
        self.not_interrupted: list[tuple[Port, Time]] = []
        """Links that were not Active when they were to be interrupted, and when."""
        self.on_link_error: Callable[[Port, Trap], None] | None = None
        """Called for an error that a port reports by a trap, before its link is trained again."""
        self._cut_at: dict[PortKey, Time] = {}
        """When the link of each port has lost its signal last."""
        self._failed: set[PortKey] = set()
        """Ports of links that were taken down for the rest of the run."""
        for node in subnet.nodes.values():
            if node.is_switch:
                self.switches[node.name] = CutThroughSwitch(
                    node, self.settings, alternatives=self._alternatives
                )
        for a, b in subnet.links():
            self._connect(a, b, devices)
        simulator.kick(self.timetable)

    def _connect(self, a: Port, b: Port, devices: Mapping[Port, NetworkNode]) -> None:
        rate_bps = data_rate(a)
        if rate_bps is None:
            raise EncodeError("link", f"{a.node.name}[{a.number}]", "one with a width and a speed")
        nodes: list[NetworkNode] = []
        for port in (a, b):
            node = port.node
            if node.is_switch:
                nodes.append(self.switches[node.name])
                continue
            adapter = AdapterPort(port, devices.get(port), self.settings)
            self.adapters[key_of(port)] = adapter
            nodes.append(adapter)
        links = []
        for port in (a, b):
            if port.node.is_switch:
                links.append(self.switches[port.node.name].add(port.number))
            else:
                links.append(self.adapters[key_of(port)].link)
        wire = self.simulator.connect(
            nodes[0],
            nodes[1],
            # Each port of an adapter is a node of its own.
            a.number if a.node.is_switch else 0,
            b.number if b.node.is_switch else 0,
            rate_bps=rate_bps,
            delay=self.settings.delay,
            overhead=DELIMITERS,
            # What may have to be repeated is not sent on before it is there whole.
            head=0 if self.settings.retry is not None else (_head(b), _head(a)),
            name=f"{a.node.name}[{a.number}]-{b.node.name}[{b.number}]",
        )
        links[0].connect(wire.a_to_b, wire.b_to_a)
        links[1].connect(wire.b_to_a, wire.a_to_b)
        for link in links:
            link.on_error = self._link_error
            if self.settings.retry is None:
                link.plan_arrivals()
        if self.settings.retry is not None:
            self._retry(wire, a, b)
        for port, peer in ((a, b), (b, a)):
            self.wires[key_of(port)] = wire
            self.peers[key_of(port)] = peer
        self._start(a, b)

    def _retry(self, wire: Wire, a: Port, b: Port) -> None:
        """Repeat what is lost or damaged on a wire."""
        retry = RetryLink(self.simulator, wire, self.settings.retry)
        for port, incoming in ((a, wire.b_to_a), (b, wire.a_to_b)):
            self.retries[key_of(port)] = retry
            _count_symbol_errors(port, incoming)

    def _start(self, *ports: Port) -> None:
        for port in ports:
            if port.node.is_switch:
                self.switches[port.node.name].link_up(port.number, self.simulator.now)
            else:
                self.adapters[key_of(port)].link.start(self.simulator.now)

    def _trained(self, port: Port) -> None:
        """Let the lines of a link have the rate at which it was trained."""
        rate_bps = data_rate(port)
        if rate_bps is None or rate_bps == self.line(port).rate_bps:
            return
        ends = [self.link(end) for end in self._ends(port)]
        for link in ends:
            link.line.set_rate(rate_bps)
        for link in ends:
            link.read_rate()

    def link(self, port: Port) -> LinkEnd:
        """The end of the link at a port."""
        if port.node.is_switch:
            return self.switches[port.node.name].links[port.number]
        return self.adapters[key_of(port)].link

    def links(self) -> list[LinkEnd]:
        """The ends of all links."""
        ends = [link for switch in self.switches.values() for link in switch.links.values()]
        return ends + [adapter.link for adapter in self.adapters.values()]

    def line(self, port: Port) -> Direction:
        """The line that leaves a port."""
        return self.link(port).line

    def damage(self, port: Port, rate: float) -> SymbolErrors:
        """Damage what leaves a port at a bit error rate; the stage that does it."""
        line = self.line(port)
        line.stage = SymbolErrors(rate, self.simulator.random(f"{line.name}/errors"))
        return line.stage

    def read_tables(self) -> None:
        """Take over what a subnet manager has written since the beginning."""
        self._changed()
        for switch in self.switches.values():
            switch.read_tables()
        for adapter in self.adapters.values():
            adapter.read_tables()

    def tables_changed(self, port: Port) -> None:
        """Take over what a subnet manager has just written into the tables of a port."""
        node = port.node
        for end in (port, port.peer):
            if end is None or key_of(end) not in self.wires:
                continue
            if end.node.is_switch:
                self.switches[end.node.name].read_port(end.number)
                self.simulator.kick(self.switches[end.node.name])
            else:
                self.adapters[key_of(end)].read_tables()
                self.simulator.kick(self.adapters[key_of(end)])
        if node.is_switch:
            self.switches[node.name].read_life_time()

    def routes_changed(self) -> None:
        """Take over forwarding tables that a subnet manager has just written."""
        self._changed()

    def was_cut_since(self, port: Port, begin: Time) -> bool:
        """Whether the link of a port has lost its signal at or after a time."""
        return self._cut_at.get(key_of(port), -1) >= begin

    def fail(self, port: Port) -> None:
        """Take the link of a port down: what is on it and what waits for it is lost."""
        if port.peer is None:
            return
        self.subnet.disconnect(port)
        self._stop(port)

    def follow(self, port: Port) -> None:
        """Let a link go by the state of its ports, which a subnet manager has just changed.

        What is on it and what waits for it is lost. It comes up again if its ports are up.
        """
        if key_of(port) not in self.wires:
            return
        self._stop(port)
        if all(end.is_up for end in self._ends(port)):
            self._trained(port)
            self._start(*self._ends(port))
            self._mend(port, keeps=False)

    def _stop(self, port: Port) -> None:
        self._changed()
        self._cut(port)
        for end in self._ends(port):
            node: NetworkNode
            if end.node.is_switch:
                switch = self.switches[end.node.name]
                switch.link_down(end.number, self.simulator.now)
                node = switch
            else:
                adapter = self.adapters[key_of(end)]
                adapter.link_down()
                node = adapter
            self.simulator.kick(node)

    def restore(self, port: Port, *, activate: bool = True) -> None:
        """Let the link of a port come up again.

        activate: bring it to Active at once, as its subnet manager would do after a while.
        """
        if port.peer is not None:
            return
        peer = self.peers[key_of(port)]
        self._failed -= {key_of(port), key_of(peer)}
        self.subnet.reconnect(port, peer)
        if not port.is_up:  # one of them is disabled
            return
        if activate:
            port.state = peer.state = PortState.ACTIVE
        self._trained(port)
        self._start(port, peer)
        self._changed()
        self._mend(port, keeps=False)

    def _link_error(self, link: LinkEnd, number: Trap) -> None:
        """A port has found an error; without flow-control packets its link is trained again."""
        port = link.port
        if self.on_link_error is not None:
            self.on_link_error(port, number)
        if number == Trap.FLOW_CONTROL_WATCHDOG:
            self.timetable.add(self.simulator.now, lambda: self._retrain(port))
            self.simulator.kick(self.timetable)

    def _retrain(self, port: Port) -> None:
        """Take a link down, and let it come up again."""
        if port.peer is not None:
            self.fail(port)
            self.restore(port, activate=self.activates)

    def interrupt(self, port: Port, duration: Time) -> None:
        """Lose the signal of an active link for some time.

        Its ports go to ActiveDefer: what is on the link is lost, unless the link repeats it, and
        what waits stays. After the limit of the settings the link goes Down; it then comes up by
        itself, to Active, when the signal is back. Raises `EncodeError` for a link that is not
        Active.
        """
        _check_duration(duration)
        self.subnet.defer(port)
        self._cut(port)
        now, limit = self.simulator.now, self.settings.defer_limit
        for end in self._ends(port):
            if end.node.is_switch:
                self.switches[end.node.name].link_deferred(end.number, now)
            else:
                self.adapters[key_of(end)].link.defer(now)
        if duration <= limit:
            self.timetable.add(now + duration, lambda: self._recover(port))
        else:
            self.timetable.add(now + limit, lambda: self._give_up(port))
            self.timetable.add(now + duration, lambda: self._return(port))
        self.simulator.kick(self.timetable)

    def plan_interrupt(self, port: Port, at: Time, duration: Time) -> None:
        """Interrupt a link at a time of the run, if it is Active then."""
        _check_duration(duration)

        def interrupt() -> None:
            if port.state == PortState.ACTIVE:
                self.interrupt(port, duration)
            else:
                self.not_interrupted.append((port, self.simulator.now))

        self.timetable.add(at, interrupt)
        self.simulator.kick(self.timetable)

    def plan_failure(self, port: Port, at: Time) -> None:
        """Take a link down at a time of the run, for the rest of it."""

        def fail() -> None:
            self._failed |= {key_of(port), key_of(self.peers[key_of(port)])}
            self.fail(port)

        self.timetable.add(at, fail)
        self.simulator.kick(self.timetable)

    def _recover(self, port: Port) -> None:
        """The signal is back in time, if the link was not taken down in the meantime."""
        if port.peer is None or port.state != PortState.ACTIVE_DEFER:
            return
        self.subnet.recover(port)
        for end in self._ends(port):
            if end.node.is_switch:
                self.switches[end.node.name].link_recovered(end.number)
            else:
                self.adapters[key_of(end)].link.recover()
        self._mend(port, keeps=True)

    def _give_up(self, port: Port) -> None:
        if port.state == PortState.ACTIVE_DEFER:
            self.fail(port)

    def _return(self, port: Port) -> None:
        """The signal is back after the limit, if the link has not failed in the meantime."""
        if key_of(port) not in self._failed:
            self.restore(port, activate=self.activates)

    def _ends(self, port: Port) -> tuple[Port, Port]:
        return port, self.peers[key_of(port)]

    def _cut(self, port: Port) -> None:
        for end in self._ends(port):
            self._cut_at[key_of(end)] = self.simulator.now
        self.simulator.cut(self.wires[key_of(port)])
        retry = self.retries.get(key_of(port))
        if retry is not None:
            retry.fail()

    def _mend(self, port: Port, *, keeps: bool) -> None:
        self.simulator.mend(self.wires[key_of(port)])
        retry = self.retries.get(key_of(port))
        if retry is not None:
            retry.restore(keeps=keeps)

    def _changed(self) -> None:
        """Tables or links have changed."""
        if self._alternatives is not None:
            self._alternatives.clear()


def set_limits(
    subnet: Subnet, *, lanes: int = 1, hoq_life: int = FOREVER, life_time: int = FOREVER
) -> None:
    """Write into all ports and switches what a subnet manager takes from its options.

    lanes: data lanes of every link: 1, 2, 4, 8 or 15. hoq_life, life_time: exponents of HOQLife and
    LifeTimeValue; above 19 packets live for ever. Raises `EncodeError` for other values, and for
    more lanes than a port has by its VLCap.
    """
    code = _code_of_lanes(lanes)
    for name, value in (("hoq_life", hoq_life), ("life_time", life_time)):
        if not 0 <= value <= 31:
            raise EncodeError(name, value, "0 to 31")
    for node in subnet.nodes.values():
        for port in node.external_ports():
            if port.vl_cap < code:
                most = LANES_OF_CODE.get(port.vl_cap, 1)
                name = f"{node.name}[{port.number}]"
                raise EncodeError("lanes", lanes, f"at most {most}, which is the VLCap of {name}")
    for node in subnet.nodes.values():
        if node.is_switch:
            node.life_time = life_time
        for port in node.external_ports():
            port.operational_vls = code
            port.hoq_life = hoq_life


def limit_lanes(subnet: Subnet, lanes: int) -> None:
    """Let no port have more data lanes: VLCap, by which a subnet manager goes.

    Raises `EncodeError` for a number of lanes that cannot be.
    """
    code = _code_of_lanes(lanes)
    for node in subnet.nodes.values():
        for port in node.external_ports():
            port.vl_cap = min(port.vl_cap, code)
            port.operational_vls = port.vl_cap


def _code_of_lanes(lanes: int) -> int:
    for code, count in LANES_OF_CODE.items():
        if count == lanes:
            return code
    raise EncodeError("lanes", lanes, "1, 2, 4, 8 or 15")


def _check_duration(duration: Time) -> None:
    if duration < 1:
        raise EncodeError("duration", duration, "above 0")


def _count_symbol_errors(port: Port, incoming: Direction) -> None:
    """Count damaged packets of a link that repeats them: the port itself is not given them."""
    counters, take = port.counters, incoming.receive

    def receive(frame: Frame, now: Time, port: int = 0) -> None:
        if type(frame) is DamagedFrame:
            counters.symbol_error_counter += 1
        take(frame, now, port)

    incoming.receive = receive


def key_of(port: Port) -> PortKey:
    """The name of a port's node, and its number."""
    return port.node.name, port.number


def _head(port: Port) -> int:
    """The bytes after which a node acts: a switch has read the LRH, an adapter waits for all."""
    return LRH_SIZE + 1 if port.node.is_switch else 0
