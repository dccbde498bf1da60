"""What a difference of a connection manager is called, and what is wrong with a message."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from types import MappingProxyType

from ibwire.base.quantities import duration_text
from ibwire.base.units import Time
from ibwire.fuzz.case import (
    ATTRIBUTE,
    MESSAGES,
    Command,
    Mad,
    Packet,
    Step,
    Wait,
    article_of,
    field_text,
    message_on_wire,
)
from ibwire.fuzz.judge.comparison import FATAL, Difference, Kind
from ibwire.fuzz.judge.concurrency import both
from ibwire.fuzz.judge.findings import bucket_of, first_verdicts, verdicts, wrong_fields
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.targets.emulated_manager import BACKLOG, EVENT, MAXIMUM_CONNECTIONS
from ibwire.fuzz.targets.link.manager_link import MAD_START
from ibwire.fuzz.vocabulary.cm.coverage import NOT_BEGUN
from ibwire.fuzz.vocabulary.cm.encoding import FORMS
from ibwire.fuzz.vocabulary.cm.tables import (
    difference_text,
    events_with_other_parts,
    is_other_data,
    other_attribute,
    states_in,
)
from ibwire.fuzz.vocabulary.cm.timing import NOTHING_DUE, Retransmission, retransmission_of
from ibwire.fuzz.vocabulary.cm.traffic import XRC_REQUEST
from ibwire.fuzz.vocabulary.cm.wording import OTHER_ID_THAN, QPN_OF_SENDER, message_text
from ibwire_layers import cm
from ibwire_layers.mad import MAD_SIZE

SIZES = ("a datagram shorter than a MAD", "a datagram longer than a MAD")
"""Faults that do not depend on the message."""

ENVELOPE = ("datagram", "MAD header")
"""Faults in the headers before a message."""

NO_STATES: Mapping[object, str] = MappingProxyType({})
"""Where no other exchange is known than the chosen one."""


def oddity(step: Mad) -> str:
    """The intended fault of a message; a wrong size takes precedence."""
    size = MAD_SIZE + step.more + (step.pad or 0)
    padding = step.fields.get("bth.pad_count", 0)
    if isinstance(padding, int):
        size -= padding & 3
    size += max(step.length - FORMS[step.message].private, 0)
    if step.cut is not None:
        size = min(size, step.cut - MAD_START)
    if size != MAD_SIZE:
        return SIZES[size > MAD_SIZE]
    if step.fields:
        whose = "a datagram" if step.why in ENVELOPE else step.message
        return f"{whose} with {', '.join(step.fields)}"
    return f"{step.message} {step.why}" if step.why else ""


def by_oddity(step: Mad) -> Mad:
    """A message that is equal to all others with the same fault, for `Exclusions`."""
    return replace(step, why=oddity(step) or step.message)


def manager_name(
    difference: Difference,
    steps: Sequence[Step],
    state: str,
    states: Mapping[object, str] = NO_STATES,
    dues: Mapping[object, Time] = NOTHING_DUE,
    *,
    accepted: Collection[object] | None = None,
    is_longer: bool = False,
) -> Name:
    """The name of a difference in the last of some steps.

    state: of the exchange that was chosen before it. states: of all, by the IDs of the device.
    dues: how long the timers of these connections ran then. accepted: those that the peer has
    requested, if that is known. is_longer: whether the last step is a
    longer wait than that of the case, whose report has not the times of what comes too late.
    """
    step = steps[-1]
    has_no_pair = isinstance(step, Mad) and _names_no_queue_pair(difference, step, steps)
    if isinstance(step, Mad) and (has_no_pair or _is_without_qpn(difference, step)):
        step = replace(step, message="DREQ", fields={_QPN: 0}, why="")
    elif isinstance(step, Mad) and difference.kind is not Kind.ANSWER:
        step = _as_on_wire(step)
    if (retransmission := retransmission_of(difference, steps, dues)) is not None:
        found = dict.fromkeys(states.get(each, state) for each in retransmission.connections)
        name = _of_retransmission(retransmission, difference, steps, " and ".join(found))
        name = _of_side(name, retransmission, steps, accepted)
        return _with_times(name, retransmission) if is_longer else name
    if not isinstance(step, Mad | Command | Packet):
        state = _of_waiting(difference, states) or states.get(_reported(difference), state)
    rule = _rule(difference, step, state)
    if _is_of_none(step, state) and not rule.endswith("#unknown-connection"):
        rule = both(rule, _UNKNOWN)
    if difference.kind is Kind.ENDLESS and not isinstance(step, Mad | Command | Packet):
        return Name(f"a wait in {state}: it does not come to rest", rule, "a wait without end")
    text = group = _text(difference, step, state)
    if isinstance(step, Mad) and (other := _with_another_id(step, steps, rule)):
        text = f"{step.message} with {other}: {_treatment(difference)}"
        group = f"{step.message} with other IDs than before: {_treatment(difference)}"
        rule = _OF_DREP if step.message == "DREP" else _UNKNOWN
    text = _plainer(text, difference, [*steps[:-1], step], state)
    causes = _causes(difference, step)
    if isinstance(step, Mad) and _repeats_another(step, steps):
        treatment = _treatment(difference)
        is_kept = state == _TIMEWAIT or _STALE in treatment or _is_of_header(step)
        rule = rule if is_kept or rule.endswith("#transaction") else _RESENDING
        causes = (f"a repeated REQ: {treatment}", *causes)
        text = text.replace("REQ", "a repeated REQ", 1)
    if isinstance(step, Mad) and text.startswith("REP ") and _repeats_a_rep(step, steps):
        text = f"a repeated {text}"
    if has_no_pair and text.startswith(_WITH_QPN):
        text = "DREQ for a connection without a queue pair" + text.removeprefix(_WITH_QPN)
    beyond = _beyond_room(difference, steps, states)
    name = _with_the_rest(Name(text, rule, group, causes=causes), difference, steps, beyond)
    name = _in_words(name, difference, steps, state) if isinstance(step, Mad) else name
    return _of_xrc(name, state) if _is_of_xrc(steps) and difference.kind not in FATAL else name


def _plainer(text: str, difference: Difference, steps: Sequence[Step], state: str) -> str:
    """A name that says what differs, what is too early, and whose message the last one is."""
    step = steps[-1]
    if difference.kind not in FATAL and text.endswith(f": {difference.kind}"):
        text = text.removesuffix(difference.kind) + difference_text(difference)
    if state == _TIMEWAIT and text.endswith(_EXIT_TOO_MUCH) and difference.times[0]:
        text = text.removesuffix(_NOTHING_INSTEAD) + " too early"
    if isinstance(step, Mad) and text.startswith(f"{step.message} in "):
        text = _whose(difference, step, steps) + text.removeprefix(step.message)
    return text


def late_end_name(
    difference: Difference, states: Mapping[object, str], accepted: Collection[object]
) -> Name:
    """The name where a manager gives up later than it should, as it then reports.

    states, accepted: as of `manager_name`.
    """
    connection = _reported(difference)
    state = states[connection]
    reported = difference_text(difference).partition(" instead of ")[2]
    text = f"a wait in {state}: it reports {reported} {_TOO_LATE}"
    group = _when_retransmitted(state.removesuffix("_SENT"))
    return Name(text, _RETRANSMISSIONS, group, causes=_late_causes([connection], accepted))


def _late_causes(connections: Collection[object], accepted: Collection[object]) -> tuple[str, ...]:
    """What all messages that come too late have in common: the timer of their side."""
    sides = {each in accepted for each in connections}
    return tuple(f"the {'passive' if each else 'active'} side waits too long" for each in sides)


def ends_wait(difference: Difference, states: Mapping[object, str]) -> bool:
    """Whether only the event is missing that ends a wait for an answer."""
    if difference.kind is not Kind.COMPLETION or len(difference.expected) != 1 or difference.got:
        return False
    return states.get(_reported(difference), "") in _WITHOUT_ANSWER


def _of_xrc(name: Name, state: str) -> Name:
    """A name that says that the connection is one of XRC, which has its queue pair elsewhere."""
    text = name.text.replace(f" in {state}:", f" in {state} of an XRC connection:", 1)
    if text == name.text:
        return name
    causes = (*name.causes, "XRC connections")
    return replace(name, text=text, rule=both(name.rule, _AGREED), causes=causes)


def _is_of_xrc(steps: Sequence[Step]) -> bool:
    """Whether the last step is about a connection that was requested for XRC."""
    chosen = [each for each in steps if isinstance(each, Mad | Command)]
    return any(
        isinstance(each, Mad)
        and each.exchange == chosen[-1].exchange
        and XRC_REQUEST.items() <= each.fields.items()
        for each in chosen[:-1]
    ) and not isinstance(steps[-1], Wait)


def _in_words(name: Name, difference: Difference, steps: Sequence[Step], state: str) -> Name:
    """A name with what is other in the message in place of the field, and with the state."""
    step = steps[-1]
    assert isinstance(step, Mad)
    step = _as_on_wire(step)
    text, rule = name.text, name.rule
    by_field = f"{step.message} with {', '.join(step.fields)}"
    if text.startswith(_WITH_QPN):
        step = replace(step, message="DREQ", fields={_QPN: 0})
        by_field = _WITH_QPN
    words = message_text(step)
    if step.fields and words and text.startswith(f"{by_field}:"):
        if QPN_OF_SENDER in step.fields:
            is_stale = _STALE in _treatment(difference)
            has = "that another connection has (stale)" if is_stale else "of another connection"
            words = f"REQ of a queue pair {has}"
        elif _REP_ID in step.fields and _has_replied(step, steps):
            words = f"a second {words}"
        where = "" if state in ("", NOT_BEGUN) else f" in {state}"
        text = words + where + text.removeprefix(by_field)
    text = text.replace(f" in {NOT_BEGUN}", " without a connection", 1)
    if len(step.fields) == 1:
        text = _with_value(text, step)
    if difference.reported and not difference.got:
        reported = difference_text(
            replace(difference, kind=Kind.COMPLETION, expected=[], got=difference.reported)
        )
        text = text.replace(": silence", f": {reported.removesuffix(_NOTHING_INSTEAD)}", 1)
    if difference.unreported and not difference.expected:
        missing = difference_text(
            replace(difference, kind=Kind.COMPLETION, expected=[], got=difference.unreported)
        ).removesuffix(_NOTHING_INSTEAD)
        missing = missing.replace("it reports", "and it does not report", 1)
        text = text.replace(" instead of silence", f", {missing}", 1)
    return replace(name, text=text, rule=rule)


def _with_value(text: str, step: Mad) -> str:
    """A name with the value of the one field that is wrong in a message."""
    ((name, value),) = step.fields.items()
    part, _, own = name.partition(".")
    is_plain = part in ("mad", step.message.lower())
    said = f"{own if is_plain else name} {field_text(name, value)}"
    head, with_name, rest = text.partition(f" with {name}")
    return f"{head} with {said}{rest}" if with_name and not rest[:1].strip(": ") else text


def _is_of_header(step: Mad) -> bool:
    """Whether something in the headers before a message is wrong, but its transaction ID."""
    fields = {name: 0 for name in step.fields if name != "mad.transaction_id"}
    return bool(fields) and not _of_message(fields)


def _has_replied(step: Mad, steps: Sequence[Step]) -> bool:
    """Whether an earlier REP is of the same exchange."""
    earlier = [each for each in steps[:-1] if isinstance(each, Mad) and each.message == "REP"]
    return any(each.exchange == step.exchange for each in earlier)


def _with_the_rest(name: Name, difference: Difference, steps: Sequence[Step], beyond: str) -> Name:
    """A name with what else in the steps decides, and with what it has in common with others.

    beyond: what there is no room for in the last step.
    """
    step, text, rule = steps[-1], name.text, name.rule
    after_mra = _times_after_mra(difference, steps)
    if after_mra and text.endswith(("too early", "too late")):
        text += " after an MRA"
    causes = (*name.causes, *after_mra)
    if difference.kind is Kind.ANSWER and first_verdicts(difference)[1] == _STALE:
        causes = (*causes, f"{_STALE} without a reason")
        if QPN_OF_SENDER in getattr(step, "fields", ()) and _is_of_another_ca(steps):
            text = text.replace(QPN_OF_SENDER, "the queue pair number of another CA", 1)
    if isinstance(step, Mad) and beyond:
        is_answer = difference.kind is Kind.ANSWER
        done = _treatment(difference) if is_answer else difference_text(difference)
        text = f"{step.message} beyond {beyond}: {done}"
        causes = (*causes, f"requests beyond {beyond}")
    ignored = next(filter(_is_to_be_ignored, steps[:-1]), None)
    if _is_to_be_ignored(step):
        causes = (*causes, _IGNORED)
    elif isinstance(ignored, Mad):
        message = _as_on_wire(ignored).message
        article = "an" if message == "APR" else "a"
        text, rule = text.replace(": ", f" after {article} {message}: ", 1), _STATES
        causes = (*causes, _IGNORED)
    return replace(name, text=text, rule=rule, causes=causes)


def _beyond_room(
    difference: Difference, steps: Sequence[Step], states: Mapping[object, str]
) -> str:
    """What there is no room for in a device, where a request shall be dropped for that and is not;
    empty for anything else. states: of all connections before it, if they are known.
    """
    step = steps[-1]
    if difference.kind not in (Kind.ANSWER, Kind.COMPLETION) or difference.expected:
        return ""
    if not isinstance(step, Mad) or step.message not in _REQUESTS or difference.unreported:
        return ""
    if not states:
        requests = [each for each in steps if isinstance(each, Mad) and each.message in _REQUESTS]
        is_full = difference.kind is Kind.COMPLETION and len(requests) > BACKLOG
        return _THE_BACKLOG if is_full else ""
    if step.fields.keys() & {ATTRIBUTE} or _repeats_another(step, steps):
        return ""
    if sum(each in _UNDECIDED for each in states.values()) >= BACKLOG:
        return _THE_BACKLOG
    return _THE_CONNECTIONS if len(states) >= MAXIMUM_CONNECTIONS else ""


def _is_of_another_ca(steps: Sequence[Step]) -> bool:
    """Whether an earlier REQ has another GUID of its CA than the rest."""
    return any(isinstance(each, Mad) and _OF_SENDER & each.fields.keys() for each in steps[:-1])


def _is_to_be_ignored(step: Step) -> bool:
    """Whether a step is a message that a manager ignores in every state, as Linux does."""
    return isinstance(step, Mad) and _as_on_wire(step).message in ("LAP", "APR")


def _times_after_mra(difference: Difference, steps: Sequence[Step]) -> tuple[str, ...]:
    """What differences have in common where something is sent at another time after an MRA."""
    if difference.kind is not Kind.TIME or not _has_own_mra(steps):
        return ()
    for due, sent in zip(difference.expected, difference.got, strict=False):
        if due != sent and isinstance(due, int) and isinstance(sent, int):
            return (f"too {'early' if sent < due else 'late'} after an MRA",)
    return ()


def _names_no_queue_pair(difference: Difference, step: Mad, steps: Sequence[Step]) -> bool:
    """Whether a DREQ that is right else is for a connection which has no queue pair to name yet."""
    if step.message != "DREQ" or step.fields or difference.kind in FATAL:
        return False
    if difference.kind is Kind.ANSWER and difference.expected:
        return False
    own = [each for each in steps[:-1] if getattr(each, "exchange", None) == step.exchange]
    made = [each.message for each in own if isinstance(each, Mad) and not each.fields]
    commands = {each.what for each in own if isinstance(each, Command)}
    return "REQ" in made and commands.isdisjoint(("connect", "accept"))


def _is_without_qpn(difference: Difference, step: Mad) -> bool:
    """Whether a message with the attribute ID of a DREQ, but not its QPN, is to be ignored."""
    is_as_dreq = set(step.fields) == {ATTRIBUTE} and message_on_wire(step) == "DREQ"
    is_ignored = difference.kind is Kind.ANSWER and not difference.expected
    return is_as_dreq and is_ignored


def _repeats_another(step: Mad, steps: Sequence[Step]) -> bool:
    """Whether a REQ has the communication ID of an earlier one: it is a duplicate, whatever else
    it says.
    """
    earlier = [each for each in steps[:-1] if isinstance(each, Mad) and each.message == "REQ"]
    return step.message == "REQ" and _requested(step) in map(_requested, earlier)


def _repeats_a_rep(step: Mad, steps: Sequence[Step]) -> bool:
    """Whether a REP has the IDs of an earlier one of its exchange: it is a duplicate."""
    own = [each for each in steps[:-1] if getattr(each, "exchange", None) == step.exchange]
    begun = next((at for at, each in enumerate(own) if isinstance(each, Command)), len(own))
    earlier = [each for each in own[begun:] if isinstance(each, Mad) and each.message == "REP"]
    same = [
        all(each.fields.get(name) == step.fields.get(name) for name in _IDS_OF_REP)
        for each in earlier
    ]
    return step.message == "REP" and any(same)


def _requested(request: Mad) -> tuple[object, ...]:
    """What a REQ is known by: the GUID and the communication ID, as far as a case says them."""
    number = request.fields.get(f"req.{_LOCAL_ID}", (_OWN_ID, 0))
    if isinstance(number, tuple) and number[0] == _OWN_ID:
        number = _OWN_ID, number[1] + request.exchange
    return request.fields.get("req.local_ca_guid"), number


def _rejected(step: Mad, steps: Sequence[Step]) -> str:
    """The message that a REJ says it rejects if its fields do not say another one."""
    own = [each for each in steps if getattr(each, "exchange", None) == step.exchange]
    return "REP" if any(isinstance(each, Mad) and each.message == "REQ" for each in own) else "REQ"


def _whose(difference: Difference, step: Mad, steps: Sequence[Step]) -> str:
    """A message with what decides whose it is, or with its fields where it is to be ignored."""
    if step.message == "REJ" and step.fields.get("rej.reason") == cm.RejectReason.TIMEOUT:
        return f"REJ for a timeout {_guid_text(step)}"
    is_ignored = difference.kind is Kind.COMPLETION and not difference.expected
    if is_ignored and step.message == "REJ" and not step.fields:
        return f"REJ of the {_rejected(step, steps)}"
    return oddity(step) if is_ignored and step.fields else step.message


def _guid_text(step: Mad) -> str:
    """The GUID of the sender's CA in a REJ for a timeout."""
    given = step.fields.get("rej.ari", 0)
    if given == ("own.guid", 0):
        return "with the CA GUID of its sender"
    return "with another CA GUID" if given else "without a CA GUID"


