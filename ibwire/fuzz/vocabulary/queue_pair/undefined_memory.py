"""Which memory of a device is undefined, so that it is not compared."""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.fuzz.case import Post
from ibwire.fuzz.targets.emulated_device import READING, RECEIVES, SENDS, Completion, Emulation

_BYTE_LEN = 1
"""Index of that in a completion behind its status."""

BEFORE_IPV4 = 20
"""Of the 40 bytes before a datagram over IPv4, those before its header (reference/transport#ud)."""


class WithoutMeaning:
    """Buffers of requests that completed in error, what stands before an IPv4 header, and what an
    abandoned message of UC leaves in the receive request that waits again.

    Source: reference/transport#partial-data, #read-undefined, #ud, #uc.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], list[slice]] = {}
        """In the memory of an emulation, by the queue and the begin of the buffer."""
        self._waiting: set[tuple[int, int]] = set()
        """Those of receive requests that have waited while something may have been in them."""

    def clear(self) -> None:
        """Forget all: memory is as at the beginning."""
        self._places.clear()
        self._waiting.clear()

    def note(self, completions: Sequence[Completion], reference: Emulation) -> None:
        """Note what has completed: whose buffers have a meaning, and whose have none."""
        is_datagram = reference.connection.service == "UD" and reference.connection.version == 4
        for queue, number, status, *rest in completions:
            if queue not in (SENDS, RECEIVES):
                continue
            buffer = reference.buffer_of(queue, number)
            if not buffer:
                continue
            place = queue, buffer[0].start
            if status:
                self._places[place] = buffer
            elif is_datagram and queue == RECEIVES:
                self._places[place] = _first(buffer, BEFORE_IPV4)
            elif place in self._waiting:
                self._places[place] = _behind(buffer, rest[_BYTE_LEN])
            else:
                self._places.pop(place, None)

    def note_waiting(self, reference: Emulation) -> None:
        """Note the next receive request of each queue pair of UC, which has no meaning yet."""
        if reference.connection.service != "UC":
            return
        for qp in reference.pairs:
            if qp.receives.waiting and qp.receives.srq is None:
                buffer = reference.buffer_of(RECEIVES, qp.receives.waiting[0].wr_id)
                if buffer:
                    place = RECEIVES, buffer[0].start
                    self._places[place] = buffer
                    self._waiting.add(place)

    def with_undefined(self, memory: bytearray, other: bytearray) -> bytearray:
        """Memory with what has no meaning from another."""
        places = [each for buffer in self._places.values() for each in buffer]
        return _with(memory, places, other)


class Reads:
    """READs and atomics that have not completed: the contents of their buffers are undefined.

    Source: reference/transport#read-undefined.
    """

    def __init__(self, reference: Emulation) -> None:
        self._reference = reference
        self._posted = 0
        self._places: dict[int, list[slice]] = {}
        """In the memory of an emulation, by number of the send request."""

    def add(self, post: Post) -> None:
        """A send request was posted."""
        if post.opcode in READING:
            self._places[self._posted] = self._reference.buffer_of(SENDS, self._posted)
        self._posted += 1

    def complete(self, completions: Sequence[Completion]) -> None:
        """Forget completed work requests, and those before them, which need no completion."""
        for queue, number, status, *_ in completions:
            if queue == SENDS and not status:
                for done in [each for each in self._places if each <= number]:
                    del self._places[done]

    def with_undefined(self, memory: bytearray, other: bytearray) -> bytearray:
        """Memory with what is undefined from another."""
        return _with(memory, [each for place in self._places.values() for each in place], other)


def _first(buffer: Sequence[slice], size: int) -> list[slice]:
    """The first bytes of a buffer."""
    found = []
    for part in buffer:
        length = min(part.stop - part.start, size)
        found.append(slice(part.start, part.start + length))
        size -= length
    return found


def _behind(buffer: Sequence[slice], size: int) -> list[slice]:
    """All but the first bytes of a buffer."""
    found = []
    for part in buffer:
        begin = min(part.start + size, part.stop)
        found.append(slice(begin, part.stop))
        size -= begin - part.start
    return found


def _with(memory: bytearray, places: Sequence[slice], other: bytearray) -> bytearray:
    if not places:
        return memory
    memory = bytearray(memory)
    for place in places:
        memory[place] = other[place]
    return memory
