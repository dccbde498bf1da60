"""UC, UD and XRC: how packets, completions and memory differ from RC (reference/transport#uc)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import AddressVector, QPAttr, QPAttrMask, QPState, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up, connect
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.device import Device, gid_of
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.qp import QPInit
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import (
    SGE,
    WC,
    RecvWR,
    SendFlags,
    SendWR,
    WCFlags,
    WCOpcode,
    WCStatus,
    WROpcode,
)
from ibwire.testing import Pair, create_queue_pair, summaries
from ibwire_layers import headers as h
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import CrcStatus, IBRoute, Packet, RoCEv2Route

S = WCStatus

IMM = 0x01020304


def statuses(completions: list[WC]) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in completions]


def is_einval(call: Callable[[], Any]) -> bool:
    with pytest.raises(VerbsError) as caught:
        call()
    return caught.value.errno == errno.EINVAL


# UC.


def uc(**attr: Any) -> tuple[Pair, bytes]:
    """A connection, and the 4096 bytes at the start of the sender's memory."""
    pair = Pair(qp_type=QPType.UC, **attr)
    data = bytes(n * 7 + (n >> 8) & 0xFF for n in range(4096))
    pair.a.mr.write(pair.a.mr.iova, data)
    return pair, data


def at_b(pair: Pair, size: int, offset: int = 0) -> bytes:
    return pair.b.mr.read(pair.b.mr.iova + offset, size)


@pytest.mark.parametrize(
    ("opcode", "last", "flags", "imm"),
    [
        (WROpcode.SEND, "SEND_LAST", 0, 0),
        (WROpcode.SEND_WITH_IMM, "SEND_LAST_WITH_IMMEDIATE", WCFlags.WITH_IMM, IMM),
    ],
)
def test_uc_send_over_several_packets(opcode: WROpcode, last: str, flags: int, imm: int) -> None:
    pair, data = uc(psn_a=0xFFFFFE)
    pair.b.post_recv(4096, wr_id=3)
    pair.a.post_send(opcode, length=2500, imm_data=IMM, wr_id=1)
    pair.run()

    assert summaries(pair.packets("a")) == [
        "SEND_FIRST 16777214",
        "SEND_MIDDLE 16777215",
        f"{last} 0",
    ]
    assert [packet.bth.ack_req for packet in pair.packets("a")] == [0, 0, 0]
    assert pair.packets("b") == []
    (sent,) = pair.a.poll_send_cq()
    assert (sent.wr_id, sent.status, sent.opcode) == (1, S.SUCCESS, WCOpcode.SEND)
    (received,) = pair.b.poll_recv_cq()
    assert (received.wr_id, received.status, received.opcode) == (3, S.SUCCESS, WCOpcode.RECV)
    assert (received.byte_len, received.wc_flags, received.imm_data) == (2500, flags, imm)
    assert at_b(pair, 4096) == data[:2500] + bytes(1596)


def test_uc_write_with_immediate_over_several_packets() -> None:
    pair, data = uc()
    pair.b.post_recv(0, wr_id=3)
    pair.a.post_send(WROpcode.RDMA_WRITE_WITH_IMM, length=2048, remote=100, imm_data=IMM)
    pair.run()

    assert summaries(pair.packets("a")) == [
        "RDMA_WRITE_FIRST 0",
        "RDMA_WRITE_LAST_WITH_IMMEDIATE 1",
    ]
    assert pair.packets("b") == []
    (received,) = pair.b.poll_recv_cq()
    assert (received.wr_id, received.status) == (3, S.SUCCESS)
    assert received.opcode is WCOpcode.RECV_RDMA_WITH_IMM
    assert (received.byte_len, received.imm_data) == (2048, IMM)
    assert received.wc_flags == WCFlags.WITH_IMM
    assert at_b(pair, 2048, 100) == data[:2048]


