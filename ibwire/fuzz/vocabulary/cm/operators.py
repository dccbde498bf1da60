"""What a hostile or broken peer says to a connection manager.

Most of the time the next step of an exchange is the right one for the state that it is in,
so that all states are reached; between them operators leave what is right there.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from ibwire.base.units import ACK_TIMEOUT_UNIT, MS, NS, S
from ibwire.cm.states import WAITS, State
from ibwire.fuzz.case import (
    BAD,
    MESSAGES,
    NONE,
    Command,
    Connection,
    Mad,
    Packet,
    Step,
    Value,
    Wait,
)
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import (
    BACKLOG,
    EXCHANGES,
    MAXIMUM_CONNECTIONS,
    ManagedEmulation,
)
from ibwire.fuzz.vocabulary.cm.binding import FORMS
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD, MAD_SIZE, Method, MgmtClass
from ibwire_layers.opcodes import OpCode

LONGEST = 120
"""Steps of a case; a few take ten times as many, for what adds up."""

SPITE = 0.6, 0.7, 0.8
"""How often something is wrong while an exchange is under way: one of them for each case."""

SPITE_WHEN_OVER = 0.3
"""How often before and after it: less, or nothing would be under way for long."""


class Talk:
    """A case as it is made: its exchanges, and what was said in them."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.exchange = rng.choice((0, 0, 1, EXCHANGES - 30))
        """The one that is gone on with."""
        self.begun = self.exchange
        """The newest."""
        self.said: list[Mad] = []

    def begin(self) -> None:
        """Go on with an exchange that has not begun yet."""
        self.begun = self.exchange = (self.begun + 1) % EXCHANGES

    def say(self, message: str, why: str = "", **fields: Value) -> Mad:
        """A message of the exchange; `__` in the name of a field stands for the dot."""
        said = Mad(message=message, exchange=self.exchange, why=why)
        if fields:
            said.fields = {name.replace("__", "."): value for name, value in fields.items()}
        return said

    def do(self, what: str) -> Command:
        """A command of the device's application about the exchange."""
        return Command(what, self.exchange)

    def right(self, reference: ManagedEmulation) -> Sequence[Step]:
        """What goes on with the exchange, or begins another when it is over."""
        rng, state = self.rng, reference.stage(self.exchange)
        if state in _OVER:
            if rng.random() < 0.3 and state in WAITS:
                return [Wait(30 * S)]
            if state is not None or rng.random() < 0.1:
                self.begin()
            return [self.opening()]
        return [rng.choice(_RIGHT[state])(self)]

    def opening(self) -> Step:
        """What an exchange begins with."""
        draw = self.rng.random()
        if draw < 0.55:
            return self.say("REQ")
        if draw < 0.85:
            return self.do("connect")
        return self.say("SIDR_REQ") if draw < 0.93 else self.do("resolve")

    def fitting(self, reference: ManagedEmulation) -> Mad:
        """A message that is right now, if there is one."""
        for _ in range(4):
            step = self.rng.choice(_RIGHT.get(reference.stage(self.exchange), _OPENING))(self)
            if isinstance(step, Mad):
                return step
        return self.say(self.rng.choice(MESSAGES))


Make = Callable[[Talk, ManagedEmulation], Sequence[Step]]


@dataclass(frozen=True, slots=True)
class Attack:
    """A way to leave what is right."""

    name: str
    group: str
    make: Make
    weight: float


ATTACKS: list[Attack] = []


def attack(group: str, weight: float = 1) -> Callable[[Make], Make]:
    """Add a function to the attacks."""

    def add(make: Make) -> Make:
        ATTACKS.append(Attack(make.__name__, group, make, weight))
        return make

    return add


# Order: right messages at the wrong time.


