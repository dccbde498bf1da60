"""The simulator: when frames arrive, when nodes are asked, and that runs repeat."""

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.base.node import OPEN, Frame, Grant, Pipe
from ibwire.base.units import GBPS, NS, US, S, Time
from ibwire.fabric import Livelock, Outcome, Simulator
from ibwire.impair import Chance, Delay, Duplicate, Loss


class Host:
    """Sends what is in `to_send`, notes what arrives and when; `echo` sends it back."""

    def __init__(self, *to_send: Any, echo: bool = False, name: str = "host") -> None:
        self.name = name
        self.to_send = deque(to_send)
        self.echo = echo
        self.got: list[Any] = []
        self.asked: list[Any] = []
        self.timeout: Time | None = None
        self.handled: list[Any] = []

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.got.append((now, port, frame))
        if self.echo:
            self.to_send.append(frame)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        self.asked.append((now, port))
        return self.to_send.popleft() if self.to_send else None

    def poll_timeout(self) -> Time | None:
        return self.timeout

    def handle_timeout(self, now: Time) -> None:
        self.handled.append(now)
        self.timeout = None

    @property
    def times(self) -> Any:
        return [now for now, _, _ in self.got]


class Timed(Host):
    """Handles its timeouts as `on_timeout` says, which returns the next one."""

    def __init__(self, timeout: Any, on_timeout: Any, *to_send: Any) -> None:
        super().__init__(*to_send)
        self.timeout = timeout
        self.on_timeout = on_timeout

    def handle_timeout(self, now: Time) -> None:
        self.handled.append(now)
        self.timeout = self.on_timeout(now)


def pair(a: Any, b: Any, **wire: Any) -> Simulator:
    sim = Simulator()
    sim.connect(a, b, **wire)
    return sim


# When frames arrive. At 100 Gb/s a byte lasts 80 ps.


def test_frame_arrives_after_its_bytes_the_ethernet_overhead_and_the_delay() -> None:
    a, b = Host(bytes(1000)), Host()

    pair(a, b, rate_bps=100 * GBPS, delay=1 * US).run()

    # (1000 + 24) bytes x 80 ps = 81,920 ps, and 1,000,000 ps.
    assert b.got == [(1_081_920, 0, bytes(1000))]


def test_next_frame_follows_when_the_line_is_free() -> None:
    a, b = Host(bytes(1000), bytes(76), bytes(1000)), Host()

    pair(a, b, rate_bps=100 * GBPS, delay=1 * US).run()

    assert b.times == [1_081_920, 1_089_920, 1_171_840]


def test_picoseconds_of_an_odd_rate_are_rounded_up() -> None:
    a, b = Host(bytes(76), bytes(76)), Host()

    pair(a, b, rate_bps=3 * GBPS, delay=0).run()

    # 800 bits at 3 Gb/s are 266,666.67 ps; the second starts when the line is free.
    assert b.times == [266_667, 533_334]


def test_overhead_can_be_left_out() -> None:
    a, b = Host(bytes(100)), Host()

    pair(a, b, rate_bps=100 * GBPS, delay=5, overhead=0).run()

    assert b.times == [8_005]


def test_directions_have_rates_and_delays_of_their_own() -> None:
    a, b = Host(bytes(976)), Host(bytes(976))

    pair(a, b, rate_bps=(100 * GBPS, 25 * GBPS), delay=(7, 11)).run()

    assert b.times == [80_007]
    assert a.times == [320_011]


def test_directions_do_not_share_the_line() -> None:
    a, b = Host(bytes(976), bytes(976)), Host(bytes(976), bytes(976))

    pair(a, b, delay=0).run()

    assert a.times == b.times == [80_000, 160_000]


def test_answer_to_an_idle_line_leaves_at_once() -> None:
    a, b = Host(bytes(976)), Host(echo=True)

    pair(a, b, delay=0).run()

    assert a.times == [160_000]


