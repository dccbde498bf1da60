"""Mutants as targets of `ibwire fuzz`: `--target py:mutants.target:NAME`."""

from __future__ import annotations

from pathlib import Path

from ibwire.fuzz.case import CaseError
from ibwire.fuzz.targets.emulator import Emulator, emulator
from mutants.engine import EMULATOR, copied
from mutants.table import FUZZED, read_mutants


def open_target(name: str, argument: str) -> Emulator:
    """The emulator with a mutant: NAME of the table, or FILE:NAME of another one.

    Raises `CaseError` for an unknown mutant.
    """
    file, _, mutant = argument.rpartition(":")
    known = read_mutants(Path(file)) if file else FUZZED
    if mutant not in known:
        raise CaseError(f"target {name!r}: no mutant {mutant!r}")
    return emulator(name, modules=copied(known[mutant], (*EMULATOR, "ibwire.drill")))
