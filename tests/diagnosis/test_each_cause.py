"""Each cause of an incident, in a conversation where what happened is known: on an emulated wire
with one fault, in a hand-made conversation, or in a capture whose completions are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from connections.talk import Talk
from diagnosis.sentence_law import breaches
from diagnosis.sentence_law import story_of as story_of_truth
from diagnosis.test_conversations import story_of, timers_that_expire_early
from diagnosis.test_never_wrong import ONE_LONG
from diagnosis.test_story import story as story_of_capture
from each_case import each_case
from ibwire.base.units import MS, US
from ibwire.diagnosis.causes import Reason
from ibwire.diagnosis.story import Story
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from wire_truth import Fault, Harm, Scenario, Truth, Work, random_scenario

Causes = dict[Reason, int]


def on_the_wire(scenario: Scenario) -> Story:
    """What is said of a scenario, all of which is true."""
    truth = Truth(scenario)
    story = story_of_truth(truth)
    assert story is not None
    assert breaches(truth) == []
    return story


def causes_of(story: Story) -> Causes:
    total = Counter[Reason]()
    for incident in story.incidents:
        for cause in incident.causes:
            total[cause.name] += cause.count
    return dict(total)


ADD = Work(WROpcode.ATOMIC_FETCH_AND_ADD)
ADD_AND_WRITE = ADD, Work(WROpcode.RDMA_WRITE, 100)
SEND = (Work(WROpcode.SEND, 100),)
READ = (Work(WROpcode.RDMA_READ, 1024),)

FAULTS: dict[str, tuple[tuple[Work, ...], tuple[Fault, ...], Causes]] = {
    "request lost before": (
        ONE_LONG,
        (Fault("a", 3, Harm.DROP, True),),
        {Reason.LOST_BEFORE: 1},
    ),
    "request lost after": (
        ONE_LONG,
        (Fault("a", 3, Harm.DROP, False),),
        {Reason.LOST_AFTER: 1},
    ),
    "request lost after, and one of its retransmission": (
        ONE_LONG,
        (Fault("a", 3, Harm.DROP, False), Fault("a", 11, Harm.DROP, False)),
        {Reason.LOST_AFTER: 1, Reason.LOST_OR_DISCARDED: 1},
    ),
    "request damaged before": (
        ONE_LONG,
        (Fault("a", 3, Harm.DAMAGE, True),),
        {Reason.DAMAGED: 1},
    ),
    "request damaged after": (
        ONE_LONG,
        (Fault("a", 3, Harm.DAMAGE, False),),
        {Reason.LOST_AFTER: 1},
    ),
    "request late before": (
        ONE_LONG,
        (Fault("a", 3, Harm.DELAY, True, 3 * US),),
        {Reason.REORDERED_BEFORE: 1},
    ),
    "response lost before": (
        READ,
        (Fault("b", 2, Harm.DROP, True),),
        {Reason.RESPONSE_LOST_BEFORE: 1},
    ),
    "last response of a READ lost before": (
        READ,
        (Fault("b", 4, Harm.DROP, True),),
        {Reason.RESPONSE_MISSING: 1},
    ),
    "response of an atomic lost before": (
        ADD_AND_WRITE,
        (Fault("b", 1, Harm.DROP, True),),
        {Reason.RESPONSE_MISSING: 1},
    ),
    "response damaged before": (
        ADD_AND_WRITE,
        (Fault("b", 1, Harm.DAMAGE, True),),
        {Reason.RESPONSE_DAMAGED: 1},
    ),
    "response late before": (
        READ,
        (Fault("b", 2, Harm.DELAY, True, 2 * US),),
        {Reason.RESPONSE_REORDERED: 1, Reason.RESPONSE_OR_DISCARDED: 1},
    ),
    "ACK lost after": (
        SEND,
        (Fault("b", 1, Harm.DROP, False),),
        {Reason.RESPONSE_LOST_AFTER: 1},
    ),
    "response of an atomic lost after": (
        ADD_AND_WRITE,
        (Fault("b", 1, Harm.DROP, False),),
        {Reason.RESPONSE_OR_LATE: 1},
    ),
    "two responses of atomics lost after": (
        (ADD, ADD, ADD),
        (Fault("b", 1, Harm.DROP, False), Fault("b", 4, Harm.DROP, False)),
        {Reason.RESPONSE_OR_LATE: 1, Reason.RESPONSE_OR_DISCARDED: 1},
    ),
    "last request lost after": (
        SEND,
        (Fault("a", 1, Harm.DROP, False),),
        {Reason.EITHER_LOST_AFTER: 1},
    ),
    "ACK lost before": (
        SEND,
        (Fault("b", 1, Harm.DROP, True),),
        {Reason.EITHER_LOST_AFTER: 1},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_on_the_wire_is_the_cause(name: str) -> None:
    works, faults, expected = FAULTS[name]

    assert causes_of(on_the_wire(Scenario(works, faults=faults))) == expected


def test_receives_that_come_late_are_the_cause() -> None:
    story = on_the_wire(Scenario(SEND, receives=((0, 0), (2 * MS, 10))))

    assert causes_of(story) == {Reason.NO_BUFFER: 1}


RANDOM: dict[int, Causes] = {
    26: {
        Reason.LOST_AFTER: 1,
        Reason.REORDERED_BEFORE: 1,
        Reason.LATE: 1,
        Reason.LOST_OR_DISCARDED: 1,
        Reason.REPEATED: 1,
    },
    84: {Reason.RESPONSE_LOST_BEFORE: 1},
    99: {Reason.RESPONSE_REORDERED: 1, Reason.EITHER_LOST_AFTER: 1},
    102: {Reason.LOST_AFTER: 1, Reason.LATE: 1},
    103: {Reason.AFTERMATH: 1, Reason.RESPONSE_REORDERED: 2},
    283: {
        Reason.REORDERED_BEFORE: 1,
        Reason.LOST_OR_DISCARDED: 2,
        Reason.RESPONSE_REORDERED: 1,
    },
}
"""Rare causes, in random scenarios."""


@pytest.mark.parametrize("seed", RANDOM)
def test_the_causes_of_a_random_scenario(seed: int) -> None:
    assert causes_of(on_the_wire(random_scenario(seed))) == RANDOM[seed]


# Hand-made conversations.


def reordered_after() -> Talk:
    """PSN 2 passes here in order; the responder asks for it, and then for the one after it."""
    talk = Talk()
    talk.sends(0, 1)
    for psn in (1, 2, 3, 4):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    talk.answer(1, 2)
    talk.answer(2, 2, 0x60)
    talk.answer(3, 3, 0x60)
    for psn in (3, 4):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn + 1)
    return talk


def outdated_nak() -> Talk:
    """PSN 1 is late, and with a duplicate of PSN 2 behind it acknowledged before the requester
    obeys the NAK for it."""
    talk = Talk()
    talk.sends(0, 1)
    talk.ask(OpCode.RC_SEND_ONLY, 1, 64, ack_req=1)
    _, late = talk.frames.pop()
    talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
    _, copy = talk.frames[-1]
    talk.answer(1, 1, 0x60)
    now = talk.frames[-1][0]
    talk.frames += [(now + 1000, late), (now + 2000, copy)]
    talk.answer(2, 3)
    for psn in (1, 2):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    talk.answer(2, 3)
    talk.sends(3, 1, 4)
    return talk


def with_a_gap(*, ends: bool) -> Talk:
    """PSN 1 is not in the capture; unless that ends there, PSN 2 is acknowledged."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 1)
    talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
    if not ends:
        talk.answer(2, 3)
        talk.sends(3, 2)
    return talk


