"""The description of a header: one annotated class.

    @header("Base Transport Header", key="bth", section="IBA 9.2")
    class BTH(Header):
        opcode: int = bits(8, "OpCode")
        psn: int = bits(24, "PSN", default=0, wireshark="infiniband.bth.psn")

The class is a frozen, slotted dataclass for editors, type checkers and `dataclasses.replace`, and
has a table of its fields (`FIELDS`, `SIZE`), `pack` and `unpack`. The Construct, Scapy and NumPy
readers and the field reference are derived from that table.

A field is a number (`bits`), opaque bytes (`octets`) or a row of equal numbers
(`array`). Everything is big-endian, first field first, as on the wire.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

from ibwire_layers.errors import DecodeError, EncodeError, Fault

Bytes = bytes | bytearray | memoryview
"""Types of input buffers."""

WIRESHARK_PREFIX = "infiniband."


class Show(Enum):
    """Display format of a value."""

    DEC = "decimal"
    HEX = "hex"
    FLAG = "flag"
    MAC = "MAC address"
    IPV4 = "IPv4 address"
    IPV6 = "IPv6 address or GID"
    BYTES = "bytes"


@dataclasses.dataclass(slots=True, eq=False)
class Field:
    """One field of a header; it does not change once the header is described.

    There are hundreds, and frozen objects take three times as long to make.
    """

    label: str
    """The specification's spelling."""
    width: int
    """Bits of one element."""
    count: int
    """Elements: 1 for a number or for opaque bytes, more for an array."""
    show: Show
    default: Any
    """`None` where there is none."""
    key: str
    """Column name: Wireshark's without `infiniband.`, or our own if it has none."""
    wireshark: str | None
    """Wireshark's name of the same field, if it has one."""
    names: type[Enum] | None
    """Enumeration that gives values a name."""
    doc: str
    name: str = ""
    """Attribute name."""
    offset: int = 0
    """Bits from the start of the header to the field's first bit."""

    @property
    def size(self) -> int:
        """Bits of the whole field."""
        return self.width * self.count

    @property
    def is_octets(self) -> bool:
        """Whether the value is `bytes`."""
        return self.show is Show.BYTES

    @property
    def is_array(self) -> bool:
        """Whether the value is a tuple of numbers."""
        return self.count > 1


def bits(
    width: int,
    label: str,
    *,
    default: int | None = None,
    show: Show | None = None,
    wireshark: str | None = None,
    key: str | None = None,
    names: type[Enum] | None = None,
    doc: str = "",
) -> Any:
    """An unsigned number of `width` bits."""
    return _field(width, 1, label, default, show, wireshark, key, names, doc)


def octets(
    count: int,
    label: str,
    *,
    default: bytes,
    wireshark: str | None = None,
    key: str | None = None,
    doc: str = "",
) -> Any:
    """Exactly `count` opaque bytes; the default `b""` stands for zeros."""
    value = default or bytes(count)
    return _field(8 * count, 1, label, value, Show.BYTES, wireshark, key, None, doc)


def array(
    count: int,
    width: int,
    label: str,
    *,
    default: tuple[int, ...],
    show: Show | None = None,
    wireshark: str | None = None,
    key: str | None = None,
    doc: str = "",
) -> Any:
    """A tuple of `count` unsigned numbers of `width` bits; the default `()` stands for zeros."""
    value = default or (0,) * count
    return _field(width, count, label, value, show, wireshark, key, None, doc)


