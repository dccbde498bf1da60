"""IP over InfiniBand in virtual time: hosts join, resolve addresses, and ping each other.

An interface joins the broadcast group at subnet administration, finds the other end by ARP in that
group and its LID by a PathRecord, and then sends IPv4 in datagrams (RFC 4391, RFC 4392).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from ibwire.base.units import MS, Time
from ibwire.fabric.infiniband.subnet import Port
from ibwire.rc.attributes import AddressVector, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.cq import CompletionChannel
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR, SendWR, WCOpcode, WROpcode
from ibwire.scenario.infiniband import GRH_SIZE, FabricTraffic
from ibwire.sm.groups import BROADCAST, JOINING, PKEY
from ibwire.sm.mads import TID, Datagram
from ibwire.sm.path_records import DGID, NUMB_PATH, SGID
from ibwire_layers.crc import internet_checksum
from ibwire_layers.headers import IPoIB
from ibwire_layers.mad import GSI_QKEY, MAD, MAD_SIZE, SA, Method, MgmtClass
from ibwire_layers.outer import EtherType, IPv4
from ibwire_layers.records import MCMemberRecord, PathRecord, SAAttribute

SLOTS = 16
"""Datagrams that an interface can receive, or have on the way, at a time."""
SLOT = 4096 + GRH_SIZE
RETRY: Time = 10 * MS
"""Before a request without a response is repeated."""
TRIES = 5
_ARP = struct.Struct(">HHBBHB3s16s4sB3s16s4s")
"""An ARP packet of RFC 4391, 9.1.1: an address is reserved (1 byte), QPN (3), GID (16)."""
_HARDWARE, _REQUEST, _REPLY = 32, 1, 2
_ECHO = struct.Struct(">BBHHH")
_ECHO_REQUEST, _ECHO_REPLY, _ICMP = 8, 0, 1
_RECORD = 56
"""Offset of the record in a MAD of subnet administration."""


@dataclass(slots=True)
class Ping:
    """An echo request that was sent: when, and when it was answered."""

    sequence: int
    sent: Time
    answered: Time | None = None


@dataclass(slots=True)
class _Neighbour:
    """What an interface knows of another one."""

    qpn: int = 0
    gid: int = 0
    address: AddressVector | None = None
    """How to send to it, once its path is known."""
    waiting: list[bytes] = field(default_factory=list)
    """Packets for it, in IP over InfiniBand."""


class Interface:
    """The IPoIB interface of an adapter port of a fabric that has a subnet manager.

    It joins the broadcast group as soon as it is made.
    """

    def __init__(self, traffic: FabricTraffic, port: Port, address: IPv4Address) -> None:
        assert traffic.management is not None
        self.port = port
        self.address = address
        self.group: MCMemberRecord | None = None
        """The broadcast group, once it has joined."""
        self.pings: dict[int, Ping] = {}
        self._traffic = traffic
        self._management = traffic.management
        self._management.programs[port] = self
        self._neighbours: dict[IPv4Address, _Neighbour] = {}
        self._waiting: dict[int, Callable[[bytes], None]] = {}
        """What to do with a response, by transaction id."""
        self._tid = 0
        self._gid = 0xFE80 << 112 | port.guid
        device = traffic.devices[port]
        domain = device.alloc_pd()
        self._memory = domain.register(bytearray(2 * SLOTS * SLOT), int(ALL_ACCESS))
        self._next = 0
        self.channel = CompletionChannel()
        self._queue = device.create_cq(8 * SLOTS, self.channel)
        init = QPInit(QPType.UD, domain, self._queue, self._queue, cap=QPCap(4 * SLOTS, SLOTS))
        self._qp = device.create_qp(init)
        self._device = device
        member = MCMemberRecord(mgid=BROADCAST, port_gid=self._gid, join_state=1, pkey=0xFFFF)
        self._ask(
            SAAttribute.MC_MEMBER_RECORD, Method.SET, member.pack(), JOINING | 1 << PKEY, self._join
        )

    def ping(self, destination: IPv4Address, sequence: int, size: int = 56) -> Ping:
        """Send an echo request, after ARP if need be; `size` bytes of data."""
        ping = self.pings[sequence] = Ping(sequence, self._traffic.simulator.now)
        data = bytes(at & 0xFF for at in range(size))
        self._send_ip(destination, _echo(_ECHO_REQUEST, sequence, data))
        return ping

    def work(self) -> None:
        """Take what has arrived at the queue pair."""
        while self.channel.events:
            self.channel.events.clear()
            for done in self._queue.poll(8 * SLOTS):
                if done.opcode is WCOpcode.RECV:
                    start = done.wr_id * SLOT
                    data = bytes(self._memory.buffer[start + GRH_SIZE : start + done.byte_len])
                    self._listen(done.wr_id)
                    self._receive(data)
            self._queue.arm()

    def deliver(self, datagram: Datagram, now: Time) -> bool:
        """Take a response of subnet administration."""
        mad = bytes(datagram.mad)
        done = self._waiting.pop(int.from_bytes(mad[TID], "big"), None)
        if done is None:
            return False
        if not MAD.unpack(mad).status:
            done(mad[_RECORD:])
        return True

    # Subnet administration.

    def _ask(
        self,
        attribute: SAAttribute,
        method: Method,
        record: bytes,
        mask: int,
        done: Callable[[bytes], None],
    ) -> None:
        self._tid += 1
        tid = self.port.lid << 16 | self._tid
        header = MAD(
            mgmt_class=MgmtClass.SUBN_ADM,
            class_version=2,
            method=method,
            transaction_id=tid,
            attribute_id=attribute,
        ).pack()
        mad = header + bytes(12) + SA(component_mask=mask).pack() + record
        self._waiting[tid] = done
        self._request(tid, mad.ljust(MAD_SIZE, b"\0"), TRIES)

    def _request(self, tid: int, mad: bytes, tries: int) -> None:
        if tid not in self._waiting or not tries:
            return
        port, now = self.port, self._traffic.simulator.now
        self._management.send(
            Datagram(bytearray(mad), port.lid, port.master_sm_lid, 1, 1, qkey=GSI_QKEY), port
        )
        self._management.run(now)
        self._later(lambda: self._request(tid, mad, tries - 1))

    def _later(self, action: Callable[[], None]) -> None:
        fabric = self._traffic.fabric
        fabric.timetable.add(self._traffic.simulator.now + RETRY, action)
        fabric.simulator.kick(fabric.timetable)

    def _join(self, record: bytes) -> None:
        group = self.group = MCMemberRecord.unpack(record)
        bring_up(
            self._qp, self._to_group(group), dest_qp_num=0, path_mtu=group.mtu, qkey=group.qkey
        )
        self._device.multicast[group.mgid] = [self._qp]
        for slot in range(SLOTS):
            self._listen(slot)
        self._queue.arm()
        for address, neighbour in self._neighbours.items():
            if neighbour.waiting:
                self._resolve(address, TRIES)

    def _listen(self, slot: int) -> None:
        memory = self._memory
        sge = SGE(memory.iova + slot * SLOT, SLOT, memory.lkey)
        self._qp.post_recv(RecvWR([sge], wr_id=slot))

    # Packets.

    def _to_group(self, group: MCMemberRecord) -> AddressVector:
        return AddressVector(dgid=group.mgid, dlid=group.mlid, is_global=True, sl=group.sl)

    def _post(self, packet: bytes, address: AddressVector, qpn: int) -> None:
        assert self.group is not None
        memory = self._memory
        slot = SLOTS + self._next % SLOTS
        self._next += 1
        memory.buffer[slot * SLOT : slot * SLOT + len(packet)] = packet
        sge = SGE(memory.iova + slot * SLOT, len(packet), memory.lkey)
        self._qp.post_send(
            SendWR(WROpcode.SEND, [sge], ah=address, remote_qpn=qpn, remote_qkey=self.group.qkey)
        )
        fabric = self._traffic.fabric
        fabric.simulator.kick(fabric.adapters[self.port.node.name, self.port.number])

    def _send_ip(self, destination: IPv4Address, payload: bytes) -> None:
        header = IPv4(
            total_length=IPv4.SIZE + len(payload),
            ttl=64,
            protocol=_ICMP,
            src=int(self.address),
            dst=int(destination),
        )
        header = header.altered(checksum=internet_checksum(header.altered(checksum=0).pack()))
        packet = IPoIB(ether_type=EtherType.IPV4).pack() + header.pack() + payload
        neighbour = self._neighbours.setdefault(destination, _Neighbour())
        if neighbour.address is not None:
            self._post(packet, neighbour.address, neighbour.qpn)
            return
        neighbour.waiting.append(packet)
        if self.group is not None and len(neighbour.waiting) == 1:
            self._resolve(destination, TRIES)

    def _resolve(self, destination: IPv4Address, tries: int) -> None:
        """Ask by ARP for the interface of an address, until it is known."""
        group = self.group
        if group is None or not tries or self._neighbours[destination].address is not None:
            return
        arp = self._arp(_REQUEST, destination, 0, 0)
        self._post(arp, self._to_group(group), 0xFFFFFF)
        self._later(lambda: self._resolve(destination, tries - 1))

    def _arp(self, operation: int, destination: IPv4Address, qpn: int, gid: int) -> bytes:
        own = 0, self._qp.number.to_bytes(3, "big"), self._gid.to_bytes(16, "big")
        return IPoIB(ether_type=EtherType.ARP).pack() + _ARP.pack(
            _HARDWARE, EtherType.IPV4, 20, 4, operation,
            *own, self.address.packed,
            0, qpn.to_bytes(3, "big"), gid.to_bytes(16, "big"), destination.packed,
        )  # fmt: skip

    def _receive(self, packet: bytes) -> None:
        kind, payload = IPoIB.unpack(packet).ether_type, packet[IPoIB.SIZE :]
        if kind == EtherType.ARP and len(payload) >= _ARP.size:
            self._receive_arp(payload)
        elif kind == EtherType.IPV4 and len(payload) >= IPv4.SIZE + _ECHO.size:
            header = IPv4.unpack(payload)
            if header.dst == int(self.address) and header.protocol == _ICMP:
                self._receive_echo(IPv4Address(header.src), payload[IPv4.SIZE :])

    def _receive_arp(self, payload: bytes) -> None:
        _, _, _, _, operation, _, qpn, gid, source, _, _, _, target = _ARP.unpack_from(payload)
        if target != self.address.packed:
            return
        address = IPv4Address(source)
        neighbour = self._neighbours.setdefault(address, _Neighbour())
        neighbour.qpn, neighbour.gid = int.from_bytes(qpn, "big"), int.from_bytes(gid, "big")
        if operation == _REQUEST:
            reply = self._arp(_REPLY, address, neighbour.qpn, neighbour.gid)
            neighbour.waiting.append(reply)
        if neighbour.address is not None:
            self._flush(neighbour)
            return
        asked = PathRecord(dgid=neighbour.gid, sgid=self._gid, numb_path=1)
        mask = 1 << DGID | 1 << SGID | 1 << NUMB_PATH

        def found(record: bytes) -> None:
            path = PathRecord.unpack(record)
            neighbour.address = AddressVector(
                dgid=neighbour.gid, dlid=path.dlid, is_global=False, sl=path.sl
            )
            self._flush(neighbour)

        self._ask(SAAttribute.PATH_RECORD, Method.GET, asked.pack(), mask, found)

    def _flush(self, neighbour: _Neighbour) -> None:
        waiting, neighbour.waiting = neighbour.waiting, []
        for packet in waiting:
            assert neighbour.address is not None
            self._post(packet, neighbour.address, neighbour.qpn)

    def _receive_echo(self, source: IPv4Address, message: bytes) -> None:
        kind, _, _, _, sequence = _ECHO.unpack_from(message)
        if internet_checksum(message):
            return
        if kind == _ECHO_REQUEST:
            self._send_ip(source, _echo(_ECHO_REPLY, sequence, message[_ECHO.size :]))
        elif kind == _ECHO_REPLY and sequence in self.pings:
            ping = self.pings[sequence]
            ping.answered = ping.answered or self._traffic.simulator.now


def _echo(kind: int, sequence: int, data: bytes) -> bytes:
    check = internet_checksum(_ECHO.pack(kind, 0, 0, 1, sequence) + data)
    return _ECHO.pack(kind, 0, check, 1, sequence) + data
