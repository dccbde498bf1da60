"""What a device on a link does otherwise and no profile knows: found once, then taken over.

Events that it does not raise and flags of completions are not compared any more; packets
that end it, or that it does not know, are not sent any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ibwire.fuzz.case import CaseError, Packet, Pause
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire_layers.opcodes import INFO, OpCode

FLAGS = 6
"""Where flags are in a completion."""

OPTIONAL = {int(OpCode.RC_FLUSH): 0, int(OpCode.RC_ATOMIC_WRITE): 8}
"""Operations that a device need not have (IBA annex A19), and bytes of payload of each."""


class Taken:
    """What is taken over. texts: as `add` has added to them, in a run that goes on."""

    def __init__(self, texts: list[str] | None = None) -> None:
        self.texts = [] if texts is None else texts
        """All of it, to be kept with a run: `event 3`, `flags 9 5`, `packet 23 why`, `pfc`."""
        self.events: set[int] = set()
        """Events that are not compared."""
        self.flags: dict[int, int] = {}
        """Flags of completions, by what they should be."""
        self.pauses = False
        """Whether PFC frames are not sent any more."""
        self._packets: set[tuple[object, str]] = set()
        """Forms and what is wrong with the packet on purpose; empty for anything."""
        for text in self.texts:
            self._take(text)

    def add(self, difference: Difference, last: Packet | Pause | None) -> None:
        """What would only be found again. last: what the device got last in the case."""
        texts: list[str] = []
        expected, got = difference.expected, difference.got
        if difference.kind == Kind.EVENT:
            texts += [f"event {event}" for event in {*expected, *got}]
        elif differs_in_flags(difference):
            for one, other in zip(expected, got, strict=True):
                assert isinstance(one, tuple)
                assert isinstance(other, tuple)
                if one != other:
                    texts.append(f"flags {one[FLAGS]} {other[FLAGS]}")
        elif isinstance(last, Pause):
            texts += ["pfc"] * (difference.kind == Kind.CRASH)
        elif last is not None and difference.kind == Kind.CRASH:
            texts.append(f"packet {opcode_on_wire(last)} {last.why}".rstrip())
        elif last is not None and last.opcode in OPTIONAL and not last.fields and not got:
            texts.append(f"packet {last.opcode}")
        for text in texts:
            if text in self.texts:
                continue
            self.texts.append(text)
            self._take(text)

    def has(self, packet: Packet) -> bool:
        """Whether a packet is of those that are not sent any more."""
        form = _form(opcode_on_wire(packet))
        return not self._packets.isdisjoint(((form, packet.why), (form, "")))

    def _take(self, text: str) -> None:
        found = _TEXT.fullmatch(text)
        if found is None:
            raise CaseError(f"left_out: {text!r}, not an event, flags, a packet or pfc")
        if found["event"]:
            self.events.add(int(found["event"]))
        elif found["flags"]:
            self.flags[int(found["flags"])] = int(found["instead"])
        elif text == "pfc":
            self.pauses = True
        else:
            self._packets.add((_form(int(found["packet"])), found["why"] or ""))


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
    """What packets of one kind have in common, first or last: operation and headers.

    All opcodes that there are not are one kind.
    """
    info = INFO.get(opcode)
    return () if info is None else (info.operation, *info.headers)


_TEXT = re.compile(
    r"event (?P<event>\d{1,9})|flags (?P<flags>\d{1,9}) (?P<instead>\d{1,9})"
    r"|packet (?P<packet>\d{1,3})(?: (?P<why>.+))?|pfc"
)
