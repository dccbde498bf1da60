"""Checks of the sizes of a request: message length, payload, payload by position.

Source: IBA 9.7.2, 9.4; C9-92 and C9-94.
"""

from __future__ import annotations

from typing import Final

from ibwire.rc.packet import TransportPacket
from ibwire.rc.profile import Profile
from ibwire_layers.opcodes import Payload

MAX_MESSAGE: Final = 1 << 31
"""Bytes (IBA 9.7.2)."""

# A member is found faster without its class (measured: ibwire/rc/qp.py).
_PMTU: Final = Payload.PMTU
_SOME: Final = Payload.SOME


def is_too_long(length: int, profile: Profile) -> bool:
    """Whether a message exceeds the largest length."""
    return length > MAX_MESSAGE and profile.checks_message_length


def has_odd_payload(packet: TransportPacket, profile: Profile) -> bool:
    """Whether a packet that has no payload has one."""
    return bool(packet.payload) and profile.checks_request_payload


def has_right_size(packet: TransportPacket, mtu: int) -> bool:
    """Whether the payload is right for its position and the path MTU (C9-92)."""
    size = len(packet.payload)
    rule = packet.form.payload_rule
    if rule is _PMTU:
        return size == mtu and not packet.pad_count
    if rule is _SOME:
        return 0 < size <= mtu
    return size <= mtu
