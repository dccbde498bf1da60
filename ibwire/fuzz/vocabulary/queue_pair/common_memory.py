"""The memory that every case has: why a line of a script is about other memory."""

from __future__ import annotations

from collections.abc import Mapping

from ibwire.drill.language import steps as drill
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.literals import single
from ibwire.fuzz.targets.emulated_device import (
    REGIONS,
    WINDOW_ACCESS,
    WINDOW_SIZE,
    WINDOW_START,
)
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.memory import Access

_OF_REGION = {"len": 4096, "access": int(ALL_ACCESS), "pd": 0}
_OF_WINDOW = {"va": 0, "len": 4096, "access": WINDOW_ACCESS, "type": 2}
"""Arguments of `mr` and `mw`, with their defaults in drill."""

NAMES = tuple(name for name in REGIONS if name != "mr")
"""Regions that scripts register."""


def wrong_memory(step: drill.Verb, path: str) -> str:
    """Why `mr`, `mw` or `store` is not for a case; empty if it describes what every case has."""
    if step.token.text == "store":
        return _wrong_store(step, path)
    name = "" if step.word is None else step.word.text
    if step.token.text == "mr" and name in NAMES:
        size, access = REGIONS[name]
        right = {"len": size, "access": access, "pd": int(name == "foreign")}
        given = {each: _number(step, each, usual, path) for each, usual in _OF_REGION.items()}
        return "" if given == right else f"{name} of a case has {_text(right)}"
    if step.token.text == "mw" and name == "mw":
        right = {"va": WINDOW_START, "len": WINDOW_SIZE, "access": WINDOW_ACCESS, "type": 2}
        given = {each: _number(step, each, usual, path) for each, usual in _OF_WINDOW.items()}
        is_right = given == right and not step.owner
        return (
            "" if is_right else f"the window of a case is of the first queue pair, {_text(right)}"
        )
    return f"a case of the fuzzer has the regions {', '.join(NAMES)} and the window mw"


def _wrong_store(step: drill.Verb, path: str) -> str:
    """All regions together hold the test pattern, one behind the other."""
    assert step.address is not None
    reason = "memory of a case of the fuzzer has the test pattern"
    if "at" not in step.args:
        return reason
    place = step.address.evaluate(Scope(path, _PLACES))
    at = _number(step, "at", 0, path)
    return "" if at == place else f"{reason}: here at={place}"


def _number(step: drill.Verb, name: str, usual: int, path: str) -> int:
    if name not in step.args:
        return usual
    return single(step.args[name][1]).evaluate(Scope(path, _PLACES))


def _text(right: Mapping[str, int]) -> str:
    flags = [each.name or "" for each in Access if each & right["access"]]
    shown = {**right, "access": "ALL" if right["access"] == ALL_ACCESS else "+".join(flags)}
    if "va" in right:
        shown["va"] = f"va+{right['va']}"
    return " ".join(f"{name}={value}" for name, value in shown.items())


def _places() -> dict[str, int]:
    """Addresses as if the regions were one behind the other, from 0."""
    found: dict[str, int] = {}
    start = 0
    for name, (size, _) in REGIONS.items():
        prefix = "" if name == "mr" else f"{name}."
        found |= {f"{prefix}va": start, f"{prefix}size": size, f"{prefix}end": start + size}
        start += size
    return found


_PLACES = _places()
