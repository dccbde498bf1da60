"""A hand-made conversation of two queue pairs, packet by packet, with every ICRC right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.outer import UDP, Ethernet, IPv4
from ibwire_layers.packet import Packet, RoCEv2Route
from ibwire_layers.schema import Header

ADDRESSES = (0x0A000001, 0x0A000002)
QPNS = (0x11, 0x22)
VA = 0x10000
RKEY = 0x1234

Change = Callable[[Packet], Packet]


class Talk:
    """End 0 asks and end 1 answers, unless stated otherwise; 10 us between packets.

    number: of several conversations, which have other addresses.
    """

    def __init__(self, counts_ids: bool = True, number: int = 0) -> None:
        self._addresses = [each + (number << 8) for each in ADDRESSES]
        self.frames: list[tuple[int, bytes]] = []
        self._now = 1_000_000_000
        self._ids = [100, 500]
        self._counts_ids = counts_ids

    def wait(self, us: float) -> None:
        """Let time pass."""
        self._now += int(us * 1000)

    def put(
        self,
        sender: int,
        opcode: int,
        psn: int,
        size: int = 0,
        *extensions: Header,
        ecn: int = 0,
        change: Change | None = None,
        **bth: int,
    ) -> None:
        """One packet with a payload of so many bytes; `change` is made before the ICRC."""
        self._now += 10_000
        self._ids[sender] += self._counts_ids
        ip = IPv4(
            src=self._addresses[sender],
            dst=self._addresses[1 - sender],
            id=self._ids[sender] if self._counts_ids else 0,
            ecn=ecn,
        )
        route = RoCEv2Route(ip, UDP(src_port=50000), Ethernet())
        given = {"mig_req": 1, "dest_qp": QPNS[1 - sender], **bth}
        packet = Packet(
            route, h.BTH(opcode, psn=psn & 0xFFFFFF, **given), extensions, bytes(size)
        ).repaired()
        if change is not None:
            packet = change(packet)
        self.frames.append((self._now, packet.build()))

    def ask(
        self,
        opcode: int,
        psn: int,
        size: int = 0,
        *,
        length: int | None = None,
        va: int = VA,
        rkey: int = RKEY,
        swap: int = 1,
        sender: int = 0,
        **rest: int | Change | None,
    ) -> None:
        """A request with the headers of its opcode; `length` is the DMALen of a RETH."""
        made: dict[type[Header], Header] = {
            h.RETH: h.RETH(va=va, rkey=rkey, dma_len=size if length is None else length),
            h.AtomicETH: h.AtomicETH(va=va, rkey=rkey, swap=swap),
            h.ImmDt: h.ImmDt(),
            h.IETH: h.IETH(),
            h.FETH: h.FETH(plt=1),
            h.DETH: h.DETH(src_qp=QPNS[sender]),
        }
        headers = (made[header] for header in INFO[opcode].headers)
        self.put(sender, opcode, psn, size, *headers, **rest)

    def answer(
        self,
        psn: int,
        msn: int,
        syndrome: int = 0x1F,
        opcode: int = OpCode.RC_ACKNOWLEDGE,
        size: int = 0,
        *,
        value: int = 0,
        sender: int = 1,
        **rest: int | Change | None,
    ) -> None:
        """A response."""
        made: dict[type[Header], Header] = {
            h.AETH: h.AETH(syndrome=syndrome, msn=msn & 0xFFFFFF),
            h.AtomicAckETH: h.AtomicAckETH(orig=value),
        }
        headers = (made[header] for header in INFO[opcode].headers)
        self.put(sender, opcode, psn, size, *headers, **rest)

    def sends(self, psn: int, count: int, msn: int = 1, syndrome: int = 0x1F) -> None:
        """SENDs of 64 bytes, each acknowledged, the first as message number `msn`."""
        for step in range(count):
            self.ask(OpCode.RC_SEND_ONLY, psn + step, 64, ack_req=1)
            self.answer(psn + step, msn + step, syndrome)


def with_bth(**fields: int) -> Change:
    """Other values in the BTH, and nothing that follows from them."""
    return lambda packet: replace(packet, bth=replace(packet.bth, **fields))
