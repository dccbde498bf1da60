"""Reads the switches of a scenario: `[topology]`, `[[switch]]` with its buffer and classes.

The reference of the language is docs/scenarios.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from fractions import Fraction

from ibwire.base.errors import EncodeError
from ibwire.base.toml import Table, hint, shown
from ibwire.base.units import ETHERNET_OVERHEAD, GBPS, MS, US, S, Time
from ibwire.fabric import topology as forms
from ibwire.fabric.pause import LANES
from ibwire.fabric.switch import Account, BufferTooSmall, PriorityRules, SharedBuffer, Strategy
from ibwire.fabric.switch.buffer import LARGEST_ALPHA, LEAST_ALPHA
from ibwire.fabric.switch.classes import DSCPS, Remark, Trust
from ibwire.fabric.switch.routing import MAXIMUM_WEIGHT
from ibwire.fabric.switch.watchdog import Action, Watchdog
from ibwire.fabric.topology import Link, Topology
from ibwire.scenario.specs import CableSpec, ClassSpec, EcnSpec, SwitchSpec

MAXIMUM_HOSTS = 4096
MAXIMUM_LINKS = 1 << 15

MAXIMUM_PORTS = 64
"""Of a host."""

MAXIMUM_RATE = 10_000 * GBPS

MAXIMUM_LATENCY = 1 * MS
MAXIMUM_METRES = 100_000

_PAUSES = ("pfc", "802.3x")
"""Names of the frames that stop a sender: for a priority, for the whole port."""

PFC_FRAME = 64
"""Bytes of a PFC frame with FCS."""


def read_topology(table: Table) -> Topology:
    """The network of a `[topology]`."""
    kind = str(table.take_name("kind", "star", _FORMS))
    make, counts, optional = _FORMS[kind]
    given: dict[str, int | None] = {}
    for key in counts:
        given[key] = table.take_int(key, None, 1, MAXIMUM_HOSTS)
        if given[key] is None:
            raise table.error(None, f"{key} is missing: a {kind} has {' and '.join(counts)}")
    for key in optional:
        if key == "spines":
            given[key] = table.take_int(key, 0, 0, MAXIMUM_HOSTS)
        elif key in table:
            given[optional[key]] = take_rate(table, key, 100 * GBPS)
    ports, multihomed = _ports(table, kind)
    _check_size(table, kind, given, ports or 1)
    rate, delay = take_rate(table, "rate", 100 * GBPS), table.take_time("delay", 1 * US)
    try:
        made = make(rate_bps=rate, delay=delay, **given)
        return forms.with_ports(made, ports, multihomed=multihomed) if ports else made
    except EncodeError as error:
        raise table.error(
            error.field if error.field in (*counts, "ports") else None,
            str(error).removeprefix(f"{error.field}: "),
        ) from None


def _ports(table: Table, kind: str) -> tuple[int | None, bool]:
    """The ports of each host, and whether they are at different switches."""
    ports = table.take_int("ports", None, 1, MAXIMUM_PORTS)
    if ports is None:
        if "multihomed" in table:
            raise table.error("multihomed", "needs ports: how many each host has")
        table.take("multihomed")
    elif kind == "rail-optimised":
        raise table.error("ports", "a server of rail-optimised has one port for each of its rails")
    return ports, table.take_bool("multihomed", False)


def _check_size(table: Table, kind: str, given: Mapping[str, int | None], ports: int) -> None:
    """Refuse a network that is too large before it is made."""
    count = {key: value or 0 for key, value in given.items()}
    links = {
        "leaf-spine": lambda: count["leaves"] * (count["hosts"] + count["spines"]),
        "fat-tree": lambda: 3 * count["k"] ** 3 // 4,
        "rail-optimised": lambda: count["rails"] * (count["servers"] + count["spines"]),
    }.get(kind, lambda: 3 * sum(count[key] for key in _FORMS[kind][1]))()
    links *= ports
    if links > MAXIMUM_LINKS:
        raise table.error(None, f"{links:,} links, at most {MAXIMUM_LINKS:,} are possible")


def take_rate(table: Table, key: str, default: int) -> int:
    """The rate of a line."""
    rate = table.take_rate(key, default)
    if rate > MAXIMUM_RATE:
        raise table.error(key, f"more than {MAXIMUM_RATE // 10**12} Tb/s")
    return rate


def read_switches(
    tables: Sequence[Table], names: Iterable[str] | None
) -> tuple[SwitchSpec, dict[str, SwitchSpec]]:
    """The settings of switches that have no others, and those of each switch.

    names: of the switches of a topology; `None` where each `[[switch]]` with a name is one.
    """
    base = SwitchSpec(buffer=16 << 20, classes=DEFAULT_CLASSES)
    found: dict[str, SwitchSpec] = {} if names is None else dict.fromkeys(names, base)
    seen: set[str] = set()
    for table in tables:
        name = table.take_text("name", None)
        if name is None:
            if seen:
                raise table.error(None, "a [[switch]] without a name must precede those with one")
            seen.add("*")
            base = _switch(table, base)
            found = dict.fromkeys(found, base)
            continue
        if name in seen:
            raise table.error("name", f"{name!r} is the name of another [[switch]]")
        seen.add(name)
        chosen = [name] if names is None else [each for each in found if fnmatchcase(each, name)]
        if not chosen:
            raise table.error("name", f"no switch is called {shown(name)}{hint(name, found)}")
        own = _switch(table, found.get(chosen[0], base))
        found |= dict.fromkeys(chosen, own)
    return base, found


def _switch(table: Table, base: SwitchSpec) -> SwitchSpec:
    """A switch with the keys of a table, and those of `base` where it has none."""
    buffer = base.buffer
    inside = table.table("buffer") if _is_table(table, "buffer") else None
    if inside is None:
        buffer = table.take_size("buffer", buffer, 1, 1 << 40)
    shared: dict[str, object] = {}
    if inside is not None:
        buffer = inside.take_size("size", buffer, 1, 1 << 40)
        _take_buffer_keys(inside, shared)
        inside.end()
    classes = tuple(
        replace(each, **shared) if each.is_lossless else each  # type: ignore[arg-type]
        for each in base.classes
    )
    strategy = Strategy(
        table.take_name("routing", base.strategy.value, [each.value for each in Strategy])
    )
    spec = SwitchSpec(
        buffer=buffer,
        classes=_classes(table.table("class"), classes),
        pauses_port=table.take_name("pause", _PAUSES[base.pauses_port], _PAUSES) == _PAUSES[True],
        trust=Trust(table.take_name("trust", base.trust.value, [each.value for each in Trust])),
        strategy=strategy,
        routes=_routes(table.table("route"), base.routes),
        watchdog=_watchdog(table, base.watchdog),
        latency=table.take_time("latency", base.latency),
        is_cut_through=table.take_bool("cut_through", base.is_cut_through),
        path_weights=_path_weights(table.table("weights"), base.path_weights),
        flowlet_gap=_flowlet_gap(table, base.flowlet_gap, strategy),
    )
    if spec.latency > MAXIMUM_LATENCY:
        raise table.error("latency", f"more than {MAXIMUM_LATENCY // MS} ms")
    table.end()
    return spec


def _path_weights(table: Table | None, base: Mapping[str, int]) -> Mapping[str, int]:
    """Weights of neighbours."""
    if table is None:
        return base
    found = dict(base)
    for name in table.names():
        weight = table.take_int(name, None, 1, MAXIMUM_WEIGHT)
        assert weight is not None
        found[name] = weight
    return found


def _flowlet_gap(table: Table, base: Time, strategy: Strategy) -> Time:
    if "flowlet_gap" in table and strategy is not Strategy.FLOWLET:
        raise table.error("flowlet_gap", f'needs routing = "flowlet", not "{strategy}"')
    gap = table.take_time("flowlet_gap", base)
    if not gap:
        raise table.error("flowlet_gap", "expected a time above 0")
    return gap


def check_neighbours(
    tables: Sequence[Table], topology: Topology, switches: Mapping[str, SwitchSpec]
) -> None:
    """Refuse a weight of what is no neighbour of any switch with that weight."""
    for table in tables:
        inside = table.table("weights") if "weights" in table else None
        if inside is None:
            continue
        pattern = table.take_text("name", None) or "*"
        neighbours = {
            neighbour
            for name in switches
            if fnmatchcase(name, pattern)
            for _, neighbour in topology.ports(name)
        }
        for name in inside.names():
            if name not in neighbours:
                place = "any switch" if pattern == "*" else pattern
                raise inside.error(name, f"no neighbour of {place}{hint(name, neighbours)}")


def _watchdog(table: Table, base: Watchdog | None) -> Watchdog | None:
    """The PFC watchdog: false, true, or a table of its settings."""
    if not _is_table(table, "watchdog"):
        return (base or Watchdog()) if table.take_bool("watchdog", base is not None) else None
    inside = table.table("watchdog")
    assert inside is not None
    start = base or Watchdog()
    times = {
        key: inside.take_time(key, getattr(start, key))
        for key in ("detection_time", "restoration_time", "poll_interval")
    }
    for key, time in times.items():
        if not time:
            raise inside.error(key, "expected a time above 0")
    action = inside.take_name("action", start.action.value, [each.value for each in Action])
    inside.end()
    return Watchdog(action=Action(action), **times)


def _is_table(table: Table, key: str) -> bool:
    return isinstance(table.take(key), dict)


def _take_buffer_keys(table: Table, found: dict[str, object]) -> None:
    """How a port and class uses the buffer; the same keys in `[switch.buffer]` and of a class."""
    if "alpha" in table:
        found["alpha"] = _alpha(table, "alpha")
    if "reserve" in table:
        found["reserve"] = table.take_size("reserve", 0, 0, 1 << 40)
    if "headroom" in table:
        found["headroom"] = _taken_headroom(table)
    for key in ("alpha", "reserve", "headroom"):
        table.take(key)


def _taken_headroom(table: Table) -> int | CableSpec:
    """Bytes, or a table with the length of cables."""
    if not _is_table(table, "headroom"):
        return table.take_size("headroom", 0, 0, 1 << 40)
    inside = table.table("headroom")
    assert inside is not None
    if "cable" not in inside:
        raise inside.error(None, "cable is missing: the metres of cables at the ports")
    found = CableSpec(
        metres=inside.take_number("cable", 0, 0, MAXIMUM_METRES),
        mtu=inside.take_int("mtu", 9100, 64, 1 << 16),
        lossless_mtu=inside.take_int("lossless_mtu", 1024, 64, 1 << 16),
        small_packets=inside.take_int("small_packets", 100, 0, 100),
    )
    inside.end()
    return found


def _alpha(table: Table, key: str) -> Fraction:
    value = table.take(key)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        alpha = Fraction(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise table.error(key, f"{shown(value)} is not a number such as 8 or '1/8'") from None
    if not LEAST_ALPHA <= alpha <= LARGEST_ALPHA:
        raise table.error(key, f"{shown(value)} is not from 1/256 to 128")
    return alpha


def _classes(table: Table | None, base: tuple[ClassSpec, ...]) -> tuple[ClassSpec, ...]:
    if table is None:
        return base
    found = {each.name: each for each in base}
    for name in table.names():
        inside = table.table(name)
        assert inside is not None
        found[name] = _class(inside, name, found.get(name))
    by_priority: dict[int, str] = {}
    by_dscp: dict[int, str] = {}
    by_pcp: dict[int, str] = {}
    for each in found.values():
        other = by_priority.setdefault(each.priority, each.name)
        if other != each.name:
            raise table.error(
                each.name if each.name in table else other,
                f"priority {each.priority} is that of class {other} and of class {each.name}",
            )
        for dscp in each.dscp:
            other = by_dscp.setdefault(dscp, each.name)
            if other != each.name:
                raise table.error(
                    each.name if each.name in table else other,
                    f"DSCP {dscp} is in class {other} and in class {each.name}",
                )
        for pcp in each.pcp:
            other = by_pcp.setdefault(pcp, each.name)
            if other != each.name:
                raise table.error(
                    each.name if each.name in table else other,
                    f"PCP {pcp} is in class {other} and in class {each.name}",
                )
    return tuple(found.values())


def _class(table: Table, name: str, base: ClassSpec | None) -> ClassSpec:
    priority = table.take_int("priority", base.priority if base else None, 0, LANES - 1)
    if priority is None:
        raise table.error(None, f"priority is missing; known classes are {_known_classes()}")
    is_new = base is None or priority != base.priority
    base = base or ClassSpec(name=name, priority=priority, dscp=(priority * LANES,))
    dscp = table.take("dscp")
    if dscp is not None:
        values = dscp if isinstance(dscp, list) else [dscp]
        marks = tuple(table.integer("dscp", each, 0, DSCPS - 1) for each in values)
        if not marks:
            raise table.error("dscp", "expected one or several")
    else:
        marks = (priority * LANES,) if is_new else base.dscp
    is_lossless = table.take_bool("lossless", base.is_lossless)
    given: dict[str, object] = {}
    _take_buffer_keys(table, given)
    if "headroom" in given and not is_lossless:
        raise table.error("headroom", "only a lossless class has headroom")
    if "egress_alpha" in table:
        if is_lossless:
            raise table.error("egress_alpha", "a lossless class does not drop at the output port")
        given["egress_alpha"] = _alpha(table, "egress_alpha")
    table.take("egress_alpha")
    is_strict = table.take_bool("strict", base.is_strict)
    if is_strict and "weight" in table:
        raise table.error("weight", "a strict class has no weight")
    found = replace(
        base,
        priority=priority,
        dscp=marks,
        pcp=_pcps(table, base.pcp),
        remark=_remark(table, base.remark),
        is_lossless=is_lossless,
        ecn=_ecn(table, base.ecn),
        is_strict=is_strict,
        weight=table.take_int("weight", base.weight, 1, 1000),
        **given,  # type: ignore[arg-type]
    )
    table.end()
    return found


def _pcps(table: Table, base: tuple[int, ...]) -> tuple[int, ...]:
    value = table.take("pcp")
    if value is None:
        return base
    values = value if isinstance(value, list) else [value]
    return tuple(table.integer("pcp", each, 0, LANES - 1) for each in values)


def _remark(table: Table, base: Remark | None) -> Remark | None:
    inside = table.table("remark")
    if inside is None:
        return base
    found = Remark(
        dscp=inside.take_int("dscp", None, 0, DSCPS - 1),
        pcp=inside.take_int("pcp", None, 0, LANES - 1),
    )
    inside.end()
    if found == Remark():
        raise inside.error(None, "expected dscp or pcp")
    return found


def _ecn(table: Table, base: EcnSpec | None) -> EcnSpec | None:
    if not _is_table(table, "ecn"):
        return (base or DEFAULT_ECN) if table.take_bool("ecn", base is not None) else None
    inside = table.table("ecn")
    assert inside is not None
    minimum = inside.take_size("min", None, 0, 1 << 40)
    maximum = inside.take_size("max", minimum, 0, 1 << 40)
    if minimum is None or maximum is None:
        raise inside.error(None, "min is missing: the bytes of a queue from which on it is marked")
    if maximum < minimum:
        raise inside.error("max", f"{maximum:,} is below min, which is {minimum:,}")
    probability = inside.take_number("probability", 1.0, 0, 1)
    at = inside.take_name("at", "dequeue", ("dequeue", "enqueue"))
    inside.end()
    return EcnSpec(
        minimum=minimum, maximum=maximum, probability=probability, at_enqueue=at == "enqueue"
    )


def _routes(
    table: Table | None, base: Mapping[str, tuple[str, ...]]
) -> Mapping[str, tuple[str, ...]]:
    if table is None:
        return base
    found = dict(base)
    for host in table.names():
        value = table.take(host)
        ways = value if isinstance(value, list) else [value]
        if not ways or not all(isinstance(each, str) for each in ways):
            raise table.error(host, f"{shown(value)} is no neighbour, and no array of them")
        found[host] = tuple(ways)
    return found


def rules_of(spec: SwitchSpec, link: Link, largest_frame: int) -> dict[int, PriorityRules]:
    """How a port of a switch treats each priority."""
    return {
        each.priority: PriorityRules(
            is_lossless=each.is_lossless,
            reserve=each.reserve,
            headroom=_headroom(each, link, largest_frame, spec.latency),
            alpha=each.alpha,
            ramp=each.ecn.ramp(link.rate_bps) if each.ecn else None,
            egress_alpha=None if each.is_lossless else each.egress_alpha,
        )
        for each in spec.classes
    }


def _headroom(spec: ClassSpec, link: Link, largest_frame: int, latency: Time) -> int:
    if not spec.is_lossless:
        return 0
    if isinstance(spec.headroom, CableSpec):
        return spec.headroom.bytes_at(link.rate_bps)
    if spec.headroom is None:
        return needed_headroom(link, largest_frame, latency)
    return spec.headroom


def needed_headroom(link: Link, largest_frame: int, latency: Time = 0) -> int:
    """Bytes that can arrive after a port has decided to pause.

    latency: of the switch, in which frames have arrived and are not in its buffer yet.

    A frame that leaves goes on; then the PFC frame needs its time and the delay of the link;
    the neighbour ends the frame that it sends, and what is on the link still arrives.

    Source: docs/reference/fabric.md#headroom.
    """
    on_the_link = -(-link.rate_bps * (2 * link.delay + latency) // (8 * S))
    return on_the_link + 3 * largest_frame + PFC_FRAME + ETHERNET_OVERHEAD


def check_buffers(
    tables: Sequence[Table],
    topology: Topology,
    switches: Mapping[str, SwitchSpec],
    largest_frame: int,
    top: Table,
) -> None:
    """Refuse a switch whose headroom and reserves take all of its buffer, with the numbers."""
    for name, spec in switches.items():
        accounts = [
            Account(reserve=rule.reserve, headroom=rule.headroom, is_lossless=rule.is_lossless)
            for link, _ in topology.ports(name)
            for rule in rules_of(spec, link, largest_frame).values()
        ]
        try:
            SharedBuffer(spec.buffer, accounts)
        except BufferTooSmall as error:
            place = next((each for each in reversed(tables) if "buffer" in each), top)
            key = "buffer" if place is not top else "switch"
            ports = len(topology.ports(name))
            raise place.error(
                key,
                f"switch {name} has {spec.buffer:,} bytes, but its {ports} ports take "
                f"{error.headroom + error.reserve:,}: headroom {error.headroom:,}, "
                f"reserves {error.reserve:,}",
            ) from None


def _known_classes() -> str:
    return ", ".join(each.name for each in DEFAULT_CLASSES)


DEFAULT_ECN = EcnSpec(minimum=4000, maximum=16000, probability=0.2, is_per_gbps=True)
"""Those of the HPCC model (docs/reference/fabric.md#ecn-marking)."""

DEFAULT_CLASSES = (
    ClassSpec(name="roce", priority=3, dscp=(26,), is_lossless=True, reserve=4096, ecn=DEFAULT_ECN),
    ClassSpec(name="cnp", priority=6, dscp=(48,), is_strict=True),
    ClassSpec(name="other", priority=0, dscp=(0,)),
)
"""The usual classes of a network with RoCE (docs/reference/fabric.md#scheduling)."""

_FORMS: dict[str, tuple[Callable[..., Topology], tuple[str, ...], dict[str, str]]] = {
    "back-to-back": (forms.back_to_back, (), {}),
    "star": (forms.star, ("hosts",), {}),
    "dumbbell": (forms.dumbbell, ("left", "right"), {"uplink": "middle_bps"}),
    "parking-lot": (forms.parking_lot, ("switches",), {"uplink": "middle_bps"}),
    "leaf-spine": (forms.leaf_spine, ("leaves", "spines", "hosts"), {"uplink": "uplink_bps"}),
    "fat-tree": (forms.fat_tree, ("k",), {}),
    "rail-optimised": (
        forms.rail_optimised,
        ("servers", "rails"),
        {"uplink": "uplink_bps", "spines": "spines"},
    ),
}
"""Form -> function, the counts that it needs, and what else may be given."""
