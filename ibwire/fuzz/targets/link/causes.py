"""Crashes of a device by their cause, so that no cause is searched for again and again.

The cause is the fault of the packet after which the device crashed, in the shortest case. The
same fault in another operation is the same cause. Where no case crashes the device again, the
cause is not found, and such crashes are one finding.
"""

from __future__ import annotations

from collections import Counter

from ibwire.fuzz.case import Case, Packet, Pause, opcode_text
from ibwire.fuzz.judge.exclusions import opcode_on_wire
from ibwire.fuzz.targets.link.liveness import Dead, Death
from ibwire_layers.opcodes import INFO

SEARCHES = 3
"""How often the cause of crashes after the same operation is searched for, and how often a
cause that is not found."""


class Causes:
    """The causes that were found, and the searches that were made."""

    def __init__(self) -> None:
        self._buckets: dict[str, str] = {}
        """The first bucket of each fault."""
        self._searches: Counter[str] = Counter()

    def known(self, case: Case) -> str:
        """The bucket of the cause that the end of a case has; empty if it is not known."""
        return self._buckets.get(fault_of(last_sent(case)), "")

    def may_search(self, death: Death, case: Case) -> bool:
        """Whether another search for the cause is worth its restarts; counts it if so."""
        bucket = bucket_of(death, case)
        if max(self._searches[bucket], self._searches[not_found(death.what)]) >= SEARCHES:
            return False
        self._searches[bucket] += 1
        return True

    def found(self, death: Death, case: Case, fault_in_words: str = "") -> str:
        """Enter the cause that the shortest case has; its bucket.

        fault_in_words: what the reference says is wrong with the last packet. Operators have
        different names for one fault.
        """
        if fault_in_words in self._buckets:
            return self._buckets[fault_in_words]
        bucket = bucket_of(death, case)
        for fault in filter(None, (fault_of(last_sent(case)), fault_in_words)):
            bucket = self._buckets.setdefault(fault, bucket)
        return bucket

    def missed(self, death: Death) -> str:
        """Count a search that has found nothing; the bucket of such crashes."""
        bucket = not_found(death.what)
        self._searches[bucket] += 1
        return bucket


def last_sent(case: Case) -> Packet | Pause | None:
    """The last packet or PFC frame of a case."""
    return next((each for each in reversed(case.steps) if isinstance(each, Packet | Pause)), None)


def fault_of(last: Packet | Pause | None) -> str:
    """What is wrong with a packet, if other packets can have the same fault; else empty.

    Another opcode makes another packet, which is no fault.
    """
    return last.why if isinstance(last, Packet) and "opcode" not in last.why else ""


def bucket_of(death: Death, case: Case) -> str:
    """The bucket of a crash after the last step of a case."""
    last = last_sent(case)
    if last is None:
        return f"{death.what} after nothing"
    if isinstance(last, Pause):
        return f"{death.what} after PFC"
    opcode = opcode_on_wire(last)
    if opcode not in INFO:
        return f"{death.what} after a reserved opcode"
    fault = f" ({last.why})" if last.why else ""
    return f"{death.what} after {opcode_text(opcode)}{fault}"


def not_found(what: Dead) -> str:
    """The bucket of crashes whose cause is not found."""
    return f"{what}, cause not found"
