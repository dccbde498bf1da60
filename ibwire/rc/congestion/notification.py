"""The notification point: which CE-marked packets a device answers with a CNP.

Source: docs/reference/congestion.md#cnp-pacing, docs/reference/wire-formats.md#cnp.
"""

from __future__ import annotations

from enum import StrEnum

from ibwire.base.errors import EncodeError
from ibwire.base.units import US, Time


class Scope(StrEnum):
    """What the interval between two CNPs applies to."""

    QUEUE_PAIR = "queue-pair"
    DESTINATION = "destination"
    """All queue pairs with one peer."""
    PORT = "port"
    """All queue pairs of the device."""


class NotificationPoint:
    """When a device sends CNPs.

    interval: least time between two of them; a mark in between is not remembered. scope: `None` for
    that of the device's profile. dscp, priority: of the CNPs. follows_priority: whether they have
    the priority of the connection instead (`np_cnp_prio_mode` of mlx5).
    """

    __slots__ = ("_last", "dscp", "follows_priority", "interval", "priority", "scope", "sent")

    LIMIT = 1 << 16
    """Queue pairs or peers whose last CNP is remembered."""

    def __init__(
        self,
        *,
        interval: Time = 4 * US,
        scope: Scope | None = None,
        dscp: int = 48,
        priority: int = 6,
        follows_priority: bool = False,
    ) -> None:
        for name, value, most in (("dscp", dscp, 63), ("priority", priority, 7)):
            if not 0 <= value <= most:
                raise EncodeError(name, value, f"0 to {most}")
        if interval < 0:
            raise EncodeError("interval", interval, "0 or above")
        self.interval = interval
        self.scope = scope
        self.dscp = dscp
        self.priority = priority
        self.follows_priority = follows_priority
        self.sent = 0
        """CNPs so far."""
        self._last: dict[int, Time] = {}

    def with_scope(self, usual: Scope) -> NotificationPoint:
        """Itself, with the scope that is usual where none was given."""
        if self.scope is None:
            self.scope = usual
        return self

    def answers(self, qpn: int, peer: int, now: Time) -> bool:
        """Whether a packet with a CE mark, for a queue pair from a peer, gets a CNP."""
        if self.interval:
            key = 0 if self.scope is Scope.PORT else qpn
            if self.scope is Scope.DESTINATION:
                key = peer
            last = self._last.get(key)
            if last is not None and now - last < self.interval:
                return False
            if len(self._last) >= self.LIMIT:
                self._last.clear()
            self._last[key] = now
        self.sent += 1
        return True
