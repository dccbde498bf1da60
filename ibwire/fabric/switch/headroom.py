"""How much headroom a lossless port needs: what arrives after it has decided to pause.

Source: docs/reference/fabric.md#headroom.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ibwire.base.errors import EncodeError

LIGHT_IN_CABLE = 198_000_000
"""Metres a second."""

_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """What the headroom of a switch chip depends on, in bytes."""

    cell: int
    """Size of the cells in which the buffer keeps frames."""
    peer_response: int = 3891
    """What the neighbour sends until it obeys (3.8 KiB)."""
    interface_delay: int = 819
    """What is in both interfaces (0.8 KiB)."""
    gearbox: int = 0
    """What a gearbox in front of a port holds."""
    has_tiles: bool = False
    """Whether ports are on chips of their own, which hold 15 bytes for each Gb/s (Spectrum-4)."""
    pipeline: int = 19 * _KIB
    """What the chip holds back before a sender may go on."""


SPECTRUM = Chip(cell=96)
"""NVIDIA Spectrum (MSN2700): sonic-net/sonic-buildimage, its buffer scripts."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """Thresholds of one lossless port and priority, in bytes."""

    xon: int
    xoff: int

    @property
    def size(self) -> int:
        """Both together: the size of a SONiC buffer profile."""
        return self.xon + self.xoff


def headroom(
    rate_bps: int,
    metres: float,
    *,
    mtu: int = 9100,
    lossless_mtu: int = 1024,
    small_packets: int = 100,
    chip: Chip = SPECTRUM,
) -> Headroom:
    """The thresholds for a cable of this length, by the formula of SONiC.

    mtu, lossless_mtu: largest frame of the port, and of its lossless traffic. small_packets:
    their part in percent. Raises `EncodeError` for a value that is out of range.
    """
    for name, value in (("rate_bps", rate_bps), ("mtu", mtu), ("lossless_mtu", lossless_mtu)):
        if value <= 0:
            raise EncodeError(name, value, "above 0")
    if metres < 0:
        raise EncodeError("metres", str(metres), "0 or above")
    if not 0 <= small_packets <= 100:
        raise EncodeError("small_packets", small_packets, "a part in percent")
    worst = ceil(chip.cell / 64 if chip.cell > 128 else 2 * chip.cell / (1 + chip.cell))
    mean = (64 * small_packets + lossless_mtu * (100 - small_packets)) / 100
    small = 100 * 64 / mean
    occupancy = (100 - small + small * worst) / 100
    cable = 2 * metres * rate_bps / LIGHT_IN_CABLE / 8
    tile = rate_bps / 10**9 * 15 if chip.has_tiles else 0
    inside = 2 * chip.gearbox + chip.interface_delay + chip.peer_response + tile
    propagation = mtu + cable + inside
    xoff = lossless_mtu + propagation * occupancy
    return Headroom(ceil(chip.pipeline / _KIB) * _KIB, ceil(xoff / _KIB) * _KIB)
