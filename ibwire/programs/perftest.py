"""What programs of perftest tell each other before, between and after their traffic.

Everything is a step of the same kind: the client says something of a fixed size, then the
server says something of the same size. First come the version, the sizes that buffers are
laid out by, and the path MTU; then records, one for each queue pair. A record that is said
again only means "I am as far as you": steps of this kind are barriers. After a bandwidth
test five numbers follow, and `DONE`, which nobody waits for.

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
"""The oldest version that the tools of today talk to; its steps are those here."""

DONE = b"done\0"

CYCLE_BUFFER = 4096
"""Bytes over which the places of small messages go round: a page of x86."""
CACHE_LINE = 64
"""Bytes: small messages do not share one."""

LARGEST_CYCLE_BUFFER = 1 << 16
"""The largest page of any Linux: the larger of both ends' cycle buffers counts."""
LARGEST_CACHE_LINE = 1 << 10


class Verb(StrEnum):
    """What is measured; perftest calls it so."""

    SEND = "send"
    WRITE = "write"
    READ = "read"
    ATOMIC = "atomic"


@dataclass(frozen=True, slots=True)
class Version:
    """What a program says first: a number as text, and, if it is ours, that it is ibwire.

    The tools read the text up to its NUL, so our mark behind it is for ourselves: both ends
    then know the contents of each other's messages.
    """

    number: str = "6.06"
    """Of the perftest that Debian 12 has, which all of this is about."""
    is_ibwire: bool = True

    def pack(self) -> bytes:
        """The 16 bytes."""
        text = self.number.encode() + (b"\0" + _MARK if self.is_ibwire else b"")
        return text.ljust(VERSION_SIZE, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Version:
        """What 16 bytes say; raises `PeerError` for no version, or a too old one."""
        text, _, rest = data.partition(b"\0")
        if not _VERSION.fullmatch(text):
            raise PeerError(f"this is no program of perftest: it begins with {data!r}")
        version = cls(text.decode(), rest.startswith(_MARK))
        if float(version.number) < OLDEST:
            raise PeerError(
                f"its perftest is version {version.number}, "
                f"and versions before {OLDEST:.2f} do otherwise"
            )
        return version


_MARK = b"ibwire"
_VERSION = re.compile(rb"[0-9]{1,4}\.[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in a buffer messages lie one after the other, which both ends work out alike.

    cycle_buffer, cache_line: bytes, the larger of what both ends have said.
    """

    size: int
    """Bytes of a message."""
    cycle_buffer: int = CYCLE_BUFFER
    cache_line: int = CACHE_LINE

    @property
    def step(self) -> int:
        """Bytes from one place to the next."""
        return -(-self.size // self.cache_line) * self.cache_line

    @property
    def places(self) -> int:
        """How many there are; large messages all lie in one."""
        return self.cycle_buffer // self.step if 2 * self.size <= self.cycle_buffer else 1

    @property
    def length(self) -> int:
        """Bytes of the whole buffer of a queue pair."""
        return max(self.size, self.cycle_buffer)


def pack_number(number: int) -> bytes:
    """The four bytes of the cycle buffer or the cache line."""
    return number.to_bytes(NUMBER_SIZE)


def unpack_number(data: bytes, what: str, highest: int) -> int:
    """What four bytes say; raises `PeerError` for what no machine has."""
    number = int.from_bytes(data)
    if not 0 < number <= highest:
        raise PeerError(f"a {what} of {number} bytes, not 1 to {highest}")
    return number


def pack_mtu(mtu: int) -> bytes:
    """The two bytes of a path MTU: its code as text."""
    return b"%d\0" % MTU_CODES[mtu]


def unpack_mtu(data: bytes) -> int:
    """Bytes of the path MTU; raises `PeerError`."""
    code = data[0] - ord("0")
    if code not in MTU_BYTES or data[1]:
        raise PeerError(f"a path MTU code of {data!r}")
    return MTU_BYTES[code]


@dataclass(frozen=True, slots=True)
class Record:
    """What an end says of one of its queue pairs."""

    qpn: int
    psn: int
    gid: int
    rkey: int = 0
    vaddr: int = 0
    """Where the peer's WRITEs, READs and atomics go."""
    out_reads: int = 1
    """READs and atomics that may be outstanding towards it."""
    lid: int = 0
    srqn: int = 0

    TEXT_SIZE = 108
    BINARY_SIZE = 56

    def pack_text(self) -> bytes:
        """As TCP carries it."""
        head = b"%04x:%04x:%06x:%06x:%08x:%016x:" % (
            *(self.lid, self.out_reads, self.qpn, self.psn, self.rkey, self.vaddr),
        )
        gid = self.gid.to_bytes(16).hex(":").encode()
        return head + gid + b":%08x:\0" % self.srqn

    @classmethod
    def unpack_text(cls, data: bytes) -> Record:
        """What TCP has brought; raises `PeerError`."""
        match = _RECORD.fullmatch(data)
        if match is None:
            raise PeerError(f"this is no record of a queue pair: {data!r}")
        lid, reads, qpn, psn, rkey, vaddr, gid, srqn = (
            int(part.replace(b":", b""), 16) for part in match.groups()
        )
        return cls(qpn, psn, gid, rkey, vaddr, reads, lid, srqn)

    def pack_binary(self) -> bytes:
        """As a SEND carries it."""
        return _BINARY.pack(
            *(self.lid, self.out_reads, self.qpn, self.psn, self.rkey, self.vaddr),
            *(self.gid.to_bytes(16), self.srqn, 0),
        )

    @classmethod
    def unpack_binary(cls, data: bytes) -> Record:
        """What a SEND has brought; raises `PeerError`."""
        lid, reads, qpn, psn, rkey, vaddr, gid, srqn, _ = _BINARY.unpack(data)
        if qpn >> 24 or psn >> 24:
            raise PeerError(f"this is no record of a queue pair: {data.hex()}")
        return cls(qpn, psn, int.from_bytes(gid), rkey, vaddr, reads, lid, srqn)


_RECORD = re.compile(
    rb"([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{8}):([0-9a-f]{16}):"
    rb"([0-9a-f]{2}(?::[0-9a-f]{2}){15}):([0-9a-f]{8}):\0"
)
_BINARY = struct.Struct(">5I4xQ16sII")
"""struct pingpong_dest, all big-endian; the last is the index of the GID."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the end that has measured says of it: five numbers, each a step of its own."""

    size: int
    """Bytes of a message."""
    messages: int = 0
    """Of all queue pairs together; in a test for a time only those that were counted."""
    peak_mib_per_s: float = 0.0
    """perftest calls it MB/sec."""
    average_mib_per_s: float = 0.0
    rate_mpps: float = 0.0
    """Millions of messages a second."""

    NUMBERS = 5
    NUMBER_SIZE = 8

    def plus(self, other: Report) -> Report:
        """Both directions together; messages count once, as in perftest's table."""
        return replace(
            self,
            peak_mib_per_s=self.peak_mib_per_s + other.peak_mib_per_s,
            average_mib_per_s=self.average_mib_per_s + other.average_mib_per_s,
            rate_mpps=self.rate_mpps + other.rate_mpps,
        )

    def pack(self) -> list[bytes]:
        """The numbers."""
        integers = [each.to_bytes(8) for each in (self.size, self.messages)]
        return integers + [
            struct.pack(">d", each)
            for each in (self.peak_mib_per_s, self.average_mib_per_s, self.rate_mpps)
        ]

    @classmethod
    def unpack(cls, numbers: list[bytes]) -> Report:
        """What five numbers say; raises `PeerError` for what is no measure."""
        size, messages = (int.from_bytes(each) for each in numbers[:2])
        measures = [struct.unpack(">d", each)[0] for each in numbers[2:]]
        if not all(isfinite(each) and each >= 0 for each in measures):
            raise PeerError(f"a report of {measures} MB/s and messages")
        return cls(size, messages, *measures)


class Step(Enum):
    """What both ends say at the same time, the client first."""

    ALL = "a record for each queue pair"
    ONE = "the record of the first queue pair"
    REPORT = "the numbers of a report, one by one"
    DONE = "that it is over, which nobody waits for"


class Course(NamedTuple):
    """What a program says before and after its traffic; each has its own order.

    The queue pairs are brought up after the first `Step.ALL`.
    """

    before: tuple[Step, ...]
    after: tuple[Step, ...]


def course(verb: Verb, *, latency: bool, both: bool = False, timed: bool = False) -> Course:
    """The course of a test, as the main function of its program has it.

    both: traffic in both directions. timed: for so many seconds.
    """
    closing = (Step.ONE, Step.DONE)
    if verb is Verb.SEND:
        reports = (Step.REPORT,) if both and not timed else ()
        return Course((Step.ALL, Step.ONE, Step.ALL, Step.ONE), (*reports, *closing))
    begun = (Step.ALL, Step.ALL, Step.ONE)
    if latency:
        return Course((Step.ONE, *begun), () if verb is Verb.WRITE else closing)
    if both:
        return Course((*begun, Step.ONE), (Step.REPORT, *closing))
    return Course(begun, (Step.ONE, Step.REPORT, *closing))
