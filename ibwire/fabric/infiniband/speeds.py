"""Speeds and widths of InfiniBand links, with the codes that PortInfo has for them.

The data rate of a link is that of its lane without the encoding, times the lanes
(docs/reference/infiniband.md).
"""

from __future__ import annotations

import re
from enum import Enum
from fractions import Fraction

from ibwire.base.errors import EncodeError


class Speed(Enum):
    """A speed: bits a second on a lane, the part of them that is data, code in PortInfo."""

    SDR = ("SDR", 2_500_000_000, Fraction(8, 10), 1, 0, 0)
    DDR = ("DDR", 5_000_000_000, Fraction(8, 10), 2, 0, 0)
    QDR = ("QDR", 10_000_000_000, Fraction(8, 10), 4, 0, 0)
    FDR10 = ("FDR10", 10_312_500_000, Fraction(64, 66), 4, 0, 0)
    """PortInfo says QDR; a vendor's attribute tells them apart."""
    FDR = ("FDR", 14_062_500_000, Fraction(64, 66), 4, 1, 0)
    EDR = ("EDR", 25_781_250_000, Fraction(64, 66), 4, 2, 0)
    HDR = ("HDR", 53_125_000_000, Fraction(16, 17), 4, 4, 0)
    NDR = ("NDR", 106_250_000_000, Fraction(16, 17), 4, 8, 0)
    XDR = ("XDR", 212_500_000_000, Fraction(16, 17), 4, 0, 1)

    def __init__(
        self,
        label: str,
        lane_bps: int,
        encoding: Fraction,
        code: int,
        extended: int,
        extended2: int,
    ) -> None:
        self.label = label
        self.lane_bps = lane_bps
        """Signalling rate of a lane."""
        self.encoding = encoding
        """Data bits for each bit on the lane, error correction included."""
        self.code = code
        """LinkSpeedActive."""
        self.extended = extended
        """LinkSpeedExtActive."""
        self.extended2 = extended2
        """LinkSpeedExtActive2."""

    @property
    def named_bps(self) -> int:
        """The rate of a lane by which people name it: signalling up to QDR, data above."""
        if self.encoding == Fraction(8, 10):
            return self.lane_bps
        return round(self.lane_bps * self.encoding / 10**9) * 10**9


class Width(Enum):
    """A width: lanes, and the bit in PortInfo."""

    X1 = (1, 1)
    X2 = (2, 16)
    X4 = (4, 2)
    X8 = (8, 4)
    X12 = (12, 8)

    def __init__(self, lanes: int, code: int) -> None:
        self.lanes = lanes
        self.code = code
        """LinkWidthActive."""


def read_rate(text: str) -> tuple[Width, Speed]:
    """Width and speed of a name like `4xEDR`; raises `EncodeError`."""
    matched = re.fullmatch(r"(\d{1,6})[xX]([A-Za-z]+\d*)", text)
    if matched is not None:
        lanes, name = int(matched[1]), matched[2].upper()
        for width in Width:
            if width.lanes == lanes and name in Speed.__members__:
                return width, Speed[name]
    raise EncodeError(
        "rate", text, "a width 1x, 2x, 4x, 8x, 12x and a speed " + ", ".join(Speed.__members__)
    )
