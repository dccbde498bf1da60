"""The golden frames through the Scapy layers: fields, CRC verdicts, rebuilding, building."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from ipaddress import IPv4Address, IPv6Address
from operator import truediv
from typing import Any

import pytest
from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Padding, Raw

from each_case import each_case
from examples import sampled
from ibwire_layers import crc, headers
from ibwire_layers.scapy import BTH, GRH, LRH, PFC, FlowControl, mad
from vectors import ETHERNET, INFINIBAND, LINK_PACKET, RAW_IP, Vector, load

READERS: dict[int, type[Packet]] = {
    ETHERNET: Ether,
    RAW_IP: IP,
    INFINIBAND: LRH,
    LINK_PACKET: FlowControl,
}

VECTORS = load()

# Its UDP length is shorter than what IP holds, and Scapy's UDP cuts by it.
LYING_UDP_LENGTH = "libtins_svpktlib3_bad_udp_len"

# First part of an expected name -> layer.
LAYERS = {
    "eth": "Ether",
    "vlan": "Dot1Q",
    "ip": "IP",
    "ip6": "IPv6",
    "udp": "UDP",
    "lrh": "LRH",
    "rwh": "RWH",
    "grh": "GRH",
    "bth": "BTH",
    "rdeth": "RDETH",
    "deth": "DETH",
    "xrceth": "XRCETH",
    "feth": "FETH",
    "reth": "RETH",
    "atomiceth": "AtomicETH",
    "aeth": "AETH",
    "atomicacketh": "AtomicAckETH",
    "ieth": "IETH",
    "cnp": "CNPReserved",
    "infiniband_link": "FlowControl",
    "nodeinfo": "NodeInfo",
    "req": "REQ",
    "rep": "REP",
    "mra": "MRA",
    "rej": "REJ",
    "dreq": "DREQ",
    "sidr_req": "SIDR_REQ",
    "apr": "APR",
    "mcm": "MCMemberRecord",
    "ipcm": "IPCM",
}

# Expected names that are not the schema's, or not Scapy's.
FIELDS = {
    "vlan.pcp": "prio",
    "vlan.vid": "vlan",
    "ip.total_length": "len",
    "ip.checksum": "chksum",
    "ip6.flow_label": "fl",
    "ip6.payload_length": "plen",
    "ip6.next_header": "nh",
    "ip6.hop_limit": "hlim",
    "udp.length": "len",
    "udp.checksum": "chksum",
    "lrh.resv2": "resv2",
    "lrh.pktlen": "pkt_len",
    "grh.ipver": "ip_ver",
    "grh.flowlabel": "flow_label",
    "grh.paylen": "pay_len",
    "grh.nxthdr": "nxt_hdr",
    "grh.hoplmt": "hop_lmt",
    "bth.m": "mig_req",
    "bth.padcnt": "pad_count",
    "bth.p_key": "pkey",
    "bth.resv6": "resv6a",
    "bth.destqp": "dest_qp",
    "bth.a": "ack_req",
    "deth.q_key": "qkey",
    "deth.srcqp": "src_qp",
    "reth.r_key": "rkey",
    "reth.dmalen": "dma_len",
    "atomicacketh.orig_remote_data": "orig",
    "atomiceth.r_key": "rkey",
    "atomiceth.swap_or_add": "swap",
    "ieth.r_key": "rkey",
    "rdeth.eecnxt": "ee_context",
    "xrceth.xrcsrq": "xrc_srq",
    "rwh.etype": "ether_type",
    "ipcm.ipv": "ip_version",
    "nodeinfo.local_port": "local_port_num",
    "mra.message": "message_mraed",
    "rej.message": "message_rejected",
    "req.path_mtu": "path_packet_payload_mtu",
    "apr.ar_status": "ap_status",
}

NOT_FIELDS = {"ip.ecn", "ip.df", "ip.checksum_ok", "ip6.tc_ecn", "ipcm.maj_min"}


def read(vector: Vector) -> Packet:
    return READERS[vector.link_type](vector.frame)


def clear(packet: Packet) -> Packet:
    packet.clear_cache()
    return packet


# What building computes.
COMPUTED: dict[type[Packet], tuple[str, ...]] = {
    Ether: ("type",),
    Dot1Q: ("type",),
    IP: ("ihl", "len", "proto", "chksum"),
    IPv6: ("plen", "nh"),
    UDP: ("len",),
    LRH: ("lnh", "pkt_len", "vcrc"),
    GRH: ("pay_len", "nxt_hdr"),
    BTH: ("pad_count", "icrc"),
}


def composed(packet: Packet) -> Packet:
    """New layers with the same values, without those that are computed."""
    layers = []
    for layer in packet.iterpayloads():
        given = dict(layer.fields)
        for name in COMPUTED.get(type(layer), ()):
            given.pop(name)
        layers.append(type(layer)(**given))
    return reduce(truediv, layers)


@pytest.fixture(autouse=True)
def _errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "debug_dissector", True)


def compared(packet: Packet, expected: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Name, value found, value expected, of every expected value that is a field."""
    for name, value in expected.items():
        prefix, _, field = name.partition(".")
        if name in NOT_FIELDS or prefix not in LAYERS:
            continue
        tagged = name == "eth.type" and Dot1Q in packet
        layer = packet[Dot1Q if tagged else LAYERS[prefix]]
        if name == "ip.dscp":
            yield name, layer.tos, value << 2 | expected["ip.ecn"]
        elif name == "ip6.tc_dscp":
            yield name, layer.tc, value << 2 | expected["ip6.tc_ecn"]
        elif prefix == "ipcm" and field.endswith("_ip"):
            yield name, IPv6Address(getattr(layer, field)), IPv6Address(int(IPv4Address(value)))
        elif field in ("sgid", "dgid") or (prefix == "ip6" and field in ("src", "dst")):
            yield name, IPv6Address(getattr(layer, field)).packed.hex(), value
        elif name == "cnp.reserved":
            yield name, layer.reserved, int(value, 16)
        else:
            yield name, getattr(layer, FIELDS.get(name, field)), value


