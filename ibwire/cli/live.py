"""The common part of commands on a real link: options, errors and exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import click

from ibwire.base.errors import EncodeError, IbwireError, ScriptError
from ibwire.base.interrupt import signal_of
from ibwire.cli.messages import print_error, print_note
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.cli.tool_options import InterfaceName
from ibwire.cli.values import Decorated, IPAddress, MACAddress, as_one
from ibwire.link.afpacket import AFPacketPort
from ibwire.link.interface import interface
from ibwire.link.pcap import PcapPort
from ibwire.link.port import Port
from ibwire.link.privileges import drop_capabilities
from ibwire.link.tapped import TappedPort
from ibwire.link.udp import UDPPort
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.programs.faults import Faults, read_faults
from ibwire.programs.packet_fields import PacketFields
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.path import is_link_local
from ibwire.rc.profile import PROFILES

VIAS = ("afpacket", "pcap", "udp")

LARGEST_MESSAGE = 1 << 26
"""Bytes of the largest message."""

DOWN_SECONDS = 2.0
"""How long a link may be down: less than the retries of a queue pair take."""

FAILED = 1
WRONG_USAGE = 2


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options of a command on a real link."""

    dev: str
    via: str = VIAS[0]
    address: str | None = None
    mac: bytes | None = None
    vlan: int | None = None
    profile: str = "spec"
    faults: str | None = None
    tap: str | None = None
    hardware_timestamps: bool = False
    spin: bool = False

    KEEPS_PRIVILEGES: ClassVar[bool] = False
    """Whether the capabilities of root are needed when the link is open."""

    @contextmanager
    def open(
        self, *, controls_congestion: bool = False, packet_fields: PacketFields | None = None
    ) -> Iterator[Endpoint]:
        """Open an endpoint. At the end counters and errors are printed and the command exits.

        Exit status: 1 for an error of the link or the peer, 2 for wrong usage, 128 and the
        number of a signal.
        """
        with _exit_status(), ExitStack() as stack:
            faults = read_faults(self.faults) if self.faults else Faults()
            own = self._own_mac()
            port = self._port(own is not None)
            stack.callback(port.close)
            if self.tap:
                port = stack.enter_context(TappedPort(port, self.tap))
            if not self.KEEPS_PRIVILEGES:
                drop_capabilities()
            known = port.notes()
            _print_notes(known)
            endpoint = stack.enter_context(
                Endpoint(
                    port,
                    addresses=[self.address] if self.address else [],
                    mac=own,
                    vlan=self.vlan,
                    profile=self.profile,
                    faults=faults,
                    # The kernel resolves the next hop of its sockets itself.
                    neighbour=(lambda _: port.mac) if self.via == "udp" else None,
                    tell=lambda text: click.echo(text, err=True),
                    spin=self.spin,
                    controls_congestion=controls_congestion,
                    packet_fields=packet_fields,
                )
            )
            try:
                yield endpoint
            finally:
                # Also after an error, for which the counters are the first evidence.
                counters = (f"{name} {count}" for name, count in endpoint.counters().items())
                click.echo("counters: " + (", ".join(counters) or "no packets"), err=True)
                # New notes: what the link has lost meanwhile.
                _print_notes(note for note in port.notes() if note not in known)

    def _own_mac(self) -> bytes | None:
        """The MAC address of an emulated device whose IP address is not the interface's."""
        is_own = self.address is not None and self.address not in interface(self.dev).addresses
        if not is_own and (self.mac or self.vlan):
            raise click.UsageError("--mac and --vlan require an --address the interface lacks")
        if not is_own or self.via == "udp":
            return None
        assert self.address is not None
        return self.mac or mac_of(gid_of(self.address))

    def _port(self, has_own_mac: bool) -> Port:
        if self.hardware_timestamps and (self.tap is None or self.via != VIAS[0]):
            raise click.UsageError(f"--hardware-timestamps requires --tap and --via {VIAS[0]}")
        addresses = [self.address] if self.address else []
        if self.via == "udp":
            return UDPPort(self.dev, addresses=addresses, timed=self.tap is not None)
        if self.via == "pcap":
            return PcapPort(
                self.dev,
                neighbours=has_own_mac,
                promiscuous=has_own_mac,
                addresses=addresses,
            )
        return AFPacketPort(
            self.dev,
            neighbours=has_own_mac,
            promiscuous=has_own_mac,
            addresses=addresses,
            down_seconds=DOWN_SECONDS,
            timed=self.tap is not None,
            hardware_stamps=self.hardware_timestamps,
        )


