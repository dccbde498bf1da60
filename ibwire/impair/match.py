"""Selects frames: by headers, by their position in the traffic, or at random.

A `Pick` is called once for every frame that passes one point, in order, because most picks
count. Random picks have their own generator, named after their place in the plan, so that
adding one elsewhere changes nothing here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.base.quantities import duration_text
from ibwire.base.units import Time
from ibwire_layers import headers as h
from ibwire_layers import opcodes, psn
from ibwire_layers.outer import ROCEV2_PORT, UDP, Ethernet, IPProto, IPv4, LinkType
from ibwire_layers.syndrome import AckKind, NakCode, kind
from ibwire_layers.walk import walk

Pick = Callable[[Frame, Time], bool]
"""Whether the frame that passes now is selected."""

MAXIMUM_QPNS = 65_536
"""Destination QPNs that a `Match` numbers, to bound the memory; later ones have no number."""


def always(frame: Frame, now: Time) -> bool:
    """Every frame."""
    return True


class Offsets(NamedTuple):
    """Offsets of the parts of an RDMA packet in its frame, in bytes."""

    network: int
    """IP header or GRH."""
    bth: int
    """-1 without a BTH."""
    end: int
    """After the ICRC, from the length field; may be after the end of the frame."""


def locate(frame: Frame, link_type: int = LinkType.ETHERNET) -> Offsets:
    """Find the BTH: directly in the common layout, with `walk` otherwise."""
    if link_type == LinkType.ETHERNET and _is_plain(frame):
        return Offsets(_NETWORK, _BTH, _NETWORK + (frame[16] << 8 | frame[17]))
    found = walk(frame, link_type)
    return Offsets(found.start, found.bth, found.end)


def _is_plain(frame: Frame) -> bool:
    """Whether it is RoCEv2 over IPv4 without tags and options, with a whole BTH."""
    return (
        frame[12:15] == _PLAIN_IPV4
        and frame[36:38] == _ROCEV2
        and frame[23] == _UDP
        and not (frame[20] & 0x3F or frame[21])  # a fragment
        and len(frame) >= _EXTENSIONS
        and (frame[16] << 8 | frame[17]) >= _EXTENSIONS - _NETWORK
    )


class Sightings:
    """The destination QP numbers seen at one point, and the first PSN of each sequence.

    The rules of one point share it, so that a rule that changes a packet does not change the
    counting of the others.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._firsts: dict[tuple[int, bool], int] = {}
        """By destination QPN and whether it is a response."""

    def note(self, dest_qp: int, opcode: int, number: int) -> None:
        """Record a packet: destination QPN, opcode and PSN."""
        self.connection(dest_qp)
        self.distance(dest_qp, opcode, number)

    def connection(self, dest_qp: int) -> int | None:
        """Number of a destination QPN in order of appearance, from 1; `None` without a number."""
        known = self._numbers
        number = known.get(dest_qp)
        if number is None and dest_qp > 1 and len(known) < MAXIMUM_QPNS:
            number = known[dest_qp] = len(known) + 1
        return number

    def first(self, dest_qp: int, opcode: int) -> int | None:
        """The first PSN of the sequence of such packets; `None` without one."""
        if opcode == opcodes.OpCode.CNP:
            return None
        return self._firsts.get((dest_qp, opcode in RESPONSES))

    def distance(self, dest_qp: int, opcode: int, number: int) -> int | None:
        """Distance of a PSN from the first of its sequence; `None` without a sequence."""
        if opcode == opcodes.OpCode.CNP:  # its PSN has no meaning (IBA annex A17.9)
            return None
        known = self._firsts
        sequence = dest_qp, opcode in RESPONSES
        first = known.get(sequence)
        if first is None:
            if len(known) == MAXIMUM_QPNS:
                return None
            first = known[sequence] = number
        return number - first & psn.MASK


