"""Link and network headers: LRH, RWH, GRH, flow-control packets, and ERF records around them."""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import ConditionalField, Field, XStrLenField
from scapy.packet import Packet

from ibwire_layers import crc, headers, outer
from ibwire_layers.derive import scapy_fields
from ibwire_layers.outer import ErfType
from ibwire_layers.scapy.fields import CRCField, crc_bytes
from ibwire_layers.scapy.layer import Layer, Trailed, put

_WORD = 4
"""LRH.PktLen counts these."""


class LRH(Trailed):
    """Local route header, and the VCRC that ends the packet.

    On build `pkt_len` and `vcrc` are computed, and `lnh` follows the next layer,
    unless they are given.
    """

    name = "LRH"
    HEADER = headers.LRH
    fields_desc: ClassVar[list[Any]] = [
        *scapy_fields(headers.LRH, defaults={"pkt_len": None}),
        CRCField("vcrc", None, "!H"),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the length and append the VCRC."""
        packet = pkt + pay
        if self.getfieldval("pkt_len") is None:
            packet = put(packet, headers.LRH, "pkt_len", -(-len(packet) // _WORD))
        vcrc = self.getfieldval("vcrc")
        if vcrc is None:
            return packet + crc.vcrc(packet)
        return packet + crc_bytes(vcrc, headers.VCRC_SIZE)

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """Cut by `pkt_len`; two bytes of VCRC follow it, and then padding."""
        end = max(_WORD * int(self.pkt_len) - headers.LRH.SIZE, 0)
        after = end + headers.VCRC_SIZE
        self.fields["vcrc"] = self.get_field("vcrc").any2i(self, s[end:after])
        self.raw_packet_cache = None  # it would be used without the VCRC
        return s[:end], s[after:]

    def hashret(self) -> bytes:
        """The same in both directions."""
        pair: int = self.slid ^ self.dlid
        return pair.to_bytes(2) + self.payload.hashret()

    def answers(self, other: Packet) -> int:
        """Whether its destination is the source of `other`."""
        if not isinstance(other, LRH):
            return 0
        if conf.checkIPaddr and (self.slid, self.dlid) != (other.dlid, other.slid):
            return 0
        return self.payload.answers(other.payload)

    def mysummary(self) -> Any:
        """Destination."""
        return self.sprintf("LRH %slid% > %dlid% vl=%vl% sl=%sl%")


class RWH(Layer):
    """Raw header: an EtherType instead of InfiniBand transport."""

    name = "RWH"
    HEADER = headers.RWH
    fields_desc = scapy_fields(headers.RWH)


class GRH(Layer):
    """Global route header; `pay_len` is computed on build."""

    name = "GRH"
    HEADER = headers.GRH
    fields_desc = scapy_fields(headers.GRH, defaults={"pay_len": None})

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the length."""
        if self.getfieldval("pay_len") is None:
            pkt = put(pkt, headers.GRH, "pay_len", len(pay))
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """Cut by `pay_len` on Ethernet; on InfiniBand the LRH has cut already."""
        if isinstance(self.underlayer, LRH):
            return s, None
        return s[: self.pay_len], s[self.pay_len :]

    def hashret(self) -> bytes:
        """The same in both directions."""
        if not conf.checkIPaddr:
            return self.payload.hashret()
        sgid, dgid = self._gids()
        pair = int.from_bytes(sgid) ^ int.from_bytes(dgid)
        return pair.to_bytes(16) + self.payload.hashret()

    def answers(self, other: Packet) -> int:
        """Whether its destination is the source of `other`."""
        if not isinstance(other, GRH):
            return 0
        if conf.checkIPaddr and self._gids() != other._gids()[::-1]:
            return 0
        return self.payload.answers(other.payload)

    def _gids(self) -> tuple[bytes, bytes]:
        sgid, dgid = (
            self.get_field(name).i2m(self, self.getfieldval(name)) for name in ("sgid", "dgid")
        )
        return sgid, dgid

    def mysummary(self) -> Any:
        """Destination."""
        return self.with_enclosing(self.sprintf("GRH %sgid% > %dgid%"))


class FlowControl(Layer):
    """Link packet with credits; `lpcrc` is computed on build."""

    name = "FlowControl"
    HEADER = headers.FlowControl
    fields_desc = scapy_fields(headers.FlowControl, defaults={"lpcrc": None})

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the LPCRC."""
        if self.getfieldval("lpcrc") is None:
            check = crc.lpcrc(pkt[: -headers.VCRC_SIZE])
            pkt = put(pkt, headers.FlowControl, "lpcrc", int.from_bytes(check))
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """Nothing follows a link packet."""
        return b"", s

    def mysummary(self) -> Any:
        """Credits."""
        return self.sprintf("FlowControl vl=%vl% op=%op% fctbs=%fctbs% fccl=%fccl%")


ERF_ETHERNET = (ErfType.COLOR_HASH_ETH, ErfType.DSM_COLOR_ETH, ErfType.COLOR_ETH, ErfType.ETH)
"""Records that hold an Ethernet frame, the plain one last."""

_ERF_EXTENSION = 8
_ERF_ETH_PAD = 2


class _ErfExtensions(Field[Any, Any]):
    """Extension headers of 8 bytes; bit 7 of the first byte: another follows."""

    def addfield(self, pkt: Packet, s: bytes, val: bytes | None) -> bytes:
        return s + (val or b"")

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Any]:
        end = 0
        more = True
        while more and end + _ERF_EXTENSION <= len(s):
            more = s[end] & 0x80 != 0
            end += _ERF_EXTENSION
        return s[end:], s[:end]


class ERF(Layer):
    """Record header of LINKTYPE_ERF; both lengths are computed on build."""

    name = "ERF"
    HEADER = outer.ERF
    fields_desc: ClassVar[list[Any]] = [
        *scapy_fields(
            outer.ERF,
            defaults={"record_length": None, "wire_length": None},
            names={"type": {int(kind): kind.name for kind in ErfType}},
        ),
        ConditionalField(_ErfExtensions("extensions", b"", "8s"), lambda pkt: pkt.more == 1),
        ConditionalField(
            XStrLenField("eth_pad", bytes(_ERF_ETH_PAD), length_from=lambda _: _ERF_ETH_PAD),
            lambda pkt: pkt.type in ERF_ETHERNET,
        ),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the lengths."""
        if self.getfieldval("record_length") is None:
            pkt = put(pkt, outer.ERF, "record_length", len(pkt) + len(pay))
        if self.getfieldval("wire_length") is None:
            pkt = put(pkt, outer.ERF, "wire_length", len(pay))
        return pkt + pay

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """Records are filled up to multiples of 8 bytes."""
        return s[: self.wire_length], s[self.wire_length :]
