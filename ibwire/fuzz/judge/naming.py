"""Name, rule and group of a finding, from its minimised case.

The name says what the case shows: the packet at fault, what is wrong with it, and what the
device did instead of what. The rule is that of the packet and of the field in which the device
differs. Findings of one group probably have one cause.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ibwire.fuzz.case import (
    Case,
    Packet,
    Post,
    Receive,
    Step,
    Wait,
)
from ibwire.fuzz.judge.attributes import SAVED, group_of, group_of_long
from ibwire.fuzz.judge.broken_rule import (
    ATOMICS,
    PARTIAL,
    RESPONSES,
    completes_too_much,
    rule_of_field,
    rule_of_held,
    rule_of_right,
)
from ibwire.fuzz.judge.causes import (
    AFTER_RNR_WAIT,
    OLDEST_NOT_SAVED,
    cause_of,
    changed_number,
    common_causes,
    lacks_gathered,
    lacks_shared_completion,
    not_taken,
)
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.concurrency import (
    BROKEN,
    DUPLICATE_ATOMIC,
    DUPLICATE_RULES,
    DUPLICATE_WRITE,
    ELSEWHERE,
    OF_ANOTHER,
    both,
    is_of_another,
    of_held,
    of_pair,
    place_of,
    without_last,
)
from ibwire.fuzz.judge.conditions import (
    behind_requests,
    is_behind_receive,
    is_dropped_after_own_error,
    keys_of_condition,
    rule_of_nothing_sent,
    without_rights,
)
from ibwire.fuzz.judge.effects import (
    ANOTHER_ORDER,
    FLUSH,
    FLUSH_ORDER,
    LAST_WQE,
    OF_FIELD,
    ORDER_OF_COMPLETIONS,
    RETRY_COUNT,
    RNR_RETRY,
    RNR_TIMER,
    SRQ_LIMIT,
    Effect,
    effect_of,
    extra_frame,
    first_frame,
    missing_frame,
    parsed,
    statuses_of,
)
from ibwire.fuzz.judge.ignored_response import ignored_response
from ibwire.fuzz.judge.request_names import (
    AFTER_ERROR,
    ERROR,
    FULL,
    INVALIDATED,
    NOT_READY,
    OLDEST_SAVED,
    RESERVED_OPCODE,
    RIGHT_SEND,
    RIGHTS,
    SERVICES,
    UC_BEGINNINGS,
    UC_BEGINS,
    UNUSUAL,
    WRAP,
    rule_of_operation,
)
from ibwire.fuzz.judge.response_names import SCATTERED
from ibwire.fuzz.judge.rnr_as_retry import GROUP as RNR_AS_RETRIES
from ibwire.fuzz.judge.scene import (
    ACK_WAIT,
    FENCE,
    LOCAL_INVALIDATE,
    RNR_WAIT,
    TIME,
    WRONG_LKEY,
    Scene,
)
from ibwire.fuzz.judge.sending import (
    RNR_LENGTH,
    begins_right,
    is_merely_late,
    lacks_new,
    lacks_retry,
    lacks_rnr_retry,
    may_send,
    sends_nothing_new,
    sends_too_much,
    timed,
)
from ibwire.fuzz.judge.setting import (
    ORDER,
    PKEY,
    REARMED,
    SHARED,
    across_wrap,
    is_of_requester,
    setting_of,
)
from ibwire.fuzz.judge.single_cause import partly_taken, single_cause
from ibwire.fuzz.judge.subject import SGE_LIST, About
from ibwire.fuzz.judge.variants import Replay, Trials
from ibwire.fuzz.judge.wording import described, said_before, step_text
from ibwire.fuzz.targets.emulated_device import (
    Emulation,
)
from ibwire.rc.profile import Profile
from ibwire.rc.work import WCStatus
from ibwire_layers.opcodes import INFO, Operation


@dataclass(frozen=True, slots=True)
class Name:
    """What a finding is called."""

    text: str
    rule: str
    group: str
    """Equal for findings that probably have one cause."""
    wider: tuple[str, ...] = ()
    """Other groups that it may belong to, such as that without what came before the last step."""
    causes: tuple[str, ...] = ()
    """Beside the group: those with one of them in common probably have one cause, too."""
    cost: int = field(default=0, compare=False)
    """What references have cost that were tried for it, in steps that take as long."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The group and the causes."""
        return self.group, *self.causes


