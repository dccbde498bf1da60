"""Transport headers: the BTH, the extension headers its opcode requires, the ICRC.

    Ether()/IP(dst="192.0.2.2")/UDP()/BTH(opcode="RC_RDMA_READ_REQUEST", dest_qp=0x11, psn=7)/RETH(
        va=0x1000, rkey=1, dma_len=64)

The caller sets the opcode: layers after a BTH do not change it. Pad
count, pad bytes and ICRC are computed on build unless they are given.

Payloads are `Raw`. `bind_layers` on `BTH` or on the last extension header names
another, e.g. `bind_layers(DETH, IPoIB, qkey=0x0b1b)`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.config import conf
from scapy.error import log_runtime
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet

from ibwire_layers import crc, headers, opcodes, outer, psn, syndrome
from ibwire_layers.derive import scapy_fields
from ibwire_layers.mad import MAD_SIZE
from ibwire_layers.opcodes import OpCode, OpCodeInfo, Operation, Position, Service
from ibwire_layers.scapy import mad
from ibwire_layers.scapy.fields import CRCField, PadField, crc_bytes
from ibwire_layers.scapy.layer import Layer, Trailed, put, underlayers
from ibwire_layers.scapy.routing import GRH, LRH
from ibwire_layers.schema import Header
from ibwire_layers.syndrome import AckKind, NakCode

# Enclosing header -> bits that the ICRC excludes. It is the first covered header.
_MASKS: dict[type[Packet], crc.Mask] = {
    IP: crc.IPV4_MASK,
    IPv6: crc.IPV6_MASK,
    GRH: crc.GRH_MASK,
    LRH: crc.LRH_MASK,
}

_SMALLEST_MTU = 256


class BTH(Trailed):
    """Base transport header; `pad` and `icrc` come after the payload.

    `icrc` reads as `None` in a captured packet that was cut before its end.
    `pad` is `None` where the pad bytes are zeros, as they should be.
    """

    name = "BTH"
    HEADER = headers.BTH
    fields_desc: ClassVar[list[Any]] = [
        *scapy_fields(
            headers.BTH,
            defaults={"opcode": int(OpCode.RC_SEND_ONLY), "pad_count": None},
            names={"opcode": {int(opcode): opcode.name for opcode in OpCode}},
        ),
        PadField("pad", None),
        CRCField("icrc", None, "!I"),
    ]

    @property
    def info(self) -> OpCodeInfo | None:
        """Properties of the opcode, `None` for an unknown one."""
        return opcodes.INFO.get(self.opcode)

    def icrc_ok(self) -> bool | None:
        """Whether the ICRC is correct, `None` if it is absent or its headers are."""
        found = self.getfieldval("icrc")
        if not isinstance(found, int):
            return None
        expected = self._compute_icrc(self.do_build()[: -headers.ICRC_SIZE])
        return None if expected is None else expected == crc_bytes(found, headers.ICRC_SIZE)

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the pad count; append pad bytes and ICRC."""
        pad, count = self.getfieldval("pad"), self.getfieldval("pad_count")
        if count is None:
            count = len(pad) & 3 if pad is not None else -len(pay) % 4
            pkt = put(pkt, headers.BTH, "pad_count", count)
        packet: bytes = pkt + pay + (bytes(count) if pad is None else pad)
        icrc = self.getfieldval("icrc")
        if icrc is not None:
            return packet + crc_bytes(icrc, headers.ICRC_SIZE)
        computed = self._compute_icrc(packet)
        if computed is None:
            log_runtime.info("No IP, GRH or LRH around the BTH to compute ICRC. Leaving null.")
            computed = bytes(headers.ICRC_SIZE)
        return packet + computed

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """Cut off ICRC and pad bytes, as far as they were captured."""
        icrc_at = max(len(s) + self._missing() - headers.ICRC_SIZE, 0)
        info = self.info
        extensions = info.header_size - headers.BTH.SIZE if info else 0
        pad_at = max(icrc_at - self.pad_count, min(extensions, icrc_at))
        pad = s[pad_at:icrc_at]
        self.fields["icrc"] = self.get_field("icrc").any2i(self, s[icrc_at:])
        self.fields["pad"] = None if pad == bytes(self.pad_count) else pad
        self.raw_packet_cache = None  # it would be used without pad and ICRC
        return s[:pad_at], None

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The first extension header."""
        return self.extension(0) or super().guess_payload_class(payload)

    def extension(self, index: int) -> type[Packet] | None:
        """The layer that the opcode puts at a place after the BTH, from 0."""
        info = self.info
        return EXTENSIONS[info.headers[index]] if info and index < len(info.headers) else None

    def hashret(self) -> bytes:
        """The same in both directions: only the service, as RC packets lack the source QP."""
        return bytes([self.opcode >> 5]) + (self.payload.hashret() if DETH in self else b"")

    def answers(self, other: Packet) -> int:
        """Whether this is a response to `other`.

        RC: an ACK or RNR NAK of its PSN, a NAK that concerns it, or the RDMA READ
        response or ATOMIC ACK that it requested. An ACK of a later PSN, which covers it
        too, answers the request with that PSN. UD: a datagram back to its sender.
        """
        if not isinstance(other, BTH):
            return 0
        mine, theirs = self.info, other.info
        if mine is None or theirs is None or mine.service != theirs.service:
            return 0
        if mine.service == Service.UD:
            return self._answers_datagram(other)
        if theirs.is_response or not _ANSWERED_BY.get(theirs.operation):
            return 0
        return int(self._responds(mine, other, theirs))

    def mysummary(self) -> Any:
        """Opcode, queue pair, PSN, and the flags that are set."""
        text = self.sprintf("%opcode% qp=%dest_qp% psn=%psn%")
        flags = [name for name in ("ack_req", "se", "fecn", "becn") if getattr(self, name)]
        return self.with_enclosing(" ".join([text, *flags]))

    def _missing(self) -> int:
        """Bytes of the packet that were not captured, by the lengths around it.

        The IP length rules over the UDP length, but not in a fragment.
        """
        missing = 0
        for layer in underlayers(self):
            if isinstance(layer, IP) and layer.flags.MF:
                break
            stated = _stated_length(layer)
            if stated is not None:
                missing = stated - len(layer.original)
            if isinstance(layer, IP | IPv6 | LRH):
                break
        return max(missing, 0)

    def _compute_icrc(self, covered: bytes) -> bytes | None:
        """The ICRC; `covered` is from the BTH to the pad bytes."""
        # Rebuilt around stand-in bytes, the enclosing headers have their final lengths.
        packet: Packet = conf.raw_layer(covered + bytes(headers.ICRC_SIZE))
        for layer in underlayers(self):
            without_vcrc = {"vcrc": b""} if isinstance(layer, LRH) else {}
            packet = layer.clone_with(payload=packet, **{**layer.fields, **without_vcrc})
            found = next((mask for kind, mask in _MASKS.items() if isinstance(layer, kind)), None)
            if found is None:
                continue
            data = packet.do_build()[: -headers.ICRC_SIZE]
            start = len(data) - len(covered)
            masks = [(0, found), (start, crc.BTH_MASK)]
            if isinstance(self.underlayer, UDP):
                masks.append((start - outer.UDP.SIZE, crc.UDP_MASK))
            return crc.icrc(data, tuple(masks), 0 if isinstance(layer, LRH) else crc.ICRC_SEED)
        return None

    def _answers_datagram(self, other: BTH) -> int:
        mine, theirs = self.getlayer(DETH), other.getlayer(DETH)
        if mine is None or theirs is None:
            return 0
        if (self.dest_qp, mine.src_qp) != (theirs.src_qp, other.dest_qp):
            return 0
        return mine.payload.answers(theirs.payload)

    def _responds(self, mine: OpCodeInfo, other: BTH, theirs: OpCodeInfo) -> bool:
        """Whether a reliable service would send this for `other`."""
        covered = psn.in_window(self.psn, other.psn, _span(other, theirs))
        if mine.operation is not Operation.ACKNOWLEDGE:
            single = theirs.operation is Operation.READ or mine.position is Position.ONLY
            return mine.operation is _ANSWERED_BY[theirs.operation] and covered and single
        aeth = self.getlayer(AETH)
        if aeth is None:
            return False
        kind = syndrome.kind(aeth.syndrome)
        if kind is AckKind.ACK:
            return covered and _ANSWERED_BY[theirs.operation] is Operation.ACKNOWLEDGE
        if kind is AckKind.NAK and syndrome.code(aeth.syndrome) == NakCode.PSN_SEQUENCE_ERROR:
            # It names the PSN that was expected instead.
            return covered or psn.is_newer(other.psn, self.psn)
        return covered


_ANSWERED_BY = {
    Operation.SEND: Operation.ACKNOWLEDGE,
    Operation.WRITE: Operation.ACKNOWLEDGE,
    Operation.RESYNC: Operation.ACKNOWLEDGE,
    Operation.READ: Operation.READ_RESPONSE,
    Operation.COMPARE_SWAP: Operation.ATOMIC_ACKNOWLEDGE,
    Operation.FETCH_ADD: Operation.ATOMIC_ACKNOWLEDGE,
    # As Linux rxe answers them: RDMA READ RESPONSE ONLY without payload.
    Operation.FLUSH: Operation.READ_RESPONSE,
    Operation.ATOMIC_WRITE: Operation.READ_RESPONSE,
}


def _span(request: BTH, info: OpCodeInfo) -> int:
    """PSNs that a request may take up; a READ as many as at the smallest MTU."""
    reth = request.getlayer(RETH)
    if info.operation is not Operation.READ or reth is None:
        return 1
    return max(-(-int(reth.dma_len) // _SMALLEST_MTU), 1)


def _stated_length(layer: Packet) -> int | None:
    """Bytes from the start of an enclosing layer to the end of the ICRC."""
    if isinstance(layer, UDP | IP):
        return int(layer.len)
    if isinstance(layer, IPv6):
        return outer.IPv6.SIZE + int(layer.plen)
    if isinstance(layer, GRH):
        return headers.GRH.SIZE + int(layer.pay_len)
    return 4 * int(layer.pkt_len) if isinstance(layer, LRH) else None


class Extension(Layer):
    """An extension header; the opcode determines the next one."""

    SUMMARY: ClassVar[str] = ""
    """Format of `mysummary` for `sprintf`."""

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The next extension header."""
        for place, layer in enumerate(underlayers(self), 1):
            if isinstance(layer, BTH):
                return layer.extension(place) or self.after_headers(layer, payload)
            if not isinstance(layer, Extension):
                break
        return super().guess_payload_class(payload)

    def after_headers(self, bth: BTH, payload: bytes) -> type[Packet]:
        """The layer of the payload, after the last extension header."""
        return super().guess_payload_class(payload)

    def mysummary(self) -> Any:
        """The values of the header."""
        return self.with_enclosing(self.sprintf(self.SUMMARY))


