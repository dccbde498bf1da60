"""Credit loops: circles of links in which packets may wait for each other for ever.

A packet keeps the buffer behind one link until the next link has room. If the tables let that
waiting close to a circle, full buffers stop it (docs/reference/infiniband.md#credit-loops).
"""

from __future__ import annotations

from collections.abc import Mapping

from ibwire.fabric.infiniband.subnet import NO_PORT, Node, Port, Subnet


def find_credit_loop(
    subnet: Subnet, tables: Mapping[Node, bytes | bytearray] | None = None
) -> list[Port]:
    """The output ports of a circle that traffic between adapters can fill, or `[]`.

    tables: forwarding tables; those of the switches without. All traffic is on one lane.
    """
    if tables is None:
        tables = {node: node.lft for node in subnet.nodes.values() if node.is_switch}
    return _circle(_waits(subnet, tables))


def _waits(
    subnet: Subnet, tables: Mapping[Node, bytes | bytearray]
) -> dict[Port, dict[Port, None]]:
    """For each output port between switches those that its packets may leave by next."""
    adapters = [
        port
        for node in subnet.nodes.values()
        if not node.is_switch
        for port in node.external_ports()
        if port.peer is not None and port.peer.node.is_switch
    ]
    sources = {port.peer.node: None for port in adapters if port.peer is not None}
    waits: dict[Port, dict[Port, None]] = {}
    for adapter in adapters:
        for lid in range(adapter.lid, adapter.lid + (1 << adapter.lmc)) if adapter.lid else ():
            passed: set[Node] = set()
            for node in sources:
                before: Port | None = None
                while True:
                    out = _output(node, tables, lid)
                    if out is None or out.peer is None or not out.peer.node.is_switch:
                        break
                    if before is not None:
                        waits.setdefault(before, {})[out] = None
                    if node in passed:
                        break
                    passed.add(node)
                    before, node = out, out.peer.node
    return waits


def _output(node: Node, tables: Mapping[Node, bytes | bytearray], lid: int) -> Port | None:
    table = tables.get(node, b"")
    out = table[lid] if lid < len(table) else NO_PORT
    return node.ports[out] if 0 < out <= node.num_ports else None


def _circle(waits: Mapping[Port, Mapping[Port, None]]) -> list[Port]:
    """A circle of the graph."""
    done: set[Port] = set()
    for start in waits:
        if start in done:
            continue
        path: dict[Port, None] = {start: None}
        steps = [iter(waits[start])]
        while steps:
            following = next(steps[-1], None)
            if following is None:
                steps.pop()
                done.add(path.popitem()[0])
            elif following in path:
                places = list(path)
                return places[places.index(following) :]
            elif following not in done:
                path[following] = None
                steps.append(iter(waits.get(following, ())))
    return []
