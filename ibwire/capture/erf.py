"""Native InfiniBand frames as ERF records, which Wireshark opens.

LINKTYPE_INFINIBAND (247) has few readers: tshark 4.0 rejects such a file.
The same frame after an ERF header, in a file of LINKTYPE_ERF (197), is widely supported.
"""

from __future__ import annotations

from ibwire.base.errors import EncodeError
from ibwire_layers.headers import FlowControl
from ibwire_layers.outer import ERF, ErfType

MAXIMUM_FRAME = 0xFFFF - ERF.SIZE
"""Bytes: the record length has 16 bits and counts the header."""


def erf_record(frame: bytes, time_ns: int) -> bytes:
    """An ERF record that holds a native InfiniBand frame from LRH to VCRC.

    A frame of 6 bytes is a flow-control packet: it has a type of record of its own, and zeros after
    it, as tshark 4.0 reads it as if it began with an LRH and a GRH.
    time_ns: since the epoch, at most 32 bits of seconds. The fraction is rounded up, by
    less than 0.24 ns, so that a reader that cuts it to nanoseconds gets the time back.
    Raises `EncodeError` for what does not fit.

    Source: Endace ERF; flags and lengths as in infiniband.pcap of
    srinivaskoritala/rdma-softroce-demo, a sample recorded elsewhere.
    """
    if len(frame) > MAXIMUM_FRAME:
        raise EncodeError("frame", len(frame), f"at most {MAXIMUM_FRAME} bytes")
    timestamp = -(-(time_ns << 32) // 1_000_000_000)
    if not 0 <= timestamp < 1 << 64:
        raise EncodeError("time_ns", time_ns, "a time of 32 bits of seconds")
    is_link = len(frame) == FlowControl.SIZE
    data = frame.ljust(_LINK_RECORD, b"\0") if is_link else frame
    header = ERF(
        timestamp=timestamp.to_bytes(8, "little"),
        type=ErfType.INFINIBAND_LINK if is_link else ErfType.INFINIBAND,
        flags=_VARYING_LENGTH,
        record_length=ERF.SIZE + len(data),
        wire_length=len(data),
    )
    return header.pack() + data


_LINK_RECORD = 64
"""Bytes of the record of a flow-control packet after its header."""


_VARYING_LENGTH = 0x04
"""Records are as long as their frames."""
