from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import ExpressionError
from ibwire.dissect.column import Column, FieldType, Kind
from ibwire.dissect.where import parse

# A small capture: four packets, written as people would read them. `None` is a field that
# the packet does not have.

OPCODES = {"RC_SEND_ONLY": 4, "RC_ACKNOWLEDGE": 17, "CNP": 129}
STATUSES = ("good", "bad", "truncated")

TYPES = {
    "bth.opcode": FieldType(Kind.UINT, constants=OPCODES),
    "bth.psn": FieldType(Kind.UINT),
    "bth.fecn": FieldType(Kind.UINT),
    "reth": FieldType(Kind.FLAG),
    "reth.va": FieldType(Kind.UINT),
    "icrc": FieldType(Kind.HEX),
    "icrc.status": FieldType(Kind.TEXT, words=STATUSES),
    "eth.src": FieldType(Kind.MAC),
    "ip.src": FieldType(Kind.IPV4),
    "ipv6.src": FieldType(Kind.IPV6),
    "pfc.time": FieldType(Kind.LIST),
}

DTYPES: dict[str, Any] = {
    "bth.opcode": np.uint8,
    "bth.psn": np.uint32,
    "bth.fecn": np.bool_,
    "reth": np.bool_,
    "reth.va": np.uint64,
    "icrc": np.uint32,
    "icrc.status": np.uint8,
    "eth.src": np.uint64,
    "ip.src": np.uint32,
    "pfc.time": np.uint16,
}

Row = dict[str, Any]


def _mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def _ip(text: str) -> int:
    return int(ipaddress.ip_address(text))


ABSENT: Row = dict.fromkeys(TYPES) | {"reth": False}

PACKETS: list[Row] = [
    ABSENT
    | {
        "bth.opcode": 4,
        "bth.psn": 100,
        "bth.fecn": 0,
        "icrc": 0xDEADBEEF,
        "icrc.status": 0,
        "eth.src": _mac("02:00:00:00:00:01"),
        "ip.src": _ip("10.0.0.1"),
    },
    ABSENT
    | {
        "bth.opcode": 10,
        "bth.psn": 0,
        "bth.fecn": 1,
        "reth": True,
        "reth.va": 0x7F00_0000_0000_1000,
        "icrc": 0,
        "icrc.status": 1,
        "eth.src": _mac("02:00:00:00:00:ff"),
        "ipv6.src": _ip("2001:db8::100"),
    },
    ABSENT
    | {
        "bth.opcode": 129,
        "bth.psn": 0xFFFFFF,
        "bth.fecn": 0,
        "icrc": 1,
        "icrc.status": 2,
        "eth.src": _mac("02:00:00:00:00:01"),
        "ip.src": _ip("192.168.1.7"),
    },
    ABSENT
    | {
        "eth.src": _mac("02:00:00:00:00:02"),
        "pfc.time": (0, 0, 0, 65535, 0, 0, 0, 0),
    },
]


def _column(rows: list[Row], name: str) -> Column:
    found = [row[name] for row in rows]
    valid = np.array([value is not None for value in found], dtype=np.bool_)
    kind = TYPES[name].kind
    values: np.ndarray[Any, Any]
    if kind is Kind.IPV6:
        packed = b"".join((value or 0).to_bytes(16) for value in found)
        values = np.frombuffer(packed, dtype=np.uint8).reshape(len(rows), 16)
    elif kind is Kind.LIST:
        values = np.array([value or (7,) * 8 for value in found], DTYPES[name]).reshape(-1, 8)
    else:
        # What stands where the field is absent must not matter: 1 is a value of all of them.
        values = np.array([1 if value is None else value for value in found], DTYPES[name])
    return Column(values, None if valid.all() else valid)


def _select(text: str, rows: list[Row] = PACKETS) -> list[int]:
    """Numbers of the packets that the expression selects."""
    expression = parse(text, TYPES.get, TYPES)
    mask = expression.select(lambda name: _column(rows, name), len(rows))
    assert mask.dtype == np.bool_
    assert mask.shape == (len(rows),)
    return [int(i) for i in np.flatnonzero(mask)]


