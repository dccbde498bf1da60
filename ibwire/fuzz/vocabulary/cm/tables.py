"""What differs in a connection manager or in what it reports, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ibwire.cm.states import EventKind, State
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import verdict
from ibwire.fuzz.targets.emulated_manager import (
    BEFORE_TABLES,
    EVENT,
    RECEIVING,
    SENDING,
    bytes_of_number,
)
from ibwire.rc.attributes import EventType

SHOWN_DATA = 8
"""Bytes of data."""


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
    """The entries of the tables by their names, behind the events that were raised before them;
    states only together with their number.
    """
    raised, tables = _events_and_tables(tables)
    entries = {"events": ", ".join(EventType(each).name for each in raised)} if raised else {}
    entries |= dict(zip(_TABLES, map(_count_text, tables), strict=False))
    for each in tables:
        if isinstance(each, tuple):
            number, *values = each
            for name, value in zip((*RECEIVING, *SENDING), values, strict=False):
                entries[f"{name}{_OF_QUEUE_PAIR}{number:#x}"] = str(value)
    entries["states"] = ", ".join(_states(tables))
    return entries


def states_in(tables: Sequence[object]) -> list[str]:
    """Those of the connections."""
    _, tables = _events_and_tables(tables)
    return [State(each).name for each in tables[len(_TABLES) :] if isinstance(each, int)]


def _events_and_tables(things: Sequence[object]) -> tuple[list[int], Sequence[object]]:
    """The events of the device, which come first if there are any, and the tables."""
    if BEFORE_TABLES not in things:
        return [], things
    at = things.index(BEFORE_TABLES)
    return [each for each in things[:at] if isinstance(each, int)], things[at + 1 :]


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
    name = next((each for each in {**ours, **theirs} if ours.get(each) != theirs.get(each)), "")
    due, seen = ours.get(name), theirs.get(name)
    if attribute := other_attribute(expected, got):
        return f"the queue pair gets another {attribute} ({seen} instead of {due})"
    if _OF_QUEUE_PAIR in name and _states(expected) == _states(got):
        return "a queue pair is in another state"
    if name == "events":
        return f"event {seen or 'none'} instead of {due or 'none'}"
    states = states_in(expected), states_in(got)
    if name in _TABLES and states[0] == states[1]:
        return f"another number of {name} ({seen} instead of {due})"
    return _states_text(*states)


def _states_text(expected: Sequence[str], got: Sequence[str]) -> str:
    """The states of connections, where they are other ones."""
    ours, theirs = ", ".join(expected), ", ".join(got)
    if ours and theirs:
        return f"state {theirs} instead of {ours}"
    return f"no connection instead of {ours}" if ours else f"{theirs} instead of no connection"


def other_attribute(expected: Sequence[object], got: Sequence[object]) -> str:
    """The attribute of a queue pair that differs, if no entry before it does."""
    ours, theirs = _entries(expected), _entries(got)
    name = next((each for each in ours if ours[each] != theirs.get(each)), "")
    attribute, of, _ = name.partition(_OF_QUEUE_PAIR)
    return attribute if of and name in theirs else ""


def _events_text(expected: Sequence[object], got: Sequence[object]) -> str:
    """The events that the application gets, where they differ."""
    ours, theirs = (", ".join(map(_event_name, each)) or "nothing" for each in (expected, got))
    if ours != theirs:
        return f"it reports {theirs} instead of {ours}"
    if Counter(expected) == Counter(got):
        names = ", ".join(dict.fromkeys(map(_event_name, got)))
        return f"it reports {names} for the connections in another order"
    wrong = wrong_parts(expected, got)
    others = [name for name in wrong if name not in _DATA]
    phrases = [f"with another {' and '.join(others)}"] * bool(others)
    for name, (due, seen) in wrong.items():
        if name not in _DATA:
            continue
        if due and seen:
            phrases.append(f"with other {name}")
        else:
            phrases.append(f"with {name} instead of none" if seen else f"without the {name}")
    return f"it reports {theirs} {' and '.join(phrases)}"


def wrong_parts(
    expected: Sequence[object], got: Sequence[object]
) -> Mapping[str, tuple[object, object]]:
    """The parts in which events of the same kinds differ, each with its first two values."""
    found: dict[str, tuple[object, object]] = {}
    for one, other in zip(expected, got, strict=False):
        if isinstance(one, tuple) and isinstance(other, tuple):
            for name, part, seen in zip(_PARTS, one, other, strict=False):
                if part != seen:
                    found.setdefault(name, (part, seen))
    return found


def is_other_data(difference: Difference) -> bool:
    """Whether events differ in their data alone."""
    if difference.kind is not Kind.COMPLETION:
        return False
    parts = wrong_parts(difference.expected, difference.got)
    return bool(parts) and parts.keys() <= set(_DATA)


def events_with_other_parts(difference: Difference) -> str:
    """The kinds of events that differ in their parts alone, with these; empty for other ones."""
    if difference.kind is not Kind.COMPLETION:
        return ""
    names = [[*map(_event_name, each)] for each in (difference.expected, difference.got)]
    parts = wrong_parts(difference.expected, difference.got)
    pairs = zip(names[0], difference.expected, difference.got, strict=False)
    kinds = dict.fromkeys(name for name, one, other in pairs if one != other)
    return f"{' and '.join(parts)} of {', '.join(kinds)}" if names[0] == names[1] else ""


def unequal_parts(expected: object, got: object) -> tuple[str, str]:
    """The parts in which two events differ, in words after each of them."""
    words = "", ""
    for name, values in wrong_parts([expected], [got]).items():
        one, other = (each for each in values if isinstance(each, int))
        if name in _DATA:
            texts = data_texts(bytes_of_number(one), bytes_of_number(other))
            words = f"{words[0]}, {name}: {texts[0]}", f"{words[1]}, {name}: {texts[1]}"
        else:
            words = f"{words[0]} {name}={one:#x}", f"{words[1]} {name}={other:#x}"
    return words


def data_texts(one: bytes, other: bytes) -> tuple[str, str]:
    """Two different data in words: how many bytes, and some, from the first that differs."""
    pairs = enumerate(zip(one, other, strict=False))
    first = next((at for at, (ours, theirs) in pairs if ours != theirs), 0)
    return _data_text(one, first), _data_text(other, first)


def _data_text(data: bytes, first: int) -> str:
    if not data:
        return "none"
    shown = data[first : first + SHOWN_DATA]
    more = "..." if first + len(shown) < len(data) else ""
    return f"{len(data)} bytes{f', from byte {first}:' * bool(first)} {shown.hex(' ')}{more}"


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


_OF_QUEUE_PAIR = " of the queue pair of connection "
_TABLES = (
    "exchanges",
    "queue pairs of connections",
    "queue pairs of the device",
    "requests that wait for a decision",
)
"""What the first numbers of `Management.events` count with a `CommandedConsumer`."""

_PARTS = ("queue", "kind", "ID", "reason", "private data", "additional information")
"""Those of an event."""

_DATA = ("private data", "additional information")
"""Of these the ones that are bytes."""
