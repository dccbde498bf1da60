"""Responses of a case in words, and the rule that each is about.

A response is classified as a right requester does, in the order in which it checks
(reference/transport#responses).
"""

from __future__ import annotations

from dataclasses import replace

from ibwire.fuzz.case import GOOD, Packet
from ibwire.fuzz.judge.request_names import as_received
from ibwire.fuzz.judge.subject import SGE_LIST, About
from ibwire.fuzz.sge_sizes import one_empty
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.rc.plan import ANNEX_A19
from ibwire.rc.send_state import SendWQE
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import INFO, Operation, Position
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind, NakCode


def about(reference: Emulation, packet: Packet, psn: int) -> About | None:
    """The description of an answer that the requester gets now; `None` for a request."""
    info = INFO.get(packet.opcode)
    if info is None or not info.is_response or _has_no_opcode(packet):
        return None
    if info.service is not reference.connection.transport:
        return _OTHER_SERVICE
    if reference.connection.service == "XRC_RECV":
        return _TO_TARGET
    packet = as_received(packet)
    if packet.icrc != GOOD or packet.cut is not None or not _TAKEN.issuperset(packet.fields):
        return _MALFORMED
    sends = reference.qp.sends
    if found := _to_nothing(reference, packet, psn):
        return found
    ahead = psn - sends.una & MASK
    started = [wqe for wqe in sends.wqes if wqe.started and wqe.plan.operation is not None]
    wqe = next((each for each in started if psn - each.first_psn & MASK < each.packets), None)
    if wqe is None:
        return None
    syndrome = packet.fields.get("aeth.syndrome", aeth.INVALID_CREDITS)
    kind = aeth.kind(syndrome & 0xFF) if isinstance(syndrome, int) else AckKind.ACK
    is_plain = info.operation is Operation.ACKNOWLEDGE
    is_behind = any(each.plan.is_answered for each in started[: started.index(wqe)])
    if is_plain and _is_reserved(packet, kind) and not (is_behind and kind is AckKind.NAK):
        if kind is not AckKind.NAK or psn == started[0].first_psn:
            return _RESERVED
        return _RESERVED_INSIDE if psn != wqe.first_psn else _RESERVED_BEHIND
    if is_behind:
        return _behind(packet, kind) if is_plain else _BEHIND
    if wqe.plan.operation is Operation.READ and ahead and psn != wqe.first_psn and not is_plain:
        return _GAP
    assert isinstance(syndrome, int)
    has_credits = kind is AckKind.ACK and aeth.code(syndrome & 0xFF) != aeth.INVALID_CREDITS
    if not is_plain:
        found = _MISPLACED if kind is not AckKind.ACK else _data(reference, wqe, packet, psn)
        return _CREDITS if has_credits and found is _RESPONSE else found
    if kind is AckKind.NAK:
        code = aeth.code(syndrome & 0xFF)
        found, is_inside = _nak(code), psn != wqe.first_psn
        if code not in _FATAL_CODES:
            return found
        what, detail = found.what, f"a NAK {NakCode(code).name}"
        if is_inside:
            what, detail = f"{what} {INSIDE_MESSAGE}", f"{detail} {INSIDE_MESSAGE}"
        return replace(found, what=what, detail=detail)
    if kind is AckKind.RNR_NAK:
        return _RNR_INSIDE if psn != wqe.first_psn else _RNR
    if kind is AckKind.ACK:
        if wqe.plan.is_answered:
            return _NO_DATA
        return _CREDITS if has_credits else _ACK
    return _RESERVED


def is_repeated(about: About) -> bool:
    """Whether a response is an ACK that repeats the last PSN."""
    return about.what == REPEATED_ACK.what


def _has_no_opcode(packet: Packet) -> bool:
    """Whether a packet has a reserved opcode on the wire: a request like any other."""
    opcode = packet.fields.get("bth.opcode", packet.opcode)
    return isinstance(opcode, int) and opcode & 0xFF not in INFO


def _is_reserved(packet: Packet, kind: AckKind) -> bool:
    """Whether an ACKNOWLEDGE has a syndrome that is ignored, wherever its PSN stands."""
    syndrome = packet.fields.get("aeth.syndrome", 0)
    if kind is AckKind.NAK and isinstance(syndrome, int):
        return _nak(aeth.code(syndrome & 0xFF)) is _RESERVED
    return kind not in (AckKind.ACK, AckKind.RNR_NAK, AckKind.NAK)


