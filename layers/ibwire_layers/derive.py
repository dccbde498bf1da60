"""From a header's table to the field lists of other libraries.

Each library is imported inside its function, so that `ibwire_layers` alone
needs nothing but the standard library. Construct has no type information: it
is `Any` from here on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ibwire_layers.schema import Field, Header, Show


def construct_of(header: type[Header], skip: str = "") -> Any:
    """A Construct `BitStruct` with the fields of `header`, named after it.

    skip: a field to leave out, for a grammar that reads what is inside it.
    """
    import construct

    parts = []
    for field in header.FIELDS:
        if field.name == skip:
            continue
        if field.is_octets:
            subcon = construct.Bytewise(construct.Bytes(field.size // 8))
        elif field.is_array:
            subcon = construct.Array(field.count, construct.BitsInteger(field.width))
        else:
            subcon = construct.BitsInteger(field.width)
        parts.append(field.name / subcon)
    return header.__name__ / construct.BitStruct(*parts)


def scapy_fields(
    header: type[Header],
    *,
    defaults: Mapping[str, Any] | None = None,
    names: Mapping[str, Mapping[int, str]] | None = None,
) -> list[Any]:
    """The `fields_desc` of a Scapy layer with the fields of `header`.

    defaults: what replaces the schema's defaults, e.g. `None` for a field that
    the layer computes.
    names: names of values by field, where the schema has no enumeration of them.

    A name that Scapy's `Packet` uses itself gets an underscore: `PFC.time_`.
    """
    from scapy.packet import Packet

    made = []
    for field in header.FIELDS:
        default = (defaults or {}).get(field.name, field.default)
        if field.names is not None:
            known = {member.value: member.name for member in field.names}
        else:
            known = dict((names or {}).get(field.name, {}))
        name = f"{field.name}_" if hasattr(Packet, field.name) else field.name
        made.append(_scapy_field(field, name, default, known))
    return made


def _scapy_field(field: Field, name: str, default: Any, known: dict[int, str]) -> Any:
    from scapy.fields import BitEnumField, BitField, XBitField, XStrFixedLenField

    from ibwire_layers.scapy.fields import ArrayField, GIDField

    number = XBitField if field.show in (Show.HEX, Show.MAC, Show.IPV4) else BitField
    if field.is_octets:
        return XStrFixedLenField(name, default, length=field.size // 8)
    if field.is_array:
        return ArrayField(name, list(default), field.count, number(name, 0, field.width))
    if field.show is Show.IPV6:
        return GIDField(name, default)
    if known:
        return BitEnumField(name, default, field.width, known)
    return number(name, default, field.width)
