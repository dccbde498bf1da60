"""Which of several messages that arrive at once an answer belongs to.

Those before the last one are held until it comes, so that a difference is seen in that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from ibwire.cm.messages import Received
from ibwire.drill.targets.manager import message_in
from ibwire.fuzz.case import Case, Mad, message_on_wire
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.targets.emulated_manager import EXCHANGES
from ibwire_layers import cm


def of_held_message(case: Case, difference: Difference) -> tuple[Case, Difference]:
    """A case up to the message whose answer differs, if that was held until the last one came."""
    number = difference.step
    if difference.kind is not Kind.ANSWER or not isinstance(case.steps[number], Mad):
        return case, difference
    asked = _asked_at(case, number, difference)
    if asked is None or asked == number:
        return case, difference
    step = case.steps[asked]
    assert isinstance(step, Mad)
    case = case.with_steps([*case.steps[:asked], replace(step, held=False)])
    sides = [
        [each for each in side if _may_answer(step, _received(each))]
        for side in (difference.expected, difference.got)
    ]
    return case, replace(difference, step=asked, expected=sides[0], got=sides[1])


def _asked_at(case: Case, number: int, difference: Difference) -> int | None:
    """The last message that the first answer which differs may be for; `None` if there is none."""
    pairs = zip_longest(difference.expected, difference.got)
    one, other = next((each for each in pairs if each[0] != each[1]), (None, None))
    answer = _received(other if one is None else one)
    at = number
    while at >= 0:
        step = case.steps[at]
        if not isinstance(step, Mad) or (at < number and not step.held):
            break
        if _may_answer(step, answer):
            return at
        at -= 1
    return None


def _received(frame: object) -> Received | None:
    return message_in(frame) if isinstance(frame, bytes) else None


def _may_answer(step: Mad, answer: Received | None) -> bool:
    """Whether a message of a device may be the answer to one of a case."""
    if answer is None:
        return False
    said = answer.message
    name = "request_id" if isinstance(said, cm.SIDR_REP) else "remote_comm_id"
    asked = message_on_wire(step) or step.message
    is_of_exchange = getattr(said, name, 0) % EXCHANGES == step.exchange
    return is_of_exchange and asked in _answered(said)


def _answered(said: object) -> Sequence[str]:
    """The messages that a message may answer."""
    if isinstance(said, cm.REJ):
        return _REJECTED.get(said.message_rejected, _OTHER)
    if isinstance(said, cm.MRA):
        return _ACKNOWLEDGED.get(said.message_mraed, ())
    return _ANSWERED.get(type(said), ())


_OTHER = ("RTU", "MRA", "REJ", "DREQ", "DREP")
_REJECTED: Mapping[int, Sequence[str]] = {
    cm.MessageRejected.REQ: ("REQ",),
    cm.MessageRejected.REP: ("REP",),
}
_ACKNOWLEDGED: Mapping[int, Sequence[str]] = {
    cm.MessageMRAed.REQ: ("REQ",),
    cm.MessageMRAed.REP: ("REP",),
    cm.MessageMRAed.LAP: ("LAP",),
}
_ANSWERED: Mapping[type, Sequence[str]] = {
    cm.REP: ("REQ",),
    cm.RTU: ("REP",),
    cm.DREP: ("DREQ",),
    cm.APR: ("LAP",),
    cm.SIDR_REP: ("SIDR_REQ",),
}
"""The messages that each other one may answer."""
