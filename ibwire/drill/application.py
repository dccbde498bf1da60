"""The verbs of a script, carried out on the device: what its application does and finds."""

from __future__ import annotations

import errno
from collections.abc import Callable

from ibwire.drill.emulated import Emulated
from ibwire.drill.expressions import Scope
from ibwire.drill.literals import single
from ibwire.drill.packets import byte_difference, pattern
from ibwire.drill.steps import Verb
from ibwire.drill.vocabulary import ACCESS, SEND_OPCODES, STATES
from ibwire.errors import VerbsError
from ibwire.rc.attributes import AsyncEvent, QPState
from ibwire.rc.work import SGE, WC, RecvWR, SendFlags, SendWR, WCOpcode, WCStatus, WROpcode

MAXIMUM_MEMORY = 1 << 22
"""Bytes that one line of a script registers, writes or compares."""

LARGEST_MESSAGE = 1 << 32
"""Above the largest message, which is 2^31 bytes."""


class Application:
    """Does what verbs say; `told` is what the last one did, for the time line."""

    def __init__(self, device: Emulated, scope: Scope) -> None:
        self._device = device
        self._scope = scope
        self.told = ""
        self._completions: dict[str, list[WC]] = {"send": [], "recv": []}
        self._events: list[AsyncEvent] = []

    def do(self, step: Verb) -> str | None:
        """Carry a verb out; what was not as it says, `None` if all was."""
        name = step.token.text
        self.told = self.wanted(step)
        if "fails" in step.args:
            return self._do_failing(step)
        try:
            return _HANDLERS[name](self, step)
        except VerbsError as error:
            return f"{error}"

    def is_there(self, step: Verb) -> bool:
        """Whether what `poll` or `event` waits for has come, whatever it is."""
        self._collect()
        if step.word is None:
            return False
        if step.token.text == "event":
            return bool(self._events)
        return bool(self._completions[step.word.text])

    def left_over(self) -> str | None:
        """A completion or event that no line of the script has looked at."""
        self._collect()
        for name, completions in self._completions.items():
            if completions:
                return f"a completion of the {name} queue: {_completion(completions[0])}"
        if self._events:
            return f"the event {self._events[0].event_type.name}"
        return None

    def wanted(self, step: Verb) -> str:
        """A verb as written, with the numbers behind its symbols."""
        words = [step.token.text]
        if step.word is not None:
            words.append(step.word.text)
        if step.address is not None:
            words.append(step.address.shown(self._scope))
        words += [f"{name}={value.shown(self._scope)}" for name, (_, value) in step.args.items()]
        if step.data is not None:
            words.append(f'data="{step.data.hex()}"')
        return " ".join(words)

    def _collect(self) -> None:
        """Take what has completed and happened from the device."""
        for name, found in self._completions.items():
            while (completion := self._device.completion(name)) is not None:
                found.append(completion)
        while (event := self._device.event()) is not None:
            self._events.append(event)

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
        region = self._device.regions["mr"]
        length = self._number(step, "len", 4096, 0, MAXIMUM_MEMORY)
        access = self._number(step, "access", ACCESS["REMOTE_WRITE"] | ACCESS["REMOTE_READ"])
        self._device.bind(step.word.text, self._number(step, "va", region.iova), length, access)
        return None

    def _deregister(self, step: Verb) -> str | None:
        assert step.word is not None
        self._device.regions[step.word.text].deregister()
        return None

    def _modify(self, step: Verb) -> str | None:
        given = {
            name: self._number(step, name, 0)
            for name in step.args
            if name not in ("state", "fails")
        }
        state = QPState(self._number(step, "state", 0)) if "state" in step.args else None
        self._device.modify(given, state)
        return None

    def _post_recv(self, step: Verb) -> str | None:
        sges = self._sges(step, 256)
        self._device.post_recv(RecvWR(sges, self._number(step, "wr_id", 0)))
        return None

    def _post_send(self, step: Verb) -> str | None:
        assert step.word is not None
        region = self._device.regions["mr"]
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
            remote_addr=self._number(step, "remote_addr", region.iova),
            rkey=self._number(step, "rkey", region.rkey),
            compare_add=self._number(step, "compare_add", 0),
            swap=self._number(step, "swap", 0),
            flush_type=self._number(step, "flush_type", 1),
            flush_level=self._number(step, "flush_level", 0),
            length=self._number(step, "flush_len", 0),
            atomic_data=self._number(step, "u64", 0).to_bytes(8, "little"),
        )
        self._device.post_send(wr)
        return None

    def _sges(self, step: Verb, default: int) -> list[SGE]:
        length = self._number(step, "len", default, 0, LARGEST_MESSAGE)
        if not length:
            return []
        region = self._device.regions["mr"]
        address = self._number(step, "addr", region.iova)
        return [SGE(address, length, self._number(step, "lkey", region.lkey))]

    def _store(self, step: Verb) -> str | None:
        address, data = self._contents(step)
        self._device.region_at(address, len(data)).write(address, data)
        return None

    # What it finds.

    def _memory(self, step: Verb) -> str | None:
        address, expected = self._contents(step)
        actual = self._device.region_at(address, len(expected)).read(address, len(expected))
        return None if actual == expected else byte_difference(expected, actual)

    def _contents(self, step: Verb) -> tuple[int, bytes]:
        """Address and bytes that a line has."""
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
        found = self._completions[step.word.text]
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
            "flags": int(completion.wc_flags),
        }
        # A completion is a success unless a script expects something else of it.
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
            return self._events[0].event_type.name if self._events else None
        if not self._events:
            return "no event"
        event = self._events.pop(0)
        return None if event.event_type.name == step.word.text else event.event_type.name

    def _state(self, step: Verb) -> str | None:
        assert step.word is not None
        state = self._device.qp.state
        return None if state == STATES[step.word.text] else state.name


def _completion(wc: WC) -> str:
    """A completion in a line; after an error only its number and status count."""
    text = f"wr_id={wc.wr_id} status={wc.status.name}"
    if wc.status is WCStatus.SUCCESS:
        text += f" opcode={WCOpcode(wc.opcode).name} byte_len={wc.byte_len}"
        text += f" imm_data={wc.imm_data:#x} flags={int(wc.wc_flags)}"
    return text


_HANDLERS: dict[str, Callable[[Application, Verb], str | None]] = {
    "mr": Application._register,
    "mw": Application._bind,
    "dereg": Application._deregister,
    "modify": Application._modify,
    "post_recv": Application._post_recv,
    "post_send": Application._post_send,
    "store": Application._store,
    "memory": Application._memory,
    "poll": Application._poll,
    "event": Application._event,
    "state": Application._state,
}