def read_with_a_gap(later: int) -> Talk:
    """A READ of three responses, the second of which is not in the capture; then SENDs."""
    talk = Talk(counts_ids=False)
    talk.ask(OpCode.RC_SEND_FIRST, 0, 256)
    talk.ask(OpCode.RC_SEND_LAST, 1, 64, ack_req=1)
    talk.answer(1, 1)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 2, length=3 * 256)
    talk.answer(2, 2, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=256)
    talk.answer(4, 2, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=256)
    talk.sends(5, later, 3)
    return talk


def read_without_its_last_response() -> Talk:
    """A READ of three responses, the last of which is lost before it is here; after 67 ms the
    requester asks for that one."""
    talk = Talk()
    talk.sends(0, 1)
    talk.ask(OpCode.RC_SEND_FIRST, 1, 256)
    talk.ask(OpCode.RC_SEND_LAST, 2, 64, ack_req=1)
    talk.answer(2, 2)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 3, length=3 * 256)
    talk.answer(3, 3, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=256)
    talk.answer(4, 3, opcode=OpCode.RC_RDMA_READ_RESPONSE_MIDDLE, size=256)
    talk.wait(67_000)
    talk.ask(OpCode.RC_RDMA_READ_REQUEST, 5, length=256)
    talk.answer(5, 3, opcode=OpCode.RC_RDMA_READ_RESPONSE_ONLY, size=256)
    talk.sends(6, 1, 4)
    return talk


