"""One conversation for each rule, in two forms: as it should be, and with that check broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from connections.talk import QPNS, VA, Change, Talk, with_bth
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode as Op
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import Packet, RoCEv2Route, with_ip_checksum, with_lengths

Conversation = Callable[[Talk, bool], None]

TIMEOUT_US = 100_000
NO_CREDITS, CREDITS_2 = 0x00, 0x02
RNR_5_MS = 0x20 | 18
RNR_10_MS = 0x20 | 20
SEQUENCE, INVALID, OPERATION = 0x60, 0x61, 0x63


def _order(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_SEND_FIRST, 0, 256)
    talk.ask(Op.RC_RDMA_WRITE_ONLY if broken else Op.RC_SEND_LAST, 1, 64, ack_req=1)


def _opcode(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    talk.put(0, 0x1B if broken else Op.RC_SEND_ONLY, 1, 64)


def _service(talk: Talk, broken: bool) -> None:
    talk.sends(0, 2)
    talk.ask(Op.UC_SEND_ONLY if broken else Op.RC_SEND_ONLY, 2, 64)


def _no_payload(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_RDMA_READ_REQUEST, 0, 4 if broken else 0, length=64, ack_req=1)
    talk.answer(0, 1, opcode=Op.RC_RDMA_READ_RESPONSE_ONLY, size=64)


def _full(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_SEND_FIRST, 0, 300 if broken else 256)
    talk.ask(Op.RC_SEND_LAST, 1, 10)


def _last(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_SEND_FIRST, 0, 256)
    talk.ask(Op.RC_SEND_LAST, 1, 0 if broken else 1)


def _limit(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_SEND_ONLY, 0, 4100 if broken else 4096)


def _path_mtu(talk: Talk, broken: bool) -> None:
    for psn, size in ((0, 256), (2, 512 if broken else 256)):
        talk.ask(Op.RC_SEND_FIRST, psn, size)
        talk.ask(Op.RC_SEND_LAST, psn + 1, 8)


def _padding(talk: Talk, broken: bool) -> None:
    def unpadded(packet: Packet) -> Packet:
        bth = replace(packet.bth, pad_count=0)
        route = with_lengths(packet.route, h.BTH.SIZE + len(packet.payload))
        return replace(packet, route=route, bth=bth, padding=b"")

    talk.ask(Op.RC_SEND_ONLY, 0, 61, change=unpadded if broken else None)


def _message(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_RDMA_READ_REQUEST, 0, length=(1 << 31) + broken)


def _write(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_RDMA_WRITE_FIRST, 0, 256, length=600)
    talk.ask(Op.RC_RDMA_WRITE_MIDDLE, 1, 256)
    talk.ask(Op.RC_RDMA_WRITE_LAST, 2, 80 if broken else 88)


def _atomic_write(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_ATOMIC_WRITE, 0, 4 if broken else 8, length=8)


def _headers(talk: Talk, broken: bool) -> None:
    def longer(packet: Packet) -> Packet:
        route = packet.route
        assert isinstance(route, RoCEv2Route)
        udp = replace(route.udp, length=route.udp.length - 4)
        return replace(packet, route=replace(route, udp=udp))

    talk.sends(0, 1)
    talk.ask(Op.RC_SEND_ONLY, 1, 64, change=longer if broken else None)


def _msn_behind(talk: Talk, broken: bool) -> None:
    talk.sends(0, 3)
    talk.sends(3, 1, msn=3 if broken else 4)


def _msn_ahead(talk: Talk, broken: bool) -> None:
    talk.sends(0, 3)
    talk.sends(3, 2, msn=9 if broken else 4)


def _sent(talk: Talk, broken: bool) -> None:
    talk.sends(0, 2)
    talk.answer(200_000 if broken else 1, 2)


def _early(talk: Talk, broken: bool) -> None:
    talk.sends(0, 2)
    if broken:
        talk.answer(2, 3)
    talk.ask(Op.RC_SEND_ONLY, 2, 64, ack_req=1)
    if not broken:
        talk.answer(2, 3)


def _msn_still(talk: Talk, broken: bool) -> None:
    for psn in range(6):
        talk.sends(psn, 1, msn=7 if broken else 7 + psn)


def _msn_still_under_way(talk: Talk, broken: bool) -> None:
    """All requests were sent before the first ACK."""
    for psn in range(12):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
    for psn in range(12):
        talk.answer(psn, 1 if broken else psn + 1)


def _msn_random(talk: Talk, broken: bool) -> None:
    for psn, msn in enumerate((0x345678, 0x11, 0xABCDEF, 0x700000, 0x5, 0x812345)):
        talk.sends(psn, 1, msn=msn if broken else psn + 1)


def _sent_far(talk: Talk, broken: bool) -> None:
    """Beyond anything that is on the way: the responder itself acknowledges less afterwards."""
    talk.sends(0, 3)
    talk.ask(Op.RC_SEND_ONLY, 3, 64, ack_req=1)
    talk.answer(500 if broken else 3, 4)
    talk.sends(4, 2, msn=5)


def _before_first(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_RDMA_READ_REQUEST, 50_000, length=64, ack_req=1)
    talk.answer(50_000, 1, opcode=Op.RC_RDMA_READ_RESPONSE_ONLY, size=64)
    talk.answer(0xFFFFFF if broken else 50_000, 1)


def _stale(talk: Talk, broken: bool) -> None:
    talk.sends(0, 3)
    talk.answer(0 if broken else 2, 3)


def _kind(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)  # which shows that the two directions belong together
    talk.ask(Op.RC_SEND_ONLY, 1, 64, ack_req=1)
    if broken:
        talk.answer(1, 2, opcode=Op.RC_RDMA_READ_RESPONSE_ONLY, size=4)
    else:
        talk.answer(1, 2)


def _atomic_by_ack(talk: Talk, broken: bool) -> None:
    talk.sends(0, 2)
    talk.ask(Op.RC_FETCH_ADD, 2, ack_req=1)
    talk.answer(2, 3, opcode=Op.RC_ACKNOWLEDGE if broken else Op.RC_ATOMIC_ACKNOWLEDGE)


def _stale_without_ids(talk: Talk, broken: bool) -> None:
    """The MSN is newer than that of the response before."""
    for psn in range(6):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
    for msn, psn in enumerate((0, 1, 2, 3, 4, 2 if broken else 5), 1):
        talk.answer(psn, msn, change=with_ip(id=0))


def _ack_req(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_SEND_ONLY, 0, 64, ack_req=1)
    talk.answer(0, 1, ack_req=int(broken))


def _ack_req_mad(talk: Talk, broken: bool) -> None:
    deth = h.DETH(qkey=0x80010000, src_qp=1)
    talk.put(0, Op.UD_SEND_ONLY, 0, 256, deth, dest_qp=1, ack_req=int(broken))


def _gap(talk: Talk) -> None:
    """PSN 1 is missing, and NAKed."""
    talk.sends(0, 1)
    for psn in (2, 3):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
    talk.answer(1, 1, SEQUENCE)


def _once(talk: Talk, broken: bool) -> None:
    _gap(talk)
    if broken:
        talk.answer(1, 1, SEQUENCE)
    talk.sends(1, 3, msn=2)


def _after_duplicate(talk: Talk, broken: bool) -> None:
    _gap(talk)
    talk.wait(TIMEOUT_US)
    talk.ask(Op.RC_SEND_ONLY, 0, 64, ack_req=1)
    if broken:
        talk.answer(1, 1, SEQUENCE)
    talk.sends(1, 3, msn=2)


def _after_rnr(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    talk.ask(Op.RC_SEND_FIRST, 1, 256)
    talk.ask(Op.RC_SEND_LAST, 2, 64, ack_req=1)
    talk.answer(1, 1, RNR_5_MS)
    if broken:
        talk.answer(1, 1, SEQUENCE)


def _acknowledged(talk: Talk, broken: bool) -> None:
    talk.sends(0, 3)
    talk.ask(Op.RC_SEND_ONLY, 4, 64, ack_req=1)
    talk.answer(1 if broken else 3, 3, SEQUENCE)


def _rnr_wait(talk: Talk, broken: bool) -> None:
    for psn in range(3):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn, RNR_5_MS)
        talk.wait(1_000 if broken else 5_200)
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn + 1)


def _rnr_new(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    talk.ask(Op.RC_SEND_ONLY, 1, 64, ack_req=1)
    talk.answer(1, 1, RNR_10_MS)
    talk.wait(2_000)
    if broken:
        talk.ask(Op.RC_SEND_ONLY, 2, 64, ack_req=1)
    talk.wait(12_000)
    talk.sends(1, 2, msn=2)


def _silence(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    talk.ask(Op.RC_SEND_ONLY, 1, 64, ack_req=1)
    talk.answer(1, 1, INVALID)
    if broken:
        talk.answer(1, 2)


def _code(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_SEND_ONLY, 0, 64, ack_req=1)
    talk.answer(0, 0, 0x65 if broken else INVALID)


def _nak_with_data(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    talk.ask(Op.RC_RDMA_READ_REQUEST, 1, length=64, ack_req=1)
    syndrome = SEQUENCE if broken else 0x1F
    talk.answer(1, 2, syndrome, opcode=Op.RC_RDMA_READ_RESPONSE_ONLY, size=64)


def _too_long(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_SEND_ONLY, 0, 64, ack_req=1)
    talk.answer(0, 0, OPERATION if broken else INVALID)


def _credited(talk: Talk) -> None:
    """Five messages may be begun; the sixth has to ask."""
    talk.sends(0, 3, syndrome=CREDITS_2)
    for psn in (3, 4):
        talk.ask(Op.RC_SEND_ONLY, psn, 64)


def _beyond(talk: Talk, broken: bool) -> None:
    _credited(talk)
    talk.ask(Op.RC_SEND_ONLY, 5, 64, ack_req=1)
    for psn in range(6, 9 if broken else 6):
        talk.ask(Op.RC_SEND_ONLY, psn, 64)


def _asks(talk: Talk, broken: bool) -> None:
    _credited(talk)
    for psn in (5, 6, 7):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=int(not broken))
        talk.answer(psn, psn + 1, NO_CREDITS)


def _first_alone(talk: Talk, broken: bool) -> None:
    _credited(talk)
    for message in (5, 6, 7):
        psn = 2 * message - 5
        talk.ask(Op.RC_SEND_FIRST, psn, 256, ack_req=1)
        if not broken:
            talk.answer(psn, message, NO_CREDITS)
        talk.ask(Op.RC_SEND_LAST, psn + 1, 64, ack_req=1)
        talk.answer(psn + 1, message + 1, NO_CREDITS)


def _read(talk: Talk, *opcodes: int, last: int = 88) -> None:
    """A READ of 600 bytes at PSN 0 with these responses."""
    talk.ask(Op.RC_RDMA_READ_REQUEST, 0, length=600, ack_req=1)
    for psn, opcode in enumerate(opcodes):
        talk.answer(psn, 1, opcode=opcode, size=last if psn == 2 else 256)


_FIRST, _MIDDLE, _LAST = (
    Op.RC_RDMA_READ_RESPONSE_FIRST,
    Op.RC_RDMA_READ_RESPONSE_MIDDLE,
    Op.RC_RDMA_READ_RESPONSE_LAST,
)


def _read_order(talk: Talk, broken: bool) -> None:
    _read(talk, _FIRST, _LAST if broken else _MIDDLE, _LAST)


def _read_size(talk: Talk, broken: bool) -> None:
    _read(talk, _FIRST, _MIDDLE, _LAST, last=80 if broken else 88)


def _read_again(talk: Talk, va: int, first: int) -> None:
    """The second of three responses is lost; the READ is asked for again from there."""
    _read(talk, _FIRST)
    talk.answer(2, 1, opcode=_LAST, size=88)
    talk.wait(TIMEOUT_US)
    talk.ask(Op.RC_RDMA_READ_REQUEST, 1, va=va, length=344, ack_req=1)
    talk.answer(1, 1, opcode=first, size=256)
    talk.answer(2, 1, opcode=_LAST, size=88)


def _read_replay(talk: Talk, broken: bool) -> None:
    _read_again(talk, VA + 256, _MIDDLE if broken else _FIRST)


def _read_restart(talk: Talk, broken: bool) -> None:
    _read_again(talk, VA + (200 if broken else 256), _FIRST)


def _reserved(talk: Talk, broken: bool) -> None:
    _read(talk, _FIRST, _MIDDLE, _LAST)
    talk.ask(Op.RC_SEND_ONLY, 1 if broken else 3, 64, ack_req=1)


def _aligned(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_FETCH_ADD, 0, va=VA + 4 * broken, ack_req=1)


def _same_atomic(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_COMPARE_SWAP, 0, swap=1, ack_req=1)
    talk.wait(TIMEOUT_US)
    talk.ask(Op.RC_COMPARE_SWAP, 0, swap=1 + broken, ack_req=1)


def _once_executed(talk: Talk, broken: bool) -> None:
    for value in (5, 5 + broken):
        talk.ask(Op.RC_FETCH_ADD, 0, ack_req=1)
        talk.answer(0, 1, opcode=Op.RC_ATOMIC_ACKNOWLEDGE, value=value)
        talk.wait(TIMEOUT_US)


def _same(talk: Talk, broken: bool) -> None:
    talk.ask(Op.RC_SEND_ONLY, 0, 64, ack_req=1)
    talk.wait(TIMEOUT_US)
    talk.ask(Op.RC_SEND_ONLY, 0, 60 if broken else 64, ack_req=1)
    talk.answer(0, 1)


def _needless_known(talk: Talk, broken: bool) -> None:
    """The ACK of PSN 2 was lost; the requester goes back to it, and so knows of the others."""
    talk.sends(0, 3)
    for psn in (2, 1 if broken else 2):
        talk.wait(TIMEOUT_US)
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)


def _needless_early(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    for _ in range(2):
        talk.wait(TIMEOUT_US)
        talk.ask(Op.RC_SEND_ONLY, 1, 64, ack_req=1)
    for _ in range(1 + broken):
        talk.wait(TIMEOUT_US)
        talk.answer(1, 2)


def _needless_unwatched(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    for _ in range(2):
        talk.wait(TIMEOUT_US)
        talk.ask(Op.RC_SEND_FIRST, 1, 256, ack_req=int(not broken))


def _unasked(talk: Talk, broken: bool) -> None:
    """Each duplicate is acknowledged, although only the last one asks for an ACK."""
    for is_again in (False, True):
        talk.ask(Op.RC_SEND_FIRST, 0, 256)
        for psn in (1, 2):
            talk.ask(Op.RC_SEND_MIDDLE, psn, 256)
        talk.ask(Op.RC_SEND_LAST, 3, 64, ack_req=1)
        for _ in range(4 if broken and is_again else 1):
            talk.answer(3, 1)
        talk.wait(TIMEOUT_US)


def _selective(talk: Talk, broken: bool) -> None:
    _gap(talk)
    for psn in (1, 4) if broken else (1, 2, 3, 4):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)


def _retries(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    for _ in range(9 if broken else 8):
        talk.ask(Op.RC_SEND_ONLY, 1, 64, ack_req=1)
        talk.wait(TIMEOUT_US)


def _cnp(talk: Talk, **bth: Any) -> None:
    talk.put(1, Op.CNP, 0, 0, h.CNPReserved(), **{"becn": 1, **bth})


def _cnp_form(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    _cnp(talk, becn=int(not broken))


def _cnp_pace(talk: Talk, broken: bool) -> None:
    talk.sends(0, 1)
    _cnp(talk)
    talk.wait(-9 if broken else 0)
    _cnp(talk)


def _no_cnp(talk: Talk, broken: bool) -> None:
    for psn in range(4):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1, ecn=3)
        talk.answer(psn, psn + 1)
    if not broken:
        _cnp(talk)


def _icrc(talk: Talk, broken: bool) -> None:
    for psn in range(4):
        wrong = (lambda packet: replace(packet, icrc=bytes(4))) if broken else None
        talk.ask(Op.RC_SEND_ONLY, psn, 64, change=wrong)


def _damaged(talk: Talk, broken: bool) -> None:
    talk.sends(0, 4)
    wrong = (lambda packet: replace(packet, icrc=bytes(4))) if broken else None
    talk.ask(Op.RC_SEND_ONLY, 4, 64, change=wrong)


def _pad_bytes(talk: Talk, broken: bool) -> None:
    filled = (lambda packet: replace(packet, padding=b"\1\2\3")) if broken else None
    talk.ask(Op.RC_SEND_ONLY, 0, 61, change=filled)


def _bit(
    field: str, right: int, wrong: int, opcode: int = Op.RC_SEND_ONLY, count: int = 1
) -> Conversation:
    """Packets with a field of the BTH that has a right and a wrong value."""

    def converse(talk: Talk, broken: bool) -> None:
        for psn in range(count):
            talk.ask(opcode, psn, 256, change=with_bth(**{field: wrong if broken else right}))

    return converse


def with_ip(**fields: int) -> Change:
    """Other values in the IP header, with its checksum."""

    def change(packet: Packet) -> Packet:
        route = packet.route
        assert isinstance(route, RoCEv2Route)
        return replace(
            packet, route=with_ip_checksum(replace(route, ip=replace(route.ip, **fields)))
        )

    return change


def with_checksums(ip: int = 0, udp: int = 0) -> Change:
    """Checksums that are wrong by so much."""

    def change(packet: Packet) -> Packet:
        route = packet.route
        assert isinstance(route, RoCEv2Route)
        assert isinstance(route.ip, IPv4)
        wrong = replace(route.ip, checksum=route.ip.checksum ^ ip)
        return replace(packet, route=replace(route, ip=wrong, udp=replace(route.udp, checksum=udp)))

    return change


def with_port(port: int) -> Change:
    """Another UDP source port."""

    def change(packet: Packet) -> Packet:
        route = packet.route
        assert isinstance(route, RoCEv2Route)
        return replace(packet, route=replace(route, udp=replace(route.udp, src_port=port)))

    return change


def _swapped_ports(talk: Talk, broken: bool) -> None:
    def swap(packet: Packet) -> Packet:
        route = packet.route
        assert isinstance(route, RoCEv2Route)
        udp = replace(route.udp, src_port=route.udp.dst_port, dst_port=route.udp.src_port)
        return replace(packet, route=replace(route, udp=udp))

    for psn in range(3):
        talk.ask(Op.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn + 1, change=swap if broken else None)


def _odd_one(*changes: Change, opcode: int = Op.RC_SEND_ONLY) -> Conversation:
    """Requests of which some are changed, the second first."""

    def converse(talk: Talk, broken: bool) -> None:
        talk.sends(0, 2)
        for psn, change in enumerate(changes, 2):
            talk.ask(opcode, psn, 256, ack_req=1, change=change if broken else None)
        talk.sends(2 + len(changes), 1, msn=3 + len(changes))

    return converse


def _mig_req_once(talk: Talk, broken: bool) -> None:
    """Armed for migration; a packet that says it is over is followed by others that do not."""
    talk.sends(0, 1)
    for psn in range(1, 6):
        mig_req = 1 if broken and psn == 3 else 0
        talk.ask(Op.RC_SEND_ONLY, psn, 64, change=with_bth(mig_req=mig_req))


def _deth_reserved(talk: Talk, broken: bool) -> None:
    talk.put(0, Op.UD_SEND_ONLY, 0, 64, h.DETH(qkey=0x11, src_qp=QPNS[0], reserved=broken))


def _q_key(talk: Talk, broken: bool) -> None:
    qkey = 0x80010000 + broken
    talk.put(0, Op.UD_SEND_ONLY, 0, 256, h.DETH(qkey=qkey, src_qp=1), dest_qp=1)


def _port_in_message(talk: Talk, broken: bool) -> None:
    talk.sends(0, 2)
    talk.ask(Op.RC_SEND_FIRST, 2, 256)
    talk.ask(Op.RC_SEND_MIDDLE, 3, 256, change=with_port(50001) if broken else None)
    talk.ask(Op.RC_SEND_LAST, 4, 8, ack_req=1)


CONVERSATIONS: tuple[tuple[str, Conversation], ...] = (
    ("sequences.order", _order),
    ("sequences.opcode", _opcode),
    ("sequences.service", _service),
    ("lengths.none", _no_payload),
    ("lengths.full", _full),
    ("lengths.last", _last),
    ("lengths.limit", _limit),
    ("lengths.path-mtu", _path_mtu),
    ("lengths.padding", _padding),
    ("lengths.message", _message),
    ("lengths.write", _write),
    ("lengths.atomic-write", _atomic_write),
    ("lengths.headers", _headers),
    ("psn_acks.msn", _msn_behind),
    ("psn_acks.msn", _msn_ahead),
    ("psn_acks.msn", _msn_still),
    ("psn_acks.msn", _msn_still_under_way),
    ("psn_acks.msn", _msn_random),
    ("psn_acks.sent", _sent),
    ("psn_acks.sent", _sent_far),
    ("psn_acks.early", _early),
    ("psn_acks.before-first", _before_first),
    ("psn_acks.stale", _stale),
    ("psn_acks.stale", _stale_without_ids),
    ("psn_acks.kind", _kind),
    ("psn_acks.kind", _atomic_by_ack),
    ("psn_acks.ack-req", _ack_req),
    ("psn_acks.ack-req-mad", _ack_req_mad),
    ("naks.once", _once),
    ("naks.after-duplicate", _after_duplicate),
    ("naks.after-rnr", _after_rnr),
    ("naks.acknowledged", _acknowledged),
    ("naks.rnr-wait", _rnr_wait),
    ("naks.rnr-new", _rnr_new),
    ("naks.silence", _silence),
    ("naks.code", _code),
    ("naks.opcode", _nak_with_data),
    ("naks.too-long", _too_long),
    ("credits.limit", _beyond),
    ("credits.ask", _asks),
    ("credits.first-alone", _first_alone),
    ("reads.order", _read_order),
    ("reads.size", _read_size),
    ("reads.replay", _read_replay),
    ("reads.restart", _read_restart),
    ("reads.reserved", _reserved),
    ("atomics.aligned", _aligned),
    ("atomics.same", _same_atomic),
    ("atomics.once", _once_executed),
    ("repeat.same", _same),
    ("repeat.needless", _needless_known),
    ("repeat.needless", _needless_early),
    ("repeat.needless", _needless_unwatched),
    ("repeat.unasked-ack", _unasked),
    ("repeat.selective", _selective),
    ("repeat.retries", _retries),
    ("congestion.cnp-form", _cnp_form),
    ("congestion.cnp-pace", _cnp_pace),
    ("congestion.no-cnp", _no_cnp),
    ("congestion.becn", _odd_one(*[with_bth(becn=1)] * 4)),
    ("constant.p-key", _odd_one(with_bth(pkey=0x8001))),
    ("constant.source-port", _odd_one(with_port(50001))),
    ("constant.message-port", _port_in_message),
    ("constant.mig-req", _mig_req_once),
    ("constant.dscp", _odd_one(with_ip(dscp=46))),
    ("integrity.ip-checksum", _odd_one(*[with_checksums(ip=0x100)] * 4)),
    ("integrity.udp-checksum", _odd_one(*[with_checksums(udp=0x1234)] * 4)),
    ("integrity.fragment", _odd_one(with_ip(mf=1))),
    ("integrity.hop-limit", _odd_one(*[with_ip(ttl=0)] * 4)),
    ("integrity.q-key", _q_key),
    ("integrity.dest-qp", _odd_one(with_bth(dest_qp=0xFFFFFF))),
    ("integrity.udp-port", _swapped_ports),
    ("integrity.icrc", _icrc),
    ("integrity.damaged", _damaged),
    ("integrity.pad-bytes", _pad_bytes),
    ("integrity.tver", _bit("tver", 0, 1)),
    ("integrity.reserved", _bit("resv7", 0, 0x40)),
    ("integrity.extension", _deth_reserved),
    ("integrity.byte-4", _bit("resv6a", 0, 0x10, count=4)),
    ("integrity.mig-req", _bit("mig_req", 1, 0)),
    ("integrity.p-key", _bit("pkey", 0x7FFF, 0x8000)),
    ("integrity.se", _bit("se", 0, 1, Op.RC_SEND_FIRST)),
)
"""Rule, and the conversation that breaks it and nothing else."""
