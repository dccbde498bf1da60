"""Symbol errors of a link: frames that have them, and the stage that makes them."""

from __future__ import annotations

import random
from math import expm1, log1p

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.base.units import Time


class DamagedFrame(bytes):
    """A frame on which a symbol error was detected when it arrived."""


class AbortedFrame(bytes):
    """A frame that ends with the delimiter for bad packets (EBP) instead of the good one."""


class SymbolErrors:
    """A stage that flips one bit in some frames; their receiver detects the symbol.

    rate: of bits that are wrong, 0 to 1. draw: what is random.
    """

    def __init__(self, rate: float, draw: random.Random) -> None:
        if not 0 <= rate < 1:
            raise EncodeError("rate", rate, "0 or above, and below 1")
        self.rate = rate
        self.frames = 0
        """Frames that were damaged."""
        self._draw = draw

    def __call__(self, frame: Frame, now: Time) -> tuple[tuple[Time, Frame], ...]:
        """The frame as it arrives."""
        bits = 8 * len(frame)
        # 1 - (1 - rate) ** bits, also for rates near 0.
        if self._draw.random() >= -expm1(bits * log1p(-self.rate)):
            return ((0, frame),)
        self.frames += 1
        bit = self._draw.randrange(bits)
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        return ((0, DamagedFrame(changed)),)
