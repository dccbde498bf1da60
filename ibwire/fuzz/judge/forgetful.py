"""Whether a device does what the reference would do if it ignored part of what it received.

A fault may show at many places, far from the packet that was not taken as it should be. The
reference carries out the case again and forgets that part each time: if it then does exactly
what the device did, all findings that this explains have one cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Pause, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind, apply
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.binding import Binding, emulated_binding
from ibwire.rc.profile import Profile
from ibwire_layers.headers import AETH
from ibwire_layers.opcodes import INFO, Operation


def ignores_credits_of_data(case: Case, difference: Difference, profile: Profile) -> bool:
    """Whether a device takes no credits from READ responses and answers of atomics.

    profile: of the reference. Only the answers to the last step tell.
    """
    steps = case.steps[: difference.step + 1]
    if difference.kind is not Kind.ANSWER or not any(map(_has_credits, steps)):
        return False
    reference = Emulation(case.connection, profile)
    binding = emulated_binding(case.connection.version)
    sent: list[Frame] = []
    for step in steps:
        sent = _carried_out(reference, binding, step)
    return sent == list(difference.got)


def _has_credits(step: Step) -> bool:
    """Whether a step is a response with data and an AETH."""
    form = INFO.get(step.opcode) if isinstance(step, Packet) else None
    if form is None or form.operation is Operation.ACKNOWLEDGE:
        return False
    return form.is_response and AETH in form.headers


def _carried_out(reference: Emulation, binding: Binding, step: Step) -> list[Frame]:
    """What the reference sends in a step."""
    reference.prepare(step)
    if isinstance(step, Wait):
        return [frame for _, frame in reference.wait(step.time)]
    if isinstance(step, Packet | Pause):
        if isinstance(step, Pause):
            frame = binding.pause(step)
        else:
            frame = binding.frame(step, reference.psn(step.psn[0]), reference.symbols)
        with _credits_kept(reference) if _has_credits(step) else _all_taken():
            reference.receive(frame)
        if isinstance(step, Packet) and step.held:
            return []
    else:
        apply(reference, step)
    sent = reference.answers()
    reference.completions()
    return sent


@contextmanager
def _credits_kept(reference: Emulation) -> Iterator[None]:
    """Leave the credits of the queue pair as they are."""
    sends = reference.qp.sends
    before = sends.credits.lsn, sends.credits.limited
    yield
    sends.credits.lsn, sends.credits.limited = before


@contextmanager
def _all_taken() -> Iterator[None]:
    yield
