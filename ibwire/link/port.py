"""What a link to a real network offers, whatever it is made of.

A port moves frames and says what address it has; it never waits. Whoever drives it,
`ibwire.link.live`, waits on the descriptors of all its ports at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ibwire.base.node import Frame


class Port(Protocol):
    """A link to a real network."""

    @property
    def name(self) -> str:
        """What errors and captures call it: the interface."""
        ...

    @property
    def mac(self) -> bytes:
        """Its own MAC address, 6 bytes."""
        ...

    @property
    def mtu(self) -> int:
        """Bytes of the largest IP packet; of RoCEv2 that is 80 more than the path MTU at most
        (rxe_param.h)."""
        ...

    @property
    def addresses(self) -> Sequence[str]:
        """Its IP addresses as `Device` takes them: IPv4, then global, then link-local IPv6."""
        ...

    def receive(self) -> Sequence[Frame]:
        """Frames that have arrived, oldest first, as many as come in one batch; never waits.

        Raises `LinkError` when the link is down or gone.
        """
        ...

    def send(self, frames: Sequence[Frame]) -> int:
        """Send frames in order, never waiting; how many the link has taken.

        Fewer than all means that it is full: it takes more when `fileno` is writable.
        Raises `LinkError` for a frame that cannot be sent, and when the link is down or gone.
        """
        ...

    def notes(self) -> list[str]:
        """What a user should know about the link, and about what it has lost so far, a sentence
        each."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable when frames have arrived, writable when there is room."""
        ...

    def close(self) -> None:
        """Give the link back."""
        ...
