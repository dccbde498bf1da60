"""Which messages have met which states of an exchange, and what was answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ibwire.cm.messages import decode
from ibwire.cm.states import State
from ibwire.fuzz.case import MESSAGES, Mad, Packet
from ibwire.fuzz.coverage import OTHERS, Coverage
from ibwire.node import Frame
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD_SIZE

NOT_BEGUN = "NONE"
STATES = (NOT_BEGUN, *(state.name for state in State))
"""Of an exchange, before the message."""

_MAD = 14 + 20 + 8 + h.BTH.SIZE + h.DETH.SIZE
"""Where the MAD is in what an emulation sends: behind Ethernet, IPv4, UDP, BTH and DETH."""


class ManagerCoverage(Coverage):
    """Messages by state, attribute ID and answer; other packets by opcode."""

    def count(self, state: str, packet: Packet, answers: Sequence[Frame]) -> None:
        """One more packet."""
        number = _NUMBERS[packet.message] if isinstance(packet, Mad) else packet.opcode
        kinds = [_kind(frame) for frame in answers if len(frame) > _MAD + MAD_SIZE]
        self.counts[state, number, kinds[0] if kinds else ()] += 1

    def table(self) -> dict[str, dict[str, Counter[str]]]:
        """Answers by message and state, everything by name; also what was never tried."""
        names = {number: name for name, number in _NUMBERS.items()}
        rows: dict[str, dict[str, Counter[str]]] = {
            name: {state: Counter() for state in STATES} for name in (*MESSAGES, OTHERS)
        }
        for (state, number, kind), count in self.counts.items():
            rows[names.get(number, OTHERS)][state][_text(kind) if kind else "silence"] += count
        return rows


def manager_verdict(mad: bytes) -> str:
    """What a MAD says, without its numbers: `REJ INVALID_SERVICE_ID`."""
    return _text(_kind_of(mad)) if decode(mad) else "no MAD of CM"


def _kind(frame: Frame) -> tuple[int, ...]:
    return _kind_of(frame[_MAD : _MAD + MAD_SIZE])


def _kind_of(mad: bytes) -> tuple[int, ...]:
    """The attribute ID of a MAD, and the reason of a REJ or the status of a SIDR_REP."""
    received = decode(mad)
    message = received.message if received else None
    if isinstance(message, cm.REJ):
        return _REJ, message.reason
    if isinstance(message, cm.SIDR_REP):
        return _SIDR_REP, message.status
    return (_ATTRIBUTES[type(message).__name__],) if message else ()


def _text(kind: tuple[int, ...]) -> str:
    name = cm.CMAttribute(kind[0]).name
    names = {_REJ: cm.RejectReason, _SIDR_REP: cm.SIDRStatus}
    if len(kind) == 1 or kind[0] not in names:
        return name
    try:
        return f"{name} {names[kind[0]](kind[1]).name}"
    except ValueError:
        return f"{name} {kind[1]}"


_REJ, _SIDR_REP = int(cm.CMAttribute.REJ), int(cm.CMAttribute.SIDR_REP)
_ATTRIBUTES = {name: int(cm.CMAttribute[name]) for name in MESSAGES}
_NUMBERS = {name: 0x100 | number for name, number in _ATTRIBUTES.items()}
"""Beyond the opcodes, which other packets are counted by."""
