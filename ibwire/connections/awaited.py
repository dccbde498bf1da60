"""What a second reading of a capture follows: the connections that are wanted, and no others."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import Connection
from ibwire.connections.run_observer import RunObserver


class Awaited:
    """The connections that an earlier reading found, and which of their flows are followed."""

    def __init__(self, known: Sequence[Connection], observer: RunObserver) -> None:
        # Those that have only messages of connection managers come last, and are found again.
        self._known = [each for each in known if each.flows]
        wanted = [each for each in self._known if observer.wants(each.number)]
        self._waiting = wanted
        self._number = {flow: each.number for each in wanted for flow in each.flows}
        self._is_wanted = np.zeros(max(self._number, default=0) + 2, np.bool_)
        self._is_wanted[list(self._number)] = True

    def connections(self) -> list[Connection]:
        """All of them without packets, in the order of their numbers."""
        return [Connection(each.number, each.ends, each.service) for each in self._known]

    def are_wanted(self, flow: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """(n,) which of these flows are followed."""
        found: npt.NDArray[np.bool_] = self._is_wanted[np.minimum(flow, len(self._is_wanted) - 1)]
        return found

    def begin(self, parked: Container[int], settled: int | None) -> list[tuple[list[int], str]]:
        """Flows and evidence of the connections that begin now, as they did in that reading.

        parked: flows with packets. settled: how often flows were paired; `None`: all begin.
        """
        begun = [
            each
            for each in self._waiting
            if (settled is None or each.settled <= settled)
            and all(flow in parked for flow in each.flows)
        ]
        numbers = {each.number for each in begun}
        self._waiting = [each for each in self._waiting if each.number not in numbers]
        return [(list(each.flows), each.pairing) for each in begun]

    def number_of(self, flow: int) -> int:
        """The number of the connection of a flow that is followed."""
        return self._number[flow]

    def refused(self, number: int) -> str:
        """Why the destination of a connection refused its packets, if it did."""
        return self._known[number - 1].refused