def test_uc_write_is_silent_at_the_receiver() -> None:
    pair, data = uc()
    pair.a.post_send(WROpcode.RDMA_WRITE, length=3000)
    pair.run()

    assert statuses(pair.a.poll_send_cq()) == [(0, S.SUCCESS)]
    assert pair.b.poll_recv_cq() == []
    assert at_b(pair, 3000) == data[:3000]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_uc_gap_drops_the_message_and_the_next_one_arrives(lost: int) -> None:
    """It takes the receive request that the broken message had taken."""
    pair, data = uc()
    pair.b.post_recv(4096, wr_id=3)
    pair.b.post_recv(4096, wr_id=4)
    pair.drop("a", lost)
    pair.a.post_send(length=2500, wr_id=1)
    pair.a.post_send(length=100, offset=3000, wr_id=2)
    pair.run()

    assert [packet.bth.psn for packet in pair.packets("a")] == [0, 1, 2, 3]
    assert pair.packets("b") == []
    assert statuses(pair.a.poll_send_cq()) == [(1, S.SUCCESS), (2, S.SUCCESS)]
    (received,) = pair.b.poll_recv_cq()
    assert (received.wr_id, received.status, received.byte_len) == (3, S.SUCCESS, 100)
    assert at_b(pair, 100) == data[3000:3100]
    assert pair.b.qp.state is QPState.RTS


def test_uc_resynchronises_at_first_and_only_whatever_their_psn() -> None:
    pair, data = uc()
    pair.b.post_recv(4096, wr_id=3)
    pair.b.post_recv(4096, offset=8192, wr_id=4)
    pair.drop("a", 1, 2, 3, 5)
    for _ in range(3):
        pair.a.post_send(length=8)
    pair.a.post_send(length=100)
    pair.a.post_send(length=8)
    pair.a.post_send(length=2000, offset=100)
    pair.run()

    assert summaries(pair.packets("a"))[-2:] == ["SEND_FIRST 5", "SEND_LAST 6"]
    assert statuses(pair.b.poll_recv_cq()) == [(3, S.SUCCESS), (4, S.SUCCESS)]
    assert at_b(pair, 100) == data[:100]
    assert at_b(pair, 2000, 8192) == data[100:2100]


def test_uc_message_without_a_receive_request_is_dropped_in_silence() -> None:
    pair, data = uc()
    pair.a.post_send(length=2000, wr_id=1)
    pair.a.post_send(WROpcode.RDMA_WRITE_WITH_IMM, length=8, remote=5000, wr_id=2)
    pair.run()
    pair.b.post_recv(4096, wr_id=3)
    pair.a.post_send(length=64, wr_id=4)
    pair.run()

    assert pair.packets("b") == []
    assert statuses(pair.a.poll_send_cq()) == [(n, S.SUCCESS) for n in (1, 2, 4)]
    assert statuses(pair.b.poll_recv_cq()) == [(3, S.SUCCESS)]
    assert at_b(pair, 64) == data[:64]
    assert pair.b.qp.counters.dropped_messages == 2


def test_uc_write_with_a_bad_key_is_dropped_in_silence() -> None:
    pair, _ = uc()
    pair.a.post_send(WROpcode.RDMA_WRITE, length=3000, rkey=pair.b.mr.rkey ^ 1)
    pair.a.post_send(WROpcode.RDMA_WRITE, length=64, offset=64, remote=64)
    pair.run()

    assert pair.packets("b") == []
    assert statuses(pair.a.poll_send_cq()) == [(0, S.SUCCESS)] * 2
    assert at_b(pair, 64) == bytes(64)
    assert at_b(pair, 64, 64) == pair.a.mr.read(pair.a.mr.iova + 64, 64)
    assert pair.b.qp.state is QPState.RTS
    assert pair.b.device.poll_event() is None


def test_uc_send_longer_than_the_receive_buffer_is_dropped_and_the_request_stays() -> None:
    pair, data = uc()
    pair.b.post_recv(100, wr_id=3)
    pair.a.post_send(length=101)
    pair.a.post_send(length=100, offset=500)
    pair.run()

    assert pair.packets("b") == []
    assert statuses(pair.b.poll_recv_cq()) == [(3, S.SUCCESS)]
    assert at_b(pair, 100) == data[500:600]


