"""The PFC watchdog: what a switch does about a neighbour that pauses a queue for too long.

Each queue of a lossless priority is in one of two states. It is *operational* until it has held
frames and sent none for the detection time, because its neighbour pauses it. Then it is
*stormed*: its frames are dropped, or sent in spite of the pause, or nothing happens but that it
is counted, as the action says. It is operational again when no pause has come and none has lasted
for the restoration time. Both are looked at once an interval only.

Source: docs/reference/fabric.md#watchdog.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, Time


class Action(StrEnum):
    """What happens to the frames of a stormed queue."""

    DROP = "drop"
    FORWARD = "forward"
    """They are sent although the queue is paused."""
    ALERT = "alert"
    """Nothing; the storm is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchdog:
    """Settings of the watchdog, with the names of SONiC and its time of a poll."""

    detection_time: Time = 200 * MS
    restoration_time: Time = 200 * MS
    action: Action = Action.DROP
    poll_interval: Time = 100 * MS

    def __post_init__(self) -> None:
        for name in ("detection_time", "restoration_time", "poll_interval"):
            if getattr(self, name) <= 0:
                raise EncodeError(name, getattr(self, name), "above 0")
        if self.action not in list(Action):
            raise EncodeError("action", self.action, f"one of {', '.join(Action)}")

    def poll_after(self, time: Time) -> Time:
        """The first poll at or after a time."""
        return -(-time // self.poll_interval) * self.poll_interval


class QueueWatch:
    """The watchdog of one queue."""

    __slots__ = (
        "_pauses",
        "_quiet_since",
        "_settings",
        "blocked_since",
        "due",
        "is_stormed",
        "restored",
        "storms",
    )

    def __init__(self, settings: Watchdog) -> None:
        self._settings = settings
        self.is_stormed = False
        self.storms = 0
        """Storms so far: `PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED`."""
        self.restored = 0
        """`PFC_WD_QUEUE_STATS_DEADLOCK_RESTORED`."""
        self.blocked_since: Time | None = None
        """Since when it has had frames, sent none, and been paused; while operational."""
        self.due: Time | None = None
        """When to call `poll`."""
        self._quiet_since: Time = 0
        self._pauses = 0

    def blocked(self, now: Time) -> None:
        """The queue has a frame and may not send it."""
        if self.blocked_since is None and not self.is_stormed:
            self.blocked_since = now
            self.due = self._settings.poll_after(now + self._settings.detection_time)

    def sent(self) -> None:
        """The queue has sent a frame."""
        if not self.is_stormed:
            self.blocked_since = self.due = None

    def poll(self, now: Time, *, has_frames: bool, is_paused: bool, pauses: int) -> None:
        """Look at the queue; pauses: those received for it so far."""
        settings = self._settings
        if not self.is_stormed:
            if has_frames and is_paused:
                self.is_stormed = True
                self.storms += 1
                self._quiet_since, self._pauses = now, pauses
                self.due = settings.poll_after(now + 1)
            else:
                self.due = None
            self.blocked_since = None
            return
        if is_paused or pauses != self._pauses:
            self._quiet_since, self._pauses = now, pauses
        if now - self._quiet_since >= settings.restoration_time:
            self.is_stormed = False
            self.restored += 1
            self.due = None
            return
        self.due = settings.poll_after(now + 1)
