"""What findings have in common that have one cause, although they show at different packets.

A wrong number in an answer may come of one line of a device whatever the answer is about: then the
same field is wrong by as much, in answers of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.fuzz.case import Packet, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.concurrency import DUPLICATE_RULES, DUPLICATE_WRITE
from ibwire.fuzz.judge.effects import (
    ANOTHER_ORDER,
    GAP_NAK,
    OF_FIELD,
    RNR_RETRY,
    Effect,
    extra_frame,
    parsed,
    statuses_of,
)
from ibwire.fuzz.judge.findings import PARTS_OF_COMPLETION, first_verdicts, part_of
from ibwire.fuzz.judge.partial_ack import GROUP as PART_OF_ACK
from ibwire.fuzz.judge.request_names import NOT_READY, OLDEST_SAVED, OTHERS_WINDOW, UC_BEGINNINGS
from ibwire.fuzz.judge.response_names import INSIDE_MESSAGE, is_repeated
from ibwire.fuzz.judge.scene import LOCAL_INVALIDATE, RNR_WAIT, SHORT, Scene, stores_response
from ibwire.fuzz.judge.sending import may_send, retransmits_otherwise
from ibwire.fuzz.judge.subject import About
from ibwire.rc.work import WCOpcode, WCStatus
from ibwire_layers.opcodes import INFO, Operation


@dataclass(frozen=True, slots=True)
class Cause:
    """Keys of findings, equal where they probably have one cause."""

    own: tuple[str, ...] = ()
    """Of this finding, and of others that belong to it."""
    wider: tuple[str, ...] = ()
    """Of findings that this one belongs to, if they are there."""


def cause_of(scene: Scene, effect: Effect, about: About) -> Cause:
    """What a difference has in common with others of one cause, beside what it is about."""
    if effect.group == "imm_data flags":
        return Cause(("immediate data that a completion lacks",))
    if scene.difference.kind is Kind.COMPLETION and effect.group in _OF_COMPLETION:
        if about.is_wrong or about in UC_BEGINNINGS:
            return Cause()  # a part of a message may be missing
        return _of_completion(scene, effect)
    if not scene.is_reliable and scene.has_wrong and _takes_another_request(scene, effect):
        return Cause(("the receive request after a dropped message",))
    storing = scene.held or scene.storing
    if effect.group == "data" and storing is not None:
        return Cause((f"other bytes among those of a {operation_of(storing)}",))
    if scene.difference.kind is Kind.MEMORY and _stores_otherwise(scene):
        where = "behind" if scene.is_beyond else "among"
        return Cause((f"other bytes {where} those of a {operation_of(scene.step)}",))
    if effect.group == "another NAK":
        expected, got = first_verdicts(scene.difference)
        return Cause((f"{got} instead of {expected} for {operation_of(scene.step)}",))
    if status := _other_error(scene.difference):
        return Cause((status,))
    is_answer = scene.difference.kind is Kind.ANSWER
    is_behind_wait = is_answer and about is RNR_WAIT and bool(scene.difference.got)
    own = (AFTER_RNR_WAIT,) if is_behind_wait else ()
    if not is_answer or effect.group not in OF_FIELD:
        return Cause(own)
    if scene.is_retransmission:
        of_field = f"{effect.group} of what is retransmitted"
        # If it is wrong the first time, that is the cause.
        return Cause((*own, of_field), (f"a right packet: {effect.group}",))
    if own:
        return Cause(own)
    return _of_answer(scene, effect, about)


def _takes_another_request(scene: Scene, effect: Effect) -> bool:
    """Whether a message seems to use another receive request than it should."""
    if "wr_id" in effect.group.split():
        return True
    info = INFO.get(scene.step.opcode) if isinstance(scene.step, Packet) else None
    is_send = info is not None and info.operation is Operation.SEND
    is_right = not scene.about.is_wrong and not scene.is_dropped
    return scene.difference.kind is Kind.MEMORY and is_send and is_right


def _other_error(difference: Difference) -> str:
    """The status of a request that should fail with another one, and that; empty for no such."""
    if difference.kind is not Kind.COMPLETION:
        return ""
    for due, seen in zip(difference.expected, difference.got, strict=False):
        if due != seen and isinstance(due, tuple) and isinstance(seen, tuple):
            is_same = due[:2] == seen[:2] and WCStatus.SUCCESS not in (due[2], seen[2])
            if not is_same or due[2] == seen[2]:
                return ""
            is_flushed = seen[2] == WCStatus.WR_FLUSH_ERR  # whatever it should fail with
            other = "an error" if is_flushed else WCStatus(due[2]).name
            return f"{WCStatus(seen[2]).name} instead of {other}"
    return ""


def _of_completion(scene: Scene, effect: Effect) -> Cause:
    """Keys of a part of a completion."""
    field = effect.group
    own = f"{field} of completions of {_completed(scene)}"
    change = _changed_part(scene.difference, field)
    always = f"{field} {change:+} in every completion"
    if not change or field not in _COUNTS:
        return Cause((own,))
    is_plain = len(scene.subjects) == 1 and _completed(scene) == WCOpcode.RECV.name
    return Cause((own, always)) if is_plain else Cause((own,), (always,))


def _changed_part(difference: Difference, field: str) -> int:
    """How much larger a part is than it should be in the first completion that differs."""
    at = PARTS_OF_COMPLETION.index(field)
    for one, other in zip(difference.expected, difference.got, strict=False):
        if one != other and isinstance(one, tuple) and isinstance(other, tuple):
            return int(other[at] - one[at])
    return 0


def _stores_otherwise(scene: Scene) -> bool:
    """Whether a device stores the bytes of a packet that are to be stored, but others or elsewhere.

    Not where it stores none at all, or should.
    """
    info = INFO.get(scene.step.opcode) if isinstance(scene.step, Packet) else None
    is_request = info is not None and info.operation in (Operation.SEND, Operation.WRITE)
    is_stored = is_request or (isinstance(scene.step, Packet) and stores_response(scene.step))
    return is_stored and not (scene.stores_nothing or scene.is_dropped)


def _of_answer(scene: Scene, effect: Effect, about: About) -> Cause:
    """Keys of a field of a response."""
    field = effect.group
    change = changed_number(scene.difference, "aeth.syndrome" if field == "credits" else field)
    always = f"{field} {change:+} in every ACK" if change else ""
    answer, _ = first_verdicts(scene.difference)
    is_first = len(scene.subjects) == 1
    wider = [always] if always else []
    if field == "aeth.msn" and any(each.what == NOT_READY.what for _, each in scene.subjects[:-1]):
        return Cause(("the MSN behind a request without a receive request",), tuple(wider))
    if not is_first and field == "aeth.msn":
        wider.append(f"a right packet: {field}")  # it was counted wrongly before
    if answer.startswith("NAK") and answer != GAP_NAK:
        return Cause((f"{field} of a fatal NAK",), tuple(wider))
    if about.rule in DUPLICATE_RULES:
        return Cause((f"{field} of the answer to a duplicate",), tuple(wider))
    is_plain = is_first and answer == "ACK" and not about.is_wrong
    is_plain |= field == "credits" and change > 0  # more than there are receive requests
    return Cause((always,)) if is_plain and always else Cause((), tuple(wider))


def changed_number(difference: Difference, field: str) -> int:
    """How much larger a field is than it should be in the first answer in which it differs."""
    part, _, name = field.partition(".")
    for frames in zip(difference.expected, difference.got, strict=False):
        numbers = [_number(frame, part, name) for frame in frames]
        if None not in numbers and numbers[0] != numbers[1]:
            expected, got = (each or 0 for each in numbers)
            return got - expected
    return 0


def _number(frame: object, part: str, name: str) -> int | None:
    assert isinstance(frame, bytes)
    packet = parsed(frame)
    header = None if packet is None else part_of(packet, part)
    value = None if header is None else getattr(header, name, None)
    return value if isinstance(value, int) else None


def _completed(scene: Scene) -> str:
    """The operation of the first completion that differs, and whether it is of a datagram."""
    own = f", {scene.service}" if scene.service == "UD" else ""  # which has 40 bytes in front
    pairs = zip(scene.difference.expected, scene.difference.got, strict=False)
    for expected, got in pairs:
        if expected != got and isinstance(expected, tuple):
            return f"{WCOpcode(expected[_OPCODE]).name}{own}"
    return scene.service


def operation_of(step: Step) -> str:
    """The operation of a packet; atomics are one."""
    info = INFO.get(step.opcode) if isinstance(step, Packet) else None
    if info is None or info.operation is None:
        return "another packet"
    return _KINDS.get(info.operation, info.operation.name)


def common_causes(scene: Scene, effect: Effect, ignored: About | None) -> tuple[str, ...]:
    """What a difference has in common with others at whatever packets they show.

    ignored: what a response is about without which a right device would do the same.
    """
    causes = []
    if (
        scene.service == "UC"
        and _is_lost(scene)
        and any(each in UC_BEGINNINGS for _, each in scene.subjects)
    ):
        causes.append("messages of UC behind a gap, and what follows them")
    if ignored is not None and ignored.what.endswith(INSIDE_MESSAGE):
        causes.append(PART_OF_ACK)
    if scene.about.implies_nak and not scene.difference.got:
        causes.append(_NO_IMPLIED_NAK)
    if isinstance(scene.step, Wait) and retransmits_otherwise(scene.difference, scene):
        causes.append("what a timeout retransmits")
    if effect.group == ANOTHER_ORDER and scene.difference.kind is Kind.ANSWER:
        causes.append("responses in another order")
    if len(scene.subjects) <= SHORT and any(each is LOCAL_INVALIDATE for _, each in scene.subjects):
        is_own = may_send(scene.step)
        causes.append("how a local invalidate ends" if is_own else "a window invalidated locally")
    if scene.about.rule.endswith("#zero-length") and not scene.about.is_wrong:
        causes.append("the key of a request of no bytes")
    if scene.about.detail.endswith(OLDEST_SAVED) and effect.group == "no answer":
        causes.append(OLDEST_NOT_SAVED)
    if scene.is_short and any(is_repeated(about) for _, about in scene.subjects):
        causes.append("the credits of an ACK that repeats the last PSN")
    if scene.is_short:
        whats = [about.what for _, about in scene.subjects]
        causes += dict.fromkeys(each for each in whats if each.endswith(OTHERS_WINDOW))
    if isinstance(scene.step, Wait) and scene.has_rnr_nak and _is_early(scene, effect):
        causes.append(EARLY_AFTER_RNR)
    if scene.about.rule not in DUPLICATE_RULES and any(
        about.rule == DUPLICATE_WRITE for _, about in scene.subjects[:-1]
    ):
        causes.append("what follows a duplicate SEND or WRITE")
    if lacks_shared_completion(scene):
        causes.append("a request of a shared receive queue that is not completed in error")
    if WCStatus.RNR_RETRY_EXC_ERR in _errors_not_due(scene.difference):
        causes.append("RNR retries that are used up too early")
    if effect.rule == RNR_RETRY:
        causes.append(f"RNR retries: {effect.group}")
    sges = scene.sges_in_use
    if sges and effect.group in ("data", "memory"):
        causes.append(f"other bytes with several SGEs of {sges}")
    elif sges and _shows_error(scene, effect):
        causes.append(f"an error with several SGEs of {sges}")
    return tuple(causes)


def _errors_not_due(difference: Difference) -> set[object]:
    """The statuses that only the device reports, also beside packets that differ."""
    expected, got = difference.beside
    if difference.kind is Kind.COMPLETION:
        expected, got = difference.expected, difference.got
    return statuses_of(got) - statuses_of(expected)


def _is_early(scene: Scene, effect: Effect) -> bool:
    """Whether something is sent or ends earlier than it should, when time passes."""
    if scene.difference.kind is Kind.COMPLETION and effect.group == "time":
        return True
    return effect.text.endswith(" too early") or extra_frame(scene.difference) is not None


def lacks_shared_completion(scene: Scene) -> bool:
    """Whether a message of UC or UD that is dropped does not end its request of a shared queue.

    Either it is not dropped, or the request goes back.
    """
    difference = scene.difference
    is_missing = difference.kind is Kind.COMPLETION and not difference.got
    return is_missing and not scene.is_reliable and bool(scene.connection.srq)


def _is_lost(scene: Scene) -> bool:
    """Whether a right message or a part of it is dropped."""
    if scene.about.is_wrong:
        return False
    is_missing = scene.difference.kind is Kind.COMPLETION and not scene.difference.got
    return is_missing or scene.is_dropped


def lacks_gathered(scene: Scene, effect: Effect) -> bool:
    """Whether data of a request of several SGEs are wrong or missing in what is sent later."""
    return scene.sges_in_use == "requests" and effect.group in ("data", "no answer")


def _shows_error(scene: Scene, effect: Effect) -> bool:
    """Whether a device that should go on is silent, or reports an error."""
    if effect.group in ("no answer", "no completion", "another NAK") or effect.nak:
        return True
    return WCStatus.LOC_PROT_ERR in statuses_of(scene.difference.got)


def not_taken(about: About) -> str:
    """What all have in common that comes of a response which the device does not take."""
    return _NO_IMPLIED_NAK if about.implies_nak else f"{about.what}: not taken"


_KINDS = dict.fromkeys((Operation.COMPARE_SWAP, Operation.FETCH_ADD), "atomics")

_OPCODE = 3
"""Index of the opcode in a completion."""

_NO_IMPLIED_NAK = "an implied NAK: not taken"

OLDEST_NOT_SAVED = "the oldest response that is to be saved is not"
EARLY_AFTER_RNR = "the ACK timer runs in the wait after an RNR NAK"
AFTER_RNR_WAIT = "what is retransmitted after the wait of an RNR NAK"

_COUNTS = ("byte_len",)
"""Parts of completions that are numbers of something."""

_OF_COMPLETION = frozenset(("byte_len", "imm_data", "flags", "src_qp"))
"""Fields that are made in one place for each kind of completion."""
