"""Every value of what a connection manager can be sent in few ways.

Each in the state in which it counts, with time for what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ibwire.fuzz.case import MAXIMUM_TIME, Command, Connection, Mad, Step, Value, Wait
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.cm.encoding import FORMS
from ibwire.fuzz.vocabulary.value_cases import ValueCase
from ibwire_layers import cm

USUAL = Connection()
END = Wait(MAXIMUM_TIME)
"""Until everything is over that would happen by itself."""


@cache
def message_values() -> Sequence[ValueCase]:
    """All cases against a connection manager: a few exchanges in each."""
    return _cases_of(_MAKERS)


@cache
def first_values() -> Sequence[ValueCase]:
    """The cases that come first: of messages that devices seldom get, and read in other ways."""
    return _cases_of(_FIRST_MAKERS)


def _cases_of(makers: Sequence[Callable[[], Iterator[Exchange]]]) -> Sequence[ValueCase]:
    cases = []
    for make in makers:
        exchanges = list(make())
        for takes_time in (False, True):
            alike = [each for each in exchanges if each.takes_time is takes_time]
            for begin in range(0, len(alike), AT_ONCE):
                some = alike[begin : begin + AT_ONCE]
                cases.append(ValueCase(USUAL, partial(_steps_of, some, takes_time)))
    return cases


def _steps_of(
    exchanges: Sequence[Exchange], takes_time: bool, reference: Emulation
) -> Sequence[Step]:
    """The steps of a case, made when it comes; kept ones would slow garbage collection down."""
    steps = [step for number, each in enumerate(exchanges) for step in each.steps(number)]
    return [*steps, END] if takes_time else steps


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message of an exchange with another value in a field, and what comes before and after.

    Other messages are said by name, commands in small letters.
    """

    before: Sequence[str]
    message: str
    field: str
    values: Sequence[Value]
    after: Sequence[str] = ()
    beside: Sequence[tuple[str, Value]] = ()
    """Other fields that the message has besides."""
    length: int = 0
    """Bytes of its private data."""

    @property
    def takes_time(self) -> bool:
        """Whether the field says how long something takes, or how often it is repeated."""
        return self.field.endswith(_OF_TIME)

    def steps(self, number: int) -> Sequence[Step]:
        """The steps of the exchange. number: which one of its case it is."""
        changed = [self._changed(value, number) for value in self.values]
        return [*_usual(self.before, number), *changed, *_usual(self.after, number)]

    def _changed(self, value: Value, number: int) -> Mad:
        name = f"{self.message.lower()}.{self.field}" if "." not in self.field else self.field
        why = "MAD header" if name.startswith("mad.") else "edge of a field"
        return Mad(
            message=self.message,
            fields={name: value, **dict(self.beside)},
            length=self.length,
            exchange=number,
            why=why,
        )


def _usual(names: Sequence[str], number: int) -> list[Step]:
    return [
        Mad(message=name, exchange=number) if name.isupper() else Command(name, number)
        for name in names
    ]


def _request_fields() -> Iterator[Exchange]:
    """Each value of the narrow fields of requests, each bit of others of at most a byte."""
    for message, name, values in _fields(("REQ", "SIDR_REQ")):
        for value in values:
            # An RTU brings the queue pair up, and ends what retries and timeouts are for.
            goes_on = message == "REQ" and not name.endswith(_OF_TIME)
            after = ["accept", "RTU"] if goes_on else ["accept"]
            yield Exchange((), message, name, [value], after)


def _answer_fields() -> Iterator[Exchange]:
    """The same of answers to requests of the device."""
    for message, name, values in _fields(("REP", "SIDR_REP")):
        for value in values:
            if message == "REP":
                yield Exchange(ASKED, message, name, [value], ["ready"])
            else:
                yield Exchange(["resolve"], message, name, [value])


def _fields(messages: Sequence[str]) -> Iterator[tuple[str, str, Sequence[int]]]:
    """The fields of at most eight bits, with what they may become."""
    for message in messages:
        form = FORMS[message]
        for entry in form.kind.FIELDS[:-1]:
            if entry.size <= NARROW and not entry.name.startswith(_RARE):
                yield message, entry.name, range(1 << entry.size)
            elif entry.size <= BYTE:
                bits = [1 << bit for bit in range(entry.size)]
                edges = {*range(min(FIRST, 1 << entry.size)), *bits, (1 << entry.size) - 1}
                yield message, entry.name, sorted(edges)


def _reject_reasons() -> Iterator[Exchange]:
    """A REJ for each reason, in answer to a request and to a REP; of each message."""
    for reason in (*range(REASONS), *(1 << bit for bit in range(6, 16)), 0xFFFF):
        for before in (ASKED, OFFERED):
            yield Exchange(before, "REJ", "reason", [reason])
    for about in range(4):
        for before in (ASKED, OFFERED, ESTABLISHED):
            yield Exchange(before, "REJ", "message_rejected", [about])


