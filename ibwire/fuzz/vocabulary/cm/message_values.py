"""Every value of what a connection manager can be sent in few ways.

Each in the state in which it counts, with time for what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ibwire.fuzz.case import MAXIMUM_TIME, Command, Connection, Mad, Step, Value, Wait
from ibwire.fuzz.vocabulary.cm.encoding import FORMS
from ibwire.fuzz.vocabulary.value_cases import ValueCase, fixed

USUAL = Connection()
END = Wait(MAXIMUM_TIME)
"""Until everything is over that would happen by itself."""

Exchange = Callable[[int], Sequence[Step]]
"""Makes the steps of an exchange with this number."""


@cache
def message_values() -> Sequence[ValueCase]:
    """All cases against a connection manager: a few exchanges in each."""
    cases = []
    for make in _MAKERS:
        exchanges = list(make())
        for begin in range(0, len(exchanges), AT_ONCE):
            some = exchanges[begin : begin + AT_ONCE]
            steps = [step for number, each in enumerate(some) for step in each(number)]
            cases.append(fixed(USUAL, [*steps, END]))
    return cases


@dataclass(frozen=True, slots=True)
class _Said:
    """A message of an exchange with another value in a field, and what comes before and after.

    Other messages are said by name, commands in small letters.
    """

    before: Sequence[str]
    message: str
    field: str
    values: Sequence[Value]
    after: Sequence[str] = ()

    def __call__(self, number: int) -> Sequence[Step]:
        """The steps of the exchange."""
        changed = [self._changed(value, number) for value in self.values]
        return [*_usual(self.before, number), *changed, *_usual(self.after, number)]

    def _changed(self, value: Value, number: int) -> Mad:
        name = f"{self.message.lower()}.{self.field}" if "." not in self.field else self.field
        why = "MAD header" if name.startswith("mad.") else "edge of a field"
        return Mad(message=self.message, fields={name: value}, exchange=number, why=why)


def _usual(names: Sequence[str], number: int) -> list[Step]:
    return [
        Mad(message=name, exchange=number) if name.isupper() else Command(name, number)
        for name in names
    ]


def _request_fields() -> Iterator[Exchange]:
    """Each value of the narrow fields of requests, each bit of others of at most a byte."""
    for message, name, values in _fields(("REQ", "SIDR_REQ")):
        for value in values:
            yield _Said((), message, name, [value], ["accept"])


def _answer_fields() -> Iterator[Exchange]:
    """The same of answers to requests of the device."""
    for message, name, values in _fields(("REP", "SIDR_REP")):
        for value in values:
            if message == "REP":
                yield _Said(ASKED, message, name, [value], ["ready"])
            else:
                yield _Said(["resolve"], message, name, [value])


def _fields(messages: Sequence[str]) -> Iterator[tuple[str, str, Sequence[int]]]:
    """The fields of at most eight bits, with what they may become."""
    for message in messages:
        form = FORMS[message]
        for entry in form.kind.FIELDS[:-1]:
            if entry.size <= NARROW and "reserved" not in entry.name:
                yield message, entry.name, range(1 << entry.size)
            elif entry.size <= BYTE:
                bits = [1 << bit for bit in range(entry.size)]
                edges = {*range(min(8, 1 << entry.size)), *bits, (1 << entry.size) - 1}
                yield message, entry.name, sorted(edges)


def _reject_reasons() -> Iterator[Exchange]:
    """A REJ for each reason, in answer to a request and to a REP; of each message."""
    for reason in range(REASONS):
        for before in (ASKED, OFFERED):
            yield _Said(before, "REJ", "reason", [reason])
    for about in range(4):
        for before in (ASKED, OFFERED, ESTABLISHED):
            yield _Said(before, "REJ", "message_rejected", [about])


def _receipts() -> Iterator[Exchange]:
    """An MRA with each service timeout, and about each message."""
    for code in range(32):
        for before in (ASKED, OFFERED):
            yield _Said(before, "MRA", "service_timeout", [code])
    for about in range(4):
        for before in (ASKED, OFFERED, ESTABLISHED):
            yield _Said(before, "MRA", "message_mraed", [about])


def _headers() -> Iterator[Exchange]:
    """Each value of the MAD header that could be meant, and each bit that is not looked at."""
    for name, values in _MAD:
        for message in ("DREQ", "SIDR_REQ"):
            for begin in range(0, len(values), AT_ONCE):
                some = values[begin : begin + AT_ONCE]
                yield _Said(ESTABLISHED, message, name, some, [message])


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
            yield _Said(before, message, name, others, [message])


ASKED: Sequence[str] = ("connect",)
"""The device asks for a connection."""

OFFERED: Sequence[str] = ("REQ", "accept")
"""It has accepted one."""

ESTABLISHED: Sequence[str] = (*OFFERED, "RTU")

NARROW = 5
"""Bits of a field of which all values are tried."""

BYTE = 8
"""Bits of a field that is not wide."""

REASONS = 40
"""Reasons of a REJ, of which 35 is the last that has a name (IBA 12.6.7.2)."""

AT_ONCE = 8
"""Exchanges of a case, and changed messages of an exchange that they leave as it is."""

_BITS = [1 << bit for bit in range(16)]
_MAD: Sequence[tuple[str, Sequence[Value]]] = (
    ("mad.base_version", [*range(4), *_BITS[:8]]),
    ("mad.mgmt_class", range(0x40)),
    ("mad.class_version", [*range(4), *_BITS[:8]]),
    ("mad.method", [*range(0x10), *range(0x80, 0x90), *_BITS[:8]]),
    ("mad.attribute_id", [*range(0x30), *_BITS]),
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
