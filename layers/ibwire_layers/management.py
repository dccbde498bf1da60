"""The parts of a MAD: tables by management class and attribute, and a parser that uses them.

Every reader of MADs (`read_mad` here, the Construct grammar, the Scapy layers) uses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ibwire_layers import attributes as sm
from ibwire_layers import cm
from ibwire_layers import performance as perf
from ibwire_layers import records as sa
from ibwire_layers.errors import DecodeError, Fault
from ibwire_layers.headers import IPCM
from ibwire_layers.mad import (
    MAD,
    MAD_SIZE,
    RMPP,
    RMPP_ACTIVE,
    RMPP_LAST,
    SA,
    SMP,
    VENDOR_RANGE_2,
    ClassPortInfo,
    DirectedRouteMAD,
    DirectedRoutePaths,
    DirectedRouteSMP,
    Method,
    MgmtClass,
    Notice,
    RMPPType,
    VendorOUI,
)
from ibwire_layers.schema import Bytes, Header

Parts = tuple[type[Header], ...]
"""Consecutive headers."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The MAD of one management class."""

    common: type[Header]
    """The first 24 bytes."""
    headers: Parts
    """Headers after them."""
    data_offset: int
    """Byte of the MAD at which the attribute begins."""
    data_size: int
    """Bytes that the attribute may fill."""
    attributes: dict[int, Parts] = field(default_factory=dict)
    """AttributeID -> parts of the attribute."""
    trailer: Parts = ()
    """Headers after the attribute's bytes."""


CLASS_PORT_INFO: dict[int, Parts] = {0x0001: (ClassPortInfo,)}

SM_ATTRIBUTES: dict[int, Parts] = {
    sm.SMAttribute.NOTICE: (Notice,),
    sm.SMAttribute.NODE_DESCRIPTION: (sm.NodeDescription,),
    sm.SMAttribute.NODE_INFO: (sm.NodeInfo,),
    sm.SMAttribute.SWITCH_INFO: (sm.SwitchInfo,),
    sm.SMAttribute.GUID_INFO: (sm.GUIDInfo,),
    sm.SMAttribute.PORT_INFO: (sm.PortInfo,),
    sm.SMAttribute.P_KEY_TABLE: (sm.PKeyTable,),
    sm.SMAttribute.SL_TO_VL_MAPPING_TABLE: (sm.SLtoVLMappingTable,),
    sm.SMAttribute.VL_ARBITRATION_TABLE: (sm.VLArbitrationTable,),
    sm.SMAttribute.LINEAR_FORWARDING_TABLE: (sm.LinearForwardingTable,),
    sm.SMAttribute.MULTICAST_FORWARDING_TABLE: (sm.MulticastForwardingTable,),
    sm.SMAttribute.SM_INFO: (sm.SMInfo,),
}

SA_RECORDS: dict[int, Parts] = {
    **CLASS_PORT_INFO,
    sa.SAAttribute.NOTICE: (Notice,),
    sa.SAAttribute.INFORM_INFO: (sa.InformInfo,),
    sa.SAAttribute.NODE_RECORD: (sa.NodeRecordID, sm.NodeInfo, sm.NodeDescription),
    sa.SAAttribute.PORT_INFO_RECORD: (sa.PortInfoRecordID, sm.PortInfo),
    sa.SAAttribute.SL_TO_VL_MAPPING_TABLE_RECORD: (
        sa.SLtoVLMappingTableRecordID,
        sm.SLtoVLMappingTable,
    ),
    sa.SAAttribute.SWITCH_INFO_RECORD: (sa.SwitchInfoRecordID, sm.SwitchInfo),
    sa.SAAttribute.LINEAR_FORWARDING_TABLE_RECORD: (
        sa.LinearForwardingTableRecordID,
        sm.LinearForwardingTable,
    ),
    sa.SAAttribute.MULTICAST_FORWARDING_TABLE_RECORD: (
        sa.MulticastForwardingTableRecordID,
        sm.MulticastForwardingTable,
    ),
    sa.SAAttribute.SM_INFO_RECORD: (sa.SMInfoRecordID, sm.SMInfo),
    sa.SAAttribute.LINK_RECORD: (sa.LinkRecord,),
    sa.SAAttribute.GUID_INFO_RECORD: (sa.GUIDInfoRecordID, sm.GUIDInfo),
    sa.SAAttribute.SERVICE_RECORD: (sa.ServiceRecord,),
    sa.SAAttribute.P_KEY_TABLE_RECORD: (sa.PKeyTableRecordID, sm.PKeyTable),
    sa.SAAttribute.PATH_RECORD: (sa.PathRecord,),
    sa.SAAttribute.VL_ARBITRATION_TABLE_RECORD: (
        sa.VLArbitrationTableRecordID,
        sm.VLArbitrationTable,
    ),
    sa.SAAttribute.MC_MEMBER_RECORD: (sa.MCMemberRecord,),
    sa.SAAttribute.INFORM_INFO_RECORD: (sa.InformInfoRecordID, sa.InformInfo),
}

PERF_ATTRIBUTES: dict[int, Parts] = {
    **CLASS_PORT_INFO,
    perf.PerfAttribute.PORT_COUNTERS: (perf.PortCounters,),
    perf.PerfAttribute.PORT_COUNTERS_EXTENDED: (perf.PortCountersExtended,),
}

