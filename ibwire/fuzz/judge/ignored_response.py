"""Whether a device behaves as if it had not received an earlier response.

A response that is not taken shows later: a request is retransmitted, or flushed, or a new one is
not sent. All of that has one cause, which is named after the response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Packet, Step
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire_layers.opcodes import INFO


def ignored_response(trials: Trials) -> int | None:
    """The number of the last response without which the reference does what the device does.

    It may be that of the last step. `None` for none, and where that cannot be said.
    """
    places = [place for place, step in enumerate(trials.steps) if _is_response(step)][::-1]
    found = trials.first_that_shows([Variant(_all_but(place), place=place) for place in places])
    return None if found is None else places[found]


def _all_but(place: int) -> Callable[[Sequence[Step]], Deliver]:
    def deliver(reference: Emulation, number: int, frame: Frame) -> None:
        if number != place:
            reference.receive(frame)

    return lambda steps: deliver


def _is_response(step: Step) -> bool:
    info = INFO.get(step.opcode) if isinstance(step, Packet) else None
    return info is not None and info.is_response
