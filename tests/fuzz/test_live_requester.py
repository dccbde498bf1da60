"""What attacks on the requester of a device on a link are made of, without a link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from each_case import each_case
from ibwire.base.node import Frame
from ibwire.base.units import MS, US
from ibwire.fuzz.case import BAD, Case, CaseError, Connection, Packet, Post, Role, Step, Value, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.exclusions import Exclusions
from ibwire.fuzz.judge.naming import name_of
from ibwire.fuzz.judge.response_names import about
from ibwire.fuzz.targets.emulated_device import ADDRESS, OUTBOX_START, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.link.queue_pair_testbed import PossibleSteps
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.queue_pair.comparison import TolerantComparison, with_usual_marks
from ibwire.fuzz.vocabulary.queue_pair.generator import Generator, Menu
from ibwire.fuzz.vocabulary.queue_pair.link_steps import LONG_CODE, Timely, fits_link
from ibwire.rc.device import gid_of
from ibwire.rc.path import Path, ethernet_route
from ibwire.rc.profile import PROFILES, Profile
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

ASKS = Connection(timeout=0)
"""Of a device that asks on a link."""

ACK_REQUEST_AT = 42 + 8
"""Byte of a RoCEv2 frame over IPv4 whose highest bit is BTH.AckReq (IBA 9.2.1)."""

TIMED = Connection(timeout=17)
"""537 ms: 4.096 us times 2^17 (IBA 9.7.6.1.3)."""

TIMEOUT = Wait(536_870_912_000)

LATE = 20 * MS
"""As long as a silence is that is listened for."""


class Prompt(Emulation):
    """A device for which time passes while it is listened to, as it does on a link."""

    def answers(self) -> list[Frame]:
        return [*super().answers(), *(frame for _, frame in self.wait(LATE))]


def send(length: int = 8) -> Post:
    return Post(int(WROpcode.SEND), length)


def write(length: int = 8) -> Post:
    """Needs no credit of the peer's, as a SEND does."""
    return Post(int(WROpcode.RDMA_WRITE), length)


def read(length: int) -> Post:
    return Post(int(WROpcode.RDMA_READ), length)


def ack(syndrome: int = 0x1F, offset: int = 0) -> Packet:
    fields: dict[str, Value] = {"aeth.syndrome": syndrome, "aeth.msn": ("ssn", 0)}
    return Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", offset), fields=fields)


def rnr_nak(code: int) -> Packet:
    return ack(0x20 | code)


def response(kind: str, length: int, offset: int = 0) -> Packet:
    return Packet(int(OpCode[f"RC_RDMA_READ_RESPONSE_{kind}"]), ("una", offset), length)


def duel(target: Emulation, connection: Connection = ASKS) -> TolerantComparison:
    route = ethernet_route(
        source=gid_of(ADDRESS),
        destination=gid_of(PEER_ADDRESS),
        source_mac=bytes(6),
        destination_mac=bytes(6),
        source_port=0xC000,
    )
    binding = Binding(PEER_ADDRESS, ADDRESS)
    return TolerantComparison(
        binding,
        Path(route),
        Emulation(connection),
        _Alike(target, Path(route)),
        exclusions=Exclusions(),
    )


class _Alike:
    """A target whose frames get the usual headers, as `LinkDevice` gives them."""

    def __init__(self, target: Emulation, path: Path) -> None:
        self._target = target
        self._path = path

    def __getattr__(self, what: str) -> object:
        return getattr(self._target, what)

    def answers(self) -> list[Frame]:
        return [self._path.frame(frame[42:-4]) for frame in self._target.answers()]

    def wait(self, time: int) -> list[tuple[int, Frame]]:
        found = self._target.wait(time)
        return [(when, self._path.frame(frame[42:-4])) for when, frame in found]


def carried_out(target: Emulation, steps: Sequence[Step]) -> Difference | None:
    live = duel(target, target.connection)
    for step in steps:
        difference = live.step(step)
        if difference is not None:
            return difference
    return live.end()


def like(**changes: object) -> Profile:
    return replace(PROFILES["spec"], **changes)


# Waits.


