"""A case executed again for the record: every frame, with the step that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ibwire.base.errors import DecodeError
from ibwire.base.node import Frame
from ibwire.base.quantities import exact_duration_text
from ibwire.base.units import Time
from ibwire.cm.states import EventKind
from ibwire.drill.packets import Wire, describe
from ibwire.fuzz.case import Case, Connect, Pause, Role, field_text, flag_names, step_text
from ibwire.fuzz.judge.comparison import (
    FATAL,
    Comparison,
    Difference,
    Kind,
)
from ibwire.fuzz.judge.effects import parsed
from ibwire.fuzz.judge.findings import one_line, part_of, verdict, wrong_fields
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.judge.scene import Owners, owners_in
from ibwire.fuzz.targets.emulated_device import (
    INBOX,
    OUTBOX,
    QP_NUM,
    RECEIVES,
    SENDS,
    SIZE,
    SMALL,
    Completion,
    Emulation,
)
from ibwire.fuzz.targets.testbed import Target
from ibwire.fuzz.vocabulary.cm.tables import tables_text, unequal_parts
from ibwire.fuzz.vocabulary.vocabularies import role_of
from ibwire.rc.attributes import EventType
from ibwire.rc.profile import Profile
from ibwire.rc.unreliable import QP1
from ibwire.rc.work import WCFlags, WCOpcode, WCStatus
from ibwire_layers.packet import Packet as WholePacket

REGIONS = (
    ("readable", SMALL, "LOCAL_WRITE+REMOTE_READ"),
    ("foreign", SMALL, "ALL pd=1"),
    ("outbox", OUTBOX, "LOCAL_WRITE"),
    ("inbox", INBOX, "LOCAL_WRITE"),
)
"""The memory that an emulation registered after its first region: names, sizes, access flags."""

SHOWN_DATA = 8
"""Bytes of data, from the first that differs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A frame on the wire."""

    step: int
    """From 0."""
    way: str
    """`<` into the device, `>` out of it."""
    time: Time
    frame: Frame
    text: str
    """In words."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What came of a case."""

    entries: Sequence[Entry]
    difference: Difference | None
    expected: Sequence[str]
    """What the reference did in the last step, in words."""
    got: Sequence[str]
    """What the target did."""


def record(case: Case, tested: Target, profile: Profile | None = None) -> Recording:
    """Carry a case out on fresh devices; raises `CaseError` for one that fits no connection.

    profile: of the reference, unless it is that of the case.
    """
    comparison = tested.comparison(case, profile or profile_of(case.profile, case.choices))
    comparison.records = True
    wire = _wire(comparison)
    owners: Owners = {}
    entries: list[Entry] = []
    difference = None
    for number, step in enumerate(case.steps):
        if comparison.reference.connection.pairs > 1:
            owners |= owners_in(comparison.reference)
        difference = comparison.step(step)
        if isinstance(step, Connect):
            wire, owners = _wire(comparison), {}
        for way, time, frame in comparison.frames[len(entries) :]:
            is_pause = isinstance(step, Pause) and way == "<"
            text = step_text(step) if is_pause else _said(frame, wire, way == "<")
            entries.append(Entry(number, way, time, frame, text))
        if difference is not None:
            break
    if difference is None:
        difference = comparison.end()
    if difference is None:
        return Recording(entries, None, (), ())
    is_managed = role_of(case) is Role.CM
    names = _of_pairs(difference, owners, comparison.reference)
    return Recording(entries, difference, *_outcome(difference, wire, is_managed, names))


def _of_pairs(
    difference: Difference, owners: Owners, reference: Emulation
) -> Callable[[object], str]:
    """What says which queue pair something is of, if there are several."""
    count = reference.connection.pairs

    def of_pair(thing: object) -> str:
        if count == 1:
            return ""
        pair = -1
        if isinstance(thing, tuple):
            pair = owners.get(thing[:2], -1)
        elif isinstance(thing, bytes) and difference.kind is Kind.ANSWER:
            packet = parsed(thing)
            first = reference.symbols["peer_qpn"] - reference.pairs.index(reference.qp)
            pair = -1 if packet is None else packet.bth.dest_qp - first
        return f" on queue pair {pair + 1}" if 0 <= pair < count else ""

    return of_pair