@each_case(
    ("text", "selected"),
    [
        ("bth.psn == 100", [0]),
        ("bth.psn == 0x64", [0]),
        ("bth.psn == 0b110_0100", [0]),
        ("bth.psn == 1_0_0", [0]),
        ("infiniband.bth.psn == 100", [0]),
        ("bth.psn != 100", [1, 2]),
        ("bth.psn < 100", [1]),
        ("bth.psn <= 100", [0, 1]),
        ("bth.psn > 100", [2]),
        ("bth.psn >= 100", [0, 2]),
        ("bth.psn < 0", []),
        ("bth.psn in {0, 100}", [0, 1]),
        ("bth.psn in (0, 100)", [0, 1]),
        ("bth.psn in [0,100]", [0, 1]),
        ("bth.psn in {1..99, 101..0xffffff}", [2]),
        ("bth.psn in 0..100", [0, 1]),
        ("bth.psn in {0, 2, 4, 6, 8, 100, 200, 300}", [0, 1]),
        ("bth.psn not in {0, 100}", [2]),
        ("bth.psn !in {0, 100}", [2]),
        ("bth.opcode == RC_SEND_ONLY", [0]),
        ("bth.opcode in {CNP, RC_SEND_ONLY}", [0, 2]),
        ("bth.opcode == 'CNP'", [2]),
        ("reth.va == 0x7f00000000001000", [1]),
        ("icrc == 0xdeadbeef", [0]),
        ("icrc.status == bad", [1]),
        ('icrc.status != "bad"', [0, 2]),
        ("icrc.status in {bad, truncated}", [1, 2]),
        ("eth.src == 02:00:00:00:00:01", [0, 2]),
        ("eth.src == 02-00-00-00-00-FF", [1]),
        ("eth.src in {02:00:00:00:00:02..02:00:00:00:00:ff}", [1, 3]),
        ("ip.src == 10.0.0.1", [0]),
        ("ip.src in 10.0.0.0/8", [0]),
        ("ip.src not in 10.0.0.0/8", [2]),
        ("ip.src == 10.1.2.3/8", [0]),
        ("ip.src in {10.0.0.1, 192.168.0.0/16}", [0, 2]),
        ("ip.src in {10.0.0.0..10.0.0.9}", [0]),
        ("ip.src >= 192.0.0.0", [2]),
        ("ipv6.src == 2001:db8::100", [1]),
        ("ipv6.src in 2001:db8::/32", [1]),
        ("ipv6.src in {fe80::/10, ::1}", []),
        ("ipv6.src in {2001:db8::..2001:db8::ffff}", [1]),
        ("ipv6.src < 2001:db8::101", [1]),
        ("pfc.time == 65535", [3]),
        ("pfc.time == 1", []),
        ("pfc.time > 65534", [3]),
        ("pfc.time != 0", []),
        ("pfc.time != 7", [3]),
        ("pfc.time not in {1, 2}", [3]),
    ],
)
def test_comparison_selects_the_packets_it_holds_for(text: str, selected: list[int]) -> None:
    assert _select(text) == selected


@each_case(
    ("text", "selected"),
    [
        ("bth.fecn", [1]),
        ("bth.psn", [0, 2]),
        ("reth", [1]),
        ("icrc", [0, 1, 2]),
        ("icrc.status", [0, 1, 2]),
        ("ip.src", [0, 2]),
        ("ipv6.src", [1]),
        ("pfc.time", [3]),
    ],
)
def test_field_alone_means_present_and_for_a_number_not_zero(
    text: str, selected: list[int]
) -> None:
    assert _select(text) == selected


@each_case(
    ("text", "selected"),
    [
        ("bth.psn != 5", [0, 1, 2]),
        ("bth.psn not in {5}", [0, 1, 2]),
        ("not (bth.psn == 5)", [0, 1, 2, 3]),
        ("not bth.fecn", [0, 2, 3]),
        ("ip.src != 10.0.0.1", [2]),
    ],
)
def test_test_on_an_absent_field_is_false_and_its_negation_true(
    text: str, selected: list[int]
) -> None:
    assert _select(text) == selected


@each_case(
    ("text", "selected"),
    [
        ("bth.fecn or bth.psn == 100 and bth.opcode == CNP", [1]),
        ("(bth.fecn or bth.psn == 100) and bth.opcode == CNP", []),
        ("bth.fecn || bth.psn == 100 && !reth", [0, 1]),
        ("not bth.fecn and ip.src", [0, 2]),
        ("not (bth.fecn and ip.src)", [0, 1, 2, 3]),
        ("not not bth.fecn", [1]),
        ("!!!bth.fecn", [0, 2, 3]),
        ("bth.fecn==1", [1]),
        ("  (\tbth.fecn )\n", [1]),
    ],
)
def test_not_binds_before_and_before_or(text: str, selected: list[int]) -> None:
    assert _select(text) == selected


