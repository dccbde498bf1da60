"""An emulated device on a real link, which runs while its program waits.

A program is sequential: it posts, waits for a condition, posts again. The device runs only
while the program waits: it receives and sends frames and handles timeouts.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError, NoResponse, PeerError
from ibwire.base.node import Node
from ibwire.cm import ConnectionManager, ManagedDevice
from ibwire.link.arp_nd import NeighbourResponder
from ibwire.link.interface import HEADERS, largest_path_mtu
from ibwire.link.live import Ended, Live
from ibwire.link.neighbours import mac_towards
from ibwire.link.port import Port
from ibwire.link.staged import Staged
from ibwire.programs.candidates import Candidates
from ibwire.programs.channel import Channel, TCPListener
from ibwire.programs.faults import Faults
from ibwire.programs.packet_fields import PacketFields
from ibwire.rc.device import Device, gid_of
from ibwire.rc.path import address_of, is_link_local, is_v4, nearest
from ibwire.rc.profile import PROFILES, Profile

WINDOW = 128
"""Largest number of unacknowledged packets of a queue pair, as in rxe
(reference/habits#rxe-window)."""

QUIET, LINGER = 0.3, 5.0
"""Seconds without a frame after which lingering ends, and seconds after which it ends anyway: a
peer retransmits after 67 ms, the tools' timeout."""

LOOPBACK = "127.0.0.1"
"""Where a server listens for TCP on an interface without addresses."""

Message = TypeVar("Message")


class Interrupted(Exception):
    """SIGINT or SIGTERM has ended a wait; `number` is the signal."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class Endpoint(Closing):
    """A device with a connection manager on a port.

    addresses: of the device, by default those of the port. mac: its own, if it is not that of
    the interface: then the kernel does not have the addresses, and ARP and neighbour
    solicitations are answered here. vlan: VLAN ID of such a device. profile: the implementation
    to imitate. faults: applied to its frames. neighbour: resolves an IP address to a MAC
    address, by default with the kernel. tell: shows the user a message while a program waits.
    spin: never sleep. source: of random numbers. controls_congestion: whether it sends no more than
    the peer keeps up with (`ibwire.rc.congestion.window`), which no profile does. packet_fields: of
    sent packets.
    Raises `LinkError` for a port without an address.
    """

    def __init__(
        self,
        port: Port,
        *,
        addresses: Sequence[str] = (),
        mac: bytes | None = None,
        vlan: int | None = None,
        profile: str = "spec",
        faults: Faults | None = None,
        neighbour: Callable[[str], bytes] | None = None,
        tell: Callable[[str], None] = lambda text: None,
        spin: bool = False,
        source: random.Random | None = None,
        controls_congestion: bool = False,
        packet_fields: PacketFields | None = None,
    ) -> None:
        self.port = port
        self.faults = faults or Faults()
        self.neighbour = neighbour or partial(mac_towards, port.name)
        self.tell = tell
        self.random = source or random.SystemRandom()
        self.addresses = tuple(addresses or port.addresses)
        if not self.addresses:
            raise LinkError(port.name, "has no IP address")
        # Random numbers: packets of earlier connections may still arrive, and keys must not
        # be guessable.
        self.device = Device(
            port.name,
            self.addresses,
            mac=mac or port.mac,
            vlan=vlan,
            profile=_bounded(PROFILES[profile], controls_congestion=controls_congestion),
            first_qpn=self.random.randrange(0x100, 0xF00000),
            key_start=self.random.getrandbits(24),
        )
        self.packet_fields = packet_fields or PacketFields()
        self.device.pkeys = [self.packet_fields.pkey]
        self.managed = ManagedDevice(self.device, self.random)
        self.staged = Staged(
            self.managed, inbound=self.faults.inbound, outbound=self.faults.outbound
        )
        node: Node = self.staged
        if mac is not None:
            node = self.responder = NeighbourResponder(self.staged, mac, self.addresses, vlan=vlan)
            self.neighbour = self._resolve
        self.live = Live(node, port, spin=spin)

    @property
    def manager(self) -> ConnectionManager:
        """The connection manager behind QP1."""
        return self.managed.manager

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the endpoint was created."""
        return self.live.now // 1000

    def psn(self) -> int:
        """A random initial PSN."""
        return self.random.getrandbits(24)

    # Waiting.

    def run(
        self,
        *,
        stop: Callable[[], bool] | None = None,
        seconds: float | None = None,
        watch: Sequence[int] = (),
    ) -> Ended:
        """Run as `Live.run`, but raise `Interrupted` for a signal."""
        ended = self.live.run(stop=stop, seconds=seconds, watch=watch)
        if ended is Ended.SIGNAL:
            raise Interrupted(self.live.signal or signal.SIGINT)
        return ended

    def wait(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        seconds: float | None = None,
        watch: Sequence[int] = (),
    ) -> None:
        """Run the device until a condition holds, which is checked after every step.

        watch: descriptors whose input wakes it. Raises `PeerError` after `seconds` without
        `what`, and `Interrupted` for a signal.
        """
        if self.run(stop=condition, seconds=seconds, watch=watch) is not Ended.STOPPED:
            raise PeerError(f"no {what} for {seconds:g} s")

    def wait_on(
        self,
        condition: Callable[[], bool],
        progress: Callable[[], int],
        what: str,
        seconds: float,
        watch: Sequence[int] = (),
    ) -> None:
        """Wait as `wait` as long as there is progress.

        progress: a number that changes with progress; the wait fails when it has not changed
        for `seconds`, or up to a quarter longer.
        """
        seen, still = progress(), 0
        while still < 4:
            if self.run(stop=condition, seconds=seconds / 4, watch=watch) is Ended.STOPPED:
                return
            seen, before = progress(), seen
            still = still + 1 if seen == before else 0
        raise PeerError(f"no {what} for {seconds:g} s")

    def read(
        self,
        channel: Channel,
        size: int,
        what: str,
        *,
        seconds: float = 10,
        timeout: float | None = None,
        meanwhile: Callable[[], object] = bool,
    ) -> bytes:
        """Read exactly `size` bytes from a channel; raises `PeerError` when they do not arrive.

        seconds: limit of the total time. timeout: limit of the time without any frame, instead.
        meanwhile: called repeatedly.
        """
        message: bytes | None = None

        def has_come() -> bool:
            nonlocal message
            meanwhile()
            message = channel.read(size)
            return message is not None

        what, watch = f"{what} from {channel.peer}", [channel.fileno()]
        try:
            if timeout is None:
                self.wait(has_come, what, seconds=seconds, watch=watch)
            else:
                self.wait_on(has_come, lambda: self.live.received, what, timeout, watch)
        except PeerError as error:
            if not channel.waiting:
                raise
            count = len(channel.waiting)
            raise PeerError(
                f"{error}, after {count} of {size} bytes: {channel.waiting!r}"
            ) from None
        return message or b""

    def accept_client(
        self, listening: TCPListener, size: int, what: str, unpack: Callable[[bytes], Message]
    ) -> tuple[Channel, Message]:
        """Wait for a program that connects and begins as a client; returns its first message.

        size: bytes of that message. unpack: raises `PeerError` for an invalid one; such a
        connection is reported and closed.
        """
        with Candidates(listening, size, what, unpack, self.tell) as candidates:
            found: tuple[Channel, Message] | None = None

            def has_changed() -> bool:
                nonlocal found
                found = candidates.poll(self.now_ns)
                return found is not None or candidates.filenos() != watch

            while found is None:
                watch = candidates.filenos()
                self.run(stop=has_changed, seconds=candidates.seconds(self.now_ns), watch=watch)
            return found

    def linger(self, quiet: float = QUIET, seconds: float = LINGER) -> None:
        """Run until nothing arrives any more: our last acknowledgement may be lost, and the peer
        then retransmits.

        quiet: seconds without a frame. seconds: limit of the total time.
        """
        end = self.now_ns + int(seconds * 1e9)
        received = -1
        while received != self.live.received and self.now_ns < end:
            received = self.live.received
            self.run(seconds=quiet)

    # Addresses.

    @property
    def listening_addresses(self) -> tuple[str, ...]:
        """Local addresses at which a server listens for TCP: the interface's, else 127.0.0.1.

        Others, and the networks behind them, do not reach it.
        """
        own = (
            f"{each}%{self.port.name}" if is_link_local(gid_of(each)) else each
            for each in self.port.addresses
        )
        return tuple(own) or (LOOPBACK,)

    def gid_towards(self, gid: int) -> int:
        """Index of the own GID from which a peer is reached; resolves the MAC address towards it.

        It has the same IP version, and is link-local only for a link-local peer. Raises
        `LinkError` when there is none, or the peer cannot be resolved.
        """
        if not gid:
            raise PeerError("the peer has no GID, which RoCE requires: check its GID index")
        chosen = nearest(self.device.gids, gid)
        if chosen is None:
            version = 4 if is_v4(gid) else 6
            raise LinkError(
                self.port.name, f"no IPv{version} address, and the peer has {address_of(gid)}"
            )
        self.device.neighbours[gid] = self.neighbour(address_of(gid))
        return self.device.gids.index(chosen)

    def _resolve(self, address: str) -> bytes:
        """Resolve the MAC address of a neighbour with ARP or a neighbour solicitation."""
        if gid_of(address) in self.device.gids:  # a request would announce it as ours
            raise LinkError(self.port.name, f"{address} is both the peer's and our own address")
        answer = self.responder.resolve(gid_of(address))
        self.wait(lambda: answer.mac is not None or answer.failed, f"response from {address}")
        if answer.mac is None:
            raise NoResponse(self.port.name, f"{address} does not respond to ARP or ND")
        if answer.mac == self.device.mac:
            raise LinkError(self.port.name, f"{address} has our own MAC address")
        return answer.mac

    def gid_like(self, address: str) -> int:
        """Index of the own GID of an address's IP version, before the peer's GID is known."""
        version = is_v4(gid_of(address))
        alike = (number for number, gid in enumerate(self.device.gids) if is_v4(gid) == version)
        return next(alike, 0)

    def path_mtu(self, wanted: int | None = None, default: int = 1024) -> int:
        """The wanted path MTU in bytes, or the default one as far as the interface carries it.

        Raises `LinkError` when the interface carries less.
        """
        largest = largest_path_mtu(self.port.mtu)
        if not largest or (wanted or 0) > largest:
            path_mtu = wanted or 256
            raise LinkError(
                self.port.name,
                f"MTU {self.port.mtu} is too small for a path MTU of {path_mtu}, which needs "
                f"{path_mtu + HEADERS}",
            )
        return wanted or min(default, largest)

    # End.

    def counters(self) -> dict[str, int]:
        """Counters of all queue pairs, the device and the link that are not 0."""
        total: Counter[str] = Counter()
        for qp in self.device.qps.values():
            total.update(qp.counters.as_dict())
        total.update(self.device.counters)
        total["faults"] = self.faults.hits
        total["frames_sent"] = self.live.sent
        total["frames_received"] = self.live.received
        return {name: count for name, count in total.items() if count}

    def close(self) -> None:
        """Close every queue pair, so that nothing is answered any more."""
        for qp in list(self.device.qps.values()):
            qp.close()


def _bounded(profile: Profile, *, controls_congestion: bool) -> Profile:
    """The profile with a window that a receiver in software can keep up with.

    A loss in its socket causes retransmission of all later packets, and the specification sets
    no limit: 2000 WRITEs of 64 KiB over a veth made 10 MB/s instead of 460. The window has room
    for two acknowledgement requests.
    """
    window = max(WINDOW, 2 * profile.ack_request_interval)
    return replace(
        profile,
        max_unacked_psns=min(profile.max_unacked_psns, window),
        controls_congestion=controls_congestion,
    )
