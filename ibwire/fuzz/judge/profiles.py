"""Profiles of references as text: the name of a profile and the choices that differ from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from ibwire.fuzz.case import CaseError
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.rc.profile import PROFILES, Profile


def choices_of(profile: Profile, name: str) -> dict[str, str]:
    """The differences of a profile from the one of this name: values by field."""
    usual = PROFILES[name]
    return {
        choice.name: value_text(getattr(profile, choice.name))
        for choice in CHOICES
        if getattr(profile, choice.name) != getattr(usual, choice.name)
    }


def profile_of(name: str, choices: Mapping[str, str]) -> Profile:
    """The profile that makes these choices; raises `CaseError` for an unknown one."""
    if name not in PROFILES:
        raise CaseError(f"profile: {name!r}, not one of {', '.join(PROFILES)}")
    known = {choice.name: choice for choice in CHOICES}
    changes: dict[str, Any] = {}
    for field, text in choices.items():
        values = (
            {value_text(value): value for value in known[field].values} if field in known else {}
        )
        if text not in values:
            expected = f"not one of {', '.join(values)}" if values else "no such choice"
            raise CaseError(f"choices.{field}: {text!r}, {expected}")
        changes[field] = values[text]
    return replace(PROFILES[name], **changes)


def value_text(value: object) -> str:
    """A value of a choice."""
    return value.name if isinstance(value, Enum) else str(value)