def _reported(difference: Difference) -> object:
    """The ID of the connection about which the first event differs, or `None`."""
    if difference.kind is not Kind.COMPLETION:
        return None
    for pair in zip_longest(difference.expected, difference.got):
        if pair[0] != pair[1]:
            event = next(each for each in pair if each is not None)
            return event[2] if isinstance(event, tuple) and event[0] == EVENT else None
    return None


def _of_waiting(difference: Difference, states: Mapping[object, str]) -> str:
    """The states, before a wait, of the connections that are in another one after it than due.

    Empty where that is not known.
    """
    if difference.kind is not Kind.EVENT:
        return ""
    before = list(states.values())
    expected, got = map(states_in, (difference.expected, difference.got))
    if len(before) == len(expected) == len(got):
        triples = zip(before, expected, got, strict=True)
        before = [each for each, due, other in triples if due != other]
    return " and ".join(dict.fromkeys(before))


def _as_on_wire(step: Mad) -> Mad:
    """A message with the name that its attribute ID has, if nothing else is wrong with it."""
    other = message_on_wire(step)
    if other not in MESSAGES or set(step.fields) != {ATTRIBUTE}:
        return step
    return replace(step, message=other, fields={}, why="")


def _of_retransmission(
    found: Retransmission, difference: Difference, steps: Sequence[Step], state: str
) -> Name:
    """The name of what is retransmitted otherwise in a wait, the last of these steps."""
    rule = _TIMEOUTS if difference.kind is Kind.TIME else _RETRANSMISSIONS
    name = _of_messages(found, steps, state, rule)
    causes = *name.causes, *_times_after_mra(difference, steps)
    return replace(name, causes=tuple(dict.fromkeys(causes)))


