"""The packets of a stream one by one, by the emulator's encoder: what the builder must equal.

Nothing here is shared with `ibwire.traffic` but what a `Stream` says: messages are cut as
the specification has it, and every byte comes from `ibwire.rc` and `ibwire_layers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ibwire.rc.device import (
    datagram_source_port,
    flow_label_of,
    flow_source_port,
    gid_of,
    mac_of,
)
from ibwire.rc.packet import FORMS, TransportPacket, encode
from ibwire.rc.path import Path, ethernet_route
from ibwire.traffic.stream import Link, Payload, PortRule, Stream, Verb
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import Packet, RoCEv2Route

SEND_OPCODES = {
    (Service.RC, Verb.SEND): (0x00, 0x01, 0x02, 0x04),
    (Service.RC, Verb.SEND_IMM): (0x00, 0x01, 0x03, 0x05),
    (Service.RC, Verb.SEND_INV): (0x00, 0x01, 0x16, 0x17),
    (Service.RC, Verb.WRITE): (0x06, 0x07, 0x08, 0x0A),
    (Service.RC, Verb.WRITE_IMM): (0x06, 0x07, 0x09, 0x0B),
    (Service.UC, Verb.SEND): (0x20, 0x21, 0x22, 0x24),
    (Service.UC, Verb.SEND_IMM): (0x20, 0x21, 0x23, 0x25),
    (Service.UC, Verb.WRITE): (0x26, 0x27, 0x28, 0x2A),
    (Service.UC, Verb.WRITE_IMM): (0x26, 0x27, 0x29, 0x2B),
    (Service.UD, Verb.SEND): (None, None, None, 0x64),
    (Service.UD, Verb.SEND_IMM): (None, None, None, 0x65),
}
"""First, middle, last, only (reference/wire-formats#opcodes)."""

SINGLE_OPCODES = {
    Verb.READ: OpCode.RC_RDMA_READ_REQUEST,
    Verb.CAS: OpCode.RC_COMPARE_SWAP,
    Verb.FADD: OpCode.RC_FETCH_ADD,
    Verb.ACK: OpCode.RC_ACKNOWLEDGE,
    Verb.CNP: OpCode.CNP,
}


class Sender:
    """The packets of one queue pair, one after the other."""

    def __init__(self, stream: Stream, index: int) -> None:
        self.stream = stream
        self.qpn = stream.qpns[index][0]
        self.src_qpn = self.qpn if stream.src_qpn is None else stream.src_qpn + index
        self.psn = stream.psn
        self.messages = 0
        self.packets = 0
        self.path = Path(
            ethernet_route(
                source=gid_of(stream.src),
                destination=gid_of(stream.dst),
                source_mac=stream.src_mac or mac_of(gid_of(stream.src)),
                destination_mac=stream.dst_mac or mac_of(gid_of(stream.dst)),
                source_port=self._port(),
                traffic_class=stream.dscp * 4 + stream.ecn,
                hop_limit=stream.ttl,
                vlan=stream.vlan,
                priority=stream.pcp,
                version=1 if stream.link is Link.ROCEV1 else 2,
            )
        )

    def message(self, number: int) -> Iterator[bytes]:
        """The frames of the next message; `number`: of its first packet in the stream."""
        stream = self.stream
        sizes = self._cut()
        for index, size in enumerate(sizes):
            packet = TransportPacket(FORMS[self._opcode(index, len(sizes))], self.psn)
            packet.payload = self._payload(size, number + index)
            packet.dest_qp = self.qpn
            packet.pkey = stream.pkey
            packet.mig_req = int(stream.mig_req)
            is_last = index == len(sizes) - 1
            if stream.ack_every is None:
                asks = stream.service is Service.RC and stream.verb not in (Verb.ACK, Verb.CNP)
                packet.ack_req = int(is_last and asks)
            elif stream.ack_every:
                packet.ack_req = int((self.packets + 1) % stream.ack_every == 0)
            event = stream.verb not in (Verb.WRITE, Verb.READ, Verb.CAS, Verb.FADD)
            event &= stream.verb not in (Verb.ACK, Verb.CNP)
            packet.se = int(stream.solicited and is_last and event)
            packet.becn = int(stream.verb is Verb.CNP)
            packet.va = stream.va + self.messages % stream.places * stream.va_step
            packet.rkey = packet.invalidate_rkey = stream.rkey
            packet.dma_len = stream.message_size
            packet.imm_data = stream.imm
            packet.swap, packet.compare = stream.swap, stream.compare
            packet.qkey, packet.src_qp = stream.qkey, self.src_qpn
            packet.syndrome = stream.syndrome
            packet.msn = (stream.msn + self.packets) % 2**24
            yield self._identified(self.path.frame(encode(packet)))
            self.packets += 1
            if stream.verb is not Verb.CNP:
                self.psn = (self.psn + 1) % 2**24
        if stream.verb is Verb.READ:
            responses = max(1, -(-stream.message_size // stream.mtu))
            self.psn = (self.psn + responses - 1) % 2**24
        self.messages += 1

    def _identified(self, frame: bytes) -> bytes:
        """With the IPv4 identification that the stream asks for."""
        route = Packet.parse(frame).route
        if not self.stream.count_ip_id or not isinstance(route, RoCEv2Route):
            return frame
        if not isinstance(route.ip, IPv4):
            return frame
        route = replace(route, ip=replace(route.ip, id=self.packets % 2**16))
        return replace(Packet.parse(frame), route=route).repaired().build()

    def _cut(self) -> list[int]:
        """Payload bytes of each packet of a message."""
        stream = self.stream
        if stream.verb in SINGLE_OPCODES:
            return [0]
        left = stream.message_size
        sizes = []
        while left > stream.mtu:
            sizes.append(stream.mtu)
            left -= stream.mtu
        return [*sizes, left]

    def _opcode(self, index: int, count: int) -> int:
        if self.stream.verb in SINGLE_OPCODES:
            return SINGLE_OPCODES[self.stream.verb]
        first, middle, last, only = SEND_OPCODES[self.stream.service, self.stream.verb]
        found: int | None = last if index == count - 1 else middle
        if count == 1:
            found = only
        elif index == 0:
            found = first
        assert found is not None
        return found

    def _payload(self, size: int, number: int) -> bytes:
        pattern = self.stream.payload
        if pattern is Payload.RANDOM:
            raise AssertionError("what is random is not compared")
        if pattern is Payload.COUNTER:
            width = min(size, 8)
            return int(number % 256**width).to_bytes(width) + bytes(size - width)
        return bytes(pattern[i % len(pattern)] for i in range(size))

    def _port(self) -> int:
        rule = self.stream.src_port
        if rule is PortRule.QPN:
            return self.src_qpn % 2**16
        if rule is PortRule.FLOW:
            if self.stream.service is Service.UD:
                return datagram_source_port(self.src_qpn)
            return flow_source_port(flow_label_of(self.src_qpn, self.qpn))
        assert rule is not PortRule.RANDOM, "what is random is not compared"
        return int(rule)


def in_turn(stream: Stream) -> Iterator[bytes]:
    """The packets of a stream whose queue pairs have equal weights."""
    senders = [Sender(stream, index) for index in range(len(stream.qpns))]
    number = 0
    while True:
        for sender in senders:
            for frame in sender.message(number):
                yield frame
                number += 1


def per_queue_pair(streams: Sequence[Stream]) -> dict[tuple[int, int], Iterator[bytes]]:
    """The packets of each queue pair by stream and QP number, whenever its turn comes."""

    def packets(stream: Stream, index: int) -> Iterator[bytes]:
        sender = Sender(stream, index)
        while True:
            yield from sender.message(0)

    return {
        (number, qpn): packets(stream, index)
        for number, stream in enumerate(streams)
        for index, (qpn, _) in enumerate(stream.qpns)
    }
