"""Timers that may expire at any time within limits: the reference's do when the device's do.

The ACK timer expires between T and 4 T, each time; a requester waits at least the time of an RNR
NAK. Of a device whose times vary (`Profile.timers_vary`) a wait is carried out first. Then a timer
of the reference that is due expires when the device sends a request on that queue pair, or fails
it, and at the latest at its limit. What is sent then, how many retries there are and how they end
is compared as always. On a queue pair that sends before a timer is due, timers expire as usual.

Between waits a timer that is due and has not expired stays as it is, with a time that has passed.

Source: reference/transport#ack-timeout, #rnr-wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ibwire.base.node import Frame
from ibwire.base.units import MS, Time
from ibwire.fuzz.case import RunsAway
from ibwire.fuzz.targets.emulated_device import (
    MAXIMUM_TIMEOUTS,
    QP_NUM,
    SENDS,
    Completion,
    Emulation,
)
from ibwire.fuzz.targets.link.frames import transport
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import WCStatus
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode

MOST = 4
"""How many times as long as it must be a timer may be."""

TICKS = 8 * MS
"""By how much an RNR wait may be longer in any case: two ticks of a clock of 4 ms."""


@dataclass(frozen=True, slots=True)
class Acts:
    """What the requesters of a device do in a wait."""

    sent: Mapping[int, Sequence[Time]] = field(default_factory=dict)
    """When requests are sent, by the number of the queue pair that gets them."""
    failed: frozenset[int] = frozenset()
    """Numbers of the device's queue pairs on which a send request ends with an error."""


def acts_in(sent: Sequence[tuple[Time, Frame]], completed: Sequence[Completion]) -> Acts:
    """What a device has done in a wait. completed: its completions, whole."""
    times: dict[int, list[Time]] = {}
    for when, frame in sent:
        packet = transport(frame)
        if packet is None or len(packet) < h.BTH.SIZE or packet[0] & _OPERATION in _RESPONSES:
            continue
        own = times.setdefault(int.from_bytes(packet[5:8]), [])
        if when not in own[-1:]:
            own.append(when)
    failed = {
        each[QP_NUM]
        for each in completed
        if each[0] == SENDS and len(each) > QP_NUM and each[2] != WCStatus.SUCCESS
    }
    return Acts(times, frozenset(failed))


def follow_timers(reference: Emulation, time: Time, acts: Acts) -> list[tuple[Time, Frame]]:
    """Let time pass on a reference whose timers expire when the device's do; what it sends."""
    return _Wait(reference, time, acts).carry_out()


def has_expired_unseen(reference: Emulation) -> bool:
    """Whether a timer is due that does nothing which shows: it may have expired on the device."""
    for qp in reference.pairs:
        due = qp.sends.timers.ack
        if due is not None and due <= reference.now and not qp.sends.outstanding:
            return True
    return False


_Timer = tuple[QueuePair, str]
"""A queue pair and the name of one of its timers."""


class _Wait:
    """A wait that the reference carries out after the device."""

    def __init__(self, reference: Emulation, time: Time, acts: Acts) -> None:
        self._reference = reference
        self._until = reference.now + time
        self._failed = acts.failed
        self._left = {peer: deque(times) for peer, times in acts.sent.items()}
        """When the device sends later on."""
        self._early: set[int] = set()
        """Queue pairs that do not wait for as long as they must."""

    def carry_out(self) -> list[tuple[Time, Frame]]:
        """Let the time pass; what is sent, and when."""
        reference = self._reference
        found = self._pass(reference.now, ())
        for peer in acts_in(found, ()).sent:  # sent without a timer
            self._drop(peer)
        most = MAXIMUM_TIMEOUTS * len(reference.pairs)
        for _ in range(most):
            expiries = self._expiries()
            first = min(expiries.values(), default=self._until + 1)
            if first > self._until:
                return found + self._pass(self._until, ())
            found += self._pass(first, [each for each in expiries if expiries[each] == first])
            for peer in self._left:
                self._drop(peer)
        raise RunsAway(f"more than {most} timeouts in a wait")

    def _drop(self, peer: int) -> None:
        """Forget what the device has sent so far."""
        left = self._left.get(peer)
        while left and left[0] <= self._reference.now:
            left.popleft()

    def _expiries(self) -> dict[_Timer, Time]:
        """When each timer that runs shall expire, unless something else happens before."""
        return {
            (qp, name): self._expiry(qp, name, due)
            for qp in self._reference.pairs
            for name in _TIMERS
            if (due := getattr(qp.sends.timers, name)) is not None
        }

    def _expiry(self, qp: QueuePair, name: str, due: Time) -> Time:
        """When a timer shall expire. due: when it is at the earliest."""
        now, left = self._reference.now, self._left.get(qp.attr.dest_qp_num)
        if left and left[0] < due:
            self._early.add(qp.number)
        if qp.number in self._early or (not left and qp.number in self._failed):
            return max(due, now)
        latest = max(due + _longest(qp, name), now)
        return min(left[0], latest) if left else latest

    def _pass(self, end: Time, expiring: Sequence[_Timer]) -> list[tuple[Time, Frame]]:
        """Let time pass up to an end, at which these timers expire and no others."""
        reference = self._reference
        held: list[tuple[_Timer, Time]] = []
        for qp in reference.pairs:
            timers = qp.sends.timers
            for name in _TIMERS:
                due = getattr(timers, name)
                if due is None:
                    continue
                is_held = (qp, name) not in expiring
                setattr(timers, name, end + is_held)
                if is_held:
                    held.append(((qp, name), due))
        found = reference.wait(end - reference.now)
        for (qp, name), due in held:
            if getattr(qp.sends.timers, name) == end + 1:
                setattr(qp.sends.timers, name, due)
                reference.device.note_timer(qp)
        return found


def _longest(qp: QueuePair, name: str) -> Time:
    """For how long a timer may run on after it is due."""
    if name == "ack":
        return (MOST - 1) * (qp.sends.ack_wait or 0)
    return max((MOST - 1) * qp.sends.timers.rnr_time, TICKS)


_TIMERS = ("rnr", "ack")
_OPERATION = 0x1F
"""The bits of an opcode without those of the service."""
_RESPONSES = range(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), int(OpCode.RC_ATOMIC_ACKNOWLEDGE) + 1)
