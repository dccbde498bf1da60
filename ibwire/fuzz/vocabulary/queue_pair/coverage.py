"""How packets of a queue pair are counted: by opcode, state of the connection and answer."""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import opcode_text
from ibwire.fuzz.coverage import Answer, CoverageScheme
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import INFO, OpCode, Service
from ibwire_layers.syndrome import AckKind

STATES = ("IDLE", "SEND", "WRITE", "WAITING", "RNR WAIT", "ERROR")
"""Values of `Emulation.state`: at rest, in a message, waiting for answers, ended."""

OPCODES = tuple(opcode for opcode, info in INFO.items() if info.service is Service.RC)
"""Those of a reliable connection."""

_ACKNOWLEDGES = (int(OpCode.RC_ACKNOWLEDGE), int(OpCode.XRC_ACKNOWLEDGE))

_BTH = 42
"""Offset of the BTH in frames of an emulated device: after Ethernet, IPv4 and UDP."""


def _answer_of(answers: Sequence[Frame]) -> Answer:
    """The opcode of the first answer, and of an ACK its syndrome."""
    if not answers:
        return ()
    first = answers[0]
    op = first[_BTH]
    return (op, first[_BTH + 12] & 0x7F) if op in _ACKNOWLEDGES else (op,)


def answer_text(answer: Answer) -> str:
    """An answer in words, without its numbers."""
    if len(answer) == 1 or answer[0] not in _ACKNOWLEDGES:
        return opcode_text(answer[0])
    if aeth.kind(answer[1]) is AckKind.ACK:
        return "ACK"
    if aeth.kind(answer[1]) is AckKind.RNR_NAK:
        return "RNR NAK"
    return aeth.describe(answer[1])


SCHEME = CoverageScheme(
    states=STATES,
    names={int(opcode): opcode_text(opcode) for opcode in OPCODES},
    number_of=lambda packet: packet.opcode,
    answer_of=_answer_of,
    text_of=answer_text,
)