def name_of(
    case: Case, difference: Difference, profile: Profile, replay: Replay | None = None
) -> Name:
    """The name of a difference in a step of a case.

    profile: of the reference. replay: carries other cases out on the device, which show whether a
    cause is true; without it one that fits is taken.
    """
    case = case.with_steps(case.steps[: difference.step + 1])
    last, (case, difference) = case.steps[difference.step], of_held(case, difference)
    reference = Emulation(case.connection, profile)
    scene = Scene(reference, case, difference, profile)
    earlier = scene.earlier_completion or scene.earlier_nak or scene.earlier_response
    if earlier is not None:
        return name_of(without_last(case), earlier, profile, replay)
    trials = Trials(case, difference, profile, replay)
    name = _name_of(last, case, scene, trials)
    own = scene.about.rule
    if name.rule == ORDER and own in DUPLICATE_RULES:
        name = replace(name, rule=both(ORDER, own))
    return replace(name, cost=trials.cost)


def _name_of(last: Step, case: Case, scene: Scene, trials: Trials) -> Name:
    """The name, without its cost. last: the last step, as it is in the whole case."""
    difference = scene.difference
    step, effect = scene.step, of_pair(scene, effect_of(difference, scene.posted))
    about = setting_of(scene, effect) or place_of(scene, effect) or scene.about
    if is_of_another(last, scene) and missing_frame(difference) is not None:
        about = ELSEWHERE  # the step after a held packet, which such a case needs
    if about is FULL and effect.group == "memory":
        about = RIGHT_SEND  # where its bytes go is no matter of its size
    at_wrap = across_wrap(scene, about)
    if at_wrap is not about and not is_merely_late(case, difference, trials.replay):
        about = at_wrap
    if isinstance(step, Wait):
        if about is RNR_WAIT and (begins_right(difference) or scene.ends_with_ack_timer):
            about = ACK_WAIT  # which begins when the request is sent again
        effect = timed(about, effect, scene)
    text = described(step, about) + without_rights(scene, effect)
    if is_behind_receive(last, scene, effect):
        text = f"{text} with a posted receive behind it"
    if about is scene.about and (earlier := _wrongly_answered(scene, effect)) is not None:
        text = f"{described(*earlier)} with {step_text(step)} behind it"
        if extra_frame(difference) is not None:
            about = earlier[1]
    if difference.kind is Kind.CRASH:
        return _of_crash(text, about, effect, scene)
    abouts = [each for _, each in scene.subjects]
    # Credits that are counted otherwise look like many other things.
    is_telling = effect.group != "credits" or trials.is_tested
    if is_telling and (cause := single_cause(trials, abouts)):
        if about.rule == ORDER and cause.after:  # what is wrong at the wrap has one cause
            group = _OWN_WRAP if is_of_requester(step) else WRAP
            return Name(f"{text}: {effect.text}", ORDER, group, wider=(cause.group,))
        own = about if isinstance(step, Wait) else scene.about
        text = f"{described(step, own)}{cause.after}: {effect.text}{cause.as_if}"
        is_counted = cause.group == group_of("retry_cnt") and scene.has_rnr_nak
        retries = (RNR_AS_RETRIES,) if is_counted else ()
        saved = (OLDEST_NOT_SAVED,) if cause.rule == SAVED else ()
        return Name(text, cause.rule, cause.group, wider=retries, causes=saved)
    ignored, part = ignored_response(trials), partly_taken(trials, abouts)
    if part is not None and ignored is None and not about.implies_nak:
        text = f"{text}: {effect.text}{part.as_if}"
        if about.rule == ORDER:
            return Name(text, ORDER, f"{part.group} at the PSN wrap", causes=(_OWN_WRAP,))
        return Name(text, part.rule, part.group)
    name = _of_several_causes(text, about, effect, scene, ignored)
    # Of a response that shows nothing a part may have been taken, or none of it.
    wider = (part.group,) if part is not None else group_of_long(case, name.rule)
    if isinstance(step, Packet) and lacks_gathered(scene, effect):
        name = replace(name, rule=SGE_LIST)
    if without_rights(scene, effect):
        name = replace(name, rule=RIGHTS)
    keys = keys_of_condition(last, scene, effect, name.rule)
    name = replace(name, causes=(*name.causes, *keys.own))
    wider = (*wider, *keys.wider)
    causes = common_causes(scene, effect, abouts[ignored] if ignored is not None else None)
    return replace(name, causes=(*name.causes, *causes), wider=(*name.wider, *wider))


