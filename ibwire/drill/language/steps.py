"""The steps of a script, one a line, after loops and tables are expanded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ibwire.drill.language.expressions import Expression, Value
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.tokens import Line, Token
from ibwire.drill.language.vocabulary import MANAGER_VERBS


@dataclass(frozen=True, slots=True)
class When:
    """From `low` to `high` after the step before; without `high`, until the end of the run."""

    low: Expression | None
    """`None` for +0."""
    high: Expression | None
    is_range: bool


@dataclass(frozen=True, slots=True)
class Inject:
    """The device receives a packet."""

    line: Line
    when: When
    literal: Literal
    owner: str = ""
    """The queue pair that it is for; empty for the first one."""


@dataclass(frozen=True, slots=True)
class Expect:
    """The device sends a packet that fits one of the alternatives.

    With `most`, up to that many, or none.
    """

    line: Line
    when: When
    alternatives: tuple[Literal, ...]
    most: Expression | None = None
    owner: str = ""
    """The queue pair that sends it; empty for the first one."""


@dataclass(frozen=True, slots=True)
class Unordered:
    """The device sends packets that fit these, in any order."""

    line: Line
    when: When
    members: tuple[Expect, ...]


@dataclass(frozen=True, slots=True)
class Silence:
    """The device sends nothing for a time."""

    line: Line
    when: When


@dataclass(frozen=True, slots=True)
class Anything:
    """Whatever the device sends, completes and raises within a time is taken, and not judged."""

    line: Line
    when: When


@dataclass(frozen=True, slots=True)
class Verb:
    """The application of the device does or checks something."""

    line: Line
    when: When
    token: Token
    """Its name."""
    word: Token | None
    """The word after the name, without `=`: an opcode, a queue, a state, a region."""
    address: Expression | None
    """Address in memory, for verbs that have one."""
    args: Mapping[str, tuple[Token, Value]]
    data: bytes | None
    owner: str = ""
    """The queue pair that it is about; empty for the first one."""


Words = Value | tuple[Token, ...]
"""Numbers or names."""


@dataclass(frozen=True, slots=True)
class Impair:
    """From here on packets in one direction are impaired."""

    line: Line
    when: When
    way: str
    """`<` or `>`."""
    action: Token
    args: Mapping[str, tuple[Token, Words]]


Step = Inject | Expect | Unordered | Silence | Anything | Verb | Impair


def is_about_management(steps: Sequence[Step]) -> bool:
    """Whether a script has messages of connection management, or commands of the manager."""
    return any(_is_about_management(step) for step in steps)


def _is_about_management(step: Step) -> bool:
    match step:
        case Inject():
            return step.literal.form is not None
        case Expect():
            return any(literal.form is not None for literal in step.alternatives)
        case Unordered():
            return is_about_management(step.members)
        case Verb():
            return step.token.text in (*MANAGER_VERBS, "cm_event")
    return False


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
    """The comment at its top: the rule that it tests."""
    section: str
    """The section that specifies the rule."""
    virtual: str
    """Why it runs in virtual time only; empty if it can run on a link, too."""
    tolerance: Expression | None
    """How much later or earlier than its time a packet may come."""
    cases: tuple[Case, ...]
    origin: str = ""
    """Where it comes from."""
    reference: str = ""
    """The profile whose device it describes, if a program wrote it."""
    choices: tuple[str, ...] = ()
    """What that device does otherwise than its profile: `FIELD=VALUE`."""
