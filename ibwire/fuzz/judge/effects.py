"""What a device does otherwise than the reference, in words, and the rule of what is wrong in it.

The rule is that of the field of an answer or completion that differs; where no field does,
because an answer is missing or of another kind, the packet at fault determines the rule.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import MappingProxyType

from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.exclusions import FLAGS
from ibwire.fuzz.judge.findings import (
    NO_PACKET,
    PARTS_OF_COMPLETION,
    first_verdicts,
    has_other_payload,
    one_line,
    verdict,
    wrong_fields,
    wrong_parts,
)
from ibwire.fuzz.targets.emulated_device import SENDS
from ibwire.rc.attributes import EventType
from ibwire.rc.work import WCFlags, WCStatus
from ibwire_layers import syndrome as aeth
from ibwire_layers.errors import DecodeError
from ibwire_layers.headers import AETH, ICRC_SIZE
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.syndrome import AckKind


@dataclass(frozen=True, slots=True)
class Effect:
    """What a device does otherwise."""

    text: str
    group: str
    rule: str = ""
    """That of the field in which it differs; empty for none."""
    is_executed: bool = False
    """Whether it shows that something was executed."""
    ends: bool = False
    """Whether it shows that the queue pair has gone to the error state."""
    nak: str = ""
    """The NAK that was sent although none was due; empty for none."""
    other_field: str = ""
    """The rule of what is wrong in a NAK beside its code; empty if nothing is."""
    is_of_any: bool = False
    """Whether it is the same fault at whatever operation it shows."""
    is_error_state: bool = False
    """Whether the queue pair has gone to the error state where it should not."""
    is_event: bool = False
    """Whether it is an event that has a rule of its own, whatever the packet is."""


Posted = Mapping[int, str]
"""The operations of posted requests, by their numbers."""


def effect_of(difference: Difference, posted: Posted = MappingProxyType({})) -> Effect:
    """What a difference says. posted: the requests that may complete."""
    match difference.kind:
        case Kind.CRASH:
            text = one_line(difference.got[0])
            return Effect(text, text)
        case Kind.ENDLESS:
            return Effect("it does not come to rest", "endless")
        case Kind.ANSWER:
            return _answer(difference)
        case Kind.COMPLETION:
            return replace(_completion(difference, posted), is_executed=True)
        case Kind.TIME:
            return Effect(timing_text(difference), "time", f"C9-141; {_TRANSPORT}ack-timeout")
        case Kind.MEMORY:
            return Effect("other bytes in its memory", "memory", is_executed=True)
        case Kind.EVENT:
            return _event(difference)


def parsed(frame: bytes) -> WholePacket | None:
    """A frame as a packet; `None` if it is none, and so no answer to any packet."""
    try:
        return WholePacket.parse(frame)
    except DecodeError:
        return None


def missing_frame(difference: Difference) -> bytes | None:
    """The first answer that is due and not there, if those that are there are all right.

    What goes to different queue pairs may come in any order.
    """
    if difference.kind is not Kind.ANSWER or len(difference.expected) <= len(difference.got):
        return None
    expected = [each for each in difference.expected if isinstance(each, bytes)]
    got = [each for each in difference.got if isinstance(each, bytes)]
    missing = _missing(expected, got)
    return missing or _missing(sorted(expected, key=_dest_qp), sorted(got, key=_dest_qp))


def _missing(expected: Sequence[bytes], got: Sequence[bytes]) -> bytes | None:
    """The first frame that is not among those in that order; `None` if `got` has others."""
    rest, missing = list(got), None
    for frame in expected:
        if rest and rest[0] == frame:
            del rest[0]
        elif missing is None:
            missing = frame
    return None if rest else missing


def _dest_qp(frame: bytes) -> int:
    packet = parsed(frame)
    return -1 if packet is None else packet.bth.dest_qp


def extra_frame(difference: Difference) -> bytes | None:
    """The first answer that is not due, if those that are due are all there."""
    if difference.kind is not Kind.ANSWER:
        return None
    reverse = replace(difference, expected=difference.got, got=difference.expected)
    return missing_frame(reverse)


def first_frame(difference: Difference) -> bytes | None:
    """The answer that is due where the first wrong one is; `None` for none."""
    if difference.kind is not Kind.ANSWER:
        return None
    if (missing := missing_frame(difference)) is not None:
        return missing
    for expected, got in zip_longest(difference.expected, difference.got):
        if expected != got:
            return expected if isinstance(expected, bytes) else None
    return None


def odd_completions(
    difference: Difference, posted: Posted
) -> Iterator[tuple[tuple[int, ...], str]]:
    """The completions that are too many or missing, each with that in words."""
    if difference.kind is not Kind.COMPLETION:
        return
    sides = {
        "a completion {}, which is not due": difference.got,
        "no completion {}": difference.expected,
    }
    for text, completions in sides.items():
        others = difference.expected if completions is difference.got else difference.got
        known = {each[:2] for each in others if isinstance(each, tuple)}
        for each in completions:
            if isinstance(each, tuple) and each[:2] not in known:
                yield each, text.format(f"{status_text(each, posted)} of another queue pair")


def statuses_of(completions: Sequence[object]) -> set[object]:
    """The statuses of completions."""
    return {each[2] for each in completions if isinstance(each, tuple)}


def has_same_kind(difference: Difference) -> bool:
    """Whether the first wrong answer is of the kind that is due."""
    expected, got = first_verdicts(difference)
    return expected == got != "silence"


def _answer(difference: Difference) -> Effect:
    missing = missing_frame(difference)
    expected, got = first_verdicts(difference)
    extra = extra_frame(difference)
    if missing is not None:
        expected, got = verdict(missing), "silence"
    elif extra is not None:
        expected, got = "silence", verdict(extra)
    if Counter(difference.expected) == Counter(difference.got):
        return Effect("the same packets in another order", ANOTHER_ORDER, _ORDER_OF_RESPONSES)
    fields = next(filter(None, wrong_fields(difference)), [])
    names = list(dict.fromkeys(f"{part}.{name}" for part, name in fields))
    if expected == got and ("bth.opcode" in names or _CONSEQUENCES.issuperset(names)):
        expected, got = _other_verdicts(difference) or (expected, got)
    elif expected == got == "ACK":
        expected, got = _otherwise_at_its_psn(difference) or (expected, got)
    sizes = _sizes(difference) if expected == got else None
    if sizes:  # which the padding follows
        names = [name for name in names if name != "bth.pad_count"]
    if f"XRC_{got}" == expected or f"XRC_{expected}" == got:
        text = f"{got} instead of {expected}"
        return Effect(text, "bth.opcode", OF_FIELD["bth.opcode"])
    if expected != got and "NAK" in expected and "NAK" in got:
        return _other_nak(expected, got, [name for name in names if name != "aeth.syndrome"])
    if expected != got:
        text = _instead(expected, got, difference)
        group = _treatment(expected, got)
        nak = got if "NAK" in got and "NAK" not in expected else ""
        return Effect(text, group, is_executed=group in ("executed", "an answer"), nak=nak)
    if not names and sizes:
        text = f"{got} with {sizes[1]} bytes instead of {sizes[0]}"
        ends_read = got.endswith(("READ_RESPONSE_ONLY", "READ_RESPONSE_LAST"))
        return Effect(text, "payload", _LENGTH_OF_READ if ends_read else _SEGMENTATION)
    if not names and _is_only_icrc(difference):
        return Effect(f"{got} with a wrong ICRC", "icrc", OF_FIELD["icrc"])
    if not names and not has_other_payload(difference):
        return Effect(f"{got} with other padding", "padding", OF_FIELD["bth.pad_count"])
    if not names:
        return Effect(f"{got} with other data", "data", is_executed=True)
    if set(names) == _CONSEQUENCES and _are_credits(difference):
        return Effect(f"{got} with another {', '.join(names)}", "aeth.msn", OF_FIELD["aeth.msn"])
    if names == ["aeth.syndrome"] and _are_credits(difference):
        return Effect(f"{got} with other credits", "credits", OF_FIELD["credits"])
    rule = next((OF_FIELD[name] for name in names if name in OF_FIELD), "")
    text = f"{got} with another {', '.join(names)}"
    if sizes:
        text = f"{text} and {sizes[1]} bytes instead of {sizes[0]}"
    elif has_other_payload(difference):
        text = f"{text} and other data"
    return Effect(text, names[0], rule)


def errors_beside(difference: Difference) -> tuple[str, str]:
    """The error of a request that only the reference reports in a step whose packets differ, and
    the one that only the device does; empty for none.
    """
    due, reported = difference.beside
    sides = (due, reported), (reported, due)
    ours, theirs = (next(filter(None, map(_error, _less(*each))), "") for each in sides)
    return ours, theirs


def _less(one: Sequence[object], other: Sequence[object]) -> list[object]:
    return [each for each in one if each not in other]


def _error(thing: object) -> str:
    """The status of a completion in error, if it is not flushed; empty for another thing."""
    if not isinstance(thing, tuple) or thing[2] in (WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR):
        return ""
    return WCStatus(thing[2]).name


def _instead(expected: str, got: str, difference: Difference) -> str:
    """What is sent instead of what, with the error of a side that sends nothing."""
    due, reported = errors_beside(difference)
    if extra_frame(difference) is not None and difference.expected and not due:
        count = _count_more(difference.got, difference.expected, got)
        return f"{_some(got, count)} too many"
    if missing_frame(difference) is not None and difference.got and not reported:
        count = _count_more(difference.expected, difference.got, expected)
        return f"{_some(expected, count)} {'are' if count > 1 else 'is'} missing"
    sent = reported if got == "silence" else got
    right = due if expected == "silence" else expected
    return f"{_or_nothing(sent or got)} instead of {_or_nothing(right or expected)}"


def _other_nak(expected: str, got: str, names: Sequence[str]) -> Effect:
    """A NAK in place of another one. names: the fields that are wrong beside its code."""
    text = f"{got} instead of {expected}"
    if expected == GAP_NAK:  # of another packet, whose PSN the one that is sent may name
        names = [name for name in names if name != "bth.psn"]
    other = next((OF_FIELD[name] for name in names if name in OF_FIELD), "")
    if names:
        text = f"{text}, with another {', '.join(names)}"
    if all(each.startswith("RNR NAK wait=") for each in (expected, got)):
        return Effect(text, "RNR timer", RNR_TIMER, other_field=other)
    return Effect(text, "another NAK", other_field=other)


def _other_verdicts(difference: Difference) -> tuple[str, str] | None:
    """The first answer that is of another kind than what was due, and that."""
    for pair in zip_longest(difference.expected, difference.got):
        one, other = (verdict(each) if isinstance(each, bytes) else "silence" for each in pair)
        if one != other:
            return one, other
    return None


def _otherwise_at_its_psn(difference: Difference) -> tuple[str, str] | None:
    """The first response due whose PSN has one of another kind, with that, if fewer came than due.

    An ACK acknowledges what came before, so a later one may take the place of one that is due.
    """
    if len(difference.got) >= len(difference.expected):
        return None
    given = dict(_responses(difference.got))
    for psn, due in _responses(difference.expected):
        if given.get(psn, due) != due:
            return due, given[psn]
    return None


def _responses(frames: Sequence[object]) -> Iterator[tuple[int, str]]:
    """PSN and verdict of each packet."""
    for frame in frames:
        packet = parsed(frame) if isinstance(frame, bytes) else None
        if isinstance(frame, bytes) and packet is not None:
            yield packet.bth.psn, verdict(frame)


def _sizes(difference: Difference) -> tuple[int, int] | None:
    """The bytes of payload in the first answers that differ, if those differ in them."""
    for frames in zip(difference.expected, difference.got, strict=False):
        if frames[0] != frames[1]:
            one, other = (_payload_of(each) for each in frames)
            return None if one == other else (one, other)
    return None


def _is_only_icrc(difference: Difference) -> bool:
    """Whether only the ICRC differs in the first answers that differ."""
    pairs = zip(difference.expected, difference.got, strict=False)
    one, other = next((pair for pair in pairs if pair[0] != pair[1]), (b"", b""))
    if not isinstance(one, bytes) or not isinstance(other, bytes):
        return False
    return one[:-ICRC_SIZE] == other[:-ICRC_SIZE]


def _payload_of(frame: object) -> int:
    assert isinstance(frame, bytes)
    return len(WholePacket.parse(frame).payload)


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


def timing_text(difference: Difference, *, is_repeated: bool = False) -> str:
    """What is sent at another time. is_repeated: whether it was sent before."""
    place = place_of_time(difference)
    if place is None:
        return "it sends at another time"
    due, sent = difference.expected[place], difference.got[place]
    assert isinstance(due, int)
    assert isinstance(sent, int)
    return changed_time_text(difference.frames[place], due, sent, is_repeated=is_repeated)


def changed_time_text(frame: bytes, due: int, sent: int, *, is_repeated: bool) -> str:
    """A frame that is sent at another time than it should."""
    verb = "retransmits" if is_repeated else "sends"
    when = "late" if sent > due else "early"
    return f"it {verb} {verdict(frame)} too {when}"


def place_of_time(difference: Difference) -> int | None:
    """The number of the first frame that is sent at another time; `None` if it is not known."""
    times = enumerate(zip(difference.expected, difference.got, strict=False))
    place = next((at for at, (due, sent) in times if due != sent), 0)
    return place if place < len(difference.frames) else None


def _one(verdict: str) -> str:
    """One packet: `an ACK`."""
    if verdict == NO_PACKET:
        return verdict
    article = "an" if verdict[:1] in "AEIO" or verdict.startswith(("RNR", "XRC")) else "a"
    return f"{article} {verdict}"


def _some(verdict: str, count: int) -> str:
    """Some packets of a kind: `an ACK`, `2 ACKs`."""
    return f"{count} {verdict}s" if count > 1 else _one(verdict)


def _count_more(one: Sequence[object], other: Sequence[object], kind: str) -> int:
    """How many more packets of a kind are on one side; 1 for NAKs, which have a longer name."""
    if " " in kind:
        return 1
    sides = (one, other)
    counts = [sum(isinstance(x, bytes) and verdict(x) == kind for x in each) for each in sides]
    return counts[0] - counts[1]


def _or_nothing(verdict: str) -> str:
    return "nothing" if verdict == "silence" else verdict


def _treatment(expected: str, got: str) -> str:
    if got == "silence":
        return "no answer"
    if expected == "silence":
        return "an answer"
    return "refused" if "NAK" in got else "executed" if "NAK" in expected else "another answer"


def _completion(difference: Difference, posted: Posted) -> Effect:
    if _flushes_in_another_order(difference):
        return Effect("requests are flushed in another order", FLUSH_ORDER, _FLUSHED)
    if missing := _left_out(difference.expected, difference.got):
        if _is_flushed(missing[0]):
            text = f"{_requests(missing, difference.got)} not flushed"
            return Effect(text, FLUSH, _FLUSHED)
        return _without(missing[0], posted)
    if extra := _left_out(difference.got, difference.expected):
        return _IN_ERROR if _is_all_flushed(extra, difference.expected) else _with(extra[0], posted)
    pairs = zip(difference.expected, difference.got, strict=False)
    expected, got = next(pair for pair in pairs if pair[0] != pair[1])
    is_late = _has_request_of(difference.got, expected)
    is_early = _has_request_of(difference.expected, got)
    if _request(expected) == _request(got) or not (is_late or is_early):
        return _other_completion(expected, got, difference.unchecked, posted)
    if is_late and is_early:
        return Effect("completions in another order", ANOTHER_ORDER, ORDER_OF_COMPLETIONS)
    return _with(got, posted) if is_late else _without(expected, posted)


def _without(completion: object, posted: Posted) -> Effect:
    """A completion is missing."""
    return Effect(
        f"no completion {status_text(completion, posted)}", "no completion", _due(completion)
    )


def _with(completion: object, posted: Posted) -> Effect:
    """A completion is not due."""
    text = f"a completion {status_text(completion, posted)}, which is not due"
    return Effect(text, "a completion", _due(completion), ends=_is_flushed(completion))


def _request(completion: object) -> tuple[object, ...]:
    """The queue and the number of the request that has completed."""
    assert isinstance(completion, tuple)
    return completion[:2]


def _has_request_of(completions: Sequence[object], one: object) -> bool:
    return _request(one) in map(_request, completions)


def _left_out(whole: Sequence[object], part: Sequence[object]) -> list[object]:
    """What is not in a part of a sequence that is in order; nothing if it has other things, too."""
    rest, left_out = deque(part), []
    for each in whole:
        if rest and rest[0] == each:
            rest.popleft()
        else:
            left_out.append(each)
    return [] if rest else left_out


def _is_flushed(completion: object) -> bool:
    assert isinstance(completion, tuple)
    return bool(completion[2] == WCStatus.WR_FLUSH_ERR)


def _is_all_flushed(extra: Sequence[object], expected: Sequence[object]) -> bool:
    """Whether only flushed requests are too many, also receives, and none is to be flushed."""
    if any(map(_is_flushed, expected)) or not all(map(_is_flushed, extra)):
        return False
    return any(_request(each)[0] != SENDS for each in extra)


def _requests(missing: Sequence[object], flushed: Sequence[object]) -> str:
    """The requests of the first queue of which flushed completions are missing, with a verb."""
    queues = [each[0] for each in missing if isinstance(each, tuple) and _is_flushed(each)]
    kind = "send" if queues[0] == SENDS else "receive"
    if queues.count(queues[0]) == 1:
        return f"a {kind} request is"
    others = [each[0] for each in flushed if isinstance(each, tuple) and _is_flushed(each)]
    return f"{'some' if queues[0] in others else 'the'} {kind} requests are"


def _flushes_in_another_order(difference: Difference) -> bool:
    """Whether the same completions come, and only flushed ones are at other places."""
    sides = difference.expected, difference.got
    if len(sides[0]) != len(sides[1]) or set(sides[0]) != set(sides[1]):
        return False
    moved = [one for one, other in zip(*sides, strict=True) if one != other]
    return all(map(_is_flushed, moved))


def _other_completion(
    expected: object, got: object, unchecked: Sequence[str], posted: Posted
) -> Effect:
    assert isinstance(expected, tuple)
    assert isinstance(got, tuple)
    fields = [name for name in wrong_parts(expected, got) if f"completion.{name}" not in unchecked]
    if "status" in fields:
        text = f"completion {status_text(got, posted)} instead of {status_text(expected, posted)}"
        rule = next((each for each in map(_due, (expected, got)) if each != STATUS), STATUS)
        return Effect(text, "status", rule)
    lacking = [name for name, flag in _MARKING if (_flags(expected) & ~_flags(got)) & flag]
    if lacking and set(fields) <= {"flags", "imm_data"}:  # the number has no meaning without it
        text = f"completion without the flag {' and '.join(lacking)}"
        return Effect(text, " ".join(fields), COMPLETION_FIELDS)
    other = "other" if fields == ["flags"] else "another"
    text = f"completion with {other} {', '.join(fields)}"
    rule = COMPLETION_FIELDS
    if fields == ["solicited"]:
        rule = f"IBA 9.2.3; {_TRANSPORT}solicited-event"
    if fields == ["imm_data"] and _flags(expected) & _WITH_IMM:
        # Where the same number becomes the same other one, the cause is the same.
        group = f"immediate data 0x{expected[_IMM]:08x} as 0x{got[_IMM]:08x}"
        return Effect(text, group, OF_FIELD["immdt.imm_data"], is_of_any=True)
    return Effect(text, " ".join(fields), rule)


def _flags(completion: tuple[int, ...]) -> int:
    """Its flags; 0 where they are not valid, as after an error."""
    return completion[FLAGS] if len(completion) > FLAGS else 0


def _due(completion: object) -> str:
    """The rule that says when a completion is due."""
    assert isinstance(completion, tuple)
    return _OF_STATUS.get(completion[2], STATUS)


def status_text(completion: object, posted: Posted) -> str:
    """The status of a completion, and what has completed."""
    assert isinstance(completion, tuple)
    what = "a send" if completion[0] == SENDS else "a receive"
    if completion[0] == SENDS and completion[1] in posted:
        what = f"a posted {posted[completion[1]]}"
    return f"{WCStatus(completion[2]).name} of {what}"


def _event(difference: Difference) -> Effect:
    effect = _other_event(difference)
    expected, got = map(_names, (difference.expected, difference.got))
    others = set(expected) ^ set(got)
    rules = {name: rule for name, rule in _OF_EVENT.items() if name in others}
    if effect.is_error_state:
        return effect
    if rules:
        name, rule = next(iter(rules.items()))
        return replace(effect, rule=rule, group=f"event {name}", is_event=True)
    of_fault = _OF_FAULT.intersection(expected).difference(got)
    if effect.rule != _EVENTS or not of_fault:
        return effect
    # Whatever was wrong with the packet, it was refused as it should be.
    return replace(effect, group=f"no event {min(of_fault)}", is_event=True)


def _names(events: Sequence[object]) -> list[str]:
    return [EventType(each).name for each in events if isinstance(each, int)]


def _other_event(difference: Difference) -> Effect:
    expected, got = map(_names, (difference.expected, difference.got))
    missing = [each for each in expected if each not in got]
    is_of_limit = (expected + got).count(_LIMIT_REACHED) > 2 * min(
        expected.count(_LIMIT_REACHED), got.count(_LIMIT_REACHED)
    )
    rule = _LIMIT if is_of_limit else _EVENTS
    if missing == [_LAST_REACHED]:
        return Effect(f"no event {_LAST_REACHED}", LAST_WQE, _FLUSHED)
    extra = list((Counter(got) - Counter(expected)).elements())
    if missing:
        group = SRQ_LIMIT if is_of_limit else f"no event {missing[0]}"
        text = f"no event {', '.join(missing)}"
        if extra:
            text = f"event {', '.join(extra)} instead of {', '.join(missing)}"
        return Effect(text, group, rule)
    if extra == [_LAST_REACHED]:
        return _IN_ERROR
    group = SRQ_LIMIT if is_of_limit else "an event"
    verb = "is" if len(extra) == 1 else "are"
    return Effect(f"event {', '.join(extra)}, which {verb} not due", group, rule)


_TRANSPORT = "docs/reference/transport.md#"
_WIRE = "docs/reference/wire-formats.md#"
RNR_TIMER = f"IBA 9.7.5.2.8; {_TRANSPORT}rnr-timer"
_ORDER_OF_RESPONSES = f"IBA 9.7.5.1; {_TRANSPORT}ack-order"
_SEGMENTATION = f"IBA 9.7.2; {_TRANSPORT}segmentation"
_LENGTH_OF_READ = f"IBA 9.7.2, 9.4.4; {_TRANSPORT}segmentation, {_TRANSPORT}reth"
ORDER_OF_COMPLETIONS = f"IBA 10.7.3.1, 10.8.1; {_TRANSPORT}completion-order"
ANOTHER_ORDER = "another order"
GAP_NAK = "NAK PSN_SEQUENCE_ERROR"
FLUSH = "no flush"
FLUSH_ORDER = "order of flushing"
_FLUSHED = f"IBA 10.3.1.7; {_TRANSPORT}flush"
STATUS = f"IBA 11.6.2; {_TRANSPORT}completion-status"
_EVENTS = f"IBA 11.6.3; {_TRANSPORT}completion-status"
_LIMIT_REACHED = EventType.SRQ_LIMIT_REACHED.name
_LAST_REACHED = EventType.QP_LAST_WQE_REACHED.name
LAST_WQE = f"no event {_LAST_REACHED}"
SRQ_LIMIT = "the limit of a shared receive queue"
_LIMIT = f"IBA 10.2.9; {_TRANSPORT}srq-limit"
_OF_EVENT = {
    EventType.COMM_EST.name: f"IBA 11.6.3.1; {_TRANSPORT}communication-established",
    EventType.SQ_DRAINED.name: f"IBA 10.3.1; {_TRANSPORT}sq-drained",
    EventType.CQ_ERR.name: f"IBA 10.2.6.3, 11.6.3.1; {_TRANSPORT}cq-overrun",
}
"""Rules of events, whatever packet they come with."""

_OF_FAULT = frozenset(
    each.name for each in (EventType.QP_ACCESS_ERR, EventType.QP_REQ_ERR, EventType.QP_FATAL)
)
"""Events that say what was wrong with a request which was refused."""

_IN_ERROR = Effect(
    "the queue pair goes to the error state",
    "the error state",
    f"IBA 10.3.1; {_TRANSPORT}qp-state-actions",
    ends=True,
    is_error_state=True,
)
COMPLETION_FIELDS = f"IBA 11.4.2.1; {_TRANSPORT}completion-fields"
RNR_RETRY = f"IBA 9.7.5.2.8; {_TRANSPORT}rnr-retry"
RETRY_COUNT = f"IBA 9.7.6.1.3; {_TRANSPORT}retry-count"
_OF_STATUS: dict[object, str] = {
    int(WCStatus.RNR_RETRY_EXC_ERR): RNR_RETRY,
    int(WCStatus.RETRY_EXC_ERR): RETRY_COUNT,
}
_CONSEQUENCES = {"aeth.msn", "aeth.syndrome"}
"""Fields that tell what another packet did."""

_WITH_IMM = int(WCFlags.WITH_IMM)
_MARKING = (("WITH_IMM", _WITH_IMM), ("WITH_INV", int(WCFlags.WITH_INV)))
"""Flags that say whether the number in a completion has a meaning."""
_IMM = PARTS_OF_COMPLETION.index("imm_data")

OF_FIELD = {
    "aeth.msn": f"IBA 9.7.7.1; {_TRANSPORT}msn",
    "bth.opcode": f"IBA 9.2.1; {_WIRE}opcodes",
    "bth.psn": f"IBA 9.7.5.1.1; {_TRANSPORT}response-psn",
    "bth.ack_req": f"IBA 9.7.3; {_TRANSPORT}ack-request",
    "bth.pad_count": f"IBA 9.2.4; {_WIRE}padding",
    "bth.se": f"IBA 9.2.3; {_TRANSPORT}solicited-event",
    "bth.mig_req": f"IBA 17.2.8; {_TRANSPORT}migration",
    "bth.pkey": f"IBA 10.9.3; {_WIRE}partition-key",
    "aeth.syndrome": f"IBA 9.7.5.1; {_TRANSPORT}aeth",
    "icrc": f"IBA 7.8.1; {_WIRE}icrc",
    "credits": f"IBA 9.7.7.2; {_TRANSPORT}credit-codes, {_TRANSPORT}credits-granted",
    "xrceth.xrc_srq": f"IBA A14; {_TRANSPORT}xrc",
    "deth.qkey": f"IBA 10.2.5; {_TRANSPORT}ud",
    "deth.src_qp": f"IBA 9.8.3; {_TRANSPORT}ud",
    "atomicacketh.orig": f"IBA 9.4.5; {_TRANSPORT}atomics",
    "atomiceth.va": f"IBA 9.4.5; {_TRANSPORT}atomics",
    "atomiceth.rkey": f"IBA 9.4.5; {_TRANSPORT}atomics",
    "atomiceth.swap": f"IBA 9.4.5; {_TRANSPORT}atomics",
    "atomiceth.compare": f"IBA 9.4.5; {_TRANSPORT}atomics",
    "immdt.imm_data": f"IBA 9.3, 9.4; {_TRANSPORT}immediate-data",
    "ieth.rkey": f"IBA 9.4.1.1.3; {_TRANSPORT}invalidate",
    "reth.va": f"IBA 9.4.3; {_TRANSPORT}reth",
    "reth.dma_len": f"IBA 9.4.3; {_TRANSPORT}reth",
    "reth.rkey": f"IBA 9.4.3; {_TRANSPORT}reth",
    "udp.src_port": f"IBA A17.9.1; {_WIRE}udp-source-port",
}
"""The rule of a field in which an answer differs."""