@attack("order", 2)
def again(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Something that was said before, once or several times."""
    said = copy(talk.rng.choice(talk.said[-6:])) if talk.said else talk.say("REQ")
    said.why = "repeated"
    return [said] * talk.rng.choice((1, 1, 1, 2, 4))


@attack("order", 2)
def unheard(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """The question of the exchange, as if the answer had been lost; also of one before."""
    if talk.rng.random() < 0.3:
        talk.exchange = max(talk.begun - 1, 0)
    connection = reference.exchanges.get(talk.exchange)
    question = "REP" if connection is not None and connection.is_active else "REQ"
    return [talk.say(question, "unheard")] * talk.rng.choice((1, 1, 2))


@attack("order", 3)
def out_of_turn(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Any message of the exchange, whatever its state."""
    return [talk.say(talk.rng.choice(MESSAGES), "out of turn")]


@attack("order")
def two_at_once(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Two messages before the device has answered, in either order."""
    first, second = talk.fitting(reference), talk.say(talk.rng.choice(MESSAGES), "out of turn")
    pair = [first, second] if talk.rng.random() < 0.5 else [second, first]
    pair[0].held = True
    return pair


@attack("order")
def both_end(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Both sides end the connection, and one says so again when it is over."""
    steps: list[Step] = [talk.do("disconnect"), talk.say("DREQ", "crossing"), talk.say("DREP")]
    if talk.rng.random() < 0.5:
        steps[:2] = [steps[1], steps[0]]
    return [*steps, talk.say("DREQ", "over")]


@attack("order", 2)
def refused(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """A REJ, with a reason, and about any message."""
    rng = talk.rng
    fields: dict[str, Value] = {"rej__reason": rng.choice(_REASONS)}
    if rng.random() < 0.5:
        fields["rej__message_rejected"] = rng.randrange(4)
    if rng.random() < 0.3:  # who has had no answer is known by its GUID
        fields |= {"rej__reason": cm.RejectReason.TIMEOUT, "rej__ari": ("own.guid", 0)}
        fields["rej__remote_comm_id"] = rng.choice((0, ("id", 0)))
        fields["rej__reject_info_length"] = rng.choice((8, 0, 72, 127))
    return [talk.say("REJ", "refused", **fields)]


@attack("order")
def postponed(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """An MRA, about anything and for any time, and then that time or nearly."""
    rng = talk.rng
    code = rng.choice((0, 1, 10, 20, 24, 31))
    about = rng.choice((("answered", 0), ("answered", 0), 0, 1, 2, 3))
    mra = talk.say("MRA", "postponed", mra__service_timeout=code, mra__message_mraed=about)
    time = int(ACK_TIMEOUT_UNIT << min(code, 24))
    return [mra, Wait(time + rng.choice((0, 5 * S, -time // 2, 20 * S)))]


@attack("order", 2)
def undecided(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """The peer asks again before the application has decided, and goes on as if it had."""
    talk.begin()
    return [talk.say("REQ"), talk.say("REQ", "repeated"), talk.say("RTU", "early")]


# Fields.


@attack("field", 3)
def edge(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """A field of a message that is right otherwise, at the edges of what it can say."""
    message = talk.fitting(reference)
    return [_with(message, _edge(talk.rng, message.message), "edge of a field")]


@attack("field")
def some_edges(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Several fields at once."""
    message = talk.fitting(reference)
    for _ in range(talk.rng.randrange(2, 5)):
        message = _with(message, _edge(talk.rng, message.message), "edges of fields")
    return [message]


@attack("field", 2)
def other_ids(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """The IDs of another connection, near them, stale, or none."""
    rng = talk.rng
    message = talk.fitting(reference) if rng.random() < 0.5 else talk.say(rng.choice(_ENDING))
    part = message.message.lower()
    names = [name for name in _IDS if name in _NAMES[message.message]]
    if not names:
        return [message]
    name = rng.choice(names)
    values: Sequence[Value] = _OTHER_OWN if name == "local_comm_id" else _OTHER
    return [_with(message, {f"{part}.{name}": rng.choice(values)}, "another's ID")]


@attack("field", 2)
def other_queue_pair(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """A DREQ or LAP that names another queue pair, or a peer's queue pair that is in use."""
    rng = talk.rng
    if reference.stage(talk.exchange) in _CONNECTED or rng.random() < 0.4:
        message = rng.choice(("DREQ", "DREQ", "LAP"))
        value = rng.choice((("qpn", 1), ("qpn", -1), 0, 1, 0xFFFFFF, ("own.qpn", 0)))
        fields = {f"{message.lower()}__remote_qpn": value}
        return [talk.say(message, "another queue pair", **fields)]
    if rng.random() < 0.3 and reference.stage(talk.exchange) in _ASKED:
        return [talk.say("REP", "a queue pair in use", rep__local_qpn=("own.qpn", -1))]
    talk.begin()
    back = -rng.choice((1, 1, 2, 3))
    return [talk.say("REQ", "a queue pair in use", req__local_qpn=("own.qpn", back))]


@attack("field")
def same_id(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """A REQ with the ID of the exchange but another queue pair, service, GUID or transaction."""
    change: dict[str, Value] = talk.rng.choice(_DIFFERENT)
    return [_with(talk.say("REQ"), change, "another REQ with the same ID")]


@attack("field", 2)
def not_to_be_had(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """A REQ or SIDR_REQ for what the device does not have."""
    talk.begin()
    name, values = talk.rng.choice(_NOT_HAD)
    message = "SIDR_REQ" if name.startswith("sidr_req") else "REQ"
    return [_with(talk.say(message), {name: talk.rng.choice(values)}, "not to be had")]


@attack("field")
def strangers(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """A message of the exchange that comes from somewhere else."""
    message = talk.fitting(reference)
    if talk.rng.random() < 0.5:
        message = talk.say(talk.rng.choice(_ENDING))
    return [_with(message, {"ip.src": talk.rng.choice((0x0A000009, 0x0A000001))}, "a stranger")]


@attack("field")
def private_data(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Private data as long as it may be, or longer, so that the MAD is too long."""
    message = talk.fitting(reference)
    room = FORMS[message.message].private
    length = talk.rng.choice((1, 36, room - 1, room, room + 1, room + 4, room + 64))
    message.length, message.at = length, talk.rng.randrange(256)
    message.why = "private data"
    return [message]


# The datagram: what is no message of communication management.


@attack("mad", 2)
def mad_header(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Another class, version, method, status or attribute."""
    name, values = talk.rng.choice(_MAD)
    return [_with(talk.fitting(reference), {name: talk.rng.choice(values)}, "MAD header")]


@attack("mad", 2)
def size(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Shorter or longer than a MAD."""
    message, rng = talk.fitting(reference), talk.rng
    if rng.random() < 0.4:
        message.more, message.why = rng.choice((1, 3, 4, 64, 800)), "too long"
        return [message]
    ends = (*_HEADERS, _HEADERS[-1] + 4, _MAD_END - 4, _MAD_END - 1, rng.randrange(_MAD_END))
    message.cut, message.why = rng.choice(ends), "too short"
    return [message]


@attack("mad", 2)
def datagram(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Headers with which QP1 must not take it."""
    message = talk.fitting(reference)
    if talk.rng.random() < 0.2:
        message.icrc, message.why = talk.rng.choice((BAD, NONE, 0)), "ICRC"
        return [message]
    if talk.rng.random() < 0.2:
        message.opcode, message.why = int(talk.rng.choice(_OPCODES)), "opcode"
        return [message]
    name, values = talk.rng.choice(_DATAGRAM)
    return [_with(message, {name: talk.rng.choice(values)}, "datagram")]


# Resources and time.


@attack("resource", 0.2)
def many(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """More requests than the backlog, or all that there is room for, takes; then one of its own."""
    rng = talk.rng
    message = rng.choice(("REQ", "REQ", "SIDR_REQ"))
    steps: list[Step] = []
    accepted = rng.random() < 0.5
    for _ in range(rng.choice((BACKLOG + 2, MAXIMUM_CONNECTIONS + 2))):
        talk.begin()
        steps.append(talk.say(message, "many"))
        if accepted:
            steps.append(talk.do("accept"))
    talk.begin()
    return [*steps, talk.do("connect")]


@attack("resource", 0.5)
def nobody_listens(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """The application stops listening, with requests under way, and begins again."""
    steps: list[Step] = [talk.do("unlisten")]
    if talk.rng.random() < 0.5:
        steps.append(talk.say("REQ"))
    talk.begin()
    return [*steps, talk.say("REQ", "nobody listens"), talk.do("listen"), talk.say("REQ")]


@attack("time", 2)
def waits(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """Time passes: nearly to, just over, or well over what is due."""
    times = [1 * MS, 1 * S, 30 * S, 200 * S]
    due = reference.node.poll_timeout()
    if due is not None:
        left = max(due - reference.now, 2)
        times += [left - 1, left, left + 1 * NS, 3 * left] * 2
    return [Wait(int(talk.rng.choice(times)))]


@attack("time")
def when_it_is_over(talk: Talk, reference: ManagedEmulation) -> Sequence[Step]:
    """The exchange ends, in this way or that; then messages as if it had not."""
    rng = talk.rng
    end: Step = rng.choice((talk.say("DREQ"), talk.say("REJ"), talk.do("reject")))
    times = rng.choice(((), (), (1 * S,), (300 * S,)))
    late = rng.sample(MESSAGES, rng.choice((1, 2, 4)))
    return [end, *(Wait(time) for time in times), *(talk.say(each, "over") for each in late)]


# The case.


GROUPS = tuple(dict.fromkeys(each.group for each in ATTACKS))
"""What `--ops` may name."""


class ManagerGenerator:
    """One case against a connection manager. rng: of this case alone. ops: all if empty."""

    def __init__(self, rng: Random, ops: Collection[str] = ()) -> None:
        self.rng = rng
        self.connection = Connection()
        self._talk = Talk(rng)
        self._queue: deque[Step] = deque()
        self._left = rng.randrange(10, LONGEST if rng.random() < 0.98 else 10 * LONGEST)
        self._attacks = [each for each in ATTACKS if not ops or each.group in ops]
        self._weights = list(accumulate(each.weight for each in self._attacks))
        self._spite = rng.choice(SPITE)

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        assert isinstance(reference, ManagedEmulation)
        self._left -= 1
        if self._left < 0:
            return None
        if not self._queue:
            self._queue.extend(self._choose(reference))
        step = self._queue.popleft()
        if isinstance(step, Mad):
            self._talk.said.append(step)
            reference.exchange = step.exchange
        return step

    def _choose(self, reference: ManagedEmulation) -> Sequence[Step]:
        rng, talk = self.rng, self._talk
        if rng.random() < 0.1:
            talk.exchange = max(talk.begun - rng.randrange(3), 0)
        is_over = reference.stage(talk.exchange) in _OVER
        if self._attacks and rng.random() < (SPITE_WHEN_OVER if is_over else self._spite):
            chosen = bisect(self._weights, rng.random() * self._weights[-1])
            return self._attacks[chosen].make(talk, reference)
        return talk.right(reference)


def _with(message: Mad, fields: dict[str, Value], why: str) -> Mad:
    """A message that was just made, with other fields."""
    message.fields, message.why = {**message.fields, **fields}, why
    return message


def _edge(rng: Random, message: str) -> dict[str, Value]:
    entry = rng.choice(FORMS[message].kind.FIELDS)
    name = f"{message.lower()}.{entry.name}"
    width = min(entry.size, 64)
    top = (1 << width) - 1
    values: list[Value] = [0, 1, top, top - 1, 1 << width - 1, rng.getrandbits(width)]
    if width <= 8:
        values += [rng.getrandbits(width)] * 3
    symbol = FORMS[message].symbols.get(entry.name)
    if symbol is not None:
        values += [(symbol, 1), (symbol, -1), (symbol, 1 << 16)]
    return {name: rng.choice(values)}


_S = State
_OVER = (None, _S.IDLE, _S.TIMEWAIT, _S.ANSWERED)
_CONNECTED = (_S.REP_SENT, _S.ESTABLISHED)
_ASKED = (_S.REQ_SENT, _S.MRA_REQ_RCVD)

Turn = Callable[[Talk], Step]


def _message(name: str) -> Turn:
    return lambda talk: talk.say(name)


def _command(name: str) -> Turn:
    return lambda talk: talk.do(name)


def _data(talk: Talk) -> Step:
    """What stands for an RTU: the first data; of any kind, and not always right."""
    rng = talk.rng
    opcode = rng.choice((OpCode.RC_RDMA_WRITE_ONLY, OpCode.RC_SEND_ONLY, OpCode.RC_ACKNOWLEDGE))
    return Packet(int(opcode), ("expected", rng.choice((0, 0, 0, 1, -1))), length=8)


_DECIDE = (*(_command("accept"),) * 6, _command("reject"), _command("delay"))
_OFFERED = (
    *(_message("RTU"),) * 4,
    *(_data,) * 2,
    _message("MRA"),
    _message("REJ"),
    _command("reject"),
)
_ASK = (*(_message("REP"),) * 5, _message("REJ"), _message("MRA"), _command("reject"))
_OPENING: Sequence[Turn] = (_message("REQ"), _message("REQ"), _message("SIDR_REQ"))
_RIGHT: dict[State | None, Sequence[Turn]] = {
    _S.REQ_RCVD: _DECIDE,
    _S.MRA_REQ_SENT: _DECIDE,
    _S.SIDR_REQ_RCVD: _DECIDE,
    _S.REP_SENT: _OFFERED,
    _S.MRA_REP_RCVD: _OFFERED,
    _S.REQ_SENT: _ASK,
    _S.MRA_REQ_RCVD: _ASK,
    _S.SIDR_REQ_SENT: (_message("SIDR_REP"), _message("SIDR_REP"), _command("reject")),
    _S.REP_RCVD: (*(_command("ready"),) * 6, _command("delay"), _command("reject")),
    _S.MRA_REP_SENT: (*(_command("ready"),) * 3, _command("reject")),
    _S.ESTABLISHED: (
        *(_data, _data, _message("DREQ"), _message("DREQ"), _command("disconnect")),
        _message("REP"),  # the RTU of the device was lost
    ),
    _S.DREQ_SENT: (_message("DREP"), _message("DREP"), _message("DREQ")),
}
"""What may come next in each state."""

_NAMES = {name: {entry.name for entry in form.kind.FIELDS} for name, form in FORMS.items()}
_IDS = ("local_comm_id", "remote_comm_id", "request_id")
_ENDING = ("DREQ", "DREQ", "DREP", "REJ", "RTU", "LAP")
_OTHER: Sequence[Value] = (("other.id", 0), ("id", 1), ("id", -1), 0, 0xFFFFFFFF, ("own.id", 0))
_OTHER_OWN: Sequence[Value] = (("own.id", 1), ("own.id", -1), ("id", 0), 0, 0xFFFFFFFF)
_REASONS = (*(int(each) for each in cm.RejectReason), 0, 34, 36, 0xFFFF)
_DIFFERENT: Sequence[dict[str, Value]] = (
    {"req.local_qpn": ("own.qpn", 64)},
    {"req.service_id": ("service", 5)},
    {"req.local_ca_guid": ("own.guid", 1)},
    {"mad.transaction_id": ("transaction", 1)},
    {"req.starting_psn": ("own.psn", 1)},
)
_NOT_HAD: Sequence[tuple[str, Sequence[Value]]] = (
    ("req.service_id", (("service", 1), ("service", 1 << 16), 0, (1 << 64) - 1)),
    ("req.transport_service_type", (1, 2, 3)),
    ("req.path_packet_payload_mtu", (0, 6, 7, 8, 15, 5)),
    ("req.primary_remote_gid", (("own.gid", 0), 0, ("gid", 1))),
    ("req.primary_local_gid", (("gid", 0), 0, ("own.gid", 1))),
    ("req.pkey", (0x7FFF, 0, 0x1234)),
    ("req.primary_local_ack_timeout", (0, 31)),
    ("req.max_cm_retries", (0, 15)),
    ("req.local_cm_response_timeout", (0, 5, 31)),
    ("req.remote_cm_response_timeout", (0, 31)),
    ("req.responder_resources", (0, 255)),
    ("req.initiator_depth", (0, 255)),
    ("sidr_req.service_id", (("service", 1), 0)),
    ("sidr_req.pkey", (0, 0x1234)),
)
_MAD: Sequence[tuple[str, Sequence[Value]]] = (
    ("mad.base_version", (0, 2, 255)),
    ("mad.mgmt_class", (0, 6, 8, 255, *(int(each) for each in MgmtClass))),
    ("mad.class_version", (0, 1, 3, 255)),
    ("mad.method", (0, 4, 0x83, 255, *(int(each) for each in Method))),
    ("mad.status", (1, 0x0C, 0xFFFF)),
    ("mad.class_specific", (1, 0xFFFF)),
    ("mad.attribute_id", (0, 1, *range(0x0E, 0x1E), 0xFFFF)),
    ("mad.attribute_modifier", (1, 0x80000000, 0xFFFFFFFF)),
    ("mad.transaction_id", (0, ("transaction", 1), (1 << 64) - 1)),
    ("mad.reserved", (1, 0xFFFF)),
)
_DATAGRAM: Sequence[tuple[str, Sequence[Value]]] = (
    ("deth.qkey", (0, 1, 0x80010001, 0x00010000, 0x11111111, 0xFFFFFFFF)),
    ("deth.src_qp", (0, 2, ("own.qpn", 0), 0xFFFFFF)),
    ("bth.dest_qp", (0, 2, 0xFFFFFF, ("qpn", 0))),
    ("bth.pkey", (0x7FFF, 0, 0x1234, 0x9234)),
    ("bth.tver", (1, 15)),
    ("bth.pad_count", (1, 3)),
    ("bth.se", (1,)),
    ("bth.ack_req", (1,)),
    ("ip.dst", (0x0A000009, 0xFFFFFFFF)),
    ("ip.ttl", (0, 1, 255)),
    ("udp.dst_port", (4790, 0)),
)
_OPCODES = (
    *(OpCode.UD_SEND_ONLY_WITH_IMMEDIATE, OpCode.RC_SEND_ONLY, OpCode.UC_SEND_ONLY),
    *(OpCode.RC_ACKNOWLEDGE, OpCode.RC_RDMA_READ_REQUEST),
)
_HEADERS = (0, h.BTH.SIZE, h.BTH.SIZE + h.DETH.SIZE, h.BTH.SIZE + h.DETH.SIZE + MAD.SIZE)
_MAD_END = h.BTH.SIZE + h.DETH.SIZE + MAD_SIZE
"""Bytes from the BTH on."""
