"""The bridge: where frames leave it, and what it drops."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame, Grant
from ibwire.base.units import US, Time
from ibwire.fabric import Bridge, Simulator, bridge

A, B, C, D = (bytes([2, 0, 0, 0, 0, n]) for n in range(1, 5))
EVERYBODY = b"\xff" * 6


def frame(dst: bytes, src: bytes, rest: bytes = b"\x08\x00") -> bytes:
    return dst + src + rest + bytes(46)


def leaving(node: Any, ports: int = 3) -> Any:
    """What waits at each port, taken out."""
    return [
        list(iter(lambda port=port: node.poll_transmit(0, port), None))  # type: ignore[misc]
        for port in range(ports)
    ]


def bridge_that_knows(*addresses: Any) -> Bridge:
    """A bridge with the first address behind port 0, the second behind port 1, and so on."""
    node = Bridge(3)
    for port, address in enumerate(addresses):
        node.receive(frame(address, address), 0, port)
    leaving(node)
    return node


def test_frame_to_an_unknown_address_leaves_by_every_other_port() -> None:
    node = Bridge(3)

    node.receive(frame(B, A), 0, 1)

    assert leaving(node) == [[frame(B, A)], [], [frame(B, A)]]
    assert (node.flooded, node.forwarded) == (1, 0)


def test_frame_to_a_learned_address_leaves_by_its_port_only() -> None:
    node = bridge_that_knows(A, B)

    node.receive(frame(B, A), 0, 0)

    assert leaving(node) == [[], [frame(B, A)], []]


@pytest.mark.parametrize("group", [EVERYBODY, bytes.fromhex("01005e000001")])
def test_group_addresses_are_flooded(group: Any) -> None:
    node = bridge_that_knows(A, B)

    node.receive(frame(group, A), 0, 0)

    assert leaving(node) == [[], [frame(group, A)], [frame(group, A)]]


def test_group_address_as_a_source_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "MAXIMUM_ADDRESSES", 1)
    node = Bridge(3)
    node.receive(frame(A, EVERYBODY), 0, 0)
    node.receive(frame(EVERYBODY, A), 0, 0)
    leaving(node)

    node.receive(frame(A, B), 0, 1)

    assert leaving(node) == [[frame(A, B)], [], []]


def test_address_that_moves_is_learned_again() -> None:
    node = bridge_that_knows(A, B)

    node.receive(frame(B, A), 0, 2)
    leaving(node)
    node.receive(frame(A, B), 0, 1)

    assert leaving(node) == [[], [], [frame(A, B)]]


def test_frame_between_two_ends_behind_one_port_is_sent_back() -> None:
    node = bridge_that_knows(A)
    node.receive(frame(A, B), 0, 0)
    leaving(node)

    node.receive(frame(B, A), 0, 0)

    assert leaving(node) == [[frame(B, A)], [], []]


def test_frame_from_a_device_to_itself_is_sent_back_even_the_first_time() -> None:
    node = Bridge(3)

    node.receive(frame(A, A), 0, 0)

    assert leaving(node) == [[frame(A, A)], [], []]


def test_frames_of_a_port_keep_their_order() -> None:
    node = bridge_that_knows(A, B)
    frames = [frame(B, A, bytes([8, 0, n])) for n in range(5)]

    for each in frames:
        node.receive(each, 0, 0)

    assert leaving(node)[1] == frames


def test_full_queue_drops_the_latest_and_counts() -> None:
    node = Bridge(2, queue_frames=2)
    frames = [frame(B, A, bytes([8, 0, n])) for n in range(5)]

    for each in frames:
        node.receive(each, 0, 0)

    assert node.waiting(1) == 2
    assert node.dropped == [0, 3]
    assert leaving(node, 2)[1] == frames[:2]


def test_full_queue_of_one_port_does_not_hold_up_another() -> None:
    node = Bridge(3, queue_frames=1)
    node.receive(frame(EVERYBODY, A), 0, 0)
    node.poll_transmit(0, 2)

    node.receive(frame(EVERYBODY, B), 0, 0)

    assert node.dropped == [0, 1, 0]
    assert leaving(node)[2] == [frame(EVERYBODY, B)]


def test_frame_without_a_whole_header_is_dropped_and_counted() -> None:
    node = Bridge(3)

    node.receive(frame(B, A)[:13], 0, 0)

    assert node.malformed == 1
    assert leaving(node) == [[], [], []]


def test_addresses_beyond_the_limit_are_flooded_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge, "MAXIMUM_ADDRESSES", 2)
    node = bridge_that_knows(A, B, C)

    node.receive(frame(C, A), 0, 0)
    node.receive(frame(B, A), 0, 0)

    assert leaving(node) == [[], [frame(C, A), frame(B, A)], [frame(C, A)]]


def test_frame_waits_while_its_priority_is_paused() -> None:
    class Paused:
        def __init__(self, lane: int) -> None:
            self.lane = lane

        def allows(self, lane: int, size: int) -> bool:
            return lane != self.lane

    node = Bridge(2)
    tagged = frame(B, A, bytes.fromhex("8100 6064 0800"))  # PCP 3, VID 100
    node.receive(tagged, 0, 0)

    assert node.poll_transmit(0, 1, Paused(3)) is None
    assert node.poll_transmit(0, 1, Paused(0)) == tagged


def test_bridge_never_wants_to_be_woken() -> None:
    assert Bridge(2).poll_timeout() is None


@pytest.mark.parametrize(("wrong", "field"), [((0, 1), "ports"), ((2, 0), "queue_frames")])
def test_impossible_bridge_is_refused(wrong: Any, field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        Bridge(wrong[0], queue_frames=wrong[1])

    assert caught.value.field == field


def test_bridge_between_wires_stores_and_forwards() -> None:
    class End:
        def __init__(self, *frames: Any) -> None:
            self.frames = list(frames)
            self.got: list[Any] = []

        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            self.got.append((now, frame))

        def poll_transmit(
            self, now: Time, port: int = 0, grant: Grant | None = None
        ) -> Frame | None:
            return self.frames.pop(0) if self.frames else None

        def poll_timeout(self) -> Time | None:
            return None

        def handle_timeout(self, now: Time) -> None:
            pass

    sent = frame(B, A) + bytes(916)  # 976 bytes: 80 ns with overhead at 100 Gb/s
    one, other, node = End(sent), End(), Bridge(2)
    sim = Simulator()
    sim.connect(one, node, port_b=0, delay=1 * US)
    sim.connect(node, other, port_a=1, delay=1 * US)

    sim.run()

    assert other.got == [(2 * (1 * US + 80_000), sent)]
    assert one.got == []


addresses = st.sampled_from([A, B, C, D, EVERYBODY])


@given(st.lists(st.tuples(addresses, addresses, st.integers(0, 2)), max_size=40))
def test_every_frame_is_forwarded_once_or_flooded_and_none_is_made_up(sequence: Any) -> None:
    node = Bridge(3, queue_frames=5)

    for dst, src, port in sequence:
        node.receive(frame(dst, src), 0, port)

    assert node.forwarded + node.flooded == len(sequence)
    waiting = leaving(node)
    assert sum(map(len, waiting)) + sum(node.dropped) == node.forwarded + 2 * node.flooded
    assert all(len(queue) <= 5 for queue in waiting)
