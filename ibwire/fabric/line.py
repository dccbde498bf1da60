"""What a simulator knows of each node, of each direction of a wire and of each run of frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, Final, Protocol

from ibwire.base.node import OPEN, Frame, Grant, Node, Stage
from ibwire.base.run import FrameRun
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import S, Time
from ibwire.fabric.pause import PauseGrant


class Station:
    """The state of a node in the simulator."""

    __slots__ = (
        "armed",
        "by_port",
        "flights",
        "handle_timeout",
        "has_timers",
        "lines",
        "node",
        "poll_timeout",
        "ready",
        "receive",
        "repeated_at",
        "repeats",
        "wakes",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        # Bound once: a method lookup for every frame costs as much as the call.
        self.receive = node.receive
        self.poll_timeout = node.poll_timeout
        self.handle_timeout = node.handle_timeout
        self.has_timers: bool = getattr(node, "has_timers", True)
        """Whether it may have a timeout: nodes without timers say so."""
        self.lines: tuple[Direction, ...] = ()
        """Directions from the node."""
        self.by_port: dict[int, Direction] = {}
        self.ready: list[int] | None = getattr(node, "ready_ports", None)
        """Ports to ask for a frame, of a node that names them; `None` to ask all."""
        self.wakes: list[Time] = []
        """Times of its wake events in the queue, the next one last."""
        self.armed: Time = 0
        """The next one of them, if there is one."""
        self.repeats = 0
        self.repeated_at: Time = -1
        self.flights: list[Flight] = []
        """Runs that have not left it as a whole, and those towards it that have begun to arrive."""

    def is_idle(self, now: Time) -> bool:
        """Whether waking it now would change nothing."""
        if self.ready is None or self.ready or self.flights:
            return False
        due = self.poll_timeout() if self.has_timers else None
        return due is None or (due > now and bool(self.wakes) and due >= self.armed)

    def add(self, line: Direction) -> None:
        """A line from a port of the node."""
        self.lines += (line,)
        self.by_port[line.port] = line
        if self.ready is not None:
            self.ready.append(line.port)


class Direction:
    """One way along a wire: a line that carries a frame at a time."""

    __slots__ = (
        "alone",
        "back",
        "coming",
        "control_size",
        "delay",
        "denominator",
        "far",
        "far_port",
        "first",
        "flight",
        "free_at",
        "free_order",
        "free_since",
        "grant",
        "head",
        "head_time",
        "is_awaited",
        "latency",
        "lost",
        "name",
        "near",
        "no_run_before",
        "numerator",
        "overhead",
        "pause",
        "plain_poll",
        "plain_stage",
        "plan_arrival",
        "poll_node",
        "poll_transmit",
        "polls_always",
        "port",
        "rate_bps",
        "receive",
        "receive_unbuilt",
        "sends_runs",
        "stage",
        "takes_runs",
        "takes_unbuilt",
    )

    def __init__(  # long: one attribute a line
        self,
        name: str,
        *,
        near: Station,
        port: int,
        far: Station,
        far_port: int,
        rate_bps: int,
        delay: Time,
        overhead: int,
        stage: Stage | None,
        head: int,
    ) -> None:
        self.name = name
        self.near = near
        self.port = port
        poll_node = getattr(near.node, "poll_unbuilt", near.node.poll_transmit)
        self.poll_node: _Poll = poll_node
        self.poll_transmit: _Poll = poll_node
        """Asked for the next frame: the node, or what stands between it and the line."""
        self.far = far
        receive_unbuilt = getattr(far.node, "receive_unbuilt", None)
        self.takes_unbuilt = receive_unbuilt is not None
        """Whether the far end takes frames that are not built."""
        self.receive = far.receive
        self.receive_unbuilt: Callable[[UnbuiltFrame, Time, int], None] | None = receive_unbuilt
        """Given each frame that has arrived: the node, or what stands before it."""
        self.plain_poll = poll_node
        self.sends_runs: RunNode | None = None
        """The near node, if both ends have runs of frames."""
        self.takes_runs: RunNode | None = None
        """The far node, likewise."""
        self.flight: Flight | None = None
        """The run that is leaving."""
        self.coming: deque[Flight] = deque()
        """Runs on their way of which no frame has arrived yet, in the order in which they will."""
        self.no_run_before: Time = 0
        """When a run may leave again, after one that the far end did not take as a whole."""
        if near is not far and near.ready is not None and not head:
            self._connect_runs(near.node, far.node)
        self.far_port = far_port
        self.delay = delay
        self.overhead = overhead
        self.latency: Time = 0
        """Time from the arrival of a frame to `receive`, but of frames of the link and of
        MAC control; it needs a `stage`."""
        self.plan_arrival: Callable[[Frame | UnbuiltFrame, Time], Time] | None = None
        """Asked about each frame of the link itself that leaves, with the time at which it arrives:
        when the far end is given it, or `NOT_GIVEN`."""
        self.control_size = -1
        """Bytes of the longest frame that is one of the link, such as a flow-control packet."""
        self.plain_stage: Stage = unchanged
        """The stage that does nothing."""
        self.stage = stage if stage is not None or not head else self.plain_stage
        """Called for each frame when it starts to leave; may be changed at any time, for frames
        that have not left yet."""
        self.free_at: Time = -1
        """When the line can take the next frame; never, while its wire is cut."""
        self.polls_always = near.ready is None
        """Whether the node is asked each time the line has become free; otherwise only when it
        has named the port."""
        self.is_awaited = False
        """Whether an event asks the line when it is free."""
        self.free_order = 0
        """The order of that event among those of the same time, from when the frame began to
        leave; 0 once it is used."""
        self.free_since: Time = 0
        """When that was."""
        self.first: deque[Frame] = deque()
        """Frames of the MAC itself, which precede those of the node."""
        self.lost = 0
        """Frames that were on their way when the wire was cut."""
        self.rate_bps: int
        self.numerator: int
        self.denominator: int
        """The time of a byte in picoseconds, as a fraction."""
        self.head = head
        self.set_rate(rate_bps)
        self.alone = (self,)
        self.grant: Grant = OPEN
        """What may be sent now."""
        self.pause: PauseGrant | None = None
        """The same, where pause frames of the far end change it."""
        self.back: Direction | None = None
        """The other way, if pause frames that arrive here change what may be sent there."""

    def _connect_runs(self, near: Any, far: Any) -> None:
        """Let runs of frames pass between two nodes that have them."""
        if hasattr(near, "extend_run") and hasattr(far, "receive_run"):
            self.sends_runs, self.takes_runs = near, far

    def set_rate(self, rate_bps: int) -> None:
        """Send at a rate from now on; frames that have begun to leave keep theirs."""
        self.rate_bps = rate_bps
        # In lowest terms: small numbers are fast.
        shared = gcd(8 * S, rate_bps)
        self.numerator = 8 * S // shared
        self.denominator = rate_bps // shared
        self.give_after(self.head)

    def give_after(self, head: int) -> None:
        """Give frames to the far end when so many bytes have arrived; 0 for whole frames."""
        self.head = head
        self.head_time = self.time_of(head)

    @property
    def is_cut(self) -> bool:
        """Whether its wire is cut."""
        return self.free_at == NEVER

    def time_of(self, size: int) -> Time:
        """How long a number of bytes takes."""
        # Rounded up. Products of negative numbers are slow when compiled.
        return (size * self.numerator + self.denominator - 1) // self.denominator

    def poll_first(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame of the MAC; stands in for that of the node while there is one."""
        frame = self.first.popleft()
        if not self.first:
            self.poll_transmit = self.poll_node
        if self.near.ready is not None:
            self.near.ready.append(self.port)
        return frame


