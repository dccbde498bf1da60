"""What a script runs against: a device that responds, or the recording of one."""

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
"""The longest run: longer than any timer."""


class TooBusy(Exception):
    """A device sends or wakes without end; the text names what it does."""


class Unable(Exception):
    """A script cannot run on a target; the text names what the target lacks."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A frame that an impairment rule has acted on."""

    time: Time
    way: str
    frame: Frame
    line: Line
    what: str


class Target(Protocol):
    """A device with its connections, whose time passes only when a script lets it."""

    now: Time
    outbound: deque[tuple[Time, Frame]]
    """Frames that the device has sent and no line has expected yet, with their times."""
    wire: Wire
    """Of its first queue pair."""
    is_recorded: bool
    """Whether the packets are recorded: their times are then not checked."""
    slack: Time
    """How late every packet may be beyond the times of a script; 0 in virtual time."""
    end: Time
    """The time at which the run ends in any case."""

    @property
    def wires(self) -> Mapping[str, Wire]:
        """Those of the other queue pairs, by their names."""
        ...

    @property
    def symbols(self) -> dict[str, int]:
        """Values of the symbols of a script."""
        ...

    def manager_owner(self, frame: Frame) -> str:
        """The queue pair of whose exchange a message of the connection manager is."""
        ...

    def inject(
        self, literal: Literal, scope: Scope, owner: str = ""
    ) -> tuple[Time, Frame | None, list[str]]:
        """Let the device receive a packet; returns its time, frame, and differences from it.

        The frame is `None` at the end of a recording. Raises `ScriptError` for a number that does
        not fit its field, and `Unable` for a packet that cannot be sent.
        """
        ...

    def settle(self) -> None:
        """Read the frames that the device has sent by now."""
        ...

    def deliver(self) -> None:
        """Let the injected packets arrive, before the application of the device acts."""
        ...

    def advance(self, until: Time, stop: Callable[[], bool]) -> None:
        """Let time pass until a time, or until `stop` is true; called after each event.

        Raises `TooBusy`.
        """
        ...

    def impair(self, step: Impair, scope: Scope) -> None:
        """Begin a rule for packets to or from the device, or end all rules.

        Raises `ScriptError` for an impossible value, and `Unable` on a target that cannot impair
        packets.
        """
        ...

    def poll_damage(self) -> Damage | None:
        """The next frame that a rule has acted on, `None` if there is no more."""
        ...


class ManagerEvent(Protocol):
    """An event of a connection manager for its application."""

    @property
    def kind(self) -> EventKind:
        """The kind of event."""
        ...

    @property
    def reason(self) -> int:
        """`RejectReason` when REJECTED."""
        ...


class CommandedManager(Protocol):
    """A connection manager that takes commands of the application."""

    @property
    def events(self) -> Mapping[str, deque[ManagerEvent]]:
        """Events that no line of the script has expected yet, by queue pair."""
        ...

    def do(self, verb: str, given: Mapping[str, int], owner: str = "") -> None:
        """Carry a command out.

        Raises `VerbsError` for a refused command, `Unable` for one that the manager does not have.
        """
        ...


class Verbs(Protocol):
    """The verbs of a device.

    All raise `VerbsError` where the device refuses, `Unable` where it has no such verb.
    """

    def register(self, name: str, length: int, access: int, *, other_pd: bool = False) -> None:
        """Register memory under a name."""
        ...

    def bind(
        self, name: str, va: int, length: int, access: int, owner: str = "", *, kind: int = 2
    ) -> None:
        """Bind a window under a name."""
        ...

    def window_request(self, name: str, va: int, length: int, access: int) -> SendWR:
        """The send request that binds a window again."""
        ...

    def pause(self, priorities: int, quanta: int) -> None:
        """Let the device's port receive a PFC frame."""
        ...

    def create(self, name: str, given: Mapping[str, int]) -> None:
        """Make a queue pair beside the first one."""
        ...

    def queue_pair(self, name: str) -> QueuePairVerbs:
        """The queue pair of a name; the first one has none."""
        ...

    def reconnect(self, name: str, given: Mapping[str, int]) -> None:
        """Reset a queue pair and connect it again, with other attributes where they are given."""
        ...

    def deregister(self, name: str) -> None:
        """Deregister memory."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write to memory."""
        ...

    def read(self, address: int, length: int) -> bytes:
        """Read memory."""
        ...

    def gather(self) -> tuple[Mapping[tuple[str, str], list[WC]], list[EventType], list[str]]:
        """Completions by queue pair and queue, `send` or `recv`, asynchronous events, and the
        completion queues with an event, since the last call."""
        ...


class QueuePairVerbs(Protocol):
    """The verbs of a queue pair; they raise as those of the device."""

    def modify(self, given: Mapping[str, int], state: QPState | None) -> None:
        """Set attributes; with a state, also those that the transition requires, unchanged."""
        ...

    def post_send(self, wr: SendWR) -> None:
        """Post a send request."""
        ...

    def post_recv(self, wr: RecvWR) -> None:
        """Post a receive request, to the shared queue if there is one."""
        ...

    def notify(self, queue: str, *, solicited_only: bool) -> None:
        """Request one event of a completion queue."""
        ...

    def limit(self, limit: int) -> None:
        """Request an event when fewer receive requests than this are in the shared queue."""
        ...

    @property
    def state(self) -> QPState:
        """The state of the queue pair."""
        ...
