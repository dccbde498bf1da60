"""Topologies by a key and its values, like `fattree:ports=36,levels=3` or `torus:size=4x4`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import prod

from ibwire.base.errors import EncodeError
from ibwire.fabric.infiniband.speeds import Speed, Width, read_rate
from ibwire.fabric.infiniband.subnet import Node, Subnet

MAXIMUM_NODES = 100_000
_SWITCH_GUID, _ADAPTER_GUID = 0x0002_C900_0010_0000, 0x0002_C903_0020_0000
_GUID_STEP = 0x10
"""Between the GUIDs of two nodes; those of the ports of an adapter lie in it."""


class _Builder:
    """A subnet that is being put together; the ports of a switch are taken in order."""

    def __init__(self, rate: tuple[Width, Speed]) -> None:
        self.subnet = Subnet()
        self._rate = rate
        self._switches = self._adapters = 0

    def switch(self, name: str, ports: int) -> Node:
        guid = _SWITCH_GUID + _GUID_STEP * self._switches
        self._switches += 1
        return self.subnet.add(Node(name, is_switch=True, guid=guid, num_ports=ports))

    def hosts(self, switch: Node, name: str, count: int, first_port: int) -> None:
        """Adapters with one port at consecutive ports of a switch."""
        for number in range(count):
            guid = _ADAPTER_GUID + _GUID_STEP * self._adapters
            self._adapters += 1
            host = Node(f"node-{name}-{number}", is_switch=False, guid=guid, num_ports=1)
            self.subnet.add(host)
            self.link(switch, first_port + number, host, 1)

    def link(self, a: Node, a_port: int, b: Node, b_port: int) -> None:
        self.subnet.connect(a.ports[a_port], b.ports[b_port], *self._rate)


def _star(build: _Builder, *, hosts: int) -> None:
    switch = build.switch("sw0", hosts)
    build.hosts(switch, "0", hosts, 1)


def _ring(build: _Builder, *, switches: int, hosts: int) -> None:
    _grid(build, [switches], hosts, wraps=True)


def _torus(build: _Builder, *, size: str, hosts: int) -> None:
    _grid(build, _dimensions(size), hosts, wraps=True)


def _mesh(build: _Builder, *, size: str, hosts: int) -> None:
    _grid(build, _dimensions(size), hosts, wraps=False)


def _dimensions(size: str) -> list[int]:
    parts = size.split("x")
    if not all(part.isdecimal() and 1 <= int(part) <= 1000 for part in parts) or len(parts) > 6:
        raise EncodeError("size", size, "up to six numbers like 4x4x2, each 1 to 1,000")
    return [int(part) for part in parts]


def _grid(build: _Builder, size: list[int], hosts: int, *, wraps: bool) -> None:
    """A mesh or torus. Each dimension has two ports, up and down; hosts follow behind them."""
    ports = 2 * len(size) + hosts
    _check_size(prod(size) * (1 + hosts))
    switches = {}
    for place in product(*map(range, size)):
        name = "-".join(map(str, place))
        switches[place] = build.switch(f"sw{name}", ports)
    for place, switch in switches.items():
        for dimension, length in enumerate(size):
            there = list(place)
            there[dimension] = (place[dimension] + 1) % length
            # The way round from the last to the first; of two switches there is none.
            is_last = place[dimension] == length - 1
            if length == 1 or (is_last and (not wraps or length == 2)):
                continue
            build.link(switch, 2 * dimension + 1, switches[tuple(there)], 2 * dimension + 2)
    for place, switch in switches.items():
        build.hosts(switch, "-".join(map(str, place)), hosts, 2 * len(size) + 1)


def _fattree(build: _Builder, *, ports: int, levels: int, leaves: int, pods: int) -> None:
    if ports % 2 or ports < 2:
        raise EncodeError("ports", ports, "an even number from 2 on: half go up, half go down")
    if levels == 2 and pods:
        raise EncodeError("pods", pods, "a value of levels=2: leaves= makes a part of such a tree")
    if levels == 3 and leaves:
        raise EncodeError(
            "leaves", leaves, "a value of levels=3: pods= makes a part of such a tree"
        )
    if levels == 2:
        _two_levels(build, ports, leaves or ports)
    elif levels == 3:
        _three_levels(build, ports, pods or ports)
    else:
        raise EncodeError("levels", levels, "2 or 3")


def _two_levels(build: _Builder, ports: int, leaves: int) -> None:
    half = ports // 2
    spines = -(-leaves * half // ports)
    if half % spines:
        even = {number for each in _divisors(half) for number in (2 * each - 1, 2 * each)}
        known = ", ".join(map(str, sorted(even)))
        raise EncodeError(
            "leaves", leaves, f"one of {known}: each leaf has as many links to each spine"
        )
    _check_size(leaves * (1 + half) + spines)
    tops = [build.switch(f"spine{number}", ports) for number in range(spines)]
    each = half // spines
    for number in range(leaves):
        leaf = build.switch(f"leaf{number}", ports)
        build.hosts(leaf, str(number), half, 1)
        for spine, place in product(range(spines), range(each)):
            build.link(
                leaf, half + 1 + spine * each + place, tops[spine], 1 + number * each + place
            )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _three_levels(build: _Builder, ports: int, pods: int) -> None:
    half = ports // 2
    if pods % 2 or ports % pods:
        raise EncodeError("pods", pods, f"an even number that divides {ports}")
    _check_size(pods * half * (2 + half) + pods * half // 2)
    width, each = pods // 2, ports // pods
    tops = [
        [build.switch(f"top{plane}-{number}", ports) for number in range(width)]
        for plane in range(half)
    ]
    for pod in range(pods):
        spines = [build.switch(f"spine{pod}-{number}", ports) for number in range(half)]
        for plane, spine in enumerate(spines):
            for number, place in product(range(width), range(each)):
                up = half + 1 + number * each + place
                build.link(spine, up, tops[plane][number], 1 + pod * each + place)
        for number in range(half):
            leaf = build.switch(f"leaf{pod}-{number}", ports)
            build.hosts(leaf, f"{pod}-{number}", half, 1)
            for plane, spine in enumerate(spines):
                build.link(leaf, half + 1 + plane, spine, 1 + number)


def _dragonfly(
    build: _Builder, *, groups: int, leaves: int, spines: int, hosts: int, links: int
) -> None:
    """Dragonfly+: groups of leaves and spines; the spines have links to the other groups."""
    needed = links * (groups - 1)
    each = -(-needed // spines)
    _check_size(groups * (leaves * (1 + hosts) + spines))
    tops = []
    for group in range(groups):
        tops.append([build.switch(f"spine{group}-{n}", leaves + each) for n in range(spines)])
        for number in range(leaves):
            leaf = build.switch(f"leaf{group}-{number}", hosts + spines)
            build.hosts(leaf, f"{group}-{number}", hosts, 1)
            for place, spine in enumerate(tops[group]):
                build.link(leaf, hosts + 1 + place, spine, 1 + number)
    used = [0] * groups
    for _, distance in product(range(links), range(1, groups)):
        for group in range(groups - distance):
            there = group + distance
            a, a_port = _global_port(tops[group], leaves, used[group])
            b, b_port = _global_port(tops[there], leaves, used[there])
            used[group] += 1
            used[there] += 1
            build.link(a, a_port, b, b_port)


def _global_port(spines: list[Node], leaves: int, number: int) -> tuple[Node, int]:
    """The spine and port of a link of a group to another: the spines take turns."""
    turn, place = divmod(number, len(spines))
    return spines[place], leaves + 1 + turn


def _check_size(nodes: int) -> None:
    if nodes > MAXIMUM_NODES:
        raise EncodeError("topology", f"{nodes:,} nodes", f"at most {MAXIMUM_NODES:,}")


_KINDS: Mapping[str, tuple[Callable[..., None], Mapping[str, int | str]]] = {
    "star": (_star, {"hosts": 8}),
    "ring": (_ring, {"switches": 6, "hosts": 2}),
    "torus": (_torus, {"size": "4x4", "hosts": 1}),
    "mesh": (_mesh, {"size": "4x4", "hosts": 1}),
    "fattree": (_fattree, {"ports": 8, "levels": 2, "leaves": 0, "pods": 0}),
    "dragonfly": (_dragonfly, {"groups": 5, "leaves": 4, "spines": 4, "hosts": 4, "links": 1}),
}
"""Topologies by their key: what builds them, and their values with defaults.

