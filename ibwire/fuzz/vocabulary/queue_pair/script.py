"""A case as a drill script: the same exchange, with the reference's responses as expected ones.

A case may have been found against a reference that makes some choices otherwise than its
profile. The script accepts either. It states the significant fields of a response; of the last
one also every field in which the target differed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from ibwire.base.node import Frame
from ibwire.base.units import NS, Time
from ibwire.drill.language.literals import MAXIMUM_PAYLOAD, short_name
from ibwire.drill.packets import icrc_text, pattern
from ibwire.fuzz.case import (
    GOOD,
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Pause,
    Post,
    Receive,
    Step,
    Value,
    Wait,
    is_plain,
    step_text,
    value_text,
)
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import part_of, wrong_fields
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.recording import REGIONS, place_of
from ibwire.fuzz.targets.emulated_device import (
    ADDRESS,
    INBOX,
    OUTBOX,
    PEER_ADDRESS,
    PEER_RKEY,
    PEER_VA,
    SIZE,
    SMALL,
    Completion,
    Emulation,
)
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols, encode
from ibwire.rc.attributes import EventType
from ibwire.rc.memory import Access
from ibwire.rc.profile import Profile
from ibwire.rc.work import WCOpcode, WCStatus, WROpcode
from ibwire_layers import headers as h
from ibwire_layers import syndrome as aeth
from ibwire_layers.errors import DecodeError
from ibwire_layers.opcodes import INFO
from ibwire_layers.outer import UDP, Ethernet, IPv4
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.psn import MASK, distance
from ibwire_layers.schema import Header
from ibwire_layers.syndrome import AckKind, NakCode


class CannotSay(Exception):
    """A drill script cannot express a case; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What comes of a step on a device."""

    psn: int
    """Of the packet that it receives."""
    symbols: Symbols
    accepted: bool
    """Whether the device has taken a request that its application posts."""
    answers: Sequence[tuple[Time, Frame]]
    """What it sends, and how long after the step."""
    completions: Sequence[Completion]
    events: Sequence[int]


def script(case: Case, difference: Difference, rule: str, section: str = "") -> str:
    """The script; raises `CannotSay`.

    difference: of the last step. rule: the text of the first comment. section: the source of
    the rule.
    """
    if any(isinstance(step, Connect) for step in case.steps):
        raise CannotSay("it has several connections, one after the other")
    if not is_plain(case):
        raise CannotSay("a script of ibwire fuzz has one RC queue pair and one SGE a request")
    usual = list(moments(case, profile_of(case.profile, {})))
    chosen = list(moments(case, profile_of(case.profile, case.choices)))
    writer = Writer(case.connection)
    writer.receive(case.connection.receives)
    for number, step in enumerate(case.steps):
        is_last = number == len(case.steps) - 1
        writer.step(step, usual[number], chosen[number], difference if is_last else None)
    lines = [f"// {line}" for line in rule.split("\n")]
    lines += [f"section {section}"] * bool(section)
    return "\n".join([*lines, "", *_head(case, writer.lines), "", *writer.lines]) + "\n"


def moments(case: Case, profile: Profile) -> Iterator[Moment]:
    """A case carried out on one device."""
    device = Emulation(case.connection, profile)
    binding = Binding(PEER_ADDRESS, ADDRESS)
    for step in case.steps:
        start, psn, accepted, held = device.now, 0, True, False
        answers: list[tuple[Time, Frame]] = []
        if isinstance(step, Packet):
            device.symbols["ssn"] = device.oldest_ssn
            base = device.psn(step.psn[0])
            psn, held = base + step.psn[1] & MASK, step.held
            device.receive(binding.frame(step, base, device.symbols))
        elif isinstance(step, Post):
            accepted = device.post_send(step)
        elif isinstance(step, Receive):
            device.post_recv(step.count)
        elif isinstance(step, Wait):
            answers = [(when - start, frame) for when, frame in device.wait(step.time)]
        if held:
            yield Moment(psn, dict(device.symbols), accepted, (), (), ())
            continue
        if not isinstance(step, Wait):
            answers = [(0, frame) for frame in device.answers()]
        found = device.completions(), device.events()
        yield Moment(psn, dict(device.symbols), accepted, answers, *found)


def _head(case: Case, body: Sequence[str]) -> Iterator[str]:
    """The connection, and the memory that the following lines use."""
    connection, text = case.connection, "\n".join(body)
    words = [f"size={SIZE} max_recv_wr=4096 send_cqe=4096 recv_cqe=4096"]
    for entry in fields(Connection):
        value = getattr(connection, entry.name)
        if entry.name == "access" and value != entry.default:
            words.append(f"access={_access(value)}")
        elif entry.name in ("mtu", "rq_psn", "sq_psn", "timeout") or (
            value != entry.default and entry.name not in ("access", "receives", "room")
        ):
            words.append(f"{entry.name}={value}")
    yield f"  qp {' '.join(words)}"
    # Keys count up as regions are registered: one that is made from another needs them all.
    every = any(
        name.endswith("rkey") and (isinstance(value, int) or value[1])
        for step in case.steps
        if isinstance(step, Packet)
        for name, value in step.fields.items()
    )
    at = SIZE
    stores = [f"  store va len={SIZE} at=0"]
    for name, size, access in REGIONS:
        if every or f"{name}." in text:
            yield f"  mr {name} len={size} access={access}"
            stores.append(f"  store {name}.va len={size} at={at}")
        at += size
    if every or "mw." in text:
        yield f"  mw mw va=va+{2 * SMALL} len={SMALL} access=REMOTE_WRITE+REMOTE_READ"
    yield from stores


class Writer:
    """The lines of a script."""

    def __init__(self, connection: Connection) -> None:
        self.lines: list[str] = []
        self._connection = connection
        self._posted = self._received = 0

    def step(
        self, step: Step, usual: Moment, chosen: Moment, difference: Difference | None
    ) -> None:
        """A step and what comes of it; difference: that of the last step."""
        if isinstance(step, Packet):
            self._line(f"  < {self._said(step, usual)}", step.why)
            if usual.psn != chosen.psn:
                raise CannotSay("its PSNs depend on a choice of the device")
        elif isinstance(step, Post):
            self._post(step, usual)
        elif isinstance(step, Receive):
            self.receive(step.count)
        elif isinstance(step, Pause):
            raise CannotSay("drill has no PFC frames")
        self._answers(step, usual, chosen, difference)
        self._completions(usual, chosen)
        if usual.events != chosen.events:
            raise CannotSay("its events depend on a choice of the device")
        self.lines += [f"  event {EventType(event).name}" for event in usual.events]
        if difference is not None and difference.kind == Kind.MEMORY:
            self.lines.append(f"  memory {_memory(difference)}")

    def _line(self, text: str, comment: str = "") -> None:
        self.lines.append(f"{text}  // {comment}" if comment else text)

    # What the device receives and its application does.

    def _said(self, packet: Packet, moment: Moment) -> str:
        if packet.length > MAXIMUM_PAYLOAD:
            raise CannotSay(f"a packet of {packet.length} bytes")
        info, symbols = INFO.get(packet.opcode), moment.symbols
        kinds: list[type[Header]] = [h.BTH, *(info.headers if info else ())]
        is_response = info is not None and info.is_response
        words = [short_name(packet.opcode), self._psn(moment.psn, own=is_response)]
        given = dict(packet.fields)
        words.append("!ack" if given.pop("bth.ack_req", 1) == 0 else "ack")
        for kind, name, usual in _UNLIKE_DRILL:
            if kind in kinds:
                given.setdefault(name, usual)
        known = {f"{kind.KEY}.{entry.name}": entry.width for kind in kinds for entry in kind.FIELDS}
        for part, header in _OUTER.items():
            known |= {f"{part}.{entry.name}": entry.width for entry in header.FIELDS}
        words += [
            f"{name}={_value(value, known[name], symbols)}"
            for name, value in given.items()
            if name in known
        ]
        words += [f"len={packet.length}"] * bool(packet.length)
        words += [f"at={packet.at}"] * bool(packet.at and packet.length)
        words += odd_ends(packet, len(encode(replace(packet, cut=None), 0, symbols)))
        return " ".join(words)

    def _psn(self, psn: int, *, own: bool) -> str:
        """A PSN, counted from the first of the requests: its own, or those that it receives."""
        ahead = distance(self._connection.sq_psn if own else self._connection.rq_psn, psn)
        return f"psn{ahead:+d}" if ahead else "psn"

    def _post(self, post: Post, moment: Moment) -> None:
        if not moment.accepted:
            self.lines.append(f"  // {step_text(post)}: no device takes that")
            return
        opcode = WROpcode(post.opcode)
        length = 8 if opcode in _ATOMICS else min(post.length, OUTBOX)
        start = self._posted * 256 % (OUTBOX - length + 1) & ~7
        words = [f"post_send {opcode.name} wr_id={self._posted} len={length}"]
        words += [f"addr=outbox.va+{start} lkey=outbox.lkey"] * bool(length)
        words.append(f"remote_addr={PEER_VA + post.remote:#x} rkey={PEER_RKEY:#x}")
        words += [text for name, text in _POSTS.items() if name in opcode.name]
        words += ["flags=NONE"] * (not post.signaled)
        self.lines.append("  " + " ".join(words))
        self._posted += 1

    def receive(self, count: int) -> None:
        """Receive requests, round the inbox."""
        room = min(self._connection.room, INBOX)
        slots = INBOX // room if room else count
        end = self._received + count
        while self._received < end:
            first = self._received
            last = min(end, first - first % slots + slots) - 1
            place = f"inbox.va+$i*{room}" + f"-{first - first % slots}*{room}" * (first >= slots)
            where = f"len={room} addr={place} lkey=inbox.lkey" if room else "len=0"
            self.lines += [
                f"  for i in {first}..{last} {{",
                f"    post_recv wr_id=$i {where}",
                "  }",
            ]
            self._received = last + 1

    # What comes of it.

    def _answers(
        self, step: Step, usual: Moment, chosen: Moment, difference: Difference | None
    ) -> None:
        wrong = [] if difference is None else wrong_fields(difference)
        clocks = [0, 0]
        pairs = list(zip(usual.answers, chosen.answers, strict=False))
        for number, ((one, frame), (other, its)) in enumerate(pairs):
            extra = wrong[number] if number < len(wrong) else ()
            texts = dict.fromkeys([self._answer_line(frame, extra), self._answer_line(its, extra)])
            gaps = [one - clocks[0], other - clocks[1]]
            clocks = [one, other]
            time = _time(min(gaps)) + f"..{_time(max(gaps))}" * (gaps[0] != gaps[1])
            before = f"  +{time} " if any(gaps) else "  "
            self.lines.append(f"{before}> {' | '.join(texts)}")
        longer = max(usual.answers, chosen.answers, key=len)
        for when, frame in longer[len(pairs) :]:
            if when:
                raise CannotSay("what the device sends in time depends on a choice")
            self.lines.append(f"  >? {self._answer_line(frame, ())}")
        if isinstance(step, Wait):
            rest = step.time - max(clocks)
            self.lines += [f"  +{_time(rest)} silence"] * (rest >= NS)
        elif not usual.answers and not (isinstance(step, Packet) and step.held):
            self.lines += ["  silence"] * (isinstance(step, Packet) or difference is not None)

    def _answer_line(self, frame: Frame, extra: Sequence[tuple[str, str]]) -> str:
        try:
            packet = WholePacket.parse(frame)
        except DecodeError as error:
            raise CannotSay(f"a response that is not a packet: {error}") from None
        info = INFO.get(packet.bth.opcode)
        is_response = info is not None and info.is_response
        words = [short_name(packet.bth.opcode), self._psn(packet.bth.psn, own=not is_response)]
        said = {"bth.psn"}
        for header in packet.extensions:
            for entry in header.FIELDS:
                name = f"{header.KEY}.{entry.name}"
                if name == "aeth.syndrome":
                    words += _syndrome(getattr(header, entry.name))
                elif name in _COUNTS:
                    words.append(f"{name}={value_text(getattr(header, entry.name))}")
                    said.add(name)
        for part, name in extra:
            its = part_of(packet, part)
            if its is not None and f"{part}.{name}" not in (*said, "bth.opcode"):
                if part == "aeth" and name == "syndrome":
                    words = [word for word in words if not word.startswith(("nak=", "rnr="))]
                words.append(f"{part}.{name}={value_text(getattr(its, name))}")
        payload = packet.payload
        at = _PATTERN.find(payload) if len(payload) >= 4 else -1
        if at >= 0:
            words.append(f"len={len(payload)} at={at}")
        elif payload:
            words.append(f'data="{payload.hex()}"')
        return " ".join(words)

    def _completions(self, usual: Moment, chosen: Moment) -> None:
        if len(usual.completions) != len(chosen.completions):
            raise CannotSay("how much completes depends on a choice of the device")
        for one, other in zip(usual.completions, chosen.completions, strict=True):
            if one[:2] != other[:2] or len(one) != len(other):
                raise CannotSay("what completes depends on a choice of the device")
            queue, number = ("send", "recv")[one[0]], one[1]
            words = [f"  poll {queue} wr_id={number}"]
            for name, first, second in zip(_COMPLETION, one[2:], other[2:], strict=False):
                if name == "status" and first == second == WCStatus.SUCCESS:
                    continue
                texts = dict.fromkeys(
                    _completion(name, value, usual.symbols) for value in (first, second)
                )
                words.append(f"{name}=" + ("{%s}" if len(texts) > 1 else "%s") % ", ".join(texts))
            self.lines.append(" ".join(words))


def odd_ends(packet: Packet, whole: int) -> list[str]:
    """Words for unusual bytes after the payload. whole: bytes from the BTH on, if none are cut."""
    words = [f"pad={packet.pad}"] * (packet.pad is not None)
    words += [f"more={packet.more}"] * bool(packet.more)
    if packet.cut is not None and packet.cut < whole:
        words.append(f"cut={packet.cut}")
    if packet.icrc != GOOD:
        words.append(f"icrc={icrc_text(packet.icrc)}")
    return words


def _value(value: Value, width: int, symbols: Symbols) -> str:
    """A value with its name in drill, cut to its field."""
    if isinstance(value, int):
        return value_text(value & (1 << width) - 1)
    if value[0] not in symbols:
        raise CaseError(f"this connection has no {value[0]}")
    number = symbols[value[0]] + value[1]
    if value[0] == "ssn" or not 0 <= number < 1 << width:
        return value_text(number & (1 << width) - 1)
    return value_text(value)


def _syndrome(value: int) -> list[str]:
    """A positive answer needs no words, and its credits do not count."""
    kind, code = aeth.kind(value), aeth.code(value)
    if kind is AckKind.ACK:
        return []
    if kind is AckKind.RNR_NAK:
        return [f"rnr={code}"]
    if kind is AckKind.NAK and code in set(NakCode):
        return [f"nak={NakCode(code).name}"]
    return [f"syndrome={value:#x}"]


def _completion(name: str, value: int, symbols: Symbols) -> str:
    if name == "status":
        return WCStatus(value).name
    if name == "opcode":
        return WCOpcode(value).name
    if name == "imm_data":  # of a SEND WITH INVALIDATE the invalidated key
        keys = {number: key for key, number in symbols.items() if key.endswith("rkey")}
        return keys.get(value, hex(value))
    return str(value)


def _memory(difference: Difference) -> str:
    """The bytes that the memory of the device should hold where it first does not."""
    at, data = difference.expected
    assert isinstance(at, int)
    assert isinstance(data, bytes)
    place, left = place_of(at)
    return f'{place} data="{data[:left].hex()}"'


def _time(time: Time) -> str:
    unit = next(name for name, size in _UNITS.items() if time % size == 0)
    return f"{time // _UNITS[unit]}{unit}"


def _access(value: int) -> str:
    names = [flag.name for flag in Access if value & flag and flag.name]
    return "+".join(names) if sum(Access[name] for name in names) == value else hex(value)


_UNITS = {"s": 10**12, "ms": 10**9, "us": 10**6, "ns": 1000, "ps": 1}
_UNLIKE_DRILL: Sequence[tuple[type[Header], str, Value]] = (
    (h.ImmDt, "immdt.imm_data", 0x1A2B3C4D),
    (h.IETH, "ieth.rkey", ("mw.rkey", 0)),
)
"""Fields whose default in a case differs from that in a script."""

_OUTER: Mapping[str, type[Header]] = {"eth": Ethernet, "ip": IPv4, "udp": UDP}
_COUNTS = frozenset(
    {
        "aeth.msn",
        "reth.va",
        "reth.rkey",
        "reth.dma_len",
        "atomiceth.va",
        "atomiceth.rkey",
        "atomiceth.swap",
        "atomiceth.compare",
        "atomicacketh.orig",
        "immdt.imm_data",
        "ieth.rkey",
        "feth.sel",
        "feth.plt",
    }
)
"""What an answer is made of."""

_COMPLETION = ("status", "opcode", "byte_len", "imm_data", "flags")
_ATOMICS = (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)
_POSTS = {
    "WITH_IMM": "imm_data=0x1a2b3c4d",
    "WITH_INV": f"invalidate_rkey={PEER_RKEY:#x}",
    "_AND_": "compare_add=3 swap=5",
    "ATOMIC_WRITE": "u64=0x0706050403020100",
}
"""What a request has besides, by what its name has in it."""

_PATTERN = pattern(0, 2 << 16)
