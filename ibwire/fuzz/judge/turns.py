"""Packets of different queue pairs have no order: a device may send several of one in its turn.

Those of one queue pair have one (reference/transport#ack-order), and are compared in it. So are
completions: a queue pair goes to the error state when its NAK is sent.

Source: reference/habits#qp-turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fuzz.targets.emulated_device import QP_NUM, Completion
from ibwire.fuzz.targets.link.frames import transport

Sent = TypeVar("Sent")


def in_same_turns(expected: Sequence[Frame], got: Sequence[Frame]) -> list[Frame]:
    """The frames of a device, with the queue pairs taking turns as on the reference.

    As they are where it has sent more or less than the reference on a queue pair.
    """
    return _arranged(expected, got, _peer_of)


def in_same_turns_of_wait(
    expected: Sequence[tuple[Time, Frame]], got: Sequence[tuple[Time, Frame]]
) -> list[tuple[Time, Frame]]:
    """The same for frames with their times: those of one time have no order."""
    return _arranged(expected, got, lambda sent: (sent[0], _peer_of(sent[1])))


def completed_in_same_turns(
    expected: Sequence[Completion], got: Sequence[Completion], whole: Sequence[Completion]
) -> tuple[list[Completion], list[Completion]]:
    """The completions of a device, short and whole, in the same turns. expected: whole ones."""
    if not len(expected) == len(got) == len(whole):
        return list(got), list(whole)
    due = [(each, each) for each in expected]
    found = _arranged(due, list(zip(got, whole, strict=True)), lambda each: each[1][QP_NUM])
    return [short for short, _ in found], [each for _, each in found]


def _arranged(
    expected: Sequence[Sent], got: Sequence[Sent], turn_of: Callable[[Sent], object]
) -> list[Sent]:
    order = [turn_of(each) for each in expected]
    waiting: dict[object, deque[Sent]] = {turn: deque() for turn in order}
    for each in got:
        turn = turn_of(each)
        if turn not in waiting:
            return list(got)
        waiting[turn].append(each)
    if len(order) != len(got) or any(order.count(turn) != len(waiting[turn]) for turn in waiting):
        return list(got)
    return [waiting[turn].popleft() for turn in order]


def _peer_of(frame: Frame) -> bytes:
    """The queue pair that a frame goes to."""
    packet = transport(frame)
    return b"" if packet is None else packet[5:8]