def one_direction(pause_us: int) -> Talk:
    """Requests, one of which is repeated after a pause, and no packet of the other end."""
    talk = Talk()
    for psn in (0, 1, 2):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    talk.wait(pause_us)
    for psn in (2, 3):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
    return talk


def nak_for_what_was_before_the_capture() -> Talk:
    talk = Talk()
    talk.ask(OpCode.RC_SEND_ONLY, 5, 64, ack_req=1)
    talk.answer(4, 5, 0x60)
    for psn in (4, 5):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn + 1)
    return talk


def late_without_identifications(*, answered: bool) -> Talk:
    """PSN 2 comes after 3: with responses, after the NAK that asks for it."""
    talk = Talk(counts_ids=False)
    for psn in (0, 1, 3):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        if answered and psn < 2:
            talk.answer(psn, psn + 1)
    if answered:
        talk.answer(2, 2, 0x60)
    talk.ask(OpCode.RC_SEND_ONLY, 2, 64, ack_req=1)
    if answered:
        talk.answer(3, 4)
    talk.ask(OpCode.RC_SEND_ONLY, 4, 64, ack_req=1)
    if answered:
        talk.answer(4, 5)
    return talk


CONVERSATIONS: dict[str, tuple[Callable[[], Talk], Causes]] = {
    "reordered after": (reordered_after, {Reason.REORDERED_AFTER: 1}),
    "outdated NAK": (outdated_nak, {Reason.REORDERED_BEFORE: 1, Reason.OLD_NAK: 1}),
    "gap acknowledged": (lambda: with_a_gap(ends=False), {Reason.NOT_CAPTURED: 1}),
    "gap at the end": (lambda: with_a_gap(ends=True), {Reason.NOT_SEEN: 1}),
    "READ with a gap": (lambda: read_with_a_gap(40), {Reason.RESPONSE_NOT_CAPTURED: 1}),
    "READ with a gap at the end": (lambda: read_with_a_gap(2), {Reason.RESPONSE_NOT_SEEN: 1}),
    "READ without its last response": (
        read_without_its_last_response,
        {Reason.RESPONSE_MISSING: 1},
    ),
    "early timer": (lambda: timers_that_expire_early(1, acks=2), {Reason.STALE_TIMER: 1}),
    "one direction, a timer": (lambda: one_direction(67_000), {Reason.UNCLEAR: 1}),
    "one direction, soon": (lambda: one_direction(300), {Reason.UNCLEAR: 1}),
    "one direction, late": (
        lambda: late_without_identifications(answered=False),
        {Reason.LATE: 1},
    ),
    "late after its NAK": (
        lambda: late_without_identifications(answered=True),
        {Reason.LATE: 1},
    ),
    "NAK at the start": (
        nak_for_what_was_before_the_capture,
        {Reason.NOT_IN_CAPTURE: 1},
    ),
}


@each_case("name", CONVERSATIONS)
def test_the_cause_of_a_conversation(name: str) -> None:
    talk, expected = CONVERSATIONS[name]

    assert causes_of(story_of(talk())) == expected


def test_a_read_stalls_from_its_last_response_on() -> None:
    (incident,) = story_of(read_without_its_last_response()).incidents

    assert incident.stall_ns == 67 * 10**6 + 2 * 10_000  # a wait, and two packets of `Talk`


# Captures.


KNOWN: dict[str, Causes] = {
    "nak-bad-rkey-write": {Reason.REFUSED: 1},
    "rnr-exceeded": {Reason.NO_BUFFER: 3, Reason.GIVEN_UP: 1},
    "retry-exceeded": {Reason.GIVEN_UP: 1},
    "drop-one-last.a": {Reason.LOST_AFTER: 1},
    "drop-one-last.b": {Reason.LOST_BEFORE: 1},
}


@each_case("name", KNOWN)
def test_the_cause_of_a_capture_whose_completions_are_known(name: str) -> None:
    assert causes_of(story_of_capture(name)) == KNOWN[name]


def test_every_cause_occurs_here() -> None:
    known = [expected for *_, expected in (*FAULTS.values(), *CONVERSATIONS.values())]
    known += [*RANDOM.values(), *KNOWN.values()]

    assert {cause for each in known for cause in each} == set(Reason)
