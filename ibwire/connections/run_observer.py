"""Who wants to receive runs of regular packets as arrays, and other packets one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ibwire.connections.packet_observer import PacketObserver

if TYPE_CHECKING:
    from ibwire.connections.connection import Connection
    from ibwire.connections.runs import CompletedMessages, Flags, Run, Runs


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


@runtime_checkable
class RunsObserver(RunObserver, Protocol):
    """Receives runs of many connections at once; of these, messages are not reported."""

    def group(self, connection: Connection) -> int:
        """Runs of connections with one group may be reported together.

        With group 0 also those of connections that end with these packets and had no tracker.
        """

    def alone(self, runs: Runs) -> Flags:
        """(n,) packets that must be reported alone, with those after them in their connection.

        Of each connection it marks the first at least. Of connections that end with these packets
        all have one tracker, which has seen nothing; those without a mark are not reported.
        """

    def runs(self, runs: Runs) -> None:
        """Packets of which none must be reported alone, before they change the trackers."""

    def over(self, connections: Sequence[int]) -> None:
        """No packets of these connections follow, by their numbers."""
