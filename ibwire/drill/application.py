"""The verbs of a script: what the application of the device does and checks."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Mapping
from itertools import accumulate

from ibwire.base.errors import VerbsError
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.literals import single
from ibwire.drill.language.steps import Verb
from ibwire.drill.language.vocabulary import (
    ACCESS,
    MANAGER_VERBS,
    SEND_OPCODES,
    STATES,
    VERBS,
    impossible,
)
from ibwire.drill.packets import byte_difference, pattern
from ibwire.drill.targets.emulated import ADDRESSES, LIMITS, OF_DEVICE
from ibwire.drill.targets.manager import described
from ibwire.drill.targets.queue_pair import PEER_SRQN
from ibwire.drill.targets.target import (
    CommandedManager,
    ManagerEvent,
    QueuePairVerbs,
    Unable,
    Verbs,
)
from ibwire.peer import QKEY
from ibwire.rc.attributes import MTU_CODES, EventType, QPState
from ibwire.rc.work import SGE, WC, RecvWR, SendFlags, SendWR, WCOpcode, WCStatus, WROpcode

MAXIMUM_MEMORY = 1 << 22
"""Bytes that one line of a script registers, writes or compares."""

LARGEST_MESSAGE = 1 << 32
"""Above the largest message, which is 2^31 bytes."""


class Application:
    """Carries verbs out; `summary` describes the last one, for the time line.

    manager: makes or finds the device's connection manager.
    """

    def __init__(
        self, device: Verbs, scope: Scope, manager: Callable[[], CommandedManager] | None = None
    ) -> None:
        self._device = device
        self._find_manager = manager
        self._scope = scope
        self.summary = ""
        self._completions: dict[tuple[str, str], list[WC]] = {}
        self._raised: list[str] = []
        """Completion queues with an event, `recv` or `NAME recv`."""
        self._events: list[EventType] = []
        self._used_manager: CommandedManager | None = None

    def do(self, step: Verb) -> str | None:
        """Carry a verb out; returns what differs from its expectation, `None` for nothing."""
        name = step.token.text
        self.summary = self.wanted(step)
        if "fails" in step.args:
            return self._do_failing(step)
        try:
            return _HANDLERS[name](self, step)
        except VerbsError as error:
            return f"{error}"

    def is_there(self, step: Verb) -> bool:
        """Whether there is a completion or event for a verb that waits for one."""
        self._collect()
        if step.word is None:
            return False
        if step.token.text == "event":
            return bool(self._events)
        if step.token.text == "cm_event":
            return bool(self._manager.events.get(step.owner))
        if step.token.text == "cq_event":
            return bool(self._raised)
        return bool(self._completions.get((step.owner, step.word.text)))

    def left_over(self) -> str | None:
        """The first completion or event that no line of the script has expected."""
        self._collect()
        for (owner, name), completions in self._completions.items():
            if completions:
                of = f" of {owner}" * bool(owner)
                return f"a completion of the {name} queue{of}: {_completion(completions[0])}"
        if self._raised:
            return f"an event of the completion queue {self._raised[0]}"
        if self._events:
            return f"the event {self._events[0].name}"
        for owner, events in self._manager_events().items():
            if events:
                return f"the event {described(events[0])}" + f" of {owner}" * bool(owner)
        return None

    def _manager_events(self) -> Mapping[str, deque[ManagerEvent]]:
        return {} if self._used_manager is None else self._used_manager.events

    def wanted(self, step: Verb) -> str:
        """A verb as written, with the values of its symbols."""
        words = [step.owner] * bool(step.owner) + [step.token.text]
        if step.word is not None:
            words.append(step.word.text)
        if step.address is not None:
            words.append(step.address.shown(self._scope))
        words += [f"{name}={value.shown(self._scope)}" for name, (_, value) in step.args.items()]
        if step.data is not None:
            words.append(f'data="{step.data.hex()}"')
        return " ".join(words)

    def _collect(self) -> None:
        """Read completions and events of the device."""
        completions, events, raised = self._device.gather()
        for queue, found in completions.items():
            self._completions.setdefault(queue, []).extend(found)
        self._events += events
        self._raised += raised

    def _do_failing(self, step: Verb) -> str | None:
        code = self._number(step, "fails", 0)
        try:
            problem = _HANDLERS[step.token.text](self, step)
        except VerbsError as error:
            if error.errno == code:
                return None
            return f"{error}, not {errno.errorcode.get(code, str(code))}"
        return problem or "it did not fail"

    def _number(
        self, step: Verb, name: str, default: int, low: int = 0, high: int = (1 << 64) - 1
    ) -> int:
        if name not in step.args:
            return default
        token, value = step.args[name]
        number = single(value).evaluate(self._scope)
        if not low <= number <= high:
            raise self._scope.error(token, f"{name} is {number}, not from {low} to {high}")
        names = VERBS[step.token.text].args[name]
        problem = "" if step.token.text == "modify" else impossible(name, names, number)
        if problem:
            raise self._scope.error(token, problem)
        return number

    # What the application does.

    def _register(self, step: Verb) -> str | None:
        assert step.word is not None
        length = self._number(step, "len", 4096, 1, MAXIMUM_MEMORY)
        access = self._number(step, "access", ACCESS["ALL"])
        self._device.register(step.word.text, length, access, other_pd=bool("pd" in step.args))
        return None

    def _bind(self, step: Verb) -> str | None:
        assert step.word is not None
        va = self._number(step, "va", self._scope.symbols["va"])
        length = self._number(step, "len", 4096, 0, MAXIMUM_MEMORY)
        access = self._number(step, "access", ACCESS["REMOTE_WRITE"] | ACCESS["REMOTE_READ"])
        kind = self._number(step, "type", 2)
        self._device.bind(step.word.text, va, length, access, step.owner, kind=kind)
        return None

    def _bind_again(self, step: Verb) -> str | None:
        name = self._existing(step)
        va = self._number(step, "va", self._scope.symbols[f"{name}.va"])
        length = self._number(step, "len", self._scope.symbols[f"{name}.size"], 0, MAXIMUM_MEMORY)
        access = self._number(step, "access", ACCESS["REMOTE_WRITE"] | ACCESS["REMOTE_READ"])
        wr = self._device.window_request(name, va, length, access)
        wr.wr_id = self._number(step, "wr_id", 0)
        wr.send_flags = self._number(step, "flags", int(SendFlags.SIGNALED))
        self._queue_pair(step).post_send(wr)
        return None

    def _create(self, step: Verb) -> str | None:
        assert step.word is not None
        self._device.create(step.word.text, attributes_of(step, self._scope))
        return None

    def _reconnect(self, step: Verb) -> str | None:
        self._device.reconnect(step.owner, attributes_of(step, self._scope))
        return None

    def _notify(self, step: Verb) -> str | None:
        assert step.word is not None
        only = bool(self._number(step, "solicited", 0))
        self._queue_pair(step).notify(step.word.text, solicited_only=only)
        return None

    def _limit(self, step: Verb) -> str | None:
        self._queue_pair(step).limit(self._number(step, "limit", 0))
        return None

    def _pfc(self, step: Verb) -> str | None:
        priorities = self._number(step, "priorities", 0xFF)
        self._device.pause(priorities, self._number(step, "quanta", 0xFFFF))
        return None

    def take_all(self) -> None:
        """Take the completions and events until now, whatever they are."""
        self._collect()
        self._completions.clear()
        self._raised.clear()
        self._events.clear()
        for events in self._manager_events().values():
            events.clear()

    def _queue_pair(self, step: Verb) -> QueuePairVerbs:
        return self._device.queue_pair(step.owner)

    def _deregister(self, step: Verb) -> str | None:
        self._device.deregister(self._existing(step))
        return None

    def _existing(self, step: Verb) -> str:
        """The name of a region or window, which another profile's block may have made."""
        assert step.word is not None
        name = step.word.text
        if name != "mr" and f"{name}.va" not in self._scope.symbols:
            raise self._scope.error(step.word, f"{name} does not exist yet")
        return name

    def _modify(self, step: Verb) -> str | None:
        given = {
            name: self._number(step, name, 0)
            for name in step.args
            if name not in ("state", "fails")
        }
        state = QPState(self._number(step, "state", 0)) if "state" in step.args else None
        self._queue_pair(step).modify(given, state)
        return None

    def _post_recv(self, step: Verb) -> str | None:
        sges = self._sges(step, 256)
        self._queue_pair(step).post_recv(RecvWR(sges, self._number(step, "wr_id", 0)))
        return None

    def _post_send(self, step: Verb) -> str | None:
        assert step.word is not None
        opcode = WROpcode(SEND_OPCODES[step.word.text])
        atomic = opcode in (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)
        takes_memory = opcode not in (WROpcode.FLUSH, WROpcode.ATOMIC_WRITE, WROpcode.LOCAL_INV)
        wr = SendWR(
            opcode,
            self._sges(step, 8 if atomic else 256) if takes_memory else [],
            self._number(step, "flags", int(SendFlags.SIGNALED)),
            self._number(step, "wr_id", 0),
            imm_data=self._number(step, "imm_data", 0),
            invalidate_rkey=self._number(step, "invalidate_rkey", 0),
            remote_addr=self._number(step, "remote_addr", self._scope.symbols["va"]),
            rkey=self._number(step, "rkey", self._scope.symbols["rkey"]),
            compare_add=self._number(step, "compare_add", 0),
            swap=self._number(step, "swap", 0),
            flush_type=self._number(step, "flush_type", 1),
            flush_level=self._number(step, "flush_level", 0),
            length=self._number(step, "flush_len", 0),
            atomic_data=self._number(step, "u64", 0).to_bytes(8, "little"),
            remote_qpn=self._number(step, "remote_qpn", self._scope.symbols["peer_qpn"]),
            remote_qkey=self._number(step, "remote_qkey", QKEY),
            remote_srqn=self._number(step, "remote_srqn", PEER_SRQN),
        )
        self._queue_pair(step).post_send(wr)
        return None

    def _sges(self, step: Verb, default: int) -> list[SGE]:
        lengths = self._numbers(step, "len", default, LARGEST_MESSAGE)
        addresses = self._numbers(step, "addr", self._scope.symbols["va"], (1 << 64) - 1)
        keys = self._numbers(step, "lkey", self._scope.symbols["lkey"], (1 << 32) - 1)
        if len(lengths) == 1 and not lengths[0]:
            return []
        count = max(map(len, (lengths, addresses, keys)))
        for name, numbers in (("len", lengths), ("addr", addresses), ("lkey", keys)):
            if len(numbers) not in (1, count):
                token = step.args[name][0]
                raise self._scope.error(token, f"{len(numbers)} numbers for {count} pieces")
        lengths, keys = (each * count if len(each) == 1 else each for each in (lengths, keys))
        if len(addresses) == 1:  # one piece behind the other
            addresses = list(accumulate(lengths[:-1], initial=addresses[0]))
        return [SGE(*each) for each in zip(addresses, lengths, keys, strict=True)]

    def _numbers(self, step: Verb, name: str, default: int, high: int) -> list[int]:
        """The values of an argument that may have several."""
        if name not in step.args:
            return [default]
        token, value = step.args[name]
        numbers = [each.evaluate(self._scope) for each, _ in value.choices]
        for number in numbers:
            if not 0 <= number <= high:
                raise self._scope.error(token, f"{name} is {number}, not from 0 to {high}")
        return numbers

    def _store(self, step: Verb) -> str | None:
        address, data = self._contents(step)
        self._device.write(address, data)
        return None

    # What it checks.

    def _memory(self, step: Verb) -> str | None:
        address, expected = self._contents(step)
        actual = self._device.read(address, len(expected))
        return None if actual == expected else byte_difference(expected, actual)

    def _contents(self, step: Verb) -> tuple[int, bytes]:
        """Address and bytes in a line."""
        assert step.address is not None
        address = step.address.evaluate(self._scope)
        if step.data is not None:
            return address, step.data
        if "u64" in step.args:
            return address, self._number(step, "u64", 0).to_bytes(8, "little")
        length = self._number(step, "len", 256, 0, MAXIMUM_MEMORY)
        if "zero" in step.args:
            return address, bytes(length)
        return address, pattern(self._number(step, "at", 0, 0, 1 << 31), length)

    def _poll(self, step: Verb) -> str | None:
        assert step.word is not None
        self._collect()
        found = self._completions.get((step.owner, step.word.text), [])
        if "nothing" in step.args:
            return _completion(found[0]) if found else None
        if not found:
            return "no completion"
        completion = found.pop(0)
        actual = {
            "wr_id": completion.wr_id,
            "status": int(completion.status),
            "opcode": int(completion.opcode),
            "byte_len": completion.byte_len,
            "imm_data": completion.imm_data,
            "src_qp": completion.src_qp,
            "pkey_index": completion.pkey_index,
            "flags": int(completion.wc_flags),
        }
        # Unless a script expects another status, a completion has to be a success.
        wrong = "status" not in step.args and completion.status is not WCStatus.SUCCESS
        captured: dict[str, int] = {}
        for name, (_, value) in step.args.items():
            if value.name:
                captured[value.name] = actual[name]
            wrong = wrong or not value.accepts(actual[name], self._scope)
        if wrong:
            return _completion(completion)
        self._scope.captured.update(captured)
        return None

    def _event(self, step: Verb) -> str | None:
        assert step.word is not None
        self._collect()
        if step.word.text == "nothing":
            return self._events[0].name if self._events else None
        if not self._events:
            return "no event"
        event = self._events.pop(0)
        return None if event.name == step.word.text else event.name

    def _cq_event(self, step: Verb) -> str | None:
        assert step.word is not None
        self._collect()
        if step.word.text == "nothing":
            return self._raised[0] if self._raised else None
        if not self._raised:
            return "no event"
        found = self._raised.pop(0)
        return None if found == f"{step.owner} {step.word.text}".strip() else found

    def _manage(self, step: Verb) -> str | None:
        given = {
            name: self._number(step, name, 0, *_MANAGER_LIMITS.get(name, (0, (1 << 64) - 1)))
            for name in step.args
            if name != "fails"
        }
        self._manager.do(step.token.text, given, step.owner)
        return None

    def _cm_event(self, step: Verb) -> str | None:
        assert step.word is not None
        events = self._manager.events.get(step.owner, deque())
        if step.word.text == "nothing":
            return described(events[0]) if events else None
        if not events:
            return "no event"
        event = events.popleft()
        if event.kind.name != step.word.text:
            return described(event)
        if "reason" in step.args:
            value = step.args["reason"][1]
            if not value.accepts(event.reason, self._scope):
                return described(event)
            if value.name:
                self._scope.captured[value.name] = event.reason
        return None

    @property
    def _manager(self) -> CommandedManager:
        if self._find_manager is None:
            raise Unable("needs a connection manager that a script can command")
        self._used_manager = self._find_manager()
        return self._used_manager

    def _state(self, step: Verb) -> str | None:
        assert step.word is not None
        state = self._queue_pair(step).state
        return None if state == STATES[step.word.text] else state.name


