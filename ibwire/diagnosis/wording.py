"""Words of a story: causes, NAK codes, times, numbers of packets and PSNs as text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from ibwire.diagnosis.causes import Reason
from ibwire_layers.opcodes import OpCode, name_of
from ibwire_layers.syndrome import NakCode

ONLY_OF_UC = frozenset(
    {
        OpCode.UC_SEND_ONLY,
        OpCode.UC_SEND_ONLY_WITH_IMMEDIATE,
        OpCode.UC_RDMA_WRITE_ONLY,
        OpCode.UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    }
)
"""Messages of one packet, which UC delivers in any order and as often as they arrive."""


class Phrase(NamedTuple):
    """The text of a cause. `{r}` is the requester, `{s}` the responder, `{n}` a number of
    packets with its noun, `{w}` `was` or `were`, `{it}` `it` or `them`, `{a}` a number of
    responses, `{k}` of RNR NAKs, `{t}` how often, `{least}` `at least ` where the
    number may be too low."""

    title: str
    """In the title of an incident."""
    verdict: str
    """In the verdict; a sentence."""


PHRASES = {
    Reason.REFUSED: Phrase("{s} refuses a request of {r}, which ends the connection", ""),
    Reason.GIVEN_UP: Phrase("{r} gives up", ""),
    Reason.NO_BUFFER: Phrase(
        "{s} has no receive buffer ({k})",
        "{s} had no receive buffer posted when messages of {r} arrived ({k}): its program posts "
        "receives too late, or too few of them; the network is not the cause.",
    ),
    Reason.LOST_BEFORE: Phrase(
        "{least}{n} from {r} to {s} lost before this point",
        "The network lost {least}{n} from {r} to {s} between {r} and this point.",
    ),
    Reason.LOST_AFTER: Phrase(
        "{n} from {r} to {s} lost, damaged or delayed after this point",
        "at least {n} from {r} did not reach {s} in time: lost, damaged or delayed between this "
        "point and {s}, by the network or by {s} itself.",
    ),
    Reason.LOST_OR_DISCARDED: Phrase(
        "{n} from {r} to {s} lost, damaged or delayed after this point, or discarded by {s}",
        "{n} from {r} passed here and {w} not accepted: lost, damaged or delayed between this "
        "point and {s}, or discarded by {s} because an earlier packet was missing (go-back-N).",
    ),
    Reason.DAMAGED: Phrase(
        "{n} from {r} to {s} damaged before this point",
        "{n} from {r} to {s} arrived here damaged (wrong ICRC): look at cables, transceivers and "
        "memory of the switches between {r} and this point.",
    ),
    Reason.REORDERED_BEFORE: Phrase(
        "{n} from {r} to {s} reordered before this point",
        "The network delivers packets out of order: {n} from {r} to {s} {w} reordered between "
        "{r} and this point (several paths?), which most responders treat as loss.",
    ),
    Reason.REORDERED_AFTER: Phrase(
        "{n} from {r} to {s} reordered after this point",
        "{n} from {r} to {s} {w} not lost but reordered between this point and {s} (several "
        "paths?); the responder treats that as loss.",
    ),
    Reason.RESPONSE_LOST_BEFORE: Phrase(
        "{least}{a} of {s} lost before this point",
        "The network lost {least}{a} of {s} between {s} and this point.",
    ),
    Reason.RESPONSE_MISSING: Phrase(
        "{a} of {s} lost or delayed before this point",
        "At least {a} of {s} {w} lost or delayed between {s} and this point.",
    ),
    Reason.RESPONSE_LOST_AFTER: Phrase(
        "{a} of {s} lost, damaged or delayed after this point",
        "at least {a} of {s} {w} lost, damaged or delayed between this point and {r}, "
        "by the network or by {r} itself.",
    ),
    Reason.RESPONSE_OR_LATE: Phrase(
        "{a} of {s} lost, damaged or delayed after this point, or too late for {r}",
        "{r} retransmitted {t} what {s} had responded to: a response was lost, damaged or delayed "
        "between this point and {r}, or {r} had not waited for it.",
    ),
    Reason.RESPONSE_OR_DISCARDED: Phrase(
        "{a} of {s} lost, damaged or delayed after this point, or discarded by {r}",
        "{a} of {s} passed here and {w} not accepted: lost, damaged or delayed between this point "
        "and {r}, or discarded by {r} because an earlier response was missing.",
    ),
    Reason.RESPONSE_DAMAGED: Phrase(
        "{a} of {s} damaged before this point",
        "{a} of {s} arrived here damaged (wrong ICRC): look at cables, transceivers and "
        "memory of the switches between {s} and this point.",
    ),
    Reason.RESPONSE_REORDERED: Phrase(
        "{a} of {s} reordered before this point",
        "{a} of {s} {w} reordered between {s} and this point, which {r} treats as loss.",
    ),
    Reason.EITHER_LOST_AFTER: Phrase(
        "a request of {r} or its response lost, damaged or delayed between this point and {s}",
        "Between this point and {s} a request of {r} or its response was lost, damaged or delayed "
        "{t}; the capture does not show which of them.",
    ),
    Reason.AFTERMATH: Phrase("{r} retransmits what was lost in the previous incident", ""),
    Reason.OLD_NAK: Phrase(
        "{r} retransmits for an outdated NAK",
        "{r} retransmitted {t} for an outdated NAK: the packet it asks for had arrived meanwhile.",
    ),
    Reason.LATE: Phrase(
        "{n} from {r} to {s} late at this point",
        "{n} from {r} to {s} arrived here after packets that were sent later: reordered between "
        "{r} and this point, or lost there and retransmitted; the capture does not show which.",
    ),
    Reason.REPEATED: Phrase(
        "{n} from {r} to {s} repeated",
        "{n} from {r} to {s} arrived here again: duplicated by the network or by the capture, "
        "late, or retransmitted; the capture does not show which.",
    ),
    Reason.STALE_TIMER: Phrase(
        "{r} retransmits without need",
        "{r} retransmitted {t} although nothing was lost: its ACK timer expired before {s} could "
        "respond. Linux rxe does so now and then, because it does not stop old timers; otherwise "
        "{s} was slow or the timeout is too short. Harmless.",
    ),
    Reason.NOT_CAPTURED: Phrase(
        "{n} from {r} to {s} missing in the capture",
        "{n} from {r} to {s} {w} acknowledged but not captured: the capture missed them, "
        "the network did not.",
    ),
    Reason.RESPONSE_NOT_CAPTURED: Phrase(
        "{a} of {s} missing in the capture",
        "The capture missed {a} of {s}, the network did not lose {it}: {r} went on without "
        "retransmitting the request.",
    ),
    Reason.NOT_SEEN: Phrase(
        "{n} from {r} to {s} missing here",
        "{n} from {r} to {s} did not arrive here and {w} not retransmitted before the capture "
        "ends: lost between {r} and this point, or missed by the capture.",
    ),
    Reason.RESPONSE_NOT_SEEN: Phrase(
        "{a} of {s} missing here",
        "{a} of {s} did not arrive here, and {r} had not retransmitted the request when the "
        "capture ended: lost between {s} and this point, or missed by the capture.",
    ),
    Reason.NOT_IN_CAPTURE: Phrase(
        "{s} did not get {n} from {r}, and the capture does not show where {it} {w} lost",
        "{s} did not get {n} from {r} in order. What {r} had sent first is not in the capture, so "
        "it does not show where {it} {w} lost or delayed.",
    ),
    Reason.UNCLEAR: Phrase(
        "{r} retransmits, and the capture does not show why",
        "{r} retransmitted {t} for reasons that this capture does not show.",
    ),
}


class NakText(NamedTuple):
    """What a NAK that ends a connection means."""

    name: str
    meaning: str
    look: str
    """What the user should check."""
    status: str
    """How the requester's work request ends."""


