"""Numbers in a script: parsed once, evaluated when the connection is known.

An expression has numbers, symbols of the connection (`psn`, `rkey`, `va`, ...), variables
that were captured, the functions `ack_timeout` and `rnr_wait`, and + - * with brackets.
The expected value of a field is an expression, a range, one of several, anything, or
anything that is captured into a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ibwire.base.errors import ScriptError
from ibwire.base.units import US, ack_timeout
from ibwire.drill.language.cursor import Cursor
from ibwire.drill.language.tokens import Kind, Token
from ibwire_layers.syndrome import RNR_TIMER_US

LIMIT = 1 << 130
"""Above every field: intermediate results may exceed the 128 bits of an address."""

DEEPEST = 20
"""Brackets within brackets."""


class NoValue(ScriptError):
    """A variable without a value, as the packet that sets it did not come."""


class Scope:
    """Values of the names in expressions."""

    def __init__(self, path: str, symbols: Mapping[str, int]) -> None:
        self.path = path
        self.symbols = dict(symbols)
        self.captured: dict[str, int] = {}

    def error(self, token: Token, reason: str) -> ScriptError:
        """An error about a token."""
        return ScriptError(self.path, token.line, token.column, reason)


Evaluate = Callable[[Scope], int]


@dataclass(frozen=True, slots=True)
class Expression:
    """A number that may depend on the connection."""

    token: Token
    """Its first."""
    text: str
    evaluate: Evaluate
    is_plain: bool = False
    """Whether the text is a number or the name of one."""

    def shown(self, scope: Scope | None, mask: int = -1) -> str:
        """The text as written, with its value where that is known and differs."""
        if self.is_plain or scope is None:
            return self.text
        return f"{self.text} ({_number(self.evaluate(scope) & mask)})"


@dataclass(frozen=True, slots=True)
class Value:
    """The allowed values of a field: `choices` are ranges, a number is a range of one.

    Without choices any value is allowed, and `name` is the variable that gets it.
    """

    token: Token
    choices: tuple[tuple[Expression, Expression], ...] = ()
    name: str = ""

    def accepts(self, actual: int, scope: Scope, mask: int = -1) -> bool:
        """Whether a number is allowed; `mask` is for fields that wrap."""
        if not self.choices:
            return True
        for low, high in self.choices:
            first, last = low.evaluate(scope), high.evaluate(scope)
            if mask == -1:
                if first <= actual <= last:
                    return True
            elif actual - first & mask <= last - first:
                return True
        return False

    def shown(self, scope: Scope | None, mask: int = -1) -> str:
        """For a message; `mask` is for fields that wrap."""
        if not self.choices:
            return f"?{self.name}" if self.name else "*"
        parts = [
            "..".join(end.shown(scope, mask) for end in ((low,) if low is high else (low, high)))
            for low, high in self.choices
        ]
        return parts[0] if len(parts) == 1 else f"{{{', '.join(parts)}}}"


def read_expression(cursor: Cursor, names: Mapping[str, int] | None = None) -> Expression:
    """Read an expression; `names` are further names of numbers."""
    start, token = cursor.position, cursor.here
    evaluate = _sum(cursor, names or {}, 0)
    text = cursor.text_since(start)
    is_plain = text in (names or {}) or (token.kind is Kind.NUMBER and text == token.text)
    return Expression(token, text, evaluate, is_plain)


def constant(expression: Expression, path: str) -> int | None:
    """The value of an expression without a connection; `None` if it needs one."""
    try:
        return expression.evaluate(Scope(path, {}))
    except ScriptError:
        return None


def read_value(cursor: Cursor, names: Mapping[str, int] | None = None) -> Value:
    """Read the allowed values of a field."""
    token = cursor.here
    if cursor.takes("*"):
        return Value(token)
    if cursor.takes("?"):
        name = cursor.name("the name of a variable")
        cursor.captured.add(name.text)
        return Value(token, (), name.text)
    if not cursor.takes("{"):
        return Value(token, (_range(cursor, names),))
    choices = [_range(cursor, names)]
    while cursor.takes(","):
        choices.append(_range(cursor, names))
    cursor.sign("}")
    return Value(token, tuple(choices))


def _range(cursor: Cursor, names: Mapping[str, int] | None) -> tuple[Expression, Expression]:
    low = read_expression(cursor, names)
    if not cursor.takes(".."):
        return low, low
    high = read_expression(cursor, names)
    first, last = constant(low, cursor.path), constant(high, cursor.path)
    if first is not None and last is not None and last < first:
        raise cursor.error(high.token, f"{high.text} comes before {low.text}")
    return low, high


def _sum(cursor: Cursor, names: Mapping[str, int], depth: int) -> Evaluate:
    left = _product(cursor, names, depth)
    while True:
        token = cursor.here
        if cursor.takes("+"):
            left = _joined(token, left, _product(cursor, names, depth), int.__add__)
        elif cursor.takes("-"):
            left = _joined(token, left, _product(cursor, names, depth), int.__sub__)
        else:
            return left


def _product(cursor: Cursor, names: Mapping[str, int], depth: int) -> Evaluate:
    left = _atom(cursor, names, depth)
    while cursor.here.text == "*":
        token = cursor.take()
        left = _joined(token, left, _atom(cursor, names, depth), int.__mul__)
    return left


def _joined(
    token: Token, left: Evaluate, right: Evaluate, operation: Callable[[int, int], int]
) -> Evaluate:
    def evaluate(scope: Scope) -> int:
        value = operation(left(scope), right(scope))
        if abs(value) >= LIMIT:
            raise scope.error(token, "the result is larger than any field")
        return value

    return evaluate


def _atom(cursor: Cursor, names: Mapping[str, int], depth: int) -> Evaluate:
    token = cursor.take()
    if token.kind is Kind.NUMBER:
        return lambda scope: token.value
    if token.text == "-" and token.kind is Kind.SIGN:
        if depth >= DEEPEST:
            raise cursor.error(token, f"more than {DEEPEST} brackets and signs inside each other")
        inner = _atom(cursor, names, depth + 1)
        return lambda scope: -inner(scope)
    if token.text == "(" and token.kind is Kind.SIGN:
        if depth >= DEEPEST:
            raise cursor.error(token, f"more than {DEEPEST} brackets and signs inside each other")
        inner = _sum(cursor, names, depth + 1)
        cursor.sign(")")
        return inner
    if token.kind is Kind.VARIABLE:
        return _variable(cursor, token)
    if token.kind is not Kind.NAME:
        raise cursor.expected("a number, a symbol or a bracket", token)
    if token.text in FUNCTIONS and cursor.takes("("):
        argument = _sum(cursor, names, depth)
        cursor.sign(")")
        return _called(token, argument)
    if token.text in names:
        value = names[token.text]
        return lambda scope: value
    cursor.check_symbol(token, names)
    return lambda scope: _symbol(scope, token)


def _symbol(scope: Scope, token: Token) -> int:
    if token.text not in scope.symbols:
        raise scope.error(token, f"{token.text} is not known yet")
    return scope.symbols[token.text]


def _variable(cursor: Cursor, token: Token) -> Evaluate:
    name = token.text[1:]
    if name not in cursor.captured:
        raise cursor.error(
            token, f"no column, loop or ?{name} before has given {token.text} a value"
        )

    def evaluate(scope: Scope) -> int:
        if name not in scope.captured:
            reason = f"{token.text} has no value: what was to set it did not come"
            raise NoValue(scope.path, token.line, token.column, reason)
        return scope.captured[name]

    return evaluate


def _called(token: Token, argument: Evaluate) -> Evaluate:
    def evaluate(scope: Scope) -> int:
        code = argument(scope)
        if not 0 <= code <= 31:
            raise scope.error(token, f"{token.text}({code}): codes go from 0 to 31")
        return FUNCTIONS[token.text](code)

    return evaluate


def _number(value: int) -> str:
    return hex(value) if value >= 1 << 24 else str(value)


FUNCTIONS: dict[str, Callable[[int], int]] = {
    "ack_timeout": lambda code: ack_timeout(code) or 0,
    "rnr_wait": lambda code: RNR_TIMER_US[code] * US,
}
"""Picoseconds by timer code (IBA 9.7.6.1.3 and 9.7.5.2.8)."""
