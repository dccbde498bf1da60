"""Filter expressions: which packets they select.

    bth.opcode == RC_ACKNOWLEDGE and (ip.src in 10.0.0.0/8 or not vlan)

    expression  = conjunction { ("or" | "||") conjunction }
    conjunction = negation { ("and" | "&&") negation }
    negation    = { "not" | "!" } ( "(" expression ")" | test )
    test        = protocol | field [ comparison value | [ "not" ] "in" set | search text ]
    comparison  = "==" | "!=" | "<" | "<=" | ">" | ">=" | "eq" | "ne" | "lt" | "le" | "gt" | "ge"
    search      = "contains" | "matches" | "~"
    set         = item | "{" items "}" | "(" items ")" | "[" items "]"
    items       = item { "," item }
    item        = value [ ".." value ]

A value is a number (decimal, 0x, 0o, 0b, with `_` between digits), a name the
field knows (`RC_SEND_ONLY`), an address, a network or a word. Quotes never
change a meaning; they are for words with unusual characters. `infiniband.` in
front of a field name is ignored.

A test on a field that the packet does not have is false, also with `!=` and
`not in`; `not (a == b)` is true then. A field alone is true when the packet has
it and, if it is a number, when it is not 0. A list meets `==`, `<`, `in` and so
on when one of its elements does, `!=` and `not in` when all of them do. So does a
name for several fields (`ip.addr`), which needs one of them to be there.

`contains` looks for a text in a word or a text, `matches` (`~`) for a regular
expression without regard to case. Seconds have decimals, and may be negative.
"""

from __future__ import annotations

import ipaddress
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import ExpressionError
from ibwire.dissect.column import Column, FieldType, Kind

Mask = npt.NDArray[np.bool_]

PREFIX = "infiniband."
MAX_DEPTH = 50
"""Parentheses inside one another; each costs four frames of Python's stack."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed filter; it keeps no state between batches."""

    fields: frozenset[str]
    """Names of the columns it asks for, without prefix."""
    _root: _Node

    def select(self, column: Callable[[str], Column], n: int) -> Mask:
        """For which of the n packets it is true.

        column: gives the column of a name in `fields`, of n rows; called once a name.
        """
        return self._root.select(_Batch(column, n))


def parse(
    text: str,
    field_type: Callable[[str], FieldType | None],
    names: Iterable[str] = (),
    *,
    groups: Mapping[str, Sequence[str]] = MappingProxyType({}),
    definitions: Mapping[str, str] = MappingProxyType({}),
) -> Expression:
    """Parse a filter expression; `ExpressionError` points at the error in it.

    field_type: the type of a field, `None` for an unknown name.
    names: the known fields, to suggest one for a misspelled name.
    groups: names that stand for several fields of one type. definitions: names that stand
    alone, each for a filter.
    """
    parser = _Parser(text, field_type, names, groups, definitions)
    root = parser.parse()
    return Expression(frozenset(parser.fields), root)


class _Batch:
    """The columns of one batch, each fetched once."""

    def __init__(self, column: Callable[[str], Column], n: int) -> None:
        self.n = n
        self._column = column
        self._fetched: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._fetched:
            self._fetched[name] = self._column(name)
        return self._fetched[name]


# Sets of values. Whatever a test compares with becomes a sorted tuple of closed
# intervals of integers, so that one routine answers every kind and operator.

_Intervals = tuple[tuple[int, int], ...]

_TOP = (1 << 128) - 1  # no column holds more

_FEW = 4  # from here on a binary search beats comparing with each interval

_BOTTOM = -(1 << 63)  # of seconds, which alone may be negative

_COMPARE: dict[str, Callable[[int, int], _Intervals]] = {
    "==": lambda low, high: ((low, high),),
    "!=": lambda low, high: ((low, high),),
    "<": lambda low, _: ((0, low - 1),),
    "<=": lambda _, high: ((0, high),),
    ">": lambda _, high: ((high + 1, _TOP),),
    ">=": lambda low, _: ((low, _TOP),),
}


def _merge(intervals: Iterable[tuple[int, int]]) -> _Intervals:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return tuple(merged)