def live_options(function: Decorated) -> Decorated:
    """Add the options of a live command as one argument, `link`."""
    return as_one("link", LiveOptions, _OPTIONS)(function)


def tool_live_options(function: Decorated) -> Decorated:
    """As `live_options`, for a command that replaces a tool: its -d is --dev."""
    dev = click.option(
        "--dev",
        "-d",
        "--ib-dev",
        "dev",
        metavar="IFACE",
        type=InterfaceName(),
        required=True,
        help="Interface to use, or an RDMA device, for its interface.",
    )
    return as_one("link", LiveOptions, (dev, *_OPTIONS[1:]))(function)


def host_of(peer: str, dev: str) -> str:
    """The IP address of a peer on a link as a host name for sockets."""
    return f"{peer}%{dev}" if is_link_local(gid_of(peer)) else peer


def report_waiting(port: int, addresses: Iterable[str], kind: str = "port") -> None:
    """Print that a server waits, at a TCP port or a port of the connection manager."""
    click.echo(f"waiting for a client at {', '.join(addresses)} {kind} {port}", err=True)


LISTEN = click.option(
    "--listen",
    metavar="ADDRESS",
    help="Local address at which to listen for TCP, :: for all.",
    show_default="those of --dev, else 127.0.0.1",
)

TAP = click.option(
    "--tap",
    metavar="FILE",
    type=OutputPath(),
    help="Write all sent and received frames as pcapng.",
)

HARDWARE_TIMESTAMPS = click.option(
    "--hardware-timestamps",
    is_flag=True,
    help="With --tap: the adapter notes when frames arrive. Its times are moved to the "
    "system's clock.",
)

_OPTIONS = (
    click.option("--dev", metavar="IFACE", required=True, help="Interface to use."),
    click.option(
        "--address",
        type=IPAddress(),
        metavar="IP",
        help="Own IP address. For one that the interface lacks, ARP and ND are answered; the "
        "peer must then be on the same link.",
        show_default="all addresses of the interface",
    ),
    click.option(
        "--mac",
        type=MACAddress(),
        help="MAC address for an --address that the interface lacks.",
        show_default="02:00 and the IP address",
    ),
    click.option(
        "--vlan",
        type=click.IntRange(1, 4094),
        help="VLAN ID for an --address that the interface lacks.",
    ),
    click.option(
        "--via",
        type=click.Choice(VIAS),
        default=VIAS[0],
        show_default=True,
        help="Packet sockets, libpcap (slow to respond), or UDP sockets, which need no privilege.",
    ),
    click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        default="spec",
        show_default=True,
        help="Implementation to imitate.",
    ),
    click.option(
        "--faults",
        metavar="FILE",
        type=InputPath(),
        help="Apply faults to sent and received frames, from TOML.",
    ),
    TAP,
    HARDWARE_TIMESTAMPS,
    click.option("--spin", is_flag=True, help="Never sleep: less latency, one busy processor."),
)


@contextmanager
def _exit_status() -> Iterator[None]:
    """Errors become a message and an exit status; SIGTERM ends the block as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except (ScriptError, EncodeError) as error:
        print_error(error)
        sys.exit(WRONG_USAGE)
    except IbwireError as error:
        print_error(error)
        sys.exit(FAILED)
    except KeyboardInterrupt as interrupt:
        sys.exit(128 + signal_of(interrupt))
    except Interrupted as interrupted:
        sys.exit(128 + interrupted.number)
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print_note(note)


def _interrupt(number: int, _: object) -> NoReturn:
    raise Interrupted(number)
