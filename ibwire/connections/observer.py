"""Who wants to receive the events and messages of connections.

Not in `events.py`, which is compiled: interpreted classes cannot inherit from compiled ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ibwire.connections.events import FlowEvent, Message


class Observer(Protocol):
    """Receives events and messages while a capture is analysed."""

    def event(self, event: FlowEvent) -> None:
        """Something happened; a run of packets is reported when it is over."""

    def message(self, message: Message) -> None:
        """A message is complete and acknowledged, or was abandoned."""
