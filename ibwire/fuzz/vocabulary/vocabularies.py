"""The two vocabularies of cases: what the fuzzer can send to a queue pair, and to QP1."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Protocol

from ibwire.fuzz.case import Case, Command, Connection, Mad, Packet, Role
from ibwire.fuzz.coverage import Cell, CoverageScheme
from ibwire.fuzz.guidance import Guide
from ibwire.fuzz.judge.comparison import ExactComparison
from ibwire.fuzz.stepper import Maker, Stepper
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.vocabulary.cm import coverage as cm_coverage
from ibwire.fuzz.vocabulary.cm import one_field as one_message
from ibwire.fuzz.vocabulary.cm.exact import ExactManagerComparison
from ibwire.fuzz.vocabulary.cm.generator import ManagerGenerator
from ibwire.fuzz.vocabulary.cm.message_values import first_values, message_values
from ibwire.fuzz.vocabulary.operators import Group
from ibwire.fuzz.vocabulary.queue_pair import coverage as queue_pair_coverage
from ibwire.fuzz.vocabulary.queue_pair.cells import cell_of
from ibwire.fuzz.vocabulary.queue_pair.combined import CombinedGenerator
from ibwire.fuzz.vocabulary.queue_pair.generator import Generator, Menu
from ibwire.fuzz.vocabulary.queue_pair.one_field import OneField, deck
from ibwire.fuzz.vocabulary.queue_pair.request_values import request_values
from ibwire.fuzz.vocabulary.queue_pair.response_values import response_values
from ibwire.fuzz.vocabulary.value_cases import OneOfEach, Shuffled
from ibwire.rc.profile import Profile


class Generators(Protocol):
    """Makes the generators of a run."""

    def __call__(
        self, seed: int, role: Role, ops: Collection[str] = (), *, combines: bool = True
    ) -> Maker:
        """The generator of each case by its number."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a case is made of."""

    name: str
    reference: Callable[[Connection, Profile], Emulation]
    """Makes the emulated device that cases are compared with."""
    generators: Generators
    """Makes the generators of a run from its seed, its role and its groups of operators."""
    coverage: CoverageScheme
    comparison: type[ExactComparison] = ExactComparison
    """How an emulated device is compared with it."""
    cell_of: Callable[[Emulation, Packet], Cell] | None = None
    """What a packet is about to meet, by which cases are guided."""


def queue_pair_generators(
    seed: int, role: Role, ops: Collection[str] = (), *, combines: bool = True
) -> Maker:
    """The generator of each case by its number; `both` takes the roles in turn.

    combines: whether some of them are combined cases, which a device on a link cannot have.
    """
    return QueuePairMaker(seed, role, ops) if combines else _plain_generators(seed, role, ops)


def _plain_generators(seed: int, role: Role, ops: Collection[str]) -> Maker:
    menu, roles = Menu(ops), _roles(role)

    def make(number: int) -> Stepper:
        role = roles[number % len(roles)]
        return Generator(Random(f"{seed}:{role}:{number}"), role, menu)

    return make


