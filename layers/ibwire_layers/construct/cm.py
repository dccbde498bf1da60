"""Messages of communication management, with the addresses in their private data."""

from __future__ import annotations

from typing import Any

from construct import Bytes, IfThenElse, Struct

from ibwire_layers.cm import has_ip_addresses
from ibwire_layers.construct.headers import name_of, named, without
from ibwire_layers.headers import IPCM
from ibwire_layers.management import CM_MESSAGES
from ibwire_layers.schema import Header


def message_of(header: type[Header]) -> Any:
    """The fields of a message, then its private data.

    Private data of a service of the IP addressing annex is read as `ipcm` and
    the bytes that belong to the application.
    """
    size = next(field.size // 8 for field in header.FIELDS if field.name == "private_data")
    plain = Bytes(size)
    if "service_id" not in header.__annotations__ or size < IPCM.SIZE:
        return Struct(without(header, "private_data"), "private_data" / plain)
    name = name_of(header)
    nested = Struct(named(IPCM), "application" / Bytes(size - IPCM.SIZE))
    private = IfThenElse(lambda this: has_ip_addresses(this[name].service_id), nested, plain)
    return Struct(without(header, "private_data"), "private_data" / private)


MESSAGES: dict[int, Any] = {
    attribute: message_of(parts[0])
    for attribute, parts in CM_MESSAGES.items()
    if "private_data" in parts[0].__annotations__
}
"""AttributeID -> grammar of the 232 bytes of the message."""
