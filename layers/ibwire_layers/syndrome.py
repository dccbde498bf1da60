"""The AETH syndrome: credits, RNR timer or NAK code in one byte.

Source: IBA 9.7.5.2.4 (RNR timer), 9.7.7.2 (credit codes); the same numbers
are in the Linux driver rxe as `rnrnak_jiffies` and in rdmavt as `credit_table`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class AckKind(IntEnum):
    """Bits 6:5 of the syndrome."""

    ACK = 0
    RNR_NAK = 1
    RESERVED = 2
    NAK = 3


class NakCode(IntEnum):
    """Bits 4:0 of a NAK."""

    PSN_SEQUENCE_ERROR = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS_ERROR = 2
    REMOTE_OPERATIONAL_ERROR = 3
    INVALID_RD_REQUEST = 4


_KINDS = tuple(AckKind)

KIND_BITS: Final = 0x60
"""The bits of the kind, which are all 0 in an ACK."""

RESERVED_BIT: Final = 0x80
"""It is sent as 0."""

INVALID_CREDITS: Final = 0x1F
"""Credit code of a responder without flow control credits; software stacks always send it."""

CREDITS: tuple[int, ...] = (
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
)  # fmt: skip
"""Receive work requests by credit code 0 to 30."""

RNR_TIMER_US: tuple[int, ...] = (
    655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920,
    2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920,
    122880, 163840, 245760, 327680, 491520,
)  # fmt: skip
"""Microseconds by RNR timer code; code 0 is the longest."""


def kind(syndrome: int) -> AckKind:
    """Kind of the acknowledgement."""
    return _KINDS[syndrome >> 5 & 3]


def code(syndrome: int) -> int:
    """Credit code, RNR timer code or NAK code, by kind."""
    return syndrome & 0x1F


def credits(syndrome: int) -> int | None:
    """Receive work requests granted by an ACK, `None` without credit information."""
    value = code(syndrome)
    return None if kind(syndrome) is not AckKind.ACK or value == INVALID_CREDITS else CREDITS[value]


def describe(syndrome: int) -> str:
    """The syndrome as text for listings."""
    value = code(syndrome)
    match kind(syndrome):
        case AckKind.ACK:
            return "ACK" if value == INVALID_CREDITS else f"ACK credits={CREDITS[value]}"
        case AckKind.RNR_NAK:
            return f"RNR NAK wait={RNR_TIMER_US[value] / 1000:g}ms"
        case AckKind.NAK:
            known = value in NakCode.__members__.values()
            return f"NAK {NakCode(value).name if known else f'code {value}'}"
        case _:
            return f"reserved syndrome 0x{syndrome:02x}"