REFUSALS = {
    # Which request gets which NAK: IBA 9.7.5.2.4, 9.9.3, and the sources of rxe, rdmavt and mlx5.
    NakCode.INVALID_REQUEST: NakText(
        "invalid request",
        "this request is not allowed",
        "the operations that {s}'s queue pair allows, the length against path MTU and receive "
        "buffer, the order of opcodes, 8-byte alignment of atomics, and how many READs and "
        "atomics are outstanding",
        "IBV_WC_REM_INV_REQ_ERR",
    ),
    NakCode.REMOTE_ACCESS_ERROR: NakText(
        "remote access error",
        "the R_Key, the address range or the access permission does not fit this request",
        "the R_Key (still registered? of the same protection domain?), whether the range lies "
        "inside the memory region, and its access flags",
        "IBV_WC_REM_ACCESS_ERR",
    ),
    NakCode.REMOTE_OPERATIONAL_ERROR: NakText(
        "remote operational error",
        "{s} could not execute it because of a local error",
        "{s}'s receive buffers: a SEND that is longer than the buffer posted for it (Linux rxe "
        "sends this NAK then), or a buffer whose L_Key or address is wrong",
        "IBV_WC_REM_OP_ERR",
    ),
    NakCode.INVALID_RD_REQUEST: NakText(
        "invalid RD request",
        "the request does not fit the reliable datagram channel",
        "the Q_Key and the RD domain",
        "IBV_WC_REM_INV_RD_REQ_ERR",
    ),
}