class QueuePairMaker:
    """The generators of a run: first short cases of a deck, then short and longer ones in turn.

    The short ones are first those that go through every value of something, and some of the deck;
    then those of the deck. Of the longer ones three of five are combined, guided by coverage. ops:
    without the group of fields there are no short ones.
    """

    def __init__(self, seed: int, role: Role, ops: Collection[str] = ()) -> None:
        self.guide = Guide()
        self._seed = seed
        self._roles = _roles(role)
        self._plain = _plain_generators(seed, role, ops)
        self._menu = Menu(ops, combined=True)
        has_short = not ops or Group.FIELD in ops
        self._decks = {each: deck(seed, each) for each in self._roles} if has_short else {}
        self._values = {
            each: Shuffled(f"{seed}:{each}", _VALUES[each]()) for each in self._roles if has_short
        }

    def __call__(self, number: int) -> Stepper:
        """The generator of the case with this number."""
        turn, place = divmod(number, len(self._roles))
        role = self._roles[place]
        if self._decks:
            kind, turn = self._turn(turn, len(self._values[role]))
            if kind is _Turn.VALUE:
                return OneOfEach(self._values[role].case(turn))
            if kind is _Turn.CARD:
                rng = Random(f"{self._seed}:{role}:one field:{turn}")
                return OneField(rng, role, self._decks[role].card(turn))
            number = turn * len(self._roles) + place
        if turn % 5 not in (1, 2, 3):
            return self._plain(number)
        rng = Random(f"{self._seed}:{role}:{number}")
        return CombinedGenerator(rng, role, self._menu, self.guide)

    @staticmethod
    def _turn(turn: int, values: int) -> tuple[_Turn, int]:
        """What comes in a turn, and how many of that before. values: how many of them there are."""
        late = turn - OPENING
        if late < 0:
            return _Turn.CARD, turn
        rounds = -(-values // _ROUND.count(_Turn.VALUE))
        round_, place = divmod(late, len(_ROUND))
        if round_ < rounds:
            kind = _ROUND[place]
            before = round_ * _ROUND.count(kind) + _ROUND[:place].count(kind)
            return kind, before + OPENING * (kind is _Turn.CARD)
        later, is_long = divmod(late - rounds * len(_ROUND), 2)
        kind = _Turn.LONG if is_long else _Turn.CARD
        before = rounds * _ROUND.count(kind) + later
        return kind, before + OPENING * (kind is _Turn.CARD)


class _Turn(Enum):
    """What comes in a turn of a run."""

    CARD = "of the deck"
    VALUE = "of a value"
    LONG = "a longer case"


_ROUND = (_Turn.VALUE, _Turn.LONG, _Turn.VALUE, _Turn.CARD, _Turn.LONG)
"""The turns behind the opening, again and again until every value has come."""

_VALUES = {Role.RESPONDER: request_values, Role.REQUESTER: response_values}

OPENING = 400
"""Cases of the deck with which a run begins in each role; a multiple of `HISTORY`."""


def _roles(role: Role) -> tuple[Role, ...]:
    return (Role.RESPONDER, Role.REQUESTER) if role is Role.BOTH else (role,)


def manager_generators(
    seed: int, role: Role = Role.CM, ops: Collection[str] = (), *, combines: bool = True
) -> Maker:
    """The generator of each case against a connection manager by its number.

    combines: whether a run begins with cases of a deck, as that of a queue pair.
    """
    has_short = combines and (not ops or Group.FIELD in ops)
    cards, values = one_message.deck(seed), Shuffled(f"{seed}:cm", message_values())
    firsts = first_values()

    def make(number: int) -> Stepper:
        if has_short:
            if number < MANAGER_OPENING:
                return one_message.OneMessage(cards.card(number))
            round_, place = divmod(number - MANAGER_OPENING, MANAGER_ROUND)
            if place == 0 and round_ < len(firsts):
                return OneOfEach(firsts[round_])
            if place == 0 and (turn := round_ - len(firsts)) < len(values):
                return OneOfEach(values.case(turn))
        return ManagerGenerator(Random(f"{seed}:{role}:{number}"), ops)

    return make


MANAGER_OPENING = 200
"""Cases of the deck with which a run against a connection manager begins."""

MANAGER_ROUND = 3
"""Of so many cases behind these one goes through values, until all have come."""


QUEUE_PAIR = Vocabulary(
    "queue pair",
    Emulation,
    queue_pair_generators,
    queue_pair_coverage.SCHEME,
    cell_of=cell_of,
)
CONNECTION_MANAGER = Vocabulary(
    "connection manager",
    managed_emulation,
    manager_generators,
    cm_coverage.SCHEME,
    ExactManagerComparison,
)


def vocabulary_for(role: Role) -> Vocabulary:
    """The vocabulary in which a role is attacked."""
    return CONNECTION_MANAGER if role is Role.CM else QUEUE_PAIR


def role_of(case: Case) -> Role:
    """The role that a case attacks: its connection manager, or responder and requester."""
    managed = any(isinstance(step, Mad | Command) for step in case.steps)
    return Role.CM if managed else Role.BOTH
