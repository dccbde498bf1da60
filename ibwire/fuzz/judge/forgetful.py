"""Whether a device does what the reference would do if it took part of what it receives otherwise.

A fault may show at many places, far from the packet that was not taken as it should be. The
reference carries out the case again and takes that part otherwise each time: if it then does
exactly what the device did, all findings that this explains have one cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Pause, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind, apply
from ibwire.fuzz.judge.findings import are_same
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.binding import Binding, emulated_binding
from ibwire.rc.profile import Profile
from ibwire_layers.headers import AETH
from ibwire_layers.opcodes import INFO, Operation
from ibwire_layers.psn import HALF, MASK

Taking = Callable[[Emulation, Step], AbstractContextManager[None]]
"""What is around the arrival of a packet at a reference that takes it otherwise."""


def ignores_credits_of_data(case: Case, difference: Difference, profile: Profile) -> bool:
    """Whether a device takes no credits from READ responses and answers of atomics.

    profile: of the reference. Only the answers to the last step tell.
    """
    steps = case.steps[: difference.step + 1]
    return any(map(_has_credits, steps)) and _explains(_credits_kept, case, difference, profile)


def takes_credits_back(case: Case, difference: Difference, profile: Profile) -> bool:
    """Whether a device lets the newest response set its limit, although that was higher before.

    Only where two responses name credits, which a minimised case needs.
    """
    steps = case.steps[: difference.step + 1]
    named = sum(isinstance(each, Packet) and "aeth.syndrome" in each.fields for each in steps)
    return named > 1 and _explains(_newest_limit, case, difference, profile)


def _explains(take: Taking, case: Case, difference: Difference, profile: Profile) -> bool:
    """Whether the reference does what the device did in the last step, if it takes packets so."""
    if difference.kind is not Kind.ANSWER:
        return False
    reference = Emulation(case.connection, profile)
    binding = emulated_binding(case.connection.version)
    sent: list[Frame] = []
    for step in case.steps[: difference.step + 1]:
        sent = _carried_out(reference, binding, step, take)
    return are_same(sent, difference.got)


def _has_credits(step: Step) -> bool:
    """Whether a step is a response with data and an AETH."""
    form = INFO.get(step.opcode) if isinstance(step, Packet) else None
    if form is None or form.operation is Operation.ACKNOWLEDGE:
        return False
    return form.is_response and AETH in form.headers


def _carried_out(reference: Emulation, binding: Binding, step: Step, take: Taking) -> list[Frame]:
    """What the reference sends in a step."""
    reference.prepare(step)
    if isinstance(step, Wait):
        return [frame for _, frame in reference.wait(step.time)]
    if isinstance(step, Packet | Pause):
        if isinstance(step, Pause):
            frame = binding.pause(step)
        else:
            frame = binding.frame(step, reference.psn(step.psn[0]), reference.symbols)
        with take(reference, step):
            reference.receive(frame)
        if isinstance(step, Packet) and step.held:
            return []
    else:
        apply(reference, step)
    sent = reference.answers()
    reference.completions()
    return sent


@contextmanager
def _credits_kept(reference: Emulation, step: Step) -> Iterator[None]:
    """Leave the credits of the queue pair as they are, at a response with data."""
    credits = reference.qp.sends.credits
    before = credits.lsn, credits.limited
    yield
    if _has_credits(step):
        credits.lsn, credits.limited = before


@contextmanager
def _newest_limit(reference: Emulation, step: Step) -> Iterator[None]:
    """Let the limit be what a response names, if it names any that counts."""
    credits = reference.qp.sends.credits
    before = credits.lsn
    lowest = credits.lsn = before - HALF // 2 & MASK  # below whatever a response may name
    yield
    if credits.lsn == lowest:
        credits.lsn = before
