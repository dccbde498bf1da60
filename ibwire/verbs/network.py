"""The emulated network behind the verbs interface, and how its time advances.

`get_device_list` lists the devices of the current network. The first use creates one with two
devices; `use` replaces it by another, for example with faults, a profile, a tap or another rate.

    with use(Network(profile="rxe", outgoing={"ibwire0": stage})) as network:
        ...

Time stands still between two calls of a script. It advances when the script polls an empty CQ,
waits for an event or reads memory. A poll advances at most `POLL_STEP` and returns at the first
completion, so polling loops with or without a deadline behave as with a real device.
`time.sleep` does not advance it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from ibwire.base.errors import EncodeError
from ibwire.base.node import Pipe, Stage
from ibwire.base.units import GBPS, MS, US, Time
from ibwire.fabric.bridge import Bridge
from ibwire.fabric.sim import Outcome, Simulator
from ibwire.rc.attributes import AsyncEvent
from ibwire.rc.device import Device
from ibwire.rc.profile import PROFILES, SPEC, Profile
from ibwire.rc.xrc import XRCDomain
from ibwire.verbs.memory import Memory

POLL_STEP: Time = 10 * MS
"""Virtual time of one poll of an empty CQ."""

POLL_FRAMES = 10_000
"""Maximum number of frames during one poll, so that other traffic does not block a script."""

READ_STEP: Time = 20 * US
"""Virtual time of a memory read: longer than a packet in flight needs to arrive."""

WAIT_FRAMES = 5_000_000
"""Maximum number of frames while a script waits for an event: with infinite RNR retries a sender
would never stop."""

MAXIMUM_DEVICES = 250


class EventReceiver(Protocol):
    """A receiver of asynchronous events: an open context."""

    def deliver(self, event: AsyncEvent) -> None:
        """Receive an event."""
        ...


class Network:
    """Devices `ibwire0`, `ibwire1`, ... with addresses 10.0.0.1, ... on one bridge.

    devices: their number, or the devices; two native InfiniBand devices are connected by a wire
    instead of the bridge.
    profile: of all devices, or one for each; an object or its name.
    outgoing, incoming: by device name, a `Stage` or `Pipe` for the frames from the device to the
    bridge, and from the bridge to the device.
    tap: a stage that sees every frame once, between outgoing and incoming stages.
    memory: the address space of the script.
    Raises `EncodeError` for invalid arguments.
    """

    def __init__(
        self,
        devices: int | Sequence[Device] = 2,
        *,
        profile: Profile | str | Sequence[Profile | str] = SPEC,
        rate_bps: int = 100 * GBPS,
        delay: Time = 1 * US,
        outgoing: Mapping[str, Stage] | None = None,
        incoming: Mapping[str, Stage] | None = None,
        tap: Stage | None = None,
        seed: int = 0,
    ) -> None:
        made = _make(devices, profile) if isinstance(devices, int) else list(devices)
        self.devices = {device.name: device for device in made}
        if len(self.devices) != len(made):
            raise EncodeError("devices", [device.name for device in made], "unique names")
        outgoing, incoming = outgoing or {}, incoming or {}
        for name in (*outgoing, *incoming):
            if name not in self.devices:
                raise EncodeError("device", name, "one of " + ", ".join(self.devices))
        native = [device for device in made if device.link == "ib"]
        if native and not len(native) == len(made) == 2:
            raise EncodeError("devices", len(native), "0 or 2 native InfiniBand devices")
        self.rate_bps = rate_bps
        self.simulator = Simulator(seed)
        self.memory = Memory()
        self.lock = threading.RLock()
        """Held while the network runs: scripts may poll from several threads."""
        self.xrc_domains: dict[tuple[str, tuple[int, int]], tuple[XRCDomain, int]] = {}
        """XRC domains of files and their number of users, by device and file."""
        self._owners: dict[int, weakref.ref[EventReceiver]] = {}
        self._contexts: dict[str, weakref.WeakSet[EventReceiver]] = {
            name: weakref.WeakSet() for name in self.devices
        }
        out = [_pipe(outgoing.get(device.name), tap) for device in made]
        into = [incoming.get(device.name) for device in made]
        connect = partial(self.simulator.connect, rate_bps=rate_bps, delay=delay)
        if native:
            there, back = _pipe(out[0], into[1]), _pipe(out[1], into[0])
            connect(made[0], made[1], a_to_b=there, b_to_a=back)
            return
        bridge = Bridge(max(1, len(made)))
        for port, device in enumerate(made):
            there, back = out[port], into[port]
            connect(device, bridge, port_b=port, a_to_b=there, b_to_a=back, name=device.name)

    @property
    def now(self) -> Time:
        """The virtual time."""
        return self.simulator.now

    def advance(self, duration: Time) -> None:
        """Advance time and run the events that are due."""
        with self.lock:
            self.simulator.run(until=self.now + duration)

    def poll(self, entries: Sized) -> None:
        """Advance time until `entries` holds something, but no longer than one poll."""
        with self.lock:
            simulator = self.simulator
            simulator.run(
                until=simulator.now + POLL_STEP,
                stop=lambda: bool(entries),
                max_frames=POLL_FRAMES,
                stop_if=entries,
            )
        if threading.active_count() > 1:
            # A thread that only polls would take the lock again at once.
            time.sleep(0)

    def wait(self, done: Callable[[], bool]) -> bool:
        """Advance time until `done`; `False` if no event is left."""
        last = self.simulator.frames + WAIT_FRAMES
        while True:
            # In steps, so that other threads get the lock.
            with self.lock:
                outcome = self.simulator.run(stop=done, max_frames=POLL_FRAMES)
                if done():
                    return True
            if outcome is Outcome.IDLE or self.simulator.frames >= last:
                return False

    def deliver_in_flight(self) -> None:
        """Deliver the packets in flight, before a script reads memory."""
        self.advance(READ_STEP)

    def subscribe_to_device(self, name: str, context: EventReceiver) -> None:
        """Subscribe a context to the events of its device."""
        self._contexts[name].add(context)

    def subscribe(self, element: object, context: EventReceiver) -> None:
        """Subscribe a context to the events of an object that it created."""
        self._owners[id(element)] = weakref.ref(context)

    def unsubscribe(self, element: object) -> None:
        """Unsubscribe from the events of an object that is being destroyed."""
        self._owners.pop(id(element), None)

    def deliver_events(self) -> None:
        """Deliver the events of all devices to the subscribed contexts."""
        for name, device in self.devices.items():
            while (event := device.poll_event()) is not None:
                if event.element is None:
                    for context in self._contexts[name]:
                        context.deliver(event)
                    continue
                owner = self._owners.get(id(event.element))
                listener = None if owner is None else owner()
                if listener is not None:
                    listener.deliver(event)


def _pipe(*stages: Stage | None) -> Stage | None:
    """The given stages in series."""
    present = [stage for stage in stages if stage is not None]
    return Pipe(*present) if present else None


def _make(count: int, profile: Profile | str | Sequence[Profile | str]) -> list[Device]:
    if not 0 <= count <= MAXIMUM_DEVICES:
        raise EncodeError("devices", count, f"0 to {MAXIMUM_DEVICES}")
    given = [profile] * count if isinstance(profile, Profile | str) else list(profile)
    if len(given) != count:
        raise EncodeError("profile", len(given), f"one, or {count} of them")
    return [
        Device(
            f"ibwire{i}",
            f"10.0.0.{i + 1}",
            profile=_profile(each),
            # QPNs and keys differ between devices, so that using the wrong one fails.
            first_qpn=0x11 + 0x100 * i,
            key_start=0x100 * i,
        )
        for i, each in enumerate(given)
    ]


def _profile(profile: Profile | str) -> Profile:
    if isinstance(profile, Profile):
        return profile
    if profile not in PROFILES:
        raise EncodeError("profile", profile, "one of " + ", ".join(PROFILES))
    return PROFILES[profile]


_current: Network | None = None


def current() -> Network:
    """The current network, whose devices scripts use."""
    global _current
    if _current is None:
        _current = Network()
    return _current


def set_current(network: Network | None) -> None:
    """Replace the current network; with `None` the next use creates the default one."""
    global _current
    _current = network


@contextmanager
def use(network: Network) -> Iterator[Network]:
    """Make a network the current one inside a `with` block, in every thread."""
    before = _current
    set_current(network)
    try:
        yield network
    finally:
        set_current(before)
