"""What a scenario is made of, as read and checked: nodes, wires, switches, connections, traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ibwire.base.units import ETHERNET_OVERHEAD, GBPS, US, Time
from ibwire.fabric.llr import LLR
from ibwire.fabric.lossless import Outage, PauseStorm
from ibwire.fabric.switch import Ramp, Remark, Strategy, Trust
from ibwire.fabric.switch.headroom import headroom
from ibwire.fabric.switch.routing import FLOWLET_GAP
from ibwire.fabric.switch.watchdog import Watchdog
from ibwire.fabric.topology import Topology
from ibwire.rc.attributes import QPType
from ibwire.rc.congestion import RateControl, Scope
from ibwire.rc.profile import SPEC, Profile
from ibwire.scenario.expect import Expectation
from ibwire.scenario.workload import Traffic


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A host with one device, a port of a host with several, or a bridge."""

    name: str
    address: str = ""
    profile: Profile = SPEC
    is_bridge: bool = False
    queue_frames: int = 1024
    vlan: int | None = None
    host: str = ""
    """The host whose port it is; empty for a node that is no port of a host with several."""


@dataclass(frozen=True, slots=True)
class WireSpec:
    """A link between two nodes; the faults are rules by sending node."""

    between: tuple[str, str]
    rate_bps: int = 100 * GBPS
    delay: Time = 1 * US
    mtu: int | None = None
    """Bytes after the Ethernet header that fit in a frame; longer ones are lost."""
    faults: Mapping[str, list[Any]] = field(default_factory=dict)
    overhead: int = ETHERNET_OVERHEAD
    """Bytes of line time that each frame costs besides its own."""
    llr: LLR | None = None
    """Link-level retry; `None` for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EcnSpec:
    """When a class is marked: thresholds in bytes, or for each gigabit a second of the port."""

    minimum: int
    maximum: int
    probability: float
    at_enqueue: bool = False
    is_per_gbps: bool = False

    def ramp(self, rate_bps: int) -> Ramp:
        """The thresholds of a port."""
        scale = Fraction(rate_bps, GBPS) if self.is_per_gbps else 1
        return Ramp(
            minimum=int(self.minimum * scale),
            maximum=int(self.maximum * scale),
            probability=self.probability,
            at_enqueue=self.at_enqueue,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CableSpec:
    """Headroom by the length of cables, as in the tables of SONiC."""

    metres: float
    mtu: int = 9100
    lossless_mtu: int = 1024
    small_packets: int = 100
    """Their part in percent."""

    def bytes_at(self, rate_bps: int) -> int:
        """Bytes for a port of this rate."""
        found = headroom(
            rate_bps,
            self.metres,
            mtu=self.mtu,
            lossless_mtu=self.lossless_mtu,
            small_packets=self.small_packets,
        )
        return found.xoff


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSpec:
    """A traffic class of a switch."""

    name: str
    priority: int
    dscp: tuple[int, ...]
    """Of its packets; flows use the first."""
    pcp: tuple[int, ...] = ()
    """PCPs of its frames where switches trust that field, besides its priority."""
    remark: Remark | None = None
    """What switches write into its frames."""
    is_lossless: bool = False
    alpha: Fraction = Fraction(1, 8)
    reserve: int = 0
    headroom: int | CableSpec | None = None
    """Bytes of each port; `None` for what the link and the largest packet need."""
    egress_alpha: Fraction | None = None
    """Of a lossy class: the longest queue, as a part of the free shared bytes."""
    ecn: EcnSpec | None = None
    is_strict: bool = False
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSpec:
    """What a switch is like."""

    buffer: int
    classes: tuple[ClassSpec, ...]
    trust: Trust = Trust.DSCP
    strategy: Strategy = Strategy.ECMP
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Neighbours by host, in place of those on the shortest ways."""
    watchdog: Watchdog | None = None
    latency: Time = 0
    is_cut_through: bool = False
    path_weights: Mapping[str, int] = field(default_factory=dict)
    """By neighbour, where several lead to a host."""
    flowlet_gap: Time = FLOWLET_GAP
    pauses_port: bool = False
    """Whether its pauses are of IEEE 802.3x, for the whole port, and not of PFC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSpec:
    """How hosts control congestion."""

    make: Callable[[int], RateControl]
    """The control of a queue pair, by the rate of its line."""
    interval: Time
    scope: Scope | None
    """`None` for that of each profile."""
    dscp: int
    priority: int
    """Of CNPs, as is `dscp`."""
    follows_priority: bool = False
    """Whether CNPs have the priority of their connection instead."""
    has_cnps: bool = True
    """Whether hosts answer marks with CNPs."""
    has_telemetry: bool = False
    """Whether switches write their queues into packets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSpec:
    """Switches, and how hosts use them."""

    topology: Topology
    """Its links are the wires of the scenario, in their order."""
    switches: Mapping[str, SwitchSpec]
    outages: tuple[Outage, ...] = ()
    storms: tuple[PauseStorm, ...] = ()
    has_telemetry: bool = False
    reroute_after: Time = 0
    largest_frame: int = 0
    """Bytes of the largest frame, with line overhead: the headroom depends on it."""


@dataclass(frozen=True, slots=True)
class ConnectionSpec:
    """Equal queue pairs at two nodes, connected one to one."""

    name: str
    """Flows of one `[[flow]]` share it."""
    between: tuple[str, str]
    count: int
    qp_type: QPType
    depth: int
    psn: tuple[int, int]
    mtu: int
    """Path MTU in bytes."""
    traffic_class: int
    attributes: Mapping[str, int]
    """Further ones of the queue pairs, by their names in `QPAttr`."""
    expectations: tuple[Expectation, ...] = ()
    priority: int = 0
    """Of its packets at the ports of its hosts, and in their VLAN tags."""
    udp_port: int | None = None
    """UDP source port of the first end; `None` for the choice of the profile."""
    rate_bps: int | None = None
    """At which the first end sends; `None` for that of its line or its congestion control."""
    burst: int = 0
    """Bytes that it may send without a gap after a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSpec:
    """A TCP connection over which bytes are sent from one host to another."""

    name: str
    source: str
    target: str
    size: int
    start: Time
    mss: int
    min_timeout: Time
    dscp: int
    priority: int
    is_ecn: bool


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Traffic from one end of each queue pair of a connection to the other."""

    connection: str
    sender: str | None
    """`None` for the first end of each pair of queue pairs."""
    traffic: Traffic
    stagger: Time
    """Start delay of each queue pair after the previous one."""
    is_flow: bool = False
    """Whether each queue pair sends one flow, whose slowdown is measured."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole run; `seed` is the default seed."""

    name: str
    description: str
    """The comment that the file begins with."""
    seed: int
    limit: Time
    max_frames: int
    link: str
    nodes: tuple[NodeSpec, ...]
    wires: tuple[WireSpec, ...]
    connections: tuple[ConnectionSpec, ...]
    workloads: tuple[WorkloadSpec, ...]
    expectations: tuple[Expectation, ...]
    fabric: FabricSpec | None = None
    """Switches between the nodes; `None` for a network of wires and bridges."""
    control: ControlSpec | None = None
    tcp: tuple[TcpSpec, ...] = ()
    files: tuple[str, ...] = ()
    """Other files that it reads: lists of flows."""
