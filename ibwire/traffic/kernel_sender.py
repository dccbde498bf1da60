"""Frames that the kernel makes itself: a BPF program numbers copies of a few templates.

The kernel can run an XDP program on frames that nobody has received, and do with them what
the program says, here: send them on an interface. No packet buffer of the network stack is
made, and nothing crosses the border of user space; this is three times as fast as sendmmsg
(reference/sending#live-frames). The program goes through the templates in turn and writes
into each the next PSN and the ICRC that fits it. An ICRC is affine: what it changes by
depends only on which PSN bits change, and stands in three tables of 256 words for each
template.

Needs Linux 5.18, a driver that sends such frames (of a veth: whose peer has NAPI, which GRO
turns on), and frames well below a page.

Source: Documentation/bpf/bpf_prog_run.rst, linux/bpf.h.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from struct import Struct
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.traffic import bpf
from ibwire.traffic.bpf import (
    FP,
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    Helper,
    Jump,
    Operation,
    Size,
)
from ibwire.traffic.safety import injectable


class Template(Protocol):
    """One packet of a cycle."""

    @property
    def frame(self) -> bytes:
        """With the PSN of its first use, and the ICRC that fits it."""
        ...

    @property
    def psn_at(self) -> int:
        """Where its three bytes of PSN are."""
        ...

    @property
    def icrc_at(self) -> int:
        """Where its four bytes of ICRC are."""
        ...

    @property
    def psn_step(self) -> int:
        """By how much its PSN grows from one cycle to the next."""
        ...

    @property
    def tables(self) -> npt.NDArray[np.uint32]:
        """(3, 256): what the ICRC, as the little-endian number of its bytes, changes by for the
        bits that change in each byte of the PSN; XOR of the three."""
        ...


class LiveFrames(Closing):
    """Sends a cycle of templates on an interface for ever, numbered by the kernel.

    certain: also where this machine's default route lies. Raises `LinkError` for an interface
    that is not fit for test traffic, when the kernel cannot do it or this user may not, and
    for a frame that is too long.
    """

    keeps_times = False
    """Each call takes the kernel some 20 ms, so that pauses would be followed by floods."""

    BATCH = 64
    """Frames that the kernel hands to the driver at once: the ring of a veth lost a tenth of
    256 (reference/sending#live-frames)."""

    LARGEST = 1 << 21
    """Frames of one system call, about a second. Making it ready takes the kernel some 20 ms; a
    signal ends it early."""

    LONGEST = 3400
    """Bytes of a frame: it shares a page with what the kernel keeps about it
    (reference/sending#live-frame-size)."""

    def __init__(self, name: str, templates: Sequence[Template], *, certain: bool = False) -> None:
        self.interface = injectable(name, certain=certain)
        """As it was at the beginning."""
        self.sent = 0
        """Frames that the program has handed over; the driver may have dropped some."""
        self.waits: Counter[str] = Counter()
        """Nothing ever waits here: what a driver has no room for is lost."""
        lengths = [len(each.frame) for each in templates]
        longest = min(self.LONGEST, self.interface.mtu + _ETHERNET_SIZE)
        if not lengths:
            raise LinkError(name, "no templates")
        if max(lengths) > longest:
            raise LinkError(
                name, f"a frame of {max(lengths)} bytes; live frames have {longest} at most here"
            )
        self._lengths = np.array(lengths)
        self._frame = np.zeros(max(lengths), np.uint8)
        capacity = len(self._frame)
        with ExitStack() as opened:
            self._counters = bpf.ArrayMap(name, _COUNTERS.size, 1)
            opened.callback(self._counters.close)
            elements = bpf.ArrayMap(name, _FRAME_AT + capacity, len(templates))
            opened.callback(elements.close)
            for number, each in enumerate(templates):
                elements[number] = _element(each, capacity)
            self._program = bpf.XDPProgram(
                name,
                _program(
                    self._counters.descriptor, elements.descriptor, lengths, self.interface.index
                ),
            )
            opened.callback(self._program.close)
            self._closing = opened.pop_all()

    @property
    def name(self) -> str:
        """The interface."""
        return self.interface.name

    def next(self, most: int) -> npt.NDArray[np.int64]:
        """Lengths of the next frames."""
        count = min(most, self.LARGEST)
        if len(self._lengths) == 1:
            return np.broadcast_to(self._lengths, count)
        return self._lengths[(self.sent + np.arange(count)) % len(self._lengths)]

    def send(self, count: int) -> int:
        """Send the next frames; how many, fewer only when a signal came.

        Raises `LinkError` when the kernel has no room for frames, or cannot do this.
        """
        code = self._program.run_live(self._frame, count, self.BATCH)
        after, _, _ = _COUNTERS.unpack(self._counters[0])
        taken = after - self.sent
        self.sent = after
        if code in (errno.EINVAL, errno.E2BIG) and not after:
            raise LinkError(self.name, "this kernel has no live frames: that needs Linux 5.18")
        if code not in (0, errno.EINTR):
            raise LinkError(self.name, f"live frames: {os.strerror(code)}; {after} were sent")
        return int(taken)

    def wait(self) -> None:
        """There is always room."""

    def close(self) -> None:
        """Take the program out of the kernel."""
        self._closing.close()


def _element(template: Template, room: int) -> bytes:
    """What the program knows about a template."""
    frame, psn_at, icrc_at = template.frame, template.psn_at, template.icrc_at
    first = int.from_bytes(frame[psn_at : psn_at + 3], "big")
    icrc = int.from_bytes(frame[icrc_at : icrc_at + 4], "little")
    step = template.psn_step & 0xFFFFFF
    head = _ELEMENT.pack(len(frame), first, step, psn_at, icrc_at, icrc)
    tables = np.ascontiguousarray(template.tables, np.uint32).tobytes()
    assert len(head + tables) == _FRAME_AT
    return head + tables + frame + bytes(room - len(frame))


def _program(counters: int, elements: int, lengths: Sequence[int], index: int) -> bytes:
    """Number the frame that is next and send it.

    counters: map with those of `_COUNTERS`. elements: map with the templates. lengths: of the
    templates; the program is given frames that have room for the longest. index: of the interface.
    """
    word, double = Size.WORD, Size.DOUBLE
    do, with_register = bpf.value, bpf.register
    longest = max(lengths)
    # Never happens, but the kernel wants to see that it cannot.
    dropped = do(Operation.MOV, R0, _XDP_DROP) + bpf.leave()
    # R6: the frame; R7: the template; R8: which it is; R9: its cycle, then its PSN.
    which = (
        with_register(Operation.MOV, R6, R1)
        + bpf.map_memory(R7, counters)
        + bpf.load(double, R1, R7, _SENT_AT)
        + do(Operation.ADD, R1, 1)
        + bpf.store(double, R7, _SENT_AT, R1)
        + bpf.load(double, R8, R7, _SLOT_AT)
        + bpf.load(double, R9, R7, _CYCLE_AT)
        + bpf.store(word, FP, -4, R8)
        + do(Operation.ADD, R8, 1)
        + bpf.jump(Jump.NE, R8, len(lengths), 4)
        + do(Operation.MOV, R8, 0)
        + with_register(Operation.MOV, R1, R9)
        + do(Operation.ADD, R1, 1)
        + bpf.store(double, R7, _CYCLE_AT, R1)
        + bpf.store(double, R7, _SLOT_AT, R8)
        + bpf.map_itself(R1, elements)
        + with_register(Operation.MOV, R2, FP)
        + do(Operation.ADD, R2, -4)
        + bpf.call(Helper.MAP_LOOKUP_ELEM)
        + bpf.jump(Jump.NE, R0, 0, 2)
        + dropped
        + with_register(Operation.MOV, R7, R0)
    )
    numbered = (
        # The PSN, in the lower 24 bits, and which of them are not those of the first use.
        bpf.load(word, R1, R7, _STEP_AT)
        + with_register(Operation.MUL, R9, R1)
        + bpf.load(word, R1, R7, _FIRST_AT)
        + with_register(Operation.ADD, R9, R1)
        + with_register(Operation.MOV, R2, R9)
        + with_register(Operation.XOR, R2, R1)
        + bpf.load(word, R3, R7, _ICRC_AT)
        + b"".join(
            with_register(Operation.MOV, R4, R2)
            + do(Operation.RSH, R4, shift)
            + do(Operation.AND, R4, 0xFF)
            + do(Operation.LSH, R4, 2)
            + with_register(Operation.ADD, R4, R7)
            + bpf.load(word, R5, R4, _ELEMENT.size + 1024 * table)
            + with_register(Operation.XOR, R3, R5)
            for table, shift in enumerate((16, 8, 0))
        )
    )
    # Into the template: only one program at a time uses it, and what is written once more for
    # every frame costs less than a further call for each number.
    for place, number, order in ((_PSN_AT_AT, R9, (2, 1, 0)), (_ICRC_AT_AT, R3, (0, 1, 2, 3))):
        numbered += (
            bpf.load(word, R4, R7, place)
            + bpf.jump(Jump.LE, R4, longest - len(order), 2)
            + dropped
            + with_register(Operation.ADD, R4, R7)
            + b"".join(
                bpf.store(Size.BYTE, R4, _FRAME_AT + at, number) + do(Operation.RSH, number, 8)
                for at in order
            )
        )
    length = (
        bpf.load(word, R8, R7, _LENGTH_AT)
        + bpf.jump(Jump.LE, R8, longest, 2)
        + dropped
        + bpf.jump(Jump.NE, R8, 0, 2)
        + dropped
    )
    shortened = (
        with_register(Operation.MOV, R1, R6)
        + with_register(Operation.MOV, R2, R8)
        + do(Operation.SUB, R2, longest)
        + bpf.call(Helper.XDP_ADJUST_TAIL)
    )
    # All of it: the page may be one that the kernel has used before, and whoever had it may
    # have changed it.
    written = (
        with_register(Operation.MOV, R1, R6)
        + do(Operation.MOV, R2, 0)
        + with_register(Operation.MOV, R3, R7)
        + do(Operation.ADD, R3, _FRAME_AT)
        + with_register(Operation.MOV, R4, R8)
        + bpf.call(Helper.XDP_STORE_BYTES)
    )
    sent = (
        do(Operation.MOV, R1, index)
        + do(Operation.MOV, R2, 0)
        + bpf.call(Helper.REDIRECT)
        + bpf.leave()
    )
    is_shortened = min(lengths) < longest
    return which + numbered + length + (shortened if is_shortened else b"") + written + sent


_COUNTERS = Struct("=3Q")
"""Frames that were handed over; the next one's template, and its cycle."""
_SENT_AT, _SLOT_AT, _CYCLE_AT = range(0, _COUNTERS.size, 8)
_ELEMENT = Struct("=6I")
"""Length, first PSN, step, place of the PSN, place of the ICRC, ICRC of the first use; then the
tables, then the frame."""
_LENGTH_AT, _FIRST_AT, _STEP_AT, _PSN_AT_AT, _ICRC_AT_AT, _ICRC_AT = range(0, _ELEMENT.size, 4)
_FRAME_AT = _ELEMENT.size + 3 * 256 * 4
_ETHERNET_SIZE = 14
_XDP_DROP = 1
