"""A message that is not completed yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Open:
    """A message under way. PSNs are unwrapped."""

    verb: str
    first: int
    last: int
    """The last PSN known to belong to it; of a READ the last that it reserves."""
    is_whole: bool
    """Its last packet has been seen."""
    size: int
    first_number: int
    first_ns: int
    last_number: int
    last_ns: int
    awaits: int = -1
    """For READs and atomics: the PSN of the next response. -1: an ACK will do."""
    dma_len: int = 0
    resent: int = 0
    is_read: bool = False
    has_start: bool = True
    """Its first packet has been seen."""
    is_doubtful: bool = False
    """It was asked for again, and not because it had been refused: nobody knows whether
    responses that were not seen until then had been sent."""

    def is_followed_by(self, psn: int, verb: str) -> bool:
        """Whether a packet that starts no message goes on with this one."""
        return self.last + 1 == psn and not self.is_whole and self.verb == verb
