"""What else goes on in the last step of a case: other queue pairs, and responses that wait.

A finding is named after that instead of after the step if it is what goes wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ibwire.fuzz.case import Case, Packet, Post, Receive, Step
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.effects import (
    GAP_NAK,
    Effect,
    extra_frame,
    missing_frame,
    odd_completions,
    parsed,
)
from ibwire.fuzz.judge.findings import verdict
from ibwire.fuzz.judge.request_names import AHEAD
from ibwire.fuzz.judge.scene import DURING_RNR, INSIDE, RNR_WAIT, Scene
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.targets.emulated_device import PEER_QPN
from ibwire.rc.work import WCStatus
from ibwire_layers.opcodes import INFO


def of_pair(scene: Scene, effect: Effect) -> Effect:
    """The effect, which says so if completions of another queue pair than the step's differ."""
    step = scene.step
    if not isinstance(step, Packet | Post | Receive):
        return effect
    own = step.pair % scene.connection.pairs
    for completion, text in odd_completions(scene.difference, scene.posted):
        if scene.owners.get((completion[0], completion[1]), own) != own:
            if completion[2] == WCStatus.SUCCESS:
                return replace(effect, text=text)
            return replace(
                effect, text=text, rule=ELSEWHERE.rule, group=OF_ANOTHER, is_error_state=False
            )
    return effect


def of_held(case: Case, difference: Difference) -> tuple[Case, Difference]:
    """A case up to a held packet whose effect differs, which is compared with the step after it."""
    number = difference.step
    step, before = case.steps[number], case.steps[number - 1] if number else None
    is_held = isinstance(before, Packet) and before.held and not isinstance(step, Packet)
    if not is_held or difference.kind not in (Kind.ANSWER, Kind.MEMORY):
        return case, difference
    if difference.kind is Kind.ANSWER:
        expected, got = map(_responses, (difference.expected, difference.got))
        if expected == got:
            return case, difference
        difference = replace(difference, expected=expected, got=got)
    return without_last(case.with_steps(case.steps[: number + 1])), replace(
        difference, step=number - 1
    )


def without_last(case: Case) -> Case:
    """A case that ends with its last packet but one, which was held until the last one."""
    *earlier, before, _ = case.steps
    assert isinstance(before, Packet)
    return case.with_steps([*earlier, replace(before, held=False)])


def place_of(scene: Scene, effect: Effect) -> About | None:
    """What the queue pair, or another one, is doing beside, if that is what goes wrong."""
    step, reference = scene.step, scene.reference
    if _is_held_back_beside(scene, effect):
        return BESIDE_RNR
    if not isinstance(step, Packet) or scene.difference.kind is Kind.CRASH:
        return None
    asked = scene.is_answered_from
    # The frames of a device on a link have other numbers than this reference.
    if (
        asked is not None
        and reference.connection.pairs > 1
        and asked != reference.symbols["peer_qpn"]
    ):
        is_waiting = any(scene.waiting[asked - PEER_QPN :][:1]) if asked >= PEER_QPN else False
        return DURING_RNR if is_waiting else ELSEWHERE
    missing = missing_frame(scene.difference)
    situation = scene.situation
    if situation is INSIDE:
        is_ignored = effect.group in ("no answer", "no completion")
        return situation if is_ignored else None
    if situation is DURING_RNR:
        return situation if effect.group in ("no answer", "an answer", "another answer") else None
    held, before = scene.held, scene.before
    if missing is None:
        is_late = before is AHEAD and scene.about is not AHEAD and _reports_gap(scene)
        return _while_answered(before) if before is not None and is_late else None
    if held is not None and is_of_another(held, scene):
        return ELSEWHERE
    if situation is not None or not scene.is_about_earlier(missing):
        return situation
    return _while_earlier_waits(before, missing, is_overtaken=bool(scene.difference.got))


def _is_held_back_beside(scene: Scene, effect: Effect) -> bool:
    """Whether requests of a queue pair are not sent while another one waits after an RNR NAK.

    Only a short case needs that wait.
    """
    missing = missing_frame(scene.difference)
    if missing is None or effect.group != "no answer" or not isinstance(scene.step, Packet | Post):
        return False
    if not scene.is_short or not scene.waits_beside or _has_response(missing):
        return False
    return scene.is_answered_from == scene.reference.symbols["peer_qpn"]


