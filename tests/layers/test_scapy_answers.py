"""Which packet answers which, as `sr1` decides it: `hashret` equal and `answers` true."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from each_case import each_case
from ibwire_layers.scapy import (
    AETH,
    BTH,
    CNP,
    DETH,
    GRH,
    LRH,
    RDETH,
    RETH,
    XRCETH,
    AtomicAckETH,
    AtomicETH,
    mad,
)

A, B = "192.0.2.1", "192.0.2.2"
ACK, NAK_SEQUENCE, NAK_ACCESS, RNR = 0x1F, 0x60, 0x62, 0x21


def bth(opcode: str, psn: int, **fields: Any) -> Packet:
    return BTH(opcode=opcode, psn=psn, dest_qp=0x11, **fields)


def ack(psn: int, syndrome: int = ACK, service: str = "RC") -> Packet:
    return bth(f"{service}_ACKNOWLEDGE", psn) / AETH(syndrome=syndrome)


def read(psn: int, length: int) -> Packet:
    return bth("RC_RDMA_READ_REQUEST", psn) / RETH(dma_len=length)


def response(position: str, psn: int) -> Packet:
    return bth(f"RC_RDMA_READ_RESPONSE_{position}", psn) / AETH() / b"data"


def gmp(method: int, src_qp: int = 1, dest_qp: int = 1, **fields: Any) -> Packet:
    common = mad.MAD(mgmt_class=fields.pop("mgmt_class", 3), method=method, **fields)
    return BTH(opcode="UD_SEND_ONLY", dest_qp=dest_qp) / DETH(src_qp=src_qp) / common


SEND = bth("RC_SEND_ONLY", 7) / b"data"
ATOMIC = bth("RC_FETCH_ADD", 7) / AtomicETH()
ATOMIC_ACK = bth("RC_ATOMIC_ACKNOWLEDGE", 7) / AETH() / AtomicAckETH()
WRAP = 0xFFFFFF

PAIRS: list[tuple[str, Packet, Packet, bool]] = [
    ("ACK of a SEND", SEND, ack(7), True),
    ("ACK of a WRITE", bth("RC_RDMA_WRITE_ONLY", 7) / RETH(), ack(7), True),
    ("RNR NAK", SEND, ack(7, RNR), True),
    ("access NAK", SEND, ack(7, NAK_ACCESS), True),
    ("ACK of another PSN", SEND, ack(8), False),
    ("access NAK of another PSN", SEND, ack(8, NAK_ACCESS), False),
    ("sequence NAK that names an earlier PSN", SEND, ack(5, NAK_SEQUENCE), True),
    ("sequence NAK that names a later PSN", SEND, ack(9, NAK_SEQUENCE), False),
    (
        "sequence NAK across the wrap",
        bth("RC_SEND_ONLY", 2) / b"data",
        ack(WRAP, NAK_SEQUENCE),
        True,
    ),
    ("request after request", SEND, SEND, False),
    ("request after its ACK", ack(7), SEND, False),
    ("ACK of another service", SEND, ack(7, service="XRC"), False),
    ("XRC", bth("XRC_SEND_ONLY", 7) / XRCETH() / b"data", ack(7, service="XRC"), True),
    (
        "RD",
        bth("RD_SEND_ONLY", 7) / RDETH() / DETH() / b"data",
        bth("RD_ACKNOWLEDGE", 7) / RDETH() / AETH(),
        True,
    ),
    ("READ response only", read(7, 100), response("ONLY", 7), True),
    ("READ response first", read(7, 600), response("FIRST", 7), True),
    ("READ response last", read(7, 600), response("LAST", 9), True),
    ("READ response beyond the length", read(7, 600), response("LAST", 10), False),
    ("READ response across the wrap", read(WRAP, 600), response("LAST", 1), True),
    ("READ of nothing", read(7, 0), response("ONLY", 7), True),
    ("READ response of a SEND", SEND, response("ONLY", 7), False),
    ("ACK of a READ", read(7, 100), ack(7), False),
    ("NAK of a READ", read(7, 100), ack(7, NAK_ACCESS), True),
    ("ATOMIC ACK", ATOMIC, ATOMIC_ACK, True),
    ("ATOMIC ACK of a SEND", SEND, ATOMIC_ACK, False),
    ("ACK of an ATOMIC", ATOMIC, ack(7), False),
    ("ATOMIC WRITE", bth("RC_ATOMIC_WRITE", 7) / RETH() / bytes(8), response("ONLY", 7), True),
    ("ATOMIC WRITE", bth("RC_ATOMIC_WRITE", 7) / RETH() / bytes(8), response("LAST", 7), False),
    ("nothing answers UC", bth("UC_SEND_ONLY", 7) / b"data", ack(7), False),
    ("CNP", SEND, CNP(0x11), False),
    ("manufacturer's opcode", SEND, BTH(opcode=0xC0, psn=7), False),
    ("GetResp", gmp(0x01, transaction_id=9), gmp(0x81, transaction_id=9), True),
    ("Set", gmp(0x02, transaction_id=9), gmp(0x81, transaction_id=9), True),
    ("GetTableResp", gmp(0x12, transaction_id=9), gmp(0x92, transaction_id=9), True),
    ("another transaction", gmp(0x01, transaction_id=9), gmp(0x81, transaction_id=8), False),
    ("another class", gmp(0x01), gmp(0x81, mgmt_class=4), False),
    ("another QP", gmp(0x01, src_qp=5), gmp(0x81), False),
    (
        "CM REP after REQ",
        gmp(0x03, mgmt_class=7, attribute_id=0x10),
        gmp(0x03, mgmt_class=7, attribute_id=0x13),
        True,
    ),
    (
        "CM REQ after REQ",
        gmp(0x03, mgmt_class=7, attribute_id=0x10),
        gmp(0x03, mgmt_class=7, attribute_id=0x10),
        False,
    ),
]

ROUTES = {
    "IPv4": (IP(src=A, dst=B) / UDP(sport=50001), IP(src=B, dst=A) / UDP(sport=50002)),
    "IPv6": (IPv6(src="::1", dst="::2") / UDP(), IPv6(src="::2", dst="::1") / UDP()),
    "GRH": (GRH(sgid=1, dgid=2), GRH(sgid=2, dgid=1)),
    "LRH": (LRH(slid=1, dlid=2), LRH(slid=2, dlid=1)),
}


def paired(request: Packet, reply: Packet) -> bool:
    """What Scapy's `sndrcv` asks, on the packets as they are on the wire."""
    sent, received = type(request)(bytes(request)), type(reply)(bytes(reply))
    return bool(sent.hashret() == received.hashret() and received.answers(sent))