@pytest.mark.parametrize("last", [[], [ack()], [Wait(10 * US)], [rnr_nak(5), ack()]])
def test_a_short_wait_is_over_before_anything_else_is_looked_at(last: list[Step]) -> None:
    """Code 1 is 10 us: it has been retransmitted while the peer still receives."""
    assert carried_out(Prompt(ASKS), [send(), rnr_nak(1), *last]) is None


def test_a_step_is_tried_during_a_long_wait() -> None:
    steps = [send(), rnr_nak(LONG_CODE), write()]

    right = carried_out(Prompt(ASKS), steps)
    wrong = carried_out(Prompt(ASKS, like(sends_during_rnr_wait=True)), steps)

    assert right is None
    assert wrong is not None
    assert (wrong.step, wrong.kind, len(wrong.expected), len(wrong.got)) == (2, "answer", 0, 1)


def test_a_second_step_comes_after_the_long_wait() -> None:
    """245.76 ms are not as long as two silences on a slow host; an ACK ends what was refused."""
    late = Prompt(ASKS)
    steps = [send(), rnr_nak(LONG_CODE), write(), ack(), ack()]

    assert carried_out(late, steps) is None
    assert late.now >= 245 * MS


def test_a_device_that_does_not_wait_is_seen() -> None:
    impatient = like(rnr_timer_percent=1)
    difference = carried_out(Prompt(ASKS, impatient), [send(), rnr_nak(LONG_CODE)])

    assert difference is not None
    assert (difference.step, difference.expected) == (1, [])


def test_a_device_that_never_asks_again_is_seen_at_the_end() -> None:
    difference = carried_out(Prompt(ASKS, like(rnr_timer_percent=1_000_000)), [send(), rnr_nak(1)])

    assert difference is not None
    assert (difference.step, len(difference.expected), difference.got) == (1, 1, [])


def test_how_exact_a_wait_is_does_not_count() -> None:
    """An RNR wait may be longer (IBA 9.7.5.2.8): rxe adds one or two of its 4 ms."""
    late = like(rnr_granularity=4 * MS)

    assert carried_out(Prompt(ASKS, late), [send(), rnr_nak(1), ack()]) is None


def test_a_device_that_asks_once_too_often_is_seen() -> None:
    timed = replace(TIMED, retry_cnt=7)
    steps = [write(), *[Wait(1)] * 8]

    right = carried_out(Emulation(timed), steps)
    wrong = carried_out(Emulation(timed, like(retry_7_is_infinite=True)), steps)

    assert right is None
    assert wrong is not None
    assert (wrong.step, wrong.kind, wrong.expected, len(wrong.got)) == (8, "answer", [], 1)


def test_no_device_gets_a_short_ack_timeout() -> None:
    live = duel(Emulation(ASKS))
    live.reference.connection = Connection(timeout=14)

    with pytest.raises(CaseError, match="timeout 0 or 17 only"):
        live.step(send())


def test_a_case_that_asks_fits_a_link_without_a_short_ack_timeout_only() -> None:
    assert fits_link(Case(ASKS, (send(),)))
    assert fits_link(Case(TIMED, (send(),)))
    assert fits_link(Case(Connection(timeout=14), (ack(),)))
    assert not fits_link(Case(Connection(timeout=14), (send(),)))


class Given:
    """A stepper of given steps."""

    connection = Connection()

    def __init__(self, *steps: Step) -> None:
        self.left = list(steps)

    def next(self, reference: Emulation) -> Step | None:
        return self.left.pop(0) if self.left else None


def made(number: int, *given: Step, connection: Connection = ASKS) -> list[Step]:
    """What a stepper makes of these steps, as the reference goes along."""
    stepper, device = Timely(Given(*given), number), Emulation(connection)
    binding = Binding(PEER_ADDRESS, ADDRESS)
    found: list[Step] = []
    while (step := stepper.next(device)) is not None:
        found.append(step)
        if isinstance(step, Packet):
            device.symbols["ssn"] = device.oldest_ssn
            device.receive(binding.frame(step, device.psn(step.psn[0]), device.symbols))
        elif isinstance(step, Wait):
            device.wait(step.time)
        elif isinstance(step, Post):
            device.post_send(step)
        device.answers()
    return found


