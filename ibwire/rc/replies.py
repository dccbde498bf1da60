"""Responses that wait to be sent, and the requests kept for duplicates.

Responses are sent in the order of their PSNs. The response to a duplicate takes its place
in that order, so that a requester which goes back gets the responses in the order it needs.

Source: IBA 9.7.5.1.4; rxe_resp.c `duplicate_request`, qib_rc.c `qib_rc_rcv_error`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ibwire.rc.memory import ProtectionDomain
from ibwire.rc.packet import TransportPacket
from ibwire_layers.psn import MASK, distance


class Resource:
    """An executed READ, atomic, FLUSH or ATOMIC WRITE, kept for duplicates."""

    __slots__ = (
        "answered",
        "count",
        "form",
        "length",
        "narrowed",
        "original",
        "pd",
        "psn",
        "rkey",
        "va",
    )

    def __init__(self, packet: TransportPacket, count: int, pd: ProtectionDomain) -> None:
        self.form = packet.form
        self.psn = packet.psn
        self.count = count
        """PSNs of its response."""
        self.va = packet.va
        self.rkey = packet.rkey
        self.length = 0
        self.original = 0
        self.answered = False
        """Whether the whole response has been sent once."""
        self.pd = pd
        self.narrowed = 0
        """First position at which a replay may begin (`habits.rxe.accepts_replay`)."""


class Reply:
    """A response that waits: an acknowledgement, or the response to a `Resource`."""

    __slots__ = ("first", "is_due", "length", "msn", "position", "psn", "resource", "syndrome")

    def __init__(
        self,
        psn: int,
        msn: int,
        syndrome: int | None,
        resource: Resource | None = None,
        *,
        is_due: bool = True,
    ) -> None:
        self.psn = psn
        self.msn = msn
        """Messages that were completed when it was made: others may be before it leaves
        (reference/transport#msn)."""
        self.syndrome = syndrome
        """NAK or RNR NAK; `None` for an ACK, which gets its credits when it is sent."""
        self.is_due = is_due
        """Whether it must be sent, as but for an ACK of a packet without AckReq."""
        self.resource = resource
        self.position = 0
        """Next response packet of a READ."""
        self.first = 0
        """The packet that this response began with."""
        self.length = 0 if resource is None else resource.length
        """End in bytes of a READ: a duplicate may be shorter than the original."""


def put_back(replies: deque[Reply], answer: Reply) -> None:
    """Insert a response in the order of PSNs, or merge it with the one of the same request."""
    for index, waiting in enumerate(replies):
        if waiting.resource is answer.resource:
            answer.length = waiting.length = max(answer.length, waiting.length)
            if answer.position < waiting.position:
                replies[index] = answer
            return
        if distance(waiting.psn, answer.psn) < 0:
            replies.insert(index, answer)
            return
    replies.append(answer)


Accepts = Callable[[Resource, int, int], bool]
"""Whether a part of a READ is replayed: the READ, its first packet and its end in bytes."""


def find_read(
    resources: Iterable[Resource], packet: TransportPacket, mtu: int, accepts: Accepts
) -> tuple[Resource, int, int] | None:
    """The kept READ that a duplicate READ is a part of.

    Returns that READ, the response packet to begin with, and the end in bytes.
    """
    for resource in resources:
        position = (packet.psn - resource.psn) & MASK
        if resource.form is not packet.form or position >= resource.count:
            continue
        done = position * mtu
        if packet.rkey != resource.rkey or packet.va != resource.va + done:
            return None
        end = done + packet.dma_len
        if end > resource.length or not accepts(resource, position, end):
            return None
        return resource, position, end
    return None
