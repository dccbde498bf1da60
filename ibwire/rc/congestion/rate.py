"""The interface of congestion control: what it is told of, and what it is asked.

The requester knows nothing of its formulas. A control of one's own is a class with these
methods, and a function that makes one for each queue pair: `Device(rate_control=...)`.
"""

from __future__ import annotations

from typing import Protocol

from ibwire.base.units import Time


class RateControl(Protocol):
    """The rate of one queue pair. Times never go back from call to call."""

    next_send: Time
    """When the next request or READ response may leave; acknowledgements are never held back."""

    def sent(self, size: int, now: Time) -> None:
        """A packet with this many bytes of line time begins to leave."""
        ...

    def notified(self, now: Time) -> None:
        """A CNP has arrived."""
        ...