def test_uc_with_srq_completes_the_request_of_a_broken_message_with_an_error() -> None:
    """Class E (reference/transport#uc): it cannot go back into a queue that others take from."""
    pair, data = uc()
    device = pair.b.device
    srq = device.create_srq(pair.b.pd)
    for wr_id in (3, 4):
        srq.post_recv(RecvWR([pair.b.sge(wr_id * 4096, 4096)], wr_id))
    b = create_queue_pair(device, qp_type=QPType.UC, pd=pair.b.pd, srq=srq, recv_cq=pair.b.recv_cq)
    pair.a.qp = create_queue_pair(pair.a.device, qp_type=QPType.UC, pd=pair.a.pd)
    connect(pair.a.qp, b)
    pair.drop("a", 2)
    pair.a.post_send(length=2000)
    pair.a.post_send(length=64)
    pair.run()

    received = pair.b.poll_recv_cq()
    assert [wc.wr_id for wc in received] == [3, 4]
    assert received[0].status is not S.SUCCESS
    assert received[1].status is S.SUCCESS
    assert at_b(pair, 64, 4 * 4096) == data[:64]
    assert b.state is QPState.RTS


def test_uc_fault_of_the_senders_memory_leads_to_sqe_and_back() -> None:
    pair, data = uc()
    pair.b.post_recv(64, wr_id=3)
    pair.a.qp.post_send(SendWR(sg_list=[SGE(1, 8, 1)], wr_id=1))
    pair.a.post_send(length=8, wr_id=2)
    pair.run()

    assert statuses(pair.a.poll_send_cq()) == [(1, S.LOC_PROT_ERR), (2, S.WR_FLUSH_ERR)]
    assert pair.a.qp.state is QPState.SQE
    assert pair.packets("a") == []

    pair.a.qp.modify(QPAttr(qp_state=QPState.RTS), QPAttrMask.STATE)
    pair.a.post_send(length=64, wr_id=4)
    pair.run()
    assert statuses(pair.a.poll_send_cq()) == [(4, S.SUCCESS)]
    assert statuses(pair.b.poll_recv_cq()) == [(3, S.SUCCESS)]
    assert at_b(pair, 64) == data[:64]


def test_uc_fault_of_the_receivers_memory_ends_the_queue_pair() -> None:
    """Class A: a request that can never be filled is not kept for the next message."""
    pair, _ = uc()
    pair.b.qp.post_recv(RecvWR([SGE(pair.b.mr.iova, 100, pair.b.mr.lkey ^ 1)], wr_id=3))
    pair.b.post_recv(100, wr_id=4)
    pair.a.post_send(length=8)
    pair.run()

    assert pair.packets("b") == []
    assert statuses(pair.a.poll_send_cq()) == [(0, S.SUCCESS)]
    assert statuses(pair.b.poll_recv_cq()) == [(3, S.LOC_PROT_ERR), (4, S.WR_FLUSH_ERR)]
    assert pair.b.qp.state is QPState.ERR


@pytest.mark.parametrize(
    "opcode", [WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.SEND_WITH_INV]
)
def test_uc_has_no_reads_atomics_or_invalidation(opcode: WROpcode) -> None:
    pair, _ = uc()

    assert is_einval(lambda: pair.a.post_send(opcode, length=8))


# UD.

QKEY = 0x11111111


