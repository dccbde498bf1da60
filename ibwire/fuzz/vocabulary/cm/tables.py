"""What differs in a connection manager or in what it reports, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ibwire.cm.states import EventKind, State
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import verdict
from ibwire.fuzz.targets.emulated_manager import EVENT

MAXIMUM_DIGITS = 18
"""Of a number, as far as it is shown."""


def tables_text(expected: Sequence[object], got: Sequence[object]) -> tuple[list[str], list[str]]:
    """The entries of the tables of two managers that differ, with their names.

    expected, got: as `Management.events` has them.
    """
    ours, theirs = _entries(expected), _entries(got)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return [f"{name}: {ours.get(name, 'none')}" for name in names], [
        f"{name}: {theirs.get(name, 'none')}" for name in names
    ]


def _entries(tables: Sequence[object]) -> dict[str, str]:
    """The entries of the tables by their names; states only together with their number."""
    at = len(_TABLES)
    entries = dict(zip(_TABLES, map(_count_text, tables[:at]), strict=False))
    entries["states"] = ", ".join(_states(tables))
    return entries


def states_in(tables: Sequence[object]) -> list[str]:
    """Those of the connections."""
    return [State(each).name for each in tables[len(_TABLES) :] if isinstance(each, int)]


def _states(tables: Sequence[object]) -> list[str]:
    """Those of the connections, or that there is none."""
    return states_in(tables) or ["no connection"]


def _count_text(count: object) -> str:
    return "nobody listens" if count == -1 else str(count)


def difference_text(difference: Difference) -> str:
    """What a manager does otherwise, which is neither a crash nor another message."""
    if difference.kind is Kind.EVENT:
        return _first_difference(difference.expected, difference.got)
    if difference.kind is Kind.COMPLETION:
        return _events_text(difference.expected, difference.got)
    if difference.kind is Kind.TIME:
        return _times_text(difference)
    return "other bytes in memory"


def _first_difference(expected: Sequence[object], got: Sequence[object]) -> str:
    """The first entry of the tables that differs."""
    ours, theirs = _entries(expected), _entries(got)
    name = next((each for each in ours if ours[each] != theirs.get(each)), "")
    due, seen = ours.get(name), theirs.get(name)
    if name in _TABLES:
        return f"another number of {name} ({seen} instead of {due})"
    return f"state {', '.join(_states(got))} instead of {', '.join(_states(expected))}"


def _events_text(expected: Sequence[object], got: Sequence[object]) -> str:
    """The events that the application gets, where they differ."""
    ours, theirs = (", ".join(map(_event_name, each)) or "nothing" for each in (expected, got))
    if ours != theirs:
        return f"it reports {theirs} instead of {ours}"
    if Counter(expected) == Counter(got):
        names = ", ".join(dict.fromkeys(map(_event_name, got)))
        return f"it reports {names} for the connections in another order"
    wrong = [
        name
        for one, other in zip(expected, got, strict=True)
        if isinstance(one, tuple) and isinstance(other, tuple)
        for name, part, seen in zip(_PARTS, one, other, strict=False)
        if part != seen
    ]
    return f"it reports {theirs} with another {' and '.join(dict.fromkeys(wrong))}"


def unequal_parts(expected: object, got: object) -> tuple[str, str]:
    """The parts in which two events differ, in words after each of them."""
    assert isinstance(expected, tuple)
    assert isinstance(got, tuple)
    triples = zip(_PARTS, expected, got, strict=False)
    wrong = [(name, one, other) for name, one, other in triples if one != other]
    return (
        "".join(f" {name}={_number(one)}" for name, one, _ in wrong),
        "".join(f" {name}={_number(other)}" for name, _, other in wrong),
    )


def _number(value: int) -> str:
    """A number; of long data the first eight bytes behind leading zeros, and how many there are."""
    text = f"{value:#x}"
    if len(text) <= MAXIMUM_DIGITS:
        return text
    size = (value.bit_length() + 7) // 8
    return f"{value >> 8 * (size - 8):#018x}... ({size} bytes behind leading zeros)"


def _event_name(thing: object) -> str:
    is_event = isinstance(thing, tuple) and thing[0] == EVENT
    return EventKind(thing[1]).name if is_event and isinstance(thing, tuple) else "a completion"


def _times_text(difference: Difference) -> str:
    """Which message comes too early or too late."""
    times = zip(difference.expected, difference.got, difference.frames, strict=False)
    for due, when, frame in times:
        if isinstance(due, int) and isinstance(when, int) and due != when:
            return f"it sends {verdict(frame)} too {'early' if when < due else 'late'}"
    return "it sends at other times"


_TABLES = (
    "exchanges",
    "queue pairs of connections",
    "queue pairs of the device",
    "requests that wait for a decision",
)
"""What the first numbers of `Management.events` count with a `CommandedConsumer`."""

_PARTS = ("queue", "kind", "ID", "reason", "private data", "additional information")
"""Those of an event."""
