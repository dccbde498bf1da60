"""The InfiniBand headers: link, network, base transport, extended transport.

Names and order of fields are the InfiniBand Architecture Specification's
(volume 1, "IBA"); `wireshark=` gives tshark's name where it decodes the field.
"""

from __future__ import annotations

from ibwire_layers.schema import Header, Show, bits, header

ICRC_SIZE = 4
VCRC_SIZE = 2


@header("Local Route Header", key="lrh", section="IBA 7.7")
class LRH(Header):
    """First header of every native InfiniBand packet.

    PktLen counts 4-byte words from the first byte of the LRH to the last byte
    before the VCRC, so it includes the ICRC.
    """

    vl: int = bits(4, "VL", default=0, wireshark="infiniband.lrh.vl", doc="virtual lane")
    lver: int = bits(4, "LVer", default=0, wireshark="infiniband.lrh.lver", doc="link version")
    sl: int = bits(4, "SL", default=0, wireshark="infiniband.lrh.sl", doc="service level")
    resv2: int = bits(2, "Resv2", default=0, wireshark="infiniband.lrh.reserved2")
    lnh: int = bits(
        2,
        "LNH",
        default=2,
        wireshark="infiniband.lrh.lnh",
        doc="link next header: 0 raw EtherType, 1 raw IPv6, 2 IBA local, 3 IBA global",
    )
    dlid: int = bits(
        16, "DLID", default=0, wireshark="infiniband.lrh.dlid", doc="destination local ID"
    )
    resv5: int = bits(5, "Resv5", default=0, wireshark="infiniband.lrh.reserved5")
    pkt_len: int = bits(
        11, "PktLen", default=0, wireshark="infiniband.lrh.pktlen", doc="packet length in words"
    )
    slid: int = bits(16, "SLID", default=0, wireshark="infiniband.lrh.slid", doc="source local ID")


@header("Raw Header", key="rwh", section="IBA 5.3")
class RWH(Header):
    """Follows an LRH with LNH 0: a raw packet of some EtherType."""

    reserved: int = bits(16, "Reserved", default=0)
    ether_type: int = bits(
        16, "EtherType", show=Show.HEX, default=0x0800, wireshark="infiniband.rwh.etype"
    )


@header("Global Route Header", key="grh", section="IBA 8.3")
class GRH(Header):
    """Network header of routed InfiniBand and of RoCEv1; the layout is IPv6's."""

    ip_ver: int = bits(4, "IPVer", default=6, wireshark="infiniband.grh.ipver")
    tclass: int = bits(
        8, "TClass", default=0, wireshark="infiniband.grh.tclass", doc="traffic class"
    )
    flow_label: int = bits(
        20, "FlowLabel", default=0, show=Show.HEX, wireshark="infiniband.grh.flowlabel"
    )
    pay_len: int = bits(
        16,
        "PayLen",
        default=0,
        wireshark="infiniband.grh.paylen",
        doc="bytes after the GRH up to and including the ICRC",
    )
    nxt_hdr: int = bits(8, "NxtHdr", default=0x1B, show=Show.HEX, wireshark="infiniband.grh.nxthdr")
    hop_lmt: int = bits(8, "HopLmt", default=0, wireshark="infiniband.grh.hoplmt")
    sgid: int = bits(
        128, "SGID", default=0, show=Show.IPV6, wireshark="infiniband.grh.sgid", doc="source GID"
    )
    dgid: int = bits(
        128,
        "DGID",
        default=0,
        show=Show.IPV6,
        wireshark="infiniband.grh.dgid",
        doc="destination GID",
    )


