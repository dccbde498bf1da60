"""The loop that drives a node on real links, here with links and a clock that are not real."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from ibwire.base.errors import LinkError
from ibwire.base.node import Frame, Grant
from ibwire.base.units import MS, NS, US, Time
from ibwire.link.live import Ended, Live, MonotonicClock
from ibwire.rc.attributes import QPType
from ibwire.rc.connect import ALL_ACCESS, connect
from ibwire.rc.device import Device
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, SendWR, WCStatus, WROpcode


class Clock:
    """Every look at it costs a nanosecond; waiting costs what it was asked for."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000
        self.waits: list[Any] = []
        """Readable, writable and nanoseconds to go, of each wait."""
        self.ports: tuple[Any, ...] = ()
        """Those whose arrivals end a wait at once."""
        self.events: list[Any] = []
        """What happens in the next waits, which then end early."""

    def now_ns(self) -> Any:
        self.ns += 1
        return self.ns

    def wait(self, readable: Any, writable: Any, until_ns: Any) -> Any:
        self.waits.append((tuple(readable), tuple(writable), until_ns and until_ns - self.ns))
        assert len(self.waits) < 10_000, "the loop never ends"
        if any(port.arrived for port in self.ports):
            return ()
        if self.events:
            self.events.pop(0)()
        elif until_ns is None:
            raise AssertionError("the loop would sleep for ever")
        else:
            self.ns = max(self.ns, until_ns)
        return ()


class FakePort:
    """Keeps what is sent, and delivers it to `other`."""

    name, mac, mtu, addresses = "fake0", bytes(6), 1500, ()

    def __init__(self, number: int = 7, room: int = 1 << 30) -> None:
        self.number = number
        self.room = room
        """Frames that are taken."""
        self.batches: list[Any] = []
        self.arrived: list[Any] = []
        self.other: Any = None

    @property
    def sent(self) -> Any:
        return [frame for batch in self.batches for frame in batch]

    def receive(self) -> Any:
        frames, self.arrived = self.arrived[:64], self.arrived[64:]
        return frames

    def send(self, frames: Any) -> int:
        taken = frames[: self.room]
        self.room -= len(taken)
        self.batches.append(list(taken))
        if self.other is not None:
            self.other.arrived += taken
        return len(taken)

    def fileno(self) -> Any:
        return self.number

    def notes(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


class Recorder:
    """A node that notes what happens to it, and sends what is put into `waiting`."""

    def __init__(self) -> None:
        self.happened: list[Any] = []
        self.waiting: dict[Any, Any] = {0: [], 1: []}
        self.due: Any = None
        self.every: Any = None

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.happened.append(("frame", now, frame, port))

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant | None = None) -> Frame | None:
        return self.waiting[port].pop(0) if self.waiting[port] else None

    def poll_timeout(self) -> Any:
        return self.due

    def handle_timeout(self, now: Time) -> None:
        self.happened.append(("timeout", now))
        self.due = None if self.every is None else self.due + self.every

    def times(self) -> Any:
        return [each[1] for each in self.happened]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_is_picoseconds_since_the_loop_was_made(clock: Clock) -> None:
    live = Live(Recorder(), clock=clock)
    begin = live.now

    clock.ns += 1000

    assert begin == NS
    assert live.now == 1 * US + 2 * NS


def test_sleep_ends_when_the_timeout_is_due_and_not_before(clock: Clock) -> None:
    node = Recorder()
    node.due, node.every = 3 * MS, 5 * MS

    ended = Live(node, FakePort(), clock=clock).run(seconds=0.02)

    assert ended is Ended.TIME
    for found, due in zip(node.times(), (3 * MS, 8 * MS, 13 * MS, 18 * MS), strict=True):
        assert due <= found < due + 100 * NS


def test_timeout_between_two_nanoseconds_is_not_handled_early(clock: Clock) -> None:
    node = Recorder()
    node.due = 5 * US + 1

    Live(node, FakePort(), clock=clock).run(seconds=0.001)

    ((_, now),) = node.happened
    assert now >= 5 * US + 1


def test_idle_node_sleeps_once_until_the_end(clock: Clock) -> None:
    ended = Live(Recorder(), FakePort(), clock=clock).run(seconds=5)

    assert ended is Ended.TIME
    assert len(clock.waits) == 1


def test_loop_without_a_limit_sleeps_without_a_limit(clock: Clock) -> None:
    node, port = Recorder(), FakePort(number=9)
    clock.events = [lambda: port.arrived.append(b"x")]

    Live(node, port, clock=clock).run(frames=1)

    (wait,) = clock.waits
    assert wait[0][0] == 9
    assert wait[1:] == ((), None)


def test_spinning_never_sleeps(clock: Clock) -> None:
    ended = Live(Recorder(), FakePort(), spin=True, clock=clock).run(seconds=1e-6)

    assert ended is Ended.TIME
    assert not clock.waits


