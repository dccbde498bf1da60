"""MADs as Scapy layers: the parts that `management.read_mad` names, and building them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet, Raw

from ibwire_layers import management
from ibwire_layers.cm import CMAttribute
from ibwire_layers.mad import GSI_QKEY, MAD_SIZE, RMPP_ACTIVE, Method, MgmtClass, RMPPType
from ibwire_layers.records import SAAttribute
from ibwire_layers.scapy import BTH, DETH, mad
from ibwire_layers.scapy.mad import (
    IPCM,
    MAD,
    REP,
    REQ,
    RMPP,
    SA,
    SMP,
    DirectedRouteMAD,
    DirectedRoutePaths,
    DirectedRouteSMP,
    MADData,
    NodeInfo,
    PathRecord,
    PortCounters,
)

ROUTE = IP(src="192.0.2.1", dst="192.0.2.2") / UDP()


def gmp(*parts: Packet | bytes, dest_qp: int = 1) -> Packet:
    packet = BTH(opcode="UD_SEND_ONLY", dest_qp=dest_qp) / DETH(src_qp=dest_qp, qkey=GSI_QKEY)
    for part in parts:
        packet /= part
    return packet


def sent(packet: Packet) -> Any:
    """The packet as its receiver reads it."""
    return IP(bytes(ROUTE / packet))


def parts(packet: Packet) -> list[str]:
    """The layers of a MAD, without those that hold unknown bytes."""
    return [
        layer.__name__
        for layer in packet.layers()
        if issubclass(layer, mad.Part) and layer is not MADData
    ]


@given(st.data(), st.binary(min_size=MAD_SIZE, max_size=MAD_SIZE))
def test_layers_are_the_parts_that_are_read_elsewhere(data: st.DataObject, content: bytes) -> None:
    mgmt_class = data.draw(st.sampled_from(sorted(management.LAYOUTS)) | st.integers(0, 255))
    layout = management.LAYOUTS.get(mgmt_class, management.UNKNOWN_CLASS)
    attribute = data.draw(st.sampled_from(sorted(layout.attributes) or [0]))
    method = data.draw(st.sampled_from(Method))
    changed = bytearray(content)
    changed[1], changed[3], changed[16:18] = mgmt_class, method, attribute.to_bytes(2)
    if mgmt_class == MgmtClass.SUBN_ADM:
        # DATA of RMPP, with records 8 to 120 bytes apart.
        changed[25:27] = RMPPType.DATA, data.draw(st.sampled_from([0, RMPP_ACTIVE, 3, 7]))
        changed[28:36] = bytes(3) + b"\1" + bytes(3) + b"\xdc"
        changed[44:46] = bytes([0, data.draw(st.integers(1, 15))])

    packet = sent(gmp(bytes(changed)))

    assert parts(packet) == [name for name, _, _ in management.read_mad(changed)]
    assert packet[BTH].icrc_ok() is True


@pytest.mark.parametrize("dest_qp", [2, 0x11])
def test_other_queue_pairs_have_no_mads(dest_qp: int) -> None:
    assert parts(sent(gmp(bytes(MAD_SIZE), dest_qp=dest_qp))) == []


@pytest.mark.parametrize("size", [0, 24, 255, 257])
def test_payload_of_another_size_is_no_mad(size: int) -> None:
    assert parts(sent(gmp(bytes(size)))) == []


def test_mad_is_filled_up_to_256_bytes() -> None:
    packet = sent(gmp(MAD(), SMP(mkey=5)))

    assert len(packet[DETH].payload.do_build()) == MAD_SIZE
    assert packet[SMP].mkey == 5


def test_data_fills_up_to_the_attribute_and_to_the_paths() -> None:
    # IBA 16.1: PortCounters are at byte 64. IBA 14.2: paths are at byte 128.
    counters = gmp(
        MAD(mgmt_class=MgmtClass.PERF, attribute_id=0x12),
        MADData(),
        PortCounters(port_xmit_data=7),
    )
    node = gmp(
        DirectedRouteMAD(attribute_id=0x11),
        DirectedRouteSMP(),
        NodeInfo(num_ports=3),
        MADData(),
        DirectedRoutePaths(initial_path=[0, 1, 2]),
        dest_qp=0,
    )

    assert len(bytes(counters[MAD])[:64]) == 64
    assert bytes(counters[MAD])[64 : 64 + len(bytes(PortCounters()))] == bytes(
        PortCounters(port_xmit_data=7)
    )
    assert bytes(node[DirectedRouteMAD])[128:132] == b"\0\1\2\0"
    assert sent(counters)[PortCounters].port_xmit_data == 7
    assert sent(node)[NodeInfo].num_ports == 3
    assert sent(node)[DirectedRoutePaths].initial_path[:4] == [0, 1, 2, 0]


def test_request_of_rdma_cm_carries_addresses_and_private_data() -> None:
    # The service ID of RDMA_PS_TCP and port 7174, as rping has it.
    request = gmp(
        MAD(mgmt_class=MgmtClass.COMM_MGT, method=Method.SEND, attribute_id=CMAttribute.REQ),
        REQ(service_id=0x0000000001061C06),
        IPCM(src_port=9, src_ip="::192.0.2.1"),
        b"hello",
    )

    packet = sent(request)

    assert packet[IPCM].src_port == 9
    assert packet[Raw].load == b"hello".ljust(92 - 36, b"\0")


def test_request_of_another_service_has_opaque_private_data() -> None:
    common = MAD(mgmt_class=MgmtClass.COMM_MGT, method=Method.SEND, attribute_id=CMAttribute.REQ)

    packet = sent(gmp(common, REQ(service_id=0x1000000000000001), b"hello"))

    assert IPCM not in packet
    assert packet[Raw].load == b"hello".ljust(92, b"\0")


def test_record_of_subnet_administration_follows_its_header() -> None:
    common = MAD(
        mgmt_class=MgmtClass.SUBN_ADM,
        method=Method.GET_RESP,
        attribute_id=SAAttribute.PATH_RECORD,
    )

    packet = sent(gmp(common, RMPP(), SA(component_mask=3), PathRecord(dgid="fe80::2")))

    assert packet[SA].component_mask == 3
    assert packet[PathRecord].dgid == "fe80::2"


def test_summary_names_class_and_method() -> None:
    common = MAD(mgmt_class=MgmtClass.COMM_MGT, method=Method.SEND, transaction_id=0xAB)

    summary = sent(gmp(common, REP())).summary()

    assert "UD_SEND_ONLY qp=0x1 psn=0 / DETH src_qp=0x1 qkey=0x80010000" in summary
    assert "MAD COMM_MGT SEND attribute=0x0 tid=0xab" in summary
