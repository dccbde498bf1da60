"""The source mutants of `table.toml`, and what notices each of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("table.toml")

INTERACTIONS = Path(__file__).with_name("interactions.toml")
"""Mutants that show only where several things meet; for the fuzzer alone."""

EDGES = Path(__file__).with_name("edges.toml")
"""More of them, which were written before what the fuzzer generates was read."""

SHARED = Path(__file__).with_name("shared.toml")
"""Mutants of shared receive queues."""

XRC = Path(__file__).with_name("xrc.toml")
"""Mutants of XRC."""

FIRMWARE = Path(__file__).with_name("firmware.toml")
"""Mutants as an author of an adapter's firmware makes them, written before a look at the fuzzer."""

VALUES = Path(__file__).with_name("values.toml")
"""Mutants in which a single value is wrong."""

DEVICES = Path(__file__).with_name("devices.toml")
"""Mutants planted by an engineer who had not seen the fuzzer."""

STRANGERS = Path(__file__).with_name("strangers.toml")
"""Mutants of other such engineers, who judged each finding."""

RIGHT = Path(__file__).with_name("right_devices.toml")
"""Devices of such engineers that do something else, which is right: the fuzzer accuses none."""

OWN_TABLES = (
    TABLE,
    INTERACTIONS,
    EDGES,
    SHARED,
    XRC,
    FIRMWARE,
    VALUES,
    DEVICES,
    STRANGERS,
)
"""All tables of faults."""

ROLES = ("responder", "requester", "cm")
"""The side of a device that a mutant of the fuzzer is in."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A snippet that occurs once in a module, and its replacement."""

    module: str
    """File below `ibwire`."""
    old: str
    new: str

    @property
    def module_name(self) -> str:
        """The module's dotted name."""
        return "ibwire." + self.module.removesuffix(".py").replace("/", ".")


@dataclass(frozen=True, slots=True)
class Fuzz:
    """What the fuzzer shall find of a mutant."""

    about: str
    """What is wrong, in the standard's words."""
    rule: str
    """Where the standard says so."""
    origin: str
    """The public bug that it is modelled on, or the mutant of another test."""
    role: str
    """One of `ROLES`."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One deliberate fault of the emulator."""

    name: str
    patches: tuple[Patch, ...]
    law: str = ""
    """A law of `laws.py` or `laws_wire.py` that is broken in `example`."""
    example: str = ""
    test: str = ""
    """Node ID of a test that fails, below `tests`."""
    scripts: tuple[str, ...] = ()
    """Drill scripts that fail."""
    unseen: str = ""
    """Why no drill script shows it."""
    fuzz: Fuzz | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def role(self) -> str:
        """The side of the device that is at fault, for a mutant that the fuzzer finds."""
        assert self.fuzz is not None
        return self.fuzz.role


def read_mutants(path: Path = TABLE) -> dict[str, Mutant]:
    """The mutants of a table by name."""
    mutants: dict[str, Mutant] = {}
    for table in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
        mutant = _mutant(table)
        assert mutant.name not in mutants, f"{path.name} has {mutant.name!r} twice"
        mutants[mutant.name] = mutant
    return mutants


def _mutant(table: Mapping[str, Any]) -> Mutant:
    given = dict(table)
    snippets = given.pop("patch", None) or [
        {key: given.pop(key) for key in ("module", "old", "new")}
    ]
    given["patches"] = tuple(Patch(**each) for each in snippets)
    given["scripts"] = tuple(given.get("scripts", ()))
    if "fuzz" in given:
        given["fuzz"] = Fuzz(**given["fuzz"])
    return Mutant(**given)


MUTANTS = read_mutants()

FUZZED = {name: each for name, each in MUTANTS.items() if each.fuzz is not None}
"""The mutants that the fuzzer is measured by."""