0 leaves or pods of a fat tree are those of a full one.
"""


def topology_keys() -> list[str]:
    """The keys, each with its values and their defaults."""
    return [
        f"{kind}:" + ",".join(f"{name}={value}" for name, value in defaults.items() if value)
        for kind, (_, defaults) in _KINDS.items()
    ]


def is_key(text: str) -> bool:
    """Whether a text names a topology by its key."""
    return text.split(":")[0] in _KINDS


def generate(text: str) -> Subnet:
    """The subnet of a key with values, like `ring:switches=8,rate=4xHDR`; raises `EncodeError`."""
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise EncodeError("topology", kind, f"one of {', '.join(_KINDS)}")
    function, defaults = _KINDS[kind]
    values = dict(defaults)
    rate = Width.X4, Speed.EDR
    given = set()
    for part in filter(None, rest.split(",")):
        name, sign, value = part.partition("=")
        if name in given:
            raise EncodeError(f"value of {kind}", part, f"the only {name}=")
        given.add(name)
        if name == "rate" and sign:
            rate = read_rate(value)
        elif name not in defaults or not sign:
            known = ", ".join(f"{each}=" for each in (*defaults, "rate"))
            raise EncodeError(f"value of {kind}", part, f"one of {known}")
        elif isinstance(defaults[name], str):
            values[name] = value
        else:
            values[name] = _number(name, value, least=0 if kind == "fattree" else 1)
    build = _Builder(rate)
    function(build, **values)
    return build.subnet


def _number(name: str, value: str, *, least: int) -> int:
    is_number = value.isascii() and value.isdecimal() and len(value) <= 30
    if not is_number or not least <= int(value) <= MAXIMUM_NODES:
        raise EncodeError(name, value, f"a number from {least} to {MAXIMUM_NODES:,}")
    return int(value)
