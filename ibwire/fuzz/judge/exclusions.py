"""Deviations of a device on a link that no profile describes: found once, then excluded.

Events that it does not raise and flags of completions are no longer compared; packets
that end it, or that it does not know, are no longer sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ibwire.fuzz.case import CaseError, Packet, Pause
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire_layers.opcodes import INFO, OpCode

FLAGS = 6
"""Index of the flags in a completion."""

OPTIONAL = {int(OpCode.RC_FLUSH): 0, int(OpCode.RC_ATOMIC_WRITE): 8}
"""Operations that a device need not have (IBA annex A19), and bytes of payload of each."""


@dataclass(frozen=True, slots=True)
class EventExcluded:
    """An event that is not compared."""

    event: int

    def __str__(self) -> str:
        return f"event {self.event}"


@dataclass(frozen=True, slots=True)
class FlagsExcluded:
    """Flags of completions that a device reports in place of the expected ones."""

    expected: int
    got: int

    def __str__(self) -> str:
        return f"flags {self.expected} {self.got}"


@dataclass(frozen=True, slots=True)
class PacketExcluded:
    """Packets with this operation and this fault that are not sent; with no fault, any."""

    opcode: int
    why: str = ""

    def __str__(self) -> str:
        return f"packet {self.opcode} {self.why}".rstrip()


@dataclass(frozen=True, slots=True)
class FaultExcluded:
    """Packets with this fault that are not sent, whatever their operation."""

    why: str

    def __str__(self) -> str:
        return f"fault {self.why}"


@dataclass(frozen=True, slots=True)
class PauseExcluded:
    """PFC frames are not sent."""

    def __str__(self) -> str:
        return "pfc"


@dataclass(frozen=True, slots=True)
class WitnessExcluded:
    """The witnesses of a choice, in one of which the device has crashed."""

    name: str

    def __str__(self) -> str:
        return f"witness {self.name}"


Exclusion = (
    EventExcluded | FlagsExcluded | PacketExcluded | FaultExcluded | PauseExcluded | WitnessExcluded
)


def parse_exclusion(text: str) -> Exclusion:
    """The exclusion with this text; raises `CaseError`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise CaseError(
            f"left_out: {text!r}, not an event, flags, a packet, a fault, a witness or pfc"
        )
    if found["event"]:
        return EventExcluded(int(found["event"]))
    if found["flags"]:
        return FlagsExcluded(int(found["flags"]), int(found["instead"]))
    if found["packet"]:
        return PacketExcluded(int(found["packet"]), found["why"] or "")
    if found["fault"]:
        return FaultExcluded(found["fault"])
    if found["witness"]:
        return WitnessExcluded(found["witness"])
    return PauseExcluded()


class Exclusions:
    """What is excluded so far. items: the list that is extended, in a run that resumes."""

    def __init__(self, items: list[Exclusion] | None = None) -> None:
        self.items: list[Exclusion] = [] if items is None else items
        self.events: set[int] = set()
        """Events that are not compared."""
        self.flags: dict[int, int] = {}
        """Flags of completions, by what they should be."""
        self.pauses = False
        """Whether PFC frames are excluded."""
        self._packets: set[tuple[object, str]] = set()
        """Forms of packets and faults."""
        self._faults: set[str] = set()
        for item in self.items:
            self._index(item)

    def add(self, difference: Difference, last: Packet | Pause | None) -> None:
        """Exclude what has been found. last: the last packet or PFC frame sent to the device."""
        for item in _exclusions_for(difference, last):
            self._add(item)

    def add_fault(self, why: str) -> None:
        """Exclude a fault in packets of any operation."""
        self._add(FaultExcluded(why))

    def _add(self, item: Exclusion) -> None:
        if item not in self.items:
            self.items.append(item)
            self._index(item)

    def has(self, packet: Packet) -> bool:
        """Whether a packet is excluded."""
        form = _form(opcode_on_wire(packet))
        if packet.why in self._faults:
            return True
        return not self._packets.isdisjoint(((form, packet.why), (form, "")))

    def _index(self, item: Exclusion) -> None:
        match item:
            case EventExcluded():
                self.events.add(item.event)
            case FlagsExcluded():
                self.flags[item.expected] = item.got
            case PacketExcluded():
                self._packets.add((_form(item.opcode), item.why))
            case FaultExcluded():
                self._faults.add(item.why)
            case PauseExcluded():
                self.pauses = True
            case WitnessExcluded():
                pass  # the fingerprint leaves it out


def _exclusions_for(difference: Difference, last: Packet | Pause | None) -> list[Exclusion]:
    expected, got = difference.expected, difference.got
    is_crash = difference.kind is Kind.CRASH
    if difference.kind is Kind.EVENT:
        events = [each for each in {*expected, *got} if isinstance(each, int)]
        return [EventExcluded(event) for event in events]
    if differs_in_flags(difference):
        pairs = zip(expected, got, strict=True)
        return [
            FlagsExcluded(one[FLAGS], other[FLAGS])
            for one, other in pairs
            if one != other and isinstance(one, tuple) and isinstance(other, tuple)
        ]
    if isinstance(last, Pause):
        return [PauseExcluded()] if is_crash else []
    if last is None:
        return []
    if is_crash:
        return [PacketExcluded(opcode_on_wire(last), last.why)]
    if last.opcode in OPTIONAL and not last.fields and not got:
        return [PacketExcluded(last.opcode)]
    return []


def opcode_on_wire(packet: Packet) -> int:
    """The opcode that a packet has, which may be another one on purpose."""
    said = packet.fields.get("bth.opcode", packet.opcode)
    return said if isinstance(said, int) else packet.opcode


def differs_in_flags(difference: Difference) -> bool:
    """Whether completions are the same but for their flags."""
    return difference.kind == Kind.COMPLETION and (
        _without_flags(difference.expected) == _without_flags(difference.got)
    )


def _without_flags(completions: Sequence[object]) -> list[object]:
    return [each[:FLAGS] if isinstance(each, tuple) else each for each in completions]


def _form(opcode: int) -> tuple[object, ...]:
    """Operation and headers: equal for packets of one kind, whether first or last.

    All opcodes that there are not are one kind.
    """
    info = INFO.get(opcode)
    return () if info is None else (info.operation, *info.headers)


_TEXT = re.compile(
    r"event (?P<event>\d{1,9})|flags (?P<flags>\d{1,9}) (?P<instead>\d{1,9})"
    r"|packet (?P<packet>\d{1,3})(?: (?P<why>.+))?|fault (?P<fault>.+)"
    r"|witness (?P<witness>\w+)|pfc"
)
