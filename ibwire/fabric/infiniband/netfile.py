"""Topologies as text: net files of ibsim, and the output of ibnetdiscover.

    switchguid=0x2c90000100000(2c90000100000)
    Switch  8 "S-0002c90000100000"  # "sw0" base port 0 lid 2 lmc 0
    [1]  "H-0002c90300200010"[1](2c90300200011)  # "node-0" lid 1 4xEDR

A node begins with its GUIDs, has a line of its type, number of ports and id, and one line for each
of its connected ports; an empty line ends it. A link stands at both of its ends, or at one, and so
does its rate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ibwire.base.errors import EncodeError, IbwireError
from ibwire.base.toml import closest
from ibwire.fabric.infiniband.speeds import Speed, Width, read_rate
from ibwire.fabric.infiniband.subnet import Node, Subnet, rate_name

MAXIMUM_NODES = 100_000
MAXIMUM_BYTES = 128 << 20
"""Of a file; that of a fat tree with 100,000 nodes has some 40 MB."""


class TopologyError(IbwireError):
    """A text that is no topology; the message has file, line and column."""


_GUID = re.compile(
    r"(switchguid|caguid|rtguid|vendid|devid|sysimgguid)\s*=\s*(?:0x)?([0-9a-fA-F]{1,16})\b"
)
_NODE = re.compile(
    r'(Switch|Ca|Hca|Rt)\s+(\d{1,6})\s+"([^"]*)"\s*(?:#\s*"([^"]*)")?', re.IGNORECASE
)
_PORT = re.compile(
    r'\[(\d{1,6})\]\s*(?:\(([0-9a-fA-F]{1,16})\))?\s*"([^"]*)"\s*\[(\d{1,6})\]\s*(?:\(([0-9a-fA-F]{1,16})\))?'
)
_RATE = re.compile(r"\b(\d+[xX][A-Za-z]+\d*)\s*$")
_ENHANCED = re.compile(r"\s*enhanced port 0\b")
"""What ibnetdiscover says of a switch whose port 0 is like that of an adapter."""
_DEFAULT_RATE = Width.X4, Speed.EDR


@dataclass(slots=True)
class _Written:
    """A node as the file has it."""

    line: int
    kind: str = ""
    name: str = ""
    description: str | None = None
    num_ports: int = 0
    is_enhanced: bool = False
    numbers: dict[str, int] = field(default_factory=dict)
    port_guids: dict[int, int] = field(default_factory=dict)
    links: list[_Link] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class _Link:
    line: int
    column: int
    """Of the name of the peer."""
    port: int
    peer: str
    peer_port: int
    rate: tuple[Width, Speed] | None
    """`None` if the line has none."""
    rate_column: int


def read_topology(path: Path) -> Subnet:
    """The subnet of a net file.

    Raises `OSError`, and `TopologyError` with file, line and column for what is not one.
    """
    with path.open("rb") as file:
        data = file.read(MAXIMUM_BYTES + 1)
    if len(data) > MAXIMUM_BYTES:
        raise TopologyError(f"{path}: longer than {MAXIMUM_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode()) + 1
        raise TopologyError(f"{path}:{line}:{column}: not UTF-8 text") from None
    return parse_topology(text, str(path))


def parse_topology(text: str, source: str = "topology") -> Subnet:
    """The subnet of the text of a net file; `source` names it in errors."""
    return _Reader(source).read(text)


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.nodes: list[_Written] = []
        self.open: _Written | None = None

    def read(self, text: str) -> Subnet:
        for number, line in enumerate(text.splitlines(), 1):
            self._line(number, line)
        self._close()
        if not self.nodes:
            raise TopologyError(f'{self.source}: no node; expected lines like Switch 8 "sw0"')
        subnet = Subnet()
        guids: dict[int, _Written] = {}
        for written in self.nodes:
            self._add(subnet, written, guids)
        rates = self._rates()
        for written in self.nodes:
            for link in written.links:
                named = rates.get(_ends(written, link))
                rate = named.rate if named is not None else None
                self._connect(subnet, written, link, rate or _DEFAULT_RATE)
        return subnet

    def _rates(self) -> dict[frozenset[tuple[str, int]], _Link]:
        """For each link that has a rate, the line that gives it: one end, or both the same."""
        found: dict[frozenset[tuple[str, int]], _Link] = {}
        for written in self.nodes:
            for link in written.links:
                if link.rate is None:
                    continue
                other = found.setdefault(_ends(written, link), link)
                if other.rate != link.rate:
                    raise self._error(
                        link.line,
                        f"another rate than in line {other.line} for the same link",
                        link.rate_column,
                    )
        return found

    def _error(self, line: int, what: str, column: int = 1) -> TopologyError:
        return TopologyError(f"{self.source}:{line}:{column}: {what}")

    def _line(self, number: int, line: str) -> None:
        stripped = line.strip()
        if not stripped:
            self._close()
            return
        column = len(line) - len(line.lstrip()) + 1
        if stripped.startswith(("#", "module ")):
            return
        if self.open is None:
            self.open = _Written(number)
        if matched := _GUID.match(stripped):
            self.open.numbers[matched[1]] = int(matched[2], 16)
        elif matched := _NODE.match(stripped):
            self._node(number, column, matched)
        elif stripped.startswith("["):
            self._port(number, column, stripped)
        else:
            raise self._error(number, f"cannot read {stripped[:40]!r}{_expected(stripped)}", column)

    def _node(self, number: int, column: int, matched: re.Match[str]) -> None:
        node = self.open
        assert node is not None
        if node.name:
            raise self._error(number, f"a second node; an empty line ends {node.name!r}", column)
        node.line, node.kind = number, matched[1].lower()
        node.num_ports, node.name, node.description = int(matched[2]), matched[3], matched[4]
        node.is_enhanced = _ENHANCED.match(matched.string, matched.end()) is not None
        if not node.name:
            raise self._error(number, "the id of the node is empty", column)
        if not 1 <= node.num_ports <= 254:
            raise self._error(number, f"{node.num_ports} ports; 1 to 254", column)

    def _port(self, number: int, column: int, stripped: str) -> None:
        node = self.open
        matched = _PORT.match(stripped)
        if node is None or not node.name:
            raise self._error(number, "a port before the line of its node", column)
        if matched is None:
            raise self._error(number, 'cannot read this port; expected [1] "peer"[2]', column)
        port, peer_port = int(matched[1]), int(matched[4])
        if not 1 <= port <= node.num_ports:
            raise self._error(
                number, f"port {port} of {node.name!r}: 1 to {node.num_ports}", column
            )
        if matched[2]:
            node.port_guids[port] = int(matched[2], 16)
        rate, rate_column = None, column
        if found := _RATE.search(stripped):
            rate_column = column + found.start()
            try:
                rate = read_rate(found[1])
            except EncodeError as error:
                raise self._error(number, str(error), rate_column) from None
        peer_column = column + matched.start(3) - 1
        link = _Link(number, peer_column, port, matched[3], peer_port, rate, rate_column)
        node.links.append(link)

    def _close(self) -> None:
        node, self.open = self.open, None
        if node is None:
            return
        if not node.name:
            if node.numbers:
                raise self._error(node.line, "GUIDs without a node")
            return
        if len(self.nodes) == MAXIMUM_NODES:
            raise self._error(node.line, f"more than {MAXIMUM_NODES:,} nodes")
        self.nodes.append(node)

    def _add(self, subnet: Subnet, written: _Written, guids: dict[int, _Written]) -> None:
        is_switch = written.kind == "switch"
        numbers = written.numbers
        guid = numbers.get("switchguid", numbers.get("caguid", numbers.get("rtguid", 0)))
        if not guid:
            # Invented ones lie far enough apart for the GUIDs of the ports.
            guid = (0x1000_0000 if is_switch else 0x2000_0000) + len(subnet.nodes) * 0x100
        if guid in guids:
            raise self._error(
                written.line,
                f"GUID 0x{guid:x} of {written.name!r} is that of {guids[guid].name!r} "
                f"in line {guids[guid].line}",
            )
        guids[guid] = written
        if written.name in subnet.nodes:
            raise self._error(written.line, f"a second node {written.name!r}")
        try:
            node = subnet.add(
                Node(
                    written.name,
                    is_switch=is_switch,
                    guid=guid,
                    num_ports=written.num_ports,
                    port_guids=written.port_guids if not is_switch else None,
                    description=written.description,
                    system_guid=numbers.get("sysimgguid"),
                    vendor_id=numbers.get("vendid", 0),
                    device_id=numbers.get("devid", 0),
                )
            )
        except EncodeError as error:
            raise self._error(written.line, str(error)) from None
        if is_switch:
            node.enhanced_port_0 = int(written.is_enhanced)

    def _connect(
        self, subnet: Subnet, written: _Written, link: _Link, rate: tuple[Width, Speed]
    ) -> None:
        peer = subnet.nodes.get(link.peer)
        if peer is None:
            near_name = closest(link.peer, list(subnet.nodes))
            proposed = f"; did you mean {near_name!r}?" if near_name else ""
            raise self._error(link.line, f"no node {link.peer!r}{proposed}", link.column)
        if not 1 <= link.peer_port <= peer.num_ports:
            raise self._error(
                link.line,
                f"port {link.peer_port} of {link.peer!r}: 1 to {peer.num_ports}",
                link.column,
            )
        near = subnet.nodes[written.name].ports[link.port]
        far = peer.ports[link.peer_port]
        if near.peer is far:
            return
        for port in (near, far):
            if port.peer is not None or near is far:
                other = port.peer or far
                raise self._error(
                    link.line,
                    f"{port.node.name}[{port.number}] is connected to "
                    f"{other.node.name}[{other.number}]"
                    f"{', which is the same port' if near is far else ' already'}",
                    link.column,
                )
        subnet.connect(near, far, *rate)


def _ends(written: _Written, link: _Link) -> frozenset[tuple[str, int]]:
    """Both ends of a link, whichever of them it is written at."""
    return frozenset(((written.name, link.port), (link.peer, link.peer_port)))


def _expected(line: str) -> str:
    """What a line should have been that is none: the word that it may begin with, or all lines."""
    word = line.split()[0]
    if word.lower() in {"switch", "ca", "hca", "rt"}:
        return f'; expected {word}, its number of ports, and its name as "NAME"'
    name, equals, _ = line.partition("=")
    if equals and name.strip() in _NUMBERS:
        return f"; expected {name.strip()}=0x and up to 16 hexadecimal digits"
    known = closest(name.strip(), _NUMBERS) if equals else closest(word, ("Switch", "Ca", "Rt"))
    if known is not None:
        return f"; did you mean {known}?"
    return '; expected Switch 8 "NAME", Ca 1 "NAME", [1] "NAME"[2], caguid=0x1 or an empty line'


_NUMBERS = ("switchguid", "caguid", "rtguid", "vendid", "devid", "sysimgguid")


def write_topology(subnet: Subnet) -> str:
    """A net file of the subnet, which ibsim reads too."""
    return "\n".join(_written(node) for node in subnet.nodes.values())


def _written(node: Node) -> str:
    kind = "Switch" if node.is_switch else "Ca"
    guid = "switchguid" if node.is_switch else "caguid"
    lines = [f"vendid=0x{node.vendor_id:x}", f"devid=0x{node.device_id:x}"]
    lines.append(f"sysimgguid=0x{node.system_guid:x}")
    shown = f"({node.guid:x})" if node.is_switch else ""
    lines.append(f"{guid}=0x{node.guid:x}{shown}")
    base = node.ports[0]
    note = f'"{node.description}"'
    if node.is_switch:
        kind_of_port_0 = "enhanced" if node.enhanced_port_0 else "base"
        note += f" {kind_of_port_0} port 0 lid {base.lid} lmc {base.lmc}"
    lines.append(f'{kind}\t{node.num_ports} "{node.name}"\t\t# {note}')
    for port in node.external_ports():
        peer = port.peer
        if peer is None:
            continue
        own = "" if node.is_switch else f"({port.guid:x})"
        theirs = "" if peer.node.is_switch else f"({peer.guid:x})"
        lid = peer.management.lid
        lines.append(
            f'[{port.number}]{own}\t"{peer.node.name}"[{peer.number}]{theirs}\t\t'
            f'# "{peer.node.description}" lid {lid} {rate_name(port)}'
        )
    return "\n".join(lines) + "\n"
