"""Whether one change to a right device explains all that a device does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibwire.fuzz.case import Case, Connection, Packet
from ibwire.fuzz.judge import (
    attributes,
    dropped_partition,
    kept_window,
    partial_ack,
    passed_over,
    read_psns,
    refused_psn,
    rnr_as_retry,
    xrc_domain,
)
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.judge.variants import Trials


@dataclass(frozen=True, slots=True)
class SingleCause:
    """What is wrong with a device, whatever the packet at which it shows."""

    rule: str
    group: str
    after: str = ""
    """What comes before that packet, for its name."""
    as_if: str = ""
    """What it looks like, for the end of its name."""


def single_cause(trials: Trials, abouts: Sequence[About]) -> SingleCause | None:
    """The cause, if one is known. abouts: what each step is about."""
    if dropped_partition.drops_other_members(trials):
        as_if = ", as if packets between a full and a limited member were dropped"
        return SingleCause(dropped_partition.RULE, dropped_partition.GROUP, as_if=as_if)
    if read := read_psns.miscounted_read(trials):
        return SingleCause(read_psns.RULE, read_psns.GROUP, after=f" after {read}")
    if refused_psn.counts_refused(trials, abouts):
        as_if = ", as if a request that draws an RNR NAK took its PSN"
        return SingleCause(refused_psn.RULE, refused_psn.GROUP, as_if=as_if)
    if rnr_as_retry.counts_as_retry(trials, abouts):
        as_if = ", as if an RNR NAK used up one of the retries of retry_cnt"
        return SingleCause(rnr_as_retry.RULE, rnr_as_retry.GROUP, as_if=as_if)
    if xrc_domain.takes_domain_of_pair(trials):
        as_if = ", as if its R_Key had to be of the domain of the queue pair"
        return SingleCause(xrc_domain.RULE, xrc_domain.GROUP, as_if=as_if)
    other = attributes.other_attribute(trials, is_of_length=_is_of_length(trials.case, abouts))
    if other is not None and not trials.needs_other_pairs:
        name, value = other
        rule = attributes.rule_of(name, trials.case)
        as_if = (
            "" if value is None or name in attributes.RETRIES else f", as if {name} were {value}"
        )
        return SingleCause(rule, attributes.group_of(name), as_if=as_if)
    if position := kept_window.kept_at(trials):
        message = f"a SEND {position.name} with invalidate"
        as_if = f", as if {message} had left the window open"
        return SingleCause(kept_window.RULE, f"{message} that leaves a window open", as_if=as_if)
    place = passed_over.passed_over(trials)
    if place is not None:
        about = abouts[place]
        as_if = f", as if {about.text} had not come"
        return SingleCause(about.treatment or about.rule, f"{about.what}: passed over", as_if=as_if)
    return None


def _is_of_length(case: Case, abouts: Sequence[About]) -> bool:
    """Whether nothing is wrong in a case but lengths, and no receive request limits those.

    With another path MTU much goes otherwise; what fills a receive does so by its length, too, and
    other first PSNs than the usual ones are there because their wrap matters.
    """
    connection, usual = case.connection, Connection()
    first_psns = connection.rq_psn, connection.sq_psn
    is_usual = first_psns == (usual.rq_psn, usual.sq_psn)
    is_due = all(each.psn == _DUE for each in case.steps if isinstance(each, Packet))
    if connection.sges > 1 or not is_usual or (connection.service == "UC" and not is_due):
        return False
    return all(not each.is_wrong or each.rule.endswith(_LENGTHS) for each in abouts) and not any(
        each.rule.endswith(_FILLS) for each in abouts
    )


def partly_taken(trials: Trials, abouts: Sequence[About]) -> SingleCause | None:
    """The same for a response of which a part counts, if it is not ignored as a whole."""
    taken = partial_ack.taken_part(trials)
    if taken is None:
        return None
    place, part = taken
    what = "it" if place == len(abouts) - 1 else abouts[place].text
    as_if = f", as if {what} acknowledged {part}"
    return SingleCause(partial_ack.RULE, partial_ack.GROUP, as_if=as_if)


_DUE = ("expected", 0)
_FILLS = "#receive-too-short"
_LENGTHS = ("-length", "#segmentation")
"""How the rules of lengths end."""