class Host:
    """A device with a UD queue pair and a buffer."""

    def __init__(
        self,
        address: str,
        *,
        qkey: int = QKEY,
        link: str = "rocev2",
        lid: int = 1,
        port_mtu: int = 4096,
    ) -> None:
        limits = DeviceLimits(port_mtu=port_mtu)
        self.device = Device("host", address, link=link, lid=lid, limits=limits)
        self.pd = self.device.alloc_pd()
        self.mr = self.pd.register(16384, int(ALL_ACCESS))
        self.qp, self.cq = self.queue_pair(qkey)

    def queue_pair(self, qkey: int = QKEY) -> tuple[Any, CompletionQueue]:
        """One more, with a completion queue for both halves."""
        cq = self.device.create_cq(64)
        qp = self.device.create_qp(QPInit(QPType.UD, self.pd, cq, cq))
        bring_up(qp, AddressVector(), qkey=qkey, sq_psn=5)
        return qp, cq

    def post_recv(self, length: int = 4096, offset: int = 0, wr_id: int = 0) -> None:
        self.qp.post_recv(RecvWR([SGE(self.mr.iova + offset, length, self.mr.lkey)], wr_id))

    def send(self, data: bytes, to: Host, **said: Any) -> list[Packet]:
        """Send a datagram to another host; all frames are delivered and returned."""
        self.mr.write(self.mr.iova + 8192, data)
        sges = [SGE(self.mr.iova + 8192, len(data), self.mr.lkey)]
        said.setdefault("ah", AddressVector(dgid=to.device.gids[0], hop_limit=33))
        said.setdefault("remote_qpn", to.qp.number)
        said.setdefault("remote_qkey", QKEY)
        self.qp.post_send(SendWR(sg_list=sges, **said))
        return self.deliver(to)

    def deliver(self, *others: Host) -> list[Packet]:
        native = self.device.link == "ib"
        packets = []
        while (frame := self.device.poll_transmit(0)) is not None:
            packets.append(
                Packet.parse(frame, LinkType.INFINIBAND if native else LinkType.ETHERNET)
            )
            for other in others:
                other.device.receive(frame, 0)
        return packets

    @property
    def completions(self) -> list[WC]:
        return self.cq.poll(64)

    def memory(self, size: int, offset: int = 0) -> bytes:
        return self.mr.read(self.mr.iova + offset, size)


def test_ud_over_ipv4_puts_the_ip_header_into_the_last_20_of_40_bytes() -> None:
    a, b = Host("10.0.0.1"), Host("10.0.0.2")
    b.post_recv(4096, wr_id=3)
    (packet,) = a.send(b"hello", b, opcode=WROpcode.SEND_WITH_IMM, imm_data=IMM)

    assert packet.opcode_name == "UD_SEND_ONLY_WITH_IMMEDIATE"
    assert packet.bth.ack_req == 0
    deth = packet.extension(h.DETH)
    assert (deth.qkey, deth.src_qp) == (QKEY, a.qp.number)
    assert [(wc.status, wc.opcode) for wc in a.completions] == [(S.SUCCESS, WCOpcode.SEND)]
    (wc,) = b.completions
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (3, S.SUCCESS, WCOpcode.RECV, 45)
    assert wc.wc_flags == WCFlags.GRH | WCFlags.WITH_IMM
    assert (wc.src_qp, wc.imm_data) == (a.qp.number, IMM)
    grh = b.memory(40)
    # Version 4, IHL 5; 20 IP, 8 UDP, 12 BTH, 8 DETH, 4 ImmDt, 5 payload, 3 pad, 4 ICRC.
    assert grh[20:24] == bytes.fromhex("4500 0040")
    assert grh[28:30] == bytes((33, 17))  # TTL, UDP
    assert grh[32:] == bytes((10, 0, 0, 1, 10, 0, 0, 2))
    assert b.memory(5, 40) == b"hello"


def test_ud_over_ipv6_puts_the_ip_header_into_the_40_bytes() -> None:
    a, b = Host("2001:db8::1"), Host("2001:db8::2")
    b.post_recv(4096, wr_id=3)
    a.send(b"12345678", b)

    (wc,) = b.completions
    assert (wc.wr_id, wc.status, wc.byte_len, wc.wc_flags) == (3, S.SUCCESS, 48, WCFlags.GRH)
    grh = b.memory(40)
    # 8 UDP, 12 BTH, 8 DETH, 8 payload, 4 ICRC; next header UDP; hop limit 33.
    assert grh[0] >> 4 == 6
    assert grh[4:8] == bytes((0, 40, 17, 33))
    assert grh[8:24] == gid_of("2001:db8::1").to_bytes(16)
    assert grh[24:] == gid_of("2001:db8::2").to_bytes(16)
    assert b.memory(8, 40) == b"12345678"


