"""Columns of a dissected capture: their values and their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Column(NamedTuple):
    """One field of n packets."""

    values: npt.NDArray[Any]
    """n rows, of the type that the field's `Kind` names; anything where not valid."""
    valid: npt.NDArray[np.bool_] | None
    """Which packets have the field; `None` when all do."""


class ByName(Protocol):
    """Gives columns by the names of their fields, as `Columns` does."""

    def column(self, name: str) -> Column:
        """Values of a field, and which packets have it."""


class Kind(Enum):
    """Kind of the values of a column; the text is its name in messages."""

    FLAG = "no value: it stands alone"
    """(n,) bool, for example whether the packet has a header."""
    UINT = "a number"
    """(n,) of any unsigned type."""
    HEX = "a number such as 0x1c2d3e4f"
    """(n,) of any unsigned type, read by people as hexadecimal digits."""
    SECONDS = "seconds such as 0.25"
    """(n,) int64 nanoseconds, read by people as seconds."""
    MAC = "a MAC address such as 02:00:00:00:00:01"
    """(n,) uint64, the address in the lower 48 bits."""
    IPV4 = "an IPv4 address or network"
    """(n,) uint32, host order."""
    IPV6 = "an IPv6 address or network"
    """(n, 16) uint8, network order."""
    TEXT = "a word"
    """(n,) uint8: index into the words of the field."""
    STRING = "no value but with contains and matches: its name alone asks for it"
    """(n,) object: any text."""
    OCTETS = "no value: its name alone asks for it"
    """(n, k) uint8: bytes that are not a number."""
    LIST = "a number, which any element may match"
    """(n, k) of any unsigned type: several numbers per packet."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """Kind of a field, and the names its values have."""

    kind: Kind
    words: tuple[str, ...] = ()
    """For `TEXT`: every word, at the index that stands for it."""
    digits: int = 0
    """For bytes that are shown in wire order: hexadecimal digits of fixed length."""
    constants: Mapping[str, int] = field(default_factory=dict)
    """For numbers: names that may be written for a value, such as opcodes."""
    has_only_names: bool = False
    """For numbers that are only the order of the names: messages do not ask for a number."""