class RunNode(Protocol):
    """A node that sends and takes runs."""

    def extend_run(self, frame: UnbuiltFrame) -> FrameRun | None:
        """The run that a frame just polled begins, or `None`."""
        ...

    def resume_run(self, run: FrameRun) -> int:
        """Let a run go on whose frames have left; how many more."""
        ...

    def take_back(self, run: FrameRun, count: int) -> None:
        """Take back the last frames of a run, which have not left."""
        ...

    def expects_run(self, run: FrameRun, first: int) -> bool:
        """Whether it takes the frames of a run from `first` on without an answer."""
        ...

    def overwrites(self, run: FrameRun, first: int, other: FrameRun) -> bool:
        """Whether frames that it expects, from `first` on, change what `other` is read from."""
        ...

    def receive_run(self, run: FrameRun, first: int, last: int, now: Time, port: int = 0) -> None:
        """Take frames of a run whose bytes were not made."""
        ...

    def receive_frames(self, frames: Sequence[Frame], now: Time, port: int = 0) -> None:
        """Take the frames of a run."""
        ...


class Flight:
    """A run on its way along a line."""

    __slots__ = ("end_order", "has_ended", "line", "order", "run", "start", "step", "taken")

    def __init__(self, run: FrameRun, line: Direction, start: Time, step: Time) -> None:
        self.run = run
        self.line = line
        self.start = start
        """When its first frame began to leave."""
        self.step = step
        """How long each frame takes."""
        self.taken = 0
        """Frames that the far end has taken."""
        self.has_ended = False
        """Whether no more of its frames arrive as a run."""
        self.order = 0
        """Of the event at which it arrives; 0 if there is none."""
        self.end_order = 0
        """Of the event at which its line is free; 0 if there is none."""

    def is_stale(self, order: int) -> bool:
        """Whether the event with this order has become obsolete."""
        return order != self.order and order != self.end_order

    def left(self, now: Time, since: Time) -> int:
        """Frames that have begun to leave before an event that was scheduled at `since`."""
        whole, rest = divmod(now - self.start, self.step)
        if rest or not whole or now - self.step <= since:
            whole += 1
        return min(whole, self.run.count)

    def arrived(self, now: Time, since: Time) -> int:
        """Frames that have arrived before an event that was scheduled at `since`."""
        after = now - self.arrival(0)
        if after < 0:
            return 0
        whole, rest = divmod(after, self.step)
        if rest or self.start + whole * self.step <= since:
            whole += 1
        return min(whole, self.run.count)

    def arrival(self, index: int) -> Time:
        """When a frame arrives."""
        return self.start + (index + 1) * self.step + self.line.delay


def unchanged(frame: Frame, now: Time) -> tuple[tuple[Time, Frame], ...]:
    """The stage of a line that gives the far end the first bytes of a frame."""
    return ((0, frame),)


_Poll = Callable[[Time, int, Grant], Frame | UnbuiltFrame | None]

Event = tuple[Time, Time, int, Station, Direction | None, Frame | UnbuiltFrame | Flight | None]
"""Time, time of scheduling, order, station: a frame that arrives at the station along the
direction, or a run of them; a direction of the station that is free (no frame, or the run that
has left); a wake (no direction)."""

NOT_GIVEN: Final = -1
"""The time of a frame that the far end need not be given: it knows of it already."""

NEVER: Final = 1 << 100
"""Later than everything: 40 billion years."""
