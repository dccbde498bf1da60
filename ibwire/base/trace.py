"""Observers of the frames at a node's port, and a trace as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import IO, Any

from ibwire.base.errors import DecodeError
from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import Time
from ibwire_layers.headers import AETH, RETH
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet
from ibwire_layers.syndrome import describe

SENT = "sent"
RECEIVED = "received"

Observer = Callable[[str, str, Frame, Time], None]
"""Called with a node's name, `sent` or `received`, the frame and the time."""


class ObservedNode:
    """A node with observers of its frames: a sent frame is reported when it starts to leave,
    a received one when it has arrived whole."""

    def __init__(self, name: str, node: Node, observers: Sequence[Observer]) -> None:
        self.name = name
        self.node = node
        self.poll_timeout = node.poll_timeout
        self.handle_timeout = node.handle_timeout
        self._observers = observers

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that has arrived whole."""
        for observe in self._observers:
            observe(self.name, RECEIVED, frame, now)
        self.node.receive(frame, now, port)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame to send; `None` when no frame may leave now."""
        frame = self.node.poll_transmit(now, port, grant)
        if frame is not None:
            for observe in self._observers:
                observe(self.name, SENT, frame, now)
        return frame


class Trace:
    """An observer that writes one JSON object per frame to a text file."""

    def __init__(self, file: IO[str], link_type: int = LinkType.ETHERNET) -> None:
        self._file = file
        self._link_type = link_type

    def __call__(self, node: str, event: str, frame: Frame, now: Time) -> None:
        """Write a line."""
        line: dict[str, Any] = {"time_ps": now, "node": node, "event": event}
        try:
            packet = Packet.parse(frame, self._link_type, strict=False)
        except DecodeError:
            line["frame"] = frame.hex()
        else:
            line |= _described(packet)
        self._file.write(json.dumps(line))
        self._file.write("\n")


def _described(packet: Packet) -> dict[str, Any]:
    bth = packet.bth
    found: dict[str, Any] = {
        "opcode": packet.opcode_name,
        "dest_qp": bth.dest_qp,
        "psn": bth.psn,
        "ack_req": bth.ack_req,
        "payload": len(packet.payload),
    }
    for header in packet.extensions:
        if isinstance(header, AETH):
            found["syndrome"] = describe(header.syndrome)
            found["msn"] = header.msn
        elif isinstance(header, RETH):
            found["va"], found["dma_len"] = header.va, header.dma_len
    return found
