"""Errors in bytes and values, as exception types and fault codes.

`IbwireError` is the root of every exception of both packages; it lives here
because `ibwire_layers` never imports `ibwire`.
"""

from __future__ import annotations

from enum import IntEnum


class Fault(IntEnum):
    """Why the parsing of a packet stopped early or is in doubt.

    The same codes are in the `fault` column of a dissected capture and in
    `DecodeError.fault`; `NONE` means that the packet was parsed completely.
    """

    NONE = 0
    TRUNCATED = 1
    """The capture ends inside a header or inside the packet (snap length)."""
    LENGTH = 2
    """A length field contradicts the frame or leaves no room for the headers."""
    VERSION = 3
    """An IP, link or header version that does not exist."""
    FRAGMENT = 4
    """An IP fragment: RoCEv2 is never fragmented (IBA annex A17)."""
    NEXT_HEADER = 5
    """A field that selects the next header has an unknown value."""
    OPCODE = 6
    """A BTH opcode that is not in the table; what follows the BTH is unknown."""
    UDP_LENGTH = 7
    """The UDP length disagrees with the IP length; the IP length was used."""
    PAD_COUNT = 8
    """The BTH pad count is larger than what follows the headers."""
    NESTING = 9
    """More nested tunnels or tags than the parser follows."""
    LINK_TYPE = 10
    """The link type of the capture is not supported."""


class IbwireError(Exception):
    """Root of all exceptions of ibwire; never raised itself."""


class DecodeError(IbwireError):
    """Bytes that cannot be parsed as the requested header or packet."""

    def __init__(self, fault: Fault, header: str, offset: int, detail: str = "") -> None:
        self.fault = fault
        self.header = header
        self.offset = offset
        reason = detail or fault.name.lower().replace("_", " ")
        super().__init__(f"{header} at byte {offset}: {reason}")


class EncodeError(IbwireError):
    """A value that does not fit its field."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        super().__init__(f"{field}: {value!r} is not {expected}")
