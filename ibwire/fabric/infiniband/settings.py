"""What links and switches are like, as far as no table of a subnet manager says it."""

from __future__ import annotations

from dataclasses import dataclass

from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, NS, US, Time
from ibwire.fabric.infiniband.credits import LARGEST_GRANT
from ibwire.fabric.llr import LLR

UPDATE_SYMBOLS = 65_536
"""Symbol times after which a limit is sent again (IBA 7.9.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSettings:
    """Settings of all links and switches of a fabric."""

    buffer: int = 256
    """Blocks of 64 bytes for each data lane of a port."""
    delay: Time = 10 * NS
    """Of each link: 2 m of cable."""
    latency: Time = 130 * NS
    """From the first bit in to the first bit out of a switch that has nothing else to send."""
    agent_delay: Time = 10 * US
    """From the end of a request for an agent of a node to its response."""
    update_symbols: int = UPDATE_SYMBOLS
    """Symbol times between flow-control packets that say nothing new; 0 for none."""
    update_step: int | None = None
    """Blocks by which a limit grows before it is sent; by default a quarter of the buffer."""
    adaptive: bool = False
    """Whether switches choose, of the ports with as many hops to the destination, one with the
    shortest queue."""
    retry: LLR | None = None
    """Link-level retry of all links, whose switches then wait for whole packets."""
    defer_limit: Time = 10 * MS
    """For how long an interrupted link stays in ActiveDefer before it goes Down."""

    def __post_init__(self) -> None:
        if not 2 <= self.buffer <= LARGEST_GRANT:
            raise EncodeError("buffer", self.buffer, f"2 to {LARGEST_GRANT} blocks of 64 bytes")
        if self.delay < 0:
            raise EncodeError("delay", self.delay, "0 or above")
        if self.latency < 0:
            raise EncodeError("latency", self.latency, "0 or above")
        if self.agent_delay < 0:
            raise EncodeError("agent_delay", self.agent_delay, "0 or above")
        if self.update_symbols < 0:
            raise EncodeError("update_symbols", self.update_symbols, "0 or above")
        if self.defer_limit < 0:
            raise EncodeError("defer_limit", self.defer_limit, "0 or above")
        if self.update_step is not None and not 1 <= self.update_step <= self.buffer:
            raise EncodeError("update_step", self.update_step, f"1 to {self.buffer}")

    @property
    def step(self) -> int:
        """Blocks by which a limit grows before it is sent."""
        return self.update_step or max(1, self.buffer // 4)
