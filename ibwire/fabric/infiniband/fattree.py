"""Routing of fat trees: destinations are spread over the switches of the top.

Each destination has one way down from the top. The ways of consecutive destinations take the
switches of the top in turn, so that when every host sends to the host a fixed number of places
further, no two of them share a link of a full tree.
"""

from __future__ import annotations

from collections.abc import Generator

from ibwire.fabric.infiniband.subnet import NO_PORT
from ibwire.fabric.infiniband.switch_graph import UNREACHED, EndPort, RoutingError, SwitchGraph


def fat_tree_tables(graph: SwitchGraph, tables: list[bytearray]) -> Generator[None, None, None]:
    """Fill the tables of a tree; raises `RoutingError` if it is none. Yields between switches.

    That is also so where links are missing and two switches with adapters are connected only by
    paths that go down and up again.
    """
    yield from _Tree(graph, tables).fill()


class _Tree:
    def __init__(self, graph: SwitchGraph, tables: list[bytearray]) -> None:
        self.graph = graph
        self.tables = tables
        self.levels = levels = self._levels()
        self.parts = graph.components()
        self.leaves = set(graph.leaves)
        self.up: list[list[tuple[int, int]]] = []
        """By switch: ports to the level above, with the switch there."""
        self.down: list[list[tuple[int, int]]] = []
        for place, links in enumerate(graph.links):
            self.up.append([link for link in links if levels[link[1]] > levels[place]])
            self.down.append([link for link in links if levels[link[1]] < levels[place]])
        self.up_load = [[0] * (node.num_ports + 1) for node in graph.nodes]
        self.down_load = [[0] * (node.num_ports + 1) for node in graph.nodes]
        self.back = {
            (place, port): peer.number
            for place, node in enumerate(graph.nodes)
            for port, _ in graph.links[place]
            if (peer := node.ports[port].peer) is not None
        }
        """The port at the other end of a link."""
        self.lane: dict[tuple[int, int], int] = {}
        """Which of the parallel links between two switches a port has; traffic keeps to it."""
        for place, links in enumerate(graph.links):
            seen: dict[int, int] = {}
            for port, there in links:
                self.lane[place, port] = seen.setdefault(there, 0)
                seen[there] += 1

    def _levels(self) -> list[int]:
        """Hops of each switch from the nearest adapter, on which all links of a tree depend."""
        graph = self.graph
        levels = graph.distances(graph.leaves)
        for place, links in enumerate(graph.links):
            name = graph.nodes[place].name
            if levels[place] == UNREACHED:
                raise RoutingError(f"not a fat tree: no adapter is below {name}")
            for _, there in links:
                if levels[there] == levels[place]:
                    raise RoutingError(
                        f"not a fat tree: {name} and {graph.nodes[there].name} have a link and "
                        f"are on one level, {levels[place] + 1}"
                    )
        return levels

    def fill(self) -> Generator[None, None, None]:
        order = sorted(range(len(self.graph)), key=self.levels.__getitem__)
        self._from_the_top = order[::-1]
        for place in order:
            yield
            for end in self.graph.end_ports[place]:
                for lid in end.lids:
                    self._route(place, end, lid, counts=end.out != 0)

    def _route(self, target: int, end: EndPort, lid: int, *, counts: bool) -> None:
        """The ways of all switches to a LID behind one of them."""
        tables = self.tables
        tables[target][lid] = end.out
        main = self._main_way(target, lid, counts=counts)
        self._other_ways_down(target, lid)
        # From above to below: who has no way down goes up to one that has a way.
        for place in self._from_the_top:
            if tables[place][lid] != NO_PORT:
                continue
            choices = [link for link in self.up[place] if tables[link[1]][lid] != NO_PORT]
            if not choices:
                # Of switches without adapters, only what port 0 sends is without a way.
                if end.out and place in self.leaves and self.parts[place] == self.parts[target]:
                    here, there = self.graph.nodes[place].name, self.graph.nodes[target].name
                    raise RoutingError(
                        f"not a fat tree: no path from {here} to {there} goes up and then down"
                    )
                continue
            load = self.up_load[place]
            _, above = min(choices, key=lambda link: (link[1] not in main, load[link[0]], link[0]))
            parallel = [port for port, there in choices if there == above]
            port = parallel[self.lane.get((above, tables[above][lid]), 0) % len(parallel)]
            tables[place][lid] = port
            load[port] += counts

    def _main_way(self, target: int, lid: int, *, counts: bool) -> set[int]:
        """One way down from the top, by the links that have the fewest destinations."""
        place, main = target, {target}
        while self.up[place]:
            port, above = min(
                self.up[place],
                key=lambda link: (self.down_load[link[1]][self.back[place, link[0]]], link[0]),
            )
            out = self.back[place, port]
            self.tables[above][lid] = out
            self.down_load[above][out] += counts
            place = above
            main.add(place)
        # Who is below the top of this way, and not on it, is reached through it.
        reached, waiting = set(main), list(main)
        while waiting:
            for _, below in self.down[waiting.pop()]:
                if below not in reached:
                    reached.add(below)
                    waiting.append(below)
        return reached

    def _other_ways_down(self, target: int, lid: int) -> None:
        """Ways down of the switches above that are not on the main one."""
        tables = self.tables
        level = {target}
        while level:
            above = {there for place in level for _, there in self.up[place]}
            for place in sorted(above):
                if tables[place][lid] == NO_PORT:
                    choices = [link for link in self.down[place] if link[1] in level]
                    load = self.down_load[place]
                    port, _ = min(choices, key=lambda link: (load[link[0]], link[0]))
                    tables[place][lid] = port
            level = above
