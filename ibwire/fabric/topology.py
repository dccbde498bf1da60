"""Networks of hosts and switches: which are linked, and which ports lead where.

A `Topology` is names and links. It can be given link by link or made by a function for one of
the usual forms. Ports of a node are numbered in the order of its links, from 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ibwire.base.errors import EncodeError
from ibwire.base.units import GBPS, US, Time


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between two nodes."""

    a: str
    b: str
    rate_bps: int = 100 * GBPS
    delay: Time = 1 * US


class Topology:
    """Hosts, switches and the links between them.

    A host here has one port; of a host with several, each port is a host of this class.
    Raises `EncodeError` for a link of an unknown node, a host with no link or with several,
    and hosts that cannot reach each other, unless the network may be `in_parts`.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        switches: Iterable[str],
        links: Iterable[Link],
        *,
        in_parts: bool = False,
    ) -> None:
        self.hosts = tuple(hosts)
        self.switches = tuple(switches)
        self.links = tuple(links)
        self.parts: dict[str, str] = {}
        """The first host that each host can reach: the same for all that reach each other."""
        self._links_of: dict[str, list[tuple[Link, str]]] = {}
        """By node, in the order of its ports."""
        for link in self.links:
            self._links_of.setdefault(link.a, []).append((link, link.b))
            self._links_of.setdefault(link.b, []).append((link, link.a))
        self._check(in_parts)

    def ports(self, node: str) -> list[tuple[Link, str]]:
        """The links of a node with the neighbour of each, by port."""
        return list(self._links_of.get(node, ()))

    def next_hops(self, without: Iterable[Link] = ()) -> dict[str, dict[str, list[int]]]:
        """Ports on a shortest way, by switch and host; no entry where no way leads.

        without: links that are down.
        """
        down = {id(link) for link in without}
        tables: dict[str, dict[str, list[int]]] = {switch: {} for switch in self.switches}
        between: dict[str, list[tuple[int, str]]] = {switch: [] for switch in self.switches}
        port_of: dict[str, int] = {}
        for switch in self.switches:
            for port, (link, neighbour) in enumerate(self.ports(switch)):
                if id(link) in down:
                    continue
                if neighbour in tables:
                    between[switch].append((port, neighbour))
                else:
                    port_of[neighbour] = port
        # The ways to all hosts of a switch are those to the switch.
        ways: dict[str, dict[str, list[int]]] = {}
        for host in self.hosts:
            if host not in port_of:
                continue
            _, own = self._links_of[host][0]
            if own not in ways:
                ways[own] = _ways_to(own, between)
            for switch, ports in ways[own].items():
                tables[switch][host] = list(ports)
            tables[own][host] = [port_of[host]]
        return tables

    def routed(
        self, routes: Mapping[str, Mapping[str, Sequence[str]]], without: Sequence[Link] = ()
    ) -> dict[str, dict[str, list[int]]]:
        """`next_hops` with static routes: the neighbours by switch and host.

        A route whose links are all down (`without`) is not used.
        Raises `EncodeError` for a route over a node that is no neighbour, and for routes in
        a circle.
        """
        tables = self.next_hops(without)
        down = {id(link) for link in without}
        for switch, by_host in routes.items():
            ports = self.ports(switch)
            neighbours = [neighbour for _, neighbour in ports]
            for host, wanted in by_host.items():
                for each in wanted:
                    if each not in neighbours:
                        raise EncodeError("route", each, f"a neighbour of {switch}")
                found = [
                    port
                    for port, (link, neighbour) in enumerate(ports)
                    if neighbour in wanted and id(link) not in down
                ]
                if found:
                    tables[switch][host] = found
        if routes and not down:
            for host in {host for by_host in routes.values() for host in by_host}:
                self._check_circle(host, tables)
        return tables

    def _check_circle(self, host: str, tables: Mapping[str, Mapping[str, list[int]]]) -> None:
        """Raise `EncodeError` if packets to a host can pass a switch twice, or stop at another."""
        following = {
            switch: [self.ports(switch)[port][1] for port in table.get(host, ())]
            for switch, table in tables.items()
        }
        done: set[str] = set()
        way: list[str] = []

        def follow(node: str) -> None:
            if node in way:
                circle = " > ".join([*way[way.index(node) :], node])
                raise EncodeError("route", circle, f"a way to {host} without a circle")
            if node in done or node == host:
                return
            if node not in following:
                raise EncodeError("route", " > ".join([*way, node]), f"a way to {host}")
            way.append(node)
            for each in following[node]:
                follow(each)
            way.pop()
            done.add(node)

        for switch in self.switches:
            follow(switch)

    def _reached(self, host: str) -> set[str]:
        """The nodes that a host reaches; packets do not pass through other hosts."""
        found = {host}
        waiting = [host]
        ends = set(self.hosts) - {host}
        while waiting:
            for _, neighbour in self.ports(waiting.pop()):
                if neighbour not in found:
                    found.add(neighbour)
                    if neighbour not in ends:
                        waiting.append(neighbour)
        return found

    def _check(self, in_parts: bool) -> None:
        known = set(self.hosts) | set(self.switches)
        if len(known) != len(self.hosts) + len(self.switches):
            raise EncodeError("name", "a name", "of one host or switch only")
        for link in self.links:
            for end in (link.a, link.b):
                if end not in known:
                    raise EncodeError("link", f"{link.a}-{link.b}", f"between nodes; {end} is none")
            if link.a == link.b:
                raise EncodeError("link", f"{link.a}-{link.b}", "between two nodes")
        if len(self.hosts) < 2:
            raise EncodeError("hosts", len(self.hosts), "2 or above")
        for host in self.hosts:
            if len(self.ports(host)) != 1:
                count = len(self.ports(host))
                reason = f"1, the number of links of host {host}: it has one port"
                raise EncodeError("links", count, reason)
        first = self.hosts[0]
        for host in self.hosts:
            if host in self.parts:
                continue
            if self.parts and not in_parts:
                raise EncodeError("link", str(first), f"connected to {host}: no links lead there")
            reached = self._reached(host)
            self.parts |= {each: host for each in self.hosts if each in reached}


def _ways_to(target: str, between: Mapping[str, Sequence[tuple[int, str]]]) -> dict[str, list[int]]:
    """Ports on a shortest way to a switch, by each other switch that reaches it.

    between: port and neighbour of the links between switches.
    """
    distance = {target: 0}
    waiting = deque([target])
    while waiting:
        node = waiting.popleft()
        for _, neighbour in between[node]:
            if neighbour not in distance:
                distance[neighbour] = distance[node] + 1
                waiting.append(neighbour)
    return {
        switch: [port for port, nearer in between[switch] if distance[nearer] < distance[switch]]
        for switch in distance
        if switch != target
    }


def star(hosts: int, *, rate_bps: int = 100 * GBPS, delay: Time = 1 * US) -> Topology:
    """Hosts at one switch: `h0`, `h1`, ... at `s0`."""
    names = _names("h", hosts, "hosts")
    return Topology(names, ["s0"], [Link(name, "s0", rate_bps, delay) for name in names])


def back_to_back(*, rate_bps: int = 100 * GBPS, delay: Time = 1 * US) -> Topology:
    """Two hosts with one link and no switch: `h0` and `h1`."""
    return Topology(["h0", "h1"], [], [Link("h0", "h1", rate_bps, delay)])


def dumbbell(
    left: int,
    right: int,
    *,
    rate_bps: int = 100 * GBPS,
    middle_bps: int | None = None,
    delay: Time = 1 * US,
) -> Topology:
    """Two switches with hosts `l0`, ... and `r0`, ..., and one link between them."""
    lefts, rights = _names("l", left, "left"), _names("r", right, "right")
    links = [Link(name, "s0", rate_bps, delay) for name in lefts]
    links += [Link(name, "s1", rate_bps, delay) for name in rights]
    links.append(Link("s0", "s1", middle_bps or rate_bps, delay))
    return Topology((*lefts, *rights), ["s0", "s1"], links)


def parking_lot(
    switches: int,
    *,
    rate_bps: int = 100 * GBPS,
    middle_bps: int | None = None,
    delay: Time = 1 * US,
) -> Topology:
    """A chain of switches `s0`, `s1`, ... with two hosts at each: `a0`, `b0` at the first.

    Flows that enter on the way share each link between switches with those from further away.
    """
    names = _names("s", switches, "switches")
    hosts = [f"{side}{number}" for number in range(switches) for side in "ab"]
    links = [Link(host, f"s{host[1:]}", rate_bps, delay) for host in hosts]
    links += [Link(near, far, middle_bps or rate_bps, delay) for near, far in pairwise(names)]
    return Topology(hosts, names, links)


def leaf_spine(
    leaves: int,
    spines: int,
    hosts: int,
    *,
    rate_bps: int = 100 * GBPS,
    uplink_bps: int | None = None,
    delay: Time = 1 * US,
) -> Topology:
    """Leaf switches with `hosts` hosts each, every leaf linked to every spine."""
    leaf_names, spine_names = _names("leaf", leaves, "leaves"), _names("spine", spines, "spines")
    names, links = [], []
    for index, leaf in enumerate(leaf_names):
        for number in range(hosts):
            names.append(f"h{index * hosts + number}")
            links.append(Link(names[-1], leaf, rate_bps, delay))
    links += [
        Link(leaf, spine, uplink_bps or rate_bps, delay)
        for leaf in leaf_names
        for spine in spine_names
    ]
    return Topology(names, (*leaf_names, *spine_names), links)


def rail_optimised(
    servers: int,
    rails: int,
    *,
    spines: int = 0,
    rate_bps: int = 100 * GBPS,
    uplink_bps: int | None = None,
    delay: Time = 1 * US,
) -> Topology:
    """Servers with an adapter for each rail: host `n2.5` is adapter 5 of server 2, at `rail5`.

    Rails meet in the spines only; without spines an adapter reaches those of its own rail.
    """
    _names("n", servers, "servers")
    rail_names = _names("rail", rails, "rails")
    hosts = [f"n{server}.{rail}" for server in range(servers) for rail in range(rails)]
    links = [Link(host, f"rail{host.partition('.')[2]}", rate_bps, delay) for host in hosts]
    spine_names = _names("spine", spines, "spines") if spines else []
    links += [
        Link(rail, spine, uplink_bps or rate_bps, delay)
        for rail in rail_names
        for spine in spine_names
    ]
    return Topology(hosts, (*rail_names, *spine_names), links, in_parts=not spines)


def with_ports(topology: Topology, ports: int, *, multihomed: bool = False) -> Topology:
    """A network whose hosts have several ports: `h0.0`, `h0.1`, ... of `h0`, each with a link.

    multihomed: the ports of a host are at different switches: those with hosts form groups, in
    their order, and port n of each host of a group is at switch n of it. So between these hosts
    what goes from port n to port n passes that switch alone, as on a rail. Otherwise all ports
    of a host are at one switch.
    Raises `EncodeError` where switches cannot form such groups, or hosts have no switch.
    """
    switches = set(topology.switches)
    at = {host: topology.ports(host)[0] for host in topology.hosts}
    if any(neighbour not in switches for _, neighbour in at.values()):
        raise EncodeError("ports", ports, "1: there is no switch between the hosts")
    edges = list(dict.fromkeys(neighbour for _, neighbour in at.values()))
    if multihomed and len(edges) % ports:
        reason = f"a divisor of {len(edges)}, the number of switches with hosts"
        raise EncodeError("ports", ports, reason)
    names: list[str] = []
    links: list[Link] = []
    for host in topology.hosts:
        link, switch = at[host]
        place = edges.index(switch)
        for port in range(ports):
            names.append(f"{host}.{port}")
            if multihomed:
                switch = edges[place // ports * ports + port]
            links.append(Link(names[-1], switch, link.rate_bps, link.delay))
    links += [link for link in topology.links if {link.a, link.b} <= switches]
    return Topology(names, topology.switches, links)


def fat_tree(k: int, *, rate_bps: int = 100 * GBPS, delay: Time = 1 * US) -> Topology:
    """A fat tree of switches with k ports: k pods, k*k*k/4 hosts, full bandwidth everywhere.

    Raises `EncodeError` unless k is even.
    """
    if k < 2 or k % 2:
        raise EncodeError("k", k, "an even number, 2 or above")
    half = k // 2
    hosts: list[str] = []
    edges: list[str] = []
    aggregations: list[str] = []
    links: list[Link] = []
    cores = [f"core{number}" for number in range(half * half)]
    for pod in range(k):
        own_edges = [f"edge{pod}.{number}" for number in range(half)]
        own_aggregations = [f"agg{pod}.{number}" for number in range(half)]
        for edge in own_edges:
            for _ in range(half):
                hosts.append(f"h{len(hosts)}")
                links.append(Link(hosts[-1], edge, rate_bps, delay))
            links += [Link(edge, each, rate_bps, delay) for each in own_aggregations]
        for number, aggregation in enumerate(own_aggregations):
            for core in cores[number * half : (number + 1) * half]:
                links.append(Link(aggregation, core, rate_bps, delay))
        edges += own_edges
        aggregations += own_aggregations
    return Topology(hosts, (*edges, *aggregations, *cores), links)


def _names(prefix: str, count: int, what: str) -> list[str]:
    if count < 1:
        raise EncodeError(what, count, "1 or above")
    return [f"{prefix}{number}" for number in range(count)]
