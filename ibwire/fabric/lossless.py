"""A network of switches between devices: a topology with its settings, made ready to run.

`LosslessNetwork` makes the switches of a topology, with a buffer, headroom for each port,
routing tables and flow control on every link, and joins the devices of its hosts to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ibwire.base.node import Node
from ibwire.base.units import ETHERNET_OVERHEAD, S
from ibwire.fabric.sim import Simulator, Wire
from ibwire.fabric.switch.classes import Classifier
from ibwire.fabric.switch.marking import Ramp
from ibwire.fabric.switch.routing import Router, Strategy
from ibwire.fabric.switch.switch import FCS, PortSettings, PriorityRules, Switch
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
    scales_alpha: bool = False
    """Whether alpha doubles with each doubling of a port's rate over that of the first host."""
    ramps: Mapping[int, Ramp] = field(default_factory=dict)
    """When frames are marked, by the rate of the port in bits a second; 0 for all other rates."""
    strict: tuple[int, ...] = ()
    weights: Mapping[int, int] = field(default_factory=dict)
    classifier: Classifier = field(default_factory=Classifier)
    strategy: Strategy = Strategy.ECMP
    overhead: int = FCS
    """Bytes that a frame takes in the buffer besides its own."""
    rules: Callable[[Link], Mapping[int, PriorityRules]] | None = None
    """The rules of each priority of a port, in place of those that `lossless`, `reserve`,
    `headroom`, `alpha` and `ramps` give."""

    def port(self, link: Link, host_bps: int) -> PortSettings:
        """The port at a link; host_bps: rate of the first host, for `scales_alpha`."""
        if self.rules is not None:
            return PortSettings(link.rate_bps, self.rules(link))
        alpha = self.alpha
        if self.scales_alpha:
            rate = host_bps
            while rate * 2 <= link.rate_bps:
                rate, alpha = rate * 2, alpha * 2
        lossless = PriorityRules(
            is_lossless=True,
            reserve=self.reserve,
            headroom=(self.headroom or default_headroom)(link),
            alpha=alpha,
            ramp=self.ramps.get(link.rate_bps, self.ramps.get(0)),
        )
        return PortSettings(link.rate_bps, dict.fromkeys(self.lossless, lossless))


class LosslessNetwork:
    """The switches of a topology in a simulator, and the wires between all nodes.

    devices: the node of each host, with the MAC address by which it is reached.
    settings: of all switches, or by name of a switch.
    routes: neighbours by switch and host, in place of those on the shortest ways.
    Raises `BufferTooSmall` where the headroom does not fit.
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
    ) -> None:
        self.topology = topology
        self.switches: dict[str, Switch] = {}
        self.wires: dict[Link, list[Wire]] = {}
        hops = topology.routed(routes or {})
        host_bps = topology.ports(topology.hosts[0])[0][0].rate_bps
        for number, name in enumerate(topology.switches):
            table = {devices[host][1]: ports for host, ports in hops[name].items()}
            own = settings if isinstance(settings, SwitchSettings) else settings[name]
            router = Router(
                table,
                strategy=own.strategy,
                seed=simulator.random(f"{name}/hash").getrandbits(32),
                queued=lambda port, name=name: self.switches[name].queued(port),  # type: ignore[misc]
                draw=simulator.random(f"{name}/paths"),
            )
            ports = [own.port(link, host_bps) for link, _ in topology.ports(name)]
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
                draw=simulator.random(f"{name}/marks"),
            )
        taken: dict[str, int] = {}
        nodes = {**{name: node for name, (node, _) in devices.items()}, **self.switches}
        for link in topology.links:
            ends = []
            for name in (link.a, link.b):
                ends.append((nodes[name], taken.get(name, 0)))
                taken[name] = taken.get(name, 0) + 1
            wire = simulator.connect(
                ends[0][0],
                ends[1][0],
                ends[0][1],
                ends[1][1],
                rate_bps=link.rate_bps,
                delay=link.delay,
                overhead=wire_overhead,
                flow_control=True,
                name=f"{link.a}-{link.b}",
            )
            self.wires.setdefault(link, []).append(wire)


def default_headroom(link: Link) -> int:
    """Three times the bytes that a link carries in its delay."""
    return 3 * link.rate_bps * link.delay // (8 * S)


_FIRST_MAC = 0x02_00_53_00_00_00
"""A locally administered address; each switch has 4096 of them."""
