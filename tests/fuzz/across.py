"""An endpoint and, across its link, a device with a connection manager; no link, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import S, Time
from ibwire.cm import ManagedDevice
from ibwire.cm.connection import Event
from ibwire.cm.messages import Received, decode, encode
from ibwire.cm.states import EventKind, State
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.device import Device, gid_of, mac_of
from ibwire.rc.path import Path, ethernet_route
from ibwire_layers import cm
from live.obeying import Obeying

SERVICE = 7174

MAD = 62
"""Offset of a MAD in a frame: after Ethernet, IPv4, UDP, BTH and DETH."""

Alter = Callable[[Received], Sequence[Received]]
"""What becomes of a message of the device on its way."""

Late = Callable[[Random], Time]
"""How long something takes this time."""


def at_once(random: Random) -> Time:
    """No time."""
    return 0


class Nobody:
    """A node that neither receives nor sends anything."""

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Let it go."""

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        return None

    def poll_timeout(self) -> Time | None:
        return None

    def handle_timeout(self, now: Time) -> None:
        """Nothing is due."""


class Across:
    """An endpoint, and across its link a device whose application accepts every request.

    longest: bytes of a MAD that its QP1 survives, or its application alone if it `forgets`.
    obeys: whether the application does what requests select. tagged: whether its frames
    have a priority tag. travels, decides: how late a message arrives here, none before earlier
    ones, and the application acts. postpones: whether an MRA says at once that the application
    may take longer, as Linux does.
    """

    def __init__(
        self,
        alter: Alter | None = None,
        *,
        longest: int = 10_000,
        obeys: bool = False,
        tagged: bool = False,
        forgets: bool = False,
        travels: Late = at_once,
        decides: Late = at_once,
        postpones: bool = False,
    ) -> None:
        self.port = SimpleNamespace(name="here", mtu=9000, mac=bytes(6))
        self.device = Device("here", PEER_ADDRESS)
        self.random = Random(1)
        self.live = SimpleNamespace(now=0, node=Nobody())
        self.sent: list[Frame] = []
        self.sent_at: list[Time] = []
        self.said: list[Frame] = []
        self.interrupts = False
        """Whether the user presses Ctrl-C the next time that something is waited for."""
        self.is_dead = False
        self.alter = alter
        self._longest = longest
        self._tagged = tagged
        self._forgets = forgets
        self.travels = travels
        self.decides = decides
        self._postpones = postpones
        self._lateness = Random(3)
        self._arriving: deque[tuple[Time, Frame]] = deque()
        self._undecided: list[tuple[Time, Event]] = []
        self._far = ManagedDevice(Device("there", ADDRESS), Random(2))
        self._application = Obeying(self._far.manager, obeys=obeys)
        self._listen()
        self._path = Path(
            ethernet_route(
                source=gid_of(ADDRESS),
                destination=gid_of(PEER_ADDRESS),
                source_mac=mac_of(gid_of(ADDRESS)),
                destination_mac=mac_of(gid_of(PEER_ADDRESS)),
                source_port=0xC123,
            )
        )

    def _listen(self) -> None:
        service = cm.rdma_cm_service_id(cm.PortSpace.TCP, SERVICE)
        self._listener = self._far.manager.listen(service, 1 << 12)

    @property
    def established(self) -> int:
        """Connections that it considers to exist."""
        states = [each.state for each in self._far.manager.connections]
        return states.count(State.ESTABLISHED)

    @property
    def states(self) -> set[State]:
        """Those of its connections."""
        return {each.state for each in self._far.manager.connections}

    def revive(self) -> None:
        """Start it again."""
        if self.is_dead and self._forgets:
            self._listen()
        self.is_dead = False

    def gid_towards(self, gid: int) -> int:
        self.device.neighbours[gid] = mac_of(gid)
        return 0

    def run(self, *, stop: Callable[[], bool] = bool, seconds: float = 0) -> None:
        live, far = self.live, self._far
        end = live.now + round(seconds * S)
        if self.interrupts:
            self.interrupts = False
            raise Interrupted(2)
        while True:
            while (frame := live.node.poll_transmit(live.now)) is not None:
                self._receive(frame)
                self._act()
            if stop() or live.now >= end:
                return
            due = (far.poll_timeout(), *(when for when, _ in (*self._arriving, *self._undecided)))
            live.now = min([end, *(max(when, live.now) for when in due if when is not None)])
            far.handle_timeout(live.now)
            self._act()

    def _receive(self, frame: Frame) -> None:
        """Let a frame arrive at the device."""
        live, far = self.live, self._far
        self.sent.append(frame)
        self.sent_at.append(live.now)
        was_dead = self.is_dead
        self.is_dead |= len(frame) - MAD - 4 > self._longest
        if self._forgets and self.is_dead and not was_dead:
            far.manager.unlisten(self._listener)
        if self._forgets or not self.is_dead:
            far.receive(frame, live.now)

    def _act(self) -> None:
        """What the device and its application do now, and what arrives."""
        now = self.live.now
        self._speak()
        for due in [each for each in self._undecided if each[0] <= now]:
            self._undecided.remove(due)
            self._application.handle(due[1], now)
            self._speak()
        while self._arriving and self._arriving[0][0] <= now:
            self._hear(self._arriving.popleft()[1])

    def _speak(self) -> None:
        manager, now, random = self._far.manager, self.live.now, self._lateness
        while (event := manager.poll_event()) is not None:
            if self._postpones and event.kind is EventKind.CONNECT_REQUEST:
                manager.delay(event.connection, now)
            self._undecided.append((now + self.decides(random), event))
        while (frame := self._far.poll_transmit(now)) is not None:
            before = self._arriving[-1][0] if self._arriving else 0
            self._arriving.append((max(before, now + self.travels(random)), frame))

    def _hear(self, frame: Frame) -> None:
        for altered in self._altered(frame):
            self.said.append(altered)
            tag = bytes.fromhex("8100e000") if self._tagged else b""
            self.live.node.receive(altered[:12] + tag + altered[12:], self.live.now)

    def _altered(self, frame: Frame) -> list[Frame]:
        received = decode(frame[MAD:-4])
        if self.alter is None or received is None:
            return [frame]
        return [
            self._path.frame(frame[42:MAD] + encode(each.message, each.transaction_id))
            for each in self.alter(received)
        ]
