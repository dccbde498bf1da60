"""Hosts for tests of networks: they send frames by priority and keep what they receive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import Time
from ibwire.fabric import Simulator
from ibwire.fabric.lossless import LosslessNetwork, SwitchSettings
from ibwire.fabric.sim import Wire
from ibwire.fabric.topology import Topology
from ibwire_layers.build import build
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import UDP, Ethernet, IPv4
from ibwire_layers.packet import RoCEv2Route


def mac_of(number: int) -> int:
    return 0x02_00_00_00_10_00 + number


def frame(
    to: int,
    *,
    by: int = 0,
    dscp: int = 26,
    ecn: int = 2,
    size: int = 1024,
    number: int = 0,
    source_port: int = 0xC000,
) -> bytes:
    """An RDMA WRITE packet between hosts, with a number in its PSN."""
    addresses = IPv4(src=0x0A000001 + by, dst=0x0A000001 + to, dscp=dscp, ecn=ecn)
    udp = UDP(src_port=source_port)
    route = RoCEv2Route(addresses, udp, Ethernet(mac_of(to), mac_of(by)))
    return build(
        OpCode.RC_RDMA_WRITE_MIDDLE, route=route, payload=bytes(size), **{"bth.psn": number}
    )


class Host:
    """Sends what it is given when its grant allows it, and keeps what it receives with its time."""

    def __init__(self, name: str = "host") -> None:
        self.name = name
        self.to_send: deque[bytes] = deque()
        self.sent: list[tuple[Time, bytes]] = []
        self.got: list[tuple[Time, bytes]] = []

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.got.append((now, frame))

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        for index, each in enumerate(self.to_send):
            if grant.allows(each[15] >> 5, len(each)):
                del self.to_send[index]
                self.sent.append((now, each))
                return each
        return None

    def poll_timeout(self) -> Time | None:
        return None

    def handle_timeout(self, now: Time) -> None:
        pass


class _CountingSimulator:
    """A simulator that counts the pause frames that failing links lose: no host has sent them.

    It has one instead of being one: in a compiled build no class inherits from `Simulator`.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.lost_pauses = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulator, name)

    def cut(self, wire: Wire) -> None:
        lines = wire.a_to_b, wire.b_to_a
        for _, _, _, _, line, given in self._simulator._events:
            if line in lines and isinstance(given, bytes) and given[12:14] == b"\x88\x08":
                self.lost_pauses += 1
        self._simulator.cut(wire)


class Network:
    """A topology with a `Host` for each host of it, in the order of their names."""

    def __init__(
        self,
        topology: Topology,
        settings: SwitchSettings | None = None,
        *,
        seed: int = 0,
        make: Callable[[str], Any] = Host,
        **options: Any,
    ) -> None:
        self.simulator = Simulator(seed)
        self._counting = _CountingSimulator(self.simulator)
        self.topology = topology
        self.hosts: list[Any] = [make(name) for name in topology.hosts]
        devices: Mapping[str, Any] = {
            name: (host, mac_of(number).to_bytes(6))
            for number, (name, host) in enumerate(zip(topology.hosts, self.hosts, strict=True))
        }
        self.network = LosslessNetwork(
            cast(Simulator, self._counting),
            topology,
            devices,
            settings or SwitchSettings(buffer=1 << 20),
            **options,
        )

    @property
    def dropped(self) -> int:
        """Frames that switches have dropped."""
        return sum(
            port.dropped.total() + port.discarded.total()
            for switch in self.network.switches.values()
            for port in switch.counters
        )

    @property
    def lost(self) -> int:
        """Frames that were lost on links, without pause frames."""
        lost = sum(
            line.lost for wire in self.simulator.wires for line in (wire.a_to_b, wire.b_to_a)
        )
        return lost - self._counting.lost_pauses
