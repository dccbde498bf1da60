"""Runs of regular packets of a connection, as arrays.

A run is found by `steady`: every request has the next PSN, every message is in order, every
response is new and answers a request. Positions are indices into the rows of the run; PSNs
are unwrapped as in `tracker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.connections.connection import Connection
from ibwire.connections.packets import Rows
from ibwire.connections.tracker import RequestTracker

Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


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
    _together: Runs | None = None

    def together(self) -> Runs:
        """The same as runs of several connections, of which there is one."""
        if self._together is None:
            self._together = Runs.of(self)
        return self._together

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
class Runs:
    """Consecutive regular packets of each of several connections.

    Requests, and responses, are in order of exchanges, and then of time.
    """

    connections: Sequence[Connection]
    mtu: Index
    """(connections,) path MTU after these packets; 0 where it is not known."""
    rows: Rows
    """(n,) in order of connections, and then of time."""
    direction: npt.NDArray[np.uint8]
    """(n,) which end sent each."""
    connection: Index
    """(n,) which of the connections each belongs to."""
    trackers: Sequence[RequestTracker]
    """By exchange."""
    owner: Index
    """(exchanges,) which of the connections each belongs to."""
    next: Index
    """(exchanges,) PSN of the first request here, or of the next one."""
    requests: Index
    """Positions."""
    request_key: Index
    """(requests,) which exchange each belongs to."""
    psn: Index
    """(requests,) unwrapped."""
    span: Index
    """(requests,) how many PSNs each takes."""
    responses: Index
    """Positions."""
    response_key: Index
    """(responses,) which exchange each belongs to."""
    answers: Index
    """(responses,) unwrapped PSNs."""
    is_whole: bool = False
    """These are all packets of the connections."""

    known: Any = None
    """What its observer has found out about these packets, when it was asked which must be reported
    alone."""

    @classmethod
    def of(cls, run: Run) -> Runs:
        """Those of one connection."""
        found = [each for each in run.exchanges if len(each.requests) or len(each.responses)]
        places = np.arange(len(found))

        def joined(parts: list[Index]) -> Index:
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)

        return cls(
            connections=[run.connection],
            mtu=np.array([run.connection.mtu or 0], np.int64),
            rows=run.rows,
            direction=run.direction,
            connection=np.zeros(len(run), np.int64),
            trackers=[each.tracker for each in found],
            owner=np.zeros(len(found), np.int64),
            next=np.array([each.tracker.next for each in found], np.int64),
            requests=joined([each.requests for each in found]),
            request_key=np.repeat(places, [len(each.requests) for each in found]),
            psn=joined([each.psn for each in found]),
            span=joined([each.span for each in found]),
            responses=joined([each.responses for each in found]),
            response_key=np.repeat(places, [len(each.responses) for each in found]),
            answers=joined([each.answers for each in found]),
        )

    def kept(self, is_kept: Flags) -> Runs:
        """The packets that are marked: in each connection some from the first on."""
        if is_kept.all():
            return self
        place = np.cumsum(is_kept) - 1
        asks, answers = is_kept[self.requests], is_kept[self.responses]
        return replace(
            self,
            known=None,
            rows=self.rows.take(is_kept),
            direction=self.direction[is_kept],
            connection=self.connection[is_kept],
            requests=place[self.requests[asks]],
            request_key=self.request_key[asks],
            psn=self.psn[asks],
            span=self.span[asks],
            responses=place[self.responses[answers]],
            response_key=self.response_key[answers],
            answers=self.answers[answers],
        )


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
