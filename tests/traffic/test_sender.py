"""What can be known about sending without the right to do it."""

import ctypes
import struct
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import LinkError
from ibwire.link.afpacket import _Header, _Message, _Vector
from ibwire.link.packet_socket import HEADER, MESSAGE, VECTOR
from ibwire.traffic import bpf
from ibwire.traffic.bpf import R0, R1, R2, R3, R4, R6, Helper, Jump, Operation, Size
from ibwire.traffic.sender import Sender, device_counters

MISSING = "no-such-link"


def offsets(dtype: Any) -> Any:
    return {name: dtype.fields[name][1] for name in dtype.names}


@pytest.mark.parametrize(
    ("dtype", "structure", "names"),
    [
        (VECTOR, _Vector, {"base": "base", "length": "length"}),
        (
            MESSAGE,
            _Message,
            {
                "name": "name",
                "name_length": "name_length",
                "vectors": "vectors",
                "vector_count": "vector_count",
                "control": "control",
                "control_length": "control_length",
                "flags": "flags",
            },
        ),
        (HEADER, _Header, {"message": "message", "length": "length"}),
    ],
)
def test_arrays_lie_in_memory_as_the_structures_of_c(
    dtype: Any, structure: Any, names: Any
) -> None:
    assert dtype.itemsize == ctypes.sizeof(structure)
    assert offsets(dtype) == {
        ours: getattr(structure, theirs).offset for ours, theirs in names.items()
    }


def test_missing_interface_is_a_link_error() -> None:
    with pytest.raises(LinkError, match="no such interface"):
        Sender(MISSING)
    with pytest.raises(LinkError, match="no such interface"):
        device_counters(MISSING)


@each_case(
    ("code", "expected"),
    [
        # code, destination and source, offset, constant: linux/bpf_common.h and linux/bpf.h.
        (bpf.value(Operation.MOV, R0, 2), (0xB7, 0x00, 0, 2)),
        (bpf.value(Operation.ADD, R2, -4), (0x07, 0x02, 0, -4)),
        (bpf.register(Operation.MOV, R6, R1), (0xBF, 0x16, 0, 0)),
        (bpf.register(Operation.XOR, R1, R6), (0xAF, 0x61, 0, 0)),
        (bpf.load(Size.WORD, R2, R1, 4), (0x61, 0x12, 4, 0)),
        (bpf.load(Size.DOUBLE, R2, R1, 8), (0x79, 0x12, 8, 0)),
        (bpf.store(Size.WORD, 10, -4, R0), (0x63, 0x0A, -4, 0)),
        (bpf.store(Size.DOUBLE, R1, 0, R2), (0x7B, 0x21, 0, 0)),
        (bpf.store(Size.BYTE, R4, 7, R3), (0x73, 0x34, 7, 0)),
        (bpf.jump(Jump.NE, R0, 0, 2), (0x55, 0x00, 2, 0)),
        (bpf.jump(Jump.LE, R0, 9, 1), (0xB5, 0x00, 1, 9)),
        (bpf.call(Helper.REDIRECT), (0x85, 0x00, 0, 23)),
        (bpf.leave(), (0x95, 0x00, 0, 0)),
    ],
)
def test_instructions_are_encoded_as_the_kernel_reads_them(code: Any, expected: Any) -> None:
    assert struct.unpack("=BBhi", code) == expected


def test_map_takes_two_instructions() -> None:
    first, second = bpf.map_itself(R1, 5)[:8], bpf.map_itself(R1, 5)[8:]

    assert struct.unpack("=BBhi", first) == (0x18, 0x11, 0, 5)
    assert second == bytes(8)
