"""What a difference of a connection manager is called, and what is wrong with a message."""

from __future__ import annotations

from dataclasses import replace

from ibwire.fuzz.case import Command, Mad
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.findings import bucket_of, verdicts, wrong_fields
from ibwire.fuzz.targets.link.manager_link import MAD_START
from ibwire.fuzz.vocabulary.cm.encoding import FORMS
from ibwire_layers.mad import MAD_SIZE

SIZES = ("a datagram shorter than a MAD", "a datagram longer than a MAD")
"""Faults that do not depend on the message."""

ENVELOPE = ("datagram", "MAD header")
"""Faults in the headers before a message."""


def oddity(step: Mad) -> str:
    """The intended fault of a message; a wrong size takes precedence."""
    size = MAD_SIZE + step.more + (step.pad or 0)
    padding = step.fields.get("bth.pad_count", 0)
    if isinstance(padding, int):
        size -= padding & 3
    size += max(step.length - FORMS[step.message].private, 0)
    if step.cut is not None:
        size = min(size, step.cut - MAD_START)
    if size != MAD_SIZE:
        return SIZES[size > MAD_SIZE]
    if step.fields:
        whose = "a datagram" if step.why in ENVELOPE else step.message
        return f"{whose} with {', '.join(step.fields)}"
    return f"{step.message} {step.why}" if step.why else ""


def by_oddity(step: Mad) -> Mad:
    """A message that is equal to all others with the same fault, for `Exclusions`."""
    return replace(step, why=oddity(step) or step.message)


def manager_bucket(difference: Difference, step: Mad | Command, state: str) -> str:
    """Equal for differences that probably have one cause."""
    fields = [f"{part}.{name}" for each in wrong_fields(difference) for part, name in each]
    wrong = " ".join(dict.fromkeys(fields))
    if isinstance(step, Command):
        return f"{step.what}: {wrong} of the REQ" if fields else bucket_of(difference, step, state)
    if fields:
        return f"{step.message}: {wrong} of the answer"
    what = oddity(step)
    if what not in SIZES and not step.fields:
        return bucket_of(difference, step, state)
    if not difference.expected and not what.startswith(step.message):
        return f"{what} is taken"
    got, expected = verdicts(difference.got), verdicts(difference.expected)
    return f"{what}: {got} instead of {expected}"
