"""`Stream`: a stream of packets in RDMA terms, with its checks.

A stream is messages of one kind and size from one address to another, to one queue
pair or several in turn. `ibwire.traffic.layout` makes bytes of it, and
`ibwire.traffic.cycle` the order of the packets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ibwire.base.errors import EncodeError, MissingValueError, VerbsError
from ibwire.rc.attributes import MTU_CODES
from ibwire.rc.device import gid_of
from ibwire.rc.path import is_v4
from ibwire_layers.opcodes import Service

MAXIMUM_QUEUE_PAIRS = 1 << 16
"""Queue pairs of a stream."""

MAXIMUM_MESSAGE = 1 << 31
"""Bytes (IBA 9.4.3: the longest message)."""


class Verb(StrEnum):
    """The operation of the messages, or the kind of response packets."""

    SEND = "send"
    SEND_IMM = "send-imm"
    SEND_INV = "send-inv"
    WRITE = "write"
    WRITE_IMM = "write-imm"
    READ = "read"
    """Requests only."""
    CAS = "cas"
    FADD = "fadd"
    ACK = "ack"
    """Acknowledgements, or with another syndrome NAKs and RNR NAKs."""
    CNP = "cnp"
    """Congestion notifications."""


class Payload(StrEnum):
    """A rule for payloads that differ between packets."""

    COUNTER = "counter"
    """The first eight bytes count the packets of the stream."""
    RANDOM = "random"
    """Random bytes in every packet."""


class PortRule(StrEnum):
    """A rule for UDP source ports."""

    FLOW = "flow"
    """From both QP numbers, as rdma-core and Linux do; for datagrams as Linux rxe does."""
    QPN = "qpn"
    """The own QP number, as HiSilicon hns does."""
    RANDOM = "random"
    """A random port from 0xC000 on for each queue pair."""


class Icrc(StrEnum):
    """Whether the ICRC fits the packet."""

    RIGHT = "right"
    STALE = "stale"
    """It fits the packet before its fields were overridden."""
    WRONG = "wrong"
    """All its bits are inverted."""


class Link(StrEnum):
    """The encapsulation of packets over Ethernet."""

    ROCEV2 = "rocev2"
    ROCEV1 = "rocev1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Messages of one kind. An invalid value raises an `EncodeError` that names its key.

    A key that the verb does not use has no effect, so that defaults can apply to several
    streams.
    """

    verb: Verb = Verb.WRITE
    service: Service = Service.RC
    qpns: tuple[tuple[int, int], ...] = ()
    """Destination QP numbers, each with its weight: its proportion of the messages."""
    weight: int = 1
    """Messages of this stream in proportion to those of the others."""

    size: int | None = None
    """Bytes of a message, by default 1024; atomics have 8."""
    mtu: int = 1024
    """Path MTU in bytes."""
    psn: int = 0
    """PSN of the first packet to each queue pair."""
    ack_every: int | None = None
    """AckReq in every N-th packet to a queue pair, 0 for none; `None`: in the last of a message."""

    src: str = ""
    dst: str = ""
    src_mac: bytes | None = None
    """`None`: the address that an emulated device with that IP address has."""
    dst_mac: bytes | None = None
    link: Link = Link.ROCEV2
    vlan: int | None = None
    pcp: int = 0
    dscp: int = 0
    ecn: int = 2
    """By default ECT(0): only ECN-capable packets are marked (RFC 3168 5)."""
    ttl: int = 64
    count_ip_id: bool = False
    """Whether the IPv4 identification counts the packets to each queue pair; otherwise it is 0."""
    src_port: int | PortRule = PortRule.FLOW

    src_qpn: int | None = None
    """First own QP number, the others count up; `None`: the same as the destination's."""
    pkey: int = 0xFFFF
    solicited: bool = False
    mig_req: bool = True
    """Adapters send 1; Linux rxe sends 0."""
    rkey: int = 0
    va: int = 0
    va_step: int = 0
    """Distance in bytes between the addresses of two messages to a queue pair."""
    va_window: int = 0
    """Bytes from `va` on that hold all messages: after the last address comes the first again."""
    imm: int = 0
    swap: int = 0
    """Value that an atomic swaps in or adds."""
    compare: int = 0
    qkey: int = 0x11111111
    syndrome: int = 0x1F
    """Syndrome of acknowledgements; the default is an ACK with invalid credits (IBA 9.7.5.2.4)."""
    msn: int = 1
    """MSN of the first acknowledgement."""

    payload: bytes | Payload = bytes(range(256))
    """Bytes that are repeated in each packet, or a rule."""
    ce: float = 0.0
    """Probability that a packet is marked CE (congestion experienced)."""
    ce_every: int = 0
    """Period in packets to a queue pair for CE marks; 0: none."""
    ce_run: int = 1
    """Marked packets at the end of each period."""
    fields: Mapping[str, int] = field(default_factory=dict)
    """Header fields that are overridden with these values, by name (`ibwire_layers.fields`)."""
    icrc: Icrc = Icrc.RIGHT
    fields_every: int = 1
    """`fields` and `icrc` apply to every N-th packet to a queue pair; the others are correct."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            _check_range(name, getattr(self, name), low, high)
        if self.service not in _SERVICES[self.verb]:
            names = " or ".join(each.name for each in _SERVICES[self.verb])
            raise EncodeError("service", self.service.name, f"{names} for {self.verb}")
        self._check_queue_pairs()
        self._check_message()
        self._check_addresses()
        if not 0 <= self.ce <= 1:
            raise EncodeError("ce", self.ce, "a probability from 0 to 1")
        if self.ce and self.ce_every:
            raise EncodeError("ce_every", self.ce_every, "given beside a probability")
        if self.ce_every and self.ce_run > self.ce_every:
            raise EncodeError("ce_run", self.ce_run, f"at most ce_every, {self.ce_every}")
        if (self.ce or self.ce_every) and self.link is Link.ROCEV1:
            raise EncodeError("ce", self.ce, "possible with RoCEv1, whose GRH has no ECN")
        if isinstance(self.payload, bytes) and not self.payload:
            raise EncodeError("payload", self.payload, "one byte or more")

    @property
    def message_size(self) -> int:
        """Bytes of each message."""
        if self.verb in _NO_PAYLOAD:
            return 0
        if self.verb in _ATOMICS:
            return 8
        return 1024 if self.size is None else self.size

    @property
    def packets(self) -> int:
        """Packets of each message."""
        if self.verb in _CARRIES:
            return max(1, -(-self.message_size // self.mtu))
        return 1

    @property
    def layouts(self) -> int:
        """Packet layouts: at most three for a message, each also with overridden fields."""
        return min(self.packets, 3) * (1 if self.fields_every == 1 else 2)

    @property
    def psns(self) -> int:
        """PSNs that each message uses; a READ uses those of its responses (IBA 9.7.3.1)."""
        if self.verb is Verb.CNP:
            return 0
        if self.verb is Verb.READ:
            return max(1, -(-self.message_size // self.mtu))
        return self.packets

    @property
    def places(self) -> int:
        """Number of different addresses of messages."""
        if not self.va_step:
            return 1
        return (self.va_window - self.message_size) // self.va_step + 1

    @property
    def is_v6(self) -> bool:
        """Whether the packets have an IPv6 header."""
        return self.link is Link.ROCEV2 and not is_v4(gid_of(self.dst))

    def _check_queue_pairs(self) -> None:
        if not self.qpns:
            raise MissingValueError("qpn", f"is required: {_QPNS}")
        if len(self.qpns) > MAXIMUM_QUEUE_PAIRS:
            raise EncodeError("qpn", len(self.qpns), f"at most {MAXIMUM_QUEUE_PAIRS} queue pairs")
        for qpn, weight in self.qpns:
            _check_range("qpn", qpn, 0, 0xFFFFFF)
            _check_range("qpn", weight, 1, 1 << 20)
        if len({qpn for qpn, _ in self.qpns}) < len(self.qpns):
            raise EncodeError("qpn", format_qpns(self.qpns), "each number once")
        if self.src_qpn is not None:
            _check_range("src_qpn", self.src_qpn, 0, 0xFFFFFF - len(self.qpns) + 1)

    def _check_message(self) -> None:
        if self.mtu not in MTU_CODES:
            raise EncodeError("mtu", self.mtu, f"one of {', '.join(map(str, MTU_CODES))}")
        size = self.message_size
        if self.service is Service.UD and size > self.mtu:
            expected = f"at most the path MTU {self.mtu}, the limit of a datagram"
            raise EncodeError("size", size, expected)
        if self.va_step and self.va_window < size:
            raise EncodeError("va_window", self.va_window, f"room for a message of {size} bytes")
        if self.va + max(self.va_window, size) > 1 << 64:
            raise EncodeError("va", hex(self.va), "low enough for a message to end below 2^64")

    def _check_addresses(self) -> None:
        gids = []
        for name in ("src", "dst"):
            try:
                gids.append(gid_of(getattr(self, name)))
            except VerbsError:
                raise EncodeError(name, getattr(self, name), "an IP address") from None
        if is_v4(gids[0]) != is_v4(gids[1]):
            raise EncodeError("dst", self.dst, f"an address of the same kind as {self.src}")
        for name in ("src_mac", "dst_mac"):
            mac = getattr(self, name)
            if mac is not None and len(mac) != 6:
                raise EncodeError(name, mac.hex(":"), "a MAC address")


def parse_qpns(value: object) -> tuple[tuple[int, int], ...]:
    """Parse 17, "0x11", "0x11..0x20" or "0x11*3, 0x12": QP numbers, ranges, weights."""
    if isinstance(value, int) and not isinstance(value, bool):
        return ((value, 1),)
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if not isinstance(value, str):
        raise EncodeError("qpn", value, _QPNS)
    pairs: list[tuple[int, int]] = []
    for part in value.split(","):
        found = _QPN.fullmatch(part.strip())
        if found is None:
            raise EncodeError("qpn", part.strip(), _QPNS)
        try:
            first = int(found["first"], 0)
            last = int(found["last"] or found["first"], 0)
        except ValueError:  # such as 0811
            raise EncodeError("qpn", part.strip(), _QPNS) from None
        if not first <= last < first + MAXIMUM_QUEUE_PAIRS - len(pairs):
            expected = f"a range upwards, {MAXIMUM_QUEUE_PAIRS} numbers at most"
            raise EncodeError("qpn", part.strip(), expected)
        pairs += ((qpn, int(found["weight"] or 1)) for qpn in range(first, last + 1))
    return tuple(pairs)


def format_qpns(qpns: tuple[tuple[int, int], ...]) -> str:
    """QP numbers as `parse_qpns` reads them; for many only the first and the last."""
    shown = [f"{qpn:#x}" if weight == 1 else f"{qpn:#x}*{weight}" for qpn, weight in qpns]
    return ", ".join(shown) if len(shown) <= 4 else f"{shown[0]} ... {shown[-1]}"


def _check_range(name: str, value: int | None, low: int, high: int) -> None:
    if value is None or isinstance(value, PortRule):
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise EncodeError(name, value, f"a number from {low} to {high}")


_RANGES = {
    "weight": (1, 1 << 20),
    "size": (0, MAXIMUM_MESSAGE),
    "psn": (0, (1 << 24) - 1),
    "ack_every": (0, 1 << 24),
    "vlan": (0, 0xFFE),
    "pcp": (0, 7),
    "dscp": (0, 63),
    "ecn": (0, 3),
    "ttl": (0, 255),
    "src_port": (0, 0xFFFF),
    "pkey": (0, 0xFFFF),
    "rkey": (0, (1 << 32) - 1),
    "va": (0, (1 << 64) - 1),
    "va_step": (0, 1 << 40),
    "va_window": (0, 1 << 48),
    "imm": (0, (1 << 32) - 1),
    "swap": (0, (1 << 64) - 1),
    "compare": (0, (1 << 64) - 1),
    "qkey": (0, (1 << 32) - 1),
    "syndrome": (0, 255),
    "msn": (0, (1 << 24) - 1),
    "ce_every": (0, 1 << 24),
    "ce_run": (1, 1 << 24),
    "fields_every": (1, 1 << 16),
}

_CARRIES = frozenset({Verb.SEND, Verb.SEND_IMM, Verb.SEND_INV, Verb.WRITE, Verb.WRITE_IMM})
_ATOMICS = frozenset({Verb.CAS, Verb.FADD})
_NO_PAYLOAD = frozenset({Verb.ACK, Verb.CNP})

_CONNECTED = (Service.RC, Service.UC)
_SERVICES: dict[Verb, tuple[Service, ...]] = {
    Verb.SEND: (*_CONNECTED, Service.UD),
    Verb.SEND_IMM: (*_CONNECTED, Service.UD),
    Verb.SEND_INV: (Service.RC,),
    Verb.WRITE: _CONNECTED,
    Verb.WRITE_IMM: _CONNECTED,
    Verb.READ: (Service.RC,),
    Verb.CAS: (Service.RC,),
    Verb.FADD: (Service.RC,),
    Verb.ACK: (Service.RC,),
    Verb.CNP: (Service.RC,),
}
"""Verb -> services that have it; a CNP belongs to none and counts as RC here."""

_QPNS = "QP numbers such as 0x11, 0x11..0x20 or 0x11*3,0x12"
_NUMBER = r"(?:0[xX][0-9a-fA-F]{1,8}|\d{1,9})"
_QPN = re.compile(
    rf"(?P<first>{_NUMBER})(?:\.\.(?P<last>{_NUMBER}))?(?:\*(?P<weight>\d{{1,7}}))?", re.ASCII
)
