"""A drill script as a case of the fuzzer: what the device gets, and nothing of what it answers.

What a script expects is left to the reference. PSNs are numbers in a script; here they count
from the PSN that the reference expects at that moment, so that a case keeps its meaning when
earlier steps are removed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

from ibwire.base.units import Time
from ibwire.drill import parse
from ibwire.drill.application import attributes_of
from ibwire.drill.language import steps as drill
from ibwire.drill.language.expressions import Expression, Scope
from ibwire.drill.language.literals import GOOD_ICRC, LIMITS, Literal, single
from ibwire.drill.language.tokens import Line
from ibwire.drill.language.vocabulary import SEND_OPCODES, VERBS
from ibwire.drill.packets import NONE
from ibwire.drill.targets.emulated import DEFAULTS
from ibwire.drill.targets.emulated import PKEYS as PKEY_NAMES
from ibwire.drill.targets.queue_pair import PEER_SRQN
from ibwire.fuzz.case import (
    MAXIMUM_PAIRS,
    MAXIMUM_SGES,
    MAXIMUM_STEPS,
    MAXIMUM_TEXT,
    MAXIMUM_TIME,
    SERVICES,
    XRC,
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
    check_connection,
)
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.targets.emulated_device import (
    INBOX,
    OUTBOX,
    OWN_QKEY,
    PEER_RKEY,
    PEER_VA,
    PKEYS,
)
from ibwire.fuzz.vocabulary.queue_pair.common_memory import wrong_memory
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols
from ibwire.fuzz.vocabulary.queue_pair.execution import Execution, Moment
from ibwire.fuzz.vocabulary.queue_pair.script import NOT_OF_A_PAIR
from ibwire.peer import QKEY
from ibwire.rc.attributes import QPState, QPType
from ibwire.rc.work import SendFlags, WROpcode
from ibwire_layers.opcodes import INFO
from ibwire_layers.psn import distance
from ibwire_layers.syndrome import AckKind

MAXIMUM_SIZE = 1 << 26
"""Bytes of a script."""

_SHOWN = 8
"""Names of cases in a message."""

NEAR = 1 << 10
"""How far an MSN may be from the number of the oldest request to count from it."""

Stimulus = drill.Inject | drill.Verb


def read_steps(
    content: bytes, path: str, wanted: str | None = None
) -> tuple[Case, Sequence[drill.Step]]:
    """The steps of a drill script, and a case without steps that is about the same device.

    wanted: the name of the case of a table, or a part that no other name has. Raises `CaseError`
    or `ScriptError` with the line.
    """
    script = parse(content, path, size=MAXIMUM_SIZE, steps=MAXIMUM_STEPS)
    name = script.reference or "spec"
    choices = dict(each.split("=", 1) for each in script.choices)
    try:
        profile_of(name, choices)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None
    if script.reference not in ("", "spec"):
        script = parse(content, path, name, size=MAXIMUM_SIZE, steps=MAXIMUM_STEPS)
    found = _selected(script, wanted)
    for text in (script.origin, *choices.values()):
        if len(text) > MAXIMUM_TEXT or not text.isprintable():
            short = f"{text[:40]!r}"
            raise CaseError(f"{path}: not a line of at most {MAXIMUM_TEXT} characters: {short}")
    case = Case(profile=name, origin=script.origin, choices=choices)
    return case, found.steps


def _selected(script: drill.Script, wanted: str | None) -> drill.Case:
    """The one case of a script; raises `CaseError` for none and for several."""
    cases = script.cases
    if wanted is not None:
        cases = tuple(each for each in cases if each.name == wanted) or tuple(
            each for each in cases if wanted in each.name
        )
    if len(cases) == 1:
        return cases[0]
    if wanted is None:
        reason = f"a table of {len(cases)} cases, not one case: choose one with --case"
    else:
        reason = f"{len(cases) or 'no'} cases have {wanted!r} in their names, not one"
    names = [each.name for each in script.cases if each.name]
    if names:
        shown = ", ".join(names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
        reason += f" (cases: {shown})"
    raise CaseError(f"{script.path}: {reason}")


class Reader:
    """Follows a script on the reference, one step after the other."""

    ACTIONS = frozenset({"qp", "reconnect", "modify", "post_recv", "post_send", "pfc", "srq_limit"})
    """Verbs that do something."""

    CHECKS = frozenset({"poll", "event", "cq_event", "memory", "state"})
    """Verbs that check something, which the reference does here."""

    def __init__(self, path: str, case: Case) -> None:
        self._path = path
        self._case = case
        self._profile = profile_of(case.profile, case.choices)
        self._scope = Scope(path, {})
        self._steps: list[Step] = []
        self._connection = Connection(timeout=DEFAULTS["timeout"], receives=0)
        self._reference: Execution | None = None
        self._is_connecting = True
        """Whether only lines about the connection have come since it was made."""
        self._names = [""]
        """Queue pairs of the script, by their number in the case."""
        self._receives = [0]
        """Receive requests that each has at the beginning."""
        self._left: set[str] = set()
        """Queue pairs that are not connected again yet, as the first one is."""
        self._out: set[str] = set()
        """Those that are in RESET during this connection."""
        self._first = self._connection
        """What the first line gives, which other queue pairs have unless they say otherwise."""
        self._known: dict[str, Connection] = {}
        """The last connection of each."""
        self._has_table = False
        """Whether the script is about a P_Key of a table."""
        self._again: Line | None = None
        """The line that connects the first one again."""
        self._is_settled = False
        """Whether the last line was about what the device does, which later requests come after."""
        self._waited: Time = 0
        self._moment: Moment | None = None
        """What came of the last step."""
        self._packet: Packet | None = None
        """The last one, as long as it is open whether the device answers before the next step."""

    def read(self, steps: Sequence[drill.Step]) -> Case:
        """The case; raises `CaseError` for a line that no case has."""
        verbs = [step for step in steps if isinstance(step, drill.Verb)]
        self._has_table = any("pkey_index" in verb.args for verb in verbs)
        self._set_room(steps)
        for number, step in enumerate(steps):
            if number and isinstance(step, drill.Verb) and step.token.text == "qp":
                self._check_order(step)
            self._step(step)
            if _begins_again(step):
                self._set_room(steps[number + 1 :])
        self._settle(is_held=False)
        self._connect()
        first, *others = self._steps
        assert isinstance(first, Connect)
        if not others:
            raise CaseError(f"{self._path}: the device receives nothing, and does nothing")
        return replace(self._case, connection=first.connection, steps=tuple(others))

    def _check_order(self, step: drill.Verb) -> None:
        """Refuse a queue pair that comes when the first ones are connected already."""
        if step.word is None:
            self._refuse(step.line, "qp comes first, or not at all; another one has a name")
        if not self._is_connecting:
            reason = "queue pairs of a case come before what the device receives and does"
            self._refuse(step.line, reason)

    def _set_room(self, steps: Sequence[drill.Step]) -> None:
        """Take the memory of the receive requests of a connection, if it has any."""
        for step in steps:
            if _begins_again(step):
                return
            if isinstance(step, drill.Verb) and step.token.text == "post_recv":
                size, sges, wrong = self._memory(step)
                self._connection = replace(self._connection, room=size, sges=sges, wrong_lkey=wrong)
                return

    def _memory(self, step: drill.Verb) -> tuple[int, int, int]:
        """Bytes of memory of a request, its SGEs, and the number of the one with a wrong key."""
        self._scope.symbols = self._symbols()
        lengths, keys = (self._numbers(step, name) for name in ("len", "lkey"))
        right = [number for name, number in self._symbols().items() if name.endswith("lkey")]
        wrong = next((i for i, key in enumerate(keys, 1) if key not in right), 0)
        size, most = sum(lengths or [256]), OUTBOX if step.token.text == "post_send" else INBOX
        if size > most or len(lengths) > MAXIMUM_SGES:
            reason = f"at most {most} bytes in {MAXIMUM_SGES} pieces"
            self._refuse(step.line, f"a request of a case has {reason}")
        return size, max(len(lengths), 1), wrong

    def _numbers(self, step: drill.Verb, name: str) -> list[int]:
        if name not in step.args:
            return []
        return [each.evaluate(self._scope) for each, _ in step.args[name][1].choices]

    def _step(self, step: drill.Step) -> None:
        if isinstance(step, drill.Impair):
            self._refuse(step.line, "impairments are not for cases of the fuzzer")
        is_action = isinstance(step, drill.Inject)
        if isinstance(step, drill.Verb):
            if step.token.text in _ABOUT_MEMORY:
                self._check_memory(step)
                return
            is_action = step.token.text in self.ACTIONS
            if not is_action and step.token.text not in self.CHECKS:
                self._refuse(step.line, f"{step.token.text} is not for cases of the fuzzer")
        time = self._time(step)
        if not is_action:
            if step.when.low is None or not time:
                self._settle(is_held=False)
            self._waited += time
            self._is_settled = True
            return
        self._waited += time
        self._settle(is_held=not self._waited)
        if isinstance(step, drill.Inject):
            self._packet = self._packet_of(step)
        elif isinstance(step, drill.Verb):
            self._verb(step)
        self._is_settled = False

    def _time(self, step: drill.Step) -> Time:
        when = step.when
        end = when.low if when.high is None else when.high
        if end is None:
            return 0
        self._scope.symbols = self._symbols()
        time = end.evaluate(self._scope)
        if not 0 <= time + self._waited <= MAXIMUM_TIME:
            self._refuse(step.line, f"a wait of {time} ps, not from 0 to {MAXIMUM_TIME}")
        return time

    def _settle(self, *, is_held: bool) -> None:
        """Carry out what is open: the last packet, and the time since."""
        if self._packet is not None:
            packet, self._packet = self._packet, None
            self._carry_out(replace(packet, held=True) if is_held else packet)
        if self._waited:
            time, self._waited = self._waited, 0
            self._carry_out(Wait(time))

    def _carry_out(self, step: Step) -> None:
        self._connect()
        assert self._reference is not None
        if len(self._steps) > MAXIMUM_STEPS:
            raise CaseError(f"{self._path}: more than {MAXIMUM_STEPS} steps")
        self._steps.append(step)
        self._moment = self._reference.do(step)

    def _connect(self) -> None:
        """Connect as the lines so far say, unless that is done."""
        if not self._is_connecting:
            return
        if self._left and self._again is not None:
            names = ", ".join(sorted(self._left))
            reason = f"all queue pairs connect again together: not {names}, which 'modify "
            self._refuse(self._again, reason + "state=RESET' would leave out")
        self._is_connecting = False
        pairs = len(self._names) - len(self._out)
        if self._again is not None and not self._out.isdisjoint(self._names[:pairs]):
            self._refuse(self._again, "the queue pairs that are left out are the last ones")
        least = min(self._receives[:pairs])
        self._connection = replace(self._connection, receives=least, pairs=pairs)
        self._known |= dict.fromkeys(self._names[:pairs], self._connection)
        check_connection(self._connection, f"{self._path}: qp")
        step = Connect(self._connection)
        self._steps.append(step)
        if self._reference is None:
            self._reference = Execution(self._connection, self._profile)
        else:
            self._reference.do(step)
        for number, count in enumerate(self._receives):
            if count > least:
                self._carry_out(Receive(count - least, number))

    def _pair(self, step: Stimulus) -> int:
        self._check_owner(step, self._names)
        if step.owner in self._out:
            self._refuse(step.line, f"{step.owner} is left out since the last reconnect")
        return self._names.index(step.owner)

    def _check_owner(self, step: Stimulus, names: Collection[str]) -> None:
        if step.owner not in names:
            reason = f"{step.owner} does not exist yet: no 'qp {step.owner}' has been carried out"
            self._refuse(step.line, reason)

    # Actions.

    def _verb(self, step: drill.Verb) -> None:
        name = step.token.text
        if name in ("qp", "reconnect"):
            self._describe(step)
        elif name == "modify":
            self._leave_out(step)
        elif name == "srq_limit":
            self._limit(step)
        elif name == "post_recv":
            self._receive(step)
        elif name == "pfc":
            priorities = self._number(step, "priorities", 0xFF)
            self._carry_out(Pause(priorities, self._number(step, "quanta", 0xFFFF)))
        else:
            self._carry_out(self._post(step))

    def _describe(self, step: drill.Verb) -> None:
        """The connection that is made, or made again."""
        given = attributes_of(step, self._scope)
        own = self._attributes(step, given)
        if step.word is not None or step.owner:
            self._check_alike(step, own)
            return
        if step.token.text == "reconnect":
            if self._connection.is_xrc or own.get("service") in XRC:
                self._refuse(step.line, "XRC queue pairs are those of one connection")
            if self._connection.srq:
                self._refuse(step.line, "a shared receive queue is that of one connection")
            self._connect()
            self._is_connecting = True
            self._receives = [0] * len(self._names)
            self._left, self._again = set(self._names[1:]) - self._out, step.line
        table = [given.get(name, 0) for name in ("pkey", *PKEY_NAMES)]
        if any(table) and (tuple(table) != PKEYS or not self._has_table):
            numbers = ", ".join(map(hex, PKEYS))
            self._refuse(step.line, f"the P_Key table of a case is {numbers}, with a pkey_index")
        self._connection = replace(self._connection, **own)
        if self._reference is None:
            self._first = self._connection

    def _attributes(self, step: drill.Verb, given: Mapping[str, int]) -> dict[str, Any]:
        """What a line says of its queue pair, by the names of `Connection`."""
        names = {entry.name for entry in fields(Connection)} & set(VERBS["qp"].args)
        others = {"type", "rearm", "state", *PKEY_NAMES, "pkey"}
        for name in set(given) - names - _OF_QUEUES - others:
            self._refuse(step.line, f"qp {name}= is not for cases of the fuzzer")
        own: dict[str, Any] = {name: given[name] for name in given if name in names}
        if "type" in given:
            own["service"] = QPType(given["type"]).name
            if own["service"] not in SERVICES:
                self._refuse(step.line, f"type is not one of {', '.join(SERVICES)}")
        if "rearm" in given:
            own["rearmed"] = given["rearm"]
        if "state" in given:
            if given["state"] not in (QPState.RTR, QPState.RTS):
                self._refuse(step.line, "the queue pairs of a case are in RTR or RTS")
            own["rtr"] = int(given["state"] == QPState.RTR)
        return own

    def _check_alike(self, step: drill.Verb, own: Mapping[str, Any]) -> None:
        """Take another queue pair, whose attributes have to be those of the first one."""
        if step.word is None:
            self._check_owner(step, self._names)
            if step.owner not in self._left | self._out or not self._is_connecting:
                self._refuse(step.line, "the first queue pair connects again before the others")
            self._left.discard(step.owner)
            self._out.discard(step.owner)
            before = self._known[step.owner]
        else:
            before = replace(self._first, rq_psn=-1, sq_psn=-1)  # drill gives it other ones
        found = replace(before, **own)
        for entry in fields(Connection):
            is_alike = getattr(found, entry.name) == getattr(self._connection, entry.name)
            if entry.name not in NOT_OF_A_PAIR and not is_alike:
                name = _WORDS.get(entry.name, entry.name)
                self._refuse(step.line, f"{name} is not that of the first queue pair")
        if step.word is not None:
            if len(self._names) == MAXIMUM_PAIRS:
                self._refuse(step.line, f"a case has at most {MAXIMUM_PAIRS} queue pairs")
            self._names.append(step.word.text)
            self._receives.append(0)

    def _leave_out(self, step: drill.Verb) -> None:
        """A queue pair that is in RESET while others connect again."""
        is_reset = set(step.args) == {"state"} and self._number(step, "state", 0) == QPState.RESET
        if not is_reset or not self._is_connecting or step.owner not in self._left:
            reason = "modify is for cases as 'NAME modify state=RESET' after reconnect"
            self._refuse(step.line, reason)
        self._left.discard(step.owner)
        self._out.add(step.owner)

    def _limit(self, step: drill.Verb) -> None:
        """The limit of the shared receive queue, before the device receives or does anything."""
        if not (self._is_connecting and self._connection.shares_receive_queue):
            reason = "srq_limit of a case comes right after the queue pairs with srq=1 or of XRC"
            self._refuse(step.line, reason)
        limit = self._number(step, "limit", 0)
        self._connection = replace(self._connection, srq_limit=limit)

    def _receive(self, step: drill.Verb) -> None:
        connection, pair = self._connection, self._pair(step)
        if connection.service == "XRC_SEND":
            self._refuse(step.line, "an XRC_SEND queue pair takes no receive requests")
        if self._memory(step) != (connection.room, connection.sges, connection.wrong_lkey):
            self._refuse(step.line, "all receive requests of a case have the same pieces of memory")
        if self._is_connecting and not self._is_settled:
            self._receives[pair] += 1
            return
        last = self._steps[-1] if self._steps else None
        if isinstance(last, Receive) and last.pair == pair and not self._is_settled:
            self._steps[-1] = Receive(last.count + 1, pair)
            assert self._reference is not None
            self._reference.do(Receive(1, pair))
        else:
            self._carry_out(Receive(1, pair))

    def _post(self, step: drill.Verb) -> Post:
        assert step.word is not None
        self._connect()
        opcode = WROpcode(SEND_OPCODES[step.word.text])
        remote = self._number(step, "remote_addr", PEER_VA) - PEER_VA
        if not 0 <= remote < 1 << 20 or self._number(step, "rkey", PEER_RKEY) != PEER_RKEY:
            place = f"at {PEER_VA:#x}, with R_Key {PEER_RKEY:#x}"
            self._refuse(step.line, f"the peer's memory is {place}")
        self._check_values(step, remote, opcode)
        flags = self._number(step, "flags", _SIGNALED)
        if flags & SendFlags.INLINE:
            self._refuse(step.line, "requests of a case are not inline")
        length, sges, wrong = self._memory(step)
        if opcode is WROpcode.LOCAL_INV:
            length, sges, wrong = 0, 1, 0
        return Post(
            int(opcode),
            length,
            remote,
            signaled=bool(flags & SendFlags.SIGNALED),
            pair=self._pair(step),
            sges=sges,
            wrong_lkey=wrong,
            fence=bool(flags & SendFlags.FENCE),
            solicited=bool(flags & SendFlags.SOLICITED),
        )

    def _number(self, step: drill.Verb, name: str, default: int) -> int:
        if name not in step.args:
            return default
        value = step.args[name][1]
        if len(value.choices) != 1:
            self._refuse(step.line, f"{name} of a case of the fuzzer is one number")
        self._scope.symbols = self._symbols()
        return single(value).evaluate(self._scope)

    def _check_values(self, step: drill.Verb, remote: int, opcode: WROpcode) -> None:
        """Refuse what no request of a case carries: that is the same in every case."""
        carried = {**_CARRIED, "remote_qkey": OWN_QKEY if remote & 8 else QKEY + remote}
        if opcode is WROpcode.LOCAL_INV:
            carried["invalidate_rkey"] = self._symbols().get("mw.rkey", 0)
        for name in step.args:
            if name in _SAID:
                continue
            number = carried.get(name)
            if number is None:
                self._refuse(step.line, f"post_send {name}= is not for cases of the fuzzer")
            if self._number(step, name, number) != number:
                self._refuse(step.line, f"{name} of a request of a case is {number:#x}")

    def _check_memory(self, step: drill.Verb) -> None:
        """Every case has the same memory, with the test pattern in it at the beginning."""
        reason = wrong_memory(step, self._path)
        if not reason and step.token.text == "store" and not self._is_connecting:
            reason = "memory of a case is written before the device receives or does anything"
        if reason:
            self._refuse(step.line, reason)

    # Packets.

    def _packet_of(self, step: drill.Inject) -> Packet:
        literal = step.literal
        if literal.form is not None:
            self._refuse(step.line, "messages of connection management are cases of their own")
        if literal.data is not None or "fill" in literal.words:
            self._refuse(step.line, "the payload of a case is the test pattern, padded with zeros")
        self._connect()
        assert self._reference is not None
        device, pair = self._reference.device, self._pair(step)
        device.focus(pair)
        symbols = device.symbols
        first = self._first_psn(literal)
        self._scope.symbols = {**symbols, "psn": first, **self._first_psns()}
        base = self._base(literal)
        words = {name: self._word(literal, name) for name in literal.words}
        given: dict[str, Value] = {}
        psn = first
        for place, (_, value) in literal.fields.items():
            name = f"{place.part}.{place.field.name}"
            if place.part == "vlan":
                self._refuse(step.line, "packets of a case have no VLAN tag")
            if name == "bth.psn":
                psn = single(value).evaluate(self._scope)
            else:
                own = self._value(step.line, single(value), symbols)
                mask = (1 << place.field.size) - 1
                given[name] = own & mask if isinstance(own, int) else own
        self._set_usual(literal, given, words)
        return Packet(
            literal.opcode,
            (base, distance(device.psn(base), psn & 0xFFFFFF)),
            words.get("len", 0),
            words.get("at", 0),
            given,
            words.get("pad"),
            words.get("more", 0),
            words.get("cut"),
            words.get("icrc", GOOD_ICRC),
            why=comment_of(step.line),
            pair=pair,
        )

    def _base(self, literal: Literal) -> str:
        """What the PSN of a packet counts from in the case."""
        return "una" if literal.is_response else "expected"

    def _first_psn(self, literal: Literal) -> int:
        """The first PSN of the requests that a packet belongs to."""
        return self._connection.sq_psn if literal.is_response else self._connection.rq_psn

    def _word(self, literal: Literal, name: str) -> int:
        token, value = literal.words[name]
        number = single(value).evaluate(self._scope)
        low, high = LIMITS.get(name, (0, NONE))
        if not low <= number <= high:
            raise self._scope.error(token, f"{name} is {number}, not from {low} to {high}")
        return number

    def _set_usual(
        self, literal: Literal, given: dict[str, Value], words: Mapping[str, int]
    ) -> None:
        """What a script says where a case says nothing, and the other way round."""
        assert self._reference is not None
        for name, kind in _SYNDROMES.items():
            if name in words:
                given["aeth.syndrome"] = kind << 5 | words[name]
        if given.get("bth.ack_req", 0) == 1:
            del given["bth.ack_req"]
        else:
            given.setdefault("bth.ack_req", 0)
        info = INFO.get(literal.opcode)
        parts = {kind.KEY for kind in (info.headers if info else ())}
        for name, (usual, ours) in _USUAL.items():
            if name.partition(".")[0] in parts:
                if given.get(name, ours) == usual:
                    given.pop(name, None)
                else:
                    given.setdefault(name, ours)
        msn, oldest = given.get("aeth.msn"), self._reference.device.oldest_ssn
        if isinstance(msn, int) and literal.is_response and abs(msn - oldest) < NEAR:
            given["aeth.msn"] = "ssn", msn - oldest

    def _value(self, line: Line, expression: Expression, symbols: Symbols) -> Value:
        """A value, from a number of the connection if it counts from one."""
        number = expression.evaluate(self._scope)
        found = set(_NAME.findall(expression.text)) & set(symbols)
        if not found:
            return number
        (name, *others) = sorted(found)
        scope = Scope(self._path, {**self._scope.symbols, name: symbols[name] + 1})
        if others or expression.evaluate(scope) != number + 1:
            self._refuse(line, f"{expression.text}: not a number of the connection and an offset")
        return name, number - symbols[name]

    def _symbols(self) -> dict[str, int]:
        known = {} if self._reference is None else self._reference.device.symbols
        return {**_UNKNOWN, **known, **self._first_psns()}

    def _first_psns(self) -> dict[str, int]:
        return {"rq_psn": self._connection.rq_psn, "sq_psn": self._connection.sq_psn}

    def _refuse(self, line: Line, reason: str) -> NoReturn:
        raise CaseError(f"{self._path}:{line.number}: {reason}")


def _begins_again(step: drill.Step) -> bool:
    """Whether the next connection begins with it."""
    if not isinstance(step, drill.Verb):
        return False
    return step.token.text == "reconnect" and not step.owner


def comment_of(line: Line) -> str:
    """The comment at the end of a line of a script."""
    in_text = False
    for at, sign in enumerate(line.text):
        if sign == '"':
            in_text = not in_text
        elif not in_text and line.text.startswith("//", at):
            return line.text[at + 2 :].strip()[:MAXIMUM_TEXT]
    return ""


_SIGNALED = int(SendFlags.SIGNALED)
_ABOUT_MEMORY = frozenset({"mr", "mw", "store"})
_WORDS = {"service": "type", "rearmed": "rearm"}
"""Attributes that scripts call otherwise."""

_OF_QUEUES = frozenset({"size", "max_send_wr", "max_recv_wr", "send_cqe", "recv_cqe"})
_SAID = frozenset({"wr_id", "len", "addr", "lkey", "remote_addr", "rkey", "flags", "fails"})
"""Arguments of `post_send` that a step has, or that the fuzzer chooses."""

_CARRIED = {
    "imm_data": 0x1A2B3C4D,
    "invalidate_rkey": PEER_RKEY,
    "compare_add": 3,
    "swap": 5,
    "remote_srqn": PEER_SRQN,
    "u64": int.from_bytes(bytes(range(8)), "little"),
}
"""What the requests of every case carry (`send_request`)."""

_NAME = re.compile(r"[a-z_]+(?:\.[a-z_]+)?")
_SYNDROMES = {"nak": AckKind.NAK, "rnr": AckKind.RNR_NAK, "credits": AckKind.ACK}
_UNKNOWN = {"inbox.lkey": 0, "outbox.lkey": 0, "outbox.va": 0, "lkey": 0, "inbox.va": 0}
"""Numbers that a case does not need."""

_USUAL: Mapping[str, tuple[Value, Value]] = {
    "immdt.imm_data": (0x1A2B3C4D, 0),
    "ieth.rkey": (("mw.rkey", 0), 0),
}
"""Fields whose value in a case that does not say it, the first, is not that of a script."""
