"""Frames built in the kernel: a BPF program numbers copies of a few templates.

The kernel can run an XDP program on frames that were not received, and process them as
the program decides, here: send them on an interface. No packet buffer of the network stack is
made, and nothing crosses the border of user space; this is three times as fast as sendmmsg
(reference/sending#live-frames). The program goes through the templates in turn and writes
into each the next PSN and the ICRC that fits it. An ICRC is affine: its change depends only
on which PSN bits change, and is in three tables of 256 words for each template.

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

import numpy as np
import numpy.typing as npt

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.traffic import bpf
from ibwire.traffic.blocks import Template
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
from ibwire.traffic.safety import injectable_interface


class KernelSender(Closing):
    """Sends a cycle of templates on an interface, numbered by the kernel.

    allow_default_route: also on the interface of the default route. Raises `LinkError` for an
    interface that is not fit for test traffic, when the kernel or the user's rights do not
    allow it, and for a frame that is too long.
    """

    keeps_times = False
    """Each call takes some 20 ms in the kernel, so it cannot follow a pace."""

    BATCH = 64
    """Frames that the kernel hands to the driver at once: the ring of a veth lost a tenth of
    256 (reference/sending#live-frames)."""

    LARGEST = 1 << 21
    """Frames of one system call, about a second of them. Its setup takes some 20 ms; a signal
    ends it early."""

    LONGEST = 3400
    """Bytes of a frame: it shares a page with what the kernel keeps about it
    (reference/sending#live-frame-size)."""

    def __init__(
        self, name: str, templates: Sequence[Template], *, allow_default_route: bool = False
    ) -> None:
        self.interface = injectable_interface(name, allow_default_route=allow_default_route)
        """The interface when the sender was opened."""
        self.sent = 0
        """Frames passed to the driver, which may have dropped some."""
        self.waits: Counter[str] = Counter()
        """Always empty: frames for which the driver has no room are lost."""
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
        """Send the next frames; returns how many, fewer only after a signal.

        Raises `LinkError` when the kernel has no memory for frames, or lacks live frames.
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
        """Return at once: there is always room."""

    def close(self) -> None:
        """Unload the program."""
        self._closing.close()


def _element(template: Template, room: int) -> bytes:
    """A template as an element of the map that the program reads."""
    frame, psn_at, icrc_at = template.frame, template.psn_at, template.icrc_at
    first = int.from_bytes(frame[psn_at : psn_at + 3], "big")
    icrc = int.from_bytes(frame[icrc_at : icrc_at + 4], "little")
    step = template.psn_step & 0xFFFFFF
    head = _ELEMENT.pack(len(frame), first, step, psn_at, icrc_at, icrc)
    tables = np.ascontiguousarray(template.tables, np.uint32).tobytes()
    assert len(head + tables) == _FRAME_AT
    return head + tables + frame + bytes(room - len(frame))


def _program(counters: int, elements: int, lengths: Sequence[int], index: int) -> bytes:
    """Assemble the program that numbers the next frame and sends it.

    counters: map with those of `_COUNTERS`. elements: map with the templates. lengths: of the
    templates; the program is given frames with room for the longest. index: of the interface.
    """
    longest = max(lengths)
    code = _next_template(counters, elements, len(lengths)) + _psn_and_icrc()
    code += _into_template(_PSN_AT_AT, R9, order=(2, 1, 0), longest=longest)
    code += _into_template(_ICRC_AT_AT, R3, order=(0, 1, 2, 3), longest=longest)
    code += _frame_length(longest)
    if min(lengths) < longest:
        code += _shorten(longest)
    return code + _write_frame() + _send_on(index)


def _next_template(counters: int, elements: int, count: int) -> bytes:
    """Count the frame and look up its template.

    Afterwards R6 is the frame, R7 the template, R8 the number of the next one, R9 the cycle.
    """
    double = Size.DOUBLE
    return (
        bpf.register(Operation.MOV, R6, R1)
        + bpf.map_memory(R7, counters)
        + bpf.load(double, R1, R7, _SENT_AT)
        + bpf.value(Operation.ADD, R1, 1)
        + bpf.store(double, R7, _SENT_AT, R1)
        + bpf.load(double, R8, R7, _SLOT_AT)
        + bpf.load(double, R9, R7, _CYCLE_AT)
        + bpf.store(Size.WORD, FP, -4, R8)
        + bpf.value(Operation.ADD, R8, 1)
        + bpf.jump(Jump.NE, R8, count, 4)
        + bpf.value(Operation.MOV, R8, 0)
        + bpf.register(Operation.MOV, R1, R9)
        + bpf.value(Operation.ADD, R1, 1)
        + bpf.store(double, R7, _CYCLE_AT, R1)
        + bpf.store(double, R7, _SLOT_AT, R8)
        + bpf.map_itself(R1, elements)
        + bpf.register(Operation.MOV, R2, FP)
        + bpf.value(Operation.ADD, R2, -4)
        + bpf.call(Helper.MAP_LOOKUP_ELEM)
        + bpf.jump(Jump.NE, R0, 0, 2)
        + _DROP
        + bpf.register(Operation.MOV, R7, R0)
    )


def _psn_and_icrc() -> bytes:
    """Compute the PSN, the lower 24 bits of R9, and the ICRC, R3."""
    word = Size.WORD
    return (
        bpf.load(word, R1, R7, _STEP_AT)
        + bpf.register(Operation.MUL, R9, R1)
        + bpf.load(word, R1, R7, _FIRST_AT)
        + bpf.register(Operation.ADD, R9, R1)
        # R2: the bits in which the PSN differs from that of the first use.
        + bpf.register(Operation.MOV, R2, R9)
        + bpf.register(Operation.XOR, R2, R1)
        + bpf.load(word, R3, R7, _ICRC_AT)
        + b"".join(
            bpf.register(Operation.MOV, R4, R2)
            + bpf.value(Operation.RSH, R4, shift)
            + bpf.value(Operation.AND, R4, 0xFF)
            + bpf.value(Operation.LSH, R4, 2)
            + bpf.register(Operation.ADD, R4, R7)
            + bpf.load(word, R5, R4, _ELEMENT.size + 1024 * table)
            + bpf.register(Operation.XOR, R3, R5)
            for table, shift in enumerate((16, 8, 0))
        )
    )


def _into_template(place: int, number: int, *, order: Sequence[int], longest: int) -> bytes:
    """Write the bytes of a number into the template, at the offset that it names.

    Only one program at a time uses the template, and writing these bytes again for each frame
    is cheaper than a helper call for each number.
    """
    return (
        bpf.load(Size.WORD, R4, R7, place)
        + bpf.jump(Jump.LE, R4, longest - len(order), 2)
        + _DROP
        + bpf.register(Operation.ADD, R4, R7)
        + b"".join(
            bpf.store(Size.BYTE, R4, _FRAME_AT + at, number) + bpf.value(Operation.RSH, number, 8)
            for at in order
        )
    )


def _frame_length(longest: int) -> bytes:
    """Load the length of the template's frame into R8."""
    return (
        bpf.load(Size.WORD, R8, R7, _LENGTH_AT)
        + bpf.jump(Jump.LE, R8, longest, 2)
        + _DROP
        + bpf.jump(Jump.NE, R8, 0, 2)
        + _DROP
    )


def _shorten(longest: int) -> bytes:
    """Cut the frame to the length R8."""
    return (
        bpf.register(Operation.MOV, R1, R6)
        + bpf.register(Operation.MOV, R2, R8)
        + bpf.value(Operation.SUB, R2, longest)
        + bpf.call(Helper.XDP_ADJUST_TAIL)
    )


def _write_frame() -> bytes:
    """Copy all of the template into the frame.

    The page may have been used before, and its last user may have changed any of its bytes.
    """
    return (
        bpf.register(Operation.MOV, R1, R6)
        + bpf.value(Operation.MOV, R2, 0)
        + bpf.register(Operation.MOV, R3, R7)
        + bpf.value(Operation.ADD, R3, _FRAME_AT)
        + bpf.register(Operation.MOV, R4, R8)
        + bpf.call(Helper.XDP_STORE_BYTES)
    )


def _send_on(index: int) -> bytes:
    """Send the frame on an interface."""
    return (
        bpf.value(Operation.MOV, R1, index)
        + bpf.value(Operation.MOV, R2, 0)
        + bpf.call(Helper.REDIRECT)
        + bpf.leave()
    )


_XDP_DROP = 1
_DROP = bpf.value(Operation.MOV, R0, _XDP_DROP) + bpf.leave()
"""Drop the frame. This never happens, but the kernel's verifier requires the check."""
_COUNTERS = Struct("=3Q")
"""Frames that were handed over; the next one's template, and its cycle."""
_SENT_AT, _SLOT_AT, _CYCLE_AT = range(0, _COUNTERS.size, 8)
_ELEMENT = Struct("=6I")
"""Length, first PSN, step, offset of the PSN, offset of the ICRC, ICRC of the first use; then the
tables, then the frame."""
_LENGTH_AT, _FIRST_AT, _STEP_AT, _PSN_AT_AT, _ICRC_AT_AT, _ICRC_AT = range(0, _ELEMENT.size, 4)
_FRAME_AT = _ELEMENT.size + 3 * 256 * 4
_ETHERNET_SIZE = 14
