"""Findings: a difference, the shortest case that shows it, and the rule that it breaks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from ibwire.cm.messages import decode
from ibwire.fuzz.case import Case, Packet, Step, Wait, opcode_text, packet_text, step_text
from ibwire.fuzz.judge.comparison import KINDS, Agrees, Difference, Kind
from ibwire.fuzz.judge.exclusions import FLAGS
from ibwire.fuzz.vocabulary.cm.coverage import manager_verdict
from ibwire.rc.unreliable import QP1
from ibwire_layers import syndrome as aeth
from ibwire_layers.errors import DecodeError
from ibwire_layers.headers import AETH, RETH
from ibwire_layers.mad import MAD
from ibwire_layers.opcodes import INFO, Operation, Service
from ibwire_layers.packet import CrcStatus, RoCEv2Route
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.schema import Header
from ibwire_layers.syndrome import AckKind

MAXIMUM_TEXT = 200
"""Characters of the message of a crash."""


@dataclass(slots=True)
class Finding:
    """A difference that is not allowed."""

    number: int
    bucket: str
    """Its name."""
    case: Case
    """The shortest case that shows it."""
    original: Case
    """The case as found."""
    difference: Difference
    """The difference in the shortest case."""
    packet: int
    """Number of the packet of the run that showed it, from 1."""
    rule: str
    about: str = ""
    """The known deviation that it is."""
    group: str = ""
    """Equal for findings that probably have one cause."""
    causes: tuple[str, ...] = ()
    """Beside the group: those with one of them in common probably have one cause, too."""


NO_PACKET = "a frame that is no packet"
"""The verdict on a frame that cannot be read."""


@lru_cache(1 << 10)
def verdict(frame: bytes) -> str:
    """A frame in words, without its numbers: `ACK`, `NAK INVALID_REQUEST`, `FETCH_ADD`."""
    try:
        packet = WholePacket.parse(frame, strict=False)
    except DecodeError:
        return NO_PACKET
    if packet.fault:
        return NO_PACKET if packet.bth.opcode in INFO else opcode_text(packet.bth.opcode)
    if packet.bth.dest_qp == QP1:
        return manager_verdict(packet.payload)
    name = opcode_text(packet.bth.opcode)
    ack = packet.extension(AETH)
    if ack is not None and INFO[packet.bth.opcode].operation is Operation.ACKNOWLEDGE:
        kind = aeth.kind(ack.syndrome)
        return "ACK" if kind is AckKind.ACK else aeth.describe(ack.syndrome)
    return name


def verdicts(frames: Sequence[object]) -> str:
    """Several frames in words, each kind once."""
    names = dict.fromkeys(verdict(each) for each in frames if isinstance(each, bytes))
    return ", ".join(names) or "silence"


def bucket_of(difference: Difference, step: Step, state: str) -> str:
    """Equal for differences that probably have one cause."""
    what = packet_text(step) if isinstance(step, Packet) else step_text(step).split(" ")[0]
    what = "a wait" if isinstance(step, Wait) else what
    if difference.kind == Kind.ANSWER:
        expected, got = (each.partition(" wait=")[0] for each in first_verdicts(difference))
        if expected != got:
            return f"{what} in {state}: {got} instead of {expected}"
        fields = fields_at_fault(difference)
        fields += ["payload"] if has_other_payload(difference) else []
        if not fields:  # it asks for another wait
            return f"{what} in {state}: another {got}"
        return f"{what} in {state}: another {got} ({', '.join(fields)})"
    if difference.kind == Kind.CRASH:
        return f"{what}: {one_line(difference.got[0])}"
    fields = _fields_of_completion(difference)
    kind = f"{difference.kind} ({', '.join(fields)})" if fields else str(difference.kind)
    return f"{what} in {state}: {kind}"


def one_line(thing: object) -> str:
    """The message of a crash in one printable line."""
    text = "".join(each if each.isprintable() else " " for each in str(thing)[:MAXIMUM_TEXT])
    return " ".join(text.split())


def signature(difference: Difference) -> tuple[str, str, str]:
    """The part of a difference that stays equal while a case is made shorter."""
    if difference.kind == Kind.CRASH:
        return "crash", "", str(difference.got[0])
    expected, got = _first_in_place(difference)
    plain = expected.removeprefix(_XRC), got.removeprefix(_XRC)
    if plain[0] == plain[1]:  # or their service is what differs
        return difference.kind, expected, got
    return difference.kind, *plain


def _first_in_place(difference: Difference) -> tuple[str, str]:
    """The same, but an answer too many, or one that is missing, differs from silence.

    Whether it comes before other answers of the same step does not matter then.
    """
    expected, got = difference.expected, difference.got
    if len(expected) != len(got):
        pairs = zip(expected, got, strict=False)
        at = next((place for place, (one, other) in enumerate(pairs) if one != other), -1)
        if at >= 0 and expected[at:] == got[at + 1 :]:
            return verdicts([]), verdicts([got[at]])
        if at >= 0 and expected[at + 1 :] == got[at:]:
            return verdicts([expected[at]]), verdicts([])
    return first_verdicts(difference)


def first_verdicts(difference: Difference) -> tuple[str, str]:
    """The expected and the received answer where they first differ."""
    for pair in zip_longest(difference.expected, difference.got):
        if pair[0] != pair[1]:
            expected, got = (verdicts([] if each is None else [each]) for each in pair)
            return expected, got
    return "", ""


def kind_of(difference: Difference, step: Step) -> str:
    """Equal for more differences than `bucket_of`: whatever the opcodes and the state are."""
    if difference.kind == Kind.CRASH:
        return f"{difference.kind}: {one_line(difference.got[0])}"
    direction = type(step).__name__
    if isinstance(step, Packet):
        direction = _class_of(opcode_text(step.opcode))
    expected, got = first_verdicts(difference)
    words = [difference.kind, direction, _class_of(expected), _class_of(got)]
    if difference.kind == Kind.COMPLETION:
        words += map(_statuses, (difference.expected, difference.got))
        words += _fields_of_completion(difference)
    if expected == got:
        fields = {each for answer in wrong_fields(difference) for each in answer}
        words += sorted(f"{part}.{name}" for part, name in fields)
    return ", ".join(words)


def _fields_of_completion(difference: Difference) -> list[str]:
    """The fields in which the first wrong completion of a queue pair differs, if not its status."""
    is_of_queue = all(
        isinstance(each, tuple) and each[0] in _QUEUES
        for each in (*difference.expected, *difference.got)
    )
    if difference.kind != Kind.COMPLETION or not is_of_queue:
        return []
    fields = fields_at_fault(difference)
    return [] if "completion.status" in fields else fields


def _statuses(completions: Sequence[object]) -> str:
    """The statuses of completions, each once."""
    found = dict.fromkeys(each[2] for each in completions if isinstance(each, tuple))
    return " ".join(map(str, found)) or "none"


def _class_of(verdict: str) -> str:
    """A verdict without its opcode: a request or an answer."""
    if "NAK" in verdict or verdict in ("", "silence", NO_PACKET):
        return verdict.partition(" wait=")[0]
    return "answer" if "RESPONSE" in verdict or "ACK" in verdict else "request"


def wrong_fields(difference: Difference) -> list[list[tuple[str, str]]]:
    """For each answer of the last step the fields in which the target differs, with headers."""
    if difference.kind != Kind.ANSWER:
        return []
    unchecked = difference.unchecked
    return [
        [each for each in _wrong_fields(one, other) if ".".join(each) not in unchecked]
        for one, other in zip(difference.expected, difference.got, strict=False)
    ]


def agreeing_but(unchecked: Collection[str]) -> Agrees:
    """Whether two frames, or completions, agree but for these fields; a wrong frame has to be of
    the right kind.
    """

    def agrees(one: object, other: object) -> bool:
        if one == other:
            return True
        if isinstance(one, tuple) and isinstance(other, tuple):
            return set(_parts_at_fault(one, other)) <= set(unchecked)
        if (
            not isinstance(one, bytes)
            or not isinstance(other, bytes)
            or len(one) != len(other)
            or verdict(one) != verdict(other)
        ):
            return False
        fields = {".".join(each) for each in _wrong_fields(one, other)}
        is_known = bool(fields) and fields <= set(unchecked)
        return _is_free(one, other) or (is_known and _payload(one) == _payload(other))

    return agrees


def are_same(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether frames are the same, but for fields in which requests may differ."""
    return len(one) == len(other) and all(
        ours == theirs or _is_free(ours, theirs) or _is_free(theirs, ours)
        for ours, theirs in zip(one, other, strict=True)
    )


