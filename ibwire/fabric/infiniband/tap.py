"""Frames of a link as they leave a port and as they arrive there."""

from __future__ import annotations

from collections.abc import Callable

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import Time
from ibwire.fabric.infiniband.network import PacketFabric
from ibwire.fabric.infiniband.subnet import Port

Record = Callable[[Frame, Time], None]
"""Takes a frame and when it began to leave, or when it was given to the port."""


def tap(fabric: PacketFabric, port: Port, record: Record, *, arriving: bool = True) -> None:
    """Record every frame that leaves a port from now on, and those that arrive there.

    Flow-control packets are frames too. A port of a switch is given a packet when its LRH has
    arrived, one of an adapter when all of it has.
    """
    link = fabric.link(port)
    poll = link.line.poll_transmit

    def poll_transmit(now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | UnbuiltFrame | None:
        polled = poll(now, port, grant)
        if polled is not None:
            record(polled.build() if isinstance(polled, UnbuiltFrame) else polled, now)
        return polled

    link.line.poll_transmit = poll_transmit
    if not arriving:
        return
    take, take_unbuilt = link.incoming.receive, link.incoming.receive_unbuilt

    def receive(frame: Frame, now: Time, port: int = 0) -> None:
        record(frame, now)
        take(frame, now, port)

    link.incoming.receive = receive

    def receive_unbuilt(frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        record(frame.build(), now)
        if take_unbuilt is not None:
            take_unbuilt(frame, now, port)

    link.incoming.receive_unbuilt = receive_unbuilt