def _outcome(
    difference: Difference, wire: Wire, is_managed: bool, of_pair: Callable[[object], str]
) -> tuple[list[str], list[str]]:
    """What was expected and what came, in words, from where they differ."""
    kind, expected, got = difference.kind, list(difference.expected), list(difference.got)
    if kind in FATAL:
        return ["a device that goes on"], [one_line(each) for each in got if each]
    if kind == Kind.EVENT and is_managed:  # after the events the tables of the manager
        return tables_text(expected, got)
    if kind is Kind.COMPLETION and is_managed and difference.times[0]:
        due, until = (exact_duration_text(each[0]) for each in difference.times)
        name = f"connection manager: {EventKind.TIMEWAIT_EXIT.name}"
        return [f"{name} not before {due}"], [f"{name} before {until}"]
    if kind in (Kind.ANSWER, Kind.TIME) and is_managed and (times := _with_times(difference, wire)):
        return times
    pairs = list(zip(expected, got, strict=False))
    same = next((i for i, (one, other) in enumerate(pairs) if one != other), len(pairs))
    if kind == Kind.MEMORY:
        same = 0
    words = [[_thing(kind, each, wire) for each in things[same:]] for things in (expected, got)]
    if kind == Kind.COMPLETION and is_managed and words[0][:1] == words[1][:1] != []:
        for texts, more in zip(words, unequal_parts(*pairs[same]), strict=True):
            texts[0] += more
    if kind == Kind.ANSWER and words[0][:1] == words[1][:1] != []:
        wrong = wrong_fields(difference)
        fields = wrong[same]
        for at, pair in enumerate(pairs[same:]):
            if words[0][at] != words[1][at]:
                continue
            for part, name in wrong[same + at]:
                for texts, value in zip(words, _values(pair, part, name), strict=True):
                    texts[at] += f" {part}.{name}{value}"
        for texts, data in zip(words, [] if fields else _data(pairs[same]), strict=False):
            texts[0] += data
    for texts, things in zip(words, (expected, got), strict=True):
        texts[:] = [
            f"{text}{of_pair(thing)}" for text, thing in zip(texts, things[same:], strict=True)
        ]
    for texts, events in zip(words, (difference.unreported, difference.reported), strict=True):
        texts += [_thing(Kind.COMPLETION, each, wire) for each in events]
    for texts, others in zip(words, difference.beside, strict=True):
        texts += [f"{_beside(each, wire)}{of_pair(each)}" for each in others]
    return _after(same, *words)


def _after(same: int, expected: list[str], got: list[str]) -> tuple[list[str], list[str]]:
    """Both in words, behind those that were as expected."""
    if not same:
        return expected or ["nothing"], got or ["nothing"]
    right = "the first as expected" if same == 1 else f"the first {same} as expected"
    words = expected, got
    after = [[f"then {each[0]}", *each[1:]] if each else ["then nothing"] for each in words]
    return [right, *after[0]], [right, *after[1]]


def _with_times(difference: Difference, wire: Wire) -> tuple[list[str], list[str]] | None:
    """What a manager sends in a wait, and when, from the first that comes at another time.

    `None` where that is not known, or fields of a message are wrong.
    """
    expected, got = difference.expected, difference.got
    if difference.kind is Kind.TIME:
        sides: list[list[tuple[object, object]]] = [
            list(zip(difference.frames, times, strict=False)) for times in (expected, got)
        ]
    else:
        both = zip((expected, got), difference.times, strict=True)
        sides = [list(zip(frames, times, strict=False)) for frames, times in both]
    places = enumerate(zip_longest(*sides))
    found = next(((at, pair) for at, pair in places if pair[0] != pair[1]), None)
    if found is None:
        return None  # the times are not known
    first, (one, other) = found
    if one and other and one[0] != other[0]:
        frames = [each for each in (one[0], other[0]) if isinstance(each, bytes)]
        if len(set(map(verdict, frames))) == 1:
            return None  # fields of it are wrong
    texts = [
        [
            f"{_said(frame, wire, False)} at {exact_duration_text(time)}"
            for frame, time in each[first:]
            if isinstance(frame, bytes) and isinstance(time, int)
        ]
        for each in sides
    ]
    return _after(first, *texts)


def _data(frames: tuple[object, object]) -> list[str]:
    """The data of two frames from where it differs; empty for the same data."""
    try:
        ours, theirs = (bytes(_packet(each).payload) for each in frames)
    except DecodeError:
        return ["", ""]
    pairs = enumerate(zip(ours, theirs, strict=False))
    first = next((at for at, (one, other) in pairs if one != other), None)
    if first is None:
        return ["", ""]
    cut = slice(first, first + SHOWN_DATA)
    return [f" data from byte {first}: {data[cut].hex(' ')}" for data in (ours, theirs)]


def _packet(frame: object) -> WholePacket:
    assert isinstance(frame, bytes)
    return WholePacket.parse(frame)


