"""A case for a connection manager as a drill script.

Drill makes one connection at a time and has its own names for its numbers. A line gives the
fields of a message that differ from those that drill sends or expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.cm.messages import Message, decode
from ibwire.cm.states import EventKind
from ibwire.drill.language import manager_messages as drill
from ibwire.drill.language.vocabulary import REASONS
from ibwire.drill.packets import pattern
from ibwire.drill.targets.manager import FIRST_ID, FIRST_TRANSACTION, Exchange
from ibwire.fuzz.case import Case, Command, Mad, Packet, Pause, Step, Value, Wait
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.findings import part_of
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, SIZE, Completion
from ibwire.fuzz.targets.emulated_manager import (
    BACKLOG,
    EVENT,
    SERVICE,
    Management,
    managed_emulation,
    management_of,
)
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.cm.encoding import PARTS, encode_message
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols, number_of
from ibwire.fuzz.vocabulary.queue_pair.execution import Moment
from ibwire.fuzz.vocabulary.queue_pair.script import CannotSay, Writer, odd_ends
from ibwire.rc.profile import Profile
from ibwire.rc.unreliable import QP1
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import UDP, Ethernet, IPv4
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.psn import MASK


@dataclass(frozen=True, slots=True)
class ManagedMoment(Moment):
    """The results of a step on a device with a connection manager; `symbols`: before it."""

    frame: Frame | None
    """The frame that it received."""
    made: tuple[int, int, int] | None
    """First PSNs of requests to the device and of its own, and the peer's queue pair; none
    without a connection."""


def manager_script(case: Case, difference: Difference, rule: str, section: str = "") -> str:
    """The script; raises `CannotSay`. Arguments are those of `script`."""
    exchanges = {step.exchange for step in case.steps if isinstance(step, Mad | Command)}
    if len(exchanges) > 1:
        raise CannotSay("it is about several connections at a time")
    usual = list(moments(case, profile_of(case.profile, {})))
    chosen = list(moments(case, profile_of(case.profile, case.choices)))
    writer = _ManagerWriter(case, usual[0].symbols)
    for number, step in enumerate(case.steps):
        is_last = number == len(case.steps) - 1
        writer.step(step, usual[number], chosen[number], difference if is_last else None)
    lines = [f"// {line}" for line in rule.split("\n")]
    lines += [f"section {section}"] * bool(section)
    lines += ["", "  qp state=RESET" + f" size={SIZE}" * writer.has_data]
    lines += [f"  store va len={SIZE} at=0"] * writer.has_data
    lines += [f"  listen backlog={BACKLOG}", "", *writer.lines]
    return "\n".join(lines) + "\n"


def moments(case: Case, profile: Profile) -> Iterator[ManagedMoment]:
    """A case carried out on one device."""
    device = managed_emulation(case.connection, profile)
    management = management_of(device)
    binding = Binding(PEER_ADDRESS, ADDRESS)
    for step in case.steps:
        start, psn, accepted, frame = device.now, 0, True, None
        answers: list[tuple[Time, Frame]] = []
        exchange = step.exchange if isinstance(step, Mad | Command) else management.exchange
        management.choose(exchange)
        symbols, made = dict(device.symbols), _made(management)
        if type(step) is Packet and symbols["qpn"] == device.qp.number:
            raise CannotSay(_BESIDE)
        if isinstance(step, Packet):
            base = device.psn(step.psn[0])
            psn = base + step.psn[1] & MASK
            frame = binding.frame(step, base, symbols)
            device.receive(frame)
        elif isinstance(step, Command):
            accepted = device.command(step)
        elif isinstance(step, Wait):
            answers = [(when - start, frame) for when, frame in device.wait(step.time)]
        if isinstance(step, Packet) and step.held:
            yield ManagedMoment(psn, symbols, accepted, (), (), (), frame, made)
            continue
        if not isinstance(step, Wait):
            answers = [(0, frame) for frame in device.answers()]
        found = device.completions(), device.raised()
        yield ManagedMoment(psn, symbols, accepted, answers, *found, frame, made)


def _made(management: Management) -> tuple[int, int, int] | None:
    connection = management.exchanges.get(management.exchange)
    if connection is None or not isinstance(connection.reply, cm.REP):
        return None
    request, reply = connection.request, connection.reply
    assert isinstance(request, cm.REQ)
    own, other = (request, reply) if connection.is_active else (reply, request)
    return own.starting_psn, other.starting_psn, other.local_qpn


class _ManagerWriter(Writer):
    """The lines of a script about one connection."""

    def __init__(self, case: Case, symbols: Symbols) -> None:
        super().__init__(case.connection)
        own_id, transaction = symbols["own.id"], symbols["transaction"]
        self._first = {own_id: FIRST_ID, transaction: FIRST_TRANSACTION}
        """First numbers of the fuzzer, and those of drill."""
        self.has_data = any(type(step) is Packet for step in case.steps)
        self._exchange = Exchange(
            gid=symbols["gid"],
            peer_gid=symbols["own.gid"],
            guid=symbols["guid"],
            peer_guid=symbols["own.guid"],
            peer_cm_id=own_id,
            transaction=transaction,
        )
        """What drill has learned of the connection so far, with the numbers of the fuzzer."""
        self._moment: ManagedMoment
        self._is_connected = False
        """Whether the only queue pair of the script has been used."""

    def step(
        self, step: Step, usual: Moment, chosen: Moment, difference: Difference | None
    ) -> None:
        """A step and its results; difference: that of the last step."""
        assert isinstance(usual, ManagedMoment)
        self._moment = usual
        if isinstance(step, Command):
            self._command(step, usual)
        elif not isinstance(step, Packet | Wait | Pause):
            raise CannotSay(_BESIDE)
        super().step(step, usual, chosen, difference)

    def _command(self, step: Command, moment: Moment) -> None:
        if step.what == "resolve":
            raise CannotSay("drill does not resolve services")
        if step.what in ("accept", "connect") and moment.accepted:
            self.lines += ["  modify state=RESET"] * self._is_connected
            self._is_connected = True
        words = step.what
        words += f" backlog={BACKLOG}" * (step.what == "listen")
        words += " service=service+1" * (step.what == "connect")
        self.lines.append(f"  {words}" if moment.accepted else f"  // {words}: is not taken")

    # What the device receives.

    def _said(self, packet: Packet, moment: Moment) -> str:
        if not isinstance(packet, Mad):
            return super()._said(packet, moment)
        form = drill.FORMS.get(drill.PREFIX + packet.message)
        if form is None:
            raise CannotSay(f"drill has no {packet.message}")
        symbols, given = self._symbols(), dict(packet.fields)
        part = PARTS[form.kind]
        words = [form.name]
        own = {name: value for name, value in given.items() if name.partition(".")[0] == part}
        plain = Mad(message=packet.message, fields=own)
        ours = _message(encode_message(plain, 0, moment.symbols)[_BEFORE_MAD:])
        theirs = _message(drill.build(form, {}, b"", symbols))
        for entry in form.kind.FIELDS:
            value = getattr(ours, entry.name)
            if not entry.is_octets and value != getattr(theirs, entry.name):
                words.append(f"{entry.name}={self._number(entry.name, value)}")
            elif entry.is_octets and f"{part}.{entry.name}" in given:
                raise CannotSay(f"the bytes of {entry.name} in a {packet.message}")
        transaction = symbols[form.transaction or "peer_transaction"]
        if "mad.transaction_id" not in given and transaction != moment.symbols["transaction"]:
            given["mad.transaction_id"] = "transaction", 0
        words += self._other_fields(given, own, moment.symbols)
        if packet.opcode != OpCode.UD_SEND_ONLY and "bth.opcode" not in given:
            words.append(f"bth.opcode={packet.opcode:#x}")
        if packet.length > min(form.room, _MAXIMUM_DATA):
            raise CannotSay(f"{packet.length} bytes of private data")
        if packet.length:
            words.append(f'data="{pattern(packet.at, packet.length).hex()}"')
        words += odd_ends(packet, len(encode_message(replace(packet, cut=None), 0, moment.symbols)))
        return " ".join(words)

    def _other_fields(
        self, given: Mapping[str, Value], own: Mapping[str, Value], symbols: Symbols
    ) -> Iterator[str]:
        """Fields of the headers before the message."""
        for name, value in given.items():
            if name not in own:
                number = number_of(value, symbols) & (1 << _WIDTHS[name]) - 1
                yield f"{name}={self._number(name, number)}"

    def _psn(self, psn: int, *, own: bool) -> str:
        made = self._moment.made
        if made is None:
            raise CannotSay("it has data for a connection that is not made yet")
        ahead = psn - made[own] & MASK
        ahead -= (ahead >> 23) * (MASK + 1)
        return f"psn{ahead:+d}" if ahead else "psn"

    # What comes of it.

    def _answers(
        self, step: Step, usual: Moment, chosen: Moment, difference: Difference | None
    ) -> None:
        if self._moment.frame is not None:
            self._exchange.note(self._moment.frame, from_device=False)
        for _, frame in usual.answers:
            self._exchange.note(frame, from_device=True)
        super()._answers(step, usual, chosen, difference)

    def _answer_line(self, frame: Frame, extra: Sequence[tuple[str, str]]) -> str:
        packet = WholePacket.parse(frame)
        if packet.bth.dest_qp != QP1:
            return super()._answer_line(frame, extra)
        found = decode(packet.payload)
        form = drill.FORMS.get(drill.PREFIX + type(found.message).__name__) if found else None
        if found is None or form is None:
            raise CannotSay("an answer that drill does not know")
        symbols, words = self._symbols(), {}
        for name, symbol in form.outbound.items():
            value = getattr(found.message, name)
            if value != symbols[symbol] and name not in _OWN_NUMBERS:
                words[name] = self._number(name, value)
        if form.transaction and found.transaction_id != symbols[form.transaction]:
            words["mad.transaction_id"] = self._number("transaction_id", found.transaction_id)
        if isinstance(found.message, cm.REJ):
            words["reason"] = _NAMES.get(found.message.reason, str(found.message.reason))
        for part, name in extra:
            header = part_of(packet, part)
            value = getattr(header, name)
            if isinstance(value, bytes):
                words["data"] = f'"{value[form.first :].rstrip(bytes(1)).hex()}"'
            elif type(header) is type(found.message):
                words.setdefault(name, self._number(name, value))
            else:
                words.setdefault(f"{part}.{name}", self._number(name, value))
        return " ".join([form.name, *(f"{name}={text}" for name, text in words.items())])

    def _completions(self, usual: Moment, chosen: Moment) -> None:
        if usual.completions != chosen.completions:
            raise CannotSay("the events of the application depend on a choice of the device")
        for completion in usual.completions:
            self.lines.append(f"  {_reported(completion)}")
            if completion[1] == EventKind.DISCONNECTED.value and self.has_data:
                self.lines.append("  modify state=ERR")

    # Numbers.

    def _symbols(self) -> dict[str, int]:
        """What drill's names stand for, with the numbers of the fuzzer."""
        symbols, made = self._moment.symbols, self._moment.made
        return {
            **self._exchange.symbols,
            "mtu": 256,
            "pkey": 0xFFFF,
            "rq_psn": 0,
            "qpn": symbols["qpn"],
            "peer_qpn": made[2] if made else symbols["own.qpn"],
            "sq_psn": symbols["own.psn"],
            "service": SERVICE,
        }

    def _number(self, name: str, value: int) -> str:
        """The number in a field as a script has it: from one of the connection's numbers."""
        symbols, ours = self._symbols(), self._moment.symbols
        kind = name.rpartition("_")[2]
        for symbol in _COUNTED.get(kind, ()):
            ahead = value - symbols[symbol]
            if symbols[symbol] and abs(ahead) <= (_NEAR_QPN if kind == "qpn" else _NEAR):
                return symbol + f"{ahead:+d}" * bool(ahead)
        for own, first in self._first.items():
            if kind == "id" and abs(value - own) <= _NEAR:
                return hex(value - own + first)
        if kind == "id" and ours["id"] and abs(value - ours["id"]) <= _NEAR:
            raise CannotSay("it has an ID that the device has not sent yet")
        return str(value) if value < 1 << 16 else hex(value)


