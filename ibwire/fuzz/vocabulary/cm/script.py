"""A case for a connection manager as a drill script.

Each exchange of the case is that of a queue pair of the script. A line gives the fields of a
message that differ from those that drill sends or expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ibwire.base.node import Frame
from ibwire.cm.messages import Message, decode
from ibwire.cm.states import EventKind
from ibwire.drill.language import manager_messages as drill
from ibwire.drill.language.literals import MAXIMUM_PAYLOAD
from ibwire.drill.language.parser import MAXIMUM_QUEUE_PAIRS
from ibwire.drill.language.vocabulary import REASONS
from ibwire.drill.targets.manager import APART, FIRST_ID, FIRST_TRANSACTION, message_in
from ibwire.fuzz.case import (
    Case,
    Command,
    Connect,
    Connection,
    Mad,
    Packet,
    Pause,
    Step,
    Value,
    Wait,
)
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.findings import part_of
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.targets.emulated_device import SIZE, Completion
from ibwire.fuzz.targets.emulated_manager import (
    BACKLOG,
    EVENT,
    MAXIMUM_CONNECTIONS,
    OWN_ID,
    OWN_TRANSACTION,
)
from ibwire.fuzz.vocabulary.cm.encoding import BEFORE_MAD, PARTS, encode_message
from ibwire.fuzz.vocabulary.cm.execution import (
    NAMES,
    DrillNumbers,
    ManagedMoment,
    managed_moments,
)
from ibwire.fuzz.vocabulary.queue_pair.encoding import number_of
from ibwire.fuzz.vocabulary.queue_pair.execution import Moment
from ibwire.fuzz.vocabulary.queue_pair.script import CannotSay, Writer, attributes, odd_ends
from ibwire.rc.unreliable import QP1
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import UDP, Ethernet, IPv4
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.psn import MASK


def manager_script(case: Case, difference: Difference | None, rule: str, section: str = "") -> str:
    """The script; raises `CannotSay`. Arguments are those of `script`."""
    profile = profile_of(case.profile, {})
    chosen = list(managed_moments(case, profile_of(case.profile, case.choices)))
    usual = list(managed_moments(case, profile)) if difference is not None else chosen
    writer = _ManagerWriter(case, usual)
    for number, step in enumerate(case.steps):
        is_last = number == len(case.steps) - 1
        if difference is None:
            writer.stimulus(step, chosen[number])
        else:
            writer.step(step, usual[number], chosen[number], difference if is_last else None)
    lines = [f"// {line}" for line in rule.split("\n")]
    lines += [f"section {section}"] * bool(section)
    lines += [f"origin {case.origin}"] * bool(case.origin)
    lines += [f"reference {case.profile}"]
    lines += [f"choice {name}={value}" for name, value in case.choices.items()]
    words = ["qp state=RESET"] + [f"size={SIZE}"] * writer.has_data
    if case.connection != Connection():
        words += attributes(case.connection, Connection())
    lines += ["", "  " + " ".join(words)]
    lines += [f"  qp {name}" for name in writer.names.values() if name]
    lines += [f"  store va len={SIZE} at=0"] * writer.has_data
    lines += [f"  listen backlog={BACKLOG}", "", *writer.lines]
    return "\n".join(lines) + "\n"


class _ManagerWriter(Writer):
    """The lines of a script about exchanges of connection management."""

    def __init__(self, case: Case, moments: Sequence[ManagedMoment]) -> None:
        super().__init__(case.connection)
        pairs = zip(case.steps, moments, strict=True)
        used = {each.exchange for step, each in pairs if isinstance(step, Packet | Command)}
        if len(used) > MAXIMUM_QUEUE_PAIRS:
            raise CannotSay(f"it has more than {MAXIMUM_QUEUE_PAIRS} exchanges")
        self.names = {number: f"qp{number + 1}" for number in sorted(used)}
        """The queue pair of each exchange; the first one, if exchange 0 is the only one."""
        if used <= {0}:
            self.names = {0: ""}
        self.has_data = any(type(step) is Packet for step in case.steps)
        self._numbers = DrillNumbers(moments[0].symbols, self._name)
        self._moment: ManagedMoment
        self._connected: set[int] = set()
        """Exchanges whose queue pair has been used."""
        self._owners: dict[int, int] = {}
        """Exchanges by the IDs of the device, also of connections that were there before."""

    def step(
        self, step: Step, usual: Moment, chosen: Moment, difference: Difference | None
    ) -> None:
        """A step and its results; difference: that of the last step."""
        assert isinstance(usual, ManagedMoment)
        if usual.is_beside or isinstance(step, Connect):
            raise CannotSay(_BESIDE)
        if usual.is_full or (isinstance(chosen, ManagedMoment) and chosen.is_full):
            raise CannotSay(_LIMITED)
        super().step(step, usual, chosen, difference)

    def stimulus(self, step: Step, moment: Moment) -> None:
        """A step, and whatever comes of it."""
        super().stimulus(step, moment)
        self._numbers.note(self._moment)

    def _action(self, step: Step, moment: Moment) -> None:
        assert isinstance(moment, ManagedMoment)
        self._moment = moment
        self._note_owners(moment)
        if isinstance(step, Command):
            self._command(step, moment)
        elif isinstance(step, Connect):
            if step.connection != self._connection:
                raise CannotSay("its connections differ")
            self.lines += ["", "  reconnect"]
            self._numbers = DrillNumbers(moment.symbols, self._name)
            self._connected.clear()
            self._owners.clear()
        elif isinstance(step, Packet | Wait | Pause):
            super()._action(step, moment)
        else:
            raise CannotSay(_BESIDE)

    def _name(self, exchange: int) -> str:
        return self.names.get(exchange, "")

    def _owner(self, pair: int) -> str:
        name = self._name(self._moment.exchange)
        return f"{name} " if name else ""

    def _sender(self, frame: Frame) -> str:
        found = message_in(frame)
        owner = (
            self._numbers.owner_of(found.message) if found else self._name(self._moment.exchange)
        )
        return f"{owner} " if owner else ""

    def _command(self, step: Command, moment: ManagedMoment) -> None:
        owner = self._owner(0)
        if step.what in ("accept", "connect") and moment.accepted:
            is_again = step.exchange in self._connected
            self.lines += [f"  {owner}modify state=RESET"] * is_again
            self._connected.add(step.exchange)
        words = [step.what]
        words += [f"backlog={BACKLOG}"] * (step.what == "listen")
        words += ["service=service+1"] * (step.what in ("connect", "resolve"))
        if not moment.accepted:
            words.append(f"fails={_ERRORS.get(step.what, 'EINVAL')}")
        self.lines.append(f"  {owner}{' '.join(words)}")

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
        ours = _message(encode_message(plain, 0, moment.symbols)[BEFORE_MAD:])
        theirs = _message(drill.build(form, {}, b"", symbols))
        for entry in form.kind.FIELDS:
            name, said = entry.name, own.get(f"{part}.{entry.name}")
            if entry.is_octets and said is not None:
                words.append(f"{name}={self._value(name, said, (1 << 64) - 1)}")
            elif not entry.is_octets and getattr(ours, name) != getattr(theirs, name):
                value = getattr(ours, name) if said is None else said
                words.append(f"{name}={self._value(name, value, (1 << entry.size) - 1)}")
        transaction = symbols[form.transaction or "peer_transaction"]
        if "mad.transaction_id" not in given and transaction != moment.symbols["transaction"]:
            given["mad.transaction_id"] = "transaction", 0
        words += [
            f"{name}={self._value(name, value, (1 << _WIDTHS[name]) - 1)}"
            for name, value in given.items()
            if name not in own
        ]
        if packet.opcode != OpCode.UD_SEND_ONLY and "bth.opcode" not in given:
            words.append(f"bth.opcode={packet.opcode:#x}")
        if packet.length > MAXIMUM_PAYLOAD:
            raise CannotSay(f"{packet.length} bytes of private data")
        if packet.length:
            words += [f"len={packet.length}", f"at={packet.at}"]
        words += odd_ends(packet, len(encode_message(replace(packet, cut=None), 0, moment.symbols)))
        return " ".join(words)

    def _value(self, name: str, value: Value, mask: int) -> str:
        """A value of a case as a script has it, cut to the bits that its field has."""
        if isinstance(value, tuple):
            number = number_of(value, self._moment.symbols)
            symbols = self._symbols()
            if value[0] == NAMES["peer_qpn"] and value[1]:
                for symbol in symbols:
                    if symbol.endswith(".peer_qpn") and symbols[symbol] == number:
                        return symbol
            for symbol in (symbol for symbol, ours in NAMES.items() if ours == value[0]):
                if symbols[symbol] == number - value[1] and 0 <= number <= mask:
                    return symbol + f"{value[1]:+d}" * bool(value[1])
            value = number
        return self._number(name, value & mask)

    def _psn(self, psn: int, *, own: bool) -> str:
        made, connection = self._moment.made, self._connection
        first = made[own] if made else connection.sq_psn if own else connection.rq_psn
        ahead = psn - first & MASK
        ahead -= (ahead >> 23) * (MASK + 1)
        return f"psn{ahead:+d}" if ahead else "psn"

    # What comes of it.

    def _answers(
        self, step: Step, usual: Moment, chosen: Moment, difference: Difference | None
    ) -> None:
        assert isinstance(usual, ManagedMoment)
        self._numbers.note(usual)
        super()._answers(step, usual, chosen, difference)

    def _answer_line(self, frame: Frame, extra: Sequence[tuple[str, str]]) -> str:
        packet = WholePacket.parse(frame)
        if packet.bth.dest_qp != QP1:
            return super()._answer_line(frame, extra)
        found = decode(packet.payload)
        form = drill.FORMS.get(drill.PREFIX + type(found.message).__name__) if found else None
        if found is None or form is None:
            raise CannotSay("an answer that drill does not know")
        owner = self._numbers.owner_of(found.message)
        symbols, words = {**self._symbols(), **self._numbers.identifiers(owner)}, {}
        symbols["peer_qpn"] = symbols.get(f"{owner}.peer_qpn", symbols["peer_qpn"])
        if any(name == "attribute_id" for _, name in extra):
            extra = ()  # the target sends another message
        for name, symbol in form.outbound.items():
            value = getattr(found.message, name)
            is_elsewhere = name == "local_qpn" and not value  # in a REP for XRC
            if value != symbols[symbol] and (name not in _OWN_NUMBERS or is_elsewhere):
                words[name] = self._expected(name, value)
        if form.transaction and found.transaction_id != symbols[form.transaction]:
            words["mad.transaction_id"] = self._expected("transaction_id", found.transaction_id)
        if isinstance(found.message, cm.REJ):
            words["reason"] = _NAMES.get(found.message.reason, str(found.message.reason))
        if [name for _, name in extra] == ["ari"]:
            raise CannotSay("drill does not look at the additional information of a REJ")
        if any(name == "private_data" for _, name in extra):
            raise CannotSay("drill gives the messages of the device no private data")
        for part, name in extra:
            header = part_of(packet, part)
            value = getattr(header, name)
            if isinstance(value, bytes):
                continue  # of a REJ, and its length differs
            if type(header) is type(found.message):
                words.setdefault(name, self._expected(name, value))
            else:
                words.setdefault(f"{part}.{name}", self._expected(name, value))
        return " ".join([form.name, *(f"{name}={text}" for name, text in words.items())])

    def _completions(self, usual: Moment, chosen: Moment) -> None:
        if usual.completions != chosen.completions:
            raise CannotSay("the events of the application depend on a choice of the device")
        for completion in usual.completions:
            self.lines.append(f"  {self._reporter(completion)}{_reported(completion)}")
            if completion[1] == EventKind.DISCONNECTED.value and self.has_data:
                self.lines.append("  modify state=ERR")

    def _note_owners(self, moment: ManagedMoment) -> None:
        """Note the exchanges of connections; of one with any other ID, that of its request."""
        for chosen, exchange in moment.owners.items():
            if exchange in self.names:
                self._owners[chosen] = exchange
            else:
                self._owners.setdefault(chosen, moment.exchange)

    def _reporter(self, completion: Completion) -> str:
        """The queue pair that an event of the manager is about."""
        name = self._name(self._owners.get(completion[2], 0))
        return f"{name} " if name else ""

    # Numbers.

    def _symbols(self) -> dict[str, int]:
        """What drill's names stand for, with the numbers of the fuzzer."""
        moment = self._moment
        return self._numbers.symbols(moment.exchange, moment.symbols, moment.made)

    def _number(self, name: str, value: int) -> str:
        """The number in a field as a script has it: from one of the connection's numbers."""
        symbols, ours = self._symbols(), self._moment.symbols
        kind = name.rpartition("_")[2]
        known = list(_COUNTED.get(kind, ()))
        if kind == "id":
            known += [each for each in symbols if each.endswith(".chosen_cm_id")]
        for symbol in known:
            ahead = value - symbols[symbol]
            if symbols[symbol] and abs(ahead) <= (_NEAR_QPN if kind == "qpn" else _NEAR):
                return symbol + f"{ahead:+d}" * bool(ahead)
        ahead = self._place * APART
        for own, first in (
            (ours["own.id"], FIRST_ID + ahead),
            (ours["transaction"], FIRST_TRANSACTION + ahead),
        ):
            if kind == "id" and abs(value - own) <= _NEAR:
                return f"{value - own + first:#x}"
        return str(value) if value < 1 << 16 else hex(value)

    def _expected(self, name: str, value: int) -> str:
        """The number that a field of an answer has; one of another connection has no name."""
        text = self._number(name, value)
        chosen = {OWN_ID, OWN_TRANSACTION, *self._moment.owners}
        if text == hex(value) and any(abs(value - each) < _NEAR for each in chosen):
            raise CannotSay("it has an ID of a connection that the script has no name for")
        return text

    @property
    def _place(self) -> int:
        """That of the exchange among the queue pairs of the script."""
        number = self._moment.exchange
        return list(self.names).index(number) + 1 if self.names.get(number) else 0


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
    reason_text = f" reason={_NAMES.get(reason, reason)}" * (kind is EventKind.REJECTED)
    return f"cm_event {kind.name}{reason_text}"


_ERRORS = {"listen": "EADDRINUSE", "connect": "ENOMEM", "resolve": "ENOMEM"}
"""Of commands that a manager does not take: there is a listener, or there is no room."""

_BESIDE = "it is about the connection beside, too"
_LIMITED = (
    f"it needs a device that has room for {MAXIMUM_CONNECTIONS} connections, and a script has no "
    "limit of them"
)
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
_OWN_NUMBERS = frozenset({"local_qpn", "starting_psn"})
"""Of the device's queue pair, which is another one in a script."""

_COUNTED: Mapping[str, Sequence[str]] = {
    "id": ("cm_id", "chosen_cm_id", "peer_cm_id", "transaction", "service"),
    "qpn": ("qpn", "peer_qpn"),
    "gid": ("gid", "peer_gid"),
    "guid": ("guid", "peer_guid"),
}
"""Numbers of a connection that fields are relative to, by the ends of the names of the fields."""

_NEAR, _NEAR_QPN = 1 << 16, 4
"""Largest distance at which a number is written relative to one of the connection."""
