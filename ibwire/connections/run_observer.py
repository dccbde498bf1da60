"""Who wants to receive runs of regular packets as arrays, and other packets one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ibwire.connections.packet_observer import PacketObserver

if TYPE_CHECKING:
    from ibwire.connections.runs import CompletedMessages, Run


@runtime_checkable
class RunObserver(PacketObserver, Protocol):
    """Receives runs of regular packets as arrays, and other packets one by one."""

    def wants(self, connection: int) -> bool:
        """Whether packets, events and messages of a connection are reported, by its number."""

    def takes(self, run: Run) -> int:
        """How many packets of a run can be reported together; those after are reported alone."""

    def run(self, run: Run) -> None:
        """Packets that it takes together, before they change the trackers."""

    def completed(self, messages: CompletedMessages) -> None:
        """Messages that begin and end in a run; others are reported one by one."""