def test_frames_that_have_arrived_reach_the_node_in_order(clock: Clock) -> None:
    node, port = Recorder(), FakePort()
    frames = [bytes([number]) for number in range(200)]
    port.arrived = list(frames)

    ended = Live(node, port, clock=clock).run(frames=200)

    assert ended is Ended.FRAMES
    assert [each[2] for each in node.happened] == frames
    assert node.times() == sorted(node.times())


def test_frames_are_counted_anew_in_each_run(clock: Clock) -> None:
    port = FakePort()
    live = Live(Recorder(), port, clock=clock)
    port.arrived = [b"1"]
    first = live.run(frames=1)
    port.arrived = [b"2", b"3"]
    second = live.run(frames=2, seconds=1)

    assert first is second is Ended.FRAMES
    assert live.received == 3


def test_node_is_asked_until_it_has_nothing_left(clock: Clock) -> None:
    node, port = Recorder(), FakePort()
    node.waiting[0] = [bytes([number]) for number in range(100)]

    live = Live(node, port, clock=clock)
    live.run(seconds=1)

    assert port.sent == [bytes([number]) for number in range(100)]
    assert live.sent == 100
    # One sleep, after everything: as long as there is more the loop goes on.
    assert len(clock.waits) == 1


def test_frames_leave_in_batches(clock: Clock) -> None:
    node, port = Recorder(), FakePort()
    node.waiting[0] = [b"x"] * 70

    Live(node, port, clock=clock).run(seconds=1)

    assert [len(batch) for batch in port.batches if batch] == [32, 32, 6]


def test_arrivals_are_taken_between_two_batches(clock: Clock) -> None:
    node, port = Recorder(), FakePort()
    node.waiting[0] = [b"x"] * 64
    port.arrived = [b"y"] * 65

    stops = iter([False, True])
    Live(node, port, clock=clock).run(stop=lambda: next(stops))

    # 64 with the first step, the last one with the second, before the second batch.
    assert len(node.happened) == 65


def test_node_with_two_ports_has_frames_of_each(clock: Clock) -> None:
    node, left, right = Recorder(), FakePort(3), FakePort(4)
    left.arrived, right.arrived = [b"l"], [b"r"]
    node.waiting = {0: [b"to the left"], 1: [b"to the right"]}

    Live(node, left, right, clock=clock).run(frames=2)

    assert [each[2:] for each in node.happened] == [(b"l", 0), (b"r", 1)]
    assert (left.sent, right.sent) == ([b"to the left"], [b"to the right"])


def test_full_link_is_waited_for_and_nothing_is_lost(clock: Clock) -> None:
    node, port = Recorder(), FakePort(number=5, room=3)
    node.waiting[0] = [bytes([number]) for number in range(10)]

    def make_room() -> None:
        port.room = 100

    clock.events = [make_room]
    Live(node, port, clock=clock).run(seconds=1)

    assert clock.waits[0][1] == (5,)
    assert port.sent == [bytes([number]) for number in range(10)]


def test_node_is_not_asked_for_more_than_a_batch_while_the_link_is_full(clock: Clock) -> None:
    node, port = Recorder(), FakePort(room=0)
    node.waiting[0] = [b"x"] * 100

    Live(node, port, clock=clock).run(seconds=0.01)

    assert len(node.waiting[0]) == 100 - Live.BATCH


def test_work_given_by_the_last_step_is_sent(clock: Clock) -> None:
    node, port = Recorder(), FakePort()

    def stop() -> bool:
        node.waiting[0] += [b"last words"] * 50
        return True

    ended = Live(node, port, clock=clock).run(stop=stop)

    assert ended is Ended.STOPPED
    assert port.sent == [b"last words"] * 50


def test_end_is_not_put_off_for_ever_by_a_link_that_stays_full(clock: Clock) -> None:
    node, port = Recorder(), FakePort(room=0)
    node.waiting[0] = [b"x"]
    live = Live(node, port, clock=clock)

    ended = live.run(stop=lambda: True)

    assert ended is Ended.STOPPED
    assert live.now < 200 * MS


