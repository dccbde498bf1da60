"""Fields of an attribute that is kept as bytes: read and written in place, answered as it is."""

from __future__ import annotations

from typing import Protocol

from ibwire_layers.schema import Field, Header


class HasInfo(Protocol):
    """An object with the bytes of an attribute."""

    info: bytearray


class Stored:
    """An integer field of the attribute in `info`, by its name in the header class."""

    __slots__ = ("end", "is_byte", "mask", "shift", "start")

    def __init__(self, header: type[Header], name: str) -> None:
        field = field_of(header, name)
        self.start = field.offset // 8
        self.end = -(-(field.offset + field.width) // 8)
        self.shift = 8 * self.end - field.offset - field.width
        self.mask = (1 << field.width) - 1
        self.is_byte = self.end == self.start + 1
        """Whether one byte has all of it; such fields are read for every packet."""

    def __get__(self, instance: HasInfo, owner: type | None = None) -> int:
        if self.is_byte:
            return instance.info[self.start] >> self.shift & self.mask
        part = instance.info[self.start : self.end]
        return int.from_bytes(part, "big") >> self.shift & self.mask

    def __set__(self, instance: HasInfo, value: int) -> None:
        size = self.end - self.start
        whole = int.from_bytes(instance.info[self.start : self.end], "big")
        whole = whole & ~(self.mask << self.shift) | (value & self.mask) << self.shift
        instance.info[self.start : self.end] = whole.to_bytes(size, "big")


def field_of(header: type[Header], name: str) -> Field:
    """The field of this name; raises `KeyError`."""
    for field in header.FIELDS:
        if field.name == name:
            return field
    raise KeyError(name)


def mask_of(header: type[Header], *names: str, size: int) -> int:
    """The bits of these fields in an attribute of `size` bytes, as one number."""
    mask = 0
    for name in names:
        field = field_of(header, name)
        mask |= ((1 << field.size) - 1) << (8 * size - field.offset - field.size)
    return mask