def _wrongly_answered(scene: Scene, effect: Effect) -> tuple[Step, About] | None:
    """The packet before the last one, if the response to that has a wrong field, or if it is wrong
    and has one too many.
    """
    extra, held = extra_frame(scene.difference), scene.held
    frame = extra or first_frame(scene.difference)
    if held is None or frame is None or not scene.is_about_earlier(frame):
        return None
    before = scene.subjects[-2]
    is_wrong = before[1].is_wrong if extra is not None else effect.group in OF_FIELD
    return before if is_wrong else None


def _of_several_causes(
    text: str, about: About, effect: Effect, scene: Scene, ignored: int | None
) -> Name:
    """The name of a difference that no single change to a right device explains.

    ignored: the number of the response without which a right device would do the same.
    """
    step = scene.step
    if found := _of_any_packet(text, about, effect, scene):
        return found
    if isinstance(step, Wait) and (response := scene.acknowledging) is not None:
        text = f"a wait after {response.text}: {effect.text}"
        group = response.group or f"after {response.what}: {effect.group}"
        if response.is_wrong:
            return Name(text, response.rule, group)
        if not response.rule.endswith(("#rnr-place", "#rnr-wait")):
            # Either the response counts for too much, or whatever is retransmitted lacks a part.
            return Name(text, both(response.rule, TIME.rule), group, (f"{about.what}: no answer",))
        rule = both(RNR_WAIT.rule, response.rule)
        return Name(text, rule, group, causes=(AFTER_RNR_WAIT,))
    if lacks_retry(scene, effect):
        group, cause = f"{about.what}: retries", f"retries: {effect.group}"
        return Name(f"{text}: {effect.text}", RETRY_COUNT, group, causes=(cause,))
    if lacks_rnr_retry(scene, effect):
        text = f"{step_text(step)} ({RNR_WAIT.what})"
        return Name(f"{text}: {effect.text}", RNR_RETRY, "RNR retries")
    missing = missing_frame(scene.difference)
    if missing is not None and scene.rnr_naks_as_retries and scene.is_sent_before(missing):
        text = f"{text} after {scene.rnr_naks} RNR NAKs: {effect.text}"
        return Name(text, both(RNR_RETRY, RETRY_COUNT), RNR_AS_RETRIES)
    if about.is_wrong and scene.sends_after_its_end:
        return Name(f"{text}: {effect.text}", AFTER_ERROR.rule, ERROR)
    if may_send(step) and scene.takes_credits_back:
        text = f"{text} after {_FEWER_CREDITS.what}" if isinstance(step, Post) else text
        return Name(f"{text}: {effect.text}", _FEWER_CREDITS.rule, _FEWER_CREDITS.group)
    if about.is_wrong and scene.limit_of_requests == FENCE and lacks_new(scene):
        return Name(f"{text}: {effect.text}", FENCE, _HELD_BACK)  # whatever else it may send
    if ignored is not None and _is_earlier(ignored, scene):
        return _of_ignored(text, effect, scene, ignored)
    count = 0 if isinstance(step, Post) else scene.sges_of_sent
    if count and effect.group in ("data", "payload", "no answer"):
        effect = replace(effect, text=f"{effect.text}, of a request with {count} SGEs")
    name = _of_step(text, about, effect, scene)
    name = replace(name, rule=_with_queue(name.rule, about, effect, scene))
    if effect.other_field:
        name = replace(name, rule=both(name.rule, effect.other_field))
    if ignored != len(scene.subjects) - 1 or count:
        return name
    return replace(name, causes=(*name.causes, not_taken(about)))