def attributes_of(step: Verb, scope: Scope) -> dict[str, int]:
    """The arguments of `qp` and `reconnect`; raises `ScriptError` for impossible ones."""
    given: dict[str, int] = {}
    for name, (token, value) in step.args.items():
        number = given[name] = single(value).evaluate(scope)
        if step.word is not None and name in OF_DEVICE:
            raise scope.error(token, f"{name} is of the device: the first qp may give it")
        low, high = LIMITS.get(name, (0, 1 << 32))
        if not low <= number <= high:
            raise scope.error(token, f"{name} is {number}, not from {low} to {high}")
        problem = impossible(name, VERBS["qp"].args[name], number)
        if problem:
            raise scope.error(token, problem)
        if name == "mtu" and number not in MTU_CODES:
            raise scope.error(token, f"mtu is {number}, not one of {list(MTU_CODES)}")
        if name == "version" and number not in ADDRESSES:
            raise scope.error(token, f"version is {number}, not 4 or 6")
    return given


def _completion(wc: WC) -> str:
    """A completion as text; after an error only `wr_id` and status are valid."""
    text = f"wr_id={wc.wr_id} status={wc.status.name}"
    if wc.status is WCStatus.SUCCESS:
        text += f" opcode={WCOpcode(wc.opcode).name} byte_len={wc.byte_len}"
        text += f" imm_data={wc.imm_data:#x} flags={int(wc.wc_flags)}"
    return text


_HANDLERS: dict[str, Callable[[Application, Verb], str | None]] = {
    "mr": Application._register,
    "mw": Application._bind,
    "bind": Application._bind_again,
    "qp": Application._create,
    "reconnect": Application._reconnect,
    "notify": Application._notify,
    "cq_event": Application._cq_event,
    "srq_limit": Application._limit,
    "pfc": Application._pfc,
    "dereg": Application._deregister,
    "modify": Application._modify,
    "post_recv": Application._post_recv,
    "post_send": Application._post_send,
    "store": Application._store,
    "memory": Application._memory,
    "poll": Application._poll,
    "event": Application._event,
    "state": Application._state,
    **dict.fromkeys(MANAGER_VERBS, Application._manage),
    "cm_event": Application._cm_event,
}

_MANAGER_LIMITS = {
    "backlog": (1, 1 << 10),
    "initiator_depth": (0, 16),
    "responder_resources": (0, 16),
    "response_timeout": (0, 31),
    "max_cm_retries": (0, 15),
    "service_timeout": (0, 31),
    "reason": (0, 0xFFFF),
}
"""Least and greatest value of each argument of a connection manager."""