@each_case(
    ("text", "selected"),
    [
        ("bth.opcode == 300", []),
        ("bth.opcode != 300", [0, 1, 2]),
        ("bth.opcode < 300", [0, 1, 2]),
        ("bth.opcode > 0xffff_ffff_ffff_ffff_ffff_ffff_ffff_ffff_ffff", []),
        ("bth.opcode in {200..100000000000000000000}", []),
        ("bth.opcode in {100..100000000000000000000}", [2]),
    ],
)
def test_value_beyond_the_field_is_no_error(text: str, selected: list[int]) -> None:
    assert _select(text) == selected


@each_case(
    ("text", "column", "reason"),
    [
        ("", 0, "the expression is empty"),
        ("   ", 0, "the expression is empty"),
        ("bth.psm == 1", 0, "unknown field 'bth.psm'; did you mean bth.psn?"),
        ("reth and infiniband.bth.psm", 9, "unknown field 'infiniband.bth.psm'; did you mean"),
        ("zzz", 0, "unknown field 'zzz'"),
        ("bth.psn == abc", 11, "bth.psn takes a number, not 'abc'"),
        ("bth.psn == -1", 11, "bth.psn takes a number, not '-1'"),
        ("bth.psn == 0x", 11, "bth.psn takes a number"),
        ("bth.psn == 10.0.0.1", 11, "bth.psn takes a number"),
        ("bth.psn == " + "9" * 5000, 11, "bth.psn takes a number"),
        ("bth.opcode == RC_SEND_ONYL", 14, "a number or RC_SEND_ONLY or"),
        ("icrc.status == baad", 15, "icrc.status takes one of good, bad, truncated, not 'baad'"),
        ("icrc.status == 1", 15, "one of good, bad, truncated"),
        ("icrc.status < bad", 12, "only ==, != and in apply"),
        ("icrc.status in {good..bad}", 20, "a range goes from"),
        ("ip.src == 10.0.0", 10, "ip.src takes an IPv4 address or network"),
        ("ip.src == 10.0.0.1/33", 10, "ip.src takes an IPv4 address"),
        ("ip.src == ::1", 10, "ip.src takes an IPv4 address"),
        ("ip.src < 10.0.0.0/8", 9, "< needs an address, not a network"),
        ("ip.src in 10.0.0.1", 10, "expected a list such as {10.0.0.1, ...}"),
        ("ip.src in {10.0.0.0/8..10.0.0.1}", 21, "a range goes from"),
        ("ipv6.src == 'fe80::1%eth0'", 12, "ipv6.src takes an IPv6 address"),
        ("eth.src == 02:00:00:00:00", 11, "eth.src takes a MAC address"),
        ("bth.psn = 1", 8, "write == to compare"),
        ("bth.psn => 30", 8, "write >= to compare"),
        ("bth.psn =< 30", 8, "write <= to compare"),
        ("icrc == bad", 8, "not 'bad'; did you mean icrc.status?"),
        ("reth & reth", 5, "write && or and"),
        ("reth | reth", 5, "write || or or"),
        ("bth.psn ==", 10, "expected a number for bth.psn, found the end"),
        ("bth.psn == and", 11, "found 'and'"),
        ("bth.psn in", 10, "expected a number for bth.psn, found the end"),
        ("bth.psn in 5", 11, "expected a list such as {5, ...}"),
        ("bth.psn in {}", 12, "expected a number for bth.psn, found '}'"),
        ("bth.psn in {1, 2", 16, "expected ',' or '}', found the end"),
        ("bth.psn in {1, 2)", 16, "expected ',' or '}', found ')'"),
        ("bth.psn in {9..1}", 12, "the range ends before it starts"),
        ("bth.psn not 5", 12, "expected 'in' after 'not', found '5'"),
        ("(reth", 5, "expected ')', found the end"),
        ("reth)", 4, "expected 'and', 'or' or the end, found ')'"),
        ("()", 1, "expected a field name, found ')'"),
        ("reth reth", 5, "expected 'and', 'or' or the end, found 'reth'"),
        ("bth.psn == 1 == 1", 13, "expected 'and', 'or' or the end, found '=='"),
        ("reth and", 8, "expected a field name, found the end"),
        ("and reth", 0, "expected a field name, found 'and'"),
        ("reth == 1", 5, "reth takes no value"),
        ("reth in {1}", 5, "reth takes no value"),
        ("'reth'", 0, "expected a field name"),
        ("icrc.status == 'bad", 15, "the closing quote is missing"),
        ("reth ; reth", 5, "unexpected ';'"),
        ("reth \u00a0", 5, "unexpected '\\xa0'"),
        ("bth.psn == \u0663", 11, "unexpected"),
        ("bth.psn == '\u0663'", 11, "bth.psn takes a number"),
    ],
)
def test_error_points_at_the_column_and_says_what_was_expected(
    text: str, column: int, reason: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, TYPES.get, TYPES)

    assert caught.value.column == column
    assert reason in caught.value.reason


