"""What the responder has refused and the requester has not retransmitted yet.

The state of the responder, as `states` has it, follows from that: each refusal moves it, and
it accepts again when none is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ibwire.connections.events import Cause
from ibwire.connections.packets import TransportPacket
from ibwire.connections.states import RESPONDER_MOVES, ResponderInput, ResponderState

MOST: Final = 4
"""Refusals that are kept until a retransmission follows; it settles all with PSNs near it."""


@dataclass(slots=True, init=False)
class Refusal:
    """A NAK, or what obliges the requester to go back like a NAK, until it has done so."""

    psn: int
    number: int
    place: tuple[int, int]
    """File and number."""
    time_ns: int
    cause: Cause
    wait_ns: int
    """Of an RNR NAK: how long to wait at least."""

    # By hand: that of a dataclass is not compiled, and there are many of these.
    def __init__(
        self,
        psn: int,
        number: int,
        place: tuple[int, int],
        time_ns: int,
        cause: Cause,
        wait_ns: int = 0,
    ) -> None:
        self.psn = psn
        self.number = number
        self.place = place
        self.time_ns = time_ns
        self.cause = cause
        self.wait_ns = wait_ns

    @property
    def input(self) -> ResponderInput:
        """The event that it is for the state of the responder."""
        return ResponderInput.RNR_NAK if self.cause is Cause.RNR else ResponderInput.NAK


class Refusals:
    """The refusals that the requester has not obeyed, newest last, and the responder's state."""

    __slots__ = ("_open", "responder")

    def __init__(self) -> None:
        self.responder = ResponderState.ACCEPTING
        self._open: list[Refusal] = []

    def __iter__(self) -> Iterator[Refusal]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def of(self, psn: int) -> Refusal | None:
        """The one that names this PSN: an RNR NAK before others, which rxe sends after it."""
        if not self._open:
            return None
        fitting = [each for each in self._open if each.psn == psn]
        return max(fitting, key=lambda each: (each.cause is Cause.RNR, each.place), default=None)

    def add(self, psn: int, packet: TransportPacket, cause: Cause, wait_ns: int = 0) -> None:
        """A packet refuses everything from a PSN on."""
        refusal = Refusal(
            psn=psn,
            number=packet.number,
            place=packet.place,
            time_ns=packet.time_ns,
            cause=cause,
            wait_ns=wait_ns,
        )
        self._open = [*self._open[1 - MOST :], refusal]
        self._move(refusal.input)

    def restore(self, refusals: list[Refusal]) -> None:
        """These were not obeyed after all."""
        self._open = [*refusals, *(each for each in self._open if each not in refusals)][-MOST:]
        for each in self._open:
            self._move(each.input)

    def fail(self) -> None:
        """A NAK has ended the connection."""
        self._move(ResponderInput.FATAL_NAK)

    def obey(self, *, upto: int | None = None) -> None:
        """The refusals up to a PSN are obeyed, or all of them; those of later PSNs are kept."""
        self._open = [] if upto is None else [each for each in self._open if each.psn > upto]
        self._move(ResponderInput.OBEYED)
        for each in self._open:
            self._move(each.input)

    def _move(self, moved_by: ResponderInput) -> None:
        self.responder = RESPONDER_MOVES[self.responder][moved_by]
