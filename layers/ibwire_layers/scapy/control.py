"""MAC control: PAUSE of a whole port and priority flow control."""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.config import conf
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from ibwire_layers import outer
from ibwire_layers.derive import scapy_fields
from ibwire_layers.outer import EtherType
from ibwire_layers.scapy.fields import PadField
from ibwire_layers.scapy.layer import Layer, underlayers

MINIMUM_FRAME = 60
"""Bytes of the shortest Ethernet frame, without FCS (IEEE 802.3)."""


class _MACControl(Layer):
    """A frame that is filled up with zeros.

    `pad` is what building adds; in a frame that was read it is empty, because
    what follows the header there is `Padding`.
    """

    @classmethod
    def layer_for(cls, data: bytes) -> type[Packet]:
        """PAUSE and PFC by their opcode; other opcodes are not dissected."""
        opcode = int.from_bytes(data[:2])
        for known in (Pause, PFC):
            if opcode == known.HEADER.FIELDS[0].default and len(data) >= known.HEADER.SIZE:
                return known
        for match, other in Ether.payload_guess:
            if match == {"type": EtherType.MAC_CONTROL} and not issubclass(other, _MACControl):
                return other
        return conf.raw_layer

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill up the frame, if there is one around."""
        pad: bytes | None = self.getfieldval("pad")
        if pad is None:
            around = sum(field.sz for layer in underlayers(self) for field in layer.fields_desc)
            missing = MINIMUM_FRAME - int(around) - len(pkt) - len(pay)
            pad = bytes(max(missing, 0)) if self.underlayer is not None else b""
        return pkt + pay + pad

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """Nothing follows but padding."""
        self.fields["pad"] = b""
        return b"", s


class Pause(_MACControl):
    """IEEE 802.3 PAUSE: the whole port, in quanta of 512 bit times."""

    name = "Pause"
    HEADER = outer.Pause
    fields_desc: ClassVar[list[Any]] = [*scapy_fields(outer.Pause), PadField("pad", None)]

    def mysummary(self) -> Any:
        """How long."""
        return self.sprintf("Pause %pause_time% quanta")


class PFC(_MACControl):
    """IEEE 802.1Q priority flow control; `time_` is the schema's `time`."""

    name = "PFC"
    HEADER = outer.PFC
    fields_desc: ClassVar[list[Any]] = [*scapy_fields(outer.PFC), PadField("pad", None)]

    def mysummary(self) -> Any:
        """Times of the enabled classes."""
        if not isinstance(self.class_enable, int):
            return self.sprintf("PFC %class_enable% %time_%")
        enabled = [(n, t) for n, t in enumerate(self.time_) if self.class_enable >> n & 1]
        return "PFC " + " ".join(f"class {n}: {t or 'resume'}" for n, t in enabled)