@each_case("vector", VECTORS, ids=str)
def test_golden_frame_has_the_expected_fields(vector: Vector) -> None:
    packet = read(vector)

    found = list(compared(packet, vector.expected))

    assert found
    assert [(n, a) for n, a, _ in found] == [(n, b) for n, _, b in found]


@each_case(
    "vector",
    [v for v in VECTORS if "bth.opcode" in v.expected and v.name != LYING_UDP_LENGTH],
    ids=str,
)
def test_extension_headers_payload_and_icrc_are_where_they_should_be(vector: Vector) -> None:
    bth = read(vector)[BTH]
    icrc = bytes.fromhex(vector.expected["icrc_wire_bytes"])
    names = {"CNP_RESERVED": "CNPReserved", "IMMDT": "ImmDt"}
    layers = [layer.__name__ for layer in bth.layers()[1:]]
    known = [names.get(name.upper(), name) for name in vector.expected["ext_headers"]]

    payload = bth.payload.do_build()[
        vector.expected["payload_offset_from_bth"] - headers.BTH.SIZE :
    ]

    assert layers[: len(known)] == known
    assert len(payload) == vector.expected.get("payload_len", 0)  # 0 where PadCnt is wrong
    assert bth.icrc == int.from_bytes(icrc)
    assert bth.icrc_ok() is vector.icrc_verifies
    if "immdt" in vector.expected:
        assert bth["ImmDt"].imm_data == int(vector.expected["immdt"], 16)


@each_case("vector", [v for v in VECTORS if v.vcrc_verifies is not None], ids=str)
def test_vcrc_is_read_and_verifies(vector: Vector) -> None:
    packet = read(vector)

    assert packet[LRH].vcrc == int.from_bytes(bytes.fromhex(vector.expected["vcrc_wire_bytes"]))
    assert crc.vcrc(vector.frame[:-2]) == vector.frame[-2:]


@each_case("vector", sampled(VECTORS, 4), ids=str)
def test_golden_frame_is_rebuilt_byte_for_byte(vector: Vector) -> None:
    assert bytes(read(vector)) == vector.frame
    assert bytes(clear(read(vector))) == vector.frame
    assert bytes(read(vector).copy()) == vector.frame


@each_case("vector", sampled([v for v in VECTORS if v.icrc_verifies], 4), ids=str)
def test_frame_is_built_from_its_values_without_lengths_and_checksums(vector: Vector) -> None:
    packet = composed(read(vector))

    assert bytes(packet) == vector.frame


def test_flow_control_check_is_computed() -> None:
    # reference/wire-formats#flow-control-packet
    assert bytes(FlowControl(fctbs=0x123, vl=3, fccl=0x456)).hex() == "01233456d19f"
    assert bytes(FlowControl(op=1, vl=0, fccl=0x07F)).hex() == "1000007f30dc"


def test_pfc_frame_is_built_from_its_values() -> None:
    vector = next(v for v in VECTORS if v.name == "eth_pfc_xoff_c3")
    source = vector.expected["eth.src"]
    times = vector.expected["macc.cbfc.pause_time"]

    frame = Ether(src=source) / PFC(class_enable=vector.expected["macc.cbfc.enbv"], time_=times)

    assert bytes(frame) == vector.frame
    assert Ether(bytes(frame))[PFC].time_ == times


def test_directed_route_smp_keeps_the_bytes_between_attribute_and_paths() -> None:
    vector = next(v for v in VECTORS if v.name == "smp_dr_get_nodedesc_2hops")
    packet = read(vector)

    paths = packet[mad.DirectedRoutePaths]

    assert [layer.__name__ for layer in packet.layers()][3:] == [
        "DirectedRouteMAD",
        "DirectedRouteSMP",
        "NodeDescription",
        "DirectedRoutePaths",
    ]
    assert paths.initial_path[:3] == list(vector.frame[-134:-131])
    assert Raw not in packet
    assert Padding not in packet
