"""BPF programs: assembled, loaded and run without a compiler or a library.

An instruction is eight bytes: operation, two registers, offset, immediate value. The kernel
verifies a program before it loads it, and reports why it refuses one.

Source: bpf(2), linux/bpf.h, linux/bpf_common.h, Documentation/bpf/bpf_prog_run.rst.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from enum import IntEnum
from struct import Struct

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import LinkError

R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP = range(11)
"""Registers. R0: results; R1 to R5: arguments, lost in calls; R6 to R9: kept in calls; FP: the
frame pointer, below which the stack lies."""


class Helper(IntEnum):
    """Functions of the kernel that a program may call."""

    MAP_LOOKUP_ELEM = 1
    REDIRECT = 23
    XDP_ADJUST_TAIL = 65
    XDP_STORE_BYTES = 190


class Size(IntEnum):
    """Size of a load or a store."""

    WORD = 0x00
    BYTE = 0x10
    DOUBLE = 0x18


class Operation(IntEnum):
    """Arithmetic operation on a destination and an operand."""

    ADD = 0x00
    SUB = 0x10
    MUL = 0x20
    AND = 0x50
    LSH = 0x60
    RSH = 0x70
    XOR = 0xA0
    MOV = 0xB0


class Jump(IntEnum):
    """Condition of a jump, unsigned."""

    NE = 0x50
    LE = 0xB0


def value(operation: Operation, register: int, number: int) -> bytes:
    """64-bit arithmetic with a constant of 32 bits."""
    return _instruction(_ALU64 | operation, register, 0, 0, number)


def register(operation: Operation, destination: int, source: int) -> bytes:
    """64-bit arithmetic with a register."""
    return _instruction(_ALU64 | _X | operation, destination, source, 0, 0)


def load(size: Size, destination: int, base: int, offset: int) -> bytes:
    """Read memory; a word is zero-extended."""
    return _instruction(_LDX | _MEM | size, destination, base, offset, 0)


def store(size: Size, base: int, offset: int, source: int) -> bytes:
    """Write memory."""
    return _instruction(_STX | _MEM | size, base, source, offset, 0)


def map_itself(destination: int, descriptor: int) -> bytes:
    """Load a map as an argument of helpers."""
    return _wide(destination, _PSEUDO_MAP_FD, descriptor)


def map_memory(destination: int, descriptor: int) -> bytes:
    """Load the address of the only element of an array map."""
    return _wide(destination, _PSEUDO_MAP_VALUE, descriptor)


def jump(condition: Jump, tested: int, number: int, skipped: int) -> bytes:
    """Skip `skipped` instructions of 8 bytes if a register compared with a constant meets the
    condition."""
    return _instruction(_JMP | condition, tested, 0, skipped, number)


def call(helper: Helper) -> bytes:
    """Call a function of the kernel."""
    return _instruction(_JMP | _CALL, 0, 0, 0, helper)


def leave() -> bytes:
    """End with the result in R0."""
    return _instruction(_JMP | _EXIT, 0, 0, 0, 0)


class ArrayMap:
    """Memory shared by programs and this process: elements of equal size, by number.

    Raises `LinkError` with the name of the link.
    """

    def __init__(self, link: str, size: int, count: int) -> None:
        self._link = link
        self._size = size
        self.descriptor = _call(link, _MAP_CREATE, _ARRAY.pack(_MAP_TYPE_ARRAY, 4, size, count, 0))

    def __setitem__(self, key: int, content: bytes) -> None:
        assert len(content) == self._size
        self._element(_MAP_UPDATE_ELEM, key, ctypes.create_string_buffer(content, self._size))

    def __getitem__(self, key: int) -> bytes:
        memory = ctypes.create_string_buffer(self._size)
        self._element(_MAP_LOOKUP_ELEM, key, memory)
        return memory.raw

    def close(self) -> None:
        """Close the map; programs that use it keep it."""
        os.close(self.descriptor)

    def _element(self, command: int, key: int, memory: ctypes.Array[ctypes.c_char]) -> None:
        number = ctypes.c_uint32(key)
        places = ctypes.addressof(number), ctypes.addressof(memory)
        _call(self._link, command, _ELEMENT.pack(self.descriptor, *places, 0))


class XDPProgram:
    """A loaded program that decides what happens to a frame."""

    def __init__(self, link: str, code: bytes) -> None:
        instructions = ctypes.create_string_buffer(code, len(code))
        terms = ctypes.create_string_buffer(b"GPL")
        what = (
            _PROG_TYPE_XDP,
            len(code) // _INSTRUCTION.size,
            ctypes.addressof(instructions),
            ctypes.addressof(terms),
        )
        try:
            self.descriptor = _call(link, _PROG_LOAD, _LOAD.pack(*what, 0, 0, 0))
        except LinkError:
            # Only after a failure: kernels before 6.4 also refuse a program whose log is too long.
            log = ctypes.create_string_buffer(_LOG_SIZE)
            arguments = _LOAD.pack(*what, 1, _LOG_SIZE, ctypes.addressof(log))
            _bpf(_PROG_LOAD, arguments, len(arguments))
            log_text = " ".join(log.value.decode(errors="replace").split())
            if not log_text:
                raise
            raise LinkError(link, f"the kernel refuses the program: {log_text[-200:]}") from None

    def run_live(self, frame: npt.NDArray[np.uint8], times: int, batch: int) -> int:
        """Run it on copies of a frame, which are really sent; returns 0 or an error number."""
        place = int(frame.__array_interface__["data"][0])
        arguments = _RUN.pack(
            self.descriptor,
            0,
            len(frame),
            0,
            place,
            0,
            times,
            0,
            0,
            0,
            0,
            0,
            _LIVE_FRAMES,
            0,
            batch,
        )
        return 0 if _bpf(_PROG_RUN, arguments, len(arguments)) >= 0 else ctypes.get_errno()

    def close(self) -> None:
        """Unload it."""
        os.close(self.descriptor)


def _call(link: str, command: int, arguments: bytes) -> int:
    result = _bpf(command, arguments, len(arguments))
    if result >= 0:
        return result
    code = ctypes.get_errno()
    if code == errno.EPERM:
        reason = (
            "this user may not load BPF programs: run as root (it needs CAP_BPF and CAP_NET_ADMIN "
            "on the machine itself, not in a user namespace)"
        )
    elif code == errno.ENOSYS:
        reason = "this kernel has no BPF"
    else:
        reason = f"BPF: {os.strerror(code)}"
    raise LinkError(link, reason)


def _bpf(command: int, arguments: bytes, size: int) -> int:
    if _NUMBER is None:
        ctypes.set_errno(errno.ENOSYS)
        return -1
    return int(_syscall(_NUMBER, command, arguments, size))


def _instruction(code: int, destination: int, source: int, offset: int, number: int) -> bytes:
    return _INSTRUCTION.pack(code, destination | source << 4, offset, number)


def _wide(destination: int, meaning: int, descriptor: int) -> bytes:
    # The only instruction of 16 bytes; its upper half has only a constant.
    first = _instruction(_LD_DOUBLE, destination, meaning, 0, descriptor)
    return first + _instruction(0, 0, 0, 0, 0)


_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}.get(
    platform.machine()
)
"""Number of the system call bpf (asm/unistd.h of each architecture)."""
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_syscall.restype = ctypes.c_long

# Commands, types and flags: linux/bpf.h.
_MAP_CREATE = 0
_MAP_LOOKUP_ELEM = 1
_MAP_UPDATE_ELEM = 2
_PROG_LOAD = 5
_PROG_RUN = 10
_MAP_TYPE_ARRAY = 2
_PROG_TYPE_XDP = 6
_LIVE_FRAMES = 2

_INSTRUCTION = Struct("=BBhi")
"""struct bpf_insn; on a big-endian machine the registers are swapped."""
_ARRAY = Struct("=5I")
"""Type, sizes of a key and of an element, elements, flags."""
_ELEMENT = Struct("=I4xQQQ")
"""Map, addresses of the key and of the element, flags."""
_LOAD = Struct("=IIQQIIQ")
"""Type, instructions, their address, address of the licence, verbosity of the log, size and
address of its buffer."""
_RUN = Struct("=IIIIQQIIIIQQIII4x")
"""Program, result, sizes and addresses of data in and out, repetitions, duration, sizes and
addresses of contexts in and out, flags, processor, frames of a batch."""
_LOG_SIZE = 1 << 16

# Parts of an operation: linux/bpf_common.h.
_LD_DOUBLE = 0x18
_LDX = 0x01
_STX = 0x03
_JMP = 0x05
_ALU64 = 0x07
_MEM = 0x60
_X = 0x08
_CALL = 0x80
_EXIT = 0x90
_PSEUDO_MAP_FD = 1
_PSEUDO_MAP_VALUE = 2