def test_ud_inside_a_native_subnet_leaves_room_for_40_bytes_and_flags_none() -> None:
    a, b = Host("fe80::1", link="ib", lid=7), Host("fe80::2", link="ib", lid=9)
    b.post_recv(4096, wr_id=3)
    (packet,) = a.send(b"1234", b, ah=AddressVector(is_global=False, dlid=9, sl=5))

    assert isinstance(packet.route, IBRoute)
    assert packet.route.grh is None
    assert (packet.route.lrh.slid, packet.route.lrh.dlid, packet.route.lrh.sl) == (7, 9, 5)
    assert packet.icrc_status() is CrcStatus.GOOD
    (wc,) = b.completions
    assert (wc.wr_id, wc.status, wc.byte_len, wc.wc_flags) == (3, S.SUCCESS, 44, 0)
    assert b.memory(4, 40) == b"1234"


def test_ud_psns_increase_and_are_not_checked() -> None:
    a, b = Host("10.0.0.1"), Host("10.0.0.2")
    for wr_id in (1, 2):
        b.post_recv(4096, wr_id=wr_id)
    nowhere = Host("10.0.0.9")
    psns = [a.send(b"1", to)[0].bth.psn for to in (b, nowhere, nowhere, b)]

    assert psns == [5, 6, 7, 8]
    assert statuses(b.completions) == [(1, S.SUCCESS), (2, S.SUCCESS)]


def test_ud_datagram_with_another_q_key_is_dropped_and_counted() -> None:
    a, b = Host("10.0.0.1"), Host("10.0.0.2")
    b.post_recv(4096, wr_id=3)
    a.send(b"1", b, remote_qkey=QKEY + 1)
    assert statuses(a.completions) == [(0, S.SUCCESS)]
    assert b.completions == []
    assert b.qp.counters.bad_qkey == 1

    a.send(b"2", b)
    assert statuses(b.completions) == [(3, S.SUCCESS)]
    assert b.memory(1, 40) == b"2"


def test_ud_q_key_with_the_highest_bit_stands_for_the_senders_own() -> None:
    a, b = Host("10.0.0.1", qkey=0x8000ABCD), Host("10.0.0.2", qkey=0x8000ABCD)
    b.post_recv(4096, wr_id=3)
    (packet,) = a.send(b"1", b, remote_qkey=0x80000000)

    assert packet.extension(h.DETH).qkey == 0x8000ABCD
    assert statuses(b.completions) == [(3, S.SUCCESS)]


def test_ud_message_over_the_mtu_completes_with_success_and_sends_nothing() -> None:
    """C10-93.1.1."""
    a, b = Host("10.0.0.1", port_mtu=1024), Host("10.0.0.2")
    b.post_recv(4096, wr_id=3)
    b.post_recv(4096, wr_id=4)

    assert a.send(bytes(1025), b, wr_id=1) == []
    assert statuses(a.completions) == [(1, S.SUCCESS)]
    assert [len(packet.payload) for packet in a.send(bytes(1024), b, wr_id=2)] == [1024]
    assert statuses(a.completions) == [(2, S.SUCCESS)]
    assert [(wc.wr_id, wc.byte_len) for wc in b.completions] == [(3, 1064)]


def test_ud_datagram_too_long_for_the_buffer_is_dropped_and_the_request_stays() -> None:
    a, b = Host("10.0.0.1"), Host("10.0.0.2")
    b.post_recv(40 + 10, wr_id=3)
    a.send(b"12345678901", b)
    assert b.completions == []
    assert b.memory(64) == bytes(64)

    a.send(b"1234567890", b)
    assert [(wc.wr_id, wc.byte_len) for wc in b.completions] == [(3, 50)]
    assert b.memory(10, 40) == b"1234567890"


