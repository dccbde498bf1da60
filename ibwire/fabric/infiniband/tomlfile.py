"""Topologies as TOML: nodes and links, or another topology with changes.

    topology = "fattree:ports=8"
    without = ["leaf3[5]", "node-0-1"]

    [[link]]
    between = ["leaf0[5]", "spine0[1]"]
    rate = "1xEDR"

Order is of no importance: first `without` is taken out, then nodes are added, then links.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ibwire.base.errors import EncodeError, IbwireError
from ibwire.base.toml import Document, Table, hint, read_content, reason_of, shown
from ibwire.fabric.infiniband.counters import Counters
from ibwire.fabric.infiniband.speeds import Speed, Width, read_rate
from ibwire.fabric.infiniband.subnet import Node, Port, Subnet, rate_of

SUFFIX = ".toml"

OF_TRAFFIC = ("traffic", "flow", "fault", "expect")
"""Keys of the file that are not about the topology: `ibwire fabric traffic` reads them."""
_GUID_STEP = 0x100
"""Between two GUIDs that the file does not give; those of the ports of an adapter lie in it."""
_FIRST_GUID = {True: 0x3000_0000, False: 0x4000_0000}
_PORT = re.compile(r"(?P<node>.+)\[(?P<port>\d{1,6})\]")
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}")


def read_toml(path: Path, find: Callable[[str], Subnet]) -> Subnet:
    """The subnet of a TOML file.

    find: gives the topology that is changed, by its name. Raises `ScriptError` with file, line and
    column.
    """
    top = Document(read_content(path), str(path)).top
    subnet = _base(top, find)
    rate = _rate(top, (Width.X4, Speed.EDR))
    for place, name in enumerate(_texts(top, "without")):
        _take_out(top, place, subnet, name)
    for kind in ("switch", "host"):
        for table in top.tables(kind):
            _add(table, subnet, is_switch=kind == "switch")
    for table in top.tables("link"):
        _connect(table, subnet, rate)
    for key in OF_TRAFFIC:
        top.take(key)
    top.end()
    if not subnet.nodes:
        raise top.error(None, "no node: [[switch]] and [[host]], or topology, give them")
    return subnet


def _base(top: Table, find: Callable[[str], Subnet]) -> Subnet:
    name = top.take_text("topology", None)
    if name is None:
        return Subnet()
    if name.endswith(SUFFIX):
        raise top.error("topology", f"{shown(name)} is a TOML file; a key, a net file or a name")
    if "\0" in name:
        raise top.error("topology", f"{shown(name)} is not a name")
    try:
        return find(name)
    except OSError as error:
        raise top.error("topology", f"{name}: {error.strerror}") from None
    except IbwireError as error:
        raise top.error("topology", str(error)) from None


def _texts(table: Table, key: str) -> list[str]:
    """A list of strings."""
    value = table.take(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise table.error(key, f"{shown(value)} is not a list of names")
    return value


def _take_out(top: Table, place: int, subnet: Subnet, name: str) -> None:
    """Remove a link or a node."""
    path = ("without", place)
    node = subnet.nodes.get(name)
    if node is not None:
        for port in node.external_ports():
            if port.peer is not None:
                _separate(subnet, port)
        subnet.remove(node)
        return
    if _PORT.fullmatch(name) is None:
        known = hint(name, subnet.nodes)
        raise top.error_at(path, f"{shown(name)} is not a node of this topology{known}")
    try:
        port = _port(subnet, name)
    except EncodeError as error:
        raise top.error_at(path, str(error)) from None
    if port.peer is None:
        raise top.error_at(path, f"{name} has no link")
    _separate(subnet, port)


def _separate(subnet: Subnet, port: Port) -> None:
    """Take a link away as if it had never been there."""
    peer = port.peer
    assert peer is not None
    subnet.disconnect(port)
    for end in (port, peer):
        end.counters = Counters()


def _add(table: Table, subnet: Subnet, *, is_switch: bool) -> None:
    name = table.take_text("name", None)
    if name is None:
        raise table.error(None, "a node needs a name")
    if not name.isprintable():
        raise table.error("name", f"{shown(name)} has characters that cannot be printed")
    ports = table.take_int("ports", 36 if is_switch else 1, 1, 254)
    settings: dict[str, Any] = {
        "guid": _guid(table, "guid") or _free_guid(subnet, is_switch=is_switch),
        "description": table.take_text("description", None),
        "system_guid": _guid(table, "system_guid"),
        "vendor_id": table.take_int("vendor_id", 0, 0, 0xFFFFFF),
        "device_id": table.take_int("device_id", 0, 0, 0xFFFF),
    }
    table.end()
    try:
        subnet.add(Node(name, is_switch=is_switch, num_ports=ports, **settings))
    except EncodeError as error:
        raise table.error("name" if error.field == "node" else None, str(error)) from None


def _guid(table: Table, key: str) -> int | None:
    """A GUID: a number, or a string where it has 64 bits, which integers of TOML have not."""
    value = table.take(key)
    if value is None:
        return None
    if isinstance(value, str) and _HEX.fullmatch(value):
        value = int(value, 16)
    return table.integer(key, value, 1, (1 << 64) - 1)


def _free_guid(subnet: Subnet, *, is_switch: bool) -> int:
    guid = _FIRST_GUID[is_switch] + len(subnet.nodes) * _GUID_STEP
    while subnet.has_guid(guid):
        guid += _GUID_STEP
    return guid


def _connect(table: Table, subnet: Subnet, rate: tuple[Width, Speed]) -> None:
    """Add a link, or change the rate of one."""
    names = _texts(table, "between")
    if len(names) != 2:
        raise table.error(None, 'a link needs between = ["NODE[PORT]", "NODE[PORT]"]')
    ends = []
    for place, name in enumerate(names):
        try:
            ends.append(_port(subnet, name))
        except EncodeError as error:
            raise table.error_at((*table.path, "between", place), str(error)) from None
    near, far = ends
    if near.peer is far:
        found = rate_of(near)
        rate = (found[1], found[0]) if found is not None else rate
        _separate(subnet, near)
    rate = _rate(table, rate)
    table.end()
    for place, port in enumerate(ends):
        if port.peer is not None:
            other = f"{port.peer.node.name}[{port.peer.number}]"
            reason = f"{names[place]} is connected to {other}; without takes that link out"
            raise table.error_at((*table.path, "between", place), reason)
    if near is far:
        raise table.error("between", f"{names[0]} twice")
    subnet.connect(near, far, *rate)


def _rate(table: Table, default: tuple[Width, Speed]) -> tuple[Width, Speed]:
    text = table.take_text("rate", None)
    if text is None:
        return default
    try:
        return read_rate(text)
    except EncodeError as error:
        raise table.error("rate", reason_of(error)) from None


def _port(subnet: Subnet, name: str) -> Port:
    """A port written as NODE[PORT]; raises `EncodeError`."""
    matched = _PORT.fullmatch(name)
    if matched is None or matched["node"] not in subnet.nodes:
        known = "NODE[PORT] with a node of this topology, for example sw0[1]"
        raise EncodeError("port", name, known)
    return subnet.port(matched["node"], int(matched["port"]))
