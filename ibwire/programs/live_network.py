"""The verbs interface on a real link instead of a simulated network."""

from __future__ import annotations

from collections.abc import Callable, Sized

from ibwire.base.units import S, Time
from ibwire.programs.endpoint import Endpoint
from ibwire.verbs import Network

GLANCE = 0.01
"""Seconds that polling an empty completion queue waits."""


class LiveNetwork(Network):
    """A network with one device, in real time.

    glance: seconds that polling an empty completion queue waits.
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
        """Run the device for a duration."""
        self._live.run(seconds=duration / S)

    def poll(self, entries: Sized) -> None:
        """Run the device for `glance` seconds or until `entries` holds something."""
        self._live.run(stop=lambda: bool(entries), seconds=self._glance)

    def wait(self, done: Callable[[], bool]) -> bool:
        """Run the device until `done`, without a limit."""
        self._live.run(stop=done)
        return True
