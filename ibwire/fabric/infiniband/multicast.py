"""Multicast trees: the forwarding tables of all switches for the members of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ibwire.fabric.infiniband.subnet import Node, Port, Subnet
from ibwire.fabric.infiniband.switch_graph import UNREACHED, SwitchGraph

FIRST_MLID = 0xC000
GROUPS_OF_A_BLOCK = 32
PORTS_OF_A_POSITION = 16

MulticastTables = dict[Node, dict[tuple[int, int], bytes]]
"""By switch: the blocks of its table, by block and position."""


@dataclass(slots=True)
class Group:
    """The ports that receive what is sent to a group, and those that only send to it."""

    members: list[Port] = field(default_factory=list)
    senders: list[Port] = field(default_factory=list)


def multicast_tables(subnet: Subnet, groups: Mapping[int, Group]) -> MulticastTables:
    """The tables for groups by MLID: a tree of shortest paths for each, without circles.

    Its root is the switch nearest to the members.
    """
    graph = SwitchGraph(subnet)
    masks: dict[Node, dict[int, int]] = {node: {} for node in graph.nodes}
    for mlid, group in groups.items():
        for node, port in _tree(graph, group):
            kept = masks[node]
            kept[mlid] = kept.get(mlid, 0) | 1 << port
    return {node: _blocks(node, kept) for node, kept in masks.items()}


def _tree(graph: SwitchGraph, group: Group) -> Iterable[tuple[Node, int]]:
    """Switches and ports of the tree of a group."""
    receiving = [_at_switch(graph, port) for port in group.members]
    sending = [_at_switch(graph, port) for port in group.senders]
    places = sorted({found[0] for found in receiving + sending if found is not None})
    if not places:
        return
    root = graph.center(places, range(len(graph)))
    hops = graph.distances((root,))
    joined = {root}
    for place in places:
        while place not in joined and hops[place] != UNREACHED:
            joined.add(place)
            port, above = next(
                link for link in graph.links[place] if hops[link[1]] == hops[place] - 1
            )
            peer = graph.nodes[place].ports[port].peer
            assert peer is not None
            yield graph.nodes[place], port
            yield graph.nodes[above], peer.number
            place = above
    for found in receiving:
        if found is not None and found[0] in joined:
            yield graph.nodes[found[0]], found[1]


def _at_switch(graph: SwitchGraph, port: Port) -> tuple[int, int] | None:
    """The switch of a port and the output port there; `None` where no switch is."""
    if port.node.is_switch:
        place = graph.number.get(port.node)
        return None if place is None else (place, 0)
    peer = port.peer
    if peer is None or peer.node not in graph.number:
        return None
    return graph.number[peer.node], peer.number


def _blocks(node: Node, masks: Mapping[int, int]) -> dict[tuple[int, int], bytes]:
    """The blocks of a switch's table that are not zero."""
    blocks: dict[tuple[int, int], bytearray] = {}
    for mlid, mask in masks.items():
        block, row = divmod(mlid - FIRST_MLID, GROUPS_OF_A_BLOCK)
        for position in range(node.num_ports // PORTS_OF_A_POSITION + 1):
            part = mask >> PORTS_OF_A_POSITION * position & 0xFFFF
            if part:
                found = blocks.setdefault((block, position), bytearray(64))
                found[2 * row : 2 * row + 2] = part.to_bytes(2, "big")
    return {key: bytes(block) for key, block in blocks.items()}
