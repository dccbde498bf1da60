"""The largest packet that reaches a peer, asked after a queue pair has failed.

RDMA packets are not fragmented. Where a part of the way carries only smaller ones, large packets
vanish without a message, which looks like a peer that does not respond. The question is a
duplicate: a SEND with a PSN that the peer's queue pair has passed is acknowledged and otherwise
ignored, whatever its size (IBA 9.7.5.1.4, docs/reference/transport.md#duplicate-write).
"""

from __future__ import annotations

from collections.abc import Callable

from ibwire.base.errors import DecodeError, LinkError
from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import Time
from ibwire.link.interface import largest_path_mtu
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.attributes import QPType
from ibwire.rc.packet import FORMS, TransportPacket, encode
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import WCStatus
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import Ethernet
from ibwire_layers.packet import Packet
from ibwire_layers.psn import MASK

SECONDS, LONGEST = 0.1, 0.5
"""Time for a response: several times that of the first one, within these limits."""

ATTEMPTS = 3
"""Packets of each size: some may be lost for another reason."""


def path_hint(endpoint: Endpoint, qp: QueuePair, status: WCStatus) -> str:
    """Which packets do not reach the peer of a failed queue pair, as the end of a sentence.

    Empty if that is not the reason, or cannot be found out. The queue pair is not changed.
    """
    if status is not WCStatus.RETRY_EXC_ERR or qp.qp_type is not QPType.RC or qp.path is None:
        return ""
    node = endpoint.staged.node
    probe = endpoint.staged.node = _Probe(node, qp, endpoint.device.pkeys[0])
    try:
        took = _response_time(endpoint, probe, 0, LONGEST)
        if took is None:
            return ""
        seconds = min(max(SECONDS, 8 * took), LONGEST)
        largest = _largest(
            lambda size: _response_time(endpoint, probe, size, seconds) is not None, qp.mtu
        )
    except LinkError:  # the interface is gone, or its MTU is smaller than before
        return ""
    finally:
        endpoint.staged.node = node
    if largest is None:
        return ""
    size = len(probe.frame(largest)) - Ethernet.SIZE
    mtu = largest_path_mtu(size)
    fits = f"use a path MTU of {mtu} (-m {mtu})" if mtu else "no path MTU fits"
    return (
        f"; packets of {size} bytes with IP header reach the peer, larger ones do not, as a part "
        f"of the way has a smaller MTU: {fits}"
    )


class _Probe:
    """A node that sends questions for a failed queue pair, and takes the responses."""

    def __init__(self, node: Node, qp: QueuePair, pkey: int) -> None:
        self.responses = 0
        self._pkey = pkey
        self._node = node
        self._qp = qp
        self._frames: list[Frame] = []

    def frame(self, size: int) -> Frame:
        """A duplicate with so many bytes of payload."""
        qp = self._qp
        packet = TransportPacket(FORMS[OpCode.RC_SEND_ONLY], qp.sends.una - 1 & MASK, bytes(size))
        packet.dest_qp, packet.pkey = qp.attr.dest_qp_num, self._pkey
        packet.ack_req, packet.mig_req = 1, 1
        assert qp.path is not None
        return qp.path.frame(encode(packet))

    def ask(self, size: int) -> None:
        """Send a question of this size."""
        self._frames.append(self.frame(size))

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take what is for the failed queue pair."""
        try:
            is_response = Packet.parse(frame, strict=False).bth.dest_qp == self._qp.number
        except DecodeError:
            is_response = False
        if is_response:
            self.responses += 1
        else:
            self._node.receive(frame, now, port)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next question, or frame of the node."""
        if self._frames:
            return self._frames.pop(0)
        return self._node.poll_transmit(now, port, grant)

    def poll_timeout(self) -> Time | None:
        """That of the node."""
        return self._node.poll_timeout()

    def handle_timeout(self, now: Time) -> None:
        """That of the node."""
        self._node.handle_timeout(now)


def _response_time(endpoint: Endpoint, probe: _Probe, size: int, seconds: float) -> float | None:
    """Seconds until a response to a question of this size; `None` if none comes."""
    before = probe.responses
    for _ in range(ATTEMPTS):
        probe.ask(size)
        asked_ns = endpoint.now_ns
        endpoint.run(stop=lambda: probe.responses > before, seconds=seconds)
        if probe.responses > before:
            return (endpoint.now_ns - asked_ns) / 1e9
    return None


def _largest(passes: Callable[[int], bool], mtu: int) -> int | None:
    """Bytes of the largest payload that passes; `None` if none does, or the path MTU does."""
    if not passes(0) or passes(mtu):
        return None
    low, high = 0, mtu
    while high - low > _STEP:
        middle = (low + high) // 2 // _STEP * _STEP
        if passes(middle):
            low = middle
        else:
            high = middle
    return low


_STEP = 4
