"""A drill script about connection management as a case of the fuzzer.

Each queue pair of the script has an exchange. Fields that a message of the script has otherwise
than that of a case are given; a number that counts from one of the connection's keeps its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ibwire.cm.messages import Message, decode
from ibwire.drill.language import manager_messages as management
from ibwire.drill.language import steps as drill
from ibwire.drill.language.expressions import Expression
from ibwire.drill.language.literals import Literal, single
from ibwire.drill.language.vocabulary import MANAGER_VERBS
from ibwire.drill.packets import GOOD, pattern
from ibwire.drill.targets.manager import APART, FIRST_ID, FIRST_TRANSACTION, MANAGER_DEFAULTS
from ibwire.fuzz.case import Case, CaseError, Command, Connect, Connection, Mad, Packet, Step, Value
from ibwire.fuzz.targets.emulated_manager import BACKLOG, EXCHANGES, PEER_SERVICE, SERVICE
from ibwire.fuzz.vocabulary.cm.encoding import BEFORE_MAD, FORMS, PARTS, encode_message
from ibwire.fuzz.vocabulary.cm.execution import (
    NAMES,
    DrillNumbers,
    ManagedExecution,
    ManagedMoment,
)
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols
from ibwire.fuzz.vocabulary.queue_pair.reading import Reader, comment_of
from ibwire.rc.attributes import QPState


class ManagerReader(Reader):
    """Follows a script about connection management on the reference."""

    ACTIONS = frozenset({"qp", "reconnect", *MANAGER_VERBS})
    CHECKS = Reader.CHECKS | {"cm_event", "modify"}

    def __init__(self, path: str, case: Case) -> None:
        super().__init__(path, case)
        self._connection = Connection()
        self._execution: ManagedExecution | None = None
        self._drill: DrillNumbers
        self._is_reset = False
        """Whether the script has said so of the queue pair."""
        self._listens = False
        """Whether the script begins with `listen`, as every case does."""
        self._exchanges: dict[str, int] = {}
        """By queue pair."""
        self._places = {"": 0}
        """Of queue pairs in the script."""

    # The connection.

    def _step(self, step: drill.Step) -> None:
        if isinstance(step, drill.Verb) and step.token.text == "modify":
            self._check_modify(step)
        super()._step(step)

    def _check_modify(self, step: drill.Verb) -> None:
        """Refuse what the program of a case does not do by itself."""
        if set(step.args) != {"state"} or self._number(step, "state", 0) not in _USUAL_STATES:
            states = " or ".join(each.name for each in _USUAL_STATES)
            self._refuse(step.line, f"modify of a case about connections has state={states}")

    def _describe(self, step: drill.Verb) -> None:
        if step.word is not None:
            self._name(step)
            return
        if step.token.text == "reconnect":
            if step.args or step.owner:
                self._refuse(step.line, "all queue pairs of a case connect again as they were")
            self._carry_out(Connect(self._connection))
            return
        if "state" not in step.args or self._number(step, "state", 0) != QPState.RESET:
            self._refuse(step.line, "the queue pair of a case about connections is in RESET")
        self._is_reset = True
        given = {name: value for name, value in step.args.items() if name != "state"}
        super()._describe(drill.Verb(
            step.line, step.when, step.token, None, None, given, None
        ))  # fmt: skip

    def _name(self, step: drill.Verb) -> None:
        """Take another queue pair: `qp7` has exchange 6, others the next free one."""
        assert step.word is not None
        name = step.word.text
        if step.args:
            self._refuse(step.line, "all queue pairs of a case are alike")
        found = _NUMBERED.fullmatch(name)
        self._places[name] = len(self._places)
        self._begin(name, int(found[1]) - 1 if found else 1)

    def _begin(self, owner: str, number: int) -> None:
        """Take a number, or a free one, for the exchange of a queue pair."""
        taken = self._exchanges.values()
        free = (each for each in (number, *range(EXCHANGES)) if each not in taken)
        self._exchanges[owner] = next(free)

    def _connect(self) -> None:
        if not self._is_connecting:
            return
        if not self._is_reset:
            raise CaseError(f"{self._path}: a case about connections begins with qp state=RESET")
        self._is_connecting = False
        self._steps.append(Connect(self._connection))
        self._reference = self._execution = ManagedExecution(self._connection, self._profile)
        self._drill = DrillNumbers(self._execution.device.symbols, self._owner_of)
        if not self._listens:
            self._carry_out(Command("unlisten"))

    def _carry_out(self, step: Step) -> None:
        super()._carry_out(step)
        assert self._execution is not None
        if isinstance(step, Connect):
            self._drill = DrillNumbers(self._execution.device.symbols, self._owner_of)
        elif isinstance(self._moment, ManagedMoment):
            self._drill.note(self._moment)

    def _symbols(self) -> dict[str, int]:
        return {**super()._symbols(), "service": SERVICE}

    def _exchange(self, step: drill.Inject | drill.Verb) -> int:
        self._check_owner(step, self._places)
        if step.owner not in self._exchanges:
            self._begin(step.owner, 0)
        return self._exchanges[step.owner]

    def _owner_of(self, exchange: int) -> str:
        return next((name for name, each in self._exchanges.items() if each == exchange), "")

    # Actions.

    def _verb(self, step: drill.Verb) -> None:
        name = step.token.text
        if name in ("qp", "reconnect"):
            self._describe(step)
            return
        if name == "listen" and self._is_connecting and not self._listens:
            self._check_arguments(step)
            self._listens = True
            return
        exchange = self._exchange(step)
        self._connect()
        self._check_arguments(step)
        self._carry_out(Command(name, exchange))

    def _check_arguments(self, step: drill.Verb) -> None:
        """Refuse what the program of a case does otherwise."""
        verb = step.token.text
        usual = {**MANAGER_DEFAULTS.get(verb, {}), **_USUAL.get(verb, {})}
        for name in step.args:
            if name != "fails" and self._number(step, name, 0) != usual.get(name):
                known = f"is {usual[name]}" if name in usual else "has no number"
                self._refuse(step.line, f"{name} of {verb} in a case {known}")
        if verb in ("connect", "resolve") and "service" not in step.args:
            self._refuse(step.line, f"{verb} of a case has service=service+1")

    # Packets.

    def _packet_of(self, step: drill.Inject) -> Packet:
        exchange = self._exchange(step)
        self._connect()
        assert self._execution is not None
        if step.literal.form is not None:
            self._execution.management.choose(exchange)
            return self._message_of(step, step.literal, step.literal.form, exchange)
        if exchange != self._execution.management.exchange:
            self._refuse(step.line, "data of a case belong to the exchange of the line before")
        self._execution.management.choose(exchange)
        return super()._packet_of(step)

    def _pair(self, step: drill.Inject | drill.Verb) -> int:
        return 0

    def _base(self, literal: Literal) -> str:
        return "expected"

    def _first_psn(self, literal: Literal) -> int:
        assert self._execution is not None
        made = self._execution.made
        return made[literal.is_response] if made else super()._first_psn(literal)

    def _message_of(
        self, step: drill.Inject, literal: Literal, form: management.Form, exchange: int
    ) -> Mad:
        assert self._execution is not None
        symbols = dict(self._execution.device.symbols)
        drills = self._drill.symbols(exchange, symbols, self._execution.made)
        self._scope.symbols = {**self._symbols(), **drills, "psn": 0}
        name, part = form.kind.__name__, PARTS[form.kind]
        ours = _message(encode_message(Mad(message=name), 0, symbols)[BEFORE_MAD:])
        theirs = _message(management.build(form, {}, b"", drills))
        said: dict[tuple[str, str], tuple[Expression, int]] = {}
        for place, (_, expression) in literal.fields.items():
            if place.part == "vlan":
                self._refuse(step.line, "packets of a case have no VLAN tag")
            bits = 64 if place.field.is_octets else place.field.size
            said[place.part.rpartition(".")[2], place.field.name] = single(expression), bits
        given: dict[str, Value] = {}
        for entry in form.kind.FIELDS:
            found = said.pop((part, entry.name), None)
            if entry.is_octets and found is None:
                continue
            usual = FORMS[name].symbols.get(entry.name)
            if found is None:
                number, right = getattr(theirs, entry.name), getattr(ours, entry.name)
                if number == right:
                    continue
                symbol = NAMES.get(form.inbound.get(entry.name, ""), "")
                value = _counted(symbol, number, symbols)
            else:
                value = self._value_of(entry.name, *found, drills, symbols, step.owner)
            is_usual = value == (usual, 0)
            if not entry.is_octets and (usual is None or value):
                is_usual = is_usual or value == getattr(ours, entry.name)
            if not is_usual:
                given[f"{part}.{entry.name}"] = value
        transaction = form.transaction or "peer_transaction"
        if ("mad", "transaction_id") not in said and drills[transaction] != symbols["transaction"]:
            given["mad.transaction_id"] = drills[transaction]
        for (header, field), found in said.items():
            value = self._value_of(field, *found, drills, symbols, step.owner)
            given[f"{header}.{field}"] = value
        if given.get("mad.transaction_id") == ("transaction", 0):
            del given["mad.transaction_id"]
        return self._with_words(step, literal, Mad(
            message=name, exchange=exchange, fields=given, why=comment_of(step.line)
        ))  # fmt: skip

    def _with_words(self, step: drill.Inject, literal: Literal, mad: Mad) -> Mad:
        """The message with what is unusual about its bytes."""
        words = {name: self._word(literal, name) for name in literal.words}
        if words.get("fill"):
            self._refuse(step.line, "packets of a case are padded with zeros")
        mad.pad, mad.more, mad.cut = words.get("pad"), words.get("more", 0), words.get("cut")
        mad.icrc = words.get("icrc", GOOD)
        mad.length, mad.at = words.get("len", 0), words.get("at", 0)
        if literal.data:
            mad.length, mad.at = len(literal.data), pattern(0, 1 << 17).find(literal.data)
            if mad.at < 0:
                self._refuse(step.line, "private data of a case are bytes of the test pattern")
        opcode = mad.fields.get("bth.opcode")
        if isinstance(opcode, int):
            mad.opcode = opcode
            mad.fields = {name: mad.fields[name] for name in mad.fields if name != "bth.opcode"}
        return mad

    def _value_of(
        self,
        name: str,
        expression: Expression,
        bits: int,
        drills: Mapping[str, int],
        symbols: Symbols,
        owner: str,
    ) -> Value:
        """A value, from a number of the exchange if it counts from one. bits: of its field."""
        number = expression.evaluate(self._scope) & (1 << bits) - 1
        found = sorted(set(_NAME.findall(expression.text)) & set(drills))
        if not found:
            return self._own_value(name, number, owner)
        if len(found) == 1:
            of_other = next((ours for end, ours in _OF_OTHERS if found[0].endswith(end)), "")
            return _counted(of_other or NAMES.get(found[0], ""), number, symbols)
        return number

    def _own_value(self, name: str, number: int, owner: str) -> Value:
        """A number that a script gives: one near the first of the peer counts from the fuzzer's."""
        begin = self._places[owner] * APART
        for own, first in (("transaction", FIRST_TRANSACTION), ("own.id", FIRST_ID)):
            ahead = number - first - begin
            if name.endswith("_id") and abs(ahead) <= _NEAR:
                return own, ahead
        return number


def _counted(name: str, number: int, symbols: Symbols) -> Value:
    """A number, counted from that of the exchange with this name if it is near."""
    if name and symbols[name] and abs(number - symbols[name]) <= _NEAR:
        return name, number - symbols[name]
    return number


def _message(mad: bytes) -> Message:
    found = decode(mad)
    assert found is not None
    return found.message


_NAME = re.compile(r"[a-z_][a-z0-9_]*(?:\.[a-z_]+)?")
_NUMBERED = re.compile(r"qp([1-9][0-9]{0,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-6])")
_OF_OTHERS = ((".chosen_cm_id", "other.id"), (".peer_qpn", "own.qpn"))
"""Names of the fuzzer for numbers of another queue pair than that of a line."""

_NEAR = 1 << 16
"""Largest distance at which a number counts from one of the exchange."""

_USUAL_STATES = (QPState.RESET, QPState.ERR)
_USUAL = {
    "listen": {"backlog": BACKLOG},
    "connect": {"service": PEER_SERVICE},
    "resolve": {"service": PEER_SERVICE},
}
"""Arguments of commands in every case."""
