"""A script as lines of tokens, each with its position.

A token is a number, a name, a text in quotes, a variable (`$name`), a sign, or the end of
its line. Numbers with a unit of time are picoseconds. Comments begin with `//`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from ibwire.base.errors import ScriptError
from ibwire.base.units import MS, NS, US, S

MAXIMUM_SIZE = 1 << 16
"""Bytes of a script."""

MAXIMUM_LINE = 1000
"""Characters of a line, which also bounds its nesting."""


class Kind(Enum):
    """Kinds of tokens, with the words of messages."""

    NUMBER = "a number"
    NAME = "a name"
    TEXT = "a text"
    VARIABLE = "a variable"
    SIGN = "a sign"
    END = "the end of the line"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a line; `line` and `column` count from 1."""

    kind: Kind
    text: str
    line: int
    column: int
    value: int = 0
    """Of a number."""

    @property
    def end(self) -> int:
        """The column after it."""
        quotes = 2 if self.kind is Kind.TEXT else 0
        return self.column + len(self.text) + quotes

    def __str__(self) -> str:
        return self.kind.value if self.kind is Kind.END else self.text


@dataclass(frozen=True, slots=True)
class Line:
    """A line with at least one token; the last one is its end."""

    number: int
    text: str
    tokens: tuple[Token, ...]


def read_lines(content: bytes, name: str, most: int = MAXIMUM_SIZE) -> tuple[list[str], list[Line]]:
    """The comment at the top of a script and its lines; `name` is for messages.

    Raises `ScriptError` for input that is not text, is too long, or has unknown characters.
    """
    if len(content) > most:
        reason = f"a script has at most {most} bytes"
        raise ScriptError(name, None, None, reason)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start]
        column = len(before[before.rfind(b"\n") + 1 :].decode()) + 1
        raise ScriptError(name, before.count(b"\n") + 1, column, "not UTF-8") from None
    lines: list[Line] = []
    rule: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if len(line) > MAXIMUM_LINE:
            reason = f"a line of {len(line)} characters, at most {MAXIMUM_LINE}"
            raise ScriptError(name, number, MAXIMUM_LINE + 1, reason)
        if not lines and line.lstrip().startswith("//"):
            rule.append(line.strip().removeprefix("//").strip())
        tokens = _tokens(line, number, name)
        if len(tokens) > 1:
            lines.append(Line(number, line, tokens))
    return rule, lines


def _tokens(line: str, number: int, name: str) -> tuple[Token, ...]:
    found: list[Token] = []
    heading = _SECTION.match(line)
    if heading:
        found.append(Token(Kind.NAME, heading[1], number, heading.start(1) + 1))
        if heading[2]:
            found.append(Token(Kind.TEXT, heading[2], number, heading.start(2) + 1))
        return (*found, Token(Kind.END, "", number, len(line) + 1))
    at = 0
    while match := _TOKEN.match(line, at):
        at = match.end()
        start = match.start(match.lastgroup or 0)
        column, text = start + 1, match[match.lastgroup or 0]
        match match.lastgroup:
            case "number":
                found.append(_number(match, number, column, name))
            case "name":
                found.append(Token(Kind.NAME, text, number, column))
            case "variable":
                found.append(Token(Kind.VARIABLE, text, number, column))
            case "text":
                found.append(Token(Kind.TEXT, text[1:-1], number, column))
            case "sign":
                found.append(Token(Kind.SIGN, text, number, column))
    rest = line[at:].lstrip()
    if rest and not rest.startswith("//"):
        column = len(line) - len(rest) + 1
        if rest[0] == '"':
            raise ScriptError(name, number, column, "a text without its second quote")
        raise ScriptError(name, number, column, f"nothing begins with {rest[0]!r}")
    end = len(line.rstrip()) + 1 if not rest else len(line) - len(rest) + 1
    return (*found, Token(Kind.END, "", number, end))


def _number(match: re.Match[str], line: int, column: int, name: str) -> Token:
    digits, unit = match["digits"], match["unit"]
    text = match["number"]
    if len(digits) > _MOST_DIGITS:
        raise ScriptError(name, line, column, f"a number of {len(digits)} digits")
    if unit and unit not in _UNITS:
        reason = f"unit {unit!r}; expected {', '.join(_UNITS)}"
        raise ScriptError(name, line, column + len(digits), reason)
    if digits.lower().startswith("0x"):
        if len(digits) == 2:
            raise ScriptError(name, line, column, f"{text!r} is not a number")
        return Token(Kind.NUMBER, text, line, column, int(digits, 16))
    value = Fraction(digits) * (_UNITS[unit] if unit else 1)
    if value.denominator != 1:
        reason = f"{text} is not a whole number"
        reason += " of picoseconds" if unit else ': a time has a unit, a probability quotes, "0.5"'
        raise ScriptError(name, line, column, reason)
    return Token(Kind.NUMBER, text, line, column, int(value))


_MOST_DIGITS = 40
_UNITS = {"ps": 1, "ns": NS, "us": US, "ms": MS, "s": S}
_SECTION = re.compile(r"\s*(section|virtual|origin|reference|choice)(?!\S)\s*(.*?)\s*$")
_TOKEN = re.compile(
    r"""[ \t]*(?:
      (?P<number>(?P<digits>0[xX][0-9A-Fa-f]*|[0-9]+(?:\.[0-9]+)?)(?P<unit>[A-Za-z_]*))
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    | (?P<variable>\$[A-Za-z_][A-Za-z0-9_]*)
    | (?P<text>"[^"]*")
    | (?P<sign>>\?|\.\.|[<>{}(),|=+\-*?!^])
    )""",
    re.VERBOSE | re.ASCII,
)
