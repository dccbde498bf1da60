"""Whether a device does what a right one would do that takes only a part of an acknowledgement.

A response acknowledges all packets before it. A device that takes it for fewer shows that where a
request does not complete, or is retransmitted, or where a missing response is not noticed. All of
that has one cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Case, Packet, Post, Step
from ibwire.fuzz.judge.request_names import headers
from ibwire.fuzz.judge.response_names import is_ack
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.vocabulary.binding import emulated_binding
from ibwire.rc.plan import PLANS
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.psn import HALF, MASK

GROUP = "an acknowledgement taken in part"
RULE = "IBA 9.7.5.1.2; docs/reference/transport.md#ack-coalescing"

_Part = Callable[[Emulation, int], int]
"""The PSN up to which a device takes packets as acknowledged that are so up to another PSN."""


def taken_part(trials: Trials) -> tuple[int, str] | None:
    """The number of the response of which a device takes a part, and what that acknowledges; `None`
    if it does not explain what the device does.
    """
    if not _may_be_tried(trials.case):
        return None
    steps = trials.steps
    tried = [(text, part, place) for place in _responses(steps)[::-1] for text, part in _PARTS]
    variants = [Variant(_taking(part, place, steps), place=place) for _, part, place in tried]
    found = trials.first_that_shows(variants)
    return None if found is None else (tried[found][2], tried[found][0])


def _may_be_tried(case: Case) -> bool:
    """Whether a case lets the device send several packets, and one that an ACK completes."""
    mtu = case.connection.mtu
    posts = [each for each in case.steps if isinstance(each, Post)]
    plain = [each for each in posts if PLANS[WROpcode(each.opcode)].is_segmented]
    is_several = len(posts) > 1 or any(each.length > mtu for each in plain)
    return bool(plain) and is_several


def _responses(steps: Sequence[Step]) -> list[int]:
    """The numbers of the steps in which a response arrives."""
    forms = [INFO.get(each.opcode) if isinstance(each, Packet) else None for each in steps]
    return [place for place, info in enumerate(forms) if info is not None and info.is_response]


def _taking(part: _Part, place: int, steps: Sequence[Step]) -> Callable[[Sequence[Step]], Deliver]:
    """In place of one response comes an ACK of a part of what that acknowledges, if it is less."""
    response = steps[place]
    assert isinstance(response, Packet)

    def deliver(reference: Emulation, number: int, frame: Frame) -> None:
        ack = _partial(reference, response, part) if number == place else None
        reference.receive(frame if ack is None else ack)

    return lambda steps: deliver


def _partial(reference: Emulation, response: Packet, part: _Part) -> Frame | None:
    """An ACK of a part of what a response acknowledges; `None` if the part is all, or nothing."""
    oldest, following = reference.psn("una"), reference.psn("next")
    psn = reference.psn(response.psn[0]) + response.psn[1] & MASK
    is_sent = (psn - oldest & MASK) < (following - oldest & MASK)
    if not is_sent or not _has_plain_oldest(reference) or headers(reference, response) is not None:
        return None
    last = psn if is_ack(response) else psn - 1 & MASK
    taken = part(reference, last)
    is_less = 0 < (last - taken & MASK) < HALF
    if not is_less or (taken - oldest + 1 & MASK) >= HALF:
        return None
    ack = _ack_of(response, taken - oldest)
    binding = emulated_binding(reference.connection.version)
    return binding.frame(ack, oldest, reference.symbols)


def _ack_of(response: Packet, ahead: int) -> Packet:
    """An ACK that is so far ahead of the oldest PSN, with the credits of another one."""
    credits = response.fields if is_ack(response) else {}
    fields = {name: value for name, value in credits.items() if name.startswith("aeth.")}
    opcode = OpCode.RC_ACKNOWLEDGE | response.opcode & _SERVICE
    return Packet(int(opcode), ("una", ahead), fields=fields, pair=response.pair)


def _has_plain_oldest(reference: Emulation) -> bool:
    """Whether an ACK completes the oldest request: else it acknowledges nothing."""
    wqe = next(iter(reference.qp.sends.wqes), None)
    return wqe is not None and wqe.started and not wqe.plan.is_answered


def _first_request(reference: Emulation, last: int) -> int:
    """The last PSN of the oldest request."""
    wqe = reference.qp.sends.wqes[0]
    return wqe.first_psn + wqe.packets - 1 & MASK


def _whole_requests(reference: Emulation, last: int) -> int:
    """The last PSN of the requests of which no packet is behind another PSN."""
    taken = reference.psn("una") - 1
    for wqe in reference.qp.sends.wqes:
        end = wqe.first_psn + wqe.packets - 1 & MASK
        if not wqe.started or wqe.plan.is_answered or (last - end & MASK) >= HALF:
            break
        taken = end
    return taken & MASK


_PARTS: Sequence[tuple[str, _Part]] = (
    ("nothing", lambda reference, last: reference.psn("una") - 1 & MASK),
    ("only the first request", _first_request),
    ("all but its last packet", lambda reference, last: last - 1 & MASK),
    ("only whole requests", _whole_requests),
)
_SERVICE = 0xE0
"""The bits of an opcode that are the service."""
