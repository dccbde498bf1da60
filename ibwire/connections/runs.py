"""Runs of regular packets of a connection, as arrays.

A run is found by `steady`: every request has the next PSN, every message is in order, every
response is new and answers a request. Positions are indices into the rows of the run; PSNs
are unwrapped as in `tracker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import Connection
from ibwire.connections.packets import Rows
from ibwire.connections.tracker import RequestTracker

Index = npt.NDArray[np.int64]


@dataclass(slots=True)
class Exchange:
    """The requests of one end and the responses to them among the rows."""

    tracker: RequestTracker
    requests: Index
    """Positions."""
    responses: Index
    psn: Index
    """(requests,) unwrapped."""
    span: Index
    """(requests,) how many PSNs each takes."""
    answers: Index
    """(responses,) unwrapped PSNs."""

    def upto(self, end: int) -> Exchange:
        """The part before a position."""
        requests = int(np.searchsorted(self.requests, end))
        responses = int(np.searchsorted(self.responses, end))
        return replace(
            self,
            requests=self.requests[:requests],
            responses=self.responses[:responses],
            psn=self.psn[:requests],
            span=self.span[:requests],
            answers=self.answers[:responses],
        )


@dataclass(slots=True)
class Run:
    """Consecutive regular packets of a connection."""

    connection: Connection
    rows: Rows
    """(n,) its packets, in the order of the capture."""
    direction: npt.NDArray[np.uint8]
    """(n,) which end sent each."""
    exchanges: Sequence[Exchange]
    """Those of a reliable connection that have requests seen before; none for datagrams."""
    memo: dict[int, Any] = field(default_factory=dict)
    """What its observer has made of the exchanges, by their ids."""

    def __len__(self) -> int:
        return len(self.rows)

    def upto(self, end: int) -> Run:
        """The part before a position."""
        if end == len(self):
            return self
        exchanges = [each.upto(end) for each in self.exchanges]
        rows = self.rows.take(slice(end))
        return Run(self.connection, rows, self.direction[:end], exchanges)


@dataclass(slots=True)
class CompletedMessages:
    """Messages of one end that are completed in a run, oldest first; all arrays (n,)."""

    connection: Connection
    direction: int
    """Of their requests."""
    opcode: npt.NDArray[np.uint8]
    """Of the first request."""
    size: Index
    first_number: Index
    first_ns: Index
    acked_number: Index
    acked_ns: Index
