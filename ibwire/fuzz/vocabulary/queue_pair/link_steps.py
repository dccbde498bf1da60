"""Cases for the requester of a device on a link, where time passes by itself.

Usually such a device has no ACK timeout, because the step after which it retransmits would be
unknown; sometimes it has one that is long enough to be certain. Waiting until a timer has
expired is its own step, at once or, where it takes long enough, after another step.
"""

from __future__ import annotations

from dataclasses import replace

from ibwire.fuzz.case import Case, Connection, Packet, Post, Step, Wait
from ibwire.fuzz.stepper import Stepper
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.queue_pair.comparison import LONG, TIMEOUT
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from ibwire_layers.syndrome import AckKind, kind


class Timely:
    """A stepper whose cases wait only where the device does. number: that of the case."""

    def __init__(self, stepper: Stepper, number: int) -> None:
        self._is_timed = number % TIMED == TIMED // 4
        self._is_silent = number % (2 * TIMED) == TIMED // 4
        """Whether nothing is answered: the device asks again until it gives up."""
        timeout = TIMEOUT if self._is_timed else 0
        self.connection: Connection = replace(stepper.connection, timeout=timeout)
        """The connection that the case begins with."""
        self._stepper = stepper
        self._refuses = number % REFUSED == 0 and not self._is_timed
        """Whether the next request is refused by an RNR NAK with a long wait."""
        self._posts = bool(number % 2)
        """Whether the application posts during a long wait; else comes what comes."""
        self._waits = 0
        self._has_acted = False
        """Whether something was done during the current wait."""

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        due = reference.qp.sends.timers.next_timeout()
        if due is None:
            self._has_acted = False
            if self._is_timed and self._waits:
                return None  # in some devices the timer keeps running, and its end is unknown
        else:
            left = due - reference.now
            if self._has_acted or left < LONG or self._is_silent:
                self._has_acted = False
                self._waits += 1
                return Wait(left) if self._waits <= MOST_WAITS else None
            self._has_acted = True
            if self._posts and not self._is_timed:
                return Post(int(WROpcode.RDMA_WRITE), 8)
        if self._refuses and reference.qp.sends.outstanding:
            self._refuses = False
            return _REFUSAL
        return self._usual(reference)

    def _usual(self, reference: Emulation) -> Step | None:
        """What the stepper would do, but wait."""
        step = self._stepper.next(reference)
        while isinstance(step, Wait) or (self._is_timed and _is_rnr_nak(step)):
            step = self._stepper.next(reference)
        return step


def has_fitting_timeout(connection: Connection) -> bool:
    """Whether a device on a link can execute something on such a connection."""
    return connection.timeout in (0, TIMEOUT)


def fits_link(case: Case) -> bool:
    """Whether a device on a link can execute all that a case posts."""
    if has_fitting_timeout(case.connection):
        return True
    return not any(isinstance(step, Post) for step in case.steps)


def _is_rnr_nak(step: Step | None) -> bool:
    syndrome = step.fields.get("aeth.syndrome") if isinstance(step, Packet) else None
    return isinstance(syndrome, int) and kind(syndrome) is AckKind.RNR_NAK


REFUSED = 5
"""One of this many cases makes the device wait with an RNR NAK."""

MOST_WAITS = 10
"""In a case: until a device has given up that has all retries, and one more."""

TIMED = 100
"""One of this many cases has an ACK timeout; they take seconds."""

LONG_CODE = 29
"""The shortest that is long enough: 245.76 ms (reference/transport#rnr-timer)."""

_REFUSAL = Packet(
    int(OpCode.RC_ACKNOWLEDGE),
    ("una", 0),
    fields={"aeth.syndrome": AckKind.RNR_NAK << 5 | LONG_CODE, "aeth.msn": ("ssn", -1)},
    why="RNR NAK",
)