def _is_nak(packet: Packet) -> bool:
    syndrome = packet.fields.get("aeth.syndrome", 0)
    return isinstance(syndrome, int) and aeth.kind(syndrome & 0xFF) is not AckKind.ACK


def _data(reference: Emulation, wqe: SendWQE, packet: Packet, psn: int) -> About:
    """A READ response or an atomic acknowledge."""
    info = INFO[packet.opcode]
    operation = wqe.plan.operation
    is_bare = info.operation is Operation.READ_RESPONSE and info.position is Position.ONLY
    if operation in ANNEX_A19 and is_bare:
        return _LENGTH if packet.length else _right(wqe, psn)
    if operation is not Operation.READ or info.operation is not Operation.READ_RESPONSE:
        is_right = operation in _ATOMICS and info.operation is Operation.ATOMIC_ACKNOWLEDGE
        return _right(wqe, psn) if is_right else _MISPLACED
    begins = info.position in (Position.FIRST, Position.ONLY)
    if begins if wqe.in_response else not begins and not wqe.received:
        return _OUT_OF_PLACE
    rest, mtu = wqe.length - wqe.received, reference.qp.mtu
    if info.position in (Position.LAST, Position.ONLY):
        is_right = packet.length == rest <= mtu
    else:
        is_right = packet.length == mtu < rest
    return _right(wqe, psn) if is_right else _LENGTH


def _to_nothing(reference: Emulation, packet: Packet, psn: int) -> About | None:
    """A response that answers no request which waits for one."""
    sends = reference.qp.sends
    ahead = psn - sends.una & MASK
    if ahead == MASK and is_ack(packet):
        return _REPEATED_CREDITS if _gives_credits(packet) else REPEATED_ACK
    if not sends.outstanding:
        return _UNASKED_CREDITS if _gives_credits(packet) else _UNASKED
    if ahead >= HALF and reference.qp.habits.requester.is_old_response(sends, psn):
        return _GIVEN_BEFORE
    if ahead >= sends.next_psn - sends.una & MASK:
        return _UNSENT_NAK if _is_nak(packet) else _UNSENT
    return None


def is_ack(packet: Packet) -> bool:
    """Whether a response is an ACK, neither a NAK nor one with data.

    It acknowledges the packet with its own PSN, too.
    """
    syndrome = packet.fields.get("aeth.syndrome", aeth.INVALID_CREDITS)
    is_positive = isinstance(syndrome, int) and aeth.kind(syndrome & 0xFF) is AckKind.ACK
    return is_positive and INFO[packet.opcode].operation is Operation.ACKNOWLEDGE


def _gives_credits(packet: Packet) -> bool:
    """Whether a response is an ACK with a number of credits, which it has only if that matters."""
    syndrome = packet.fields.get("aeth.syndrome", aeth.INVALID_CREDITS)
    if not isinstance(syndrome, int) or aeth.kind(syndrome & 0xFF) is not AckKind.ACK:
        return False
    return aeth.code(syndrome & 0xFF) != aeth.INVALID_CREDITS


def _right(wqe: SendWQE, psn: int) -> About:
    """A right response: with several SGEs, which a minimised case needs, it is about those."""
    sges = wqe.wr.sg_list
    if len(sges) > 1:
        empty = one_empty([each.length for each in sges])
        is_unused = any(not each.length and each.lkey != sges[0].lkey for each in sges[1:])
        key = " with a wrong L_Key" if is_unused else ""
        return replace(SCATTERED, detail=f"{SCATTERED.what}{empty}{key}")
    return _BEHIND_WRAP if psn < wqe.first_psn else _RESPONSE


def _behind(packet: Packet, kind: AckKind) -> About:
    """An ACK or a NAK behind an unanswered READ or atomic."""
    code = packet.fields.get("aeth.syndrome", 0)
    if kind is not AckKind.NAK or not isinstance(code, int) or aeth.code(code) not in _FATAL_CODES:
        return _BEHIND
    nak = NakCode(aeth.code(code)).name
    return replace(_BEHIND, detail=f"a NAK {nak} {_BEHIND_UNANSWERED}")


def _nak(code: int) -> About:
    if code == NakCode.PSN_SEQUENCE_ERROR:
        return _SEQUENCE
    return _FATAL if code in _FATAL_CODES else _RESERVED


_TAKEN = frozenset(
    {
        "aeth.syndrome",
        "aeth.msn",
        "atomicacketh.orig",
        "bth.se",
        "bth.mig_req",
        "bth.ack_req",
        "bth.fecn",
        "bth.becn",
        "bth.resv6a",
        "bth.resv7",
    }
)
"""Fields in which an answer that is taken may differ."""

