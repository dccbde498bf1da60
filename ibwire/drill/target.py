"""What a script is held against: a device that answers, or the recording of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ibwire.drill.expressions import Scope
from ibwire.drill.literals import Literal
from ibwire.drill.packets import Wire
from ibwire.node import Frame
from ibwire.units import Time


class TooBusy(Exception):
    """A device does not come to rest; the text says in which way."""


class Target(Protocol):
    """A device with one connection, whose time passes only when a script lets it."""

    now: Time
    heard: deque[tuple[Time, Frame]]
    """What the device has sent and no line has expected yet."""
    wire: Wire
    is_recorded: bool
    """Whether all has happened: then an answer is not late for coming when it came."""

    @property
    def symbols(self) -> dict[str, int]:
        """What the names in a script stand for."""
        ...

    def say(self, literal: Literal, scope: Scope) -> tuple[Frame | None, list[str]]:
        """Let the device receive a packet: the frame, and in what it is not the packet.

        `None` when there is none any more. Raises `ScriptError` for a number that does
        not fit its field.
        """
        ...

    def settle(self) -> None:
        """Hear what the device has sent by now."""
        ...

    def advance(self, until: Time, stop: Callable[[], bool]) -> None:
        """Let time pass until a time, or until `stop` is true; asked after each event.

        Raises `TooBusy`.
        """
        ...