def test_port_is_not_asked_while_its_line_is_busy() -> None:
    a, b = Host(bytes(976), bytes(976)), Host()
    b.timeout = 10 * NS
    sim = pair(a, b, delay=0)

    sim.run(until=10 * NS)
    sim.kick(a)
    sim.run(until=79_999)

    assert {now for now, _ in a.asked} == {0}


def test_ports_are_told_apart() -> None:
    hub, b, c = Host(), Host(bytes(76)), Host(bytes(176))
    sim = Simulator()
    sim.connect(hub, b, port_a=0, delay=0)
    sim.connect(c, hub, port_b=1, port_a=5, delay=0)

    sim.run()

    assert hub.got == [(8_000, 0, bytes(76)), (16_000, 1, bytes(176))]
    assert {port for _, port in hub.asked} == {0, 1}
    assert {port for _, port in c.asked} == {5}


def test_wire_may_lead_from_one_port_of_a_node_to_another() -> None:
    a = Host(bytes(76))

    pair(a, a, port_a=0, port_b=1, delay=0).run()

    assert a.got == [(8_000, 1, bytes(76))]


def test_what_happens_at_the_same_time_happens_in_the_order_of_scheduling() -> None:
    order = []

    class Noting(Host):
        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            order.append((now, self.name))

    sim = Simulator()
    for name in "abc":
        sim.connect(Host(bytes(76)), Noting(name=name), delay=0)

    sim.run()

    assert order == [(8_000, "a"), (8_000, "b"), (8_000, "c")]


def test_empty_frames_cannot_stop_the_clock() -> None:
    a, b = Host(b""), Host(echo=True)
    a.echo = True

    sim = pair(a, b, delay=0, overhead=0)

    assert sim.run(max_frames=10) is Outcome.FRAMES
    assert sim.now == 10


# Runs.


def test_run_of_silent_nodes_is_idle() -> None:
    assert pair(Host(), Host()).run() is Outcome.IDLE


def test_run_without_any_node_is_idle() -> None:
    assert Simulator().run() is Outcome.IDLE


def test_until_includes_its_own_time() -> None:
    a, b = Host(bytes(76)), Host()
    sim = pair(a, b, delay=0)

    assert sim.run(until=7_999) is Outcome.UNTIL
    assert (sim.now, b.times) == (7_999, [])
    assert sim.run(until=8_000) is Outcome.IDLE
    assert (sim.now, b.times) == (8_000, [8_000])


def test_time_goes_on_to_until_when_nothing_happens() -> None:
    sim = pair(Host(), Host())

    sim.run(until=5 * US)

    assert sim.now == 5 * US


def test_clock_never_goes_back() -> None:
    sim = pair(Host(), Host())
    sim.run(until=5 * US)

    sim.run(until=1 * US)

    assert sim.now == 5 * US


def test_stop_ends_the_run_after_the_event_that_made_it_true() -> None:
    a, b = Host(*[bytes(76)] * 10), Host()
    sim = pair(a, b, delay=0)

    assert sim.run(stop=lambda: len(b.got) == 3) is Outcome.STOPPED
    assert sim.now == 24_000
    assert sim.run() is Outcome.IDLE
    assert len(b.got) == 10


def test_stop_is_called_only_after_events_that_leave_something_to_look_at() -> None:
    a, b = Host(*[bytes(76)] * 10), Host()
    sim = pair(a, b, delay=0)
    looked: list[int] = []

    def stop() -> bool:
        looked.append(len(b.got))
        return len(b.got) == 3

    assert sim.run(stop=stop, stop_if=b.got) is Outcome.STOPPED
    assert looked[0] == 0, "before the first event"
    assert (looked[1], looked[-1]) == (1, 3)


def test_stop_that_is_true_already_lets_nothing_happen() -> None:
    a = Host(bytes(76))
    sim = pair(a, Host())

    assert sim.run(stop=lambda: True) is Outcome.STOPPED
    assert a.asked == []


