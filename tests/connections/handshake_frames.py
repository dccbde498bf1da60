"""Handshakes as frames: messages of connection managers, and lines of programs over TCP."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO
from typing import Any

from ibwire.capture import open_capture
from ibwire.capture.pcapng import PcapngWriter
from ibwire.connections.cm_messages import received
from ibwire.connections.handshakes import Disconnection, Handshake, Handshakes
from ibwire.dissect import Columns
from ibwire_layers import cm, opcodes, outer
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD, Method, MgmtClass
from ibwire_layers.outer import EtherType, IPProto, LinkType
from ibwire_layers.packet import IBRoute, Packet, RoCEv1Route, RoCEv2Route, Route
from ibwire_layers.schema import Header
from strategies import ROUTE4, ethernet, ipv4, ipv6

CLIENT, SERVER = 0x0A000001, 0x0A000002

NAMES = (
    "vlan-rc-pingpong.pcap",
    "uc-write-bw.pcap",
    "rcx-ipv6.pcap",
    "rcx-all-ops.pcap",
    "srq-pingpong.pcap",
    "cm-rping.pcap",
    "cm-ucmatose.pcap",
    "drop-one-last.b.pcap",
    "ecn-ce.b.pcap",
    "fmt-pcapng.pcapng",
    "rnr-multi-packet.pcap",
    "nak-send-too-big.pcap",
)
"""Captures of programs that talk over TCP or with their connection managers."""

START = 1_700_000_000 * 10**9


def chunks(source: Any, rows: int = 1 << 20) -> list[Columns]:
    with open_capture(source) as capture:
        return [Columns(part) for batch in capture.batches() for part in batch.split(rows)]


def captured(
    frames: Iterable[bytes], *, snaplen: int = 1 << 16, link: int = LinkType.ETHERNET
) -> list[Columns]:
    file = BytesIO()
    with PcapngWriter(file, link) as writer:
        for nth, data in enumerate(frames):
            writer.write(data[:snaplen], START + nth, wire_len=len(data))
    file.seek(0)
    return chunks(file)


def handshakes_of(parts: Iterable[Columns]) -> list[Handshake]:
    listener = Handshakes()
    return [each for columns in parts for each in listener.take(columns, received(columns))]


def closings_of(parts: Iterable[Columns]) -> list[Disconnection]:
    listener, found = Handshakes(), []
    for columns in parts:
        listener.take(columns, received(columns))
        found += listener.disconnections
    return found


def qpns(agreements: Iterable[Handshake]) -> list[tuple[int, int]]:
    return [(each.one.qpn, each.other.qpn) for each in agreements]


def back(route: Route) -> Route:
    match route:
        case RoCEv2Route(ip=ip):
            return replace(route, ip=replace(ip, src=ip.dst, dst=ip.src))
        case RoCEv1Route(grh=grh):
            return replace(route, grh=replace(grh, sgid=grh.dgid, dgid=grh.sgid))
        case IBRoute(lrh=lrh, grh=grh):
            turned = replace(grh, sgid=grh.dgid, dgid=grh.sgid) if grh else None
            return IBRoute(replace(lrh, slid=lrh.dlid, dlid=lrh.slid), turned)


def datagram(message: Header, route: Route = ROUTE4, *, transaction: int = 0) -> bytes:
    """A message of the connection manager, on its way."""
    number = cm.CMAttribute[type(message).__name__]
    head = MAD(
        mgmt_class=MgmtClass.COMM_MGT,
        class_version=2,
        method=Method.SEND,
        attribute_id=number,
        transaction_id=transaction,
    )
    bth = h.BTH(opcode=opcodes.OpCode.UD_SEND_ONLY, dest_qp=1)
    deth = h.DETH(qkey=0x80010000, src_qp=1)
    return Packet(route, bth, (deth,), head.pack() + message.pack()).repaired().build()


REQ = cm.REQ(
    local_comm_id=7,
    local_qpn=0x111,
    starting_psn=0xA,
    path_packet_payload_mtu=3,
    initiator_depth=9,
    responder_resources=4,
    retry_count=5,
    rnr_retry_count=2,
    primary_local_ack_timeout=14,
    end_to_end_flow_control=1,
)
REP = cm.REP(
    local_comm_id=8,
    remote_comm_id=7,
    local_qpn=0x222,
    starting_psn=0xB,
    initiator_depth=6,
    responder_resources=3,
    rnr_retry_count=7,
)


PORT = 18515


class Talk:
    """A TCP connection, as frames."""

    def __init__(self, client_port: int = 40000, port: int = PORT, *, six: bool = False) -> None:
        self.ports = client_port, port
        self.next = [0xFFFFFFF0, 5000]
        self.six = six
        self.frames: list[bytes] = []

    def say(self, side: int, data: bytes, flags: int = 0x18) -> Talk:
        """side: 0 for the client."""
        source, destination = self.ports[side], self.ports[1 - side]
        size, sequence = 8 << 4, self.next[side]
        head = struct.pack(">HHIIBBHHH", source, destination, sequence, 0, size, flags, 512, 0, 0)
        segment = head + bytes(12) + data
        if self.six:
            fixed = outer.IPv6.unpack(ipv6(segment, IPProto.TCP))
            if side:
                fixed = replace(fixed, src=fixed.dst, dst=fixed.src)
            self.frames.append(ethernet(fixed.pack() + segment, EtherType.IPV6))
        else:
            ends = (CLIENT, SERVER) if side == 0 else (SERVER, CLIENT)
            packet = ipv4(segment, IPProto.TCP, src=ends[0], dst=ends[1])
            self.frames.append(ethernet(packet))
        self.next[side] = (self.next[side] + len(data) + (flags & 2 > 0)) % 2**32
        return self

    def skip(self, side: int, data: bytes) -> Talk:
        """What the capture has missed."""
        self.say(side, data)
        self.frames.pop()
        return self

    def begin(self) -> Talk:
        return self.say(0, b"", 0x02).say(1, b"", 0x12)


def pingpong(qpn: int, psn: int = 0, gid: int = 0, lid: int = 0) -> bytes:
    return b"%04x:%06x:%06x:%032x\0" % (lid, qpn, psn, gid)


def perftest(qpn: int, psn: int = 0, reads: int = 1) -> bytes:
    """A line of write-bw-2qp.pcap with other numbers."""
    gid = b"00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00"
    numbers = b"0000:%04x:%06x:%06x:00003e33:0000560ef7d13000:" % (reads, qpn, psn)
    return numbers + gid + b":00000000:\0"


PREAMBLE = [b"6.06" + bytes(12), b"\0\0\0\1", b"\0\0\0@"]
"""What perftest sends before the MTU."""
