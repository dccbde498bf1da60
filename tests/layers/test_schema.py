"""Described headers: laws of packing and unpacking, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire_layers import attributes as management_attributes
from ibwire_layers import cm, headers, mad, management, outer, performance, records
from ibwire_layers.errors import DecodeError, EncodeError, Fault
from ibwire_layers.schema import Field, Header, Show, array, bits, header, octets

MODULES = (headers, outer, mad, cm, management, management_attributes, performance, records)

HEADERS = sorted(
    {
        found
        for module in MODULES
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Header) and found.FIELDS
    },
    key=lambda found: found.__name__,
)

every_header = each_case("kind", HEADERS, ids=lambda kind: kind.__name__)


def changed(found: Header, field: Field, value: Any) -> Header:
    """The header with another value in one field."""
    values = {other.name: other_value for other, other_value in found.items()}
    return type(found)(**values | {field.name: value})


@every_header
@settings(max_examples=scaled(25), deadline=None)
@given(st.data())
def test_packing_gives_back_the_bytes_that_were_unpacked(
    kind: type[Header], data: st.DataObject
) -> None:
    raw = data.draw(st.binary(min_size=kind.SIZE, max_size=kind.SIZE))

    assert kind.unpack(raw).pack() == raw


@every_header
@settings(max_examples=scaled(25), deadline=None)
@given(st.data())
def test_fields_are_the_bits_at_their_offset(kind: type[Header], data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=kind.SIZE, max_size=kind.SIZE))
    number = int.from_bytes(raw)
    before = data.draw(st.binary(max_size=5))

    found = kind.unpack(before + raw + b"more", len(before))

    for field, value in found.items():
        end = 8 * kind.SIZE - field.offset - field.size
        whole = number >> end & (1 << field.size) - 1
        if field.is_octets:
            assert value == whole.to_bytes(field.size // 8)
        elif field.is_array:
            shifts = range(field.width * (field.count - 1), -1, -field.width)
            assert value == tuple(whole >> s & (1 << field.width) - 1 for s in shifts)
        else:
            assert value == whole


@every_header
def test_fields_follow_one_another_without_gaps(kind: type[Header]) -> None:
    offset = 0
    for field in kind.FIELDS:
        assert field.offset == offset
        offset += field.size

    assert offset == 8 * kind.SIZE


@every_header
def test_header_that_ends_too_early_is_refused_with_its_place(kind: type[Header]) -> None:
    raw = bytes(kind.SIZE + 2)

    for length in range(kind.SIZE):
        with pytest.raises(DecodeError) as caught:
            kind.unpack(raw[: length + 3], 3)
        error = caught.value
        assert (error.fault, error.header, error.offset) == (Fault.TRUNCATED, kind.__name__, 3)


@every_header
def test_a_value_out_of_range_is_refused_by_name(kind: type[Header]) -> None:
    right = kind.unpack(bytes(kind.SIZE))

    for field in kind.FIELDS:
        for wrong in _wrong(field):
            error = _error_of_packing(right, field, wrong)
            assert error is not None, (field.name, wrong)
            assert error.field == f"{kind.__name__}.{field.name}"
            assert error.value is wrong


def _error_of_packing(found: Header, field: Field, value: Any) -> EncodeError | None:
    try:
        changed(found, field, value).pack()
    except EncodeError as error:
        return error
    return None


def _wrong(field: Field) -> list[Any]:
    size = field.size // 8
    if field.is_octets:
        return [bytes(size + 1), bytes(size - 1), "x" * size, None, size]
    if field.is_array:
        zeros = (0,) * (field.count - 1)
        above, below = (1 << field.width, *zeros), (*zeros, -1)
        return [above, below, zeros, (0, 0, *zeros), (None, *zeros), ("1", *zeros), None, 7]
    return [1 << field.width, -1, None, "1", 1.5, b"\0", (1,)]


@every_header
def test_the_largest_value_of_a_field_fills_its_bits_only(kind: type[Header]) -> None:
    zero = kind.unpack(bytes(kind.SIZE))

    for field in kind.FIELDS:
        packed = changed(zero, field, _largest(field)).pack()

        ones = ((1 << field.size) - 1) << 8 * kind.SIZE - field.offset - field.size
        assert int.from_bytes(packed) == ones, field.name


def _largest(field: Field) -> Any:
    largest = (1 << field.width) - 1
    if field.is_octets:
        return b"\xff" * (field.size // 8)
    return (largest,) * field.count if field.is_array else largest


@every_header
def test_any_kind_of_bytes_can_be_read(kind: type[Header]) -> None:
    raw = bytes(range(256)) * (kind.SIZE // 256 + 1)

    for wrapped in (bytes(raw), bytearray(raw), memoryview(raw)):
        assert kind.unpack(wrapped).pack() == raw[: kind.SIZE]


def test_keys_of_columns_are_unique_in_a_header() -> None:
    for kind in HEADERS:
        keys = [field.key for field in kind.FIELDS]
        assert len(set(keys)) == len(keys), kind


def test_a_header_is_a_frozen_value() -> None:
    bth = headers.BTH(opcode=4)

    with pytest.raises(dataclasses.FrozenInstanceError):
        bth.psn = 1  # type: ignore[misc]
    assert bth == headers.BTH(opcode=4)
    assert hash(bth) == hash(headers.BTH(opcode=4))


def test_a_header_is_a_dataclass_for_others() -> None:
    eth = headers.XRCETH(xrc_srq=5)

    assert dataclasses.is_dataclass(eth)
    names = [field.name for field in headers.XRCETH.FIELDS]
    assert [field.name for field in dataclasses.fields(eth)] == names
    assert dataclasses.asdict(eth)["xrc_srq"] == 5
    assert copy.deepcopy(eth) == pickle.loads(pickle.dumps(eth)) == eth
    assert repr(eth) == "XRCETH(reserved=0, xrc_srq=5)"
    match eth:
        case headers.XRCETH(xrc_srq=5):
            pass
        case _:
            pytest.fail("fields cannot be matched by name")


def test_wrong_arguments_of_a_header_are_an_error_as_of_any_function() -> None:
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'opcode'"):
        headers.BTH()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'prn'"):
        headers.BTH(opcode=4, prn=1)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del headers.BTH(opcode=4).psn


def test_what_was_unpacked_or_altered_is_as_frozen_as_what_was_made() -> None:
    made = headers.BTH(opcode=4, psn=7)
    read, altered = headers.BTH.unpack(made.pack()), headers.BTH(opcode=5, psn=7).altered(opcode=4)

    for bth in (read, altered):
        assert type(bth) is headers.BTH
        assert bth == made
        assert hash(bth) == hash(made)
        assert dataclasses.replace(bth, psn=8) == headers.BTH(opcode=4, psn=8)
        with pytest.raises(dataclasses.FrozenInstanceError):
            bth.psn = 1  # type: ignore[misc]


@every_header
@settings(max_examples=scaled(25), deadline=None)
@given(st.data())
def test_altered_header_differs_in_the_given_fields(
    kind: type[Header], data: st.DataObject
) -> None:
    raws = st.binary(min_size=kind.SIZE, max_size=kind.SIZE)
    one: Any = kind.unpack(data.draw(raws))
    other = kind.unpack(data.draw(raws))
    names = data.draw(st.sets(st.sampled_from([field.name for field in kind.FIELDS])))
    changes = {name: getattr(other, name) for name in names}

    assert one.altered(**changes) == dataclasses.replace(one, **changes)
    for field in kind.FIELDS:
        change = {field.name: getattr(other, field.name)}
        assert one.altered(**change) == dataclasses.replace(one, **change)


def test_altering_an_unknown_field_is_an_error() -> None:
    for name in ("no_such_field", "pack", "SIZE", "__class__"):
        with pytest.raises(TypeError):
            headers.BTH(opcode=4).altered(**{name: 1})


@header("Made up", key="made", section="here")
class Made(Header):
    """Unaligned on purpose: only the whole is a number of bytes."""

    first: int = bits(3, "First")
    second: int = bits(17, "Second", default=5, wireshark="infiniband.made.up")
    row: tuple[int, ...] = array(4, 3, "Row", default=())
    raw: bytes = octets(3, "Raw", default=b"")


def test_a_header_of_ones_own_reads_as_drawn() -> None:
    # 101 00000000000000011 001 010 011 100 then three bytes
    data = int("10100000000000000011001010011100", 2).to_bytes(4) + b"abc"

    assert Made.unpack(data) == Made(first=5, second=3, row=(1, 2, 3, 4), raw=b"abc")
    assert Made(first=5, second=3, row=(1, 2, 3, 4), raw=b"abc").pack() == data


def test_defaults_and_names_of_a_new_header() -> None:
    made = Made(first=0)

    assert (made.second, made.row, made.raw) == (5, (0, 0, 0, 0), bytes(3))
    assert [field.key for field in Made.FIELDS] == ["made.first", "made.up", "made.row", "made.raw"]
    assert Made.FIELDS[1].show is Show.DEC
    assert (Made.SIZE, Made.TITLE, Made.KEY, Made.SECTION) == (7, "Made up", "made", "here")


def test_a_header_that_is_no_number_of_bytes_cannot_be_described() -> None:
    class Half(Header):
        nibble: int = bits(4, "Nibble", default=0)

    with pytest.raises(AssertionError, match="4 bits"):
        header("Half", key="half", section="here")(Half)


def test_nothing_can_be_derived_of_a_header() -> None:
    with pytest.raises(TypeError, match="Longer cannot be derived"):

        class Longer(Made):
            pass


class Shown:
    """What headers may have in common."""

    __slots__ = ()

    def shown(self) -> str:
        return f"<{self}>"


@header("Mixed", key="mixed", section="here")
class Mixed(Shown, Header):
    """Of two bases."""

    number: int = bits(8, "Number")


def test_a_header_may_have_another_base() -> None:
    read = Mixed.unpack(b"\7")

    assert read == Mixed(7)
    assert read.altered(number=8).shown() == "<Mixed(number=8)>"


def test_what_compiling_makes_is_not_taken_for_a_header() -> None:
    Made(first=0).pack()

    named = [found for found in Header.__subclasses__() if "Made" in found.__name__]
    assert {(found.__name__, bool(found.FIELDS)) for found in named} >= {
        ("Made", True),
        ("_OpenMade", False),
    }
    assert [found for found in named if found.FIELDS] == [Made]
