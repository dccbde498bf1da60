"""Differences of a requester on a link in words: equal for differences with one cause.

A response is classified as a right requester does, in the order in which it checks
(reference/transport#responses). Most findings make it discard the
answer or end the connection: whatever else a device does then has one cause.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ibwire.fuzz.case import GOOD, Packet, Post, Step, Wait
from ibwire.fuzz.judge.choices import CHOICES
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import bucket_of, wrong_fields
from ibwire.fuzz.targets.emulated_device import SENDS, Emulation
from ibwire.rc.send_state import SendWQE
from ibwire.rc.work import WCStatus
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import INFO, OpCode, Operation, Position
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, NakCode


@dataclass(frozen=True, slots=True)
class About:
    """A description of an answer."""

    what: str
    rule: str
    is_wrong: bool = True
    """Whether the specification allows only one treatment of it, so that any other is one
    finding.
    """
    known: str = ""
    """The field of `Profile` that describes it, if there is one."""


def about(reference: Emulation, packet: Packet, psn: int) -> About | None:
    """The description of an answer that the requester gets now; `None` for a request."""
    info = INFO.get(packet.opcode)
    if info is None or not info.is_response:
        return None
    if packet.icrc != GOOD or packet.cut is not None or not _OWN.issuperset(packet.fields):
        return _MALFORMED
    sends = reference.qp.sends
    ahead = psn - sends.una & MASK
    if not sends.outstanding:
        return _UNASKED
    if ahead >= HALF and psn - sends.next_psn & MASK >= HALF:
        return _GIVEN_BEFORE
    if ahead >= sends.next_psn - sends.una & MASK:
        return _UNSENT
    started = [wqe for wqe in sends.wqes if wqe.started and wqe.plan.operation is not None]
    wqe = next((each for each in started if psn - each.first_psn & MASK < each.packets), None)
    if wqe is None:
        return None
    syndrome = packet.fields.get("aeth.syndrome", aeth.INVALID_CREDITS)
    kind = aeth.kind(syndrome & 0xFF) if isinstance(syndrome, int) else AckKind.ACK
    if any(each.plan.is_answered for each in started[: started.index(wqe)]):
        return _BEHIND
    if wqe.plan.operation is Operation.READ and ahead and psn != wqe.first_psn:
        return _GAP
    if packet.opcode != OpCode.RC_ACKNOWLEDGE:
        return _MISPLACED if kind is not AckKind.ACK else _data(reference, wqe, packet)
    assert isinstance(syndrome, int)
    if kind is AckKind.NAK:
        return _nak(aeth.code(syndrome & 0xFF))
    if kind is AckKind.RNR_NAK:
        return _RNR_INSIDE if psn != wqe.first_psn else _RNR
    if kind is AckKind.ACK:
        return _NO_DATA if wqe.plan.is_answered else _ACK
    return _RESERVED


def _data(reference: Emulation, wqe: SendWQE, packet: Packet) -> About:
    """A READ response or an atomic acknowledge."""
    info = INFO[packet.opcode]
    operation = wqe.plan.operation
    if operation is not Operation.READ or info.operation is not Operation.READ_RESPONSE:
        is_right = operation in _ATOMICS and info.operation is Operation.ATOMIC_ACKNOWLEDGE
        return _RESPONSE if is_right else _MISPLACED
    begins = info.position in (Position.FIRST, Position.ONLY)
    if begins if wqe.in_response else not begins and not wqe.received:
        return _MISPLACED
    rest, mtu = wqe.length - wqe.received, reference.qp.mtu
    if info.position in (Position.LAST, Position.ONLY):
        is_right = packet.length == rest <= mtu
    else:
        is_right = packet.length == mtu < rest
    return _RESPONSE if is_right else _LENGTH


def _nak(code: int) -> About:
    if code == NakCode.PSN_SEQUENCE_ERROR:
        return _SEQUENCE
    return _FATAL if code in _FATAL_CODES else _RESERVED


def name(
    difference: Difference,
    step: Step,
    state: str,
    last: About | None,
    taken: Collection[str] = (),
) -> str:
    """The name of a difference.

    last: the fields of the last response, if it followed the last request. taken: fields of
    `Profile` that are known deviations of the device; a difference about one of them has its name.
    """
    if isinstance(step, Post):
        return f"a send request in {state}: {_effect(difference)}"
    if last is None or not isinstance(step, Packet | Wait):
        return bucket_of(difference, step, state)
    if last.known in taken:
        return next(choice.about for choice in CHOICES if choice.name == last.known)
    return last.what if last.is_wrong else f"{last.what}: {_effect(difference)}"


def _effect(difference: Difference) -> str:
    expected, got = difference.expected, difference.got
    if difference.kind == Kind.COMPLETION:
        return f"{_completed(got)} instead of {_completed(expected)}"
    if difference.kind != Kind.ANSWER:
        return difference.kind
    if not got:
        return "nothing is sent"
    if not expected:
        return "something is sent"
    if len(got) != len(expected):
        return "other packets are sent"
    fields = dict.fromkeys(
        f"{part}.{key}" for each in wrong_fields(difference) for part, key in each
    )
    return f"another {', '.join(fields)}" if fields else "another packet is sent"


def _completed(completions: Sequence[object]) -> str:
    """How send requests have ended, without those that were only flushed."""
    found = dict.fromkeys(
        WCStatus(each[2]).name
        for each in completions
        if isinstance(each, tuple) and each[0] == SENDS and each[2] != WCStatus.WR_FLUSH_ERR
    )
    return ", ".join(found) or "nothing"


_OWN = frozenset({"aeth.syndrome", "aeth.msn", "atomicacketh.orig"})
"""Fields in which an answer for this connection may differ."""

_FATAL_CODES = (
    NakCode.INVALID_REQUEST,
    NakCode.REMOTE_ACCESS_ERROR,
    NakCode.REMOTE_OPERATIONAL_ERROR,
)
_ATOMICS = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)

_MALFORMED = About(
    "a malformed answer is not discarded", "IBA 9.6; docs/reference/transport.md#check-headers"
)
_UNASKED = About(
    "an answer is not discarded while none is due",
    "IBA 9.7.6; docs/reference/transport.md#response-unexpected",
)
_UNSENT = About(
    "an answer to what was never sent is not discarded",
    "IBA 9.7.6; docs/reference/transport.md#response-unsent",
    known="acks_unsent",
)
_GIVEN_BEFORE = About(
    "an answer that comes again is not discarded",
    "IBA 9.7.6; docs/reference/transport.md#response-duplicate",
)
_BEHIND = About(
    "a READ or atomic without an answer is not asked for again",
    "IBA 9.7.6; docs/reference/transport.md#implied-nak",
)
_GAP = About(
    "an answer behind a gap in the responses of a READ is not taken as it should be",
    "IBA 9.7.6; docs/reference/transport.md#read-gap",
    known="restarts_on_read_gap",
)
_LENGTH = About(
    "a READ response of the wrong length does not fail it",
    "IBA 9.7.6; docs/reference/transport.md#read-response-length",
    known="checks_response_length",
)
_MISPLACED = About(
    "a response that does not fit the request does not fail it",
    "IBA 9.7.6; docs/reference/transport.md#response-mismatch",
    known="misplaced_response",
)
_NO_DATA = About(
    "an ACK stands for the answer of a READ or atomic",
    "IBA 9.7.6; docs/reference/transport.md#ack-inside-read",
    known="acks_answer",
)
_RESERVED = About(
    "a reserved syndrome is not ignored",
    "IBA 9.7.6; docs/reference/transport.md#aeth",
    known="reserved_syndrome_fails",
)
_RNR_INSIDE = About(
    "an RNR NAK inside a message",
    "IBA 9.7.6; docs/reference/transport.md#rnr-place",
    is_wrong=False,
)
_RNR = About("an RNR NAK", "IBA 9.7.6; docs/reference/transport.md#rnr-wait", is_wrong=False)
_SEQUENCE = About(
    "a sequence NAK", "IBA 9.7.6; docs/reference/transport.md#go-back-n", is_wrong=False
)
_FATAL = About(
    "a NAK that ends the connection",
    "IBA 9.7.6; docs/reference/transport.md#completion-status",
    is_wrong=False,
)
_ACK = About("an ACK", "IBA 9.7.6; docs/reference/transport.md#ack-coalescing", is_wrong=False)
_RESPONSE = About(
    "a right response", "IBA 9.7.6; docs/reference/transport.md#responses", is_wrong=False
)