def test_run_ends_after_so_many_frames() -> None:
    a, b = Host(*[bytes(76)] * 10), Host()
    sim = pair(a, b)

    assert sim.run(max_frames=4) is Outcome.FRAMES
    assert len(b.got) == sim.frames == 4
    assert sim.run(max_frames=0) is Outcome.FRAMES
    assert sim.run(max_frames=7) is Outcome.IDLE
    assert sim.frames == 10


def test_steps_make_a_run() -> None:
    frames = [bytes(76), bytes(176)]
    one, other = Host(), Host()
    whole, stepped = pair(Host(*frames), one), pair(Host(*frames), other)

    whole.run()
    while stepped.step():
        pass

    assert one.got == other.got
    assert not stepped.step()


def test_frame_that_an_application_posts_between_runs_leaves() -> None:
    a, b = Host(), Host()
    sim = pair(a, b, delay=0)
    sim.run(until=1 * US)

    a.to_send.append(bytes(76))
    sim.run()

    assert b.times == [1 * US + 8_000]


def test_kick_from_inside_a_node_sends_at_that_time() -> None:
    sim, idle, far = Simulator(), Host(), Host()

    class Waking(Host):
        """Gives another node what it gets, and kicks both."""

        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            idle.to_send.append(frame)
            sim.kick(idle)
            sim.kick(self)

    sim.connect(Host(bytes(76)), Waking(), delay=0)
    sim.connect(idle, far, delay=0)

    sim.run()

    assert far.times == [16_000]


def test_exception_of_a_node_reaches_the_caller() -> None:
    class Broken(Host):
        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            raise KeyError(now)

    sim = pair(Host(bytes(76)), Broken(), delay=0)

    with pytest.raises(KeyError):
        sim.run()
    assert sim.now == 8_000
    assert sim.run() is Outcome.IDLE