def test_ud_fault_of_the_receivers_memory_ends_the_queue_pair() -> None:
    """Class A, as with UC."""
    a, b = Host("10.0.0.1"), Host("10.0.0.2")
    b.qp.post_recv(RecvWR([SGE(b.mr.iova, 100, b.mr.lkey ^ 1)], wr_id=3))
    b.post_recv(4096, wr_id=4)
    a.send(b"1", b)

    assert statuses(b.completions) == [(3, S.LOC_PROT_ERR), (4, S.WR_FLUSH_ERR)]
    assert b.qp.state is QPState.ERR


def test_ud_datagram_without_a_receive_request_is_dropped() -> None:
    a, b = Host("10.0.0.1"), Host("10.0.0.2")
    a.send(b"1", b)

    assert b.qp.counters.dropped_messages == 1
    assert b.deliver(a) == []
    assert statuses(a.completions) == [(0, S.SUCCESS)]


def test_ud_datagram_for_an_unknown_queue_pair_is_dropped() -> None:
    a, b = Host("10.0.0.1"), Host("10.0.0.2")
    b.post_recv(4096, wr_id=3)
    a.send(b"1", b, remote_qpn=0x999)

    assert b.completions == []
    assert b.device.counters["unknown_qp"] == 1


GROUPS = {
    "10.0.0.1": ("10.0.0.2", "239.129.2.3", "01005e010203"),
    "2001:db8::1": ("2001:db8::2", "ff0e::1:2345:6789", "333323456789"),
}
"""Sender, members' address, group, and its MAC address (RFC 1112 6.4; RFC 2464 7)."""


@pytest.mark.parametrize("address", GROUPS)
def test_ud_multicast_reaches_every_member_with_the_right_q_key(address: str) -> None:
    member, group, mac = GROUPS[address]
    gid = gid_of(group)
    a, b, stranger = Host(address), Host(member), Host(member)
    other, other_cq = b.queue_pair()
    wrong, wrong_cq = b.queue_pair(qkey=QKEY + 1)
    b.device.multicast[gid] = [b.qp, other, wrong]
    b.post_recv(4096, offset=0, wr_id=3)
    for wr_id, qp in ((4, other), (5, wrong)):
        qp.post_recv(RecvWR([SGE(b.mr.iova + 1000 * wr_id, 100, b.mr.lkey)], wr_id))
    stranger.post_recv(wr_id=6)
    (packet,) = a.send(b"all", b, ah=AddressVector(dgid=gid), remote_qpn=0xFFFFFF)
    stranger.device.receive(packet.build(), 0)

    assert isinstance(packet.route, RoCEv2Route)
    assert packet.route.eth.dst.to_bytes(6).hex() == mac
    assert [(wc.wr_id, wc.byte_len) for wc in b.completions] == [(3, 43)]
    assert [(wc.wr_id, wc.byte_len) for wc in other_cq.poll(9)] == [(4, 43)]
    assert wrong_cq.poll(9) == []
    assert stranger.completions == []
    assert b.memory(3, 40) == b.memory(3, 4040) == b"all"
    width = 4 if packet.route.ip.version == 4 else 16
    assert b.memory(40)[-width:] == gid.to_bytes(16)[-width:]


def test_ud_multicast_number_at_a_unicast_address_is_dropped() -> None:
    a, b = Host("10.0.0.1"), Host("10.0.0.2")
    b.device.multicast[gid_of("239.1.2.3")] = [b.qp]
    b.post_recv(4096, wr_id=3)
    a.send(b"1", b, remote_qpn=0xFFFFFF)

    assert b.completions == []


def test_ud_sends_datagrams_with_an_address_handle_only() -> None:
    a, b = Host("10.0.0.1"), Host("10.0.0.2")

    assert is_einval(lambda: a.send(b"1", b, ah=None))
    assert is_einval(lambda: a.send(b"1", b, opcode=WROpcode.RDMA_WRITE))
    assert is_einval(lambda: a.send(b"12345678", b, opcode=WROpcode.ATOMIC_FETCH_AND_ADD))


