"""The messages that programs of perftest exchange before and after their traffic.

In each step the client sends a message of a fixed size, then the server sends one of the same
size. First come the version, the sizes that determine the buffer layout, and the path MTU; then
records, one for each queue pair. A repeated record is a barrier. After a bandwidth test five
numbers follow, and `DONE`, which is not answered.

    version 16 bytes | cycle buffer 4 | cache line 4 | MTU code 2 | records ... | numbers, 8 each

Over TCP a record is text of 108 bytes; over a queue pair of the RDMA CM it is binary, 56.

Source: perftest 4.5-0.17 perftest_communication.c; the TCP streams of send-lat,
read-bw-ipv6 and further captures (reference/habits#other-captures).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from math import isfinite
from typing import NamedTuple

from ibwire.base.errors import PeerError
from ibwire.rc.attributes import MTU_BYTES, MTU_CODES

PORT = 18515

VERSION_SIZE = 16
NUMBER_SIZE = 4
MTU_SIZE = 2

OLDEST = 5.70
"""The oldest version that current tools accept; it has the same steps."""

DONE = b"done\0"

CYCLE_BUFFER = 4096
"""Bytes that the addresses of small messages cycle through: a page of x86."""
CACHE_LINE = 64
"""Bytes of a cache line: small messages do not share one."""

LARGEST_CYCLE_BUFFER = 1 << 16
"""The largest page of any Linux: the larger of both ends' cycle buffers is used."""
LARGEST_CACHE_LINE = 1 << 10


class Verb(StrEnum):
    """The operation of a test, as in perftest."""

    SEND = "send"
    WRITE = "write"
    READ = "read"
    ATOMIC = "atomic"


