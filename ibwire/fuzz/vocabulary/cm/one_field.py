"""Cases of one message to a connection manager in which one field is changed.

They have no message before it: a manager that looks at the field shows that at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache

from ibwire.fuzz.case import Command, Connection, Mad, Step
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import management_of
from ibwire.fuzz.vocabulary.cm.encoding import FORMS, usual_value
from ibwire.fuzz.vocabulary.deck import Card, Change, Deck, changes_of
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD
from ibwire_layers.schema import Header


class OneMessage:
    """One case of a deck."""

    def __init__(self, card: Card) -> None:
        self.connection = Connection()
        """The connection that the case begins with."""
        message, before, after = EXCHANGES[card.exchange]
        self._steps: deque[Step] = deque([Command(before)] if before else [])
        self._steps.append(changed(message, card))
        if card.turn % 2:
            self._steps.append(Command(after))

    def next(self, reference: Emulation) -> Step | None:
        """The next step, `None` at the end of the case."""
        step = self._steps.popleft() if self._steps else None
        if isinstance(step, Mad):
            management_of(reference).exchange = step.exchange
        return step


def deck(seed: int) -> Deck:
    """The deck of a connection manager."""
    return Deck(f"{seed}:cm", [fields_of(message) for message, _, _ in EXCHANGES], changes_for)


def changed(message: str, card: Card) -> Mad:
    """A right message but for the field of a card."""
    name, change = card.field, card.change
    if name == PRIVATE:
        return Mad(message=message, length=change.number, why="private data")
    value = change.of(usual_value(message, name), {})
    return Mad(message=message, fields={name: value}, why=_ENVELOPE.get(name, "edge of a field"))


@cache
def fields_of(message: str) -> Sequence[str]:
    """What is changed in a message: three of four times a field of its own."""
    kind = FORMS[message].kind
    own = [f"{message.lower()}.{entry.name}" for entry in kind.FIELDS[:-1]]
    common = [*_ENVELOPE, PRIVATE]
    return [*own * max(round(OWN * len(common) / len(own)), 1), *common]


@cache
def changes_for(name: str) -> Sequence[Change]:
    """What a field may become."""
    if name == PRIVATE:
        return [Change(length) for length in _LENGTHS]
    part, _, key = name.partition(".")
    kind: type[Header] = _HEADERS.get(part) or FORMS[part.upper()].kind
    (width,) = (entry.size for entry in kind.FIELDS if entry.name == key)
    return changes_of(min(width, 64))


PRIVATE = "private data"
OWN = 3
"""How often fields of a message are changed, compared with those before it."""

EXCHANGES: Sequence[tuple[str, str, str]] = (
    *[("REQ", "", "accept")] * 4,
    *[("SIDR_REQ", "", "accept")] * 2,
    ("REP", "connect", "ready"),
    ("SIDR_REP", "resolve", "reject"),
)
"""Messages, and what the application of the device does before and after each."""

_HEADERS: Mapping[str, type[Header]] = {"bth": h.BTH, "deth": h.DETH, "mad": MAD}
_DATAGRAM = (
    *("bth.se", "bth.pad_count", "bth.tver", "bth.pkey", "bth.dest_qp", "bth.ack_req"),
    *("deth.qkey", "deth.src_qp"),
)
_ENVELOPE = {
    **dict.fromkeys(_DATAGRAM, "datagram"),
    **{f"mad.{entry.name}": "MAD header" for entry in MAD.FIELDS},
}
"""Fields before a message, and what kind of fault they make."""

_LENGTHS = (1, 36, 55, 56, 91, 92, 93, 96, 135, 136, 155, 156, 192, 215, 216, 256)
"""Bytes of private data: as many as messages have room for, and one more or less."""