@each_case(
    ("wrong", "field"),
    [
        ({"rate_bps": 0}, "rate_bps"),
        ({"rate_bps": (GBPS, -1)}, "rate_bps"),
        ({"delay": -1}, "delay"),
        ({"delay": (0, -1)}, "delay"),
        ({"overhead": -1}, "overhead"),
    ],
)
def test_impossible_wire_is_refused(wrong: Any, field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        Simulator().connect(Host(), Host(), **wrong)

    assert caught.value.field == field


def test_port_takes_one_wire() -> None:
    a, b = Host(), Host()
    sim = pair(a, b)

    with pytest.raises(EncodeError, match="port_a: 0 is not free"):
        sim.connect(a, Host())
    with pytest.raises(EncodeError, match="port_b: 0 is not free"):
        sim.connect(Host(), b)
    with pytest.raises(EncodeError, match="port_b: 3 is not free"):
        sim.connect(a, a, port_a=3, port_b=3)


# Timeouts.


def test_timeout_is_handled_at_its_time() -> None:
    a = Host()
    a.timeout = 3 * US

    pair(a, Host()).run()

    assert a.handled == [3 * US]


def test_timeout_in_the_past_is_handled_at_once() -> None:
    a = Host()
    sim = pair(a, Host())
    sim.run(until=5 * US)

    a.timeout = 1 * US
    sim.run()

    assert a.handled == [5 * US]


def test_timeout_that_moved_to_later_is_not_handled_early() -> None:
    class Restarting(Host):
        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            super().receive(frame, now, port)
            self.timeout = now + 1 * US

    b = Restarting()
    b.timeout = 20 * NS

    pair(Host(*[bytes(76)] * 10), b, delay=0).run()

    # The first frame is there at 8 ns, the last of ten at 80 ns.
    assert b.handled == [80 * NS + 1 * US]


def test_timeout_that_moved_by_a_picosecond_is_not_handled_early() -> None:
    class Deferring(Host):
        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            self.timeout = 20_001

    b = Deferring()
    b.timeout = 20_000

    pair(Host(bytes(76)), b, delay=0).run()

    assert b.handled == [20_001]


def test_timeout_that_was_cleared_is_not_handled() -> None:
    class Clearing(Host):
        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            self.timeout = None

    b = Clearing()
    b.timeout = 20 * NS

    assert pair(Host(bytes(76)), b, delay=0).run() is Outcome.IDLE
    assert b.handled == []


def test_timeout_that_moved_to_earlier_is_handled_early_and_the_late_one_after_it() -> None:
    class Hurrying(Host):
        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            self.timeout = now + 1

        def handle_timeout(self, now: Time) -> None:
            self.handled.append(now)
            self.timeout = 1 * US if now < 1 * US else None

    b = Hurrying()
    b.timeout = 1 * US

    pair(Host(bytes(76)), b, delay=0).run()

    assert b.handled == [8_001, 1 * US]


def test_what_a_timeout_makes_a_node_send_leaves_at_that_time() -> None:
    a, b = Timed(3 * US, lambda now: a.to_send.append(bytes(76))), Host()  # type: ignore[has-type]

    pair(a, b, delay=0).run()

    assert b.times == [3 * US + 8_000]


def test_transmission_may_start_a_timer() -> None:
    class Starting(Host):
        def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
            frame = super().poll_transmit(now, port, grant)
            if frame is not None:
                self.timeout = now + 1 * US
            return frame

    a = Starting(bytes(76), bytes(76))

    pair(a, Host()).run()

    assert a.handled == [8_000 + 1 * US]


def test_timeout_that_stays_in_the_past_is_an_error_that_names_the_node() -> None:
    stuck = Timed(1 * US, lambda now: 0)
    stuck.name = "server"
    sim = pair(stuck, Host())

    with pytest.raises(Livelock, match=r"server: at 1000000 ps") as caught:
        sim.run()

    assert caught.value.node is stuck
    assert sim.now == caught.value.now == 1 * US


def test_many_timeouts_at_one_time_are_no_livelock() -> None:
    left = iter(range(20_000))
    busy = Timed(1 * US, lambda now: next((now for _ in left), None))

    assert pair(busy, Host()).run() is Outcome.IDLE
    assert len(busy.handled) == 20_001


# Memory: events in the heap, after long runs.


def test_timer_that_each_frame_restarts_leaves_nothing_behind() -> None:
    class Restarting(Host):
        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            self.timeout = now + 1 * S

    sim = pair(Host(*[bytes(76)] * 5_000), Restarting(), delay=0)

    sim.run(max_frames=5_000)

    assert sim.pending < 10


def test_short_timers_before_a_long_one_leave_nothing_behind() -> None:
    class Alternating(Host):
        """A frame sets a short timer, which when handled leaves the long one."""

        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            self.timeout = now + 1

        def handle_timeout(self, now: Time) -> None:
            self.handled.append(now)
            self.timeout = 1 * S

    b = Alternating()
    b.timeout = 1 * S
    sim = pair(Host(*[bytes(76)] * 5_000), b, delay=0)

    sim.run(until=5_000 * 8_000 + 1)

    assert len(b.handled) == 5_000
    assert sim.pending < 10


def test_timer_that_always_moves_nearer_leaves_nothing_behind() -> None:
    class Nearing(Host):
        def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
            self.got.append((now, port, frame))
            self.timeout = 1 * S - 1_000 * len(self.got)

    b = Nearing()
    sim = pair(Host(*[bytes(76)] * 5_000), b, delay=0)

    sim.run(max_frames=5_000)

    assert sim.pending < 100
    sim.run()
    assert b.handled == [1 * S - 5_000_000]


# Stages.


def test_stage_drops_delays_and_duplicates() -> None:
    a, b = Host(b"1" * 76, b"2" * 76, b"3" * 76), Host()
    fates = {b"1": [], b"2": [(5_000, b"2")], b"3": [(0, b"3"), (1_000, b"!")]}

    sim = pair(a, b, delay=100, a_to_b=lambda frame, now: fates[frame[:1]])
    sim.run()

    assert b.got == [(21_100, 0, b"2"), (24_100, 0, b"3"), (25_100, 0, b"!")]


def test_lost_frame_occupies_the_line_all_the_same() -> None:
    a, b = Host(bytes(76), bytes(176)), Host()

    pair(a, b, delay=0, a_to_b=Loss(lambda frame, now: len(frame) == 76)).run()

    assert b.times == [8_000 + 16_000]


def test_stage_acts_on_its_direction_only() -> None:
    a, b = Host(bytes(76)), Host(echo=True)

    pair(a, b, delay=0, b_to_a=Delay(1_000)).run()

    assert b.times == [8_000]
    assert a.times == [17_000]


def test_stage_sees_frames_when_they_start_to_leave_in_the_order_of_time() -> None:
    seen = []

    def note(frame: Frame, now: Time) -> Any:
        seen.append((now, len(frame)))
        return [(0, frame)]

    a, b = Host(bytes(976), bytes(76)), Host(bytes(176), bytes(76))
    pair(a, b, a_to_b=note, b_to_a=note).run()

    assert seen == [(0, 976), (0, 176), (16_000, 76), (80_000, 76)]


def test_stage_of_a_wire_can_be_changed_between_runs() -> None:
    a, b = Host(bytes(76)), Host()
    sim = Simulator()
    wire = sim.connect(a, b)
    wire.a_to_b.stage = Loss()

    sim.run()

    assert b.got == []


def test_negative_delay_of_a_stage_is_an_error_that_names_the_direction() -> None:
    sim = pair(Host(bytes(76)), Host(), a_to_b=lambda frame, now: [(-1, frame)], name="uplink")

    with pytest.raises(EncodeError, match="uplink/a_to_b"):
        sim.run()


# A protocol above: go-back-N over wires that lose, duplicate and reorder.


class GoBackN(Host):
    """Sends numbers and repeats from the first unacknowledged one after a timeout."""

    WINDOW, PATIENCE = 8, 20 * US

    def __init__(self, total: Any) -> None:
        super().__init__()
        self.total = total
        self.first = self.next = 0

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.first = max(self.first, int.from_bytes(frame[:4]))
        self.next = max(self.first, self.next)
        self.timeout = now + self.PATIENCE if self.first < self.total else None

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        if self.next == self.total or self.next - self.first == self.WINDOW:
            return None
        self.next += 1
        self.timeout = self.timeout or now + self.PATIENCE
        return (self.next - 1).to_bytes(4) + bytes(96)

    def handle_timeout(self, now: Time) -> None:
        self.next = self.first
        self.timeout = now + self.PATIENCE


class InOrder(Host):
    """Takes numbers in order and acknowledges with the one it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = 0

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        super().receive(frame, now, port)
        self.expected += int.from_bytes(frame[:4]) == self.expected
        self.to_send.append(self.expected.to_bytes(4) + bytes(56))


def lossy(seed: int, total: int = 300) -> Any:
    sim = Simulator(seed)
    sender, receiver = GoBackN(total), InOrder()
    pipes = [
        Pipe(
            Loss(Chance(0.05, seed=seed, name=f"{way}/loss")),
            Duplicate(Chance(0.05, seed=seed, name=f"{way}/duplicate"), delay=300),
            Delay(0, 100 * NS, seed=seed, name=f"{way}/jitter"),
        )
        for way in ("there", "back")
    ]
    sim.connect(sender, receiver, a_to_b=pipes[0], b_to_a=pipes[1])
    sim.run(until=1 * S)
    return sim, receiver


def test_go_back_n_delivers_everything_over_a_bad_wire() -> None:
    _, receiver = lossy(7)

    assert receiver.expected == 300
    assert len(receiver.got) > 300
    assert receiver.times == sorted(receiver.times)


def test_same_seed_gives_the_same_run() -> None:
    (one, first), (other, second) = lossy(3), lossy(3)

    assert first.got == second.got
    assert (one.frames, one.now) == (other.frames, other.now)


def test_another_seed_gives_another_run() -> None:
    assert lossy(3)[1].got != lossy(4)[1].got


def test_random_generators_differ_by_name_and_repeat_by_seed() -> None:
    assert Simulator(5).random("a").random() == random.Random("5/a").random()
    assert Simulator(5).random("a").random() != Simulator(5).random("b").random()


# Laws.


@given(
    st.lists(st.integers(0, 9_000), max_size=30),
    st.integers(10**6, 800 * GBPS),
    st.integers(0, 10 * US),
)
def test_frames_arrive_whole_in_order_at_the_rate_of_the_line(
    sizes: list[int], rate_bps: int, delay: int
) -> None:
    frames = [bytes([i]) * size for i, size in enumerate(sizes)]
    b = Host()

    pair(Host(*frames), b, rate_bps=rate_bps, delay=delay).run()

    expected, free = [], 0
    for frame in frames:
        bits = 8 * (len(frame) + 24)
        free += bits * S // rate_bps + (bits * S % rate_bps > 0)
        expected.append((free + delay, 0, frame))
    assert b.got == expected


@given(
    st.lists(st.lists(st.integers(0, 1 * US), max_size=3), max_size=30),
    st.integers(0, 1 * US),
)
def test_as_many_frames_arrive_as_the_stage_lets_out_and_time_never_goes_back(
    fates: list[list[int]], delay: int
) -> None:
    left = iter(fates)
    b = Host()
    sim = pair(
        Host(*[bytes(60)] * len(fates)),
        b,
        delay=delay,
        a_to_b=lambda frame, now: [(extra, frame) for extra in next(left)],
    )

    assert sim.run() is Outcome.IDLE

    assert len(b.got) == sum(map(len, fates))
    assert b.times == sorted(b.times)
    assert sim.pending == 0


def test_a_head_arrives_before_the_rest_of_its_frame() -> None:
    """8 Gb/s: a nanosecond a byte. The line is free when all 1000 bytes have left."""
    a, b = Host(bytes(1000), bytes(4)), Host()
    simulator = Simulator()
    simulator.connect(a, b, rate_bps=8 * GBPS, delay=50 * NS, overhead=2, head=(8, 0))

    simulator.run()

    assert [(now, len(frame)) for now, _, frame in b.got] == [
        (58 * NS, 1000),
        ((1002 + 6 + 50) * NS, 4),  # shorter than a head, so it arrives whole
    ]


def test_a_node_that_names_its_ports_is_woken_only_for_work() -> None:
    """`stop` is called before the first and after each event, so it counts events."""
    a, b = (Host(name=name) for name in "ab")
    a.ready_ports, b.ready_ports = [], []  # type: ignore[attr-defined]
    sim = Simulator()
    sim.connect(a, b)
    sim.run()
    events = 0

    def counting() -> bool:
        nonlocal events
        events += 1
        return False

    def events_of_run() -> int:
        nonlocal events
        events = -1
        sim.run(until=sim.now + US, stop=counting)
        return events

    assert events_of_run() == 0
    a.timeout = sim.now
    assert events_of_run() == 1
    assert len(a.handled) == 1
    a.timeout = sim.now + 10 * US
    assert events_of_run() == 1  # it is armed now
    assert events_of_run() == 0
    b.to_send.append(b"x" * 60)
    b.ready_ports.append(0)  # type: ignore[attr-defined]
    assert events_of_run() == 1
    assert not a.got  # under way for a microsecond
    assert events_of_run() == 1
    assert a.got