class Match:
    """Selects frames that meet all given conditions; conditions on headers require a BTH.

    opcode: number, name as in `OpCode`, name of an `Operation` (any service), or
    "request" or "response"; one or several. A CNP is neither.
    dest_qp: destination QPN. connection: number of the destination QPN in the order
    in which destination QPNs were first seen here, the first is 1; QP 0 and 1,
    the management ones, are not counted.
    psn: distance from the first PSN seen here to that destination QPN, the first is 0;
    requests and responses to a queue pair are two sequences and have two firsts.
    absolute_psn: as in the header. Each of these four: one number or several.
    syndrome: name of an `AckKind` or a `NakCode`; one or several.
    min_size, max_size: bytes of the frame. after, before: `after <= now < before`.
    nth: the nth frame that meets all other conditions, from 1; one or
    several. every: every nth such frame.
    link_type: of the frames, Ethernet or native InfiniBand. sightings: base of
    `connection` and `psn`, if shared with other rules.

    Raises `EncodeError` for a condition that no frame can meet, or an empty one.
    """

    def __init__(
        self,
        *,
        opcode: int | str | Collection[int | str] | None = None,
        dest_qp: int | Collection[int] | None = None,
        connection: int | Collection[int] | None = None,
        psn: int | Collection[int] | None = None,
        absolute_psn: int | Collection[int] | None = None,
        syndrome: str | Collection[str] | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        after: Time | None = None,
        before: Time | None = None,
        nth: int | Collection[int] | None = None,
        every: int | None = None,
        link_type: int = LinkType.ETHERNET,
        sightings: Sightings | None = None,
    ) -> None:
        self.fitting = 0
        """Frames that met all conditions except `nth` and `every`."""
        self._link_type = link_type
        self._opcodes = _opcodes(opcode)
        self._dest_qps = _numbers("dest_qp", dest_qp, 0, _MAXIMUM_24)
        self._connections = _numbers("connection", connection, 1)
        self._relative = _numbers("psn", psn, 0, _MAXIMUM_24)
        self._absolute = _numbers("absolute_psn", absolute_psn, 0, _MAXIMUM_24)
        self._syndromes = _named("syndrome", syndrome, _SYNDROMES)
        self._min_size = _number("min_size", min_size, 0)
        self._max_size = _number("max_size", max_size, self._min_size or 0)
        self._after = _number("after", after, 0)
        self._before = _number("before", before, 0)
        if self._before is not None and self._before <= (self._after or 0):
            raise EncodeError(
                "before",
                duration_text(self._before),
                f"later than `after`, {duration_text(self._after or 0)}",
            )
        self._nth = _numbers("nth", nth, 1)
        self._every = _number("every", every, 1)
        self._reads_numbers = any(
            numbers is not None
            for numbers in (self._dest_qps, self._connections, self._relative, self._absolute)
        )
        self.reads_headers = (
            self._reads_numbers or self._opcodes is not None or self._syndromes is not None
        )
        """Whether there are conditions on headers, which only packets with a BTH can meet."""
        self._sightings = Sightings() if sightings is None else sightings

    def __call__(self, frame: Frame, now: Time) -> bool:
        """Whether the frame is selected; counts it."""
        # Headers are checked first: a frame that is too small or too early may also be the
        # first of its queue pair.
        if self.reads_headers and not self._headers_match(frame):
            return False
        size = len(frame)
        if (
            (self._min_size is not None and size < self._min_size)
            or (self._max_size is not None and size > self._max_size)
            or (self._after is not None and now < self._after)
            or (self._before is not None and now >= self._before)
        ):
            return False
        self.fitting += 1
        if self._nth is not None and self.fitting not in self._nth:
            return False
        return self._every is None or self.fitting % self._every == 0

    def psns(self, dest_qp: int, opcode: int) -> Collection[int] | None:
        """PSNs of packets to a queue pair, with an opcode, that may match; `None`: any.

        Only calling the object shows whether a packet matches. The first packet of the queue
        pair must have been recorded.
        """
        if (self._opcodes is not None and opcode not in self._opcodes) or (
            self._dest_qps is not None and dest_qp not in self._dest_qps
        ):
            return ()
        if self._connections is not None:
            connection = self._sightings.connection(dest_qp)
            if connection not in self._connections:
                return ()
        if self._relative is None:
            return self._absolute
        first = self._sightings.first(dest_qp, opcode)
        if first is None:
            return ()
        numbers = frozenset(first + distance & psn.MASK for distance in self._relative)
        return numbers if self._absolute is None else numbers & self._absolute

    def _headers_match(self, frame: Frame) -> bool:
        if self._link_type == LinkType.ETHERNET and _is_plain(frame):
            at = _BTH
        else:
            at = locate(frame, self._link_type).bth
            if at < 0:
                return False
        opcode = frame[at]
        # Checked first: a packet with another opcode may also be the first of its queue pair.
        if self._reads_numbers and not self._numbers_match(frame, at, opcode):
            return False
        if self._opcodes is not None and opcode not in self._opcodes:
            return False
        if self._syndromes is None:
            return True
        aeth = _AETH_OFFSETS.get(opcode)
        if aeth is None or at + aeth >= len(frame):
            return False
        return frame[at + aeth] in self._syndromes

    def _numbers_match(self, frame: Frame, at: int, opcode: int) -> bool:
        dest_qp = int.from_bytes(frame[at + 5 : at + 8])
        number = int.from_bytes(frame[at + 9 : at + 12])
        connection = distance = None
        if self._connections is not None:
            connection = self._sightings.connection(dest_qp)
        if self._relative is not None:
            distance = self._sightings.distance(dest_qp, opcode, number)
        return (
            (self._dest_qps is None or dest_qp in self._dest_qps)
            and (self._connections is None or connection in self._connections)
            and (self._relative is None or distance in self._relative)
            and (self._absolute is None or number in self._absolute)
        )


