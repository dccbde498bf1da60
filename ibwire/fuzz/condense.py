"""A case of several connections: what is done with each, and many cases as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ibwire.fuzz.case import Case, Connect, Connection, Step

Part = tuple[Connection, Sequence[Step]]
"""A connection and what is done with it."""


def joined(history: Sequence[Case], case: Case) -> Case:
    """One case of all cases that were carried out on a pair of devices."""
    first, *others = [*history, case]
    steps = list(first.steps)
    for other in others:
        steps += [Connect(other.connection), *other.steps]
    return replace(case, connection=first.connection, steps=tuple(steps))


def parts_of_case(case: Case) -> list[Part]:
    """Its connections, with what is done with each."""
    found: list[tuple[Connection, list[Step]]] = [(case.connection, [])]
    for step in case.steps:
        if isinstance(step, Connect):
            found.append((step.connection, []))
        else:
            found[-1][1].append(step)
    return list(found)


def last_part(case: Case) -> Case:
    """The case with only its last connection."""
    connection, steps = parts_of_case(case)[-1]
    return replace(case, connection=connection, steps=tuple(steps))


def whole_case(case: Case, parts: Sequence[Part]) -> Case:
    """The case with these connections."""
    (first, steps), *others = parts
    steps = [*steps]
    for connection, more in others:
        steps += [Connect(connection), *more]
    return replace(case, connection=first, steps=tuple(steps))