@each_case(
    ("word", "sign"),
    [("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")],
)
def test_words_of_wireshark_compare(word: str, sign: str) -> None:
    for value in (4, 17):
        assert _select(f"bth.opcode {word} {value}") == _select(f"bth.opcode {sign} {value}")


@pytest.mark.parametrize("text", ["(" * 10_000, "(" * 10_000 + "reth" + ")" * 10_000])
def test_ten_thousand_parentheses_are_an_error(text: str) -> None:
    with pytest.raises(ExpressionError, match="parentheses inside one another"):
        parse(text, TYPES.get, TYPES)


@pytest.mark.slow
def test_ten_thousand_negations_and_terms_are_read() -> None:
    assert _select("not " * 10_001 + "reth") == [0, 2, 3]
    assert _select(" or ".join(["reth"] * 10_000)) == [1]
    assert _select("bth.psn in {" + ",".join(map(str, range(0, 200_000, 2))) + "}") == [0, 1]


def test_fields_are_the_names_without_prefix_and_each_column_is_fetched_once() -> None:
    expression = parse("infiniband.bth.psn > 1 and bth.psn < 9 or reth", TYPES.get)
    asked: list[str] = []

    def column(name: str) -> Column:
        asked.append(name)
        return _column(PACKETS, name)

    expression.select(column, len(PACKETS))

    assert expression.fields == {"bth.psn", "reth"}
    assert sorted(asked) == ["bth.psn", "reth"]


def test_two_codes_of_one_word_are_both_selected() -> None:
    types = {"status": FieldType(Kind.TEXT, words=("none", "odd", "odd"))}
    codes = Column(np.array([0, 1, 2, 7], dtype=np.uint8), None)

    mask = parse("status == odd", types.get).select(lambda _: codes, 4)

    assert mask.tolist() == [False, True, True, False]


@each_case("name", TYPES)
def test_no_packets_select_nothing(name: str) -> None:
    assert _select(name, rows=[]) == []
    assert _select(f"not {name}", rows=[]) == []


def test_selecting_leaves_the_columns_alone() -> None:
    valid = np.array([True, False])
    values = np.array([0, 1], dtype=np.uint8)
    types = {"ip.src": FieldType(Kind.IPV4), "x": FieldType(Kind.UINT)}
    text = "not (ip.src or x or not ip.src)"

    parse(text, types.get).select(lambda _: Column(values, valid), 2)

    assert valid.tolist() == [True, False]
    assert values.tolist() == [0, 1]


# The law: an expression selects the rows for which the same tree, read as Python, is true.


@dataclass(frozen=True)
class Tree:
    text: str
    holds: Callable[[Row], bool]


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: bool(a == b),
    "!=": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}

MAXIMUM = {
    "bth.opcode": 255,
    "bth.psn": 0xFFFFFF,
    "bth.fecn": 1,
    "reth.va": 2**64 - 1,
    "icrc": 2**32 - 1,
    "icrc.status": 2,
    "eth.src": 2**48 - 1,
    "ip.src": 2**32 - 1,
    "ipv6.src": 2**128 - 1,
}


