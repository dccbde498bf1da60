"""Makes a case step by step, while it watches what the reference makes of it.

Right traffic brings the connection into states, operators leave what is right there, and
after the connection has ended a packet or two show that it has. Each case begins with
another connection: other limits, other rights, PSNs about to wrap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from random import Random

from ibwire.fuzz.case import Connection, Packet, Receive, Role, Step
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.operators import (
    REQUEST_OPERATORS,
    RESPONSE_MUTATORS,
    Function,
    Operator,
    selected,
)
from ibwire.fuzz.vocabulary.queue_pair import response_mutators
from ibwire.fuzz.vocabulary.queue_pair.messages import answers
from ibwire.fuzz.vocabulary.queue_pair.traffic import Traffic, following
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.memory import Access

LONGEST = {Role.RESPONDER: 80, Role.REQUESTER: 140}
"""Steps of a case by what is attacked; for a requester some of them post the requests."""


class Menu:
    """The operators of some groups, as often as they weigh; the usual ones if none are named.

    combined: whether it is for combined cases, which have some more.
    """

    def __init__(self, ops: Collection[str] = (), *, combined: bool = False) -> None:
        requests = _weighted(selected(REQUEST_OPERATORS, ops, combined=combined))
        self.gentle = [each for each in requests if not each.fatal]
        self.fatal = [each for each in requests if each.fatal]
        self.responses = _weighted(selected(RESPONSE_MUTATORS, ops, combined=combined))


def _weighted(operators: Sequence[Operator[Function]]) -> list[Operator[Function]]:
    return [each for each in operators for _ in range(int(each.weight))]


class Generator:
    """One case. rng: of this case alone. connection: the one that it has, if it is given."""

    def __init__(
        self, rng: Random, role: Role, menu: Menu, connection: Connection | None = None
    ) -> None:
        self.rng = rng
        self.role = role
        self.connection = connection or _connection(rng)
        self._queue: deque[Step] = deque()
        self.traffic = Traffic(rng, self.connection)
        self._left = rng.randrange(10, LONGEST[role])
        self._after = rng.choice((0, 1, 1, 2))
        """Packets that are sent when the connection has ended."""
        self._menu = menu
        self.fatal_below = 0.47
        """The draw below which an error that ends the connection is made; from 0.40 on."""
        self._credits = _credits(self.connection)

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        self._left -= 1
        if self._left < 0:
            return None
        if not reference.is_alive:
            self._after -= 1
            if self._after < 0:
                return None
        while not self._queue:
            self._queue.extend(self.steps(reference))
        step = self._queue.popleft()
        self.note(step, reference)
        return step

    def steps(self, reference: Emulation) -> Sequence[Step]:
        """What may come next; sometimes nothing."""
        return self._operate(reference) if self.role is Role.RESPONDER else self._mutate(reference)

    def note(self, step: Step, reference: Emulation) -> None:
        """Remember a step that is taken, for retransmission."""
        if self.role is Role.RESPONDER and isinstance(step, Packet) and step.psn == ("expected", 0):
            self.traffic.sent.append((step, reference.qp.responder.epsn))

    def _operate(self, reference: Emulation) -> Sequence[Step]:
        traffic, menu = self.traffic, self._menu
        draw = self.rng.random()
        has_receive = reference.waiting_receives or reference.qp.receives.current
        if draw < (0.02 if has_receive else 0.25):
            return [Receive(traffic.one_of((1, 2, 4)))]
        if draw < 0.40 and menu.gentle:
            chosen = traffic.one_of(menu.gentle)
        elif draw < self.fatal_below and menu.fatal:
            chosen = traffic.one_of(menu.fatal)
        else:
            if reference.under_way is not None:
                return [following(traffic, reference)]
            return traffic.messages(reference)
        return chosen.make(traffic, reference)

    def _mutate(self, reference: Emulation) -> Sequence[Step]:
        rng = self.rng
        draw = rng.random()
        right = answers(reference)
        if self._credits is not None:
            right = map(self._with_credits, right)
        first = next(right, None)
        if first is None:
            if draw < 0.8 or reference.device.poll_timeout() is None:
                return response_mutators.posts(rng, reference)
            return response_mutators.waits(rng, reference)
        if draw < 0.04:
            return response_mutators.posts(rng, reference)
        if draw < 0.085:
            return response_mutators.waits(rng, reference)
        if draw < 0.45 and self._menu.responses:
            return rng.choice(self._menu.responses).make(rng, reference, [first, *right])
        if draw < 0.50:
            return self.traffic.messages(reference)
        return response_mutators.in_turn([first, *islice(right, rng.choice((0, 1, 3, None, None)))])

    def _with_credits(self, packet: Packet) -> Packet:
        """A response with credits, if it can have any, from a peer that grants them."""
        if self._credits is None or "aeth.msn" not in packet.fields:
            return packet
        code = self._credits.choice(_CREDIT_CODES)
        return packet.altered(fields={**packet.fields, "aeth.syndrome": code})


def _credits(connection: Connection) -> Random | None:
    """Chooses the credits of responses; `None` for a peer that grants none (IBA 9.7.7.2).

    Drawn from the attributes, which are random, so that all other cases are what they were before.
    """
    rng = Random(f"credits of {connection!r}")
    return rng if rng.random() < GRANTING else None


def _connection(rng: Random) -> Connection:
    """Attributes of the queue pair, mostly usual ones."""
    access = int(ALL_ACCESS)
    if rng.random() < 0.15:
        access &= ~int(rng.choice(_RIGHTS))
    mtu = rng.choice((256, 256, 256, 256, 512, 1024))
    receives, size = rng.choice(((2, 4), (4, 4), (8, 4), (4, 1), (0, 0), (1, 4)))
    return Connection(
        mtu=mtu,
        rq_psn=_psn(rng),
        sq_psn=_psn(rng),
        access=access,
        max_rd_atomic=rng.choice((16, 16, 1, 3, 4)),
        max_dest_rd_atomic=rng.choice((16, 16, 4, 2, 1, 0) if rng.random() < 0.5 else (16,)),
        min_rnr_timer=rng.choice((12, 12, 1, 0, 31)),
        timeout=rng.choice((14, 8, 10, 14, 0)),
        retry_cnt=rng.choice((7, 7, 3, 1, 0)),
        rnr_retry=rng.choice((7, 7, 3, 1, 0)),
        receives=receives,
        room=size * mtu,
    )


def _psn(rng: Random) -> int:
    """Where the numbers begin: anywhere, or just before they wrap."""
    if rng.random() < 0.4:
        return (1 << 24) - rng.randrange(1, 12)
    return rng.choice((0, 1, (1 << 23) - 2, rng.getrandbits(24), rng.getrandbits(24)))


GRANTING = 0.15
"""How likely a peer grants credits: for few messages, or for fewer than before."""

_CREDIT_CODES = (0, 0, 1, 2, 2, 3, 5)

_RIGHTS = (
    Access.REMOTE_WRITE,
    Access.REMOTE_READ,
    Access.REMOTE_ATOMIC,
    Access.FLUSH_GLOBAL | Access.FLUSH_PERSISTENT,
)