def _of_side(
    name: Name,
    found: Retransmission,
    steps: Sequence[Step],
    accepted: Collection[object] | None,
) -> Name:
    """A name with what all messages have in common that come too late, if that is known."""
    if found.how != _TOO_LATE or accepted is None or _has_own_mra(steps):
        return name
    return replace(name, causes=(*name.causes, *_late_causes(found.connections, accepted)))


def _with_times(name: Name, found: Retransmission) -> Name:
    """A name with when a message comes and when it is due."""
    if found.times is None:
        return name
    at, due = (duration_text(each, 3) for each in reversed(found.times))
    return replace(name, text=f"{name.text} (at {at} instead of {due})")


def _of_messages(found: Retransmission, steps: Sequence[Step], state: str, rule: str) -> Name:
    """The name of what is retransmitted otherwise: one cause in all states for each message, and in
    all messages for each number of times that there are too many or too few.
    """
    after = " after an MRA" if _has_own_mra(steps) else ""
    rule += f", {_PAGE}handshake" * bool(after)
    if found.is_without_end:
        causes = tuple(f"when a {each} is missing at the end{after}" for each in found.messages)
    else:
        causes = tuple(f"{_when_retransmitted(each)}{after}" for each in found.messages)
    text = f"a wait in {state}: {found.text}{after}"
    if len(causes) > 1:
        return Name(text, rule, "when messages are retransmitted", wider=causes)
    numbers = (f"retransmissions {found.change:+}",) if found.change else ()
    if found.shift:
        numbers = (*numbers, f"retransmissions {found.shift:+} ps")
    if after and found.how.startswith(("too early", "too late")):
        numbers = (*numbers, f"too {'late' if found.is_less else 'early'}{after}")
    if found.is_certain:
        return Name(text, rule, causes[0], causes=numbers)
    return Name(text, rule, causes[0], wider=numbers)