def test_device_on_a_link_waits_only_after_an_rnr_nak() -> None:
    steps = made(1, send(), Wait(MS), rnr_nak(1), Wait(MS), ack(), Wait(MS))

    assert steps == [send(), rnr_nak(1), Wait(10 * US), ack()]


def test_an_answer_to_the_oldest_request_can_be_sent() -> None:
    """Which one that is, is found out when it is sent."""
    possible = PossibleSteps(Given(ack()), 1500, Exclusions(), 0)

    assert possible.next(Emulation(ASKS)) == ack()


def test_what_the_agent_cannot_post_is_left_out() -> None:
    flush, atomic_write = Post(int(WROpcode.FLUSH)), Post(int(WROpcode.ATOMIC_WRITE))
    possible = PossibleSteps(Given(flush, atomic_write, send()), 1500, Exclusions(), 0)

    assert possible.next(Emulation(ASKS)) == send()


def test_some_cases_keep_the_device_waiting() -> None:
    """In every fifth one, RNR timer code 29: 245.76 ms, in which it is asked for more."""
    steps = made(5, send(), ack())
    refusal = steps[1]

    assert steps == [send(), refusal, write(), Wait(245_760 * US), ack()]
    assert isinstance(refusal, Packet)
    assert refusal.fields["aeth.syndrome"] == 0x20 | 29


def test_cases_on_a_link_have_no_ack_timeout_or_a_long_one() -> None:
    connections = [Generator(Random(n), Role.REQUESTER, Menu()).connection for n in range(40)]
    assert any(each.timeout for each in connections)

    for number in range(40):
        stepper = Timely(Generator(Random(number), Role.REQUESTER, Menu()), number)
        timeout = 17 if number == 25 else 0
        assert stepper.connection == replace(connections[number], timeout=timeout)


def test_in_some_cases_the_device_asks_until_it_gives_up() -> None:
    """Four times with `retry_cnt` 3, 537 ms each (IBA 9.7.6)."""
    timed = replace(TIMED, retry_cnt=3)

    assert made(25, write(), write(), connection=timed) == [write(), *[TIMEOUT] * 4]


def test_step_is_tried_before_an_ack_timeout_and_none_after_it() -> None:
    """In rxe the timer runs on when all is acknowledged (reference/habits#rxe-ack-timer)."""
    steps = made(125, write(), write(), ack(), ack(), write(), connection=TIMED)

    assert steps == [write(), write(), TIMEOUT, ack(), TIMEOUT, ack()]


# What counts as the same.


def requests(profile: Profile, length: int) -> list[Frame]:
    device = Emulation(ASKS, profile)
    device.post_send(write(length))
    return device.answers()


def test_when_an_ack_is_asked_for_inside_a_message_is_left_open() -> None:
    often, seldom = requests(like(ack_request_interval=2), 1024), requests(like(), 1024)
    assert often != seldom

    assert with_usual_marks(often, seldom) == seldom


def test_an_ack_of_the_last_packet_has_to_be_asked_for() -> None:
    expected = requests(like(), 1024)
    last = bytearray(expected[-1])
    last[ACK_REQUEST_AT] &= 0x7F

    assert with_usual_marks([*expected[:-1], bytes(last)], expected) != expected


def test_what_else_differs_in_a_request_counts() -> None:
    expected = requests(like(), 1024)
    changed = bytearray(expected[0])
    changed[ACK_REQUEST_AT + 8] ^= 1

    assert with_usual_marks([bytes(changed), *expected[1:]], expected) != expected


def test_memory_of_a_read_counts_when_it_has_completed() -> None:
    """Until then its contents are undefined (reference/transport#read-undefined)."""
    target = Emulation(ASKS)
    live = duel(target)
    live.step(read(512))
    target.memory[OUTBOX_START + 300] ^= 1
    under_way = live.step(response("FIRST", 256))
    live.step(response("LAST", 256))
    target.memory[OUTBOX_START + 300] ^= 1
    done = live.step(ack(offset=-1))

    assert under_way is None
    assert done is not None
    assert done.kind == Kind.MEMORY


