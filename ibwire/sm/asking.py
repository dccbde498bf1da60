"""Questions of a subnet manager: a limited number on the way, repeated, answered in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ibwire.base.units import MS, Time
from ibwire.sm.mads import (
    DR_DLID,
    DR_SLID,
    HOP_COUNT,
    INITIAL_PATH,
    MKEY,
    PERMISSIVE,
    SMP_DATA,
    STATUS,
    TID,
    Datagram,
)
from ibwire_layers.mad import MAD, MAD_SIZE, Method, MgmtClass

WINDOW = 8
"""SMPs on the way at a time; they have no flow control."""
TIMEOUT: Time = 200 * MS
TRIES = 3
TID_HIGH = 0x4942_0000
"""Upper half of the transaction ids of managers, which no program has."""


@dataclass(slots=True, frozen=True)
class Ask:
    """A Get, or with `data` a Set, by directed route.

    path: the output port of each hop; empty for the manager's own node.
    """

    path: tuple[int, ...]
    attribute: int
    modifier: int = 0
    data: bytes | None = None


Answer = bytes | None
"""The attribute, or `None` if nothing came or the status is an error."""


@dataclass(slots=True)
class _Pending:
    place: int
    mad: bytes
    due: Time
    tries: int = 1


class Questions:
    """Batches of questions, one at a time.

    send: takes what leaves.
    """

    def __init__(
        self, send: Callable[[Datagram], None], *, mkey: int = 0, window: int = WINDOW
    ) -> None:
        self._send = send
        self._mkey = mkey
        self._window = window
        self._tid = 0
        self.sent = 0
        self._pending: dict[int, _Pending] = {}
        self._waiting: deque[tuple[int, Ask]] = deque()
        self._answers: list[Answer] = []
        self._open = 0

    @property
    def is_busy(self) -> bool:
        """Whether answers of a batch are missing."""
        return self._open > 0

    def start(self, asks: Sequence[Ask], now: Time) -> None:
        """Send a batch; what was on the way is forgotten."""
        self._pending.clear()
        self._waiting = deque(enumerate(asks))
        self._answers = [None] * len(asks)
        self._open = len(asks)
        self._fill(now)

    def take(self) -> list[Answer]:
        """The answers of a batch that is done, in the order of its questions."""
        return self._answers

    def receive(self, datagram: Datagram, now: Time) -> bool:
        """Take a response; `False` if it is for no question of these."""
        tid = int.from_bytes(datagram.mad[TID], "big")
        if tid >> 32 != TID_HIGH:
            return False
        pending = self._pending.pop(tid & 0xFFFF_FFFF, None)
        if pending is None:
            return True
        status = int.from_bytes(datagram.mad[STATUS], "big") & 0x7FFF
        self._answers[pending.place] = None if status else bytes(datagram.mad[SMP_DATA])
        self._open -= 1
        self._fill(now)
        return True

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due."""
        return min((each.due for each in self._pending.values()), default=None)

    def handle_timeout(self, now: Time) -> None:
        """Repeat questions, and give up those that were asked often enough."""
        for tid, pending in list(self._pending.items()):
            if pending.due > now:
                continue
            if pending.tries == TRIES:
                del self._pending[tid]
                self._open -= 1
                continue
            pending.tries += 1
            pending.due = now + TIMEOUT
            self._transmit(bytearray(pending.mad))
        self._fill(now)

    def _fill(self, now: Time) -> None:
        while self._waiting and len(self._pending) < self._window:
            place, ask = self._waiting.popleft()
            self._tid = self._tid + 1 & 0xFFFF_FFFF
            mad = packed(ask, TID_HIGH << 32 | self._tid, self._mkey)
            self._pending[self._tid] = _Pending(place, bytes(mad), now + TIMEOUT)
            self._transmit(mad)

    def _transmit(self, mad: bytearray) -> None:
        self.sent += 1
        self._send(Datagram(mad, slid=0xFFFF, dlid=0xFFFF, sqp=0, dqp=0))


def packed(ask: Ask, tid: int, mkey: int = 0) -> bytearray:
    """The directed-route SMP of a question."""
    header = MAD(
        mgmt_class=MgmtClass.SUBN_DIRECTED_ROUTE,
        class_version=1,
        method=Method.GET if ask.data is None else Method.SET,
        transaction_id=tid,
        attribute_id=ask.attribute,
        attribute_modifier=ask.modifier,
    ).pack()
    mad = bytearray(header.ljust(MAD_SIZE, b"\0"))
    mad[HOP_COUNT] = len(ask.path)
    mad[MKEY] = mkey.to_bytes(8, "big")
    mad[DR_SLID] = mad[DR_DLID] = PERMISSIVE
    if ask.data is not None:
        mad[SMP_DATA] = ask.data.ljust(64, b"\0")
    mad[INITIAL_PATH + 1 : INITIAL_PATH + 1 + len(ask.path)] = bytes(ask.path)
    return mad