def _when_retransmitted(message: str) -> str:
    """The group of what a manager does otherwise with a message that is not answered."""
    return f"when a {message} is retransmitted"


def _has_own_mra(steps: Sequence[Step]) -> bool:
    """Whether an MRA postpones what is sent for a connection of these steps."""
    messages = [each for each in steps if isinstance(each, Mad)]
    begun = {each.exchange for each in messages if each.message != "MRA"}
    begun |= {each.exchange for each in steps if isinstance(each, Command)}
    return any(each.message == "MRA" and each.exchange in begun for each in messages)


def _causes(difference: Difference, step: Step) -> tuple[str, ...]:
    """What differences have in common whatever the state is and the manager does: a wrong field."""
    expected, got = first_verdicts(difference)
    wrong = [f"{part}.{name}" for each in wrong_fields(difference) for part, name in each]
    if _is_of_queue_pair(difference):
        return (f"{other_attribute(difference.expected, difference.got)} of queue pairs",)
    if parts := events_with_other_parts(difference):
        return (parts,)
    if wrong and expected.partition(" ")[0] == got.partition(" ")[0]:
        return (f"{' '.join(dict.fromkeys(wrong))} of what is sent",)
    if not isinstance(step, Mad) or not step.fields or difference.kind is Kind.CRASH:
        return ()
    what = oddity(step)
    return () if what in SIZES else (f"{what}, treated otherwise",)