def _message(mad: bytes) -> Message:
    found = decode(mad)
    assert found is not None
    return found.message


def _reported(completion: Completion) -> str:
    """An event of the manager as a line of a script."""
    queue, number, _, reason, *_ = (*completion, 0, 0)
    if queue != EVENT:
        raise CannotSay(_BESIDE)
    kind = EventKind(number)
    if kind in (EventKind.RESOLVE_REQUEST, EventKind.RESOLVED):
        raise CannotSay("drill does not resolve services")
    reason_text = f" reason={_NAMES.get(reason, reason)}" * (kind is EventKind.REJECTED)
    return f"cm_event {kind.name}{reason_text}"


_BESIDE = "it is about the connection beside, too"
_BEFORE_MAD = h.BTH.SIZE + h.DETH.SIZE
_WIDTHS = {
    f"{part}.{entry.name}": entry.width
    for part, kind in {
        **{kind.KEY: kind for kind in (h.BTH, h.DETH, MAD)},
        "eth": Ethernet,
        "ip": IPv4,
        "udp": UDP,
    }.items()
    for entry in kind.FIELDS
}
_NAMES = {number: name for name, number in REASONS.items()}
_MAXIMUM_DATA = 128
"""Bytes of private data in a script, whose lines have 400 characters at most."""

_OWN_NUMBERS = frozenset({"local_qpn", "starting_psn"})
"""Of the device's queue pair, which is another one in a script."""

_COUNTED: Mapping[str, Sequence[str]] = {
    "id": ("cm_id", "peer_cm_id", "transaction", "service"),
    "qpn": ("qpn", "peer_qpn"),
    "gid": ("gid", "peer_gid"),
    "guid": ("guid", "peer_guid"),
}
"""Numbers of a connection that fields are relative to, by the ends of the names of the fields."""

_NEAR, _NEAR_QPN = 1 << 16, 4
"""Largest distance at which a number is written relative to one of the connection."""