# XRC.


class XRC:
    """An initiator at `a`, a target with two shared receive queues at `b`."""

    def __init__(self) -> None:
        self.pair = pair = Pair()
        device = pair.b.device
        self.domain = device.open_xrc_domain()
        self.cqs = [device.create_cq(64) for _ in range(2)]
        self.srqs = [device.create_srq(pair.b.pd, xrc_domain=self.domain, cq=cq) for cq in self.cqs]
        self.target = device.create_qp(QPInit(QPType.XRC_RECV, xrc_domain=self.domain))
        self.initiator = create_queue_pair(
            pair.a.device, qp_type=QPType.XRC_SEND, pd=pair.a.pd, send_cq=pair.a.send_cq
        )
        connect(self.initiator, self.target, rnr_retry=1, min_rnr_timer=1)
        pair.a.qp = self.initiator
        self.data = bytes(n * 7 + (n >> 8) & 0xFF for n in range(4096))
        pair.a.mr.write(pair.a.mr.iova, self.data)

    def post_recv(self, which: int, offset: int, wr_id: int) -> None:
        self.srqs[which].post_recv(RecvWR([self.pair.b.sge(offset, 4096)], wr_id))

    def post(self, opcode: WROpcode, srq: SharedReceiveQueue | int, **said: Any) -> None:
        number = srq if isinstance(srq, int) else srq.number
        self.pair.a.post_send(opcode, **{"length": 1024, "remote_srqn": number, **said})

    def received(self, which: int) -> list[tuple[int, WCStatus]]:
        return statuses(self.cqs[which].poll(64))


def test_xrc_chooses_the_srq_per_message_and_completes_in_its_cq() -> None:
    xrc = XRC()
    first, second = xrc.srqs
    xrc.post_recv(0, 0, wr_id=10)
    xrc.post_recv(1, 8192, wr_id=20)
    xrc.post_recv(1, 16384, wr_id=21)
    xrc.post(WROpcode.SEND, second, length=2000, wr_id=1)
    xrc.post(WROpcode.SEND, first, length=64, wr_id=2)
    xrc.post(WROpcode.RDMA_WRITE_WITH_IMM, second, length=8, remote=32768, wr_id=3)
    xrc.pair.run()

    sent = xrc.pair.packets("a")
    assert [packet.opcode_name for packet in sent] == [
        "XRC_SEND_FIRST",
        "XRC_SEND_LAST",
        "XRC_SEND_ONLY",
        "XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
    ]
    named = [packet.extension(h.XRCETH).xrc_srq for packet in sent]
    assert named == [second.number, second.number, first.number, second.number]
    assert all(type(packet.extensions[0]) is h.XRCETH for packet in sent)  # directly after BTH
    assert {packet.opcode_name for packet in xrc.pair.packets("b")} == {"XRC_ACKNOWLEDGE"}
    assert {packet.extension(h.AETH).syndrome for packet in xrc.pair.packets("b")} == {0x1F}
    assert xrc.received(0) == [(10, S.SUCCESS)]
    assert xrc.received(1) == [(20, S.SUCCESS), (21, S.SUCCESS)]
    assert statuses(xrc.pair.a.poll_send_cq()) == [(n, S.SUCCESS) for n in (1, 2, 3)]
    assert at_b(xrc.pair, 2000, 8192) == xrc.data[:2000]
    assert at_b(xrc.pair, 64) == xrc.data[:64]
    assert at_b(xrc.pair, 8, 32768) == xrc.data[:8]


def test_xrc_empty_srq_is_an_rnr_nak_though_another_has_requests() -> None:
    xrc = XRC()
    xrc.post_recv(0, 0, wr_id=10)
    xrc.post(WROpcode.SEND, xrc.srqs[1], length=8)
    xrc.pair.run()

    assert summaries(xrc.pair.packets("b")) == ["ACKNOWLEDGE 0 0x21"] * 2
    assert statuses(xrc.pair.a.poll_send_cq()) == [(0, S.RNR_RETRY_EXC_ERR)]
    assert len(xrc.srqs[0]) == 1