CM_MESSAGES: dict[int, Parts] = {
    **CLASS_PORT_INFO,
    cm.CMAttribute.REQ: (cm.REQ,),
    cm.CMAttribute.MRA: (cm.MRA,),
    cm.CMAttribute.REJ: (cm.REJ,),
    cm.CMAttribute.REP: (cm.REP,),
    cm.CMAttribute.RTU: (cm.RTU,),
    cm.CMAttribute.DREQ: (cm.DREQ,),
    cm.CMAttribute.DREP: (cm.DREP,),
    cm.CMAttribute.SIDR_REQ: (cm.SIDR_REQ,),
    cm.CMAttribute.SIDR_REP: (cm.SIDR_REP,),
    cm.CMAttribute.LAP: (cm.LAP,),
    cm.CMAttribute.APR: (cm.APR,),
}

_VENDOR_2 = Layout(MAD, (RMPP, VendorOUI), 40, 216)

LAYOUTS: dict[int, Layout] = {
    MgmtClass.SUBN_LID_ROUTED: Layout(MAD, (SMP,), 64, 64, SM_ATTRIBUTES),
    MgmtClass.SUBN_DIRECTED_ROUTE: Layout(
        DirectedRouteMAD, (DirectedRouteSMP,), 64, 64, SM_ATTRIBUTES, (DirectedRoutePaths,)
    ),
    MgmtClass.SUBN_ADM: Layout(MAD, (RMPP, SA), 56, 200, SA_RECORDS),
    MgmtClass.PERF: Layout(MAD, (), 64, 192, PERF_ATTRIBUTES),
    MgmtClass.DEV_MGT: Layout(MAD, (), 64, 192, CLASS_PORT_INFO),
    MgmtClass.COMM_MGT: Layout(MAD, (), 24, 232, CM_MESSAGES),
    **dict.fromkeys(VENDOR_RANGE_2, _VENDOR_2),
}
"""Management class -> layout, for the known classes."""

UNKNOWN_CLASS = Layout(MAD, (), 24, 232)
"""The layout of any other class: only the common header is known."""

Found = tuple[str, int, Header]
"""Name of a part, its byte offset in the MAD, the part."""


def read_mad(payload: Bytes) -> list[Found]:
    """The known parts of a MAD, in wire order.

    Stops at an unknown class or attribute. Raises `DecodeError` if the payload is shorter than a
    MAD; bytes beyond a MAD are ignored.
    """
    if len(payload) < MAD_SIZE:
        raise DecodeError(Fault.TRUNCATED, "MAD", len(payload))
    layout = LAYOUTS.get(payload[1], UNKNOWN_CLASS)
    found = list(_run((layout.common, *layout.headers), payload, 0))
    parts = layout.attributes.get(int.from_bytes(payload[16:18]), ())
    for offset in _attribute_offsets(found, layout, parts):
        found += _run(parts, payload, offset)
    found += _private(found, payload)
    found += _run(layout.trailer, payload, layout.data_offset + layout.data_size)
    return found


def record_spans(rmpp: RMPP, sa_header: SA, method: int, record_size: int, room: int) -> list[int]:
    """Offsets of the complete records in the data of a MAD with RMPP.

    record_size: bytes of the requested record. room: bytes of data.
    A table is a stream of records, split into segments at any byte; a record that continues from
    or into another segment is omitted.

    Source: IBA 13.6; PayloadLength of the last segment as Linux
    `mad_rmpp.c` sends it, with the 20 bytes of the SA header.
    """
    active = rmpp.flags & RMPP_ACTIVE
    if active and rmpp.type != RMPPType.DATA:
        return []
    if not active or method not in _TABLES:
        return [0]
    stride = 8 * sa_header.attribute_offset
    if stride < record_size or rmpp.segment_number < 1:
        return []
    end = room
    if rmpp.flags & RMPP_LAST and rmpp.payload_length:
        end = min(room, rmpp.payload_length - SA.SIZE)
    first = -(rmpp.segment_number - 1) * room % stride
    return list(range(first, end - record_size + 1, stride))


_TABLES = (Method.GET_TABLE_RESP, Method.GET_MULTI_RESP)


def _run(parts: Parts, payload: Bytes, offset: int) -> Iterator[Found]:
    for part in parts:
        yield part.__name__, offset, part.unpack(payload, offset)
        offset += part.SIZE


def _attribute_offsets(found: list[Found], layout: Layout, parts: Parts) -> list[int]:
    """Byte offsets of the attribute, more than one in a table of records."""
    if not parts:
        return []
    sizes = sum(part.SIZE for part in parts)
    match found:
        case [(_, _, MAD() as common), (_, _, RMPP() as rmpp), (_, _, SA() as header)]:
            spans = record_spans(rmpp, header, common.method, sizes, layout.data_size)
            return [layout.data_offset + span for span in spans]
    return [layout.data_offset]


def _private(found: list[Found], payload: Bytes) -> Iterator[Found]:
    """The addresses in the private data of the last part, if it has any."""
    _, offset, message = found[-1]
    if has_addresses(message):
        at = next(f.offset // 8 for f in message.FIELDS if f.name == "private_data")
        yield from _run((IPCM,), payload, offset + at)


def has_addresses(message: Header) -> bool:
    """Whether private data of a CM message begins with `IPCM`."""
    match message:
        case cm.REQ(service_id=service_id) | cm.SIDR_REQ(service_id=service_id):
            return cm.has_ip_addresses(service_id)
    return False
