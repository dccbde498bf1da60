"""The two vocabularies of cases: what the fuzzer can send to a queue pair, and to QP1."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Protocol

from ibwire.fuzz.case import Case, Command, Connection, Mad, Role
from ibwire.fuzz.coverage import CoverageScheme
from ibwire.fuzz.stepper import Maker, Stepper
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.vocabulary.cm import coverage as cm_coverage
from ibwire.fuzz.vocabulary.cm.generator import ManagerGenerator
from ibwire.fuzz.vocabulary.queue_pair import coverage as queue_pair_coverage
from ibwire.fuzz.vocabulary.queue_pair.combined import CombinedGenerator
from ibwire.fuzz.vocabulary.queue_pair.generator import Generator, Menu
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


def queue_pair_generators(
    seed: int, role: Role, ops: Collection[str] = (), *, combines: bool = True
) -> Maker:
    """The generator of each case by its number; `both` takes the roles in turn.

    combines: whether half of them are combined cases, which a device on a link cannot have.
    """
    menu, combined = Menu(ops), Menu(ops, combined=True)
    roles = (Role.RESPONDER, Role.REQUESTER) if role is Role.BOTH else (role,)

    def make(number: int) -> Stepper:
        role = roles[number % len(roles)]
        rng = Random(f"{seed}:{role}:{number}")
        if combines and number // len(roles) % 2:
            return CombinedGenerator(rng, role, combined)
        return Generator(rng, role, menu)

    return make


def manager_generators(
    seed: int, role: Role = Role.CM, ops: Collection[str] = (), *, combines: bool = True
) -> Maker:
    """The generator of each case against a connection manager by its number."""
    return lambda number: ManagerGenerator(Random(f"{seed}:{role}:{number}"), ops)


QUEUE_PAIR = Vocabulary("queue pair", Emulation, queue_pair_generators, queue_pair_coverage.SCHEME)
CONNECTION_MANAGER = Vocabulary(
    "connection manager", managed_emulation, manager_generators, cm_coverage.SCHEME
)


def vocabulary_for(role: Role) -> Vocabulary:
    """The vocabulary in which a role is attacked."""
    return CONNECTION_MANAGER if role is Role.CM else QUEUE_PAIR


def role_of(case: Case) -> Role:
    """The role that a case attacks: its connection manager, or responder and requester."""
    managed = any(isinstance(step, Mad | Command) for step in case.steps)
    return Role.CM if managed else Role.BOTH
