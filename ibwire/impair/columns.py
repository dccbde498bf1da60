"""Reads destination QPN, opcode and PSN of many frames at once.

Only the common layouts are read: RoCEv2 over IPv4 or IPv6, with or without an
802.1Q tag. Frames that are certainly no RDMA packets are marked, others must be parsed
one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ibwire_layers import headers as h
from ibwire_layers.outer import ROCEV2_PORT, UDP, VLAN, Ethernet, EtherType, IPProto, IPv4, IPv6

NO_PACKET = -1
"""The key of a frame without a BTH."""
UNREAD = -2
"""The key of a frame with another layout."""

WINDOW = Ethernet.SIZE + VLAN.SIZE + IPv6.SIZE + UDP.SIZE + h.BTH.SIZE + h.AETH.SIZE
"""Bytes that must follow the start of each frame in its buffer, with any contents."""


class Columns(NamedTuple):
    """The values of each frame; only `keys` is valid where it is negative."""

    keys: list[int]
    """Destination QPN times 256 plus the opcode, or `NO_PACKET`, or `UNREAD`."""
    psns: list[int]
    behind: list[int]
    """The four bytes after the BTH: an AETH, if the opcode has one."""


def read(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Columns:
    """Read Ethernet frames; starts, lengths: (n,) of each in the data."""
    # A window of bytes at every place; indexing copies those at the starts.
    windows: npt.NDArray[np.void] = np.ndarray(
        (len(data) - WINDOW + 1,), dtype=f"V{WINDOW}", buffer=data, strides=(1,)
    )
    heads = windows[starts]
    keys = np.full(len(starts), UNREAD, np.int64)
    words = np.zeros((2, len(starts)), np.int64)
    tagged = heads.view(_PLAIN)["type"] == _VLAN
    if tagged.any():
        _read(heads.view(_TAGGED), lengths - VLAN.SIZE, tagged, keys, words)
        plain = ~tagged
    else:
        plain = np.ones(len(starts), np.bool_)
    _read(heads.view(_PLAIN), lengths, plain, keys, words)
    return Columns(keys.tolist(), *words.tolist())


def _read(
    heads: Any,
    lengths: npt.NDArray[np.int64],
    wanted: npt.NDArray[np.bool_],
    keys: npt.NDArray[np.int64],
    words: npt.NDArray[np.int64],
) -> None:
    """Fill in the frames of one layout; `lengths` are without the tag. words: (2, n)."""
    kind = heads["type"]
    v4 = wanted & (kind == _IPV4)
    size = heads["v4_size"]
    v4 &= (heads["v4_first"] == _VERSION_4) & (heads["v4_fragment"] & _FRAGMENTED == 0)
    v4 &= lengths >= Ethernet.SIZE + IPv4.SIZE
    udp = heads["v4_protocol"] == _UDP
    found = v4 & udp & (heads["v4_port"] == ROCEV2_PORT)
    found &= (lengths >= _V4_HEADERS) & (size >= _V4_HEADERS - Ethernet.SIZE)
    if found.any():
        _fill(heads, "v4", found, keys, words)
        if found.all():
            return
    keys[v4 & np.isin(heads["v4_protocol"], _CARRY_NOTHING)] = NO_PACKET
    keys[wanted & (kind == _ARP)] = NO_PACKET
    v6 = wanted & (kind == _IPV6) & (heads["v6_first"] >> 4 == 6)
    if not v6.any():
        return
    v6 &= lengths >= Ethernet.SIZE + IPv6.SIZE
    found = v6 & (heads["v6_next"] == _UDP) & (heads["v6_port"] == ROCEV2_PORT)
    found &= (lengths >= _V6_HEADERS) & (heads["v6_size"] >= UDP.SIZE + h.BTH.SIZE)
    _fill(heads, "v6", found, keys, words)
    keys[v6 & np.isin(heads["v6_next"], _CARRY_NOTHING)] = NO_PACKET


def _fill(
    heads: Any,
    version: str,
    found: npt.NDArray[np.bool_],
    keys: npt.NDArray[np.int64],
    words: npt.NDArray[np.int64],
) -> None:
    bth = heads[version][found]
    keys[found] = (bth["qp"] & 0xFFFFFF).astype(np.int64) << 8 | bth["opcode"]
    words[0, found] = bth["psn"] & 0xFFFFFF
    words[1, found] = bth["behind"]


# Plain integers: comparing an array with a member of an enumeration takes twice as long.
_VLAN, _ARP = int(EtherType.VLAN), int(EtherType.ARP)
_IPV4, _IPV6, _UDP = int(EtherType.IPV4), int(EtherType.IPV6), int(IPProto.UDP)
_VERSION_4 = 0x45
"""Version 4, a header without options."""
_FRAGMENTED = 0x3FFF
"""More fragments, or an offset."""
_CARRY_NOTHING = np.array([IPProto.ICMP, IPProto.TCP, IPProto.ICMPV6], np.uint8)
"""IP protocols that never carry an RDMA packet."""

_V4_HEADERS = Ethernet.SIZE + IPv4.SIZE + UDP.SIZE + h.BTH.SIZE
_V6_HEADERS = Ethernet.SIZE + IPv6.SIZE + UDP.SIZE + h.BTH.SIZE


_BTH = np.dtype(
    {
        "names": ["opcode", "qp", "psn", "behind"],
        "formats": ["u1", ">u4", ">u4", ">u4"],
        "offsets": [0, 4, 8, h.BTH.SIZE],
        "itemsize": h.BTH.SIZE + h.AETH.SIZE,
    }
)


def _layout(tag: int) -> np.dtype[Any]:
    """Offsets of the fields in a window, after a tag of `tag` bytes."""
    ip = Ethernet.SIZE + tag
    v4, v6 = ip + IPv4.SIZE + UDP.SIZE, ip + IPv6.SIZE + UDP.SIZE
    fields: dict[str, tuple[Any, int]] = {
        "type": (">u2", ip - 2),
        "v4_first": ("u1", ip),
        "v4_size": (">u2", ip + 2),
        "v4_fragment": (">u2", ip + 6),
        "v4_protocol": ("u1", ip + 9),
        "v4_port": (">u2", ip + IPv4.SIZE + 2),
        "v4": (_BTH, v4),
        "v6_first": ("u1", ip),
        "v6_size": (">u2", ip + 4),
        "v6_next": ("u1", ip + 6),
        "v6_port": (">u2", ip + IPv6.SIZE + 2),
        "v6": (_BTH, v6),
    }
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [at for _, at in fields.values()],
            "itemsize": WINDOW,
        }
    )


_PLAIN = _layout(0)
_TAGGED = _layout(VLAN.SIZE)
