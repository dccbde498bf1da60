"""Whole MADs as a nested grammar, built from the tables of `management.py`."""

from __future__ import annotations

from typing import Any

from construct import Array, Bytes, Computed, Struct, Switch

from ibwire_layers.attributes import VLArbitrationEntry, VLArbitrationTable
from ibwire_layers.construct.cm import MESSAGES
from ibwire_layers.construct.headers import (
    Annotation,
    annotate,
    name_of,
    named,
    read,
    write,
)
from ibwire_layers.errors import DecodeError, EncodeError, Fault
from ibwire_layers.mad import MAD, MAD_SIZE, DirectedRouteMAD, MgmtClass
from ibwire_layers.management import LAYOUTS, UNKNOWN_CLASS, Layout, Parts, record_spans
from ibwire_layers.schema import Bytes as Data
from ibwire_layers.schema import Header


def parse_mad(payload: Data) -> Any:
    """The Container of a MAD; `DecodeError` if there are less than 256 bytes.

    Headers are attributes by name, e.g. `found.mad.method`; the attribute
    under `attribute`, in subnet administration in a list `records` there.
    Bytes after the MAD are not looked at.
    """
    if len(payload) < MAD_SIZE:
        raise DecodeError(Fault.TRUNCATED, "MAD", len(payload))
    return read(grammar_of_class(payload[1]), payload[:MAD_SIZE], "MAD")


def build_mad(value: Any) -> bytes:
    """The 256 bytes of a Container as `parse_mad` gives it; `EncodeError` if it does not fit."""
    for common in (MAD, DirectedRouteMAD):
        header = value.get(name_of(common))
        if header is not None:
            return write(grammar_of_class(header.get("mgmt_class")), value, "MAD")
    raise EncodeError("MAD", value, "a container with a common header")


def grammar_of_class(mgmt_class: int) -> Any:
    """The grammar of the 256 bytes of a MAD of that class."""
    return _BY_CLASS.get(mgmt_class, _UNKNOWN)


def annotate_mad(payload: Data, offset: int = 0) -> list[Annotation]:
    """Every field of a MAD in wire order; byte offsets are counted from `offset`."""
    return annotate(parse_mad(payload), offset)


def _grammar(layout: Layout) -> Any:
    """The grammar of one management class."""
    before = (layout.common, *layout.headers)
    end = layout.data_offset + layout.data_size
    return Struct(
        *map(named, before),
        "reserved" / Bytes(layout.data_offset - _size(before)),
        "attribute" / _attribute(layout),
        *map(named, layout.trailer),
        "rest" / Bytes(MAD_SIZE - end - _size(layout.trailer)),
    )


def _attribute(layout: Layout) -> Any:
    common = name_of(layout.common)
    known = {}
    for attribute, parts in layout.attributes.items():
        if layout is LAYOUTS[MgmtClass.SUBN_ADM]:
            known[attribute] = _records(parts, layout.data_size)
        elif layout is LAYOUTS[MgmtClass.COMM_MGT] and attribute in MESSAGES:
            known[attribute] = MESSAGES[attribute]
        else:
            unused = layout.data_size - _size(parts)
            known[attribute] = Struct(*map(_part, parts), "unused" / Bytes(unused))
    unknown = Bytes(layout.data_size)
    return Switch(lambda this: this[common].attribute_id, known, default=unknown)


def _records(parts: Parts, room: int) -> Any:
    """A table of records: complete ones in a list, partial ones at either end as bytes."""
    size = _size(parts)

    def spans(this: Any) -> list[int]:
        outer = this._
        return record_spans(outer.rmpp, outer.sa, outer.mad.method, size, room)

    def gap(this: Any) -> int:
        """Bytes between a record and the next."""
        starts: list[int] = this._._spans
        following = this._._index + 1  # `this._index` is that of an array in the record
        return starts[following] - starts[following - 1] - size if following < len(starts) else 0

    def after(this: Any) -> int:
        return room - (this._spans[-1] + size if this._spans else 0)

    record = Struct(*map(_part, parts), "gap" / Bytes(gap))
    return Struct(
        "_spans" / Computed(spans),
        "before" / Bytes(lambda this: this._spans[0] if this._spans else 0),
        "records" / Array(lambda this: len(this._spans), record),
        "after" / Bytes(after),
    )


def _part(header: type[Header]) -> Any:
    """A header in readable form: entries of the arbitration table one by one."""
    if header is VLArbitrationTable:
        count = VLArbitrationTable.SIZE // VLArbitrationEntry.SIZE
        return name_of(VLArbitrationEntry) / Array(count, named(VLArbitrationEntry))
    return named(header)


def _size(parts: Parts) -> int:
    return sum(part.SIZE for part in parts)


_BY_CLASS = {number: _grammar(layout) for number, layout in LAYOUTS.items()}
_UNKNOWN = _grammar(UNKNOWN_CLASS)
