"""Completion queues: completions in order, overrun and completion events.

A queue that is full when a completion is added stays in error: the completion is lost,
CQ_ERR is raised once, and the queue pair that added it moves to ERR. What was in
the queue before can still be polled (reference/transport#cq-overrun).

Arming requests one event: at the next completion, or at the next that is solicited
or an error. Completions already in the queue do not count.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from enum import IntEnum

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import AsyncEvent, EventType
from ibwire.rc.work import WC, WCStatus


class Arming(IntEnum):
    """What raises an event, weakest first."""

    NONE = 0
    SOLICITED = 1
    NEXT = 2


class CompletionChannel:
    """A channel for events of completion queues: `ibv_comp_channel`."""

    __slots__ = ("events", "users")

    def __init__(self) -> None:
        self.events: deque[CompletionQueue] = deque()
        """Queues with an event, oldest first."""
        self.users = 0
        """Completion queues that use it."""

    def poll_event(self) -> CompletionQueue | None:
        """The next queue with an event, or `None`."""
        return self.events.popleft() if self.events else None

    def close(self) -> None:
        """Destroy the channel; raises EBUSY while a queue uses it."""
        if self.users:
            raise VerbsError(errno.EBUSY, f"the completion channel has {self.users} queues")


class CompletionQueue:
    """Completions of any number of work queues, each queue's in the order of its work requests."""

    __slots__ = ("_on_event", "arming", "channel", "closed", "cqe", "entries", "error", "users")

    def __init__(
        self,
        on_event: Callable[[AsyncEvent], None],
        cqe: int,
        channel: CompletionChannel | None = None,
    ) -> None:
        """Raises EINVAL unless `cqe`, the number of completions that fit, is positive."""
        _check_size(cqe)
        self._on_event = on_event
        self.entries: deque[WC] = deque()
        """Completions that are not polled yet, oldest first."""
        self.cqe = cqe
        self.channel = channel
        self.arming = Arming.NONE
        self.error = False
        """Whether a completion has been lost."""
        self.users = 0
        """Work queues that use it."""
        self.closed = False
        if channel is not None:
            channel.users += 1

    def __len__(self) -> int:
        return len(self.entries)

    def push(self, wc: WC) -> bool:
        """Add a completion; `False` if it is lost and the queue is in error."""
        if self.error or len(self.entries) >= self.cqe:
            if not self.error:
                self.error = True
                self._on_event(AsyncEvent(EventType.CQ_ERR, self))
            return False
        self.entries.append(wc)
        if self.arming and (
            self.arming is Arming.NEXT or wc.solicited or wc.status is not WCStatus.SUCCESS
        ):
            self.arming = Arming.NONE
            if self.channel is not None:
                self.channel.events.append(self)
        return True

    def poll(self, n: int = 1) -> list[WC]:
        """Remove and return up to `n` completions, oldest first."""
        entries = self.entries
        if n == 1:
            return [entries.popleft()] if entries else []
        return [entries.popleft() for _ in range(min(n, len(entries)))]

    def discard(self, qp_num: int) -> None:
        """Remove the completions of one queue pair that are not polled yet."""
        kept = [wc for wc in self.entries if wc.qp_num != qp_num]
        self.entries.clear()  # not replaced: another thread may wait for it to fill
        self.entries.extend(kept)

    def arm(self, solicited_only: bool = False) -> None:
        """Request one event.

        A queue armed for any completion stays so when solicited events are requested too
        (IBA C11-31 and C11-32, as Linux `rvt_req_notify_cq` cites them).
        """
        self.arming = max(self.arming, Arming.SOLICITED if solicited_only else Arming.NEXT)

    def resize(self, cqe: int) -> None:
        """Change the capacity; raises EINVAL if it holds more completions already."""
        _check_size(cqe)
        if cqe < len(self.entries):
            raise VerbsError(errno.EINVAL, f"{len(self.entries)} completions do not fit in {cqe}")
        self.cqe = cqe

    def attach(self) -> None:
        """Add one user; raises EINVAL after `close`."""
        if self.closed:
            raise VerbsError(errno.EINVAL, "the completion queue is closed")
        self.users += 1

    def detach(self) -> None:
        """Remove one user."""
        self.users -= 1

    def close(self) -> None:
        """Destroy the queue with its events; raises EBUSY while it is used. Safe to repeat."""
        if self.users:
            raise VerbsError(errno.EBUSY, f"the completion queue has {self.users} users")
        if self.closed:
            return
        self.closed = True
        self.entries.clear()
        if self.channel is not None:
            self.channel.users -= 1
            others = [cq for cq in self.channel.events if cq is not self]
            self.channel.events = deque(others)


def _check_size(cqe: int) -> None:
    if cqe < 1:
        raise VerbsError(errno.EINVAL, f"a completion queue for {cqe} completions")