def _with_queue(rule: str, about: About, effect: Effect, scene: Scene) -> str:
    """A rule with that of the shared receive queue, from which all receive requests of XRC come.

    Only if it is wrong which of them a message takes, or whether it takes one.
    """
    is_other = not about.is_wrong and "wr_id" in effect.group.split()
    is_missing = about.rule == NOT_READY.rule and effect.group not in OF_FIELD
    is_of_queue = scene.service == "XRC_RECV" and (is_other or is_missing)
    return both(rule, SHARED.rule) if is_of_queue else rule


def _of_crash(text: str, about: About, effect: Effect, scene: Scene) -> Name:
    """The name of an exception."""
    step = scene.step
    rule, group = _with_queue(about.rule, about, effect, scene), effect.group
    if not scene.is_reliable and about.treatment:  # RC treats it otherwise: with a NAK
        rule = about.treatment
    elif isinstance(step, Packet) and rule in [each.rule for each in SERVICES.values()]:
        rule = rule_of_operation(step) or rule
    if _has_reserved_opcode(step):  # which may be one of any service
        rule = RESERVED_OPCODE.rule
    elif about.is_ignored:  # where it fails in a malformed packet depends on its opcode
        group = f"{group.partition(' in ')[0]} at {about.group or about.what}"
    return Name(f"{text}: {effect.text}", rule, f"crash: {group}")


def _of_any_packet(text: str, about: About, effect: Effect, scene: Scene) -> Name | None:
    """The name of a difference of one cause, whatever the last packet is."""
    if effect.is_error_state:
        return _of_error_state(text, about, effect, scene)
    if is_dropped_after_own_error(scene):
        text = f"{text} after {WRONG_LKEY.what}: {effect.text}"
        return Name(text, both(_TRANSITIONS, ELSEWHERE.rule), _OWN_ERROR)
    if effect.is_event:
        return Name(f"{text}: {effect.text}", effect.rule, effect.group)
    if isinstance(scene.step, Post) and scene.ends_another_request:
        return Name(f"{text}: {effect.text}", ORDER_OF_COMPLETIONS, _ANOTHER_ENDED)
    if about is SHARED:
        return Name(f"{text}: {effect.text}", about.rule, about.group)
    if effect.group in (FLUSH_ORDER, SRQ_LIMIT, LAST_WQE):
        return Name(f"{text}: {effect.text}", effect.rule, effect.group)
    if scene.completes_incomplete:
        text = f"{text}: it completes the message before this one, which has no end"
        return Name(text, SERVICES["UC"].rule, "a message of UC without its end")
    if about.is_wrong and scene.fails_abandoned:
        return Name(f"{text}: {effect.text}", SERVICES["UC"].rule, "an abandoned message of UC")
    if effect.group == FLUSH:
        is_after = scene.reference.qp.responder.failed
        rule = both(effect.rule, AFTER_ERROR.rule) if is_after else effect.rule
        return Name(f"{text}: {effect.text}", rule, ERROR)
    return None


def _of_error_state(text: str, about: About, effect: Effect, scene: Scene) -> Name:
    """The name for a queue pair that goes to the error state where it should not.

    UC and UD have no other fault of a packet, and SQE for those of their own requests.
    """
    if about is SHARED:
        text = described(scene.step, scene.about)
    rule, group = both(about.rule, effect.rule), f"{about.what}: {effect.group}"
    if not scene.is_reliable:
        is_own = is_of_requester(scene.step)
        own = _TRANSITIONS if is_own else SERVICES[scene.service].rule
        rule, group = both(own, effect.rule), _OWN_ERROR if is_own else _ERROR_OF_PACKET
    return Name(f"{text}: {effect.text}", rule, group)


