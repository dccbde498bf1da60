"""Middleboxes in front of a node."""

from __future__ import annotations

from typing import Any

import pytest

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame, Grant
from ibwire.base.units import US, S, Time
from ibwire.fabric.sim import Simulator
from ibwire.impair.stages import Duplicate
from ibwire.link.staged import Staged
from ibwire.rc.work import WCStatus
from ibwire.testing import Pair


class Node:
    """Keeps what it receives, sends what it is given, and has one timeout."""

    def __init__(self, *frames: Any, due: Any = None) -> None:
        self.frames = list(frames)
        self.received: list[Any] = []
        self.due = due

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.received.append((now, frame, port))

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant | None = None) -> Frame | None:
        return self.frames.pop(0) if self.frames else None

    def poll_timeout(self) -> Any:
        return self.due

    def handle_timeout(self, now: Time) -> None:
        self.due = None


def sent(node: Any, now: Time, port: int = 0) -> Any:
    frames = []
    while (frame := node.poll_transmit(now, port)) is not None:
        frames.append(frame)
    return frames


def test_without_stages_everything_passes_as_it_is() -> None:
    node = Node(b"1", b"2", due=5)
    staged = Staged(node)

    staged.receive(b"in", 3, 1)

    assert node.received == [(3, b"in", 1)]
    assert sent(staged, 4) == [b"1", b"2"]
    assert staged.poll_timeout() == 5


def test_frames_that_a_stage_drops_do_not_hide_those_behind_them() -> None:
    staged = Staged(Node(b"1", b"2", b"3"), outbound=lambda f, now: [] if f < b"3" else [(0, f)])

    assert sent(staged, 0) == [b"3"]


def test_copies_leave_one_after_the_other() -> None:
    staged = Staged(Node(b"1", b"2"), outbound=Duplicate())

    assert sent(staged, 0) == [b"1", b"1", b"2", b"2"]


def test_delayed_frame_leaves_at_its_time_and_from_its_port() -> None:
    node = Node(b"slow", b"fast", due=50)
    staged = Staged(node, outbound=lambda f, now: [(10 if f == b"slow" else 0, f)])

    first = sent(staged, 100, port=2)
    due = min(staged.poll_timeout(), 110)  # type: ignore[type-var]
    node.due = None
    waiting = staged.poll_timeout()
    staged.handle_timeout(109)
    early = sent(staged, 109, port=2)
    staged.handle_timeout(110)

    assert (first, due, waiting, early) == ([b"fast"], 50, 110, [])
    assert sent(staged, 110, port=0) == []
    assert sent(staged, 110, port=2) == [b"slow"]
    assert staged.poll_timeout() is None


def test_delayed_frame_arrives_at_its_time_before_the_nodes_own_timeout() -> None:
    node = Node(due=30)
    staged = Staged(node, inbound=lambda f, now: [(20, f), (0, b"copy")])

    staged.receive(b"in", 5, 1)
    due = staged.poll_timeout()
    staged.handle_timeout(due)

    assert due == 25
    assert node.received == [(5, b"copy", 1), (25, b"in", 1)]
    assert node.due == 30


def test_waiting_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Staged, "LIMIT", 3)
    node = Node()
    staged = Staged(node, inbound=lambda f, now: [(1, f)])

    for _ in range(5):
        staged.receive(b"x", 0)
    staged.handle_timeout(1)

    assert len(node.received) == 3
    assert staged.overflow == 2


def test_negative_delay_is_refused() -> None:
    staged = Staged(Node(), inbound=lambda f, now: [(-1, f)])

    with pytest.raises(EncodeError):
        staged.receive(b"x", 5)


def test_connection_survives_loss_and_delay_on_both_ways() -> None:
    pair = Pair(timeout=10)
    numbers = iter(range(10_000))

    def stage(frame: Frame, now: Time) -> Any:
        number = next(numbers)
        return [] if number % 13 == 7 else [((number % 3) * 2 * US, frame)]

    sim = Simulator()
    sim.connect(Staged(pair.a.device, inbound=stage, outbound=stage), pair.b.device)
    pair.a.mr.buffer[:20_000] = bytes(range(250)) * 80
    pair.b.post_recv(20_000)
    pair.a.post_send(length=20_000)

    sim.run(until=10 * S)

    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.SUCCESS]
    assert bytes(pair.b.mr.buffer[:20_000]) == bytes(range(250)) * 80
