"""What a script does, one step a line, when all its loops and tables are laid out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ibwire.drill.language.expressions import Expression, Value
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.tokens import Line, Token


@dataclass(frozen=True, slots=True)
class When:
    """From `low` to `high` after the step before; a `high` that is missing is for ever."""

    low: Expression | None
    """`None` for +0."""
    high: Expression | None
    is_range: bool


@dataclass(frozen=True, slots=True)
class Say:
    """The device receives a packet."""

    line: Line
    when: When
    literal: Literal


@dataclass(frozen=True, slots=True)
class Hear:
    """The device sends a packet that fits one of the alternatives.

    With `most`, up to so many, and it may send none.
    """

    line: Line
    when: When
    alternatives: tuple[Literal, ...]
    most: Expression | None = None


@dataclass(frozen=True, slots=True)
class Unordered:
    """The device sends packets that fit these, in any order."""

    line: Line
    when: When
    members: tuple[Hear, ...]


@dataclass(frozen=True, slots=True)
class Silence:
    """The device sends nothing for so long."""

    line: Line
    when: When


@dataclass(frozen=True, slots=True)
class Verb:
    """The application of the device does or finds something."""

    line: Line
    when: When
    token: Token
    """Its name."""
    word: Token | None
    """What follows the name without `=`: an opcode, a queue, a state, a region."""
    address: Expression | None
    """Where in memory, for those that say it."""
    args: Mapping[str, tuple[Token, Value]]
    data: bytes | None


Words = Value | tuple[Token, ...]
"""Numbers or names."""


@dataclass(frozen=True, slots=True)
class Impair:
    """From here on packets that go one way are damaged."""

    line: Line
    when: When
    way: str
    """`<` or `>`."""
    action: Token
    args: Mapping[str, tuple[Token, Words]]


Step = Say | Hear | Unordered | Silence | Verb | Impair


@dataclass(frozen=True, slots=True)
class Case:
    """A script with one row of its table."""

    name: str
    """Empty in a script without a table."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A script for one profile."""

    path: str
    rule: str
    """The comment at its top: what it shows."""
    section: str
    """Where that is specified."""
    virtual: str
    """Why it can be carried out in virtual time only; empty if it can on a link, too."""
    tolerance: Expression | None
    """How much later or earlier than said a packet may come."""
    cases: tuple[Case, ...]