def _of_step(text: str, about: About, effect: Effect, scene: Scene) -> Name:
    """The name of a difference that is named after the last step or what it is about."""
    # Whatever a packet is, its MigReq bit counts while a path is to be armed.
    ignored = None if about is REARMED else scene.ignored
    if about.is_wrong and (ignored is None or about.is_ignored):
        return _with_cause(_of_wrong(text, about, effect, scene), scene, effect, about)
    if ignored is not None:
        # A right device does nothing because of it: whatever comes of it has one cause.
        group = ignored.group or f"after {ignored.what}: {effect.group}"
        name = Name(f"{text} after {said_before(ignored)}: {effect.text}", ignored.rule, group)
        return _with_cause(name, scene, effect, about)
    if effect.group == OF_ANOTHER:
        return Name(f"{text}: {effect.text}", effect.rule, effect.group)
    if scene.invalidates_locally:
        text = f"{text} after a posted LOCAL_INV"
        is_refused = effect.group != "memory"
        rule = INVALIDATED.rule if is_refused else rule_of_right(about, effect, scene)
        if is_refused:
            rule = LOCAL_INVALIDATE.rule if effect.nak else both(rule, LOCAL_INVALIDATE.rule)
        return Name(f"{text}: {effect.text}", rule, f"{text}: {effect.group}")
    return _with_cause(_of_right(text, about, effect, scene), scene, effect, about)


def _is_earlier(place: int, scene: Scene) -> bool:
    """Whether a response that the device does not take is one before the last step."""
    if place == len(scene.subjects) - 1 or not scene.difference.got:
        return False  # of what is silent it cannot be said
    about = scene.subjects[place][1]
    return not (about.is_wrong or about.is_ignored or scene.ignores_credits)


def _of_ignored(text: str, effect: Effect, scene: Scene, place: int) -> Name:
    """The name of a difference that comes of an earlier response which the device does not take."""
    step, about = scene.subjects[place]
    about = across_wrap(scene, about, step)
    causes = (_OWN_WRAP,) if about.rule == ORDER else ()
    text = f"{text}: {effect.text}, as if {step_text(step)} ({about.text}) had not come"
    return Name(text, about.rule, not_taken(about), causes=causes)


def _with_cause(name: Name, scene: Scene, effect: Effect, about: About) -> Name:
    """A name with what it has in common with others, unless it is named after the queue pair."""
    if name.rule == ORDER:
        return replace(name, causes=(_OWN_WRAP if is_of_requester(scene.step) else WRAP,))
    if scene.connection.srq and scene.difference.kind is Kind.COMPLETION:
        name = replace(name, wider=(*name.wider, SHARED.group))
    if about.group == PKEY.group:
        return replace(name, wider=(*name.wider, _WRONG_PKEY))
    if name.group == about.group:
        return name
    cause = cause_of(scene, effect, about)
    causes, wider = (*name.causes, *cause.own), (*name.wider, *cause.wider)
    return replace(name, causes=causes, wider=wider)