def _while_earlier_waits(before: About | None, missing: bytes, *, is_overtaken: bool) -> About:
    """What a step is about if the response to what came before it is never sent.

    is_overtaken: whether a later one is.
    """
    about, due = _EARLIER, _EARLIER.rule
    is_nak = "NAK" in verdict(missing)
    is_own = before is not None and (before is AHEAD if is_nak else before.rule in DUPLICATE_RULES)
    if before is not None and is_own:
        about, due = _while_answered(before), before.rule
    elif verdict(missing) == "ACK":
        due = ACK_DUE
    elif before is not None and before.is_wrong and is_nak:
        due = before.rule
    return replace(about, rule=both(_EARLIER.rule, due) if is_overtaken else due)


def both(one: str, other: str) -> str:
    """Two rules as one: their sections of the specification, and their entries."""
    if one == other:
        return one
    sections, entries = one.split("; ")
    others, more = other.split("; ")
    known = sections.removeprefix("IBA ").split(", ")
    new = [each for each in others.removeprefix("IBA ").split(", ") if each not in known]
    pages = dict.fromkeys((*entries.split(", "), *more.split(", ")))
    return f"{', '.join([sections, *new])}; {', '.join(pages)}"


def _while_answered(about: About) -> About:
    """What a step is about if an answer to the packet before it is wrong."""
    what = f"while {about.what} is to be answered"
    # Held or not, what is not answered then has one cause.
    group = "a duplicate SEND or WRITE: no answer" if about.rule == DUPLICATE_WRITE else ""
    return replace(_EARLIER, what=what, rule=about.rule, group=group)


def _reports_gap(scene: Scene) -> bool:
    """Whether the device sends one sequence NAK too many, which may be for a held packet."""
    extra, held = extra_frame(scene.difference), scene.held
    is_own = held is not None and not is_of_another(held, scene)
    return is_own and extra is not None and verdict(extra) == GAP_NAK


def is_of_another(step: Step, scene: Scene) -> bool:
    """Whether a step is for another queue pair than the last one of a scene."""
    last, pairs = scene.step, scene.connection.pairs
    if not isinstance(step, Packet | Post | Receive) or not isinstance(last, Packet):
        return False
    return step.pair % pairs != last.pair % pairs


def _responses(frames: Sequence[object]) -> list[object]:
    """The responses among what a device has sent."""
    return [each for each in frames if isinstance(each, bytes) and _has_response(each)]


def _has_response(frame: bytes) -> bool:
    packet = parsed(frame)
    info = None if packet is None else INFO.get(packet.bth.opcode)
    return info is not None and info.is_response


_TRANSPORT = "docs/reference/transport.md#"

OF_ANOTHER = "a completion of another queue pair"
"""The group of differences in what the step is not about."""

ELSEWHERE = About(
    "while another queue pair answers",
    f"IBA 10.3.1; {_TRANSPORT}qp-state-actions",
    group="the answers of another queue pair",
)
BESIDE_RNR = About(
    "while another queue pair waits after an RNR NAK",
    RNR_WAIT.rule,
    group="the wait of another queue pair after an RNR NAK",
)
BROKEN = replace(ELSEWHERE, what="an error of another queue pair", is_wrong=False)

DUPLICATE_WRITE = f"IBA 9.7.5.1.5; {_TRANSPORT}duplicate-write"
DUPLICATE_ATOMIC = f"IBA 9.7.5.1.5; {_TRANSPORT}duplicate-atomic"
DUPLICATE_RULES = (
    DUPLICATE_WRITE,
    DUPLICATE_ATOMIC,
    f"IBA 9.7.5.1.5; {_TRANSPORT}duplicate-read",
)
ACK_DUE = f"IBA 9.7.5.1.2; {_TRANSPORT}ack-due"
_EARLIER = About("while earlier responses wait", f"IBA 9.7.5.1; {_TRANSPORT}ack-order")
