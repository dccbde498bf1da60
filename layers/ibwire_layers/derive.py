"""From a header's table to the field lists of other libraries.

Each library is imported inside its function, so that `ibwire_layers` alone
needs nothing but the standard library. Construct has no type information: it
is `Any` from here on.
"""

from __future__ import annotations

from typing import Any

from ibwire_layers.schema import Header


def construct_of(header: type[Header]) -> Any:
    """A Construct `BitStruct` with the fields of `header`, named after it."""
    import construct

    parts = []
    for field in header.FIELDS:
        if field.is_octets:
            subcon = construct.Bytewise(construct.Bytes(field.size // 8))
        elif field.is_array:
            subcon = construct.Array(field.count, construct.BitsInteger(field.width))
        else:
            subcon = construct.BitsInteger(field.width)
        parts.append(field.name / subcon)
    return header.__name__ / construct.BitStruct(*parts)