AFTER = "lost, damaged or delayed after this point"
"""What may have happened to a packet that passed here and is missing at its receiver: a capture
does not show which."""

VERBS = {
    "RDMA_WRITE": "WRITE",
    "RDMA_READ": "READ",
    "COMPARE_SWAP": "COMPARE SWAP",
    "FETCH_ADD": "FETCH ADD",
    "ATOMIC_WRITE": "ATOMIC WRITE",
}


@cache
def opcode(code: int) -> str:
    """An opcode without its transport: `WRITE MIDDLE`."""
    name = name_of(code)
    for prefix in ("RC_", "UC_", "UD_", "RD_", "XRC_"):
        name = name.removeprefix(prefix)
    return name.removeprefix("RDMA_").replace("_", " ")


def duration(ns: int) -> str:
    """A time span with three significant digits."""
    for size, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")):
        if abs(ns) >= size:
            value = ns / size
            digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{ns} ns"


def span(values: Iterable[int]) -> str:
    """The shortest and the longest of some times."""
    low, high = min(values := list(values)), max(values)
    return (
        duration(low) if duration(low) == duration(high) else f"{duration(low)} to {duration(high)}"
    )


def amount(ns_or_bytes: int) -> str:
    """A number of bytes."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (10 << 10, "KiB")):
        if ns_or_bytes >= size:
            base = 1 << 10 if unit == "KiB" else size
            return f"{ns_or_bytes / base:.1f} {unit}"
    return f"{ns_or_bytes:,} bytes" if ns_or_bytes != 1 else "1 byte"


def count(number: int, noun: str, nouns: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def times(number: int) -> str:
    """How often."""
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def psns(first: int, last: int) -> str:
    """One PSN or a range."""
    return f"PSN {first}" if first == last else f"PSNs {first}-{last}"


def packets(numbers: Iterable[int], most: int = 6) -> str:
    """Numbers of packets, runs joined: `#20`, `#21-27`, `#40, #46 and 8 more`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"#{low}" if low == high else f"#{low}-{high}" for low, high in runs]
    if len(texts) <= most:
        return ", ".join(texts)
    left = sum(high - low + 1 for low, high in runs[most - 1 :])
    return f"{', '.join(texts[: most - 1])} and {left:,} more"


def listed(parts: Iterable[str]) -> str:
    """Parts of a sentence, joined."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]
