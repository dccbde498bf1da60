"""What the ends of an error scenario sent, completed and hold in memory."""

from __future__ import annotations

from ibwire.base.units import Time
from ibwire.rc.attributes import QPState
from ibwire.rc.work import WCStatus
from ibwire.testing import End, Pair, summaries


def said(pair: Pair, sender: str) -> list[str]:
    return summaries(pair.packets(sender))


def times(pair: Pair, sender: str) -> list[Time]:
    return [each.time for each in pair.log if (each.device, each.event) == (sender, "sent")]


def statuses(pair: Pair) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in pair.a.poll_send_cq()]


def receives(pair: Pair) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in pair.b.poll_recv_cq()]


def states(pair: Pair) -> tuple[QPState, QPState]:
    return pair.a.qp.state, pair.b.qp.state


def pattern(end: End, size: int, seed: int = 1) -> bytes:
    """Bytes of which no two pieces are alike, at the start of an end's memory."""
    data = b"".join((seed << 24 | n).to_bytes(4) for n in range(-(-size // 4)))[:size]
    end.write(0, data)
    return data


def memory(end: End, size: int, offset: int = 0) -> bytes:
    return end.read(offset, size)


def number(end: End, offset: int = 0) -> int:
    """A 64-bit number in little-endian order (reference/transport#atomic-operands)."""
    return int.from_bytes(memory(end, 8, offset), "little")