def test_xrc_unknown_srq_is_an_invalid_request() -> None:
    xrc = XRC()
    xrc.post_recv(0, 0, wr_id=10)
    xrc.post(WROpcode.SEND, 0x999, length=8)
    xrc.pair.run()

    assert summaries(xrc.pair.packets("b")) == ["ACKNOWLEDGE 0 0x61"]
    assert statuses(xrc.pair.a.poll_send_cq()) == [(0, S.REM_INV_REQ_ERR)]
    assert xrc.target.state is QPState.ERR
    assert xrc.received(0) == []


def test_xrc_srq_of_another_domain_is_unknown() -> None:
    xrc = XRC()
    device = xrc.pair.b.device
    elsewhere = device.create_srq(
        xrc.pair.b.pd, xrc_domain=device.open_xrc_domain(), cq=device.create_cq(4)
    )
    elsewhere.post_recv(RecvWR([xrc.pair.b.sge(0, 64)], 1))
    xrc.post(WROpcode.SEND, elsewhere, length=8)
    xrc.pair.run()

    assert summaries(xrc.pair.packets("b")) == ["ACKNOWLEDGE 0 0x61"]
    assert len(elsewhere) == 1


def test_xrc_reads_and_atomics() -> None:
    xrc = XRC()
    pair = xrc.pair
    there = bytes(255 - (n & 0xFF) for n in range(2000))
    pair.b.mr.write(pair.b.mr.iova, there)
    pair.b.mr.write(pair.b.mr.iova + 4096, (40).to_bytes(8, "little"))
    xrc.post(WROpcode.RDMA_READ, xrc.srqs[0], length=2000, wr_id=1)
    fetch_add = {"length": 8, "offset": 4096, "remote": 4096, "compare_add": 2, "wr_id": 2}
    xrc.post(WROpcode.ATOMIC_FETCH_AND_ADD, xrc.srqs[0], **fetch_add)
    pair.run()

    assert summaries(pair.packets("a")) == ["RDMA_READ_REQUEST 0", "FETCH_ADD 2"]
    assert summaries(pair.packets("b")) == [
        "RDMA_READ_RESPONSE_FIRST 0 0x1f",
        "RDMA_READ_RESPONSE_LAST 1 0x1f",
        "ATOMIC_ACKNOWLEDGE 2 0x1f",
    ]
    assert statuses(pair.a.poll_send_cq()) == [(1, S.SUCCESS), (2, S.SUCCESS)]
    assert pair.a.mr.read(pair.a.mr.iova, 2000) == there
    assert int.from_bytes(pair.a.mr.read(pair.a.mr.iova + 4096, 8), "little") == 40
    assert int.from_bytes(at_b(pair, 8, 4096), "little") == 42


def test_xrc_target_sends_nothing_and_neither_side_has_a_receive_queue() -> None:
    xrc = XRC()

    assert is_einval(lambda: xrc.target.post_send(SendWR(send_flags=SendFlags.SIGNALED)))
    assert is_einval(lambda: xrc.target.post_recv(RecvWR()))
    assert is_einval(lambda: xrc.initiator.post_recv(RecvWR()))


def test_xrc_initiator_drops_requests_in_silence() -> None:
    xrc = XRC()
    a = xrc.pair.a
    other = create_queue_pair(xrc.pair.b.device, qp_type=QPType.XRC_SEND)
    fresh = create_queue_pair(a.device, qp_type=QPType.XRC_SEND, pd=a.pd, send_cq=a.send_cq)
    connect(fresh, other, retry_cnt=1)
    a.qp = fresh
    xrc.post(WROpcode.RDMA_WRITE, xrc.srqs[0], length=8)
    xrc.pair.run()

    assert xrc.pair.packets("b") == []
    assert other.counters.dropped == 2
    assert statuses(xrc.pair.a.poll_send_cq()) == [(0, S.RETRY_EXC_ERR)]
