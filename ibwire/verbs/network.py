"""Which network do the devices of the verbs face live on, and how does its time pass?

There is always a current network; its devices are what `get_device_list` lists. The
first use makes one with two devices. `use` puts another in its place: with faults, a
profile, a tap, another rate.

    with use(Network(profile="rxe", outgoing={"ibwire0": stage})) as network:
        ...

Nothing happens between two calls of a script. Time passes where a script looks for
something: polling an empty CQ, waiting for an event, reading memory. A poll lets at
most `POLL_STEP` pass and returns at the first completion, so loops with or without a
deadline do what they would do with a real device. `time.sleep` is no such look.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""Virtual time that one poll of an empty CQ may take."""

POLL_FRAMES = 10_000
"""Frames that may arrive during one poll, so that traffic of others does not stop a script."""

GLANCE: Time = 20 * US
"""Virtual time that reading memory takes: what a sent packet needs to arrive and then some."""

PATIENCE_FRAMES = 5_000_000
"""Frames that may arrive while a script waits for an event that does not come: for
a receiver that is never ready a sender may try for ever."""

MAXIMUM_DEVICES = 250


class Listener(Protocol):
    """Who is told of asynchronous events: an open context."""

    def deliver(self, event: AsyncEvent) -> None:
        """Take an event."""
        ...


class Network:
    """Devices `ibwire0`, `ibwire1`, ... with addresses 10.0.0.1, ... on one bridge.

    devices: how many, or the devices themselves; two native InfiniBand ones have a
    wire between them and no bridge.
    profile: of all of them, or one each; an object or its name.
    outgoing, incoming: by device name what its frames pass on the way to the bridge,
    and what those of others pass on the way to it: a `Stage`, a `Pipe` of them.
    tap: a stage that sees every frame once, between outgoing and incoming stages.
    memory: what addresses of scripts mean.
    Raises `EncodeError` for what cannot be.
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
            raise EncodeError("devices", [device.name for device in made], "of different names")
        outgoing, incoming = outgoing or {}, incoming or {}
        for name in (*outgoing, *incoming):
            if name not in self.devices:
                raise EncodeError("device", name, "one of " + ", ".join(self.devices))
        native = [device for device in made if device.link == "ib"]
        if native and not len(native) == len(made) == 2:
            raise EncodeError("devices", len(native), "no native InfiniBand ones, or just two")
        self.rate_bps = rate_bps
        self.simulator = Simulator(seed)
        self.memory = Memory()
        self.lock = threading.RLock()
        """Held while devices are at work: scripts may poll from several threads."""
        self.xrc_domains: dict[tuple[str, tuple[int, int]], tuple[XRCDomain, int]] = {}
        """XRC domains that stand for a file and how often they are open, by device and file."""
        self._owners: dict[int, weakref.ref[Listener]] = {}
        self._contexts: dict[str, weakref.WeakSet[Listener]] = {
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
        """Let time pass; what is due by then happens."""
        with self.lock:
            self.simulator.run(until=self.now + duration)

    def poll(self, done: Callable[[], bool]) -> None:
        """Let time pass until `done`, but no more than a poll may take."""
        with self.lock:
            self.simulator.run(until=self.now + POLL_STEP, stop=done, max_frames=POLL_FRAMES)
        if threading.active_count() > 1:
            # A thread that does nothing but poll would take the lock again at once.
            time.sleep(0)

    def wait(self, done: Callable[[], bool]) -> bool:
        """Let time pass until `done`; `False` when it cannot come any more."""
        last = self.simulator.frames + PATIENCE_FRAMES
        while True:
            # Step by step, so that other threads get a turn.
            with self.lock:
                outcome = self.simulator.run(stop=done, max_frames=POLL_FRAMES)
                if done():
                    return True
            if outcome is Outcome.IDLE or self.simulator.frames >= last:
                return False

    def glance(self) -> None:
        """Let packets on their way arrive, before somebody reads memory."""
        self.advance(GLANCE)

    def join(self, name: str, context: Listener) -> None:
        """Have a context told of events that concern its whole device."""
        self._contexts[name].add(context)

    def own(self, element: object, context: Listener) -> None:
        """Have a context told of the events of an object that it has made."""
        self._owners[id(element)] = weakref.ref(context)

    def disown(self, element: object) -> None:
        """Forget an object before it is destroyed."""
        self._owners.pop(id(element), None)

    def deliver_events(self) -> None:
        """Hand the events of all devices to the contexts they concern."""
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
    """The stages that there are, one after the other."""
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
            # Numbers and keys of two devices differ, so that a mistaken one is noticed.
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
    """The network whose devices scripts see."""
    global _current
    if _current is None:
        _current = Network()
    return _current


def set_current(network: Network | None) -> None:
    """Replace the current network; `None` for a new one like the first at the next use."""
    global _current
    _current = network


@contextmanager
def use(network: Network) -> Iterator[Network]:
    """Make a network the current one for a while, in every thread."""
    before = _current
    set_current(network)
    try:
        yield network
    finally:
        set_current(before)