def _of_wrong(text: str, about: About, effect: Effect, scene: Scene) -> Name:
    """The name for a packet with a fault, which the specification allows one treatment of."""
    rule, group = about.rule, effect.group
    if group == OF_ANOTHER:
        return Name(f"{text}: {effect.text}", effect.rule, group)
    is_plain = scene.is_short and scene.held is None and about is scene.about
    behind = scene.before if is_plain else None
    if behind is not None and behind.rule == DUPLICATE_WRITE and rule not in DUPLICATE_RULES:
        text = f"{text} after {said_before(behind)}"
        return Name(f"{text}: {effect.text}", DUPLICATES, f"after {behind.what}: {group}")
    silencing = scene.repeated_fault if group == "no answer" else None
    if silencing is not None and silencing.rule != rule:
        text = f"{text} after {said_before(silencing)}"
        return Name(f"{text}: {effect.text}", silencing.rule, f"after {silencing.what}: {group}")
    if group == "no answer" and about.detail.endswith(OLDEST_SAVED):
        rule = both(rule, SAVED)
    elif effect.is_executed:
        group = "executed"
        rule = DUPLICATES if about.rule == DUPLICATE_WRITE else rule
    elif group in OF_FIELD and (about.treatment or rule != ORDER):
        rule = about.treatment or about.rule
        is_alone = scene.connection.pairs == 1 and not scene.connection.srq
        uses_receive = group == "credits" and changed_number(scene.difference, "aeth.syndrome") < 0
        if about.rule in DUPLICATE_RULES and uses_receive and is_alone:
            rule = DUPLICATES
        elif rule not in _FIELDS_OF_RULE.get(group, ()):
            rule = rule_of_field(effect, scene)
    if effect.rule in (SOLICITED, RNR_TIMER, RNR_LENGTH):
        rule = effect.rule
    elif group == ANOTHER_ORDER:
        rule = both(effect.rule, ORDER) if about.rule == ORDER else effect.rule
    elif lacks_shared_completion(scene):
        rule = both(SHARED.rule, about.treatment or rule)
    elif about.what == SCATTERED.what and WCStatus.LOC_PROT_ERR in statuses_of(
        scene.difference.got
    ):
        rule = both(WRONG_LKEY.rule, rule)
    elif completes_too_much(scene):
        rule = PARTIAL
    elif about.treatment and _is_noticed(effect, scene):
        rule = about.treatment
    elif about.rule.endswith("#opcode-sequence"):
        before = scene.before
        # It has no FIRST because that one was dropped, which UC does not report; or what goes on
        # behind a packet that was refused is at fault, without which it would show nothing.
        is_left = scene.service == "UC" or (before is NOT_READY and scene.is_short)
        if is_left and before is not None and before.is_wrong and before.rule != about.rule:
            text, rule = f"{text} after {said_before(before)}", before.rule
    elif about is scene.about and scene.is_short and scene.before is NOT_READY:
        text, rule = f"{text} after {said_before(NOT_READY)}", NOT_READY.rule
    is_late = about.rule.endswith("#opcode-sequence") and effect.text.startswith(_LATER_NAKS)
    wider = (f"{about.what}: executed",) if is_late else ()
    group = "another answer" if group == "payload" and about.rule in DUPLICATE_RULES else group
    what = "a duplicate SEND or WRITE" if about.rule == DUPLICATE_WRITE else about.what
    return Name(f"{text}: {effect.text}", rule, about.group or f"{what}: {group}", wider)


