"""The verbs face of ibwire on a real link: it lives on a simulated network otherwise."""

from __future__ import annotations

from collections.abc import Callable

from ibwire.base.units import S, Time
from ibwire.programs.endpoint import Endpoint
from ibwire.verbs import Network

GLANCE = 0.01
"""Seconds that a poll of a queue waits for what is not there yet."""


class LiveNetwork(Network):
    """One device; the time that passes is that of the link.

    glance: seconds that a poll of a completion queue may take.
    """

    def __init__(self, endpoint: Endpoint, glance: float = GLANCE) -> None:
        super().__init__([endpoint.device])
        self._live = endpoint.live
        self._glance = glance

    @property
    def now(self) -> Time:
        """Picoseconds since the endpoint was made."""
        return self._live.now

    def advance(self, duration: Time) -> None:
        """Let so much time pass."""
        self._live.run(seconds=duration / S)

    def poll(self, done: Callable[[], bool]) -> None:
        """Wait a glance for something to be done."""
        self._live.run(stop=done, seconds=self._glance)

    def wait(self, done: Callable[[], bool]) -> bool:
        """Wait for it, however long that takes."""
        self._live.run(stop=done)
        return True
