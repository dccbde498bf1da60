"""A device that behaves as if its queue pair had another attribute is said to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuzz.test_naming import named
from ibwire.fuzz.case import Connection, Packet, Post, Step
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

READ = Post(int(WROpcode.RDMA_READ), 0)
SEND = Packet(int(OpCode.RC_SEND_ONLY), length=2047)
CASES: Sequence[tuple[str, Connection, Sequence[Step], str, str]] = (
    (
        "mtu-code-4-as-smaller",
        Connection(mtu=2048, room=4096),
        [SEND],
        "SEND_ONLY: NAK INVALID_REQUEST instead of ACK, as if mtu were 1024",
        "packet-length",
    ),
    (
        "mtu-code-4-as-smaller",
        Connection(mtu=2048),
        [Post(int(WROpcode.RDMA_WRITE), 2047)],
        "a posted RDMA_WRITE: WRITE_FIRST instead of WRITE_ONLY, as if mtu were 1024",
        "segmentation",
    ),
    (
        "reads-6-one-more",
        Connection(max_rd_atomic=6),
        [READ] * 7,
        "a posted RDMA_READ: READ_REQUEST instead of nothing, as if max_rd_atomic were 7",
        "read-limit",
    ),
    (  # it would not do so from the beginning
        "slot-of-atomic-never-free",
        Connection(max_rd_atomic=1),
        [
            Post(int(WROpcode.ATOMIC_FETCH_AND_ADD), 8),
            Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0)),
            READ,
        ],
        "a posted RDMA_READ: nothing instead of READ_REQUEST",
        "read-limit",
    ),
)


@pytest.mark.parametrize(("fault", "connection", "steps", "text", "rule"), CASES)
def test_another_attribute_explains_what_a_device_does(
    fault: str, connection: Connection, steps: Sequence[Step], text: str, rule: str
) -> None:
    name = named(fault, *steps, connection=connection)

    assert name.text == text
    assert name.rule.endswith(f"#{rule}")
