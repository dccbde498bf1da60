"""What every command on a real link has in common: its options, its errors, its end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NoReturn

import click

from ibwire.base.errors import EncodeError, IbwireError, ScriptError
from ibwire.cli.values import Decorated, IPAddress, MACAddress, as_one
from ibwire.link.afpacket import AFPacketPort
from ibwire.link.interface import interface
from ibwire.link.pcap import PcapPort
from ibwire.link.port import Port
from ibwire.link.tapped import TappedPort
from ibwire.link.udp import UDPPort
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.programs.faults import Faults, read_faults
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.path import is_link_local
from ibwire.rc.profile import PROFILES

VIAS = ("afpacket", "pcap", "udp")

LARGEST_MESSAGE = 1 << 26
"""Bytes of a message that we have memory for."""

FAILED = 1
WRONG_USAGE = 2


@dataclass(frozen=True, slots=True)
class Link:
    """What the options say."""

    dev: str
    via: str
    address: str | None
    mac: bytes | None
    vlan: int | None
    profile: str
    faults: str | None
    tap: str | None
    spin: bool

    @contextmanager
    def open(self) -> Iterator[Endpoint]:
        """An endpoint; at its end counters are told, errors printed, and the command over.

        Exit status 1 for what the link or the peer did, 2 for wrong usage, 128 and the
        number of a signal for that.
        """
        if self.tap == "-":
            raise click.UsageError("--tap writes to a file: results go to standard output")
        with _exit_status(), ExitStack() as stack:
            faults = read_faults(self.faults) if self.faults else Faults()
            own = self._own_mac()
            port = self._port(own is not None)
            stack.callback(port.close)
            if self.tap:
                port = stack.enter_context(TappedPort(port, self.tap))
            known = port.notes()
            _tell(known)
            endpoint = stack.enter_context(
                Endpoint(
                    port,
                    addresses=[self.address] if self.address else [],
                    mac=own,
                    vlan=self.vlan,
                    profile=self.profile,
                    faults=faults,
                    # The kernel finds the way of its sockets by itself.
                    neighbour=(lambda _: port.mac) if self.via == "udp" else None,
                    tell=lambda text: click.echo(text, err=True),
                    spin=self.spin,
                )
            )
            try:
                yield endpoint
            finally:
                # Also after an error: what was sent and what has come are the first questions.
                told = (f"{name} {count}" for name, count in endpoint.counters().items())
                click.echo("counters: " + (", ".join(told) or "nothing happened"), err=True)
                # What the link has lost meanwhile.
                _tell(note for note in port.notes() if note not in known)

    def _own_mac(self) -> bytes | None:
        """The MAC address of a device whose IP address is not the interface's."""
        is_own = self.address is not None and self.address not in interface(self.dev).addresses
        if not is_own and (self.mac or self.vlan):
            raise click.UsageError("--mac and --vlan are for an --address of our own")
        if not is_own or self.via == "udp":
            return None
        assert self.address is not None
        return self.mac or mac_of(gid_of(self.address))

    def _port(self, has_own_mac: bool) -> Port:
        if self.via == "udp":
            return UDPPort(self.dev, addresses=[self.address] if self.address else [])
        port = AFPacketPort if self.via == "afpacket" else PcapPort
        return port(self.dev, neighbours=has_own_mac, promiscuous=has_own_mac)


def live_options(function: Decorated) -> Decorated:
    """The options of every live command, which become one argument, `link`."""
    return as_one("link", Link, _OPTIONS)(function)


def host_of(peer: str, dev: str) -> str:
    """An IP address of a peer on a link as sockets want it."""
    return f"{peer}%{dev}" if is_link_local(gid_of(peer)) else peer


def tell_waiting(port: int, *addresses: str) -> None:
    """Say that a client may come, at a port of TCP, or of the connection manager's addresses."""
    where = f"{', '.join(addresses)} port" if addresses else "TCP port"
    click.echo(f"waiting for a client at {where} {port}", err=True)


_OPTIONS = (
    click.option("--dev", metavar="IFACE", required=True, help="The interface, and no other."),
    click.option(
        "--address",
        type=IPAddress(),
        metavar="IP",
        help="Which of its addresses. Another one is ours alone: ARP and ND are answered, and "
        "the peer must be on the same link.",
        show_default="all of them",
    ),
    click.option(
        "--mac",
        type=MACAddress(),
        help="Of an address of our own.",
        show_default="02:00 and the IP address",
    ),
    click.option("--vlan", type=click.IntRange(1, 4094), help="Of an address of our own."),
    click.option(
        "--via",
        type=click.Choice(VIAS),
        default=VIAS[0],
        show_default=True,
        help="Packet sockets, libpcap (slow to answer), or UDP sockets, which need no privilege.",
    ),
    click.option(
        "--profile",
        type=click.Choice(list(PROFILES)),
        default="spec",
        show_default=True,
        help="Whose behaviour our side has.",
    ),
    click.option("--faults", metavar="FILE", help="What happens to our frames, as TOML."),
    click.option("--tap", metavar="FILE", help="Write what arrives and leaves to a .pcapng."),
    click.option("--spin", is_flag=True, help="Never sleep: less latency, one processor more."),
)


@contextmanager
def _exit_status() -> Iterator[None]:
    """Errors become a sentence and an exit status; SIGTERM ends the block as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except (ScriptError, EncodeError) as error:
        click.echo(f"ibwire: {error}", err=True)
        sys.exit(WRONG_USAGE)
    except IbwireError as error:
        click.echo(f"ibwire: {error}", err=True)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Interrupted as interrupted:
        sys.exit(128 + interrupted.number)
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(notes: Iterable[str]) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _interrupt(number: int, _: object) -> NoReturn:
    raise Interrupted(number)