def _values(frames: tuple[object, object], part: str, name: str) -> tuple[str, str]:
    """The values of a field in two frames, with what is before them; of bytes from the first that
    differs.
    """
    one, other = (getattr(part_of(_packet(each), part), name) for each in frames)
    if isinstance(one, bytes) and isinstance(other, bytes):
        first = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
        where = f" from byte {first}: " if first else "="
        cut = slice(first, first + SHOWN_DATA)
        return f"{where}{one[cut].hex(' ')}", f"{where}{other[cut].hex(' ')}"
    texts = [field_text(name, each) for each in (one, other)]
    if any(each.startswith("0x") for each in texts):
        texts = [hex(one), hex(other)]
    return f"={texts[0]}", f"={texts[1]}"


def _wire(comparison: Comparison) -> Wire:
    reference, symbols = comparison.reference, comparison.reference.symbols
    connection = reference.connection
    return Wire(
        route=comparison.binding.route,
        qpn=symbols["qpn"],
        peer_qpn=symbols["peer_qpn"],
        pkey=symbols["pkey"],
        mtu=connection.mtu,
        rq_psn=connection.rq_psn,
        sq_psn=connection.sq_psn,
        va=symbols["va"],
        rkey=symbols["rkey"],
    )


def _said(frame: Frame, wire: Wire, to_device: bool) -> str:
    try:
        packet = WholePacket.parse(frame, strict=False)
    except DecodeError as error:
        return f"{len(frame)} bytes: {error}"
    if packet.bth.dest_qp == QP1:
        text = verdict(frame)
    else:
        text = describe(packet, wire, to_device=to_device)
    status = packet.icrc_status().value
    return text if status == "good" else f"{text} icrc {status}"


def _thing(kind: str, thing: object, wire: Wire) -> str:
    """One of the things in which a target differs."""
    if kind == Kind.ANSWER and isinstance(thing, bytes):
        return _said(thing, wire, False)
    if kind == Kind.COMPLETION and isinstance(thing, tuple):
        return completion_text(thing)
    if kind == Kind.TIME and isinstance(thing, int):
        return f"at {exact_duration_text(thing)}"
    if kind == Kind.EVENT and isinstance(thing, int):
        return EventType(thing).name
    if kind == Kind.MEMORY and isinstance(thing, int):
        return f"at {place_of(thing)[0]}"
    if kind == Kind.MEMORY and isinstance(thing, bytes):
        return thing.hex()
    return str(thing)


def _beside(thing: object, wire: Wire) -> str:
    """A completion, or an event, of the step in which packets differ."""
    if isinstance(thing, tuple):
        return _thing(Kind.COMPLETION, thing, wire)
    return f"event {_thing(Kind.EVENT, thing, wire)}"


def place_of(at: int) -> tuple[str, int]:
    """A byte of all that a device has registered: `inbox.va+8`, and how many are left there."""
    name, start, end = "va", 0, SIZE
    for region, size, _ in REGIONS:
        if at < end:
            break
        name, start, end = f"{region}.va", end, end + size
    return f"{name}+{at - start}", end - at


def completion_text(completion: Completion) -> str:
    """A completion, or an event of the connection manager, in words, with what is valid in it."""
    queue, number, status, *rest = completion
    if queue not in (SENDS, RECEIVES):
        return f"connection manager: {EventKind(number).name} {rest[0] or ''}".rstrip()
    text = f"{('send', 'recv')[queue]} wr_id={number} {WCStatus(status).name}"
    if status or not rest:
        return f"{text} qp_num={completion[QP_NUM]}" if len(completion) > QP_NUM else text
    return " ".join([text, WCOpcode(rest[0]).name, *_valid_fields(queue, rest)])


def _valid_fields(queue: int, rest: Sequence[int]) -> Iterator[str]:
    """The fields of a successful completion behind its opcode, but those that are not valid."""
    names = ("byte_len", "imm_data", "flags", "solicited", "qp_num", "src_qp")
    values = dict(zip(names, rest[1:], strict=False))
    flags = values.get("flags", 0)
    for name, value in values.items():
        if name == "byte_len" and (queue == RECEIVES or value):
            yield f"byte_len={value}"
        elif name == "imm_data" and flags & WCFlags.WITH_INV:
            yield f"invalidated_rkey=0x{value:x}"
        elif name == "imm_data" and flags & WCFlags.WITH_IMM:
            yield f"imm_data=0x{value:x}"
        elif name == "flags" and queue == RECEIVES:
            yield f"flags={flag_names(WCFlags, flags)}"
        elif name == "src_qp" and (value or flags & WCFlags.GRH):
            yield f"src_qp=0x{value:x}"
        elif name in ("solicited", "qp_num"):
            yield f"{name}={value}"
