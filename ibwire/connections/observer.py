"""Who wants to receive the events and messages of connections.

Modules that are not compiled inherit from the protocol, so it is not beside the events, which are.
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