class Header:
    """Base of all described headers.

    Deriving from a described header raises `TypeError`: the class would have other slots than those
    that `unpack` and `altered` fill.
    """

    __slots__ = ()

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    SIZE: ClassVar[int] = 0
    """Bytes."""
    TITLE: ClassVar[str] = ""
    KEY: ClassVar[str] = ""
    """First part of the column names."""
    SECTION: ClassVar[str] = ""
    """Source of the layout."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.FIELDS:  # inherited: the decorator sets the own ones later
            raise TypeError(
                f"{cls.__name__} cannot be derived from a described header, {cls.TITLE}"
            )

    @classmethod
    def unpack(cls, data: Bytes, offset: int = 0) -> Self:
        """The header that starts at byte `offset`; `DecodeError` if `data` ends inside it."""
        _compile(cls)  # replaces this method
        return cls.unpack(data, offset)

    def pack(self) -> bytes:
        """The `SIZE` bytes of the header; `EncodeError` for a value that does not fit."""
        _compile(type(self))
        return self.pack()

    def altered(self, **changes: Any) -> Self:
        """A copy with other values in some fields; much faster than `dataclasses.replace`.

        Raises `TypeError` for an unknown field.
        """
        _compile(type(self))
        return self.altered(**changes)

    def items(self) -> Iterator[tuple[Field, Any]]:
        """Every field with its value, in wire order."""
        for entry in self.FIELDS:
            yield entry, getattr(self, entry.name)


H = TypeVar("H", bound=Header)


@dataclass_transform(frozen_default=True, field_specifiers=(bits, octets, array))
def header(title: str, *, key: str, section: str) -> Callable[[type[H]], type[H]]:
    """Make a described header of an annotated class.

    title: its full name. key: first part of its column names. section: its source.
    """

    def decorate(cls: type[H]) -> type[H]:
        table = _lay_out(cls, key)
        made = _with_slots(cls, table)
        total = sum(entry.size for entry in table)
        assert total % 8 == 0, f"{cls.__name__} has {total} bits"
        made.FIELDS, made.SIZE = table, total // 8
        made.TITLE, made.KEY, made.SECTION = title, key, section
        return made

    return decorate


def _field(
    width: int,
    count: int,
    label: str,
    default: Any,
    show: Show | None,
    wireshark: str | None,
    key: str | None,
    names: type[Enum] | None,
    doc: str,
) -> Any:
    if show is None:
        show = Show.FLAG if width == 1 else Show.DEC
    return Field(label, width, count, show, default, key or "", wireshark, names, doc)


def _with_slots(cls: type[H], table: tuple[Field, ...]) -> type[H]:
    """The class again, with slots for its fields and the methods of a frozen dataclass.

    `dataclasses` writes such methods as source text when a module is imported, which takes a
    millisecond for each header.
    """
    names = tuple(entry.name for entry in table)
    left_out = {*names, "__dict__", "__weakref__"}
    scope = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    scope |= _METHODS
    scope |= {"__slots__": names, "__match_args__": names, "__qualname__": cls.__qualname__}
    made: Any = type(cls.__name__, cls.__bases__, scope)
    return cast(type[H], made)


class _DataclassFields:
    """The fields as `dataclasses.replace` and others need them, made when they are asked for."""

    def __get__(self, instance: object, owner: type[Header]) -> dict[str, Any]:
        fields = [
            (
                entry.name,
                owner.__annotations__[entry.name],
                dataclasses.field()
                if entry.default is None
                else dataclasses.field(default=entry.default),
            )
            for entry in owner.FIELDS
        ]
        like: Any = dataclasses.make_dataclass(owner.__name__, fields, frozen=True)
        owner.__dataclass_params__ = like.__dataclass_params__  # type: ignore[attr-defined]
        owner.__dataclass_fields__ = like.__dataclass_fields__  # type: ignore[attr-defined]
        found: dict[str, Any] = like.__dataclass_fields__
        return found


def _init(self: Header, *values: Any, **named: Any) -> None:
    _compile_init(type(self))  # replaces this method
    type(self).__init__(self, *values, **named)


def _equal(self: Header, other: object) -> bool:
    _compile_comparison(type(self))
    return bool(self == other)


def _hash(self: Header) -> int:
    _compile_comparison(type(self))
    return hash(self)


def _repr(self: Header) -> str:
    values = (f"{entry.name}={value!r}" for entry, value in self.items())
    return f"{type(self).__qualname__}({', '.join(values)})"


def _forbid_change(self: Header, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _forbid_removal(self: Header, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _reduce(self: Header) -> tuple[type[Header], tuple[Any, ...]]:
    return type(self), tuple(value for _, value in self.items())


_METHODS = {
    "__init__": _init,
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _forbid_change,
    "__delattr__": _forbid_removal,
    "__reduce__": _reduce,
    "__dataclass_fields__": _DataclassFields(),
}
"""Methods of every described header. The first three are replaced when they are first used."""


def _lay_out(cls: type[Header], prefix: str) -> tuple[Field, ...]:
    """The fields in their order, with their names and places."""
    table = []
    offset = 0
    for name, entry in cls.__dict__.items():
        if isinstance(entry, Field):
            entry.name, entry.offset = name, offset
            named = entry.wireshark.removeprefix(WIRESHARK_PREFIX) if entry.wireshark else None
            entry.key = entry.key or named or f"{prefix}.{name}"
            table.append(entry)
            offset += entry.size
    return tuple(table)


# A header is compiled when it is first packed or unpacked. It is split at byte boundaries into
# words that `struct` reads in one call; fields inside a word are shifted and masked.

_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclasses.dataclass(slots=True)
class _Word:
    size: int
    """Bytes."""
    fields: list[Field]

    @property
    def is_number(self) -> bool:
        """Whether `struct` has a code for it; otherwise it is read as bytes."""
        return self.size in _CODES and not self.fields[0].is_octets


def _words(table: tuple[Field, ...]) -> list[_Word]:
    """Split the fields into words: one field if `struct` has its size, else 4 bytes, else more."""
    runs: list[_Word] = []
    gathered: list[Field] = []
    for entry in table:
        gathered.append(entry)
        width = sum(part.size for part in gathered)
        if width % 8 == 0:
            runs.append(_Word(width // 8, gathered))
            gathered = []
    words: list[_Word] = []
    while runs:
        taken = _join(runs)
        words.append(
            _Word(
                sum(run.size for run in runs[:taken]),
                [entry for run in runs[:taken] for entry in run.fields],
            )
        )
        del runs[:taken]
    return words


def _join(runs: list[_Word]) -> int:
    """Number of runs that form the first word."""
    if runs[0].is_number and len(runs[0].fields) == 1:
        return 1
    for target in (4, 8, 2, 1):
        size = 0
        for taken, run in enumerate(runs, 1):
            if any(entry.is_octets or entry.is_array for entry in run.fields):
                break
            size += run.size
            if size == target:
                return taken
            if size > target:
                break
    return 1


def _compile(cls: type[Header]) -> None:
    """Give `cls` its `unpack`, `pack` and `altered`, written out as straight-line code.

    Setting fields of a frozen object is slow, because each goes through `__setattr__`. So a new
    object is created with a mutable class that has the same slots, `_OpenBTH` for `BTH`, and gets
    its real class at the end.
    """
    words = _words(cls.FIELDS)
    codes = (_CODES[word.size] if word.is_number else f"{word.size}s" for word in words)
    layout = struct.Struct(">" + "".join(codes))
    names = [f"w{i}" for i in range(len(words))]
    take, put, check = [], [], []
    for name, word in zip(names, words, strict=True):
        take += [f"    made.{e.name} = {_taking(name, word, e)}" for e in word.fields]
        put.append(_putting(word))
        check += [f"self.{e.name} >> {e.width}" for e in word.fields if not _is_sequence(e)]
    lines = [
        "def unpack(cls, data, offset=0):",
        "    try:",
        f"        {', '.join(names)}, = take(data, offset)",
        "    except error:",
        f"        raise DecodeError(TRUNCATED, {cls.__name__!r}, offset) from None",
        "    made = Open()",
        *take,
        "    made.__class__ = cls",
        "    return made",
        "def altered(self, **changes):",
        "    made = Open()",
        *(f"    made.{entry.name} = self.{entry.name}" for entry in cls.FIELDS),
        "    for name, value in changes.items():",
        "        if name not in fields:",
        "            raise TypeError(f'{type(self).__name__} has no {name}')",
        "        setattr(made, name, value)",
        "    made.__class__ = self.__class__",
        "    return made",
        "def pack(self):",
        "    try:",
        f"        if {' or '.join(check) or 'False'}:",
        "            reject(self)",
        f"        return put({', '.join(put)})",
        "    except (error, TypeError, OverflowError, AttributeError, ValueError):",
        "        reject(self)",
        "        raise",
    ]
    scope: dict[str, Any] = {
        "take": layout.unpack_from,
        "put": layout.pack,
        "error": struct.error,
        "DecodeError": DecodeError,
        "TRUNCATED": Fault.TRUNCATED,
        "reject": _reject,
        "split": _split,
        "fuse": _fuse,
        "Open": type(f"_Open{cls.__name__}", cls.__bases__, {"__slots__": cls.__slots__}),
        "fields": frozenset(entry.name for entry in cls.FIELDS),
    }
    exec("\n".join(lines), scope)
    cls.unpack = classmethod(scope["unpack"])  # type: ignore[assignment,method-assign]
    cls.pack = scope["pack"]  # type: ignore[method-assign]
    cls.altered = scope["altered"]  # type: ignore[method-assign]


def _compile_init(cls: type[Header]) -> None:
    """Give `cls` its `__init__`."""
    parameters = [
        f"{entry.name}=default_{entry.name}" if entry.default is not None else entry.name
        for entry in cls.FIELDS
    ]
    lines = [
        f"def __init__(self, {', '.join(parameters)}):",
        *(f"    set_{entry.name}(self, {entry.name})" for entry in cls.FIELDS),
    ]
    scope: dict[str, Any] = {f"default_{entry.name}": entry.default for entry in cls.FIELDS}
    scope |= {f"set_{entry.name}": getattr(cls, entry.name).__set__ for entry in cls.FIELDS}
    exec("\n".join(lines), scope)
    scope["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"  # for messages
    cls.__init__ = scope["__init__"]  # type: ignore[method-assign]


def _compile_comparison(cls: type[Header]) -> None:
    """Give `cls` its `__eq__` and `__hash__`, as `dataclasses` would."""
    mine, others = (
        "".join(f"{name}.{entry.name}, " for entry in cls.FIELDS) for name in ("self", "other")
    )
    lines = [
        "def __eq__(self, other):",
        "    if other.__class__ is not self.__class__:",
        "        return NotImplemented",
        f"    return ({mine}) == ({others})",
        "def __hash__(self):",
        f"    return hash(({mine}))",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    cls.__eq__ = scope["__eq__"]  # type: ignore[method-assign]
    cls.__hash__ = scope["__hash__"]  # type: ignore[method-assign]


def _is_sequence(entry: Field) -> bool:
    return entry.is_octets or entry.is_array


def _taking(name: str, word: _Word, entry: Field) -> str:
    """The expression for one field of an unpacked word."""
    if entry.is_octets:
        return name
    if entry.is_array:
        number = f"int.from_bytes({name})" if not word.is_number else name
        return f"split({number}, {entry.width}, {entry.count})"
    number = name if word.is_number else f"int.from_bytes({name})"
    if len(word.fields) == 1:
        return number
    shift = _shift(word, entry)
    shifted = f"{number} >> {shift}" if shift else number
    return f"{shifted} & {(1 << entry.width) - 1}"


def _putting(word: _Word) -> str:
    """The expression for one word from the fields of `self`."""
    first = word.fields[0]
    if first.is_octets:
        return f"self.{first.name} if len(self.{first.name}) == {word.size} else reject(self)"
    parts = []
    for entry in word.fields:
        part = f"self.{entry.name}"
        if entry.is_array:
            part = f"fuse({part}, {entry.width}, {entry.count})"
        shift = _shift(word, entry)
        parts.append(f"{part} << {shift}" if shift else part)
    number = " | ".join(parts)
    return number if word.is_number else f"({number}).to_bytes({word.size})"


def _shift(word: _Word, entry: Field) -> int:
    start = word.fields[0].offset
    return 8 * word.size - (entry.offset - start) - entry.size


def _split(number: int, width: int, count: int) -> tuple[int, ...]:
    mask = (1 << width) - 1
    return tuple(number >> (width * i) & mask for i in range(count - 1, -1, -1))


def _fuse(values: tuple[int, ...], width: int, count: int) -> int:
    if len(values) != count:
        raise ValueError
    number = 0
    for value in values:
        if value >> width:
            raise ValueError
        number = number << width | value
    return number


def _reject(instance: Header) -> None:
    """Raise `EncodeError` for the first field whose value does not fit."""
    for entry, value in instance.items():
        name = f"{type(instance).__name__}.{entry.name}"
        if entry.is_octets:
            if (
                not isinstance(value, bytes | bytearray | memoryview)
                or len(value) * 8 != entry.size
            ):
                raise EncodeError(name, value, f"{entry.size // 8} bytes")
        elif entry.is_array:
            if (
                not isinstance(value, tuple | list)
                or len(value) != entry.count
                or not all(_fits(v, entry.width) for v in value)
            ):
                expected = f"{entry.count} numbers of {entry.width} bits"
                raise EncodeError(name, value, expected)
        elif not _fits(value, entry.width):
            raise EncodeError(name, value, f"a number of {entry.width} bits")


def _fits(value: object, width: int) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << width
