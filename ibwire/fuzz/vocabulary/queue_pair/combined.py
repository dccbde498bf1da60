"""Cases in which several things happen at once.

Several queue pairs of a device, requests to one while it waits for responses, UC, UD and XRC,
lists of SGEs, partitions, fences. What one queue pair does alone is made by the same operators as
in `generator`; here their steps are interleaved, and given what else a step can have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from ibwire.fuzz.case import Connection, Packet, Post, Receive, Role, Step, Value
from ibwire.fuzz.guidance import Guide
from ibwire.fuzz.targets.emulated_device import OUTBOX, Emulation, length_of_whole_pieces
from ibwire.fuzz.vocabulary.queue_pair import response_mutators
from ibwire.fuzz.vocabulary.queue_pair.cells import cell_of
from ibwire.fuzz.vocabulary.queue_pair.generator import LONGEST, Generator, Menu
from ibwire.rc.unreliable import GRH_SIZE
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import INFO, OpCode, Position
from ibwire_layers.syndrome import AckKind


class Stream:
    """Requests to one queue pair, or responses to it, that are interleaved with others."""

    def __init__(self, pair: int, generator: Generator) -> None:
        self.pair = pair
        self.generator = generator
        self.queue: deque[Step] = deque()


class CombinedGenerator:
    """One case. rng: of this case alone. role: what most of its packets attack.

    guide: knows what was met before.
    """

    def __init__(self, rng: Random, role: Role, menu: Menu, guide: Guide | None = None) -> None:
        self.rng = rng
        self.role = role
        self._guide = guide
        plain = Generator(rng, role, menu)
        self._holds = rng.random() < 0.2
        """Whether many packets come before the device has answered those before."""
        connection = _combined(rng, plain.connection, role)
        if self._holds:  # so that few READs are as many as may wait
            connection = replace(connection, max_dest_rd_atomic=rng.choice((1, 2, 3, 16)))
        self.connection = connection
        """The connection that the case begins with."""
        self._streams = [
            Stream(pair, Generator(rng, kind, menu, connection))
            for pair in range(connection.pairs)
            for kind in _roles(rng, role, connection)
        ]
        for stream in self._streams if connection.pairs > 1 else ():
            stream.generator.fatal_below = 0.55  # another queue pair goes on
            stream.generator.traffic.others = [
                other.generator.traffic.sent for other in self._streams if other.pair != stream.pair
            ]
        self._current = self._streams[0]
        self._stays = rng.choice((0.3, 0.6, 0.6, 0.9))
        """How likely the next step is of the same stream."""
        self._alike = _likeness(rng.random()) if connection.pairs > 1 else 0.0
        """How likely it is that the next steps of a queue pair are also those of others."""
        longest = LONGEST[role] + 30 * connection.pairs
        self._left = rng.randrange(20, longest if connection.is_reliable else UNRELIABLE)
        self._after = rng.choice((0, 1, 2, 3))
        """Steps that are taken when no queue pair is left."""
        self._alone = rng.randrange(2, ALONE) if connection.pairs > 1 else self._left
        """Steps that are taken when only one of several queue pairs is left."""

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        self._left -= 1
        living = reference.living
        if not living:
            self._after -= 1
        elif len(living) == 1:
            self._alone -= 1
        if self._left < 0 or self._after < 0 or self._alone < 0:
            return None
        stream = self._choose(living, reference)
        reference.focus(stream.pair)
        for _ in range(_ATTEMPTS):
            while not stream.queue:
                self._fill(stream, reference)
            made = stream.queue.popleft()
            step = self._fitting(made, reference)
            if step is not None:
                # Operators change packets of RC, which then become those of XRC.
                stream.generator.note(made if self.connection.is_xrc else step, reference)
                return _on(step, stream.pair)
        return None

    def _fill(self, stream: Stream, reference: Emulation) -> None:
        """Let a stream make its next steps; sometimes another queue pair does the same."""
        steps = self._new_steps(stream.generator, reference)
        stream.queue.extend(steps)
        likely = max(self._alike, MOSTLY) if _is_shared(steps) else self._alike
        if self._alike and self.rng.random() < likely:
            for other in self._streams:
                is_free = not other.queue or (self._alike == 1 and other is not stream)
                if is_free and other.generator.role is stream.generator.role:
                    other.queue.extend(self._requests_for(steps, other, reference))
                    other.queue.extend(steps)

    def _requests_for(
        self, steps: Sequence[Step], other: Stream, ours: Emulation
    ) -> Sequence[Step]:
        """What another queue pair asks for first, if it has nothing that could be answered."""
        first = steps[0] if steps else None
        is_answer = isinstance(first, Packet) and other.generator.role is Role.REQUESTER
        if not is_answer or ours.pairs[other.pair].sends.wqes:
            return ()
        return response_mutators.posts(self.rng, ours)

    def _new_steps(self, generator: Generator, reference: Emulation) -> Sequence[Step]:
        """Steps of which the first meets something new, if that is found in few attempts.

        Steps that do are kept; they may meet something new in another state, too.
        """
        guide = self._guide
        usual = steps = generator.steps(reference)
        if guide is None or self.connection.service != "RC" or not steps:
            return steps
        for attempt in range(ALTERNATIVES):
            first = steps[0] if steps else None
            if attempt == 0 and not isinstance(first, Packet):
                return steps  # something that the application does, or time
            if isinstance(first, Packet) and cell_of(reference, first) not in guide.seen:
                guide.keep(generator.role, steps)
                return steps
            is_kept = attempt % 2 or self.rng.random() < 0.5
            steps = guide.kept(generator.role, self.rng) if is_kept else generator.steps(reference)
        return usual

    def _choose(self, living: Sequence[int], reference: Emulation) -> Stream:
        """The stream of the next step; mostly of a queue pair that still takes requests.

        While one waits after an RNR NAK, or must send answers, mostly something else happens.
        """
        rng, current = self.rng, self._current
        if len(self._streams) == 1:
            return current
        qp = reference.pairs[current.pair]
        is_waiting = qp.sends.timers.rnr is not None or any(
            each.is_due for each in qp.responder.replies
        )
        is_dead = bool(living) and current.pair not in living
        if is_dead or rng.random() >= (0.2 if is_waiting else self._stays):
            others = [each for each in self._streams if each.pair in living]
            current = rng.choice(others if others and rng.random() < 0.97 else self._streams)
            self._current = current
        return current

    def _fitting(self, step: Step, reference: Emulation) -> Step | None:
        """The step as the service of the connection has it; `None` for one that it has not."""
        connection = self.connection
        if isinstance(step, Post):
            return self._post(step)
        if isinstance(step, Receive) and connection.service == "XRC_SEND":
            return None
        if isinstance(step, Packet):
            packet: Packet | None = step
            if connection.is_xrc:
                packet = as_xrc(self.rng, step)
            elif not connection.is_reliable:
                packet = self._unreliable(step, reference)
            if packet is None:
                return None
            if self.rng.random() < 0.2 and "bth.se" not in packet.fields:
                packet = packet.altered(fields={**packet.fields, "bth.se": 1})
            if connection.rearmed and self.rng.random() < REARMED:
                packet = packet.altered(fields={"bth.mig_req": 0, **packet.fields})
            if self._holds and not packet.held and self.rng.random() < 0.6:
                packet = packet.altered(held=True)
            return packet
        return step

    def _post(self, post: Post) -> Post:
        rng, connection, opcode, length = self.rng, self.connection, post.opcode, post.length
        if not connection.is_reliable:
            allowed = _VERBS[connection.service]
            if opcode not in allowed:
                opcode = rng.choice(allowed)
        mtu = connection.mtu
        if rng.random() < 0.4:
            length = mtu * rng.randrange(1, 5) + rng.choice((-1, 0, 0, 1))
        draw = rng.random()
        sges = 1 if draw < 0.5 else rng.choice((2, 2, 3, 3, 4, 5))
        if sges in (2, 3) and rng.random() < WHOLE:
            length = length_of_whole_pieces(mtu * rng.choice((1, 1, 2)), sges)
        wrong = rng.randrange(1, sges + 1) if sges > 1 and rng.random() < 0.06 else 0
        return Post(
            opcode,
            min(length, OUTBOX),
            post.remote,
            post.signaled,
            sges=sges,
            wrong_lkey=wrong,
            fence=rng.random() < 0.3,
            solicited=rng.random() < 0.4,
        )

    def _unreliable(self, packet: Packet, reference: Emulation) -> Packet | None:
        """A packet of a reliable connection as one of UC or UD."""
        rng = self.rng
        if packet.opcode >> 5 or "bth.opcode" in packet.fields:
            return packet  # of another service on purpose
        info = INFO.get(packet.opcode)
        if info is None or info.is_response:
            return packet if rng.random() < 0.1 else None
        if self.connection.service == "UC":
            opcode = packet.opcode | _UC
            if opcode not in INFO:
                return packet if rng.random() < 0.1 else None
            return packet.altered(opcode=opcode)
        has_imm = "immdt" in [kind.KEY for kind in info.headers]
        opcode = int(OpCode.UD_SEND_ONLY_WITH_IMMEDIATE if has_imm else OpCode.UD_SEND_ONLY)
        room, length = self.connection.room, packet.length
        draw = rng.random()
        if draw < 0.15 and room > PORT_MTU:
            length = PORT_MTU - rng.choice((0, 0, 0, 1, 4))
        elif draw < 0.4:
            length = max(room - GRH_SIZE + rng.choice((-1, 0, 0, 1, 4, 40, 41)), 0)
        elif draw < 0.6:
            length = min(length, max(room - GRH_SIZE, 0))
        made = packet.altered(opcode=opcode, length=length, why="")
        draw = rng.random()
        fields: dict[str, Value] = dict(made.fields)
        if draw < 0.25:
            bit = 1 << rng.randrange(32)
            fields["deth.qkey"] = "qkey", rng.choice((bit, -bit))
        elif draw < 0.4:
            fields["deth.src_qp"] = rng.choice((0, 1, 0xFFFFFF, 0xABCDEF, rng.getrandbits(24)))
        return made.altered(fields=fields)


def as_xrc(rng: Random, packet: Packet) -> Packet:
    """A packet of RC as one of XRC, sometimes with the number of no shared receive queue."""
    if packet.opcode >> 5:
        return packet  # of another service on purpose
    if rng.random() < RC_PACKET_LIKELIHOOD:
        return packet.altered(why="service")
    made = packet.altered(opcode=packet.opcode | _XRC)
    fields: dict[str, Value] = dict(made.fields)
    opcode = fields.get("bth.opcode", 0)
    if isinstance(opcode, int) and 0 < opcode < _OPERATIONS:
        fields["bth.opcode"] = opcode | _XRC
    info = INFO.get(made.opcode)
    begins = info is not None and info.position in _BEGINS and not info.is_response
    if begins and rng.random() < OTHER_QUEUE:
        bit = 1 << rng.randrange(24)
        numbers: Sequence[Value] = (("srqn", bit), ("srqn", -bit), ("srqn", 1), 0, 0xFFFFFF)
        fields["xrceth.xrc_srq"] = rng.choice(numbers)
        return made.altered(fields=fields, why="shared receive queue")
    return made.altered(fields=fields)


def _combined(rng: Random, plain: Connection, role: Role) -> Connection:
    """Attributes of queue pairs with something unusual about them."""
    # Those of unreliable services are short: what a requester does, no response changes.
    reliable = 7 if role is Role.RESPONDER else 17
    service = rng.choice(("RC",) * reliable + ("UC", "UC", "UD"))
    sges = rng.choice((1, 1, 2, 3, 4, 5))
    wrong = rng.choice((0, 0, 0, 0, rng.randrange(1, sges + 1))) if sges > 1 else 0
    room = plain.room
    if service == "UD" and rng.random() < 0.25:
        room = PORT_MTU + GRH_SIZE + rng.choice((0, 1, 8))
    elif service == "UD" and room and rng.random() < 0.8:
        room += GRH_SIZE
    elif room and sges in (2, 3) and rng.random() < WHOLE:
        room = length_of_whole_pieces(plain.mtu * rng.choice((1, 1, 2)), sges)
    elif rng.random() < 0.2:
        room = min(room + rng.choice((1, 5, 100)), 8192)
    retries = {}
    if role is Role.REQUESTER and rng.random() < 0.4:
        retries = {"retry_cnt": rng.choice((0, 1, 1, 2)), "timeout": 8}
    if service == "RC":
        service = _xrc(plain, role) or service
    pairs = rng.choice((1, 1, 2, 2, 2, 3))
    if role is Role.REQUESTER and pairs > 1 and rng.random() < 0.4:
        retries["rnr_retry"] = rng.choice((1, 1, 2))
    return replace(
        plain,
        service=service,
        pairs=pairs,
        sges=sges,
        wrong_lkey=wrong,
        room=room,
        pkey_index=rng.choice((0, 0, 0, 0, 0, 1, 1, 2, 3, 3)),
        rearmed=int(rng.random() < 0.12),
        **_sharing(plain, pairs),
        **retries,
    )


def _sharing(plain: Connection, pairs: int) -> dict[str, int]:
    """Whether the queue pairs share a receive queue, and its limit.

    Drawn from the attributes, which are random, so that all other cases are what they were before.
    """
    rng = Random(repr(plain))
    if rng.random() >= SHARED:
        return {}
    waiting = plain.receives * pairs
    return {"srq": 1, "srq_limit": rng.choice((0, 1, 2, waiting, max(waiting - 1, 0), waiting + 2))}


def _xrc(plain: Connection, role: Role) -> str:
    """The end of XRC that has the place of a queue pair of RC; empty for none.

    Drawn from the attributes as well.
    """
    if Random(f"XRC {plain}").random() >= XRC_LIKELIHOOD[role]:
        return ""
    return "XRC_RECV" if role is Role.RESPONDER else "XRC_SEND"


def _roles(rng: Random, role: Role, connection: Connection) -> Sequence[Role]:
    """What goes on at a queue pair: the role that is attacked, or both."""
    # One end of XRC has no responder, the other no requester, and drops what is for that.
    both = 0.05 if connection.is_xrc else 0.4
    return (Role.RESPONDER, Role.REQUESTER) if rng.random() < both else (role,)


def _likeness(draw: float) -> float:
    """How alike the queue pairs of a case are: not at all, or in many or all of their steps.

    In the same steps they have the same PSNs, by which what one of them keeps might be found.
    """
    if draw < IN_STEP:
        return 1.0
    return ALIKE if draw < 0.6 else 0.0


def _is_shared(steps: Sequence[Step]) -> bool:
    """Whether steps begin with what says little about one queue pair alone: requests, RNR NAKs.

    Responses meet something only at queue pairs that have requests under way.
    """
    first = steps[0] if steps else None
    if isinstance(first, Post):
        return True
    syndrome = first.fields.get("aeth.syndrome", 0) if isinstance(first, Packet) else 0
    return isinstance(syndrome, int) and syndrome >> 5 == AckKind.RNR_NAK


def _on(step: Step, pair: int) -> Step:
    """The step for this queue pair."""
    if not pair:
        return step
    if isinstance(step, Packet):
        return step.altered(pair=pair)
    if isinstance(step, Post):
        step.pair = pair  # `_post` has just made it
    return Receive(step.count, pair) if isinstance(step, Receive) else step


PORT_MTU = 4096
"""Bytes of the largest datagram."""

ALIKE = 0.4
"""How likely it is that the next steps of a queue pair are also those of others."""

IN_STEP = 0.15
"""How likely it is that the steps of all queue pairs are the same."""

REARMED = 0.3
"""How likely a packet has no MigReq where a path is to be armed: its peer arms one, too."""

MOSTLY = 0.9
"""The same for steps that say little about one queue pair alone."""

UNRELIABLE = 60
"""Steps of a case of UC or UD, which no error ends."""

ALONE = 12
"""Steps with one of several queue pairs that is left."""

SHARED = 0.2
"""How likely the queue pairs of a combined case share a receive queue."""

XRC_LIKELIHOOD = {Role.RESPONDER: 0.12, Role.REQUESTER: 0.06}
"""How likely XRC has the place of RC in a combined case, by what is attacked."""

RC_PACKET_LIKELIHOOD = 0.03
"""How likely a packet to a queue pair of XRC is one of RC."""

OTHER_QUEUE = 0.06
"""How likely a request of XRC names no shared receive queue that exists."""

WHOLE = 0.3
"""How likely a packet begins where an SGE begins, if there are several."""

ALTERNATIVES = 4
"""Groups of steps that are looked at for one that meets something new."""

_ATTEMPTS = 100
"""Steps that the service of a connection may not have, one after the other."""

_UC = int(OpCode.UC_SEND_FIRST)
_XRC = int(OpCode.XRC_SEND_FIRST)
_OPERATIONS = 0x20
_BEGINS = (Position.FIRST, Position.ONLY)

_W = WROpcode
_VERBS = {
    "UC": tuple(map(int, (_W.SEND, _W.SEND_WITH_IMM, _W.RDMA_WRITE, _W.RDMA_WRITE_WITH_IMM))),
    "UD": (int(_W.SEND), int(_W.SEND_WITH_IMM)),
}
"""Send requests by service."""