def test_memory_beside_a_read_always_counts() -> None:
    target = Emulation(ASKS)
    live = duel(target)
    live.step(read(512))
    target.memory[OUTBOX_START + 512] ^= 1

    difference = live.step(response("FIRST", 256))

    assert difference is not None
    assert difference.kind == Kind.MEMORY


# Names.


FETCH_ADD = Post(int(WROpcode.ATOMIC_FETCH_AND_ADD))


@each_case(
    ("steps", "answer", "rule"),
    [
        ([], ack(), "#response-unexpected"),
        ([send()], ack(offset=1), "#response-unsent"),
        ([send(), ack(), send()], ack(offset=-1), "#response-duplicate"),
        ([read(8), send()], ack(offset=1), "#implied-nak"),
        ([read(512)], response("LAST", 256, 1), "#read-gap"),
        ([read(512)], response("FIRST", 8), "#read-response-length"),
        ([read(512)], response("ONLY", 256), "#read-response-length"),
        ([read(512), response("FIRST", 256)], response("LAST", 8), "#read-response-length"),
        ([send()], response("ONLY", 0), "#response-mismatch"),
        ([FETCH_ADD], response("ONLY", 8), "#response-mismatch"),
        ([read(512)], response("LAST", 256), "#response-mismatch"),
        ([read(512), response("FIRST", 256)], response("ONLY", 256), "#response-mismatch"),
        ([read(8)], ack(), "#ack-inside-read"),
        ([FETCH_ADD], ack(), "#ack-inside-read"),
        ([send()], ack(offset=(1 << 23) - 1), "#response-unsent"),
        # exactly 2^23 away is older (transport.md#psn-order)
        ([send()], ack(offset=1 << 23), "#response-duplicate"),
        ([send()], ack(0x40), "#aeth"),
        ([send()], ack(0x64), "#aeth"),
        ([send()], replace(ack(), icrc=BAD), "9.6"),
    ],
)
def test_response_is_named_by_its_rule(steps: list[Step], answer: Packet, rule: str) -> None:
    """reference/transport#responses."""
    live = duel(Emulation(ASKS))
    for step in steps:
        live.step(step)
    reference = live.reference
    told = about(reference, answer, reference.psn("una") + answer.psn[1])

    assert told is not None
    assert told.is_wrong
    assert rule in told.rule


@each_case(
    ("steps", "answer"),
    [
        ([send()], ack()),
        ([write(512)], ack(0x60, 1)),
        ([send()], ack(0x61)),
        ([send()], rnr_nak(1)),
        ([write(512)], replace(rnr_nak(1), psn=("una", 1))),
        ([read(512)], ack(0x62, 1)),
        ([read(512)], response("FIRST", 256)),
        ([read(512), response("FIRST", 256)], response("LAST", 256)),
        ([FETCH_ADD], Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0))),
    ],
)
def test_what_a_right_responder_may_say_is_not_wrong(steps: list[Step], answer: Packet) -> None:
    live = duel(Emulation(ASKS))
    for step in steps:
        live.step(step)
    reference = live.reference
    told = about(reference, answer, reference.psn("una") + answer.psn[1])

    assert told is not None
    assert not told.is_wrong


def test_one_cause_has_one_group_whatever_comes_of_it() -> None:
    """A READ response that is too short is taken: silence, or a completion with success."""
    case = Case(ASKS, (read(8), response("ONLY", 4)))
    silent = Difference(1, Kind.COMPLETION, [(0, 0, 11)], [])
    completed = Difference(1, Kind.COMPLETION, [(0, 0, 11)], [(0, 0, 0, 2)])

    names = [name_of(case, each, PROFILES["spec"]) for each in (silent, completed)]

    assert len({name.group for name in names}) == 1
    assert names[1].text == (
        "READ_RESPONSE_ONLY (a READ response of the wrong length): "
        "completion SUCCESS of a posted RDMA_READ "
        "instead of REM_OP_ERR of a posted RDMA_READ"
    )
    assert {name.rule.rpartition("#")[2] for name in names} == {"read-response-length"}