def _of_right(text: str, about: About, effect: Effect, scene: Scene) -> Name:
    """The name for a packet or request without a fault, which may follow one that has."""
    step = scene.step
    what, rule = about.what, rule_of_right(about, effect, scene)
    what = UC_BEGINS.what if about in UC_BEGINNINGS else what  # one cause, whatever its PSN is
    wider: tuple[str, ...] = ()
    is_of_any = effect.is_of_any or effect.group in OF_FIELD
    if is_of_any and isinstance(step, Packet | Post):
        what = "a right packet"  # of any operation
    limit = scene.limit_of_requests if may_send(step) else ""
    is_of_field = effect.group in OF_FIELD and about.rule != ORDER
    is_named = bool(about.what) or about is LOCAL_INVALIDATE
    if isinstance(step, Post) and is_named and not is_of_field:
        rule = about.rule
    elif isinstance(step, Post) and about.rule == SGE_LIST:
        rule = both(about.rule, rule)
    elif limit == FENCE and lacks_new(scene):
        return Name(f"{text}: {effect.text}", FENCE, _HELD_BACK)
    elif about.rule == ORDER and sends_nothing_new(scene):
        rule = ORDER  # whatever holds back what should follow
    elif limit and (sends_nothing_new(scene) or sends_too_much(scene)):
        rule = limit
        what = f"{what}, {rule.partition('#')[2]}".removeprefix(", ")
    elif isinstance(step, Post) and sends_nothing_new(scene):
        text, rule = f"{text}{behind_requests(step, scene)}", rule_of_nothing_sent(step, scene)
    ignores_credits = may_send(step) and limit != FENCE and scene.ignores_credits
    if ignores_credits and not scene.has_wrong:
        text = f"{text} after {_IGNORED_CREDITS.what}" if isinstance(step, Post) else text
        return Name(f"{text}: {effect.text}", _IGNORED_CREDITS.rule, _IGNORED_CREDITS.group)
    if effect.group == "data" and (name := _of_stored(text, about, effect, scene)):
        return name
    before = _cause(scene, effect)
    if before is None and scene.breaks_another_pair and isinstance(step, Packet | Post):
        before = BROKEN
    is_counted = effect.rule in (RNR_RETRY, RETRY_COUNT)
    if before is not None and about not in UNUSUAL.values() and not is_counted:
        wider = (f"{what}: {effect.group}",)
        text, rule = f"{text} after {said_before(before)}", before.rule
        what = f"after {before.what}"
        if rule == DUPLICATE_WRITE:  # it must change nothing, whatever it is answered
            rule, what = DUPLICATES, "after a duplicate SEND or WRITE"
        if before.group == WRAP:
            return Name(f"{text}: {effect.text}", rule, WRAP)
        if about.rule == ORDER:
            rule = ORDER
        elif scene.is_wrong_elsewhere and effect.group in OF_FIELD:
            rule = both(rule_of_right(about, effect, scene), ELSEWHERE.rule)
        elif scene.breaks_another_pair:
            rule = ELSEWHERE.rule
        elif not scene.is_reliable:
            rule = before.treatment or before.rule
    if ignores_credits:  # if that is known; what is wrong may have this effect, too
        wider = (_IGNORED_CREDITS.group,)
    # Whether an ACK is due beside makes no other finding, nor whether memory shows or is read.
    group = "refused" if effect.nak and effect.group == "an answer" else effect.group
    group = "memory" if group == "data" and _writes(step) else group
    causes = (_HELD_BACK,) if rule == FENCE and lacks_new(scene) else ()
    if rule.endswith("#limited-message"):
        causes = ("packets of the message that may begin without credits",)
    return Name(f"{text}: {effect.text}", rule, f"{what}: {group}", wider, causes)


def _of_stored(text: str, about: About, effect: Effect, scene: Scene) -> Name | None:
    """The name where the last step shows what a packet before it has stored, if it does."""
    rule, storing = rule_of_held(scene), scene.held
    if not rule:
        storing = scene.storing
        if storing is None:
            return None
        is_read = INFO[storing.opcode].operation is Operation.READ_RESPONSE
        rule = RESPONSES if is_read else ATOMICS
    text = f"{text} after {step_text(storing or scene.step)}"
    cause = cause_of(scene, effect, about)
    return Name(f"{text}: {effect.text}", rule, _SHOWN_MEMORY, causes=cause.own)


def _writes(step: Step) -> bool:
    """Whether a packet lets the device write into its memory."""
    info = INFO.get(step.opcode) if isinstance(step, Packet) else None
    return info is not None and info.operation in _WRITING


def _is_noticed(effect: Effect, scene: Scene) -> bool:
    """Whether a device sees what is wrong, and then does something else than it should."""
    if not scene.is_reliable:  # what is wrong is dropped without a response
        is_taken = effect.is_executed and effect.group != "no completion"
        return effect.ends or not is_taken
    info = INFO.get(scene.step.opcode) if isinstance(scene.step, Packet) else None
    if info is not None and info.is_response:
        return effect.group == "no answer"
    return effect.group == "another NAK"


