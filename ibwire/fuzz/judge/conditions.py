"""What the queue pair of a step lacks or has done before, and what that explains.

Rights that it has not, requests that were posted before, an ACK that nobody has asked for, retries
that are used up: a finding says so, and belongs to others of the same cause.
"""

from __future__ import annotations

from ibwire.fuzz.case import Connection, Packet, Post, Receive, Step, Wait
from ibwire.fuzz.judge import refused_psn
from ibwire.fuzz.judge.attributes import group_of
from ibwire.fuzz.judge.causes import EARLY_AFTER_RNR, Cause, operation_of
from ibwire.fuzz.judge.concurrency import ELSEWHERE
from ibwire.fuzz.judge.effects import OF_FIELD, RETRY_COUNT, Effect
from ibwire.fuzz.judge.request_names import NOT_READY, RIGHTS, missing_rights
from ibwire.fuzz.judge.rnr_as_retry import GROUP as RNR_AS_RETRIES
from ibwire.fuzz.judge.scene import STEPS, WRONG_LKEY, Scene
from ibwire.fuzz.judge.wording import step_text
from ibwire.rc.plan import PLANS
from ibwire.rc.work import WROpcode


def keys_of_condition(last: Step, scene: Scene, effect: Effect, rule: str) -> Cause:
    """Keys of what findings of one condition have in common. rule: that of the finding.

    last: the last step, as it is in the whole case.
    """
    step, own, wider = scene.step, list[str](), list[str]()
    if rule == RETRY_COUNT:
        wider.append(group_of("retry_cnt"))
        if scene.has_rnr_nak:
            wider.append(RNR_AS_RETRIES)
    if isinstance(step, Wait) and scene.has_rnr_nak and effect.group in _WITHOUT_RETRIES:
        wider.append(EARLY_AFTER_RNR)  # it has no retries left
    if without_rights(scene, effect) or (rule == RIGHTS and effect.group != "another NAK"):
        own.append(f"the rights for {operation_of(step)}")
    is_refused = any(about.rule == NOT_READY.rule for _, about in scene.subjects)
    if isinstance(step, Receive) and is_refused:
        wider.append(refused_psn.GROUP)
    if isinstance(last, Receive) and effect.group in OF_FIELD:
        (own if step is last else wider).append(f"{effect.group} of an unasked ACK")
    is_of_rnr = scene.about.rule.endswith(("#rnr-wait", "#rnr-place"))
    if is_of_rnr and effect.rule == RETRY_COUNT and scene.limits_retries:
        own.append(RNR_AS_RETRIES)
    return Cause(tuple(own), tuple(wider))


def without_rights(scene: Scene, effect: Effect) -> str:
    """Which rights the queue pair has not, if a request is refused for that which needs others."""
    missing, about = scene.connection.access != Connection().access, scene.about
    is_first_fault = effect.text.startswith("NAK INVALID_REQUEST instead of NAK")
    is_refused = effect.nak == "NAK INVALID_REQUEST" and not about.is_wrong
    is_alone = len(scene.subjects) == 1 and isinstance(scene.step, Packet)
    if not (missing and is_alone and about.rule != RIGHTS and (is_refused or is_first_fault)):
        return ""
    return f" on a queue pair without {missing_rights(scene.connection)}"


def is_behind_receive(last: Step, scene: Scene, effect: Effect) -> bool:
    """Whether an ACK that differs may be that of a receive which was posted behind a packet."""
    return last is not scene.step and isinstance(last, Receive) and effect.group in OF_FIELD


def is_dropped_after_own_error(scene: Scene) -> bool:
    """Whether UC or UD drops a right packet behind an own request that failed: not in SQE."""
    if scene.is_reliable or scene.about.is_wrong or not scene.is_dropped:
        return False
    return any(about is WRONG_LKEY for _, about in scene.subjects[:-1])


def behind_requests(step: Post, scene: Scene) -> str:
    """The requests that were posted before a step, if a short case needs them."""
    if any(not isinstance(each, Post) or each.pair != step.pair for each in scene.earlier):
        return ""
    kinds = list(dict.fromkeys(map(step_text, scene.earlier)))
    is_named = kinds and scene.is_short and len(kinds) <= _MOST_NAMED
    return f" after {' and '.join(kinds)}" if is_named else ""


def rule_of_nothing_sent(step: Post, scene: Scene) -> str:
    """The rule where a posted request is not sent: another queue pair or a state may hold it."""
    earlier = [each for each in scene.earlier if isinstance(each, Post)]
    if any(each.pair != step.pair for each in earlier) or len(earlier) < len(scene.earlier):
        return ELSEWHERE.rule
    takes_credit = [PLANS[WROpcode(each.opcode)].takes_credit for each in (*earlier, step)]
    if earlier and takes_credit[-1] and not any(takes_credit[:-1]):
        return _COUNTED  # what needs no credit uses one up
    return STEPS[Post].rule


_WITHOUT_RETRIES = ("no answer", "retries", "time")
"""What may come of having no retries left."""

_COUNTED = "IBA 9.7.7.2; docs/reference/transport.md#credits-counted"
_MOST_NAMED = 2
"""Kinds of requests in a name."""