def numbers(name: str) -> st.SearchStrategy[int]:
    """Values of the field, often the same few ones and often at its edges."""
    top = MAXIMUM.get(name, 65535)
    ends = [0, 1, 2, top // 2, top // 2 + 1, top - top % 256, max(top - 1, 0), top]
    return st.sampled_from([end for end in ends if end <= top]) | st.integers(0, top)


def values(name: str) -> st.SearchStrategy[Any]:
    if TYPES[name].kind is Kind.LIST:
        return st.tuples(*[numbers(name)] * 8)
    return numbers(name)


def spelled(name: str, number: int) -> st.SearchStrategy[str]:
    match TYPES[name].kind:
        case Kind.MAC:
            digits = f"{number:012x}"
            return st.just(":".join(digits[i : i + 2] for i in range(0, 12, 2)))
        case Kind.IPV4:
            return st.just(str(ipaddress.IPv4Address(number)))
        case Kind.IPV6:
            return st.just(str(ipaddress.IPv6Address(number)))
        case Kind.TEXT:
            return st.sampled_from(["{}", "'{}'", '"{}"']).map(
                lambda form: form.format(STATUSES[number])
            )
        case _:
            names = [key for key, value in TYPES[name].constants.items() if value == number]
            forms = ["{}", "{:#x}", "{:_}", "{:#b}", "{:#o}"]
            return st.sampled_from([form.format(number) for form in forms] + names)


@st.composite
def rows_of_packets(draw: st.DrawFn) -> list[Row]:
    row = {
        name: st.booleans() if kind.kind is Kind.FLAG else st.none() | values(name)
        for name, kind in TYPES.items()
    }
    return draw(st.lists(st.fixed_dictionaries(row), max_size=8))


@st.composite
def comparisons(draw: st.DrawFn) -> Tree:
    name = draw(st.sampled_from(list(TYPES)))
    kind = TYPES[name].kind
    shown = draw(st.sampled_from(["", "infiniband."])) + name
    form = draw(st.sampled_from(["alone", "compare", "in"]))
    if kind is Kind.FLAG or form == "alone":
        return Tree(shown, lambda row: _alone(kind, row[name]))
    if form == "compare":
        marks = ["==", "!="] if kind is Kind.TEXT else list(COMPARE)
        mark = draw(st.sampled_from(marks))
        number = draw(numbers(name))
        text = f"{shown}{draw(st.sampled_from(['', ' ']))}{mark} {draw(spelled(name, number))}"
        every = mark == "!="
        return Tree(text, lambda row: _match(row[name], lambda v: COMPARE[mark](v, number), every))
    negated = draw(st.booleans())
    spans = draw(st.lists(st.tuples(numbers(name), numbers(name)), min_size=1, max_size=6))
    items = []
    ranges: list[tuple[int, int]] = []
    for one, other in spans:
        low, high = min(one, other), max(one, other)
        if kind is Kind.TEXT or draw(st.booleans()):
            high = low
            items.append(draw(spelled(name, low)))
        else:
            items.append(f"{draw(spelled(name, low))}..{draw(spelled(name, high))}")
        ranges.append((low, high))
    brackets = draw(st.sampled_from(["{%s}", "(%s)", "[%s]"]))
    text = f"{shown} {'not ' * negated}in {brackets % ', '.join(items)}"
    return Tree(
        text,
        lambda row: _match(
            row[name], lambda v: any(low <= v <= high for low, high in ranges) != negated, negated
        ),
    )


def _alone(kind: Kind, value: Any) -> bool:
    if kind in (Kind.UINT, Kind.FLAG):
        return bool(value)
    if kind is Kind.LIST:
        return value is not None and any(value)
    return value is not None


def _match(value: Any, holds: Callable[[int], bool], every: bool) -> bool:
    if value is None:
        return False
    if isinstance(value, tuple):
        return all(map(holds, value)) if every else any(map(holds, value))
    return holds(value)


def _negation(tree: Tree, word: str) -> Tree:
    return Tree(f"{word}({tree.text})", lambda row: not tree.holds(row))


def _both(left: Tree, right: Tree, word: str) -> Tree:
    return Tree(
        f"({left.text}) {word} ({right.text})", lambda row: left.holds(row) and right.holds(row)
    )


def _either(left: Tree, right: Tree, word: str) -> Tree:
    return Tree(
        f"({left.text}) {word} ({right.text})", lambda row: left.holds(row) or right.holds(row)
    )


trees = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds(_negation, inner, st.sampled_from(["!", "not"])),
        st.builds(_both, inner, inner, st.sampled_from(["and", "&&"])),
        st.builds(_either, inner, inner, st.sampled_from(["or", "||"])),
    ),
    max_leaves=8,
)


@given(trees, rows_of_packets())
def test_selection_equals_evaluating_row_by_row(tree: Tree, rows: list[Row]) -> None:
    assert _select(tree.text, rows) == [i for i, row in enumerate(rows) if tree.holds(row)]


pieces = st.sampled_from(
    [*TYPES, *"(){}[],!<>=&|'\"", "..", "==", "!=", "and", "or", "not", "in", "1", "::1", "bad"]
)


@given(st.text(max_size=40) | st.lists(pieces, max_size=12).map(" ".join))
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    place = 0
    try:
        parse(text, TYPES.get, TYPES)
    except ExpressionError as error:
        place = error.column

    assert 0 <= place <= len(text)


WIRE = {"icrc": FieldType(Kind.HEX, digits=8)}


def test_bytes_of_the_wire_are_written_as_they_are_printed() -> None:
    """Eight decimal digits are hexadecimal digits too."""
    column = Column(np.array([0x73074611, 73074611], np.uint32), None)

    for text in ("icrc == 73074611", 'icrc == "73074611"', "icrc == 0x73074611"):
        assert parse(text, WIRE.get).select(lambda _: column, 2).tolist() == [True, False]


def test_bytes_of_the_wire_have_all_their_digits() -> None:
    with pytest.raises(ExpressionError, match="icrc takes 8 hexadecimal digits, not '11'"):
        parse("icrc == 11", WIRE.get)