def _payload(frame: bytes) -> bytes:
    return bytes(WholePacket.parse(frame).payload)


def fields_at_fault(difference: Difference) -> list[str]:
    """The fields in which the first wrong answer differs, if it is of the right kind otherwise."""
    expected, got = first_verdicts(difference)
    if difference.kind == Kind.COMPLETION and len(difference.expected) == len(difference.got):
        pairs = zip(difference.expected, difference.got, strict=True)
        parts = next((_parts_at_fault(*pair) for pair in pairs if pair[0] != pair[1]), [])
        return [each for each in parts if each not in difference.unchecked]
    if difference.kind != Kind.ANSWER or expected != got:
        return []
    fields = next(filter(None, wrong_fields(difference)), [])
    return list(dict.fromkeys(".".join(each) for each in fields))


def _parts_at_fault(one: object, other: object) -> list[str]:
    return [f"completion.{name}" for name in wrong_parts(one, other)]


def wrong_parts(one: object, other: object) -> list[str]:
    """The parts in which two completions differ."""
    assert isinstance(one, tuple)
    assert isinstance(other, tuple)
    parts = zip(PARTS_OF_COMPLETION, one, other, strict=False)
    return [name for name, due, got in parts if due != got]


PARTS_OF_COMPLETION = (
    *("queue", "wr_id", "status", "opcode", "byte_len", "imm_data", "flags"),
    *("solicited", "qp_num", "src_qp"),
)


