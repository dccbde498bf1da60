"""Whether one change to a right device explains all that a device does."""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.fuzz.case import Case
from ibwire.fuzz.judge import attributes, ignored_response, read_psns, xrc_domain
from ibwire.fuzz.judge.comparison import Difference
from ibwire.rc.profile import Profile


@dataclass(frozen=True, slots=True)
class SingleCause:
    """What is wrong with a device, whatever the packet at which it shows."""

    rule: str
    group: str
    after: str = ""
    """What comes before that packet, for its name."""
    as_if: str = ""
    """What it looks like, for the end of its name."""


def single_cause(case: Case, difference: Difference, profile: Profile) -> SingleCause | None:
    """The cause, if one is known. profile: of the reference."""
    if read := read_psns.miscounted_read(case, difference, profile):
        return SingleCause(read_psns.RULE, read_psns.GROUP, after=f" after {read}")
    if xrc_domain.takes_domain_of_pair(case, difference, profile):
        as_if = ", as if its R_Key had to be of the domain of the queue pair"
        return SingleCause(xrc_domain.RULE, xrc_domain.GROUP, as_if=as_if)
    if other := attributes.other_attribute(case, difference, profile):
        name, value = other
        rule = attributes.rule_of(name, case)
        # Retries may be miscounted for many reasons, which are not a limit of their own.
        as_if = "" if name in attributes.RETRIES else f", as if {name} were {value}"
        return SingleCause(rule, f"another {name}", as_if=as_if)
    return None


def count_of_trials(case: Case) -> int:
    """How many references are tried at most on a case, to name what it shows."""
    tried = (ignored_response, read_psns, xrc_domain, attributes)
    return sum(each.count_of_trials(case) for each in tried)