class RDETH(Extension):
    """Reliable datagrams: end-to-end context."""

    name = "RDETH"
    HEADER = headers.RDETH
    fields_desc = scapy_fields(headers.RDETH)
    SUMMARY = "RDETH eec=%ee_context%"


class DETH(Extension):
    """Datagrams: key and sender."""

    name = "DETH"
    HEADER = headers.DETH
    fields_desc = scapy_fields(headers.DETH)
    SUMMARY = "DETH src_qp=%src_qp% qkey=%qkey%"

    def after_headers(self, bth: BTH, payload: bytes) -> type[Packet]:
        """A MAD if it is for the management queue pairs."""
        if bth.dest_qp in (0, 1) and len(payload) == MAD_SIZE:
            return mad.layer_of(payload)
        return super().after_headers(bth, payload)


class XRCETH(Extension):
    """Extended reliable connection: shared receive queue."""

    name = "XRCETH"
    HEADER = headers.XRCETH
    fields_desc = scapy_fields(headers.XRCETH)
    SUMMARY = "XRCETH srq=%xrc_srq%"


class FETH(Extension):
    """FLUSH: placement and selectivity."""

    name = "FETH"
    HEADER = headers.FETH
    fields_desc = scapy_fields(headers.FETH)
    SUMMARY = "FETH sel=%sel% plt=%plt%"


