"""Routing: the linear forwarding tables of all switches, from the links and LIDs of a subnet.

Four engines, with the names that opensm has for them (docs/reference/infiniband.md#routing):
`minhop` takes shortest paths, `updn` never goes up after it went down, `ftree` spreads
destinations over the top of a fat tree, `dor` goes through the dimensions in order of the ports.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from enum import StrEnum

from ibwire.fabric.infiniband.fattree import fat_tree_tables
from ibwire.fabric.infiniband.subnet import ERROR_THRESHOLD, LINEAR_FDB_CAP, Node, Port, Subnet
from ibwire.fabric.infiniband.switch_graph import UNREACHED, EndPort, RoutingError, SwitchGraph
from ibwire_layers.attributes import PortState

Tables = dict[Node, bytearray]
"""By switch: the output port of each LID, `NO_PORT` where nothing leads."""

__all__ = [
    "Engine",
    "RoutingError",
    "Tables",
    "assign_lids",
    "bring_up",
    "install",
    "routes",
    "routing_steps",
]


class Engine(StrEnum):
    """How paths are chosen."""

    MINHOP = "minhop"
    UPDN = "updn"
    FTREE = "ftree"
    DOR = "dor"


Choices = Callable[[int], list[list[int]]]
"""From the number of a destination switch: for each switch the output ports that may be used."""


def routes(subnet: Subnet, engine: Engine = Engine.MINHOP, *, roots: Sequence[str] = ()) -> Tables:
    """The forwarding tables of a subnet whose ports have LIDs.

    roots: names of the switches at the top, for `updn`; found without. Raises `RoutingError` if the
    engine cannot route this topology, or LIDs do not fit.
    """
    steps = routing_steps(subnet, engine, roots=roots)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            tables: Tables = end.value
            return tables


def routing_steps(
    subnet: Subnet, engine: Engine, *, roots: Sequence[str] = ()
) -> Generator[None, None, Tables]:
    """The same in steps: it yields between destinations, as a large subnet takes seconds."""
    graph = SwitchGraph(subnet)
    top = max((ends.lids[-1] for each in graph.end_ports for ends in each), default=0)
    if top >= LINEAR_FDB_CAP:
        raise RoutingError(f"LID {top}: switches have entries for {LINEAR_FDB_CAP:,} LIDs")
    tables = [bytearray(b"\xff" * (top + 1)) for _ in graph.nodes]
    if engine is Engine.FTREE:
        yield from fat_tree_tables(graph, tables)
    elif engine is Engine.UPDN:
        yield from _fill(graph, tables, UpDown(graph, _numbers(graph, roots)).choices)
    elif engine is Engine.DOR:
        yield from _fill(
            graph, tables, lambda target: _first_neighbours(graph, _shortest(graph, target))
        )
    else:
        yield from _fill(graph, tables, lambda target: _shortest(graph, target))
    return dict(zip(graph.nodes, tables, strict=True))


def _shortest(graph: SwitchGraph, target: int) -> list[list[int]]:
    """Ports on the shortest paths to a switch."""
    hops = graph.distances((target,))
    return [
        [port for port, there in links if hops[there] < own] if own != UNREACHED else []
        for links, own in zip(graph.links, hops, strict=True)
    ]


def _first_neighbours(graph: SwitchGraph, choices: list[list[int]]) -> list[list[int]]:
    """Of the ports, those to the switch behind the first of them: one dimension at a time."""
    kept = []
    for links, ports in zip(graph.links, choices, strict=True):
        leads = dict(links)
        kept.append([port for port in ports if leads[port] == leads[ports[0]]])
    return kept


class UpDown:
    """Paths that go up, towards smaller ranks, and then down, and never up again.

    The rank of a switch is its distance from the roots; of two with one rank the smaller GUID is
    up. As this is one order of all switches, no circle of waiting links is possible.
    """

    def __init__(self, graph: SwitchGraph, roots: Sequence[int]) -> None:
        self.graph = graph
        if roots:
            self._rank(roots)
            if (missing := self._unconnected(graph.leaves)) is not None:
                here, there = (graph.nodes[place].name for place in missing)
                raise RoutingError(
                    f"no path from {here} to {there} goes up and then down with these roots"
                )
            return
        # The top of a tree is what is farthest from the adapters.
        leaves = graph.leaves
        levels = graph.distances(leaves)
        height = max((level for level in levels if level != UNREACHED), default=0)
        everything = range(len(graph))
        top = [place for place in everything if levels[place] == height]
        if height:
            self._rank(top)
            # Adapters must reach the switches too: tools ask them by their LIDs.
            if self._unconnected(everything) is None:
                return
        # One root leads everywhere.
        self._rank([graph.center(leaves or everything, top or everything)] if len(graph) else [])

    def _rank(self, roots: Sequence[int]) -> None:
        graph = self.graph
        ranks = graph.distances(roots)
        for place, rank in enumerate(ranks):
            if rank == UNREACHED:  # a part of its own: its first switch is its root
                for there, hops in enumerate(graph.distances((place,))):
                    if hops != UNREACHED:
                        ranks[there] = hops
        order = sorted(range(len(graph)), key=lambda place: (ranks[place], graph.nodes[place].guid))
        self.order = order
        self.position = [0] * len(graph)
        for position, place in enumerate(order):
            self.position[place] = position
        position_of = self.position
        self.above = [
            [there for there in graph.neighbours[place] if position_of[there] < position_of[place]]
            for place in range(len(graph))
        ]

    def _unconnected(self, targets: Iterable[int]) -> tuple[int, int] | None:
        """A switch with adapters and a target that the links connect, and no allowed path does."""
        graph = self.graph
        # A path exists where two switches have one above both, which may be one of them.
        tops = [0] * len(graph)
        for place in self.order:
            tops[place] = 1 << place
            for there in self.above[place]:
                tops[place] |= tops[there]
        leaves = graph.leaves
        parts = graph.components()
        for there in targets:
            for place in leaves:
                if parts[place] == parts[there] and not tops[place] & tops[there]:
                    return place, there
        return None

    def _hops(self, target: int) -> tuple[list[int], list[int]]:
        """Hops to a switch: going down only, and by any allowed path."""
        down = [UNREACHED] * len(self.graph)
        down[target] = 0
        waiting = [target]
        while waiting:
            further = down[waiting[0]] + 1
            found = []
            for place in waiting:
                for there in self.above[place]:
                    if down[there] > further:
                        down[there] = further
                        found.append(there)
            waiting = found
        hops = list(down)
        for place in self.order:
            # A table knows no input port: who is reached from above must have a way down.
            if hops[place] == UNREACHED:
                hops[place] = min(
                    (hops[there] + 1 for there in self.above[place]), default=UNREACHED
                )
        return down, [min(each, UNREACHED) for each in hops]

    def choices(self, target: int) -> list[list[int]]:
        """The ports of the shortest allowed paths to a switch."""
        down, hops = self._hops(target)
        position = self.position
        ports = []
        for place, links in enumerate(self.graph.links):
            if down[place] != UNREACHED:
                next_hops, wanted, is_down = down, down[place] - 1, True
            else:
                next_hops, wanted, is_down = hops, hops[place] - 1, False
            ports.append(
                [
                    port
                    for port, there in links
                    if next_hops[there] == wanted and (position[there] > position[place]) == is_down
                ]
                if hops[place] != UNREACHED
                else []
            )
        return ports


def _fill(
    graph: SwitchGraph, tables: list[bytearray], choices: Choices
) -> Generator[None, None, None]:
    """Give each LID one of the ports that may be used, so that ports have equally many."""
    loads = [[0] * (node.num_ports + 1) for node in graph.nodes]
    for target, ends in enumerate(graph.end_ports):
        if not ends:
            continue
        yield
        allowed = choices(target)
        for place, ports in enumerate(allowed):
            table = tables[place]
            if place == target:
                for end in ends:
                    for lid in end.lids:
                        table[lid] = end.out
            elif len(ports) == 1:
                for end in ends:
                    table[end.lids[0] : end.lids[-1] + 1] = bytes(ports) * len(end.lids)
                    loads[place][ports[0]] += len(end.lids) if end.out else 0
            elif ports:
                _spread(graph, place, ends, ports, table, loads[place])


def _spread(
    graph: SwitchGraph,
    place: int,
    ends: list[EndPort],
    ports: list[int],
    table: bytearray,
    loads: list[int],
) -> None:
    """Give the LIDs of end ports several ports of a switch."""
    for end in ends:
        if len(end.lids) == 1:
            chosen = min(ports, key=loads.__getitem__)
            table[end.lids[0]] = chosen
            loads[chosen] += 1 if end.out else 0
            continue
        # Several paths to one port are worth most when they share least.
        systems: dict[int, int] = {}
        nodes: dict[Node, int] = {}
        for lid in end.lids:
            chosen = min(
                ports,
                key=lambda port: (
                    systems.get(_next_node(graph, place, port).system_guid, 0),
                    nodes.get(_next_node(graph, place, port), 0),
                    loads[port],
                ),
            )
            table[lid] = chosen
            loads[chosen] += 1 if end.out else 0
            there = _next_node(graph, place, chosen)
            systems[there.system_guid] = systems.get(there.system_guid, 0) + 1
            nodes[there] = nodes.get(there, 0) + 1


def _next_node(graph: SwitchGraph, place: int, port: int) -> Node:
    peer = graph.nodes[place].ports[port].peer
    assert peer is not None
    return peer.node


def _numbers(graph: SwitchGraph, names: Sequence[str]) -> list[int]:
    known = {node.name: place for place, node in enumerate(graph.nodes)}
    missing = [name for name in names if name not in known]
    if missing:
        raise RoutingError(f"root {missing[0]!r}: no such switch")
    return [known[name] for name in names]


def assign_lids(subnet: Subnet, *, lmc: int = 0) -> None:
    """Give LIDs to the ports that have none, from 1 in the order of their GUIDs.

    A port of an adapter gets 2^lmc of them, and port 0 of a switch one. Raises `RoutingError`
    when there are not enough.
    """
    ports = [
        port
        for node in subnet.nodes.values()
        for port in (node.ports[:1] if node.is_switch else node.external_ports())
        if node.is_switch or port.peer is not None
    ]
    wanted = {port: 0 if port.node.is_switch else lmc for port in ports}
    lids = next_lids(
        {port: (port.lid, port.lmc) for port in ports if port.lid},
        {port: wanted[port] for port in sorted(ports, key=lambda each: each.guid)},
    )
    for port, lid in lids.items():
        port.lid, port.lmc = lid, wanted[port]


def next_lids(has: Mapping[Port, tuple[int, int]], wanted: Mapping[Port, int]) -> dict[Port, int]:
    """A LID for each port: its own if that is valid, unique and aligned, else the next free one.

    has: LID and LMC of ports that have one; the first of two with one LID keeps it. wanted: LMC of
    each port, in the order in which LIDs are given.
    """
    taken: set[int] = set()
    given: dict[Port, int] = {}
    for port, lmc in wanted.items():
        lid, own_lmc = has.get(port, (0, 0))
        own = range(lid, lid + (1 << lmc))
        is_valid = lid and own_lmc == lmc and lid % len(own) == 0 and own[-1] < LINEAR_FDB_CAP
        if is_valid and taken.isdisjoint(own):
            taken.update(own)
            given[port] = lid
    free = 1
    for port, lmc in wanted.items():
        if port in given:
            continue
        size = 1 << lmc
        free = -(-free // size) * size
        while not taken.isdisjoint(range(free, free + size)):
            free += size
        if free + size > LINEAR_FDB_CAP:
            raise RoutingError(f"more LIDs than the {LINEAR_FDB_CAP - 1:,} that switches can route")
        given[port] = free
        taken.update(range(free, free + size))
    return {port: given[port] for port in wanted}


def install(tables: Tables) -> None:
    """Write forwarding tables into the switches."""
    for node, table in tables.items():
        node.lft[:] = table
        node.linear_fdb_top = max(0, len(table) - 1)


def bring_up(
    subnet: Subnet,
    engine: Engine = Engine.MINHOP,
    *,
    lmc: int = 0,
    roots: Sequence[str] = (),
) -> None:
    """What a subnet manager does, without its packets: LIDs, tables, and links that are active."""
    assign_lids(subnet, lmc=lmc)
    install(routes(subnet, engine, roots=roots))
    for link in subnet.links():
        for port in link:
            port.local_phy_errors = port.overrun_errors = ERROR_THRESHOLD
            if port.is_up:
                port.state = PortState.ACTIVE
