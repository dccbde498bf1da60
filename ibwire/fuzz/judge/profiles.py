"""Profiles of references as text: the name of a profile and the choices that differ from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from ibwire.fuzz.case import KNOWN_FIELDS, CaseError
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.rc.profile import PROFILES, Profile

MAY_BE_UNCHECKED = (KNOWN_FIELDS - {"bth.psn", "bth.opcode", "aeth.syndrome"}) | {
    f"completion.{name}"
    for name in ("byte_len", "imm_data", "flags", "solicited", "pkey_index", "src_qp")
}
"""Fields of packets, and parts of completions, by which nothing else is decided.

What comes of other PSNs, or of other credits, would look like other faults.
"""

UNCHECKED = "unchecked"
"""Stands for fields that are not compared among the choices of a case."""


@dataclass(frozen=True, slots=True)
class Lenient(Profile):
    """The profile of a reference with which a target is not compared in some fields of packets.

    They are known to be wrong; so what else is wrong in these packets, and later, is seen.
    """

    unchecked: tuple[str, ...] = ()
    """Their names, such as `aeth.msn`, or parts of completions."""


def unchecked_by(profile: Profile) -> tuple[str, ...]:
    """The fields of packets that are not compared with a reference of this profile."""
    return profile.unchecked if isinstance(profile, Lenient) else ()


def without_checking(profile: Profile, unchecked: Sequence[str]) -> Profile:
    """The profile with which these fields, and no others, are not compared."""
    if tuple(unchecked) == unchecked_by(profile):
        return profile
    values = {each.name: getattr(profile, each.name) for each in fields(Profile)}
    return Lenient(**values, unchecked=tuple(unchecked)) if unchecked else Profile(**values)


def unchecked_in(choices: Mapping[str, str]) -> tuple[str, ...]:
    """The fields of packets that are not compared in a case with these choices."""
    return tuple(filter(None, choices.get(UNCHECKED, "").split(",")))


def choices_of(profile: Profile, name: str) -> dict[str, str]:
    """The differences of a profile from the one of this name: values by field."""
    usual = PROFILES[name]
    return {
        choice.name: value_text(getattr(profile, choice.name))
        for choice in CHOICES
        if getattr(profile, choice.name) != getattr(usual, choice.name)
    }


def conditions_of(profile: Profile, name: str) -> dict[str, str]:
    """The choices of a reference, and what is not compared with it, as a case has them."""
    unchecked = unchecked_by(profile)
    found = choices_of(profile, name)
    return {**found, UNCHECKED: ",".join(unchecked)} if unchecked else found


def profile_of(name: str, choices: Mapping[str, str]) -> Profile:
    """The profile that makes these choices; raises `CaseError` for an unknown one."""
    if name not in PROFILES:
        raise CaseError(f"profile: {name!r}, not one of {', '.join(PROFILES)}")
    known = {choice.name: choice for choice in CHOICES}
    changes: dict[str, Any] = {}
    unchecked = unchecked_in(choices)
    if not MAY_BE_UNCHECKED.issuperset(unchecked):
        raise CaseError(f"choices.{UNCHECKED}: {choices[UNCHECKED]!r}, not fields of packets")
    for field, text in choices.items():
        if field == UNCHECKED:
            continue
        values = (
            {value_text(value): value for value in known[field].values} if field in known else {}
        )
        measured = known[field].measured(text) if field in known else None
        if measured is not None:
            values[text] = measured
        if text not in values:
            expected = f"not one of {', '.join(values)}" if values else "no such choice"
            raise CaseError(f"choices.{field}: {text!r}, {expected}")
        changes[field] = values[text]
    return without_checking(replace(PROFILES[name], **changes), unchecked)


def value_text(value: object) -> str:
    """A value of a choice."""
    return value.name if isinstance(value, Enum) else str(value)
