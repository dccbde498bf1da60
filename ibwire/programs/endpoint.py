"""A device of ours on a real link, which lives while its program waits for something.

A program is written from top to bottom: it posts, waits until what it needs is there,
posts again. Only in `wait` does time pass for the device: frames arrive and leave,
timeouts are handled, TCP channels and completion queues fill.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError, PeerError
from ibwire.base.node import Node
from ibwire.cm import ConnectionManager, ManagedDevice
from ibwire.link.arp_nd import Responder
from ibwire.link.interface import HEADERS, largest_path_mtu
from ibwire.link.live import Ended, Live
from ibwire.link.neighbours import mac_towards
from ibwire.link.port import Port
from ibwire.link.staged import Staged
from ibwire.programs.channel import Channel, Listening
from ibwire.programs.faults import Faults
from ibwire.rc.device import Device, gid_of
from ibwire.rc.path import address_of, is_v4, nearest
from ibwire.rc.profile import PROFILES, Profile

WINDOW = 128
"""Packets without an acknowledgement, as rxe has it (reference/habits#rxe-window)."""

QUIET, LINGER = 0.3, 5.0
"""Seconds: a peer asks again for a lost acknowledgement after 67 ms, the tools' timeout."""

Said = TypeVar("Said")


class Interrupted(Exception):
    """SIGINT or SIGTERM has ended a wait; `number` is which."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class Endpoint(Closing):
    """A device with a connection manager on a port.

    addresses: of the device, by default those of the port. mac: its own, if it is not the
    interface's: then the addresses are not the kernel's either, and ARP and neighbour
    solicitations are answered here. vlan: VLAN ID of such a device. profile: how it behaves.
    faults: what happens to its frames. neighbour: the MAC address that leads to an IP
    address, by default what the kernel knows. tell: says something to the user while a
    program waits. spin: never sleep. source: of random numbers.
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
    ) -> None:
        self.port = port
        self.faults = faults or Faults()
        self.neighbour = neighbour or partial(mac_towards, port.name)
        self.tell = tell
        self.random = source or random.SystemRandom()
        self.addresses = tuple(addresses or port.addresses)
        if not self.addresses:
            raise LinkError(port.name, "has no IP address")
        # Numbers that a former run on the same hosts has not used: packets of old
        # connections may still be about, and strangers shall not guess keys.
        self.device = Device(
            port.name,
            self.addresses,
            mac=mac or port.mac,
            vlan=vlan,
            profile=_bounded(PROFILES[profile]),
            first_qpn=self.random.randrange(0x100, 0xF00000),
            key_start=self.random.getrandbits(24),
        )
        self.managed = ManagedDevice(self.device, self.random)
        self.staged = Staged(
            self.managed, inbound=self.faults.inbound, outbound=self.faults.outbound
        )
        node: Node = self.staged
        if mac is not None:
            node = self.responder = Responder(self.staged, mac, self.addresses, vlan=vlan)
            self.neighbour = self._ask
        self.live = Live(node, port, spin=spin)

    @property
    def manager(self) -> ConnectionManager:
        """The connection manager behind QP1."""
        return self.managed.manager

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the endpoint was made."""
        return self.live.now // 1000

    def psn(self) -> int:
        """A first PSN that nobody guesses."""
        return self.random.getrandbits(24)

    # Waiting.

    def run(
        self,
        *,
        stop: Callable[[], bool] | None = None,
        seconds: float | None = None,
        watch: Sequence[int] = (),
    ) -> Ended:
        """`Live.run`, but that a signal is raised: `Interrupted`."""
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
        """Let the device live until a condition holds, which is asked after every step.

        watch: descriptors whose input wakes it. Raises `PeerError`, no `what` for so many
        seconds, when the time is over, and `Interrupted` for a signal.
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
        """As `wait`, for as long as something moves.

        progress: a number that changes when it does; the wait is over when it has not for
        so many seconds, or a quarter more.
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
        patience: float | None = None,
        meanwhile: Callable[[], object] = bool,
    ) -> bytes:
        """Exactly so many bytes from a channel; raises `PeerError` when they do not come.

        seconds: that it may take, or patience: without a frame of anybody. meanwhile: done
        whenever something may have come.
        """
        message: bytes | None = None

        def has_come() -> bool:
            nonlocal message
            meanwhile()
            message = channel.read(size)
            return message is not None

        what, watch = f"{what} from {channel.peer}", [channel.fileno()]
        try:
            if patience is None:
                self.wait(has_come, what, seconds=seconds, watch=watch)
            else:
                self.wait_on(has_come, lambda: self.live.received, what, patience, watch)
        except PeerError as error:
            if not channel.waiting:
                raise
            count = len(channel.waiting)
            raise PeerError(
                f"{error}, after {count} of {size} bytes: {channel.waiting!r}"
            ) from None
        return message or b""

    def accept(self, listening: Listening, *, seconds: float | None = None) -> Channel:
        """The next program that connects."""
        channel: Channel | None = None

        def has_come() -> bool:
            nonlocal channel
            channel = listening.accept()
            return channel is not None

        self.wait(has_come, "connection", seconds=seconds, watch=[listening.fileno()])
        assert channel is not None
        return channel

    def meet(
        self, listening: Listening, size: int, what: str, understand: Callable[[bytes], Said]
    ) -> tuple[Channel, Said]:
        """The first program that connects and begins as a client does, and what it says.

        size: bytes of that. understand: raises `PeerError` for what no client says; who
        says so, or nothing, is told of, and waited for no more.
        """
        while True:
            with ExitStack() as closing:
                channel = closing.enter_context(self.accept(listening))
                try:
                    said = understand(self.read(channel, size, what))
                except PeerError as error:
                    self.tell(f"{channel.peer} is no client: {error}; waiting for another")
                    continue
                closing.pop_all()
                return channel, said

    def linger(self, quiet: float = QUIET, seconds: float = LINGER) -> None:
        """Live on until nothing has arrived for a while: an acknowledgement of ours may have
        been lost, and the peer then asks again.

        quiet, seconds: how long nothing must arrive, and the end in any case.
        """
        end = self.now_ns + int(seconds * 1e9)
        heard = -1
        while heard != self.live.received and self.now_ns < end:
            heard = self.live.received
            self.run(seconds=quiet)

    # Addresses.

    def gid_towards(self, gid: int) -> int:
        """Number of the device's own GID from which a peer is reached; learns the way to it.

        One of the same IP version, and link-local only for link-local. Raises `LinkError`
        when there is none, or nobody answers.
        """
        if not gid:
            raise PeerError("the peer has no GID: RoCE needs one (its GID index?)")
        chosen = nearest(self.device.gids, gid)
        if chosen is None:
            version = 4 if is_v4(gid) else 6
            raise LinkError(
                self.port.name, f"no IPv{version} address, and the peer has {address_of(gid)}"
            )
        self.device.neighbours[gid] = self.neighbour(address_of(gid))
        return self.device.gids.index(chosen)

    def _ask(self, address: str) -> bytes:
        """The MAC address of a neighbour, asked for by ARP or a neighbour solicitation."""
        if gid_of(address) in self.device.gids:  # to ask would announce it as ours
            raise LinkError(self.port.name, f"{address} is the peer's, and ours: one is wrong")
        answer = self.responder.resolve(gid_of(address))
        self.wait(lambda: answer.mac is not None or answer.failed, f"answer from {address}")
        if answer.mac is None:
            raise LinkError(self.port.name, f"{address} does not answer who it is (ARP or ND)")
        if answer.mac == self.device.mac:
            raise LinkError(self.port.name, f"{address} has the MAC address that is to be ours")
        return answer.mac

    def gid_like(self, address: str) -> int:
        """Number of the GID that we tell a program at that address, before we know its own."""
        version = is_v4(gid_of(address))
        alike = (number for number, gid in enumerate(self.device.gids) if is_v4(gid) == version)
        return next(alike, 0)

    def path_mtu(self, wanted: int | None = None, usual: int = 1024) -> int:
        """Bytes: what is wanted, or the usual one as far as it fits.

        Raises `LinkError` when the interface carries less.
        """
        largest = largest_path_mtu(self.port.mtu)
        if not largest or (wanted or 0) > largest:
            path_mtu = wanted or 256
            raise LinkError(
                self.port.name,
                f"MTU {self.port.mtu} has no room for a path MTU of {path_mtu}, which needs "
                f"{path_mtu + HEADERS}",
            )
        return wanted or min(usual, largest)

    # The end.

    def counters(self) -> dict[str, int]:
        """What has happened, without what has not: of all queue pairs, device and link."""
        total: Counter[str] = Counter()
        for qp in self.device.qps.values():
            total.update(qp.counters.as_dict())
        total.update(self.device.counters)
        total["faults"] = self.faults.hits
        total["frames_sent"] = self.live.sent
        total["frames_received"] = self.live.received
        return {name: count for name, count in total.items() if count}

    def close(self) -> None:
        """Take every queue pair down, so that nothing is answered any more."""
        for qp in list(self.device.qps.values()):
            qp.close()


def _bounded(profile: Profile) -> Profile:
    """The profile with a window that a receiver in software keeps up with.

    Losses in its socket cost everything behind them, and the specification sets no bound: 2000
    WRITEs of 64 KiB over a veth made 10 MB/s in place of 460. Two acknowledgements fit in.
    """
    window = max(WINDOW, 2 * profile.ack_request_interval)
    return replace(profile, max_unacked_psns=min(profile.max_unacked_psns, window))