def _cause(scene: Scene, effect: Effect) -> About | None:
    """What an earlier step is about, if the name says that the last one is right after it."""
    subjects = scene.of_connection
    is_unasked = isinstance(scene.step, Receive) and effect.group == "bth.psn"
    if isinstance(scene.step, Wait) or is_unasked:
        return None
    if isinstance(scene.step, Post) and _is_of_same_kind(scene, effect):
        return None
    wrong = next((each for _, each in reversed(subjects) if each.is_wrong), None)
    if wrong is None and effect.group == "no answer" and may_send(scene.step):
        told = ("#rnr-wait", "#rnr-place")
        wrong = next((each for _, each in subjects[:-1] if each.rule.endswith(told)), None)
        if wrong is not None:
            return replace(wrong, rule=RNR_WAIT.rule)
    if wrong is None and effect.group in ("no answer", "an answer") and may_send(scene.step):
        about = [each for _, each in subjects[:-1]]
        posted = [each for each in about if each.rule == WRONG_LKEY.rule]
        if posted and effect.group == "an answer":
            return posted[0]  # it fails when it is to be sent, behind what is unanswered
        return next((each for each in about if each.rule.endswith("#credits-limit")), None)
    return wrong


def _is_of_same_kind(scene: Scene, effect: Effect) -> bool:
    """Whether a packet of the right operation is sent where it is due, but in another form."""
    if effect.group not in (*OF_FIELD, "another answer", "payload", "data"):
        return False
    pairs = zip(scene.difference.expected, scene.difference.got, strict=False)
    one, other = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
    if not isinstance(one, bytes) or not isinstance(other, bytes) or scene.is_sent_before(other):
        return False
    packets = [packet for frame in (one, other) if (packet := parsed(frame)) is not None]
    if len(packets) < 2:
        return False
    forms = [INFO.get(packet.bth.opcode) for packet in packets]
    return None not in forms and len({form.operation for form in forms if form is not None}) == 1


def _has_reserved_opcode(step: Step) -> bool:
    """Whether a packet has an opcode that no service has."""
    opcode = step.fields.get("bth.opcode", step.opcode) if isinstance(step, Packet) else 0
    return isinstance(opcode, int) and opcode & 0xFF not in INFO


_TRANSPORT = "docs/reference/transport.md#"
DUPLICATES = f"IBA 9.7.5.1.5, C9-105; {_TRANSPORT}duplicates"
SOLICITED = f"IBA 9.2.3; {_TRANSPORT}solicited-event"

_TRANSITIONS = f"IBA 10.3.1; {_TRANSPORT}qp-transitions"
_OWN_ERROR = "the error state of UC and UD after a request that fails"
_ERROR_OF_PACKET = "the error state of UC and UD after a packet"
_ANOTHER_ENDED = "another request that ends in error"
_HELD_BACK = "requests with a fence, or behind one, that are not sent"

_SHOWN_MEMORY = "memory that a later packet shows"

_LATER_NAKS = ("RNR NAK", "NAK REMOTE_ACCESS")
"""Of checks that come after that of the opcode: who sends them has passed over that one."""

_WRITING = frozenset(
    (
        Operation.SEND,
        Operation.WRITE,
        Operation.ATOMIC_WRITE,
        Operation.COMPARE_SWAP,
        Operation.FETCH_ADD,
        Operation.READ_RESPONSE,
        Operation.ATOMIC_ACKNOWLEDGE,
    )
)
"""Operations whose packets change memory, which a packet that is sent later may show."""

_FIELDS_OF_RULE = {"bth.psn": (DUPLICATE_WRITE,), "atomicacketh.orig": (DUPLICATE_ATOMIC,)}
"""Rules of packets that say what a field of the response is."""

_WRONG_PKEY = "a wrong P_Key"
"""The group of packets whose P_Key is no one's."""

_OWN_WRAP = "PSNs of its own requests across the wrap"
"""What all have in common that goes wrong there at the requester."""

NEEDED = frozenset((WRAP, PKEY.group, REARMED.group))
"""Groups of what is unusual about a connection, which only a minimised case needs."""

_FEWER_CREDITS = About(
    "a response with fewer credits",
    f"IBA 9.7.7.2; {_TRANSPORT}credits-limit",
    group="a response with fewer credits",
)
_IGNORED_CREDITS = About(
    "the credits of a response with data",
    f"IBA 9.7.7.2; {_TRANSPORT}credits-limit",
    group="the credits of a response with data",
)
