"""Field types missing in Scapy: GIDs, arrays of numbers, fields after the payload."""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import Any

from scapy.fields import BitField, Field, FieldListField, IP6Field
from scapy.packet import Packet
from scapy.utils import lhex
from scapy.volatile import RandBin


class GIDField(IP6Field):
    """A 128-bit address, shown as IPv6; also accepts a number."""

    def any2i(self, pkt: Packet | None, x: Any) -> Any:
        """The address as text."""
        return super().any2i(pkt, str(IPv6Address(x)) if isinstance(x, int) else x)


class ArrayField(FieldListField):
    """An array of `count` numbers; missing ones on the right are zero."""

    __slots__ = ["count"]

    def __init__(self, name: str, default: list[int], count: int, element: BitField) -> None:
        self.count = count
        super().__init__(
            name,
            default,  # type: ignore[arg-type]
            element,
            count_from=self._counted,
            max_count=count,
        )

    def _counted(self, _pkt: Packet) -> int:
        return self.count

    def any2i(self, pkt: Packet | None, x: Any) -> list[int]:
        """A list of at least `count` numbers."""
        values = super().any2i(pkt, list(x) if isinstance(x, tuple) else x)
        return values + [0] * (self.count - len(values))

    def randval(self) -> None:  # type: ignore[override]
        """Nothing: Scapy's `fuzz` has no effect on lists."""


class Trailer(Field[Any, Any]):
    """A field after the payload.

    It takes no room in the header: its layer cuts it off in `extract_padding`
    and puts it back in `post_build`.
    """

    def addfield(self, pkt: Packet, s: bytes, val: Any) -> bytes:
        """Nothing in the header."""
        return s

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Any]:
        """Nothing from the header."""
        return s, None


class CRCField(Trailer):
    """A CRC as the number its bytes make, first byte highest, as Wireshark prints it.

    `None` is computed on build. Bytes are used as given: a captured packet that
    ends inside or before its CRC has what is left of it, often `b""`, which
    reads as `None`.
    """

    def any2i(self, pkt: Packet | None, x: Any) -> Any:
        """All of the bytes as a number, some of them as bytes."""
        if isinstance(x, bytes) and len(x) == self.sz:
            return int.from_bytes(x)
        return x

    def i2h(self, pkt: Packet | None, x: Any) -> Any:
        """`None` unless the CRC is complete."""
        return None if isinstance(x, bytes) else x

    def i2repr(self, pkt: Packet | None, x: Any) -> str:
        """In hexadecimal."""
        return f"absent {x.hex()}".rstrip() if isinstance(x, bytes) else str(lhex(x))

    def randval(self) -> Any:
        """Any bytes of the right length."""
        return RandBin(self.sz)


def crc_bytes(value: Any, size: int) -> bytes:
    """The wire's bytes of a `CRCField` that is not `None`."""
    return value if isinstance(value, bytes) else (value & (1 << 8 * size) - 1).to_bytes(size)


class PadField(Trailer):
    """Bytes that fill up the payload; `None` for zeros."""

    def i2repr(self, pkt: Packet | None, x: Any) -> str:
        """In hexadecimal."""
        return "None" if x is None else bytes(x).hex() or "empty"
