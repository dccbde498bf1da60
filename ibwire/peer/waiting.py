"""How a node is driven without a wire: its frames are read as it sends them, its timeouts as
they come due."""

from __future__ import annotations

from collections.abc import Iterator

from ibwire.base.node import Frame, Node
from ibwire.base.units import Time


def frames_from(node: Node, now: Time) -> Iterator[Frame]:
    """The frames that a node sends now, in order."""
    while (frame := node.poll_transmit(now)) is not None:
        yield frame


def timeouts_until(node: Node, now: Time, until: Time) -> Iterator[Time]:
    """Handle the timeouts of a node up to a time; yields the time after each.

    The caller reads what the node sends before it asks for the next timeout.
    """
    while (due := node.poll_timeout()) is not None and due <= until:
        now = max(now, due)
        node.handle_timeout(now)
        yield now