INSIDE_MESSAGE = "inside a message"

_FATAL_CODES = (
    NakCode.INVALID_REQUEST,
    NakCode.REMOTE_ACCESS_ERROR,
    NakCode.REMOTE_OPERATIONAL_ERROR,
)
_ATOMICS = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)

_OTHER_SERVICE = About(
    "an opcode of another service",
    "IBA 9.6.1.4; docs/reference/transport.md#other-service",
    is_ignored=True,
)
_TO_TARGET = About(
    "a response to an XRC target", "IBA A14; docs/reference/transport.md#xrc", is_ignored=True
)
_MALFORMED = About(
    "a malformed response", "IBA 9.6; docs/reference/transport.md#check-headers", is_ignored=True
)
_UNASKED = About(
    "a response while none is due",
    "IBA 9.7.6; docs/reference/transport.md#response-unexpected",
)
_UNASKED_CREDITS = replace(
    _UNASKED,
    what="a response with credits while none is due",
    rule="IBA 9.7.6, 9.7.7.2; docs/reference/transport.md#response-unexpected, "
    "docs/reference/transport.md#credits-limit",
)
REPEATED_ACK = About(
    "an ACK that repeats the last PSN",
    "IBA 9.7.6, 9.7.7.2.4; docs/reference/transport.md#response-duplicate, "
    "docs/reference/transport.md#credits-ghost",
)
_REPEATED_CREDITS = replace(
    REPEATED_ACK,
    rule="IBA 9.7.6, 9.7.7.2; docs/reference/transport.md#response-duplicate, "
    "docs/reference/transport.md#credits-ghost, docs/reference/transport.md#credits-limit",
)
_UNSENT = About(
    "a response to a PSN that was never sent",
    "IBA 9.7.6; docs/reference/transport.md#response-unsent",
    is_ignored=True,
    group="a PSN that was never sent",
)
_UNSENT_NAK = replace(_UNSENT, what="a NAK of a PSN that was never sent")
_GIVEN_BEFORE = About(
    "a response to an acknowledged PSN",
    "IBA 9.7.6; docs/reference/transport.md#response-duplicate",
)
_BEHIND_UNANSWERED = "behind an unanswered READ or atomic"
_BEHIND = About(
    f"a response {_BEHIND_UNANSWERED}",
    "IBA 9.7.6; docs/reference/transport.md#implied-nak",
    implies_nak=True,
)
_GAP = About(
    "a gap in the responses of a READ",
    "IBA 9.7.6; docs/reference/transport.md#read-gap",
)
_LENGTH = About(
    "a READ response of the wrong length",
    "IBA 9.7.6; docs/reference/transport.md#read-response-length",
)
_MISPLACED = About(
    "a response of another kind",
    "IBA 9.7.6; docs/reference/transport.md#response-mismatch",
)
_OUT_OF_PLACE = replace(_MISPLACED, what="a READ response out of its place")
_NO_DATA = About(
    "an ACK in place of a READ response or atomic acknowledge",
    "IBA 9.7.6; docs/reference/transport.md#ack-inside-read",
    treatment="IBA 9.7.6; docs/reference/transport.md#implied-nak",
    implies_nak=True,
)
_RESERVED = About(
    "a reserved syndrome",
    "IBA 9.7.6; docs/reference/transport.md#aeth",
    is_ignored=True,
)
_RESERVED_BEHIND = replace(_RESERVED, is_ignored=False)
"""It acknowledges what came before, as any NAK does."""

_RESERVED_INSIDE = replace(_RESERVED, what=f"{_RESERVED.what} {INSIDE_MESSAGE}", is_ignored=False)
"""As a NAK it acknowledges what is before it."""
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
    "a fatal NAK",
    "IBA 9.7.6; docs/reference/transport.md#completion-status",
    is_wrong=False,
)
_ACK = About("an ACK", "IBA 9.7.6; docs/reference/transport.md#ack-coalescing", is_wrong=False)
_CREDITS = About(
    "a response with credits",
    "IBA 9.7.7.2; docs/reference/transport.md#credit-codes, "
    "docs/reference/transport.md#credits-limit",
    is_wrong=False,
)
SCATTERED = About("a response for several SGEs", SGE_LIST)
_BEHIND_WRAP = About(
    "a response behind the PSN wrap", "IBA 9.7.1; docs/reference/transport.md#psn-order", False
)
_RESPONSE = About(
    "a right response", "IBA 9.7.6; docs/reference/transport.md#responses", is_wrong=False
)
