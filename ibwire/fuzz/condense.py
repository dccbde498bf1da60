"""A case of many connections with only those that it needs, found in few trials.

What leaks from one connection to the next shows after hundreds of steps, and to try them
one by one would take minutes. Whole connections go first, then all steps of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ibwire.fuzz.case import Case, Connect, Connection, Mad, Packet, Step

Thing = TypeVar("Thing")

Part = tuple[Connection, Sequence[Step]]
"""A connection and what is done with it."""

Holds = Callable[[Sequence[Part]], bool]
"""Whether the case still shows what it shall, with these connections before the last one."""


def condensed(case: Case, shows: Callable[[Case], bool]) -> Case:
    """The case with fewer connections, and with less that differs between them."""
    *others, last = _parts(case)

    def holds(parts: Sequence[Part]) -> bool:
        return shows(_whole(case, [*parts, last]))

    others = _fewest_last(others, holds)
    if others:
        others = _bare(others, holds) or _of_few_kinds(others, holds)
        others = _alike(others, holds)
        others = _repeated(others, last[0], holds)
        others = _without_groups(others, holds)
    return _whole(case, [*others, last])


def joined(history: Sequence[Case], case: Case) -> Case:
    """One case of all cases that were carried out on a pair of devices."""
    first, *others = [*history, case]
    steps = list(first.steps)
    for other in others:
        steps += [Connect(other.connection), *other.steps]
    return replace(case, connection=first.connection, steps=tuple(steps))


def _parts(case: Case) -> list[Part]:
    found: list[tuple[Connection, list[Step]]] = [(case.connection, [])]
    for step in case.steps:
        if isinstance(step, Connect):
            found.append((step.connection, []))
        else:
            found[-1][1].append(step)
    return list(found)


def _whole(case: Case, parts: Sequence[Part]) -> Case:
    (first, steps), *others = parts
    steps = [*steps]
    for connection, more in others:
        steps += [Connect(connection), *more]
    return replace(case, connection=first, steps=tuple(steps))


def _fewest_last(things: list[Thing], holds: Callable[[list[Thing]], bool]) -> list[Thing]:
    """As many of the last ones as it takes, if more of them never show less."""
    low, high = 0, len(things)
    while low < high:
        middle = (low + high) // 2
        if holds(things[len(things) - middle :]):
            high = middle
        else:
            low = middle + 1
    return things[len(things) - high :]


def _bare(parts: list[Part], holds: Holds) -> list[Part]:
    """Connections with which nothing is done; none if those do not show it."""
    bare: list[Part] = [(connection, ()) for connection, _ in parts]
    return _fewest_last(bare, holds) if holds(bare) else []


def _of_few_kinds(parts: list[Part], holds: Holds) -> list[Part]:
    """Only those kinds of steps that it takes, on one connection if that will do."""
    for kind in dict.fromkeys(_kind(step) for _, steps in parts for step in steps):
        fewer: list[Part] = [
            (connection, [step for step in steps if _kind(step) != kind])
            for connection, steps in parts
        ]
        if holds(fewer):
            parts = fewer
    busy = [part for part in parts if part[1]]
    if busy and holds(busy):
        parts = busy
    together: list[Part] = [(parts[0][0], [step for _, steps in parts for step in steps])]
    return together if holds(together) else parts


def _alike(parts: list[Part], holds: Holds) -> list[Part]:
    """The usual connection each time, and the same step for all of a kind."""
    plain: list[Part] = [(Connection(), steps) for _, steps in parts]
    if holds(plain):
        parts = plain
    for kind in dict.fromkeys(_kind(step) for _, steps in parts for step in steps):
        model = next(step for _, steps in parts for step in steps if _kind(step) == kind)
        alike: list[Part] = [
            (connection, [model if _kind(step) == kind else step for step in steps])
            for connection, steps in parts
        ]
        if holds(alike):
            parts = alike
    return parts


def _repeated(parts: list[Part], last: Connection, holds: Holds) -> list[Part]:
    """The same step again and again, if that will do, on a connection like the last one or not."""
    models = {_kind(step): (connection, step) for connection, steps in parts for step in steps}
    count = sum(len(steps) for _, steps in parts)
    for own, model in models.values():
        for connection in dict.fromkeys((last, own)):

            def does(steps: list[Step], connection: Connection = connection) -> bool:
                return holds([(connection, steps)])

            if does([model] * count):
                return [(connection, _fewest_last([model] * count, does))]
    return parts


def _without_groups(parts: list[Part], holds: Holds) -> list[Part]:
    """Without any group of connections, ever smaller ones."""
    size = len(parts)
    while size := size // 2:
        at = 0
        while at + size <= len(parts):
            fewer = parts[:at] + parts[at + size :]
            if holds(fewer):
                parts = fewer
            else:
                at += size
    return parts


def _kind(step: Step) -> object:
    if isinstance(step, Mad):
        return step.message
    return step.opcode if isinstance(step, Packet) else type(step)
