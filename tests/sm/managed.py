"""A fabric in virtual time with subnet managers of our own on it."""

from __future__ import annotations

from ibwire.base.units import S, Time
from ibwire.fabric.infiniband.shipped import find_topology
from ibwire.fabric.infiniband.subnet import Port, Subnet
from ibwire.sm.configuration import Settings
from ibwire.sm.control import start_manager
from ibwire.sm.mads import Datagram
from ibwire.sm.management import Management
from ibwire.sm.manager import SubnetManager


class Managed:
    """A fabric, its clock, and a program at each of some ports that keeps what it receives."""

    def __init__(self, topology: str) -> None:
        self.subnet: Subnet = find_topology(topology)
        self.management = Management(self.subnet)
        self.now: Time = 0

    @property
    def adapters(self) -> list[Port]:
        return [
            port
            for node in self.subnet.nodes.values()
            if not node.is_switch
            for port in node.external_ports()
        ]

    def start(self, settings: Settings, host: int = 0) -> SubnetManager:
        return start_manager(self.management, self.adapters[host], settings)

    def run(self, seconds: float) -> None:
        """Let time pass, from one thing that is due to the next."""
        end = self.now + round(seconds * S)
        self.management.run(self.now)
        while (due := self.management.poll_timeout()) is not None and due <= end:
            self.now = max(self.now, due)
            self.management.handle_timeout(self.now)
        self.now = end

    def program(self, port: Port) -> Program:
        program = Program(self, port)
        self.management.programs[port] = program
        return program


class Program:
    """Sends from a port, and keeps what comes."""

    def __init__(self, fabric: Managed, port: Port) -> None:
        self.fabric = fabric
        self.port = port
        self.received: list[Datagram] = []

    def deliver(self, datagram: Datagram, now: Time) -> bool:
        self.received.append(datagram)
        return True

    def ask(self, mad: bytearray) -> bytes:
        """Send a MAD to the subnet manager; the answer."""
        self.received.clear()
        self.fabric.management.send(
            Datagram(mad, self.port.lid, self.port.master_sm_lid, int(mad[1] > 1), int(mad[1] > 1)),
            self.port,
        )
        self.fabric.management.run(self.fabric.now)
        return bytes(self.received[-1].mad)
