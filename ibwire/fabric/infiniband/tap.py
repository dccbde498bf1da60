"""Frames of a link as they leave a port and as they arrive there."""

from __future__ import annotations

from collections.abc import Callable

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import Time
from ibwire.fabric.infiniband.credits import FCP_SIZE
from ibwire.fabric.infiniband.network import PacketFabric
from ibwire.fabric.infiniband.subnet import Port

LARGEST = 1 << 20
"""More bytes than a packet has."""

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
    incoming = link.incoming
    take, take_unbuilt = incoming.receive, incoming.receive_unbuilt

    def receive(frame: Frame, now: Time, port: int = 0) -> None:
        if not link.pipe or len(frame) == FCP_SIZE:
            record(frame, now)
        take(frame, now, port)

    incoming.receive = receive

    def receive_unbuilt(frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        if not link.pipe or frame.size == FCP_SIZE:
            record(frame.build(), now)
        if take_unbuilt is not None:
            take_unbuilt(frame, now, port)

    incoming.receive_unbuilt = receive_unbuilt
    plan = incoming.plan_arrival
    if plan is None:
        return

    def plan_arrival(frame: Frame | UnbuiltFrame, arrival: Time) -> Time:
        size = frame.size if isinstance(frame, UnbuiltFrame) else len(frame)
        given = plan(frame, arrival) if size == FCP_SIZE else arrival + link.pipe
        if given != arrival:
            _record_later(fabric, port, record, frame, arrival)
        return given

    incoming.plan_arrival = plan_arrival
    if link.pipe:
        incoming.control_size = LARGEST  # so that it is asked about all frames


def _record_later(
    fabric: PacketFabric, port: Port, record: Record, frame: Frame | UnbuiltFrame, arrival: Time
) -> None:
    """Record a frame that leaves the other end now when it arrives, unless it is lost on the way.

    The port takes it later, or has taken note of it already.
    """
    built = frame.build() if isinstance(frame, UnbuiltFrame) else frame
    left = fabric.simulator.now

    def arrive() -> None:
        if not fabric.was_cut_since(port, left):
            record(built, arrival)

    fabric.timetable.add(arrival, arrive)
    fabric.simulator.kick(fabric.timetable)