def _receipts() -> Iterator[Exchange]:
    """An MRA with each service timeout, and about each message."""
    for code in range(32):
        for before in (ASKED, OFFERED):
            yield Exchange(before, "MRA", "service_timeout", [code])
    for about in range(4):
        for before in (ASKED, OFFERED, ESTABLISHED):
            yield Exchange(before, "MRA", "message_mraed", [about])


def _headers() -> Iterator[Exchange]:
    """Each value of the MAD header that could be meant, and each bit that is not looked at."""
    for name, values in _MAD:
        for begin in range(0, len(values), AT_ONCE):
            yield Exchange(ESTABLISHED, "DREQ", name, values[begin : begin + AT_ONCE], ["DREQ"])


def _identifiers() -> Iterator[Exchange]:
    """IDs and numbers of queue pairs that differ in one bit."""
    for message in ("RTU", "DREQ", "REJ"):
        before = OFFERED if message == "RTU" else ESTABLISHED
        names = [("remote_comm_id", "id", 32), ("local_comm_id", "own.id", 32)]
        if message == "DREQ":
            names.append(("remote_qpn", "qpn", 24))
        for name, symbol, width in names:
            # One of the two has only this bit changed.
            others = [(symbol, sign << bit) for bit in range(width) for sign in (1, -1)]
            yield Exchange(before, message, name, others, [message])


def _resolutions() -> Iterator[Exchange]:
    """A SIDR_REP with each status, whatever it has besides."""
    for status in range(STATUSES):
        yield Exchange(["resolve"], "SIDR_REP", "status", [status], length=status % 2 and 8)


def _full_rejections() -> Iterator[Exchange]:
    """A REJ with additional information and private data, in each state that it ends."""
    offered = [*ASKED, "REP"]
    for length in (1, 72):
        beside = ("rej.reject_info_length", length), ("rej.ari", ("own.guid", 0))
        for before in (ASKED, offered, OFFERED, ESTABLISHED):
            reason = [_CONSUMER_DEFINED]
            yield Exchange(before, "REJ", "reason", reason, beside=beside, length=8)


def _own_transactions() -> Iterator[Exchange]:
    """A DREQ with a transaction ID of its own, again in TIMEWAIT, there with another one."""
    for before in (ESTABLISHED, [*ASKED, "REP", "ready"]):
        for more in ([], ["DREQ"], ["disconnect"], ["disconnect", "DREP"]):
            own: Sequence[Value] = [("transaction", 1), ("transaction", 1), ("transaction", 2)]
            yield Exchange([*before, *more], "DREQ", "mad.transaction_id", own)


ASKED: Sequence[str] = ("connect",)
"""The device asks for a connection."""

OFFERED: Sequence[str] = ("REQ", "accept")
"""It has accepted one."""

ESTABLISHED: Sequence[str] = (*OFFERED, "RTU")

NARROW = 5
"""Bits of a field of which all values are tried."""

BYTE = 8
"""Bits of a field that is not wide."""

FIRST = 8
"""Of a byte so many values are tried beside its bits: those that counts and codes have."""

STATUSES = 8
"""Statuses of a SIDR_REP, of which 5 is the last that has a name (IBA 12.11.2)."""

_CONSUMER_DEFINED = int(cm.RejectReason.CONSUMER_DEFINED)

REASONS = 40
"""Reasons of a REJ, of which 35 is the last that has a name (IBA 12.6.7.2)."""

AT_ONCE = 8
"""Exchanges of a case, and changed messages of an exchange that they leave as it is."""

_OF_TIME = ("timeout", "retries", "delay", "message_mraed")

_RARE = ("reserved", "primary_reserved", "alternate_")
"""How fields begin whose values mean nothing, or something about a path that is seldom used."""

_BITS = [1 << bit for bit in range(16)]
_MAD: Sequence[tuple[str, Sequence[Value]]] = (
    ("mad.base_version", range(0x100)),
    ("mad.mgmt_class", range(0x100)),
    ("mad.class_version", range(0x100)),
    ("mad.method", range(0x100)),
    ("mad.attribute_id", [*range(0x40), *_BITS]),
    ("mad.status", _BITS),
    ("mad.class_specific", _BITS),
    ("mad.reserved", _BITS),
    ("mad.attribute_modifier", [1 << bit for bit in range(32)]),
)

_MAKERS: Sequence[Callable[[], Iterator[Exchange]]] = (
    _request_fields,
    _answer_fields,
    _reject_reasons,
    _receipts,
    _headers,
    _identifiers,
)

_FIRST_MAKERS: Sequence[Callable[[], Iterator[Exchange]]] = (
    _resolutions,
    _full_rejections,
    _own_transactions,
)