@header("Base Transport Header", key="bth", section="IBA 9.2")
class BTH(Header):
    """First header of every InfiniBand transport packet.

    Byte 4 (FECN, BECN, Resv6a) may change in transit and is masked in the ICRC;
    Resv7 may not and is not.
    """

    opcode: int = bits(8, "OpCode", show=Show.HEX, wireshark="infiniband.bth.opcode")
    se: int = bits(1, "SE", default=0, wireshark="infiniband.bth.se", doc="solicited event")
    mig_req: int = bits(1, "M", default=0, wireshark="infiniband.bth.m", doc="migration state")
    pad_count: int = bits(
        2, "PadCnt", default=0, wireshark="infiniband.bth.padcnt", doc="zero bytes after payload"
    )
    tver: int = bits(
        4, "TVer", default=0, wireshark="infiniband.bth.tver", doc="transport header version"
    )
    pkey: int = bits(
        16,
        "P_Key",
        default=0xFFFF,
        show=Show.HEX,
        wireshark="infiniband.bth.p_key",
        doc="partition key; bit 15 is full membership",
    )
    fecn: int = bits(1, "FECN", default=0, doc="forward explicit congestion notification")
    becn: int = bits(1, "BECN", default=0, doc="backward explicit congestion notification")
    resv6a: int = bits(6, "Resv6a", default=0)
    dest_qp: int = bits(
        24,
        "DestQP",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.bth.destqp",
        doc="destination queue pair",
    )
    ack_req: int = bits(1, "A", default=0, wireshark="infiniband.bth.a", doc="acknowledge request")
    resv7: int = bits(7, "Resv7", default=0, wireshark="infiniband.bth.reserved7")
    psn: int = bits(
        24, "PSN", default=0, wireshark="infiniband.bth.psn", doc="packet sequence number"
    )


@header("Reliable Datagram Extended Transport Header", key="rdeth", section="IBA 9.3")
class RDETH(Header):
    """In every packet of a reliable-datagram connection."""

    reserved: int = bits(8, "Reserved", default=0)
    ee_context: int = bits(
        24, "EE-Context", default=0, wireshark="infiniband.rdeth.eecnxt", doc="end-to-end context"
    )


@header("Datagram Extended Transport Header", key="deth", section="IBA 9.3")
class DETH(Header):
    """In UD packets and in RD requests: the sending QP and the Q_Key."""

    qkey: int = bits(32, "Q_Key", default=0, show=Show.HEX, wireshark="infiniband.deth.q_key")
    reserved: int = bits(8, "Reserved", default=0)
    src_qp: int = bits(
        24,
        "SrcQP",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.deth.srcqp",
        doc="source queue pair",
    )


@header("RDMA Extended Transport Header", key="reth", section="IBA 9.3")
class RETH(Header):
    """Address, key and length of an RDMA operation."""

    va: int = bits(
        64, "VA", default=0, show=Show.HEX, wireshark="infiniband.reth.va", doc="virtual address"
    )
    rkey: int = bits(
        32, "R_Key", default=0, show=Show.HEX, wireshark="infiniband.reth.r_key", doc="remote key"
    )
    dma_len: int = bits(
        32,
        "DMALen",
        default=0,
        wireshark="infiniband.reth.dmalen",
        doc="bytes of the whole message, at most 2^31",
    )


@header("Atomic Extended Transport Header", key="atomiceth", section="IBA 9.3")
class AtomicETH(Header):
    """Operands of COMPARE SWAP and FETCH ADD; FETCH ADD ignores the compare data."""

    va: int = bits(64, "VA", default=0, show=Show.HEX, doc="virtual address, a multiple of 8")
    rkey: int = bits(32, "R_Key", default=0, show=Show.HEX, key="atomiceth.r_key", doc="remote key")
    swap: int = bits(
        64,
        "SwapDt",
        default=0,
        wireshark="infiniband.atomiceth.swapdt",
        doc="value to swap in or to add",
    )
    compare: int = bits(
        64, "CmpDt", default=0, wireshark="infiniband.atomiceth.cmpdt", doc="value to compare with"
    )


@header("ACK Extended Transport Header", key="aeth", section="IBA 9.3")
class AETH(Header):
    """In every acknowledgement: its kind and how many messages are complete."""

    syndrome: int = bits(
        8,
        "Syndrome",
        default=0x1F,
        show=Show.HEX,
        wireshark="infiniband.aeth.syndrome",
        doc="kind in bits 6:5; credit, RNR timer or NAK code in bits 4:0",
    )
    msn: int = bits(
        24, "MSN", default=0, wireshark="infiniband.aeth.msn", doc="message sequence number"
    )


