"""End-to-end credits: how many messages the responder has receive work requests for.

Every positive AETH carries the responder's MSN and a credit code; their sum is the
number of the last message that may be started, the requester's limited sequence
number (LSN). Source: IBA 9.7.7.2; rdmavt `rc.c`; the capture
reference/habits#hns-credits, an adapter that sends live credits.
"""

from __future__ import annotations

from bisect import bisect_right

from ibwire_layers import psn as serial
from ibwire_layers import syndrome as aeth


def credit_code(available: int) -> int:
    """The largest code that promises no more than `available` receive work requests."""
    return bisect_right(aeth.CREDITS, available) - 1


class SendCredits:
    """The requester's side: which messages may be started.

    `lsn` never goes back. It is no limit once the peer has said that it keeps no
    credits, which lasts until RESET, as in rdmavt. Some peers send code 0 for that:
    whoever has never sent any other code and has still taken messages beyond its
    credits is taken not to keep any.
    """

    __slots__ = ("_zeros", "limited", "lsn")

    ZEROS = 3
    """Answers with code 0 after which a peer that sent no other code is taken not to keep
    credits. Until then it gets one message at a time, which no honest peer minds. The
    number is ours: captures show such peers, the specification does not know them."""

    def __init__(self) -> None:
        self.lsn = 0
        self.limited = True
        """Whether `lsn` is a limit."""
        self._zeros = 0

    def update(self, syndrome: int, msn: int) -> None:
        """Take the credits of a positive AETH."""
        if not self.limited:
            return
        granted = aeth.credits(syndrome)
        if granted is None:
            self.limited = False
            return
        if granted:
            self._zeros = -1
        elif self._zeros >= 0:
            self._zeros += 1
            if self._zeros >= self.ZEROS:
                self.limited = False
                return
        limit = serial.add(msn, granted)
        if serial.is_newer(limit, self.lsn):
            self.lsn = limit

    def skip_one(self) -> None:
        """A message that needs no credit is started: it raises the MSN all the same."""
        self.lsn = serial.add(self.lsn, 1)

    def beyond(self, ssn: int) -> int:
        """How far message `ssn` lies beyond the limit: 0 is within, 1 may go as a limited one."""
        return max(serial.distance(self.lsn, ssn), 0) if self.limited else 0