def has_other_payload(difference: Difference) -> bool:
    """Whether the payload differs in the first answer that differs."""
    pairs = zip(difference.expected, difference.got, strict=False)
    frames = next((pair for pair in pairs if pair[0] != pair[1]), None)
    if frames is None or not all(isinstance(each, bytes) for each in frames):
        return False
    try:
        one, other = (_payload(each) for each in frames if isinstance(each, bytes))
    except DecodeError:
        return False
    return one != other


def part_of(packet: WholePacket, part: str) -> Header | None:
    """The header of a packet by its key."""
    if part in _OUTER:
        return getattr(packet.route, part) if isinstance(packet.route, RoCEv2Route) else None
    headers = (packet.bth, *packet.extensions, *_management(packet))
    return next((header for header in headers if part == header.KEY), None)


def _management(packet: WholePacket) -> Sequence[Header]:
    """The parts of a message of communication management."""
    received = decode(packet.payload) if packet.bth.dest_qp == QP1 else None
    return () if received is None else (MAD.unpack(packet.payload), received.message)


def _wrong_fields(one: object, other: object) -> Iterator[tuple[str, str]]:
    """The fields in which a packet is wrong."""
    found = _compared(one, other)
    if found is not None:
        fields, free = found
        yield from (each for each in fields if ".".join(each) not in free)


def _compared(one: object, other: object) -> tuple[list[tuple[str, str]], set[str]] | None:
    """The fields in which two packets differ, and those in which the second one may."""
    assert isinstance(one, bytes)
    assert isinstance(other, bytes)
    try:
        ours, theirs = WholePacket.parse(one), WholePacket.parse(other)
    except DecodeError:
        return None
    fields = []
    inner = (*ours.extensions, *_management(ours))
    for part in ("bth", *(header.KEY for header in inner), *_OUTER):
        expected, got = part_of(ours, part), part_of(theirs, part)
        if expected is None or type(expected) is not type(got):
            continue
        for entry in expected.FIELDS:
            is_derived = f"{part}.{entry.name}" in _DERIVED
            if not is_derived and getattr(expected, entry.name) != getattr(got, entry.name):
                fields.append((part, entry.name))
    return fields, _free_fields(ours, theirs)


def _is_free(one: object, other: object) -> bool:
    """Whether a packet differs only where it may."""
    if not isinstance(one, bytes) or not isinstance(other, bytes) or len(one) != len(other):
        return False
    found = _compared(one, other)
    if found is None or _payload(one) != _payload(other):
        return False
    names = {".".join(each) for each in found[0]}
    is_right = WholePacket.parse(other).icrc_status() is CrcStatus.GOOD
    return bool(names) and names <= found[1] and is_right


def _free_fields(ours: WholePacket, theirs: WholePacket) -> set[str]:
    """Fields in which a request may differ from a right one.

    AckReq may be set in any packet (IBA 9.7.3), but of UC and UD; a WRITE or READ of no bytes has
    any address and R_Key (C9-88).
    """
    form, found = INFO.get(theirs.bth.opcode), set[str]()
    if form is None or form.is_response or ours.bth.opcode != theirs.bth.opcode:
        return found
    if form.service in _ASKING and theirs.bth.ack_req > ours.bth.ack_req:
        found.add("bth.ack_req")
    reths = ours.extension(RETH), theirs.extension(RETH)
    if form.operation in _OF_NO_BYTES and not any(each is None or each.dma_len for each in reths):
        found |= {"reth.va", "reth.rkey"}
    return found


_OF_NO_BYTES = (Operation.WRITE, Operation.READ)
_ASKING = (Service.RC, Service.XRC)

_QUEUES = (0, 1)
"""The first part of completions: of sends and of receives; events have another one."""

_XRC = "XRC_"
"""What the opcodes of XRC begin with."""

_OUTER = ("eth", "ip", "udp")
_DERIVED = ("ip.checksum", "ip.total_length", "udp.length", "udp.checksum")

Distance = tuple[int, int, int, int]


def distance(difference: Difference) -> Distance:
    """The distance of a target from a reference: smaller the later and the less they differ."""
    lengths = abs(len(difference.expected) - len(difference.got))
    numbers = sum(
        _differing(one, other)
        for one, other in zip(difference.expected, difference.got, strict=False)
    )
    return -difference.step, -KINDS.index(difference.kind), lengths, numbers


def _differing(one: object, other: object) -> int:
    """Bytes without the ICRC, which always differs, or numbers, of flags each; or whole things."""
    if isinstance(one, bytes) and isinstance(other, bytes):
        pairs = zip(one[:-4], other[:-4], strict=False)
        return sum(a != b for a, b in pairs) + abs(len(one) - len(other))
    if isinstance(one, tuple) and isinstance(other, tuple):
        differing = [place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
        flags = (one[FLAGS] ^ other[FLAGS]).bit_count() - 1 if FLAGS in differing else 0
        return len(differing) + flags + abs(len(one) - len(other))
    return int(one != other)
