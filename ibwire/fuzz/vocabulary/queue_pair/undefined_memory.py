"""Which memory of a device is undefined: what it reads and has not all got."""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.fuzz.case import Post
from ibwire.fuzz.targets.emulated_device import REGIONS, SENDS, Completion, send_request
from ibwire.rc.work import WROpcode

_NAMES = list(REGIONS)
START = sum(size for size, _ in list(REGIONS.values())[: _NAMES.index("outbox")])
"""Where its outbox is in the memory of an emulation."""

READING = (
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_CMP_AND_SWP,
    WROpcode.ATOMIC_FETCH_AND_ADD,
)


class Reads:
    """READs and atomics that have not completed: the contents of their buffers are undefined.

    Source: reference/transport#read-undefined.
    """

    def __init__(self) -> None:
        self._posted = 0
        self._places: dict[int, slice] = {}
        """In the memory of an emulation, by number of the send request."""

    def add(self, post: Post) -> None:
        """A send request was posted."""
        if post.opcode in READING:
            for sge in send_request(post, self._posted, START, 0).sg_list:
                self._places[self._posted] = slice(sge.addr, sge.addr + sge.length)
        self._posted += 1

    def complete(self, completions: Sequence[Completion]) -> None:
        """Forget completed work requests, and those before them, which need no completion."""
        for queue, number, status, *_ in completions:
            if queue == SENDS and not status:
                for done in [each for each in self._places if each <= number]:
                    del self._places[done]

    def with_undefined(self, memory: bytearray, other: bytearray) -> bytearray:
        """Memory with what is undefined from another."""
        if not self._places:
            return memory
        memory = bytearray(memory)
        for place in self._places.values():
            memory[place] = other[place]
        return memory