def _is_of_queue_pair(difference: Difference) -> bool:
    """Whether a queue pair has another attribute than REQ and REP have agreed on."""
    is_of_tables = difference.kind is Kind.EVENT
    return is_of_tables and bool(other_attribute(difference.expected, difference.got))


def _with_another_id(step: Mad, steps: Sequence[Step], rule: str) -> str:
    """In words that a message has another ID of its sender than an earlier one of its exchange, in
    which that is changed; empty for anything else.
    """
    if step.fields or not rule.endswith(f"#{_RULES[step.message]}"):
        return ""
    sent = [each for each in steps if isinstance(each, Mad) and each.exchange == step.exchange]
    other = next(filter(_has_other_id, reversed(sent)), None)
    return f"{OTHER_ID_THAN} {other.message}" if other else ""


def _has_other_id(message: Mad) -> bool:
    """Whether a message has another ID of its sender than the rest of the exchange."""
    return f"{message.message.lower()}.{_LOCAL_ID}" in message.fields


def _text(difference: Difference, step: Step, state: str) -> str:
    fields = [f"{part}.{name}" for each in wrong_fields(difference) for part, name in each]
    wrong = " and ".join(dict.fromkeys(fields))
    expected, got = first_verdicts(difference)
    is_same = expected.partition(" ")[0] == got.partition(" ")[0]
    if isinstance(step, Command) and fields:
        message = expected.partition(" ")[0] if is_same else "REQ"
        return f"{step.what}: another {wrong} in the {message}"
    if not isinstance(step, Mad | Packet) and fields and is_same:
        return f"a wait in {state}: another {wrong} in the {expected.partition(' ')[0]}"
    if not isinstance(step, Mad) or difference.kind is not Kind.ANSWER:
        return bucket_of(difference, step, state)
    if fields and is_same:  # the same message
        message, answer = _as_on_wire(step).message, expected.partition(" ")[0]
        return f"{message} in {state}: another {wrong} in the {answer}"
    what, one = oddity(step), _one_more_or_less(difference)
    if what not in SIZES and not step.fields:
        if one:
            return f"{step.message} in {state}: {one}"
        return bucket_of(difference, step, state)
    if not difference.expected and not what.startswith(step.message):
        return f"{what} is taken"
    return f"{what}: {one or _treatment(difference)}"


