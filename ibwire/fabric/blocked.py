"""Waits that can never end, in any network whose queues wait for other queues."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

Q = TypeVar("Q", bound=Hashable, covariant=True)


class HasReasons(Protocol[Q]):
    """A queue that waits, and the queues that it waits for."""

    @property
    def queue(self) -> Q:
        """What waits."""
        ...

    @property
    def reasons(self) -> Sequence[Q]:
        """It goes on as soon as one of them does."""
        ...


W = TypeVar("W", bound=HasReasons[Hashable])


def blocked(waits: Iterable[W]) -> list[W]:
    """The waits of which nothing can end any: all that each waits for are such waits themselves.

    A wait for no queue, but for a host, ends by itself.
    """
    rest = {wait.queue: wait for wait in waits if wait.reasons}
    while free := [
        queue for queue, wait in rest.items() if any(reason not in rest for reason in wait.reasons)
    ]:
        for queue in free:
            del rest[queue]
    return list(rest.values())