@header("Atomic Acknowledge Extended Transport Header", key="atomicacketh", section="IBA 9.3")
class AtomicAckETH(Header):
    """The memory content before an atomic operation."""

    orig: int = bits(64, "OrigRemDt", default=0, wireshark="infiniband.atomicacketh.origremdt")


@header("Immediate Data", key="immdt", section="IBA 9.3")
class ImmDt(Header):
    """Four bytes for the receiver's completion; opaque, shown as a big-endian number."""

    imm_data: int = bits(
        32, "ImmDt", default=0, show=Show.HEX, wireshark="infiniband.immdt", doc="immediate data"
    )


@header("Invalidate Extended Transport Header", key="ieth", section="IBA 9.3")
class IETH(Header):
    """The remote key that a SEND WITH INVALIDATE revokes."""

    rkey: int = bits(
        32, "R_Key", default=0, show=Show.HEX, wireshark="infiniband.ieth", doc="key to invalidate"
    )


@header("XRC Extended Transport Header", key="xrceth", section="IBA annex A14")
class XRCETH(Header):
    """In every XRC request, never in a response: the shared receive queue it is for."""

    reserved: int = bits(8, "Reserved", default=0)
    xrc_srq: int = bits(
        24, "XRCSRQ", default=0, key="xrceth.xrcsrq", doc="XRC shared receive queue"
    )


@header("Flush Extended Transport Header", key="feth", section="IBA annex A19")
class FETH(Header):
    """Placement type and selectivity level of a FLUSH."""

    reserved: int = bits(26, "Reserved", default=0)
    sel: int = bits(
        2, "SEL", default=0, doc="selectivity: 0 range of the RETH, 1 whole memory region"
    )
    plt: int = bits(
        4, "PLT", default=0, doc="placement: bit 0 global visibility, bit 1 persistence"
    )


@header("Congestion Notification Packet reserved area", key="cnp", section="IBA annex A17.9")
class CNPReserved(Header):
    """The 16 zero bytes between the BTH of a CNP and its ICRC."""

    reserved: int = bits(128, "Reserved", default=0, show=Show.HEX)


@header("Flow Control Packet", key="infiniband_link", section="IBA 7.9.4")
class FlowControl(Header):
    """Credits of one virtual lane, in blocks of 64 bytes mod 4096."""

    op: int = bits(
        4, "Op", default=0, wireshark="infiniband_link.op", doc="0 normal, 1 initialisation"
    )
    fctbs: int = bits(
        12, "FCTBS", default=0, wireshark="infiniband_link.fctbs", doc="total blocks sent"
    )
    vl: int = bits(4, "VL", default=0, wireshark="infiniband_link.vl", doc="virtual lane, 0 to 14")
    fccl: int = bits(12, "FCCL", default=0, wireshark="infiniband_link.fccl", doc="credit limit")
    lpcrc: int = bits(
        16,
        "LPCRC",
        default=0,
        show=Show.HEX,
        wireshark="infiniband_link.lpcrc",
        doc="link packet CRC as sent",
    )


@header("IPoIB Encapsulation Header", key="ipoib", section="RFC 4391")
class IPoIB(Header):
    """First bytes of the payload of IP over InfiniBand."""

    ether_type: int = bits(16, "Type", default=0x0800, show=Show.HEX)
    reserved: int = bits(16, "Reserved", default=0)


@header("RDMA IP CM private data", key="ipcm", section="IBA annex A11")
class IPCM(Header):
    """First 36 bytes of the private data of an RDMA-CM REQ or SIDR_REQ.

    An IPv4 address is in the last four bytes of its field.
    """

    major: int = bits(4, "MajorVersion", default=0)
    minor: int = bits(4, "MinorVersion", default=0)
    ip_version: int = bits(4, "IPVersion", default=4)
    reserved: int = bits(4, "Reserved", default=0)
    src_port: int = bits(16, "SourcePort", default=0)
    src_ip: int = bits(128, "SourceIP", default=0, show=Show.IPV6)
    dst_ip: int = bits(128, "DestinationIP", default=0, show=Show.IPV6)
