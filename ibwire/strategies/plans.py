"""Fault plans: lists of rules, as read from TOML, for the frames of one direction."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import strategies as st

from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, NS, US, Time
from ibwire.impair import Region
from ibwire.impair.stages import Repair
from ibwire.strategies.psn import psns
from ibwire_layers import headers as h
from ibwire_layers.opcodes import EXTENSION_HEADERS, OpCode, Operation
from ibwire_layers.outer import UDP, VLAN, Ethernet, IPv4, IPv6
from ibwire_layers.schema import Header
from ibwire_layers.syndrome import AckKind, NakCode

Rule = dict[str, Any]

NETWORK_ACTIONS = ("drop", "loss", "corrupt", "duplicate", "reorder", "delay", "mark_ecn")
"""Faults of a network: they damage frames, but forge none."""

ANSWERS = ("cnp", "nak", "pfc")
"""Actions of a tap only: they send frames in the other direction."""

ACTIONS = (*NETWORK_ACTIONS, "rewrite", *ANSWERS)

LONGEST: Time = 10 * MS
"""Maximum delay of a frame by one rule."""


def fault_plans(
    *,
    actions: Collection[str] = (*NETWORK_ACTIONS, "rewrite"),
    max_rules: int = 4,
    max_hits: int | None = None,
) -> st.SearchStrategy[list[Rule]]:
    """Any plan that `ibwire.impair.build_pipe` accepts, as in scenarios and for the tap.

    actions: allowed actions; those that answer frames (cnp, nak, pfc) only if given.
    max_rules: maximum number of rules. max_hits: maximum number of frames that a rule matches;
    `None` for no limit, so that a plan may lose every frame. Raises `EncodeError` for an unknown
    action.
    """
    for action in actions:
        if action not in ACTIONS:
            raise EncodeError("actions", action, f"one of {', '.join(ACTIONS)}")
    rules = st.one_of([_rules(action, max_hits) for action in actions])
    return st.lists(rules, max_size=max_rules)


@st.composite
def _rules(draw: st.DrawFn, action: str, max_hits: int | None) -> Rule:
    short = _SHORT.get(action)
    if max_hits is None and short is not None and draw(st.booleans()):
        return {action: draw(short)}
    table = draw(_options(action)) | draw(_conditions())
    if max_hits is not None:
        for key in ("burst", "nth", "every"):
            table.pop(key, None)
        table |= draw(_limits(max_hits))
    return {action: table}


def _limits(max_hits: int) -> st.SearchStrategy[dict[str, Any]]:
    """Conditions that limit a rule to a number of early frames."""
    nth = st.lists(st.integers(1, 30), min_size=1, max_size=max_hits, unique=True)
    burst = st.fixed_dictionaries(
        {"count": st.integers(1, max_hits)}, optional={"first": st.integers(1, 30)}
    )
    return st.builds(lambda numbers: {"nth": numbers}, nth) | st.builds(
        lambda table: {"burst": table}, burst
    )


@st.composite
def _conditions(draw: st.DrawFn) -> dict[str, Any]:
    """A few conditions, each of which a frame can meet."""
    chosen = draw(st.sets(st.sampled_from(list(_CONDITIONS)), max_size=3))
    found: dict[str, Any] = {}
    for key in _CONDITIONS:
        if key in chosen:
            found |= draw(_CONDITIONS[key])
    return found


@st.composite
def _options(draw: st.DrawFn, action: str) -> dict[str, Any]:
    required, optional = _OPTIONS.get(action, ({}, {}))
    options: dict[str, Any] = draw(st.fixed_dictionaries(required, optional=optional))
    if action == "delay" and not options:
        options["time"] = draw(_durations())
    if action == "nak" and "timer" in options:
        options["code"] = "RNR_NAK"
    return options


def _durations(longest: Time = LONGEST) -> st.SearchStrategy[str]:
    """Times with a unit, with and without a fraction."""
    whole = st.one_of(
        [
            st.integers(0, longest // size).map(f"{{}}{unit}".format)
            for unit, size in (("ns", NS), ("us", US), ("ms", MS))
        ]
    )
    broken = st.integers(0, longest // NS).map(lambda ns: f"{ns // 1000}.{ns % 1000:03} us")
    return whole | broken


def _one_or_several(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return one | st.lists(one, min_size=1, max_size=3)


@st.composite
def _sizes(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted(draw(st.tuples(*[st.integers(0, 4200)] * 2)))
    smallest, largest = {"min_size": low}, {"max_size": high}
    sizes: dict[str, Any] = draw(st.sampled_from([smallest, largest, smallest | largest]))
    return sizes


@st.composite
def _spans(draw: st.DrawFn) -> dict[str, Any]:
    start, length = draw(st.integers(0, 1000)), draw(st.integers(1, 1000))
    first, last = {"after": f"{start}us"}, {"before": f"{start + length}us"}
    span: dict[str, Any] = draw(st.sampled_from([first, last, first | last]))
    return span


@st.composite
def _bursts(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 10))
    more = st.fixed_dictionaries(
        {}, optional={"first": st.integers(1, 100), "period": st.integers(count, 200)}
    )
    return {"burst": {"count": count} | draw(more)}


@st.composite
def _rewrites(draw: st.DrawFn) -> dict[str, Any]:
    """Fields with new values, as dotted keys or as tables of tables."""
    chosen = draw(st.lists(st.sampled_from(_FIELDS), min_size=1, max_size=3, unique=True))
    nested = draw(st.booleans())
    table: dict[str, Any] = {}
    for kind, name, width in chosen:
        value = draw(st.integers(0, (1 << width) - 1))
        if nested:
            table.setdefault(kind, {})[name] = value
        else:
            table[f"{kind}.{name}"] = value
    return table


_probabilities = st.floats(0, 1) | st.integers(0, 1)

_SHORT: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("drop", "loss", "corrupt", "duplicate", "reorder"), _probabilities),
    **dict.fromkeys(("mark_ecn", "cnp", "nak"), _probabilities),
    "delay": _durations(),
}
"""The nested tables of a dotted key."""

_Options = dict[str, st.SearchStrategy[Any]]

_marks: _Options = {"to_qp": psns(), "dscp": st.integers(0, 63)}

_OPTIONS: dict[str, tuple[_Options, _Options]] = {
    "corrupt": ({}, {"bits": st.integers(1, 9), "where": st.sampled_from([*map(str, Region)])}),
    "duplicate": ({}, {"copies": st.integers(1, 4), "delay": _durations()}),
    "reorder": ({}, {"by": st.integers(1, 6), "max_delay": _durations()}),
    "delay": ({}, {"time": _durations(), "jitter": _durations()}),
    "mark_ecn": ({}, {"force": st.booleans()}),
    "rewrite": ({"set": _rewrites()}, {"repair": st.sampled_from([*map(str, Repair)])}),
    "cnp": ({}, _marks),
    "nak": (
        {},
        _marks
        | {"code": st.sampled_from([each.name for each in NakCode]), "timer": st.integers(0, 31)},
    ),
    "pfc": (
        {"priorities": _one_or_several(st.integers(0, 7))},
        {"quanta": st.integers(0, 0xFFFF)},
    ),
}
"""By action: required and optional keys besides the conditions."""

_opcodes = st.sampled_from(
    [
        "request",
        "response",
        *(each.name for each in Operation),
        *(each.name for each in OpCode),
    ]
) | st.integers(0, 255)

_syndromes = st.sampled_from([each.name for each in (*AckKind, *NakCode)])


def _named(key: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return values.map(lambda value: {key: value})


_CONDITIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "opcode": _named("opcode", _one_or_several(_opcodes)),
    "dest_qp": _named("dest_qp", _one_or_several(psns())),
    "connection": _named("connection", _one_or_several(st.integers(1, 4))),
    "psn": _named("psn", _one_or_several(st.integers(0, 40) | psns())),
    "absolute_psn": _named("absolute_psn", _one_or_several(psns())),
    "syndrome": _named("syndrome", _one_or_several(_syndromes)),
    "sizes": _sizes(),
    "span": _spans(),
    "nth": _named("nth", _one_or_several(st.integers(1, 30))),
    "every": _named("every", st.integers(1, 30)),
    "burst": _bursts(),
    "probability": _named("probability", _probabilities),
}
"""In the order of evaluation."""

_HEADERS: tuple[type[Header], ...] = (
    Ethernet, VLAN, IPv4, IPv6, UDP, h.LRH, h.GRH, h.BTH, *EXTENSION_HEADERS,
)  # fmt: skip

_FIELDS = [
    (kind.__name__.lower(), field.name, field.width)
    for kind in _HEADERS
    for field in kind.FIELDS
    if not field.is_octets and not field.is_array
]
