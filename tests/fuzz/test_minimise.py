"""Cases made shorter: they still show what they showed, and hold nothing else."""

from __future__ import annotations

from hypothesis import given

from fuzz.cases import cases
from ibwire.fuzz.case import Case, Connection, Packet, Post, Receive, Wait
from ibwire.fuzz.minimise import minimise

WRITE, READ = 0x0A, 0x0C
ODD = Packet(
    WRITE,
    length=300,
    at=9,
    fields={"bth.pkey": 7, "bth.se": 1},
    pad=2,
    more=4,
    cut=200,
    icrc=5,
    held=True,
)


def has_odd_pkey(case: Case) -> bool:
    return any(isinstance(step, Packet) and "bth.pkey" in step.fields for step in case.steps)


def test_only_what_is_needed_stays() -> None:
    noise = [Packet(READ), Receive(4), Post(0, 8), Wait(10**9)] * 10
    case = Case(Connection(mtu=1024, rq_psn=7, receives=0), (*noise, ODD, *noise))

    short = minimise(case, has_odd_pkey)

    assert short.connection == Connection()
    assert short.steps == (Packet(WRITE, fields={"bth.pkey": 7}),)


def test_what_belongs_together_stays_together() -> None:
    def shows(case: Case) -> bool:
        opcodes = [step.opcode for step in case.steps if isinstance(step, Packet)]
        return opcodes.count(WRITE) >= 2 and READ in opcodes[: opcodes.index(WRITE)]

    case = Case(steps=(Packet(READ), Packet(0), Packet(WRITE), Packet(0), Packet(WRITE), Packet(0)))

    assert [step.opcode for step in minimise(case, shows).steps] == [READ, WRITE, WRITE]


def test_an_attribute_that_matters_stays() -> None:
    case = Case(Connection(mtu=1024, timeout=8), (Packet(READ),))

    short = minimise(case, lambda each: each.connection.mtu > 256)

    assert short.connection == Connection(mtu=1024)


@given(cases)
def test_it_shows_the_same_and_is_not_longer(case: Case) -> None:
    def shows(each: Case) -> bool:
        return sum(isinstance(step, Packet) for step in each.steps) >= 1

    case = case.with_steps([*case.steps, Packet(READ)])
    short = minimise(case, shows)

    assert shows(short)
    assert len(short.steps) == 1


def test_many_steps_go_at_once() -> None:
    """Half of them, half of the rest, and so on: a long case needs few trials."""
    noise = [Packet(READ)] * 512

    short = minimise(Case(steps=(*noise, Packet(WRITE, fields={"bth.pkey": 7}))), has_odd_pkey, 40)

    assert short.steps == (Packet(WRITE, fields={"bth.pkey": 7}),)


def test_the_trials_are_counted() -> None:
    tried = 0

    def shows(case: Case) -> bool:
        nonlocal tried
        tried += 1
        return has_odd_pkey(case)

    minimise(Case(steps=(ODD,) * 64), shows, 20)

    assert tried == 20