def _one_more_or_less(difference: Difference) -> str:
    """Which answer is missing, or too many, among others that are as expected; empty if none is."""
    expected, got = (
        [verdicts([each]) for each in side] for side in (difference.expected, difference.got)
    )
    if not expected or not got:
        return ""
    for longer, shorter, what in ((expected, got, "is missing"), (got, expected, "too many")):
        for place, each in enumerate(longer):
            if longer[:place] + longer[place + 1 :] == shorter:
                return f"{article_of(each)} {each} {what}"
    return ""


def _treatment(difference: Difference) -> str:
    if difference.kind is not Kind.ANSWER:
        return str(difference.kind)
    return f"{verdicts(difference.got)} instead of {verdicts(difference.expected)}"


def _rule(difference: Difference, step: Step, state: str) -> str:
    """The rule of the message at fault, and of what is wrong with it."""
    is_given = isinstance(step, Mad | Command)
    wrong = [field for each in wrong_fields(difference) for field in each]
    expected, got = first_verdicts(difference)
    is_same = expected.partition(" ")[0] == got.partition(" ")[0]
    if not is_same or (not is_given and expected != got):
        wrong = []  # of different messages
    fields = {name for _, name in wrong}
    if _is_of_queue_pair(difference):
        return _AGREED
    if is_other_data(difference):
        return _MESSAGES
    own = [_OF_FIELD.get(".".join(each)) or _OF_FIELD.get(each[1]) for each in wrong]
    if own and own[0] and None not in own:
        return own[0]
    is_of_another = not is_given and _LOCAL_ID in fields
    if "transaction_id" in fields and not is_of_another:
        return f"IBA 12.6; {_PAGE}transaction"
    is_stale = isinstance(step, Mad) and step.message == "REQ" and _STALE in _treatment(difference)
    if any(part.endswith("rej") for part, _ in wrong) and not is_of_another:
        reasons = f"IBA 12.6.7; {_PAGE}reject-reasons"
        return both(reasons, f"IBA 12.9; {_PAGE}teardown") if is_stale else reasons
    if is_stale and not (isinstance(step, Mad) and _OF_SENDER & step.fields.keys()):
        # To a queue pair that a connection has.
        return f"IBA 12.9; {_PAGE}teardown"
    if isinstance(step, Command):
        if "SIDR" in expected + got:
            return f"IBA 12.9; {_PAGE}sidr"
        return f"IBA 12.9; {_PAGE}{'request' if fields else 'handshake'}"
    if isinstance(step, Packet) and not isinstance(step, Mad):
        # A PSN that is not due is another one than the messages have agreed on.
        return f"IBA 12.6, 12.9; {_PAGE}{'request' if 'PSN' in expected + got else 'handshake'}"
    if not isinstance(step, Mad):
        return _TIMEOUTS if expected == got else _RETRANSMISSIONS
    if any(part.endswith("rej") for part, _ in wrong):
        return f"IBA 12.6.7; {_PAGE}reject-reasons"
    is_outside = step.why in ENVELOPE or not _of_message(step.fields)
    if oddity(step) in SIZES or (step.fields and is_outside):
        rules = f"IBA 13.4.2; {_PAGE}mad"
        other = message_on_wire(step)
        return f"{rules}, {_PAGE}{_TAKEN_AS[other]}" if other in _TAKEN_AS else rules
    if any(name.endswith("_comm_id") for name in step.fields):
        return _OF_DREP if step.message == "DREP" else _UNKNOWN
    is_of_sender = bool(step.fields) and _OF_SENDER.issuperset(step.fields)
    if (state == _TIMEWAIT and not is_of_sender) or QPN_OF_SENDER in step.fields:
        return f"IBA 12.9; {_PAGE}teardown"  # what still has the queue pair of an old connection
    is_repeated = step.message == "REQ" and state != NOT_BEGUN
    is_repeated |= step.message == "REP" and state in _REPLIED
    if is_repeated and _OF_SENDER.issuperset(step.fields):  # or taken for a duplicate
        return f"{_RESENDING}{_TEARDOWN if _STALE in _treatment(difference) else ''}"
    if step.message == "REJ" and (
        difference.kind is Kind.EVENT or _is_without_effect(difference, step)
    ):
        return _STATES
    return f"IBA 12.6, 12.9; {_PAGE}{_RULES[step.message]}"


