"""Which messages have met which states of an exchange, and what was answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.cm.messages import decode
from ibwire.cm.states import State
from ibwire.fuzz.case import MESSAGES, Mad, Packet
from ibwire.fuzz.vocabulary.queue_pair.coverage import OTHERS, Coverage
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD, MAD_SIZE

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
        kind: tuple[int, ...] = ()
        for frame in answers:
            if len(frame) > _MAD + MAD_SIZE:
                kind = _kind(frame[_MAD : _MAD + MAD_SIZE])
                break
        self.counts[state, number, kind] += 1

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
    return _text(_kind(mad)) if decode(mad) else "no MAD of CM"


def _kind(mad: bytes) -> tuple[int, ...]:
    """The attribute ID of a MAD, and the reason of a REJ or the status of a SIDR_REP."""
    attribute = int.from_bytes(mad[_ATTRIBUTE_ID])
    if attribute == _REJ:
        return attribute, cm.REJ.unpack(mad, MAD.SIZE).reason
    if attribute == _SIDR_REP:
        return attribute, cm.SIDR_REP.unpack(mad, MAD.SIZE).status
    return (attribute,)


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
_ATTRIBUTE_ID = slice(16, 18)
"""Of a MAD."""
_NUMBERS = {name: 0x100 | cm.CMAttribute[name] for name in MESSAGES}
"""Beyond the opcodes, which other packets are counted by."""