class RETH(Extension):
    """RDMA: address and length."""

    name = "RETH"
    HEADER = headers.RETH
    fields_desc = scapy_fields(headers.RETH)
    SUMMARY = "RETH va=%va% rkey=%rkey% len=%dma_len%"


class AtomicETH(Extension):
    """Atomic operation: address and operands."""

    name = "AtomicETH"
    HEADER = headers.AtomicETH
    fields_desc = scapy_fields(headers.AtomicETH)
    SUMMARY = "AtomicETH va=%va% rkey=%rkey% swap=%swap% compare=%compare%"


class AETH(Extension):
    """Acknowledgement."""

    name = "AETH"
    HEADER = headers.AETH
    fields_desc = scapy_fields(headers.AETH)
    SUMMARY = "AETH %syndrome% msn=%msn%"

    def mysummary(self) -> Any:
        """The syndrome in words, if it is one number."""
        if not isinstance(self.syndrome, int):
            return super().mysummary()
        return self.with_enclosing(
            self.sprintf(f"AETH {syndrome.describe(self.syndrome)} msn=%msn%")
        )


class AtomicAckETH(Extension):
    """The memory content before an atomic operation."""

    name = "AtomicAckETH"
    HEADER = headers.AtomicAckETH
    fields_desc = scapy_fields(headers.AtomicAckETH)
    SUMMARY = "AtomicAckETH orig=%orig%"


class ImmDt(Extension):
    """Immediate data."""

    name = "ImmDt"
    HEADER = headers.ImmDt
    fields_desc = scapy_fields(headers.ImmDt)
    SUMMARY = "ImmDt %imm_data%"


class IETH(Extension):
    """Key to invalidate."""

    name = "IETH"
    HEADER = headers.IETH
    fields_desc = scapy_fields(headers.IETH)
    SUMMARY = "IETH rkey=%rkey%"


class CNPReserved(Extension):
    """The 16 bytes after the BTH of a congestion notification."""

    name = "CNPReserved"
    HEADER = headers.CNPReserved
    fields_desc = scapy_fields(headers.CNPReserved)


def CNP(dest_qp: int, **fields: Any) -> Packet:
    """A congestion notification to the sender `dest_qp`; `fields` are the BTH's."""
    return BTH(**{"opcode": OpCode.CNP, "becn": 1, "dest_qp": dest_qp, **fields}) / CNPReserved()


class IPoIB(Layer):
    """IP over InfiniBand, first header of the payload."""

    name = "IPoIB"
    HEADER = headers.IPoIB
    fields_desc = scapy_fields(headers.IPoIB)


EXTENSIONS: dict[type[Header], type[Extension]] = {
    layer.HEADER: layer
    for layer in (
        RDETH, DETH, XRCETH, FETH, RETH, AtomicETH,
        AETH, AtomicAckETH, ImmDt, IETH, CNPReserved,
    )
}  # fmt: skip
"""Extension header -> its layer."""
