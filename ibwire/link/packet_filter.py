"""Which frames the kernel hands over: a classic BPF program.

Everything else on an interface, the traffic of other programs, is dropped before it
is copied. The kernel has taken a VLAN tag off before a packet socket sees the frame,
so the offsets are those of an untagged one.

Source: linux/filter.h, linux/bpf_common.h and linux/if_packet.h; the header layouts
are those of `ibwire_layers.outer`.
"""

from __future__ import annotations

import ctypes
import socket
from struct import Struct
from typing import NamedTuple

from ibwire_layers.outer import ROCEV2_PORT, EtherType


def interesting(*, neighbours: bool = False, foreign: bool = False) -> bytes:
    """The program that takes RoCEv1 and RoCEv2, as an array of `struct sock_filter`.

    neighbours: ARP, IPv6 neighbour discovery and echo requests too. foreign: also frames for other
    MAC addresses, which a promiscuous interface sees. Never what this machine sends,
    and no IP fragments: RoCE packets are not fragmented.
    """
    program: list[_Step] = [
        _Step(_LOAD_WORD, _SKF_AD_OFF + _SKF_AD_PKTTYPE),
        _Step(_JUMP_EQUAL, _PACKET_OUTGOING, then="drop"),
    ]
    if not foreign:
        program.append(_Step(_JUMP_EQUAL, _PACKET_OTHERHOST, then="drop"))
    program += [
        _Step(_LOAD_HALF, 12),
        _Step(_JUMP_EQUAL, EtherType.ROCE, then="take"),
        _Step(_JUMP_EQUAL, EtherType.IPV4, then="ipv4"),
        _Step(_JUMP_EQUAL, EtherType.IPV6, then="ipv6"),
    ]
    if neighbours:
        program.append(_Step(_JUMP_EQUAL, EtherType.ARP, then="take"))
    program += [
        _Step(_RETURN, 0),
        _Step(_LOAD_BYTE, _IP + 9, label="ipv4"),
    ]
    if neighbours:
        program.append(_Step(_JUMP_EQUAL, _ICMP, then="icmp"))
    program += [
        _Step(_JUMP_EQUAL, _UDP, otherwise="drop"),
        _Step(_LOAD_HALF, _IP + 6),
        _Step(_JUMP_SET, _MORE_FRAGMENTS | _FRAGMENT_OFFSET, then="drop"),
        _Step(_LOAD_HEADER_SIZE, _IP),
        _Step(_LOAD_HALF_BEHIND, _IP + 2),
        _Step(_JUMP_EQUAL, ROCEV2_PORT, then="take", otherwise="drop"),
        _Step(_LOAD_BYTE, _IP + 6, label="ipv6"),
    ]
    if neighbours:
        program.append(_Step(_JUMP_EQUAL, _ICMPV6, then="icmpv6"))
    program += [
        _Step(_JUMP_EQUAL, _UDP, otherwise="drop"),
        _Step(_LOAD_HALF, _IP + 40 + 2),
        _Step(_JUMP_EQUAL, ROCEV2_PORT, then="take", otherwise="drop"),
    ]
    if neighbours:
        program += [
            _Step(_LOAD_HALF, _IP + 6, label="icmp"),
            _Step(_JUMP_SET, _MORE_FRAGMENTS | _FRAGMENT_OFFSET, then="drop"),
            _Step(_LOAD_HEADER_SIZE, _IP),
            _Step(_LOAD_BYTE_BEHIND, _IP),
            _Step(_JUMP_EQUAL, _ECHO_REQUEST, then="take", otherwise="drop"),
            _Step(_LOAD_BYTE, _IP + 40, label="icmpv6"),
            _Step(_JUMP_EQUAL, _ECHO_REQUEST_V6, then="take"),
            _Step(_JUMP_EQUAL, _NEIGHBOUR_SOLICITATION, then="take"),
            _Step(_JUMP_EQUAL, _NEIGHBOUR_ADVERTISEMENT, then="take", otherwise="drop"),
        ]
    program += [_Step(_RETURN, _WHOLE, label="take"), _Step(_RETURN, 0, label="drop")]
    return _assemble(program)


NOTHING = Struct("=HBBI").pack(0x06, 0, 0, 0)
"""The program that drops everything."""


def attach(filtered: socket.socket, program: bytes) -> None:
    """Let the kernel run a program over everything that a socket would receive."""
    code = ctypes.create_string_buffer(program, len(program))
    length = len(program) // _INSTRUCTION.size
    descriptor = _FPROG.pack(length, ctypes.addressof(code))
    filtered.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, descriptor)


class _Step(NamedTuple):
    """One instruction; jumps go to labels, or on to the next instruction."""

    code: int
    operand: int
    then: str = ""
    otherwise: str = ""
    label: str = ""


def _assemble(program: list[_Step]) -> bytes:
    places = {step.label: place for place, step in enumerate(program) if step.label}

    def distance(place: int, label: str) -> int:
        return places[label] - place - 1 if label else 0

    return b"".join(
        _INSTRUCTION.pack(
            step.code,
            distance(place, step.then),
            distance(place, step.otherwise),
            step.operand & 0xFFFFFFFF,
        )
        for place, step in enumerate(program)
    )


_INSTRUCTION = Struct("=HBBI")
"""struct sock_filter: code, jump if true, jump if false, operand."""
_FPROG = Struct("@HP")
"""struct sock_fprog: instructions, address of the first."""
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h

_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_LOAD_HALF = 0x28  # BPF_LD | BPF_H | BPF_ABS
_LOAD_BYTE = 0x30  # BPF_LD | BPF_B | BPF_ABS
_LOAD_HEADER_SIZE = 0xB1  # BPF_LDX | BPF_B | BPF_MSH: x = 4 * (byte & 15)
_LOAD_HALF_BEHIND = 0x48  # BPF_LD | BPF_H | BPF_IND: the half word at x + operand
_LOAD_BYTE_BEHIND = 0x50  # BPF_LD | BPF_B | BPF_IND
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_SET = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K: keep this many bytes of the frame

_WHOLE = 0x40000
_SKF_AD_OFF = -0x1000
_SKF_AD_PKTTYPE = 4
_PACKET_OTHERHOST = 3
_PACKET_OUTGOING = 4

_IP = 14
_ICMP = 1
_UDP = 17
_ICMPV6 = 58
_MORE_FRAGMENTS = 0x2000
_FRAGMENT_OFFSET = 0x1FFF
_ECHO_REQUEST = 8  # RFC 792
_ECHO_REQUEST_V6 = 128  # RFC 4443 4.1
_NEIGHBOUR_SOLICITATION = 135  # RFC 4861 4.3
_NEIGHBOUR_ADVERTISEMENT = 136  # RFC 4861 4.4
