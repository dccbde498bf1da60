"""The interface of ports to real networks.

A port sends and receives frames and has addresses; it never waits. `ibwire.link.live`
waits on the descriptors of all ports at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ibwire.base.node import Frame


class Port(Protocol):
    """A link to a real network."""

    @property
    def name(self) -> str:
        """The interface, as named in errors and captures."""
        ...

    @property
    def mac(self) -> bytes:
        """Its MAC address, 6 bytes."""
        ...

    @property
    def mtu(self) -> int:
        """Bytes of the largest IP packet; a RoCEv2 packet has at most 80 more than the path MTU
        (rxe_param.h)."""
        ...

    @property
    def addresses(self) -> Sequence[str]:
        """Its IP addresses, as for `Device`: IPv4, then global, then link-local IPv6."""
        ...

    def receive(self) -> Sequence[Frame]:
        """Frames that have arrived, oldest first, at most one batch; never waits.

        Raises `LinkError` when the link is down or gone.
        """
        ...

    def send(self, frames: Sequence[Frame]) -> int:
        """Send frames in order without waiting; returns how many were accepted.

        Fewer than all means that it is full; it accepts more when `fileno` is writable.
        Raises `LinkError` for a frame that cannot be sent, and when the link is down or gone.
        """
        ...

    def notes(self) -> list[str]:
        """Sentences for the user about the link and its losses."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when frames have arrived, writable when there is room."""
        ...

    def close(self) -> None:
        """Close the port."""
        ...


@runtime_checkable
class TimedPort(Protocol):
    """A port that knows when frames have arrived."""

    @property
    def arrival_ns(self) -> Sequence[int]:
        """Nanoseconds since the epoch for each frame of the last `receive`; empty if unknown."""
        ...

    @property
    def arrival_clock(self) -> str:
        """Whose times these are, as text."""
        ...
