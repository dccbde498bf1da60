"""Shared receive queues: receive requests for many queue pairs.

A queue pair takes a request when the first packet of a message needs one; from then
on the request belongs to the queue pair. The limit raises one event: when a request is
taken and fewer than the limit are left, SRQ_LIMIT_REACHED is raised and the limit is 0
until it is set again. A limit above the number of requests raises the event when the
next request is taken, not at once (reference/transport#srq-limit).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import AsyncEvent, EventType
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.memory import ProtectionDomain
from ibwire.rc.work import RecvWR


@dataclass(frozen=True, slots=True)
class SRQAttr:
    """`ibv_srq_attr`."""

    max_wr: int
    max_sge: int
    srq_limit: int
    """0 while no event is requested."""


class SharedReceiveQueue:
    """Receive requests for any number of queue pairs, in posting order.

    number: its number in XRCETH. cq: completion queue of an XRC SRQ; other queue pairs
    use their receive completion queue. xrc_domain: its XRC queue pairs may use it.
    """

    __slots__ = (
        "_entries",
        "_on_close",
        "_on_event",
        "closed",
        "cq",
        "limit",
        "max_sge",
        "max_wr",
        "number",
        "pd",
        "users",
        "xrc_domain",
    )

    def __init__(
        self,
        on_event: Callable[[AsyncEvent], None],
        pd: ProtectionDomain,
        *,
        max_wr: int,
        max_sge: int,
        limit: int = 0,
        number: int = 0,
        xrc_domain: object = None,
        cq: CompletionQueue | None = None,
        on_close: Callable[[SharedReceiveQueue], None] | None = None,
    ) -> None:
        """Raises EINVAL for an invalid size or limit."""
        _check(max_wr, limit, 0)
        if max_sge < 0:
            raise VerbsError(errno.EINVAL, f"receive requests of {max_sge} SGEs")
        pd.attach()
        if cq is not None:
            try:
                cq.attach()
            except VerbsError:
                pd.detach()
                raise
        self._on_event = on_event
        self._on_close = on_close
        self._entries: deque[RecvWR] = deque()
        self.pd = pd
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.limit = limit
        self.number = number
        self.xrc_domain = xrc_domain
        self.cq = cq
        self.users = 0
        """Queue pairs that take from it."""
        self.closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def post_recv(self, wr: RecvWR) -> None:
        """Queue a request; raises ENOMEM when full, EINVAL for too many SGEs or a closed queue."""
        if self.closed:
            raise VerbsError(errno.EINVAL, "the shared receive queue is closed")
        if len(wr.sg_list) > self.max_sge:
            raise VerbsError(errno.EINVAL, f"{len(wr.sg_list)} SGEs, at most {self.max_sge}")
        if len(self._entries) >= self.max_wr:
            raise VerbsError(errno.ENOMEM, f"the shared receive queue of {self.max_wr} is full")
        self._entries.append(wr)

    def take(self) -> RecvWR | None:
        """Take the oldest request for a new message; `None` if the queue is empty."""
        if not self._entries:
            return None
        wr = self._entries.popleft()
        if len(self._entries) < self.limit:
            self.limit = 0
            self._on_event(AsyncEvent(EventType.SRQ_LIMIT_REACHED, self))
        return wr

    def modify(self, max_wr: int | None = None, limit: int | None = None) -> None:
        """Change the size or arm the limit; EINVAL for invalid values, and nothing changes."""
        new_max_wr = self.max_wr if max_wr is None else max_wr
        new_limit = self.limit if limit is None else limit
        _check(new_max_wr, new_limit, len(self._entries))
        self.max_wr, self.limit = new_max_wr, new_limit

    def query(self) -> SRQAttr:
        """Its sizes and the armed limit."""
        return SRQAttr(self.max_wr, self.max_sge, self.limit)

    def attach(self) -> None:
        """Add one user; raises EINVAL after `close`."""
        if self.closed:
            raise VerbsError(errno.EINVAL, "the shared receive queue is closed")
        self.users += 1

    def detach(self) -> None:
        """Remove one user."""
        self.users -= 1

    def close(self) -> None:
        """Destroy the queue without completions; EBUSY while it is used. Safe to repeat."""
        if self.users:
            raise VerbsError(errno.EBUSY, f"the shared receive queue has {self.users} users")
        if self.closed:
            return
        self.closed = True
        self._entries.clear()
        self.pd.detach()
        if self.cq is not None:
            self.cq.detach()
        if self._on_close is not None:
            self._on_close(self)


def _check(max_wr: int, limit: int, waiting: int) -> None:
    if max_wr < 1 or max_wr < waiting:
        raise VerbsError(errno.EINVAL, f"room for {max_wr} receive requests, {waiting} wait")
    if not 0 <= limit <= max_wr:
        raise VerbsError(errno.EINVAL, f"a limit of {limit}, not 0 to {max_wr}")
