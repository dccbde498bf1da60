"""End-to-end credits: the messages for which the responder has receive work requests.

Every positive AETH carries the responder's MSN and a credit code; their sum is the
number of the last message that may be started, the requester's limited sequence
number (LSN). Source: IBA 9.7.7.2; rdmavt `rc.c`; the capture
reference/habits#hns-credits, an adapter that sends live credits.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from ibwire_layers import syndrome as aeth
from ibwire_layers.psn import HALF, MASK


def credit_code(available: int) -> int:
    """The largest code that promises no more than `available` receive work requests."""
    if available < len(_CODES):
        return _CODES[available]
    return bisect_right(aeth.CREDITS, available) - 1


class SendCredits:
    """The limit up to which the requester may start messages.

    `lsn` never decreases. The limit is off, until RESET, once the peer has sent the code
    for "no credits", as in rdmavt. Some peers send code 0 instead: the limit is also
    turned off for a peer that has sent no other code and still executes messages beyond
    its credits.
    """

    __slots__ = ("_zeros", "limited", "lsn")

    ZEROS = 3
    """Responses with code 0, and no other code, after which the limit is turned off. Until
    then the requester sends one message at a time. The number is a choice of this emulator:
    captures show such peers, the specification does not mention them."""

    def __init__(self) -> None:
        self.lsn = 0
        self.limited = True
        """Whether `lsn` is a limit."""
        self._zeros = 0

    def update(self, syndrome: int, msn: int) -> None:
        """Apply the credits of a positive AETH."""
        if not self.limited:
            return
        granted = _GRANTED[syndrome]
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
        limit = msn + granted & MASK
        if 0 < (limit - self.lsn) & MASK < HALF:
            self.lsn = limit

    def skip_one(self) -> None:
        """Count a started message that needs no credit; it raises the MSN too."""
        self.lsn = self.lsn + 1 & MASK

    def beyond(self, ssn: int) -> int:
        """Messages from the limit to `ssn`: 0 if it is within, 1 for the one limited message."""
        if not self.limited:
            return 0
        ahead = (ssn - self.lsn) & MASK
        return ahead if ahead < HALF else 0


_CODES: Final = tuple(bisect_right(aeth.CREDITS, number) - 1 for number in range(257))
"""Codes of the usual numbers: one is looked up for each ACK."""

_GRANTED: Final = tuple(aeth.credits(syndrome) for syndrome in range(256))
"""Credits by syndrome: a call for each ACK would cost more than all that is done with it."""
