"""How the requests of one end stood when the capture ended, as far as the capture shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Trouble(StrEnum):
    """What was open when the capture ended; each names the evidence."""

    NAK = "nak"
    """A NAK asked for a retransmission that has not completed."""
    RNR = "rnr_nak"
    """An RNR NAK, and the refused request has not been acknowledged since."""
    RETRANSMITTED = "retransmitted"
    """Retransmitted requests were not acknowledged."""
    REQUESTS_MISSING = "requests_missing"
    """Requests were lost before this point, and had not been retransmitted."""
    REORDERED = "reordered"
    """Requests arrived out of order, and no response has followed."""
    RESPONSES_MISSING = "responses_missing"
    """Responses to a READ or atomic were missing."""
    DAMAGED = "damaged"
    """A request, or the response to one, was damaged, and nothing has replaced it."""
    SILENCE = "silence"
    """A request was unanswered for longer than a requester waits."""


class OpenRequest(NamedTuple):
    """A message that was not acknowledged when the capture ended."""

    verb: str
    number: int
    """Of its first packet."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The requests of one end when the capture ended."""

    open_messages: int = 0
    """Messages that were not acknowledged; unknown, and 0, without the other direction."""
    trouble: Trouble | None = None
    """Why they may never be; `None` for requests that were simply in flight."""
    silence_ns: int = 0
    """From the last request or response to the end of the capture."""
    first_open: tuple[OpenRequest, ...] = field(default=(), compare=False)
    """The first `NAMED` of the open messages."""


NOTHING_OPEN = Ending()

NAMED = 3
"""Open messages that are named."""
