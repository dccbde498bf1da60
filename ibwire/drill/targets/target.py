"""What a script is held against: a device that answers, or the recording of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ibwire.base.node import Frame
from ibwire.base.units import S, Time
from ibwire.cm.states import EventKind
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.steps import Impair
from ibwire.drill.language.tokens import Line
from ibwire.drill.packets import Wire
from ibwire.rc.attributes import EventType, QPState
from ibwire.rc.work import WC, RecvWR, SendWR

LONGEST: Time = 10_000 * S
"""Time of a run: longer than any timer, and an end for what waits for ever."""


class TooBusy(Exception):
    """A device does not come to rest; the text says in which way."""


class Unable(Exception):
    """A script cannot be carried out on a target; the text says what it lacks."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A frame that a rule has done something to."""

    time: Time
    way: str
    frame: Frame
    line: Line
    what: str


class Target(Protocol):
    """A device with one connection, whose time passes only when a script lets it."""

    now: Time
    heard: deque[tuple[Time, Frame]]
    """What the device has sent and no line has expected yet."""
    wire: Wire
    is_recorded: bool
    """Whether all has happened: then an answer is not late for coming when it came."""
    slack: Time
    """How late everything may be, whatever a script says: nothing for a device in virtual time."""
    end: Time
    """When the run is over in any case."""

    @property
    def symbols(self) -> dict[str, int]:
        """What the names in a script stand for."""
        ...

    def say(self, literal: Literal, scope: Scope) -> tuple[Time, Frame | None, list[str]]:
        """Let the device receive a packet: its time, the frame, and in what it is not the packet.

        No frame when there is none any more. Raises `ScriptError` for a number that does
        not fit its field, and `Unable` for a packet that cannot be sent.
        """
        ...

    def settle(self) -> None:
        """Hear what the device has sent by now."""
        ...

    def deliver(self) -> None:
        """Let the device have what was said, before its application does something."""
        ...

    def advance(self, until: Time, stop: Callable[[], bool]) -> None:
        """Let time pass until a time, or until `stop` is true; asked after each event.

        Raises `TooBusy`.
        """
        ...

    def impair(self, step: Impair, scope: Scope) -> None:
        """Begin a rule for packets to or from the device, or end those that there are.

        Raises `ScriptError` for a value that it cannot have, and `Unable` where packets cannot
        be kept from arriving.
        """
        ...

    def poll_damage(self) -> Damage | None:
        """The next thing that a rule has done, `None` if nobody has done anything."""
        ...


class Told(Protocol):
    """What an application is told about a connection."""

    @property
    def kind(self) -> EventKind:
        """What has happened."""
        ...

    @property
    def reason(self) -> int:
        """`RejectReason` when REJECTED."""
        ...


class CommandedManager(Protocol):
    """A device's connection manager, as its application has it do things."""

    @property
    def events(self) -> deque[Told]:
        """What the application was told and no line has looked at."""
        ...

    def do(self, verb: str, given: Mapping[str, int]) -> None:
        """Carry a command out.

        Raises `VerbsError` for what is refused, `Unable` for what the manager has no means to do.
        """
        ...


class Verbs(Protocol):
    """The verbs of a device: what its application can do.

    All raise `VerbsError` for what the device refuses, `Unable` for what it does not know.
    """

    def register(self, name: str, length: int, access: int, *, other_pd: bool = False) -> None:
        """Register memory under a name."""
        ...

    def bind(self, name: str, va: int, length: int, access: int) -> None:
        """Bind a type 2 window of the first region under a name."""
        ...

    def deregister(self, name: str) -> None:
        """Deregister memory."""
        ...

    def modify(self, given: Mapping[str, int], state: QPState | None) -> None:
        """Set attributes; with a state, also those that the transition needs, as they were."""
        ...

    def post_send(self, wr: SendWR) -> None:
        """Post a send request."""
        ...

    def post_recv(self, wr: RecvWR) -> None:
        """Post a receive request, to the shared queue if there is one."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write to memory."""
        ...

    def read(self, address: int, length: int) -> bytes:
        """What memory holds."""
        ...

    def collect(self) -> tuple[Mapping[str, list[WC]], list[EventType]]:
        """Completions by queue, `send` and `recv`, and events since the last time."""
        ...

    @property
    def state(self) -> QPState:
        """The state of the queue pair."""
        ...