def _within(values: npt.NDArray[Any], intervals: _Intervals, width: int) -> Mask:
    """Which of the values lie in an interval; a value of the column has `width` bits."""
    is_signed = values.dtype.kind == "i"
    limit = (1 << width - is_signed) - 1
    kept = [(low, min(high, limit)) for low, high in intervals if low <= min(high, limit)]
    if not kept:
        return np.zeros(values.shape, dtype=np.bool_)
    lows = _as_values([low for low, _ in kept], values.dtype)
    highs = _as_values([high for _, high in kept], values.dtype)
    if len(kept) >= _FEW:
        at = np.searchsorted(lows, values, side="right")
        return np.asarray((at > 0) & (values <= highs[at - 1]), dtype=np.bool_)
    masks = []
    for (low, high), first, last in zip(kept, lows, highs, strict=True):
        if low == high:
            masks.append(values == first)
        elif low == (_BOTTOM if is_signed else 0):
            masks.append(values <= last)
        elif high == limit:
            masks.append(values >= first)
        else:
            masks.append((values >= first) & (values <= last))
    return reduce(operator.or_, masks)


def _as_values(numbers: list[int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "S":
        return np.array([number.to_bytes(dtype.itemsize) for number in numbers], dtype=dtype)
    return np.array(numbers, dtype=dtype)


# The parts of an expression.


class _Node(Protocol):
    def select(self, batch: _Batch) -> Mask: ...


@dataclass(frozen=True, slots=True)
class _Either:
    parts: list[_Node]

    def select(self, batch: _Batch) -> Mask:
        return reduce(operator.or_, (part.select(batch) for part in self.parts))


@dataclass(frozen=True, slots=True)
class _Both:
    parts: list[_Node]

    def select(self, batch: _Batch) -> Mask:
        return reduce(operator.and_, (part.select(batch) for part in self.parts))


@dataclass(frozen=True, slots=True)
class _Not:
    part: _Node

    def select(self, batch: _Batch) -> Mask:
        return ~self.part.select(batch)


@dataclass(frozen=True, slots=True)
class _Present:
    """The packet has the field."""

    field: str

    def select(self, batch: _Batch) -> Mask:
        valid = batch[self.field].valid
        return np.ones(batch.n, dtype=np.bool_) if valid is None else valid.copy()


@dataclass(frozen=True, slots=True)
class _Test:
    """The packet has the field, with a value in (or, negated, not in) the intervals."""

    field: str
    kind: Kind
    intervals: _Intervals
    negated: bool = False

    def select(self, batch: _Batch) -> Mask:
        values, valid = batch[self.field]
        if self.kind is Kind.IPV6:
            # Byte strings of one length compare as the numbers they spell; those that end
            # in zeros too, because NumPy treats the missing bytes as zeros.
            values = np.ascontiguousarray(values).view("S16").reshape(len(values))
        elif values.dtype == np.bool_:
            values = values.view(np.uint8)
        mask = _within(values, self.intervals, values.dtype.itemsize * 8)
        if self.kind is Kind.LIST:
            mask = np.logical_or.reduce(mask, axis=1)
        if self.negated:
            mask = ~mask
        return mask if valid is None else mask & valid


@dataclass(frozen=True, slots=True)
class _Search:
    """The packet has the text, and a regular expression is found in it."""

    field: str
    pattern: re.Pattern[str]

    def select(self, batch: _Batch) -> Mask:
        values, valid = batch[self.field]
        found: dict[str, bool] = {}
        mask = np.zeros(batch.n, np.bool_)
        for row in (np.arange(batch.n) if valid is None else np.flatnonzero(valid)).tolist():
            text = values[row]
            if text not in found:
                found[text] = self.pattern.search(text) is not None
            mask[row] = found[text]
        return mask


# Reading.


class _Token(NamedTuple):
    text: str
    """As written, without quotes."""
    column: int
    mark: str = ""
    """For punctuation, keywords and the end: which; empty for words and quoted texts."""
    is_quoted: bool = False


_TOKEN = re.compile(
    r"""\s*+(?:
        (?P<quoted>"[^"]*"|'[^']*')
      | (?P<mark>==|!=|<=|>=|<|>|&&|\|\||!|~|\.\.|[(){}\[\],])
      | (?P<word>(?:[A-Za-z0-9_:/-]|\.(?!\.))+)
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.ASCII,
)

_END = "end"

_KEYWORDS = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "in": "in",
    "contains": "contains",
    "matches": "~",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}

_ALONE = (Kind.FLAG, Kind.STRING, Kind.OCTETS)

_SEARCHED = (Kind.TEXT, Kind.STRING)

_CLOSING = {"{": "}", "(": ")", "[": "]"}

_INSTEAD = {
    "=<": "write <= to compare",
    "=>": "write >= to compare",
    "=": "write == to compare",
    "&": "write && or and",
    "|": "write || or or",
    '"': "the closing quote is missing",
    "'": "the closing quote is missing",
}

_MAC = re.compile(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}")


def _tokens(text: str) -> list[_Token]:
    """The tokens, the last of them the empty one at the end of the text."""
    tokens: list[_Token] = []
    position = 0
    while True:
        match = _TOKEN.match(text, position)
        if match is None:
            while text[position] in " \t\n\r\f\v":
                position += 1
            found = text[position]
            instead = _INSTEAD.get(text[position : position + 2]) or _INSTEAD.get(found)
            raise ExpressionError(text, position, instead or f"unexpected {found!r}")
        position = match.end()
        group = match.lastgroup
        assert group is not None
        found, column = match[group], match.start(group)
        if group == "quoted":
            tokens.append(_Token(found[1:-1], column, is_quoted=True))
        elif group == "word":
            tokens.append(_Token(found, column, mark=_KEYWORDS.get(found, "")))
        elif group == "mark":
            tokens.append(_Token(found, column, mark=found))
        else:
            tokens.append(_Token(found, column, mark=_END))
            return tokens


class _Parser:
    def __init__(
        self,
        text: str,
        field_type: Callable[[str], FieldType | None],
        names: Iterable[str],
        groups: Mapping[str, Sequence[str]],
        definitions: Mapping[str, str],
    ) -> None:
        self._groups = groups
        self._definitions = definitions
        self.fields: set[str] = set()
        self._text = text
        self._field_type = field_type
        self._names = names
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def parse(self) -> _Node:
        if len(self._tokens) == 1:
            raise ExpressionError(self._text, 0, "the expression is empty")
        root = self._expression()
        if not self._at(_END):
            self._fail("expected 'and', 'or' or the end")
        return root

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _at(self, *marks: str) -> bool:
        return self._peek().mark in marks

    def _accept(self, *marks: str) -> bool:
        if self._at(*marks):
            self._next += 1
            return True
        return False

    def _expression(self) -> _Node:
        parts = [self._conjunction()]
        while self._accept("||"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else _Either(parts)

    def _conjunction(self) -> _Node:
        parts = [self._negation()]
        while self._accept("&&"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else _Both(parts)

    def _negation(self) -> _Node:
        negated = False
        while self._accept("!"):
            negated = not negated
        part = self._group() if self._at("(") else self._test()
        return _Not(part) if negated else part

    def _group(self) -> _Node:
        opening = self._take()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            reason = f"more than {MAX_DEPTH} parentheses inside one another"
            raise ExpressionError(self._text, opening.column, reason)
        inside = self._expression()
        if not self._accept(")"):
            self._fail("expected ')'")
        self._depth -= 1
        return inside

    def _test(self) -> _Node:
        word = self._peek()
        if not word.mark and not word.is_quoted and self._field_type(word.text) is None:
            if word.text in self._definitions:
                self._next += 1
                if self._at(*_COMPARE, "contains", "~", "in"):
                    reason = f"{word.text} takes no value: it stands alone"
                    raise ExpressionError(self._text, self._peek().column, reason)
                return self._defined(self._definitions[word.text])
            if word.text in self._groups:
                return self._any_of(self._groups[word.text])
        name, kind = self._field()
        self.fields.add(name)
        return self._test_of(name, kind)

    def _defined(self, text: str) -> _Node:
        parser = _Parser(text, self._field_type, (), {}, {})
        node = parser.parse()
        self.fields |= parser.fields
        return node

    def _any_of(self, names: Sequence[str]) -> _Node:
        """A test of several fields: true for one of them, and if it is negated, for all."""
        self._next += 1
        kind = self._field_type(names[0])
        assert kind is not None
        first = self._next
        parts: list[_Node] = []
        for name in names:
            self._next = first
            self.fields.add(name)
            parts.append(self._test_of(name, kind))
        is_negated = any(isinstance(part, _Test) and part.negated for part in parts)
        return _Both(parts) if is_negated else _Either(parts)

    def _test_of(self, name: str, kind: FieldType) -> _Node:
        token = self._peek()
        if self._accept(*_COMPARE):
            return self._comparison(name, kind, token)
        if self._accept("contains", "~"):
            return self._search(name, kind, token)
        negated = self._accept("!")
        if negated and not self._at("in"):
            self._fail("expected 'in' after 'not'")
        if self._accept("in"):
            if kind.kind in _ALONE:
                raise ExpressionError(self._text, token.column, f"{name} takes {kind.kind.value}")
            return _Test(name, kind.kind, self._set(name, kind), negated)
        match kind.kind:
            case Kind.FLAG | Kind.UINT | Kind.LIST:
                return _Test(name, kind.kind, ((1, _TOP),))
            case _:
                return _Present(name)

    def _field(self) -> tuple[str, FieldType]:
        token = self._peek()
        if token.mark or token.is_quoted:
            self._fail("expected a field name")
        self._next += 1
        for name in (token.text, token.text.removeprefix(PREFIX)):
            found = self._field_type(name)
            if found is not None:
                return name, found
        close = _close(token.text.removeprefix(PREFIX), self._names)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ExpressionError(self._text, token.column, f"unknown field {token.text!r}{hint}")

    def _search(self, name: str, field: FieldType, mark: _Token) -> _Node:
        if field.kind not in _SEARCHED:
            reason = f"{name} is no text: {mark.text} applies to words and texts"
            raise ExpressionError(self._text, mark.column, reason)
        token = self._peek()
        if token.mark or not token.text:
            self._fail(f"expected a text for {name}")
        self._next += 1
        is_plain = mark.mark == "contains"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of future syntax in the user's expression
                pattern = re.compile(
                    re.escape(token.text) if is_plain else token.text,
                    re.NOFLAG if is_plain else re.IGNORECASE,
                )
        except (re.error, OverflowError, RecursionError) as error:
            reason = f"{token.text!r} is no regular expression: {error}"
            raise ExpressionError(self._text, token.column, reason) from None
        if field.kind is Kind.STRING:
            return _Search(name, pattern)
        found = [(i, i) for i, word in enumerate(field.words) if pattern.search(word)]
        return _Test(name, field.kind, _merge(found))

    def _comparison(self, name: str, field: FieldType, mark: _Token) -> _Node:
        ordered = mark.mark not in ("==", "!=")
        if field.kind in _ALONE:
            raise ExpressionError(self._text, mark.column, f"{name} takes {field.kind.value}")
        if ordered and field.kind is Kind.TEXT:
            reason = f"{name} is a word: only ==, != and in apply"
            raise ExpressionError(self._text, mark.column, reason)
        value = self._peek()
        sets = self._value(name, field)
        if ordered and "/" in value.text:
            reason = f"{mark.text} needs an address, not a network"
            raise ExpressionError(self._text, value.column, reason)
        intervals = _merge(part for low, high in sets for part in _COMPARE[mark.mark](low, high))
        if field.kind is Kind.SECONDS and mark.mark in ("<", "<="):
            intervals = ((_BOTTOM, intervals[0][1]),)
        return _Test(name, field.kind, intervals, negated=mark.mark == "!=")

    def _set(self, name: str, field: FieldType) -> _Intervals:
        opening = self._peek()
        if not self._accept(*_CLOSING):
            first = self._next
            items = self._item(name, field)
            if self._next == first + 1 and "/" not in opening.text:
                reason = f"expected a list such as {{{opening.text}, ...}}, a range or a network"
                raise ExpressionError(self._text, opening.column, reason)
            return _merge(items)
        items = self._item(name, field)
        while self._accept(","):
            items += self._item(name, field)
        closing = _CLOSING[opening.text]
        if not self._accept(closing):
            self._fail(f"expected ',' or '{closing}'")
        return _merge(items)

    def _item(self, name: str, field: FieldType) -> list[tuple[int, int]]:
        token = self._peek()
        first = self._value(name, field)
        if not self._at(".."):
            return first
        mark = self._take()
        last_token = self._peek()
        last = self._value(name, field)
        if field.kind is Kind.TEXT or "/" in token.text or "/" in last_token.text:
            reason = "a range goes from one number or address to another"
            raise ExpressionError(self._text, mark.column, reason)
        if first[0][0] > last[0][0]:
            raise ExpressionError(self._text, token.column, "the range ends before it starts")
        return [(first[0][0], last[0][0])]

    def _value(self, name: str, field: FieldType) -> list[tuple[int, int]]:
        """What a value stands for: one interval, or for a word one for each index it has."""
        token = self._peek()
        if token.mark:
            self._fail(f"expected {_kind_of_value(field, token.text)} for {name}")
        self._next += 1
        found = _read(token.text, field)
        if not found:
            expected = _kind_of_value(field, token.text)
            reason = f"{name} takes {expected}, not {token.text!r}{self._hint(name, token.text)}"
            raise ExpressionError(self._text, token.column, reason)
        return found

    def _hint(self, name: str, text: str) -> str:
        """The name that was meant, or the field below this one that has the word as a value."""
        field = self._field_type(name)
        if field is not None and field.has_only_names:
            meant = _close(text, field.constants)[:1]
        else:
            below = [each for each in self._names if each.startswith(f"{name}.")]
            types = {each: self._field_type(each) for each in below}
            meant = [each for each, kind in types.items() if kind and text in kind.words]
        return f"; did you mean {' or '.join(meant)}?" if meant else ""

    def _fail(self, expected: str) -> NoReturn:
        token = self._peek()
        found = "the end" if token.mark == _END else repr(token.text)
        raise ExpressionError(self._text, token.column, f"{expected}, found {found}")


def _read(text: str, field: FieldType) -> list[tuple[int, int]]:
    """What `text` stands for in a field of that type; nothing when it cannot be read."""
    match field.kind:
        case Kind.TEXT:
            return [(i, i) for i, word in enumerate(field.words) if word == text]
        case Kind.IPV4 | Kind.IPV6:
            network = ipaddress.IPv4Network if field.kind is Kind.IPV4 else ipaddress.IPv6Network
            try:
                block = network(text, strict=False)
            except ValueError:
                return []
            if "%" in text:
                return []
            return [(int(block.network_address), int(block.broadcast_address))]
        case Kind.HEX if field.digits:
            # As it is printed; a decimal number would be mistaken for it.
            digits = text.removeprefix("0x")
            shown = re.fullmatch(f"[0-9a-fA-F]{{{field.digits}}}", digits)
            number = int(digits, 16) if shown else None
        case Kind.SECONDS:
            number = _nanoseconds(text)
        case Kind.MAC:
            number = int(re.sub("[:-]", "", text), 16) if _MAC.fullmatch(text) else None
        case _:
            number = field.constants.get(text)
            if number is None and text.isascii() and text[:1].isdecimal():
                try:
                    number = int(text, 0)
                except ValueError:
                    return []
    return [] if number is None else [(number, number)]


def _nanoseconds(text: str) -> int | None:
    found = _SECONDS.fullmatch(text)
    if found is None:
        return None
    sign, whole, rest = found.groups()
    number = int(whole) * 10**9 + int((rest or "").ljust(9, "0"))
    return -number if sign else number


_SECONDS = re.compile(r"(-?)([0-9]{1,10})(?:\.([0-9]{1,9}))?", re.ASCII)


def _kind_of_value(field: FieldType, text: str) -> str:
    """How a value of the field is written, for the error about `text`."""
    if field.kind is Kind.TEXT:
        few = len(field.words) <= 8
        shown = field.words if few else _close(text, field.words) or field.words
        return f"one of {', '.join(shown[:8])}{', ...' if len(shown) > 8 else ''}"
    if field.digits:
        return f"{field.digits} hexadecimal digits"
    if field.has_only_names:
        return f"one of {', '.join(field.constants)}"
    few = len(field.constants) <= 8
    close = [*field.constants] if few else _close(text.upper(), field.constants)
    return str(field.kind.value) + "".join(f" or {name}" for name in close)


def _close(text: str, names: Iterable[str]) -> list[str]:
    """Names similar to `text`; none for a very long one, since comparing takes quadratic time."""
    import difflib

    return difflib.get_close_matches(text, names) if len(text) <= 64 else []