class Chance:
    """Selects each frame with the same probability, independently."""

    def __init__(self, probability: float, *, seed: int = 0, name: str = "chance") -> None:
        if not _is_number(probability) or not 0 <= probability <= 1:
            raise EncodeError("probability", probability, "a number from 0 to 1")
        self.probability = probability
        self._draw = random.Random(f"{seed}/{name}").random

    def __call__(self, frame: Frame, now: Time) -> bool:
        """Draw a random number."""
        return self._draw() < self.probability


class Burst:
    """Selects `count` consecutive frames from number `first` on, counted from 1.

    period: distance in frames between the starts of two bursts; `None`: only one burst.
    """

    def __init__(self, count: int, *, first: int = 1, period: int | None = None) -> None:
        self.count = _required("count", count, 1)
        self.first = _required("first", first, 1)
        self.period = _number("period", period, count)
        self._passed = 0

    def __call__(self, frame: Frame, now: Time) -> bool:
        """Count the frame."""
        self._passed += 1
        position = self._passed - self.first
        if position < 0:
            return False
        return (position if self.period is None else position % self.period) < self.count


class All:
    """Selects frames that all picks select; each is called only if those before selected it."""

    def __init__(self, *picks: Pick) -> None:
        self.picks = picks

    def __call__(self, frame: Frame, now: Time) -> bool:
        """Call the picks in order."""
        return all(pick(frame, now) for pick in self.picks)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _required(field: str, value: object, low: int, high: int | None = None) -> int:
    """The value, if it is an integer in the range."""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < low
        or (high is not None and value > high)
    ):
        bound = "or above" if high is None else f"to {high}"
        raise EncodeError(field, value, f"an integer {low} {bound}")
    return value


def _number(field: str, value: object, low: int) -> int | None:
    return None if value is None else _required(field, value, low)


def _numbers(field: str, value: object, low: int, high: int | None = None) -> frozenset[int] | None:
    """One or several integers in the range."""
    if value is None:
        return None
    return frozenset(_required(field, one, low, high) for one in _several(field, value))


def _named(field: str, value: object, names: Mapping[str, Iterable[int]]) -> frozenset[int] | None:
    """The numbers of one or several names."""
    if value is None:
        return None
    meant: set[int] = set()
    for name in _several(field, value):
        if not isinstance(name, str) or name not in names:
            raise EncodeError(field, name, f"one of {', '.join(names)}")
        meant.update(names[name])
    return frozenset(meant)


def _opcodes(value: object) -> frozenset[int] | None:
    if value is None:
        return None
    meant: set[int] = set()
    for one in _several("opcode", value):
        if isinstance(one, str) and one in _OPCODES:
            meant.update(_OPCODES[one])
        elif isinstance(one, str):
            expected = f"an opcode such as RC_SEND_ONLY, or one of {', '.join(_OPCODE_CLASSES)}"
            raise EncodeError("opcode", one, expected)
        else:
            meant.add(_required("opcode", one, 0, 0xFF))
    return frozenset(meant)


def _several(field: str, value: object) -> Collection[object]:
    """One value or a collection of them, as a collection."""
    if isinstance(value, str) or not isinstance(value, Collection):
        return (value,)
    if not value:
        raise EncodeError(field, value, "one value or several")
    return value


RESPONSES = frozenset(code for code, info in opcodes.INFO.items() if info.is_response)
"""Opcodes of responses."""

_OPCODE_CLASSES: dict[str, frozenset[int]] = {
    "request": frozenset(opcodes.INFO) - RESPONSES - {opcodes.OpCode.CNP},
    "response": RESPONSES,
    **{
        operation.name: frozenset(
            code for code, info in opcodes.INFO.items() if info.operation is operation
        )
        for operation in opcodes.Operation
    },
}

_OPCODES: dict[str, frozenset[int]] = {
    **{code.name: frozenset({int(code)}) for code in opcodes.OpCode},
    **_OPCODE_CLASSES,
}

_AETH_OFFSETS: dict[int, int] = {
    code: h.BTH.SIZE + sum(header.SIZE for header in info.headers[: info.headers.index(h.AETH)])
    for code, info in opcodes.INFO.items()
    if h.AETH in info.headers
}
"""Opcode -> bytes from the BTH to the AETH, whose first byte is the syndrome."""

_SYNDROMES: dict[str, frozenset[int]] = {
    **{each.name: frozenset(s for s in range(256) if kind(s) is each) for each in AckKind},
    **{
        code.name: frozenset(s for s in range(256) if kind(s) is AckKind.NAK and s & 0x1F == code)
        for code in NakCode
    },
}

_MAXIMUM_24 = psn.MASK
_NETWORK = Ethernet.SIZE
_BTH = _NETWORK + IPv4.SIZE + UDP.SIZE
_EXTENSIONS = _BTH + h.BTH.SIZE
_PLAIN_IPV4 = b"\x08\x00\x45"  # EtherType, version 4, no options
_ROCEV2 = ROCEV2_PORT.to_bytes(2)
_UDP = IPProto.UDP
