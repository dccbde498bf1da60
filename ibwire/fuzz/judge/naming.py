"""Name, rule and group of a finding, from its minimised case.

The name says what the case shows: the packet at fault, what is wrong with it, and what the
device did instead of what. The rule is that of the packet and of the field in which the device
differs. Findings of one group probably have one cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from ibwire.fuzz.case import (
    Case,
    Connect,
    Connection,
    Packet,
    Pause,
    Post,
    Receive,
    Step,
    Wait,
    packet_text,
)
from ibwire.fuzz.judge.comparison import Difference, Kind, apply
from ibwire.fuzz.judge.findings import first_verdicts, one_line, wrong_fields
from ibwire.fuzz.judge.request_names import AFTER_ERROR, ERROR, SERVICES, headers, request
from ibwire.fuzz.judge.response_names import about as response
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.targets.emulated_device import (
    ADDRESS,
    PEER_ADDRESS,
    SENDS,
    Emulation,
)
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.rc.attributes import EventType
from ibwire.rc.profile import Profile
from ibwire.rc.work import WCStatus, WROpcode
from ibwire_layers import syndrome as aeth
from ibwire_layers.headers import AETH
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import AckKind


@dataclass(frozen=True, slots=True)
class Name:
    """What a finding is called."""

    text: str
    rule: str
    group: str
    """Equal for findings that probably have one cause."""
    wider: str = ""
    """The group without what came before the last step."""


def name_of(case: Case, difference: Difference, profile: Profile) -> Name:
    """The name of a difference in the last step of a case. profile: of the reference."""
    reference = Emulation(case.connection, profile)
    subjects = list(_subjects(reference, case, difference.step))
    step, about = subjects[-1]
    effect = _effect(difference)
    about = _setting(reference.connection, step, effect) or about
    if isinstance(step, Packet) and _is_of_another_pair(reference, difference):
        about = _ELSEWHERE
    if isinstance(step, Wait):
        effect = _timed(about, effect, difference, reference)
    is_named = about.what and not about.what.startswith("a right")
    text = f"{_step_text(step)} ({about.what})" if is_named else _step_text(step)
    if difference.kind is Kind.CRASH:
        return Name(f"{text}: {effect.text}", about.rule, f"crash: {effect.group}")
    if effect.group == FLUSH:
        rule = AFTER_ERROR.rule if reference.qp.responder.failed else effect.rule
        return Name(f"{text}: {effect.text}", rule, ERROR)
    if about.is_wrong:
        return _of_wrong(text, about, effect)
    what, rule, wider = about.what, effect.rule or about.rule, ""
    service = reference.connection.service
    if service != "RC" and (rule == _STATUS or effect.group in _OF_SERVICE):
        rule = SERVICES[service].rule
    if effect.group in _OF_FIELD and isinstance(step, Packet | Post):
        what = "a right packet"  # of any operation
    if effect.group.startswith("reth.") and not isinstance(step, Post):
        rule = f"IBA 9.7.6; {_TRANSPORT}read-restart"
    if isinstance(step, Post) and about.what:
        rule = about.rule
    before = _cause(subjects, effect)
    if before is not None:
        wider = f"{what}: {effect.group}"
        text, rule, what = f"{text} after {before.what}", before.rule, f"after {before.what}"
    return Name(f"{text}: {effect.text}", rule, f"{what}: {effect.group}", wider)


def _of_wrong(text: str, about: About, effect: _Effect) -> Name:
    """The name for a packet with a fault, which the specification allows one treatment of."""
    rule, group = about.rule, effect.group
    if effect.is_executed:
        group = "executed"
        rule = DUPLICATES if about.rule == DUPLICATE_WRITE else rule
    elif group in _OF_FIELD and about.rule not in _FIELDS_OF_RULE.get(group, ()):
        rule = _OF_FIELD[group]
    return Name(f"{text}: {effect.text}", rule, about.group or f"{about.what}: {group}")


def _setting(connection: Connection, step: Step, effect: _Effect) -> About | None:
    """What is unusual about the queue pair, if a minimised case needs it."""
    if connection.pkey_index:
        return _PKEY
    if connection.rearmed:
        return _REARMED
    if not isinstance(step, Packet) or effect.rule not in ("", _STATUS):
        return None
    if connection.wrong_lkey:
        return _WRONG_LKEY
    if connection.sges > 1:
        return _SGES_REFUSED if effect.group == "refused" else _SGES
    return None


def _cause(subjects: Sequence[tuple[Step, About]], effect: _Effect) -> About | None:
    """What an earlier step is about, if the name says that the last one is right after it."""
    step, _ = subjects[-1]
    if isinstance(step, Wait):
        return None
    wrong = next((each for _, each in reversed(subjects) if each.is_wrong), None)
    if wrong is None and isinstance(step, Post) and effect.group == "no answer":
        wrong = next((each for _, each in subjects[:-1] if each.rule.endswith("#rnr-wait")), None)
    return wrong


def _timed(about: About, effect: _Effect, difference: Difference, reference: Emulation) -> _Effect:
    """What a device does otherwise when time passes: it sends early, late, or too often."""
    statuses = {
        each[2]
        for things in (difference.expected, difference.got)
        for each in things
        if difference.kind is Kind.COMPLETION and isinstance(each, tuple) and len(each) > 2
    }
    if WCStatus.RNR_RETRY_EXC_ERR in statuses:
        return replace(effect, rule=f"IBA 9.7.5.2.8; {_TRANSPORT}rnr-retry", group="retries")
    is_more = difference.kind is Kind.ANSWER and len(difference.got) > len(difference.expected)
    has_ended = is_more and not reference.qp.sends.wqes
    if WCStatus.RETRY_EXC_ERR in statuses or (about is _ACK_WAIT and has_ended):
        return replace(effect, rule=f"IBA 9.7.6.1.3; {_TRANSPORT}retry-count", group="retries")
    if about is _RNR_WAIT and effect.group in ("time", "an answer", "no answer"):
        anchor = "rnr-timer" if difference.kind is Kind.TIME else "rnr-wait"
        return replace(effect, rule=f"IBA 9.7.5.2.8; {_TRANSPORT}{anchor}", group="time")
    return effect


@dataclass(frozen=True, slots=True)
class _Effect:
    """What a device does otherwise."""

    text: str
    group: str
    rule: str = ""
    """That of the field in which it differs; empty for none."""
    is_executed: bool = False
    """Whether it shows that something was executed."""


def _effect(difference: Difference) -> _Effect:
    match difference.kind:
        case Kind.CRASH:
            text = one_line(difference.got[0])
            return _Effect(text, text)
        case Kind.ENDLESS:
            return _Effect("it does not come to rest", "endless")
        case Kind.ANSWER:
            return _answer(difference)
        case Kind.COMPLETION:
            return replace(_completion(difference), is_executed=True)
        case Kind.TIME:
            return _Effect("it sends at another time", "time", f"{_TRANSPORT}ack-timeout")
        case Kind.MEMORY:
            return _Effect("other bytes in its memory", "memory", is_executed=True)
        case Kind.EVENT:
            return _event(difference)


def _answer(difference: Difference) -> _Effect:
    expected, got = first_verdicts(difference)
    if expected != got:
        text = f"{_or_nothing(got)} instead of {_or_nothing(expected)}"
        group = _treatment(expected, got)
        return _Effect(text, group, is_executed=group in ("executed", "an answer"))
    fields = next(filter(None, wrong_fields(difference)), [])
    names = list(dict.fromkeys(f"{part}.{name}" for part, name in fields))
    if set(names) <= {"bth.pad_count"} and (sizes := _sizes(difference)):
        text = f"{got} with {sizes[1]} bytes instead of {sizes[0]}"
        return _Effect(text, "payload", f"IBA 9.7.2; {_TRANSPORT}segmentation")
    if not names:
        return _Effect(f"{got} with other data", "data")
    if names == ["aeth.syndrome"] and _are_credits(difference):
        return _Effect(f"{got} with other credits", "credits", _OF_FIELD["credits"])
    rule = next((_OF_FIELD[name] for name in names if name in _OF_FIELD), "")
    return _Effect(f"{got} with another {', '.join(names)}", names[0], rule)


def _sizes(difference: Difference) -> tuple[int, int] | None:
    """The bytes of payload in the first answers that differ, if those differ in them."""
    for frames in zip(difference.expected, difference.got, strict=False):
        if frames[0] != frames[1]:
            one, other = (_payload_of(each) for each in frames)
            return None if one == other else (one, other)
    return None


def _payload_of(frame: object) -> int:
    assert isinstance(frame, bytes)
    return len(WholePacket.parse(frame).payload)


def _is_of_another_pair(reference: Emulation, difference: Difference) -> bool:
    """Whether the first answer that is missing or wrong is one of another queue pair."""
    if difference.kind is not Kind.ANSWER or reference.connection.pairs == 1:
        return False  # the frames of a device on a link have other numbers than this reference
    for expected, got in zip_longest(difference.expected, difference.got):
        if expected != got:
            peer = reference.symbols["peer_qpn"]
            return isinstance(expected, bytes) and _peer_of(expected) != peer
    return False


def _peer_of(frame: bytes) -> int:
    """The queue pair that a frame of the reference is for."""
    return WholePacket.parse(frame).bth.dest_qp


def _are_credits(difference: Difference) -> bool:
    """Whether the first answers that differ are both positive, so that their credits differ."""
    for frames in zip(difference.expected, difference.got, strict=False):
        if frames[0] != frames[1]:
            return all(_is_positive(each) for each in frames)
    return False


def _is_positive(frame: object) -> bool:
    assert isinstance(frame, bytes)
    header = WholePacket.parse(frame).extension(AETH)
    return header is not None and aeth.kind(header.syndrome) is AckKind.ACK


def _or_nothing(verdict: str) -> str:
    return "nothing" if verdict == "silence" else verdict


def _treatment(expected: str, got: str) -> str:
    if got == "silence":
        return "no answer"
    if expected == "silence":
        return "an answer"
    if "NAK" in expected and "NAK" in got:
        return "another NAK"
    return "refused" if "NAK" in got else "executed" if "NAK" in expected else "another answer"


def _completion(difference: Difference) -> _Effect:
    for expected, got in zip_longest(difference.expected, difference.got):
        if expected == got:
            continue
        if got is None and _status(expected).startswith(WCStatus.WR_FLUSH_ERR.name):
            return _Effect("the receive requests are not flushed", FLUSH, _FLUSHED)
        if got is None:
            return _Effect(f"no completion {_status(expected)}", "no completion", _STATUS)
        if expected is None:
            return _Effect(f"a completion {_status(got)} too many", "a completion", _STATUS)
        assert isinstance(expected, tuple)
        assert isinstance(got, tuple)
        fields = [
            name for name, one, other in zip(_FIELDS, expected, got, strict=False) if one != other
        ]
        if "status" in fields:
            text = f"completion {_status(got)} instead of {_status(expected)}"
            return _Effect(text, "status", _STATUS)
        text = f"completion with another {', '.join(fields)}"
        rule = f"IBA 11.4.2.1; {_TRANSPORT}completion-fields"
        if fields == ["solicited"]:
            rule = f"IBA 9.2.3; {_TRANSPORT}solicited-event"
        return _Effect(text, " ".join(fields), rule)
    return _Effect("other completions", "completions", _STATUS)


def _status(completion: object) -> str:
    assert isinstance(completion, tuple)
    queue = "send" if completion[0] == SENDS else "receive"
    return f"{WCStatus(completion[2]).name} of a {queue}"


def _event(difference: Difference) -> _Effect:
    expected, got = (
        [EventType(each).name for each in things if isinstance(each, int)]
        for things in (difference.expected, difference.got)
    )
    missing = [each for each in expected if each not in got]
    if missing:
        return _Effect(f"no event {', '.join(missing)}", f"no event {missing[0]}", _EVENTS)
    return _Effect(f"event {', '.join(got)} for no reason", "an event", _EVENTS)


# What each step is about.


def _subjects(reference: Emulation, case: Case, last: int) -> Iterator[tuple[Step, About]]:
    """Each step up to the last one, and what it is about."""
    received: About | None = None
    for step in walk(reference, case, last):
        about = _about(reference, step, received)
        received = about if isinstance(step, Packet) else received
        yield step, about


def walk(reference: Emulation, case: Case, last: int) -> Iterator[Step]:
    """Each step of a case up to the last one, before the reference carries it out."""
    binding = Binding(PEER_ADDRESS, ADDRESS)
    for step in case.steps[: last + 1]:
        reference.prepare(step)
        yield step
        _advance(reference, binding, step)


def state_before(reference: Emulation, case: Case, last: int) -> str:
    """The state before a step of a case."""
    state = reference.state
    for _ in walk(reference, case, last):
        state = reference.state
    return state


def _about(reference: Emulation, step: Step, received: About | None) -> About:
    if reference.qp.responder.failed and not isinstance(step, Connect):
        return AFTER_ERROR
    if isinstance(step, Packet):
        psn = reference.psn(step.psn[0]) + step.psn[1] & MASK
        about = headers(reference, step) or response(reference, step, psn)
        return about or request(reference, step)
    if isinstance(step, Wait):
        return _waiting(reference) or received or _TIME
    if isinstance(step, Post):
        return _posted(step)
    return _STEPS.get(type(step), _TIME)


def _posted(step: Post) -> About:
    """What a send request is about: what is unusual about it."""
    if step.wrong_lkey:
        return About("a wrong L_Key", f"IBA 10.6.7.2; {_TRANSPORT}memory-keys", False)
    if step.fence:
        return About("with a fence", f"IBA 10.8.3.3; {_TRANSPORT}fence", False)
    if step.sges > 1:
        return About(f"with {step.sges} SGEs", f"IBA 9.7.2; {_TRANSPORT}segmentation", False)
    return _STEPS[Post]


def _waiting(reference: Emulation) -> About | None:
    timers = reference.qp.sends.timers
    if timers.rnr is not None:
        return _RNR_WAIT
    return _ACK_WAIT if reference.qp.sends.wqes else None


def _advance(reference: Emulation, binding: Binding, step: Step) -> None:
    if isinstance(step, Pause):
        reference.receive(binding.pause(step))
    elif isinstance(step, Packet):
        psn = reference.psn(step.psn[0])
        reference.receive(binding.frame(step, psn, reference.symbols))
        if step.held:
            return
    elif isinstance(step, Wait):
        reference.wait(step.time)
    else:
        apply(reference, step)
    reference.answers()
    reference.completions()
    reference.details()
    reference.events()


def _step_text(step: Step) -> str:
    if isinstance(step, Packet):
        return packet_text(step)
    if isinstance(step, Post):
        return f"a posted {WROpcode(step.opcode).name}"
    return {Wait: "a wait", Receive: "a posted receive", Pause: "PFC", Connect: "a new connection"}[
        type(step)
    ]


_TRANSPORT = "docs/reference/transport.md#"
_WIRE = "docs/reference/wire-formats.md#"
FLUSH = "no flush"
_FLUSHED = f"IBA 10.3.1.7; {_TRANSPORT}flush"
_STATUS = f"IBA 11.6.2; {_TRANSPORT}completion-status"
_EVENTS = f"IBA 11.6.3; {_TRANSPORT}completion-status"
_FIELDS = (
    *("queue", "wr_id", "status", "opcode", "byte_len", "imm_data", "flags"),
    *("solicited", "pkey_index", "qp_num", "src_qp"),
)

_OF_FIELD = {
    "aeth.msn": f"IBA 9.7.7.1; {_TRANSPORT}msn",
    "bth.psn": f"IBA 9.7.5.1.1; {_TRANSPORT}response-psn",
    "bth.ack_req": f"IBA 9.7.3; {_TRANSPORT}ack-request",
    "bth.pad_count": f"IBA 9.2.3; {_WIRE}padding",
    "bth.se": f"IBA 9.2.3; {_TRANSPORT}solicited-event",
    "bth.mig_req": f"IBA 17.2.8; {_TRANSPORT}migration",
    "bth.pkey": f"IBA 10.9.3; {_WIRE}partition-key",
    "aeth.syndrome": f"IBA 9.7.5.1; {_TRANSPORT}aeth",
    "credits": f"IBA 9.7.7.2; {_TRANSPORT}credits-granted",
    "deth.qkey": f"IBA 10.2.5; {_TRANSPORT}ud",
    "deth.src_qp": f"IBA 9.8.3; {_TRANSPORT}ud",
    "atomicacketh.orig": f"IBA 9.4.5; {_TRANSPORT}atomics",
    "reth.va": f"IBA 9.4.3; {_TRANSPORT}reth",
    "reth.dma_len": f"IBA 9.4.3; {_TRANSPORT}reth",
    "reth.rkey": f"IBA 9.4.3; {_TRANSPORT}reth",
    "udp.src_port": f"IBA A17.9.1; {_WIRE}udp-source-port",
}

DUPLICATE_WRITE = f"IBA 9.7.5.1.5; {_TRANSPORT}duplicate-write"
DUPLICATES = f"IBA 9.7.5.1.5, C9-105; {_TRANSPORT}duplicates"
DUPLICATE_ATOMIC = f"IBA 9.7.5.1.5; {_TRANSPORT}duplicate-atomic"
_OF_SERVICE = ("bth.ack_req", "byte_len", "wr_id")
"""Fields that an unreliable service has its own rule for; and whether a message completes."""

_FIELDS_OF_RULE = {"bth.psn": (DUPLICATE_WRITE,), "atomicacketh.orig": (DUPLICATE_ATOMIC,)}
"""Rules of packets that say what a field of the response is."""

_PKEY = About(
    "with the P_Key of another index",
    f"IBA 10.9.3; {_WIRE}partition-key",
    group="the P_Key of another index",
)
_ELSEWHERE = About(
    "while another queue pair answers",
    f"IBA 10.3.1; {_TRANSPORT}qp-state-actions",
    group="the answers of another queue pair",
)
_WRONG_LKEY = About(
    "into a receive with a wrong L_Key", f"IBA 9.9.3 class A; {_TRANSPORT}receive-fault"
)
_SGES = About("into a receive of several SGEs", f"IBA 9.7.2; {_TRANSPORT}segmentation")
_SGES_REFUSED = replace(_SGES, rule=f"IBA 9.7.4.1.6; {_TRANSPORT}receive-too-short")
_REARMED = About(
    "with an alternate path", f"IBA 17.2.8; {_TRANSPORT}migration", group="an alternate path"
)
_RNR_WAIT = About("the wait after an RNR NAK", f"IBA 9.7.5.2.8; {_TRANSPORT}rnr-wait", False)
_ACK_WAIT = About("the ACK timer", f"IBA 9.7.6.1.3; {_TRANSPORT}ack-timeout", False)
_TIME = About("", f"IBA 9.7.6; {_TRANSPORT}go-back-n", False)
_STEPS: dict[type, About] = {
    Post: About("", f"IBA 9.7.2; {_TRANSPORT}segmentation", False),
    Receive: About("", f"IBA 9.7.7.2; {_TRANSPORT}credits-granted", False),
    Pause: About("", f"IEEE 802.1Q 36; {_WIRE}pfc", False),
    Connect: About("", f"IBA 10.3.1; {_TRANSPORT}qp-reset", False),
}