def _is_without_effect(difference: Difference, step: Mad) -> bool:
    """Whether the event of a REJ is missing that names its connection by IDs."""
    is_missing = difference.kind is Kind.COMPLETION and difference.expected and not difference.got
    return bool(is_missing) and step.fields.get("rej.reason") != cm.RejectReason.TIMEOUT


def _is_of_none(step: Step, state: str) -> bool:
    """Whether a right DREQ or DREP is for a connection that does not exist."""
    if not isinstance(step, Mad) or state not in (NOT_BEGUN, "IDLE"):
        return False
    return _as_on_wire(step).message in ("DREQ", "DREP") and step.why not in ENVELOPE


def _of_message(names: Collection[str]) -> bool:
    """Whether fields are those of a message, not of the headers before it."""
    return any(name.partition(".")[0].upper() in MESSAGES for name in names)


_PAGE = "docs/reference/cm.md#"
_AGREED = f"IBA 12.6; {_PAGE}request"
_TEARDOWN = f", {_PAGE}teardown"
_RESENDING = f"IBA 12.9; {_PAGE}resending"
_UNKNOWN = f"IBA 12.9; {_PAGE}unknown-connection"
_TIMEOUTS = f"IBA 12.7, 12.9; {_PAGE}timeouts"
_REQUESTS = ("REQ", "SIDR_REQ")
_STATES = f"IBA 12.9; {_PAGE}states"
_MESSAGES = f"IBA 12.6; {_PAGE}messages"
_PEER = f"IBA 12.9; {_PAGE}peer"
_OF_DREP = f"IBA 12.9; {_PAGE}teardown, {_PAGE}peer"
_OF_FIELD = {
    "private_data": _MESSAGES,
    "cm.dreq.remote_qpn": f"IBA 12.9; {_PAGE}teardown",
    "cm.mra.message_mraed": f"IBA 12.6; {_PAGE}handshake",
    "cm.req.local_ca_guid": _PEER,
    "cm.rep.local_ca_guid": _PEER,
}
"""The rules that say what a field of a message is, or of all of them."""
_IGNORED = "a LAP or APR that is not ignored"
_THE_BACKLOG, _THE_CONNECTIONS = "the backlog", "the connections that there is room for"
_UNDECIDED = ("REQ_RCVD", "MRA_REQ_SENT", "SIDR_REQ_RCVD")
"""States that count for the backlog."""
_RETRANSMISSIONS = f"{_TIMEOUTS}, {_PAGE}resending"
_TIMEWAIT = "TIMEWAIT"
_TOO_LATE = "too late"
_WITHOUT_ANSWER = ("REQ_SENT", "DREQ_SENT", "SIDR_REQ_SENT")
"""States that an application sees the end of when no answer comes, and the peer does not."""
_STALE = "REJ STALE_CONNECTION"
"""To a REQ in TIMEWAIT, or from a queue pair that is in use."""
_NOTHING_INSTEAD = " instead of nothing"
_EXIT_TOO_MUCH = f"it reports TIMEWAIT_EXIT{_NOTHING_INSTEAD}"
_REPLIED = ("REP_RCVD", "MRA_REP_SENT", "ESTABLISHED", "DREQ_SENT")
"""States in which the side that has sent the REQ has received the REP."""
_OF_SENDER = frozenset(("req.local_ca_guid",))
"""Fields by which a duplicate is told from a message of another connection manager."""
_IDS_OF_REP = ("rep.local_comm_id", "rep.remote_comm_id")
_LOCAL_ID, _OWN_ID = "local_comm_id", "own.id"
_QPN, _REP_ID = "dreq.remote_qpn", "rep.local_comm_id"
_WITH_QPN = f"DREQ with {_QPN}"
_TAKEN_AS = {"REQ": "resending", "REP": "handshake", "DREQ": "teardown", "SIDR_REQ": "sidr"}
"""Whether another message counts as one of these or as a new one, by their attribute ID."""
_RULES = {
    "REQ": "request",
    "MRA": "states",
    "REJ": "reject-reasons",
    "REP": "handshake",
    "RTU": "handshake",
    "DREQ": "teardown",
    "DREP": "teardown",
    "SIDR_REQ": "sidr",
    "SIDR_REP": "sidr",
    "LAP": "states",
    "APR": "states",
}