@each_case("route", ROUTES.values(), ids=list(ROUTES))
@each_case(("name", "request_", "reply", "expected"), PAIRS)
def test_reply_is_paired_with_its_request(
    name: str, request_: Packet, reply: Packet, expected: bool, route: tuple[Packet, Packet]
) -> None:
    assert paired(route[0] / request_, route[1] / reply) is expected, name


@pytest.mark.parametrize("route", ROUTES.values(), ids=list(ROUTES))
def test_reply_from_elsewhere_is_not_paired(route: tuple[Packet, Packet]) -> None:
    assert not paired(route[0] / SEND, route[0] / ack(7))


def test_reply_over_ethernet_is_paired() -> None:
    there = Ether(src="00:00:00:00:00:01", dst="00:00:00:00:00:02")
    back = Ether(src="00:00:00:00:00:02", dst="00:00:00:00:00:01")

    for out, home in (ROUTES["IPv4"], ROUTES["GRH"]):
        assert paired(there / out / SEND, back / home / ack(7))


def test_other_udp_packets_are_paired_as_ever() -> None:
    query = IP(src=A, dst=B) / UDP(sport=1000, dport=2000) / b"ask"

    assert paired(query, IP(src=B, dst=A) / UDP(sport=2000, dport=1000) / b"tell")
    assert not paired(query, IP(src=B, dst=A) / UDP(sport=1000, dport=2000) / b"tell")
