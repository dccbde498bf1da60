"""Targets of the fuzzer by name: the emulator with a profile, or a device made in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import ibwire.drill  # noqa: F401 - found by name below
from ibwire.base.errors import ScriptError
from ibwire.fuzz.campaign import Campaign, Maker, Open, generators
from ibwire.fuzz.case import Case, CaseError, Command, Connection, Mad, Role
from ibwire.fuzz.judge.comparison import Duel
from ibwire.fuzz.judge.findings import one_line
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.emulated_manager import ManagedEmulation
from ibwire.fuzz.vocabulary.cm.campaign import ManagerCampaign, manager_generators
from ibwire.fuzz.vocabulary.cm.exact import ManagedSubject, ManagerDuel
from ibwire.fuzz.vocabulary.queue_pair.binding import Binding
from ibwire.fuzz.watchdog import supervised
from ibwire.rc.profile import PROFILES, Profile

DEFAULT = "emu"


@dataclass(frozen=True, slots=True)
class Target:
    """A device under test."""

    name: str
    open: Open
    open_managed: Callable[[Connection], ManagedSubject]
    """The device with a connection manager."""
    fulfils: Callable[[str], bool]
    """Whether it does what a drill script says; raises `CannotSay` where that is not tried."""

    @property
    def place(self) -> str:
        """How a command is told on which link it is; empty for an emulator."""
        return ""

    @property
    def options(self) -> str:
        """How a command is told of it."""
        return f"--target {self.name}"

    def campaign(self, role: Role, make: Maker, **options: Any) -> Campaign:
        """A run against it; arguments are those of `Campaign`, which see."""
        if role is Role.CM:
            return ManagerCampaign(self.open_managed, make, **options)
        return Campaign(self.open, make, **options)

    def duel(self, case: Case, profile: Profile) -> Duel:
        """The reference and it, with the connection of a case."""
        connection = case.connection
        if role_of(case) is Role.CM:
            reference = ManagedEmulation(connection, profile)
            return ManagerDuel(reference, self.open_managed(connection))
        binding = Binding(PEER_ADDRESS, ADDRESS)
        return Duel(binding, Emulation(connection, profile), self.open(connection))


def role_of(case: Case) -> Role:
    """Who is attacked by a case: the connection manager, or the device itself."""
    return Role.CM if any(isinstance(step, Mad | Command) for step in case.steps) else Role.BOTH


def makers(role: Role, seed: int, ops: Collection[str]) -> Maker:
    """The generators of a run."""
    return manager_generators(seed, ops) if role is Role.CM else generators(seed, role, ops)


def target(name: str) -> Target:
    """The target of a name: `emu`, `emu:PROFILE`, or `py:MODULE:ARGUMENT`.

    For the last one, `open_target(name, ARGUMENT)` of the Python module makes the target.
    Raises `CaseError` for an unknown name.
    """
    kind, _, rest = name.partition(":")
    if kind == "py":
        return _made_in_python(name, rest)
    profile = rest or "spec"
    if kind == "live":
        raise CaseError(f"target {name!r} is on a link: give --dev and --peer")
    if kind != "emu" or profile not in PROFILES:
        profiles = ", ".join(f"emu:{each}" for each in PROFILES)
        raise CaseError(f"target {name!r}, not emu, one of {profiles}, or py:MODULE:ARGUMENT")
    return emulator(name, profile)


def is_python(name: str) -> bool:
    """Whether opening a target imports a module that its name gives."""
    return name.startswith("py:")


def emulator(
    name: str, profile: str = "spec", modules: Mapping[str, ModuleType] = sys.modules
) -> Target:
    """The emulator as a target.

    modules: by name, those of the emulator and of drill; a changed copy of them makes a
    changed device.
    """
    device, managed = modules[Emulation.__module__], modules[ManagedEmulation.__module__]
    return Target(
        name,
        lambda connection: _opened(device.Emulation, connection, profile),
        lambda connection: _opened(managed.ManagedEmulation, connection, profile),
        _fulfils(modules["ibwire.drill"], profile),
    )


def _made_in_python(name: str, place: str) -> Target:
    module_name, _, argument = place.partition(":")
    try:
        make = import_module(module_name).open_target
    except (ImportError, ValueError, AttributeError) as error:
        raise CaseError(f"target {name!r}: {error}") from None
    made = make(name, argument)
    if not isinstance(made, Target):
        raise CaseError(f"target {name!r}: {module_name}.open_target returns no Target")
    return made


def _opened(device: Callable[..., Any], connection: Connection, profile: str) -> Any:
    """A device under test, with no step in which it could fail yet; raises `CaseError`."""
    try:
        return supervised(partial(device, connection, profile))
    except Exception as error:  # what is under test may raise anything
        reason = one_line(f"{type(error).__name__}: {error}")
        raise CaseError(f"the target makes no connection: {reason}") from None


def _fulfils(drill: ModuleType, profile: str) -> Callable[[str], bool]:
    def fulfils(text: str) -> bool:
        script = drill.parse(text.encode(), "case.drill", profile)
        try:
            return all(
                supervised(partial(drill.run, script, case, profile)).passed
                for case in script.cases
            )
        except ScriptError:
            raise
        except Exception:  # what is under test may raise anything
            return False

    return fulfils
