"""What a device does otherwise when it sends its own requests, at once or after a wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ibwire.fuzz.case import MAXIMUM_TIME, Case, Packet, Post, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.concurrency import both
from ibwire.fuzz.judge.effects import (
    ANOTHER_ORDER,
    RETRY_COUNT,
    RNR_RETRY,
    RNR_TIMER,
    Effect,
    changed_time_text,
    errors_beside,
    extra_frame,
    missing_frame,
    place_of_time,
    status_text,
    statuses_of,
    timing_text,
)
from ibwire.fuzz.judge.open_timers import MOST
from ibwire.fuzz.judge.scene import ACK_WAIT, ENOUGH, RNR_WAIT, TIME, Scene
from ibwire.fuzz.judge.subject import About
from ibwire.rc.work import WCStatus
from ibwire_layers.opcodes import INFO


def may_send(step: Step) -> bool:
    """Whether the requester of a device may have something new to send after a step."""
    info = INFO.get(step.opcode) if isinstance(step, Packet) else None
    return isinstance(step, Post) or (info is not None and info.is_response)


def lacks_new(scene: Scene) -> bool:
    """Whether a device of RC does not send a new request that is due, whatever else it sends."""
    missing = missing_frame(scene.difference)
    if missing is None or not may_send(scene.step) or not scene.is_reliable:
        return False
    return not scene.is_sent_before(missing)


def sends_nothing_new(scene: Scene) -> bool:
    """Whether a device of RC sends nothing where new requests are due."""
    missing = missing_frame(scene.difference)
    if missing is None or scene.difference.got or not may_send(scene.step):
        return False
    return scene.is_reliable and not scene.is_sent_before(missing)


def sends_too_much(scene: Scene) -> bool:
    """Whether a device of RC sends a new request, too, where none is due."""
    extra = extra_frame(scene.difference)
    if extra is None or not may_send(scene.step):
        return False
    return scene.is_reliable and not scene.is_sent_before(extra)


def lacks_retry(scene: Scene, effect: Effect) -> bool:
    """Whether a retransmission is missing, or one too many, where a case needs their limit."""
    is_limited = scene.connection.retry_cnt not in (0, 7)
    extra = extra_frame(scene.difference)
    if is_limited and extra is not None and isinstance(scene.step, Packet):
        return scene.is_sent_before(extra)
    missing = missing_frame(scene.difference)
    if missing is None or effect.group not in ("no answer", "retries"):
        return False
    is_limited |= scene.uses_all_retries
    if gives_up(scene) == RETRY_COUNT:
        return True
    if isinstance(scene.step, Wait):  # one or two are enough where the timer is at fault
        is_limited |= scene.retransmissions(missing) > ENOUGH
        return is_limited and scene.is_sent_before(missing)
    if not is_limited or not isinstance(scene.step, Packet):
        return False
    # One that has given up does not acknowledge, either.
    due = [missing] if scene.difference.got else scene.difference.expected
    return any(scene.is_sent_before(each) for each in due if isinstance(each, bytes))


def gives_up(scene: Scene) -> str:
    """The rule of the retries that a device says are used up in a wait in which it should
    retransmit; empty if it says nothing of the kind.
    """
    missing = missing_frame(scene.difference)
    if missing is None or not isinstance(scene.step, Wait) or not scene.is_sent_before(missing):
        return ""
    reported = errors_beside(scene.difference)[1]
    if reported == WCStatus.RNR_RETRY_EXC_ERR.name:
        return RNR_RETRY
    is_counted = reported == WCStatus.RETRY_EXC_ERR.name and not _has_no_retries(scene)
    return RETRY_COUNT if is_counted else ""


def lacks_rnr_retry(scene: Scene, effect: Effect) -> bool:
    """Whether the request of an RNR NAK is not retransmitted where a case needs a limit of that."""
    if gives_up(scene) == RNR_RETRY:
        return True
    missing = missing_frame(scene.difference)
    if missing is None or effect.group != "no answer" or not isinstance(scene.step, Wait):
        return False
    is_limited = scene.connection.rnr_retry not in (0, 7)
    return is_limited and scene.has_rnr_nak and scene.is_sent_before(missing)


def retransmits_otherwise(difference: Difference, scene: Scene) -> bool:
    """Whether other packets are retransmitted than should be after a timeout."""
    is_answer = difference.kind is Kind.ANSWER and difference.expected and difference.got
    if not is_answer or scene.about is RNR_WAIT:
        return False
    sides = difference.expected[0], difference.got[0]
    return all(isinstance(each, bytes) and scene.is_sent_before(each) for each in sides)


def begins_right(difference: Difference) -> bool:
    """Whether the first packet that is due is sent, when it is due."""
    if difference.kind is Kind.TIME:
        place = place_of_time(difference)
        return place is not None and difference.frames[place] in difference.frames[:place]
    if difference.kind is not Kind.ANSWER or not difference.expected or not difference.got:
        return False
    return difference.expected[0] == difference.got[0]


def timed(about: About, effect: Effect, scene: Scene) -> Effect:
    """What a device does otherwise when time passes: it sends early, late, or too often."""
    difference = scene.difference
    if difference.kind is Kind.TIME:
        effect = replace(effect, text=_timing(scene))
    effect = _of_retransmission(effect, scene)
    if effect.rule == RETRY_COUNT and effect.group == "a completion" and _has_no_retries(scene):
        # There is nothing to count: it has not waited for as long as it should.
        given_up = next(
            each for each in difference.got if statuses_of([each]) == {WCStatus.RETRY_EXC_ERR}
        )
        early = f"{status_text(given_up, scene.posted)} too early"
        anchor = "rnr-wait" if scene.has_rnr_nak else "ack-timer"
        rule = f"IBA 9.7.5.2.8; {_TRANSPORT}{anchor}"
        if anchor == "ack-timer":
            rule = f"IBA 9.7.6.1.3; {_TRANSPORT}{anchor}"
        return replace(effect, text=early, rule=rule, group="time")
    if effect.rule == RETRY_COUNT and effect.group == "no completion":
        # It is silent, as the reference: it does not retry without end, nothing ends its wait.
        return replace(effect, rule=f"IBA 9.7.6.1.3; {_TRANSPORT}ack-timer", group="time")
    if effect.rule in (RNR_RETRY, RETRY_COUNT):
        return replace(effect, group="retries")
    if rule := gives_up(scene):
        return replace(effect, rule=rule, group="retries")
    if effect.group == ANOTHER_ORDER:  # of several queue pairs, whose timers expire
        effect = replace(effect, group="time", text=_other_times(scene) or effect.text)
    if about is ACK_WAIT and scene.goes_on_after_the_end:
        return replace(effect, rule=RETRY_COUNT, group="retries")
    is_timing = effect.group in ("time", "an answer", "no answer")
    if about is RNR_WAIT and is_timing:
        rule = RNR_LENGTH if difference.kind is Kind.TIME else RNR_WAIT.rule
        return replace(effect, rule=rule, group="time")
    others = [each for each in scene.earlier if not isinstance(each, Wait)][1:]
    missing = missing_frame(difference)
    is_in_part = missing is not None and _sends_others(missing, scene)
    if about is ACK_WAIT and is_in_part:
        return replace(effect, rule=TIME.rule)  # it is the packets that are wrong, not the time
    if about is ACK_WAIT and is_timing and others:  # what starts or stops it, not its length
        effect = replace(effect, rule=f"IBA 9.7.6.1.3; {_TRANSPORT}ack-timer")
        if scene.has_rnr_nak:
            rule = both(effect.rule, f"IBA 9.7.5.2.8; {_TRANSPORT}rnr-wait")
            effect = replace(effect, text=f"{effect.text} after an RNR NAK", rule=rule)
        return effect
    return effect


def _sends_others(missing: bytes, scene: Scene) -> bool:
    """Whether other packets are sent on the queue pair on which one is missing; on any where an
    RNR NAK may be at fault.
    """
    got = [each for each in scene.difference.got if isinstance(each, bytes)]
    pair = scene.sender(missing)
    own = got if scene.has_rnr_nak else [each for each in got if scene.sender(each) == pair]
    return bool(own) and missing not in got


def _of_retransmission(effect: Effect, scene: Scene) -> Effect:
    """The same, which says so if what is missing, or not due, was sent before."""
    frame = missing_frame(scene.difference) or extra_frame(scene.difference)
    if frame is None or not scene.is_sent_before(frame):
        return effect
    text = effect.text
    if effect.group == "an answer" and text.endswith(" instead of nothing"):
        return replace(effect, text=f"a retransmitted {text}")
    nothing = "nothing instead of "
    if effect.group == "no answer" and text.startswith(nothing):
        text = text.removeprefix(nothing)
        return replace(effect, text=f"{nothing}a retransmitted {text}")
    return effect


def is_merely_late(
    case: Case, difference: Difference, replay: Callable[[Case], Difference | None] | None
) -> bool:
    """Whether the first thing that a device does otherwise in the last step, a wait, is that a
    timer expires later, within four times its time: that is of no PSN.

    replay: carries other cases out on the device.
    """
    last = case.steps[-1]
    if not isinstance(last, Wait):
        return False
    if difference.kind is Kind.TIME:
        return _is_within_limit(difference.expected, difference.got)
    missing = missing_frame(difference)
    longer = Wait(min(MOST * last.time, MAXIMUM_TIME))
    if missing is None or replay is None:
        return False
    found = replay(case.with_steps([*case.steps[:-1], longer]))
    if found is None or found.step != difference.step:
        return False
    return found.kind is Kind.TIME or (found.kind is Kind.ANSWER and missing in found.got)


def _is_within_limit(due: Sequence[object], sent: Sequence[object]) -> bool:
    """Whether the first of these times that differs is later, and not too late for its timer.

    That began at the packet before, or anywhere in the case: times count from its beginning.
    """
    last = 0
    for one, other in zip(due, sent, strict=False):
        if not isinstance(one, int) or not isinstance(other, int):
            return False
        if one != other:
            return one < other <= last + MOST * (one - last)
        last = one
    return False


def _has_no_retries(scene: Scene) -> bool:
    """Whether the first timeout ends a request."""
    return scene.is_reliable and not scene.connection.retry_cnt


def _other_times(scene: Scene) -> str:
    """The first packet that is sent at another time, and its queue pair; empty if none is known."""
    difference = scene.difference
    due = list(zip(difference.times[0], difference.expected, strict=False))
    for sent, frame in zip(difference.times[1], difference.got, strict=False):
        right = next((when for when, other in due if other == frame), None)
        if right is None or right == sent or not isinstance(frame, bytes):
            continue
        text = changed_time_text(frame, right, sent, is_repeated=scene.is_sent_before(frame))
        return f"on queue pair {scene.sender(frame) + 1} {text}"
    return ""


def _timing(scene: Scene) -> str:
    """What is sent at another time, and whether it is retransmitted."""
    difference = scene.difference
    place = place_of_time(difference)
    if place is None:
        return timing_text(difference)
    frame, before = difference.frames[place], difference.frames[:place]
    return timing_text(difference, is_repeated=scene.is_sent_before(frame) or frame in before)


_TRANSPORT = "docs/reference/transport.md#"
RNR_LENGTH = both(RNR_WAIT.rule, RNR_TIMER)
"""How long the wait after an RNR NAK is: at least the time of its code."""
