"""Text lines for many packets: rows with the same parts share one format string."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.dissect.column import Kind
from ibwire.dissect.fields import FieldSpec

Cells = Callable[[npt.NDArray[Any]], Iterable[Any]]
"""Turns values of some rows into what the format string takes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line that some rows have."""

    text: str
    """With one `%` conversion for each of `values`."""
    values: tuple[tuple[npt.NDArray[Any], Cells], ...] = ()
    """(n, ...) arrays with what turns their rows into cells."""
    rows: npt.NDArray[np.bool_] | None = None
    """Which rows have the part; `None` for all."""


def assemble(pieces: Sequence[Piece], rows: npt.NDArray[np.int64]) -> list[str]:
    """One line for each of the given rows, made of the pieces it has, in their order."""
    lines = np.empty(len(rows), object)
    for group, present in _groups([piece.rows for piece in pieces], rows):
        chosen = [piece for piece, has in zip(pieces, present, strict=True) if has]
        text = "".join(piece.text for piece in chosen)
        members = rows[group]
        columns = [cells(values[members]) for piece in chosen for values, cells in piece.values]
        if columns:
            lines[group] = [text % row for row in zip(*columns, strict=True)]
        else:
            lines[group] = text % ()
    return lines.tolist()


def cells_of(spec: FieldSpec) -> Cells:
    """Values of a field as numbers or as bare text."""
    match spec.type.kind:
        case Kind.FLAG:
            return words(("false", "true"))
        case Kind.TEXT:
            return words(spec.type.words)
        case Kind.MAC:
            return lambda values: map(_MACS.__getitem__, values.tolist())
        case Kind.IPV4:
            return lambda values: map(_IPV4S.__getitem__, values.tolist())
        case Kind.IPV6:
            return lambda values: map(_IPV6S.__getitem__, map(bytes, values))
        case Kind.SECONDS:
            return lambda values: map(_seconds, values.tolist())
        case Kind.LIST:
            return lambda values: map(str, values.tolist())
        case Kind.OCTETS:
            return lambda values: (row.tobytes().hex() for row in values)
        case _:
            return np.ndarray.tolist


def python_values(spec: FieldSpec, values: npt.NDArray[Any]) -> Iterable[Any]:
    """Values of a field as objects of Python: addresses, texts, numbers, lists, bytes."""
    match spec.type.kind:
        case Kind.IPV4:
            return map(IPv4Address, values.tolist())
        case Kind.IPV6:
            return map(IPv6Address, map(bytes, values))
        case Kind.SECONDS:
            return (Decimal(number).scaleb(-9) for number in values.tolist())
        case Kind.OCTETS:
            return map(bytes, values)
        case Kind.TEXT:
            return map(str, cells_of(spec)(values))
        case Kind.MAC:
            return cells_of(spec)(values)
        case Kind.HEX if spec.digits:
            return (f"{number:0{spec.digits}x}" for number in values.tolist())
        case _:
            found: list[Any] = values.tolist()
            return found


def _seconds(ns: int) -> str:
    whole, rest = divmod(abs(ns), 10**9)
    return f"{'-' * (ns < 0)}{whole}.{rest:09d}"


def words(table: Sequence[str]) -> Cells:
    """Values that are indices into a table of texts."""
    return lambda values: map(table.__getitem__, values.tolist())


def _groups(
    masks: Sequence[npt.NDArray[np.bool_] | None], rows: npt.NDArray[np.int64]
) -> Iterable[tuple[npt.NDArray[np.int64], list[bool]]]:
    """Rows (as indices into `rows`) that agree in every mask, with what the masks say."""
    varying = [mask[rows] for mask in masks if mask is not None]
    if not len(rows):
        return
    signatures = np.packbits(np.array(varying, np.bool_).reshape(len(varying), len(rows)), axis=0).T
    keys = np.zeros(len(rows), np.uint64)
    for position in range(signatures.shape[1]):
        # Number the combinations seen so far, so that any count of masks fits in a key.
        _, keys = np.unique(keys * np.uint64(256) + signatures[:, position], return_inverse=True)
        keys = keys.astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    borders = np.flatnonzero(np.diff(keys[order])) + 1
    for group in np.split(order, borders):
        first = int(rows[group[0]])
        yield group, [mask is None or bool(mask[first]) for mask in masks]


class _Texts(dict[Any, str]):
    """Addresses as text, each made once; emptied when a capture has very many."""

    def __init__(self, make: Callable[[Any], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, value: Any) -> str:
        if len(self) >= _MAX_TEXTS:
            self.clear()
        text = self[value] = self._make(value)
        return text


_MAX_TEXTS = 65536

_MACS = _Texts(lambda value: value.to_bytes(6).hex(":"))
_IPV4S = _Texts(lambda value: str(IPv4Address(value)))
_IPV6S = _Texts(lambda value: str(IPv6Address(value)))