@dataclass(frozen=True, slots=True)
class Version:
    """The first message of a program: its version as text, and the mark of ibwire.

    The tools read the text up to its NUL, so the mark after it is visible to ibwire only: two
    ends with the mark know the contents of each other's messages.
    """

    number: str = "6.06"
    """Version of perftest in Debian 12."""
    is_ibwire: bool = True

    def pack(self) -> bytes:
        """Encode as 16 bytes."""
        text = self.number.encode() + (b"\0" + _MARK if self.is_ibwire else b"")
        return text.ljust(VERSION_SIZE, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Version:
        """Decode 16 bytes; raises `PeerError` for no version, or a too old one."""
        text, _, rest = data.partition(b"\0")
        if not _VERSION.fullmatch(text):
            raise PeerError(f"not a program of perftest: it begins with {data!r}")
        version = cls(text.decode(), rest.startswith(_MARK))
        if float(version.number) < OLDEST:
            raise PeerError(
                f"its perftest is version {version.number}; "
                f"version {OLDEST:.2f} or newer is required"
            )
        return version


_MARK = b"ibwire"
_VERSION = re.compile(rb"[0-9]{1,4}\.[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Layout:
    """The addresses of messages in a buffer, which both ends compute in the same way.

    cycle_buffer, cache_line: bytes, the larger of both ends' values.
    """

    size: int
    """Bytes of a message."""
    cycle_buffer: int = CYCLE_BUFFER
    cache_line: int = CACHE_LINE

    @property
    def step(self) -> int:
        """Bytes from one address to the next."""
        return -(-self.size // self.cache_line) * self.cache_line

    @property
    def places(self) -> int:
        """Number of addresses; large messages all use the same one."""
        return self.cycle_buffer // self.step if 2 * self.size <= self.cycle_buffer else 1

    @property
    def length(self) -> int:
        """Bytes of the buffer of a queue pair."""
        return max(self.size, self.cycle_buffer)


def pack_number(number: int) -> bytes:
    """Encode the cycle buffer or the cache line as four bytes."""
    return number.to_bytes(NUMBER_SIZE)


def unpack_number(data: bytes, what: str, highest: int) -> int:
    """Decode four bytes; raises `PeerError` for an impossible size."""
    number = int.from_bytes(data)
    if not 0 < number <= highest:
        raise PeerError(f"{what}: {number} bytes, expected 1 to {highest}")
    return number


def pack_mtu(mtu: int) -> bytes:
    """Encode a path MTU as two bytes: its code as text."""
    return b"%d\0" % MTU_CODES[mtu]


def unpack_mtu(data: bytes) -> int:
    """Decode a path MTU; raises `PeerError`."""
    code = data[0] - ord("0")
    if code not in MTU_BYTES or data[1]:
        raise PeerError(f"invalid path MTU code {data!r}")
    return MTU_BYTES[code]


@dataclass(frozen=True, slots=True)
class Record:
    """The parameters of a queue pair that one end sends to the other."""

    qpn: int
    psn: int
    gid: int
    rkey: int = 0
    vaddr: int = 0
    """Address for the peer's WRITEs, READs and atomics."""
    out_reads: int = 1
    """READs and atomics that the peer may have outstanding."""
    lid: int = 0
    srqn: int = 0

    TEXT_SIZE = 108
    BINARY_SIZE = 56

    def pack_text(self) -> bytes:
        """Encode as text, for TCP."""
        head = b"%04x:%04x:%06x:%06x:%08x:%016x:" % (
            self.lid,
            self.out_reads,
            self.qpn,
            self.psn,
            self.rkey,
            self.vaddr,
        )
        gid = self.gid.to_bytes(16).hex(":").encode()
        return head + gid + b":%08x:\0" % self.srqn

    @classmethod
    def unpack_text(cls, data: bytes) -> Record:
        """Decode text; raises `PeerError`."""
        match = _RECORD.fullmatch(data)
        if match is None:
            raise PeerError(f"not a record of a queue pair: {data!r}")
        lid, reads, qpn, psn, rkey, vaddr, gid, srqn = (
            int(part.replace(b":", b""), 16) for part in match.groups()
        )
        return cls(qpn, psn, gid, rkey, vaddr, reads, lid, srqn)

    def pack_binary(self) -> bytes:
        """Encode in binary, for a SEND."""
        return _BINARY.pack(
            self.lid,
            self.out_reads,
            self.qpn,
            self.psn,
            self.rkey,
            self.vaddr,
            self.gid.to_bytes(16),
            self.srqn,
            0,
        )

    @classmethod
    def unpack_binary(cls, data: bytes) -> Record:
        """Decode binary; raises `PeerError`."""
        lid, reads, qpn, psn, rkey, vaddr, gid, srqn, _ = _BINARY.unpack(data)
        if qpn >> 24 or psn >> 24:
            raise PeerError(f"not a record of a queue pair: {data.hex()}")
        return cls(qpn, psn, int.from_bytes(gid), rkey, vaddr, reads, lid, srqn)


_RECORD = re.compile(
    rb"([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{8}):([0-9a-f]{16}):"
    rb"([0-9a-f]{2}(?::[0-9a-f]{2}){15}):([0-9a-f]{8}):\0"
)
_BINARY = struct.Struct(">5I4xQ16sII")
"""struct pingpong_dest, all big-endian; the last is the index of the GID."""


@dataclass(frozen=True, slots=True)
class Report:
    """The measurement of one end: five numbers, each sent in its own step."""

    size: int
    """Bytes of a message."""
    messages: int = 0
    """Of all queue pairs together; in a timed test only those that were counted."""
    peak_mib_per_s: float = 0.0
    """perftest calls it MB/sec."""
    average_mib_per_s: float = 0.0
    rate_mpps: float = 0.0
    """Millions of messages per second."""

    NUMBERS = 5
    NUMBER_SIZE = 8

    def plus(self, other: Report) -> Report:
        """The sum of both directions; messages are not added, as in perftest's table."""
        return replace(
            self,
            peak_mib_per_s=self.peak_mib_per_s + other.peak_mib_per_s,
            average_mib_per_s=self.average_mib_per_s + other.average_mib_per_s,
            rate_mpps=self.rate_mpps + other.rate_mpps,
        )

    def pack(self) -> list[bytes]:
        """Encode the numbers."""
        integers = [each.to_bytes(8) for each in (self.size, self.messages)]
        return integers + [
            struct.pack(">d", each)
            for each in (self.peak_mib_per_s, self.average_mib_per_s, self.rate_mpps)
        ]

    @classmethod
    def unpack(cls, numbers: list[bytes]) -> Report:
        """Decode five numbers; raises `PeerError` for negative or infinite ones."""
        size, messages = (int.from_bytes(each) for each in numbers[:2])
        measures = [struct.unpack(">d", each)[0] for each in numbers[2:]]
        if not all(isfinite(each) and each >= 0 for each in measures):
            raise PeerError(f"invalid report: {measures}")
        return cls(size, messages, *measures)


class Step(Enum):
    """A step of the exchange."""

    ALL = "a record for each queue pair"
    ONE = "the record of the first queue pair"
    REPORT = "the numbers of a report, one by one"
    DONE = "the end, which is not answered"


class StepOrder(NamedTuple):
    """The steps of a program before and after its traffic.

    The queue pairs are brought up after the first `Step.ALL`.
    """

    before: tuple[Step, ...]
    after: tuple[Step, ...]


def step_order(verb: Verb, *, latency: bool, both: bool = False, timed: bool = False) -> StepOrder:
    """The steps of a test, as in the main function of its program.

    both: traffic in both directions. timed: for a duration instead of a number of messages.
    """
    closing = (Step.ONE, Step.DONE)
    if verb is Verb.SEND:
        reports = (Step.REPORT,) if both and not timed else ()
        return StepOrder((Step.ALL, Step.ONE, Step.ALL, Step.ONE), (*reports, *closing))
    begun = (Step.ALL, Step.ALL, Step.ONE)
    if latency:
        return StepOrder((Step.ONE, *begun), () if verb is Verb.WRITE else closing)
    if both:
        return StepOrder((*begun, Step.ONE), (Step.REPORT, *closing))
    return StepOrder(begun, (Step.ONE, Step.REPORT, *closing))
