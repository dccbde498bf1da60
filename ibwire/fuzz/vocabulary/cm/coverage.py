"""How messages to a connection manager are counted: by attribute, state and answer."""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.cm.messages import decode
from ibwire.cm.states import State
from ibwire.fuzz.case import MESSAGES, Mad, Packet
from ibwire.fuzz.coverage import Answer, CoverageScheme
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD, MAD_SIZE

NOT_BEGUN = "NONE"
STATES = (NOT_BEGUN, *(state.name for state in State))
"""States of an exchange before the message."""

_MAD = 14 + 20 + 8 + h.BTH.SIZE + h.DETH.SIZE
"""Offset of the MAD in frames of an emulated device: after Ethernet, IPv4, UDP, BTH, DETH."""


def manager_verdict(mad: bytes) -> str:
    """A MAD in words, without its numbers: `REJ INVALID_SERVICE_ID`."""
    return _text_of(_answer(mad)) if decode(mad) else "no MAD of CM"


def _number_of(packet: Packet) -> int:
    return _NUMBERS[packet.message] if isinstance(packet, Mad) else packet.opcode


def _answer_of(answers: Sequence[Frame]) -> Answer:
    """The first answer that is long enough for a MAD."""
    for frame in answers:
        if len(frame) > _MAD + MAD_SIZE:
            return _answer(frame[_MAD : _MAD + MAD_SIZE])
    return ()


def _answer(mad: bytes) -> Answer:
    """The attribute ID of a MAD, and the reason of a REJ or the status of a SIDR_REP."""
    attribute = int.from_bytes(mad[_ATTRIBUTE_ID])
    if attribute == _REJ:
        return attribute, cm.REJ.unpack(mad, MAD.SIZE).reason
    if attribute == _SIDR_REP:
        return attribute, cm.SIDR_REP.unpack(mad, MAD.SIZE).status
    return (attribute,)


def _text_of(answer: Answer) -> str:
    name = cm.CMAttribute(answer[0]).name
    names = {_REJ: cm.RejectReason, _SIDR_REP: cm.SIDRStatus}
    if len(answer) == 1 or answer[0] not in names:
        return name
    try:
        return f"{name} {names[answer[0]](answer[1]).name}"
    except ValueError:
        return f"{name} {answer[1]}"


_REJ, _SIDR_REP = int(cm.CMAttribute.REJ), int(cm.CMAttribute.SIDR_REP)
_ATTRIBUTE_ID = slice(16, 18)
"""Of a MAD."""

_NUMBERS = {name: 0x100 | cm.CMAttribute[name] for name in MESSAGES}
"""Larger than any opcode: other packets are counted by opcode."""

SCHEME = CoverageScheme(
    states=STATES,
    names={number: name for name, number in _NUMBERS.items()},
    number_of=_number_of,
    answer_of=_answer_of,
    text_of=_text_of,
)
