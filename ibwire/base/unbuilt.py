"""Frames whose bytes are made only when somebody asks for them.

On a simulated wire nobody reads the bytes of a frame unless it is recorded or changed there. So a
node may send the packet itself: switches need its size and the headers that decide on its way, and
the other end takes its fields. `build` gives the bytes that the frame would have had, whenever it
is called.
"""

from __future__ import annotations

from typing import Final


class UnbuiltFrame:
    """A frame of IPv4 without tags and options, as far as switches know it. One node has it at a
    time."""

    __slots__ = ("built", "continues", "flow_key", "is_marked", "size", "trailer")

    flow_key: bytes
    """Its MAC addresses, type, DSCP, ECN, protocol, addresses and UDP ports; as `flow_key` in
    `ibwire.fabric.switch.routing` takes them from bytes."""
    size: int
    """Bytes of the frame, without FCS."""
    trailer: bytes
    """Bytes of the Ethernet frame after the packet: a record for switches, or none."""
    is_marked: bool
    """Whether a switch has set a CE mark."""
    continues: bool
    """Whether the node that sends it may have a run of such frames (`ibwire.base.run`)."""

    built: bytes | None
    """Its bytes, if they were made and have not changed."""

    def build(self) -> bytes:
        """The bytes of the frame."""
        raise NotImplementedError

    def replace_trailer(self, trailer: bytes) -> None:
        """Change what follows the packet, to as many other bytes."""
        self.trailer = trailer
        self.built = None

    def mark(self) -> bool:
        """Set a CE mark; `False` if it has one, or its transport is not ECN-capable."""
        key = self.flow_key
        if not _CAN_BE_MARKED[key[_ECN_AT] & 3]:
            return False
        known = _MARKED.get(key)
        if known is None:
            if len(_MARKED) >= _LIMIT_FLOWS:
                _MARKED.clear()
            known = key[:_ECN_AT] + bytes((key[_ECN_AT] | 3,)) + key[_ECN_AT + 1 :]
            _MARKED[key] = known
        self.flow_key = known
        self.is_marked = True
        self.built = None
        return True


def headers_of(flow_key: bytes) -> bytes:
    """Headers up to the UDP ports that have this key; lengths, numbers and checksum are zero."""
    return flow_key[:16] + bytes(6) + flow_key[16:18] + bytes(2) + flow_key[18:]


def set_ce(frame: bytes, at: int) -> bytes:
    """The frame with a CE mark in its IP header at `at`; the checksum is adjusted (RFC 1624)."""
    # Traffic class: the second byte of IPv4, across the first two bytes of IPv6.
    old = frame[at + 1]
    if frame[at] >> 4 == 6:
        parts = [frame[: at + 1], (old | 3 << 4).to_bytes(), frame[at + 2 :]]
    else:
        # ~(~old checksum + ~old word + new word), in one's complement.
        total = (frame[at + 10] << 8 | frame[at + 11]) ^ 0xFFFF
        total += (old | 3) - old
        total = (total & 0xFFFF) + (total >> 16)
        checksum = (total ^ 0xFFFF).to_bytes(2)
        between = frame[at + 2 : at + 10]
        parts = [frame[: at + 1], (old | 3).to_bytes(), between, checksum, frame[at + 12 :]]
    marked = b"".join(parts)
    return marked if type(frame) is bytes else type(frame)(marked)  # a damaged one stays one


_ECN_AT: Final = 15
"""Where a flow key has DSCP and ECN."""
_CAN_BE_MARKED: Final = (False, True, True, False)
"""By the ECN field (RFC 3168 5)."""

_LIMIT_FLOWS: Final = 1 << 16
_MARKED: Final[dict[bytes, bytes]] = {}
"""Keys with a mark by keys without."""