def test_watched_descriptors_wake_the_loop(clock: Clock) -> None:
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 2

    clock.events = [lambda: None]
    Live(Recorder(), FakePort(), clock=clock).run(stop=stop, watch=[42])

    assert 42 in clock.waits[0][0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_run_and_the_handler_is_given_back(clock: Clock, number: int) -> None:
    before = signal.getsignal(number)
    node, port = Recorder(), FakePort()
    clock.events = [lambda: os.kill(os.getpid(), number)]
    live = Live(node, port, clock=clock)

    ended = live.run()

    assert ended is Ended.SIGNAL
    assert live.signal == number
    assert signal.getsignal(number) is before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("when", ["with the end", "while the last frames leave"])
def test_signal_after_the_last_look_at_it_is_not_lost(clock: Clock, when: str) -> None:
    """The next run would begin as if there had been none."""
    node, port = Recorder(), FakePort(room=0)
    node.waiting[0] = [b"x"]

    def stop() -> bool:
        if when == "with the end":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            clock.events = [lambda: os.kill(os.getpid(), signal.SIGTERM)]
        return True

    ended = Live(node, port, clock=clock).run(stop=stop)

    assert ended is Ended.SIGNAL


def test_acknowledgement_that_waits_is_taken_before_the_timeout_that_is_due(clock: Clock) -> None:
    """A program that was busy with something else is no reason to send again."""
    node, port = Recorder(), FakePort()
    live = Live(node, port, clock=clock)
    node.due = 1 * MS
    port.arrived = [b"ack"]
    clock.ns += 5_000_000

    live.run(stop=lambda: True)

    assert [each[0] for each in node.happened] == ["frame", "timeout"]


def test_signal_ends_a_real_sleep_whenever_it_comes() -> None:
    inner, outer = os.pipe()
    thread = threading.Timer(0, os.kill, (os.getpid(), signal.SIGTERM))

    def stop() -> bool:
        """Has the signal sent once the run takes it, before or during the sleep that follows."""
        if thread.ident is None:
            thread.start()
        return False

    ended = Live(Recorder(), FakePort(number=inner)).run(seconds=30, stop=stop)
    thread.join()
    os.close(inner)
    os.close(outer)

    assert ended is Ended.SIGNAL


def test_signal_with_a_handler_of_its_own_does_not_keep_the_loop_awake() -> None:
    inner, outer = os.pipe()
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    steps = []

    def stop() -> bool:
        steps.append(1)
        if len(steps) == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return False

    ended = Live(Recorder(), FakePort(number=inner)).run(seconds=0.005, stop=stop)
    signal.signal(signal.SIGUSR1, before)
    os.close(inner)
    os.close(outer)

    assert ended is Ended.TIME
    assert seen == [1]
    # Before the signal, after it, and at the end.
    assert len(steps) <= 4


def test_signals_are_left_alone_outside_the_main_thread(clock: Clock) -> None:
    ended = []
    live = Live(Recorder(), FakePort(), clock=clock)
    thread = threading.Thread(target=lambda: ended.append(live.run(seconds=1)))
    thread.start()
    thread.join()

    assert ended == [Ended.TIME]


def test_error_of_a_port_comes_through_and_signals_are_given_back(clock: Clock) -> None:
    class Broken(FakePort):
        def receive(self) -> None:
            raise LinkError("fake0", "has gone down")

    before = signal.getsignal(signal.SIGINT)

    with pytest.raises(LinkError, match="fake0: has gone down"):
        Live(Recorder(), Broken(), clock=clock).run(seconds=1)

    assert signal.getsignal(signal.SIGINT) is before


def test_monotonic_clock_waits_for_readability_and_for_time() -> None:
    clock = MonotonicClock()
    inner, outer = os.pipe()
    before = clock.now_ns()

    idle = clock.wait([inner], [], before + 1000)
    after = clock.now_ns()
    os.write(outer, b"x")
    readable = clock.wait([inner], [outer], None)
    os.close(inner)
    os.close(outer)

    assert list(idle) == []
    assert after >= before + 1000
    assert list(readable) == [inner, outer]


class Both:
    """Two devices as one node: port 0 is the first one's."""

    def __init__(self, *devices: Any) -> None:
        self.devices = devices

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.devices[port].receive(frame, now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant | None = None) -> Frame | None:
        return self.devices[port].poll_transmit(now)  # type: ignore[no-any-return]

    def poll_timeout(self) -> Time | None:
        return min((due for each in self.devices if (due := each.poll_timeout())), default=None)

    def handle_timeout(self, now: Time) -> None:
        for each in self.devices:
            each.handle_timeout(now)


def test_lost_frames_are_sent_again_when_the_clock_says_so(clock: Clock) -> None:
    """What a device does in the simulator it does on links, here while one is cut."""
    ends = []
    for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
        device = Device(name, address)
        pd = device.alloc_pd()
        memory = bytearray(5000)
        region = pd.register(memory, int(ALL_ACCESS))
        cq = device.create_cq(16)
        qp = device.create_qp(QPInit(QPType.RC, pd, send_cq=cq, recv_cq=cq))
        ends.append((device, memory, region, cq, qp))
    (a, sent, source, cq, a_qp), (b, received, target, _, b_qp) = ends
    connect(a_qp, b_qp, timeout=14)
    sent[:] = bytes(range(250)) * 20
    sge = SGE(source.iova, 5000, source.lkey)
    a_qp.post_send(SendWR(WROpcode.RDMA_WRITE, [sge], rkey=target.rkey, remote_addr=target.iova))
    left, right = FakePort(3), FakePort(4)
    right.other = left
    clock.ports = left, right
    live = Live(Both(a, b), left, right, clock=clock)

    live.run(seconds=0.05)
    first = len(left.sent)
    left.other = right
    done = []
    ended = live.run(seconds=1, stop=lambda: done.extend(cq.poll(1)) or bool(done))

    assert ended is Ended.STOPPED
    assert done[0].status is WCStatus.SUCCESS
    assert received == sent
    # Five packets of 1024 bytes, all lost, and all again after the timeout: 4.096 us * 2^14.
    assert (first, len(left.sent)) == (5, 10)
    assert 67_108_864 * NS <= live.now < 68 * MS
