"""Records of subnet administration: what they have, and how a request selects (IBA 15.2.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from ibwire.fabric.infiniband.subnet import Node, Port
from ibwire.sm.discovery import View, end_ports_of
from ibwire_layers.attributes import (
    GUIDInfo,
    LinearForwardingTable,
    MulticastForwardingTable,
    NodeDescription,
    NodeInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    SwitchInfo,
    VLArbitrationTable,
)
from ibwire_layers.records import (
    GUIDInfoRecordID,
    LinearForwardingTableRecordID,
    LinkRecord,
    MulticastForwardingTableRecordID,
    NodeRecordID,
    PathRecord,
    PKeyTableRecordID,
    PortInfoRecordID,
    SAAttribute,
    ServiceRecord,
    SLtoVLMappingTableRecordID,
    SwitchInfoRecordID,
    VLArbitrationTableRecordID,
)
from ibwire_layers.schema import Header

Layout = tuple[type[Header], ...]
"""The headers of a record."""

_SPLIT: dict[tuple[type[Header], str], tuple[int, ...]] = {
    (PathRecord, "service_id"): (32, 32),
    (ServiceRecord, "service_data"): (8,) * 16 + (16,) * 8 + (32,) * 4 + (64,) * 2,
}
"""Fields that are several components: their bits."""


@cache
def components(layout: Layout) -> tuple[int, ...]:
    """For each bit of the component mask the bits of the record, as one number."""
    size = 8 * sum(header.SIZE for header in layout)
    masks = []
    start = 0
    for header in layout:
        for field in header.FIELDS:
            at = start + field.offset
            for bits in _SPLIT.get((header, field.name), (field.size,)):
                masks.append(((1 << bits) - 1) << (size - at - bits))
                at += bits
        start += 8 * header.SIZE
    return tuple(masks)


def selected(layout: Layout, mask: int, asked: bytes, records: Iterable[bytes]) -> Iterator[bytes]:
    """The records that agree with the asked one in the components of the mask."""
    size = sum(header.SIZE for header in layout)
    wanted = 0
    for bit, part in enumerate(components(layout)):
        if mask >> bit & 1:
            wanted |= part
    value = int.from_bytes(asked[:size].ljust(size, b"\0"), "big") & wanted
    for record in records:
        if int.from_bytes(record, "big") & wanted == value:
            yield record


def _lid(port: Port) -> int:
    return port.management.lid


def _nodes(view: View) -> Iterator[bytes]:
    for node in view.subnet.nodes.values():
        text = NodeDescription(node_string=node.description.encode()[:64].ljust(64, b"\0")).pack()
        for port in end_ports_of(node):
            info = node.node_info(port.number).pack()
            yield NodeRecordID(lid=_lid(port)).pack() + info + text


def _ports(view: View) -> Iterator[bytes]:
    for node in view.subnet.nodes.values():
        for port in node.ports if node.is_switch else end_ports_of(node):
            yield PortInfoRecordID(endport_lid=_lid(port), port_num=port.number).pack() + bytes(
                port.info[: PortInfo.SIZE]
            )


def _switches(view: View) -> list[Node]:
    return [node for node in view.subnet.nodes.values() if node.is_switch]


def _switch_infos(view: View) -> Iterator[bytes]:
    for node in _switches(view):
        info = bytes(node.info[: SwitchInfo.SIZE])
        yield SwitchInfoRecordID(lid=node.ports[0].lid).pack() + info


def _linear(view: View) -> Iterator[bytes]:
    for node in _switches(view):
        for block, start in enumerate(range(0, len(node.lft), 64)):
            head = LinearForwardingTableRecordID(lid=node.ports[0].lid, block_num=block).pack()
            yield head + bytes(node.lft[start : start + 64]).ljust(64, b"\xff")


def _multicast(view: View) -> Iterator[bytes]:
    for node in _switches(view):
        for (block, position), data in sorted(node.mft.items()):
            head = MulticastForwardingTableRecordID(
                lid=node.ports[0].lid, block_num=block, position=position
            )
            yield head.pack() + data


def _links(view: View) -> Iterator[bytes]:
    for pair in view.subnet.links():
        for near, far in (pair, pair[::-1]):
            yield LinkRecord(
                from_lid=_lid(near), from_port=near.number, to_port=far.number, to_lid=_lid(far)
            ).pack()


def _all_ports(view: View) -> Iterator[Port]:
    for node in view.subnet.nodes.values():
        yield from node.ports if node.is_switch else end_ports_of(node)


def _lanes(view: View) -> Iterator[bytes]:
    for port in _all_ports(view):
        for came, data in sorted(port.sl2vl.items()):
            head = SLtoVLMappingTableRecordID(
                lid=_lid(port),
                input_port_num=came,
                output_port_num=port.number if port.node.is_switch else 0,
            )
            yield head.pack() + data[:8].ljust(8, b"\0")


def _arbitration(view: View) -> Iterator[bytes]:
    for port in _all_ports(view):
        for part, data in sorted(port.arbitration.items()):
            head = VLArbitrationTableRecordID(
                lid=_lid(port), output_port_num=port.number, block_num=part
            )
            yield head.pack() + data


def _pkeys(view: View) -> Iterator[bytes]:
    for port in _all_ports(view):
        for block, start in enumerate(range(0, len(port.pkeys), 64)):
            head = PKeyTableRecordID(lid=_lid(port), block_num=block, port_num=port.number)
            yield head.pack() + bytes(port.pkeys[start : start + 64]).ljust(64, b"\0")


def _guids(view: View) -> Iterator[bytes]:
    for port in view.end_ports():
        yield GUIDInfoRecordID(lid=port.lid).pack() + GUIDInfo(guid=(port.guid, *(0,) * 7)).pack()


RECORDS: dict[int, tuple[Layout, Callable[[View], Iterator[bytes]]]] = {
    SAAttribute.NODE_RECORD: ((NodeRecordID, NodeInfo, NodeDescription), _nodes),
    SAAttribute.PORT_INFO_RECORD: ((PortInfoRecordID, PortInfo), _ports),
    SAAttribute.SWITCH_INFO_RECORD: ((SwitchInfoRecordID, SwitchInfo), _switch_infos),
    SAAttribute.LINEAR_FORWARDING_TABLE_RECORD: (
        (LinearForwardingTableRecordID, LinearForwardingTable),
        _linear,
    ),
    SAAttribute.MULTICAST_FORWARDING_TABLE_RECORD: (
        (MulticastForwardingTableRecordID, MulticastForwardingTable),
        _multicast,
    ),
    SAAttribute.LINK_RECORD: ((LinkRecord,), _links),
    SAAttribute.SL_TO_VL_MAPPING_TABLE_RECORD: (
        (SLtoVLMappingTableRecordID, SLtoVLMappingTable),
        _lanes,
    ),
    SAAttribute.VL_ARBITRATION_TABLE_RECORD: (
        (VLArbitrationTableRecordID, VLArbitrationTable),
        _arbitration,
    ),
    SAAttribute.P_KEY_TABLE_RECORD: ((PKeyTableRecordID, PKeyTable), _pkeys),
    SAAttribute.GUID_INFO_RECORD: ((GUIDInfoRecordID, GUIDInfo), _guids),
}
"""Records that are read from what the manager knows of the subnet."""
