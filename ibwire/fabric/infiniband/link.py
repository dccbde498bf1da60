"""One end of a link: its credits, its flow-control packets, and what it counts.

`LinkEnd` is the part of a port that adapters and switches have in common. It does not know what
waits to be sent, only whether it may leave, and keeps the counters that the performance agent of
its node reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ibwire.base.node import Frame
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import S, Time
from ibwire.fabric.infiniband.arbitration import Arbiter, read_table
from ibwire.fabric.infiniband.counters import DAMAGED, MALFORMED, OVERRUN
from ibwire.fabric.infiniband.credits import (
    COUNT_MASK,
    FCP_SIZE,
    INITIALIZING,
    NORMAL,
    ReceiveBuffer,
    SendCredits,
)
from ibwire.fabric.infiniband.errors import AbortedFrame
from ibwire.fabric.infiniband.local_errors import LocalErrors
from ibwire.fabric.infiniband.lrh import MANAGEMENT_VL, VCRC_SIZE, has_good_vcrc
from ibwire.fabric.infiniband.packets import WORD, FlowControl, LinkPacket, read_limit
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.states import ACTIVE_DEFER, ARMED, INIT
from ibwire.fabric.infiniband.subnet import FIRST_MULTICAST, PERMISSIVE_LID, Port, rate_of
from ibwire.fabric.infiniband.tables import DEFAULT_ARBITRATION
from ibwire.fabric.line import NOT_GIVEN, Direction
from ibwire_layers.attributes import PortState
from ibwire_layers.mad import Trap

LANES: Final = 15
"""Data lanes: VL0 to VL14."""
SERVICE_LEVELS = 16
NEVER: Final = 1 << 61
"""Later than the end of every run: 27 days. Compiled, a larger number is slow."""

LANES_OF_CODE = {1: 1, 2: 2, 3: 4, 4: 8, 5: 15}
"""Data lanes by code of OperationalVLs (IBA 14.2.5.6)."""
WATCHDOG_PERIODS: Final = 6
"""Periods without a flow-control packet for a lane after which the link is trained again: 393,216
symbol times, of 400,000 with 3 % more or 51 % less."""


class LinkEnd:
    """One end of a link.

    port: whose tables it goes by and whose counters it changes. `connect` gives it its lines.
    """

    __slots__ = (
        "_last",
        "_latency",
        "_update_symbols",
        "arbiter",
        "buffers",
        "coming",
        "counters",
        "counts",
        "credits",
        "due",
        "enforces_inbound",
        "enforces_outbound",
        "errors",
        "incoming",
        "lanes",
        "largest",
        "lead",
        "line",
        "local_errors",
        "next_update",
        "on_error",
        "overrun_periods",
        "overruns",
        "own_lids",
        "period",
        "pipe",
        "port",
        "settles_at",
        "shared_lanes",
        "silence",
        "sl2vl",
        "state",
        "tick",
        "updated",
        "verifies",
        "wait_since",
    )

    def __init__(self, port: Port, settings: FabricSettings) -> None:
        self.port = port
        self.counters = port.counters
        self.credits = [SendCredits() for _ in range(LANES)]
        """By virtual lane, as its buffers."""
        self.buffers = [ReceiveBuffer(settings.buffer, settings.step) for _ in range(LANES)]
        self.line: Direction
        """To the other end."""
        self.incoming: Direction
        """From the other end."""
        self.verifies = False
        """Whether packets may be damaged on the way here, so that their VCRC is checked."""
        self.lanes = LANES
        self.coming: FlowControl | None = None
        """The first flow-control packet that is on its way here, or whose limit nobody has needed
        yet; each has the next one."""
        self.counts: FlowControl | None = None
        """The first one whose count was not yet compared with the packets that came before it."""
        self._last: FlowControl | None = None
        """The last one."""
        self.settles_at: Time = NEVER
        """From when `settle` has something to take over."""
        self.lead: Time = 0
        """From when a packet arrives to when a switch may send it."""
        self.pipe: Time = 0
        """From when a packet arrives to `take`: a switch takes it when it may leave."""
        self.due = 0
        """Bits of the lanes whose limit is to be sent."""
        self.errors = 0
        """Damaged flow-control packets, which no counter of a port has."""
        self.on_error: Callable[[LinkEnd, Trap], None] | None = None
        """Called when a threshold is exceeded, or flow-control packets are missing."""
        self.local_errors = LocalErrors(port)
        self.overruns = 0
        """Packets without room in the buffer since the last update."""
        self.overrun_periods = 0
        """Periods in a row with such packets."""
        self.updated = 0
        """Bits of the lanes that got a flow-control packet since the last update."""
        self.silence = 0
        """Periods in a row in which a lane got none."""
        self.wait_since: Time | None = None
        """Since when packets wait here and none may leave."""
        self.period: Time = 0
        """Between flow-control packets that say nothing new; 0 for none."""
        self._update_symbols = settings.update_symbols
        """The same in symbol times."""
        self.next_update: Time | None = None
        self.tick: Time = 1
        """Of PortXmitWait: the time of 4 bytes."""
        self._latency = settings.latency
        self.read_tables()

    def read_tables(self) -> None:
        """Take over what a subnet manager has written into the tables of the port."""
        port = self.port
        self.state = port.state
        before, self.lanes = self.lanes, LANES_OF_CODE.get(port.operational_vls, 1)
        if self.lanes > before and self.state >= PortState.INIT:
            self.due |= (1 << self.lanes) - 1  # the new lanes have no limit yet
        parts = [port.arbitration.get(part, DEFAULT_ARBITRATION[part]) for part in (1, 2, 3, 4)]
        self.arbiter = Arbiter(read_table(*parts[2:]), read_table(*parts[:2]), port.vl_high_limit)
        self.sl2vl = {came: self._lanes_of(table) for came, table in port.sl2vl.items()}
        """The lane of each service level, by the port by which a packet came; 15 for none."""
        self.shared_lanes = [sl % self.lanes for sl in range(SERVICE_LEVELS)]
        """The same for ports without a table: after power-on the service levels share the lanes."""
        self.own_lids = (port.lid, port.lid + (1 << port.lmc)) if port.lid else (0, 0)
        """The first LID of the port, and that after the last one."""
        self.largest = port.largest_packet + VCRC_SIZE
        """Bytes of the largest packet that leaves."""
        self.enforces_inbound = bool(port.enforces_pkeys_inbound)
        self.enforces_outbound = bool(port.enforces_pkeys_outbound)

    def connect(self, line: Direction, incoming: Direction) -> None:
        """Take its two lines; the link comes up with `start`."""
        self.line, self.incoming = line, incoming
        self.read_rate()

    def read_rate(self) -> None:
        """Take over the rate at which the link was trained, and its lines have already."""
        self.tick = self.line.time_of(WORD)
        if self.port.node.is_switch:
            self.lead = max(0, self._latency - self.incoming.head_time)
        if self.incoming.plan_arrival is not None:
            self.pipe = self.incoming.latency = self.lead
        found = rate_of(self.port)
        if found is not None:
            speed, _ = found
            lane = speed.lane_bps * speed.encoding
            # A symbol carries 8 bits of data on one lane, whatever the encoding.
            self.period = int(self._update_symbols * 8 * S / lane)

    def plan_arrivals(self) -> None:
        """Have what arrives announced when it leaves the other end."""
        self.pipe = self.incoming.latency = self.lead
        self.incoming.control_size = FCP_SIZE
        self.incoming.plan_arrival = self.plan_arrival

    def start(self, now: Time) -> None:
        """The link has come up: all counts begin at 0, and all limits are sent."""
        self.read_tables()
        self.credits = [SendCredits() for _ in range(LANES)]
        for buffer in self.buffers:
            buffer.restart()
        self.forget_coming()
        self.wait_since = None
        self.local_errors.more = 0
        self.overruns = self.overrun_periods = self.updated = self.silence = 0
        self.due = (1 << self.lanes) - 1
        self.next_update = now + self.period if self.period else None

    def stop(self) -> None:
        """The link has gone down."""
        self.state = PortState.DOWN
        self.due, self.next_update, self.wait_since = 0, None, None
        self.forget_coming()

    def defer(self, now: Time) -> None:
        """The signal is lost for a while; what waits stays."""
        self.settle(now)
        self.forget_coming()
        self.state = PortState.ACTIVE_DEFER

    def recover(self) -> None:
        """The signal is back: limits are sent again, as some may have been lost."""
        self.state = PortState.ACTIVE
        self.due = (1 << self.lanes) - 1

    # What leaves.

    def vl_for(self, came: int, sl: int) -> int:
        """The lane by which packets of a service level leave; 15 if they are discarded.

        came: the port of the switch by which they came in; 0 on an adapter.
        """
        return self.sl2vl.get(came, self.shared_lanes)[sl]

    def _lanes_of(self, table: bytes) -> list[int]:
        """The lane of each service level by SLtoVLMappingTable; 15 for one that there is not."""
        lanes = [nibble for byte in table[:8] for nibble in (byte >> 4, byte & 15)]
        return [vl if vl < self.lanes else MANAGEMENT_VL for vl in lanes]

    def choose(self, sendable: int, size_of: list[int]) -> int:
        """The lane whose packet leaves; -1 if none may.

        sendable: bits of the lanes whose next packet has credits. size_of: its bytes, by lane.
        """
        if sendable == 1 and self.lanes == 1:
            return 0 if self.arbiter.lanes & 1 else -1
        return self.arbiter.choose(sendable, size_of) if sendable else -1

    def update(self, now: Time) -> None:
        """Send all limits again if it is time, and look what the other end has done meanwhile."""
        if self.next_update is not None and now >= self.next_update:
            self.settle(now)
            self.due = (1 << self.lanes) - 1
            self.next_update = now + self.period
            if self.overruns or self.overrun_periods:
                self._count_overruns()
            self._watch()

    def _count_overruns(self) -> None:
        """Count a period with overruns, or the end of such periods."""
        self.overrun_periods = self.overrun_periods + 1 if self.overruns else 0
        self.overruns = 0
        if self.overrun_periods > self.port.overrun_errors:
            self.overrun_periods = 0
            self.counters.excessive_buffer_overrun_errors += 1
            self._report(Trap.EXCESSIVE_BUFFER_OVERRUN)

    def _watch(self) -> None:
        """Count the periods in which the other end was silent for a lane that both ends have."""
        peer, updated = self.port.peer, self.updated
        self.updated = 0
        if peer is None or not PortState.ARMED <= self.state <= PortState.ACTIVE:
            self.silence = 0
            return
        lanes = min(self.lanes, LANES_OF_CODE.get(peer.operational_vls, 1))
        if updated & (1 << lanes) - 1 == (1 << lanes) - 1:
            self.silence = 0
            return
        self.silence += 1
        if self.silence >= WATCHDOG_PERIODS:
            self.silence = 0
            self._report(Trap.FLOW_CONTROL_WATCHDOG)

    def _damaged(self) -> None:
        """Count a packet that the link has damaged."""
        if self.local_errors.count():
            self._report(Trap.LOCAL_LINK_INTEGRITY)

    def _report(self, number: Trap) -> None:
        if self.on_error is not None:
            self.on_error(self, number)

    def poll_flow_control(self, now: Time) -> FlowControl:
        """The next flow-control packet; one is due."""
        if now >= self.settles_at:
            self.settle(now)
        due = self.due
        vl = 0 if due & 1 else (due & -due).bit_length() - 1
        self.due = due & due - 1
        buffer = self.buffers[vl]
        limit = buffer.announced = buffer.limit
        operation = INITIALIZING if self.state < ARMED else NORMAL
        return FlowControl(vl, sent=self.credits[vl].sent, limit=limit, operation=operation)

    def sent(self, packet: LinkPacket, now: Time) -> None:
        """Count a packet that leaves, and its credits."""
        if packet.vl != MANAGEMENT_VL:
            credits = self.credits[packet.vl]
            credits.sent = credits.sent + packet.cost & COUNT_MASK
        counters = self.counters
        counters.port_xmit_pkts += 1
        counters.port_xmit_data += packet.words
        if FIRST_MULTICAST <= packet.dlid != PERMISSIVE_LID:
            counters.port_multicast_xmit_pkts += 1
        if self.wait_since is not None:
            self.end_wait(now)

    def begin_wait(self, now: Time) -> None:
        """Packets wait and none may leave: PortXmitWait counts from now on."""
        if self.wait_since is None:
            self.wait_since = now

    def end_wait(self, now: Time) -> None:
        """A packet leaves, or none waits any more."""
        if self.wait_since is not None:
            self.counters.port_xmit_wait += (now - self.wait_since) // self.tick
            self.wait_since = None

    # What arrives.

    def plan_arrival(self, frame: Frame | UnbuiltFrame, arrival: Time) -> Time:
        """When the node is given a flow-control packet that arrives at a time.

        Only if packets wait for it: otherwise it is found where its limit is needed.
        """
        if isinstance(frame, FlowControl):
            self.expect(frame, arrival)
        else:
            assert isinstance(frame, Frame)
            packet = read_limit(frame)
            if packet is None:
                return arrival
            self.expect(packet, arrival)
        return NOT_GIVEN if self.wait_since is None else arrival

    def expect(self, packet: FlowControl, arrival: Time) -> None:
        """Keep a flow-control packet for the time from which it counts."""
        packet.arrival = arrival
        if self.counts is None:
            self.counts = packet
        elif self._last is not None:
            self._last.next = packet
        if self.coming is None:
            self.coming = packet
        self._last = packet
        if arrival < self.settles_at:
            self.settles_at = arrival

    def forget_coming(self) -> None:
        """Flow-control packets that are on their way here are lost."""
        self.coming = self.counts = self._last = None
        self.settles_at = NEVER

    def settle(self, now: Time) -> None:
        """Take over what the flow-control packets say that have arrived by now."""
        packet = self.coming
        while packet is not None and packet.arrival <= now:
            if self.local_errors.more:
                self.local_errors.more -= 1
            if packet.operation <= INITIALIZING and packet.vl < self.lanes:
                self.updated |= 1 << packet.vl
                self.credits[packet.vl].limit = packet.limit
            packet = packet.next
        self.coming = packet
        before = now - self.pipe  # the packets that arrived by then were taken
        packet = self.counts
        while packet is not None and packet.arrival <= before:
            if packet.operation <= INITIALIZING and packet.vl < self.lanes:
                self.buffers[packet.vl].accepted = packet.sent
            packet = packet.next
        self.counts = packet
        self.settles_at = NEVER if packet is None else packet.arrival + self.pipe
        if self.coming is not None and self.coming.arrival < self.settles_at:
            self.settles_at = self.coming.arrival

    def take_flow_control(self, given: Frame | FlowControl, now: Time) -> None:
        """Take a flow-control packet that arrives, unless `plan_arrival` has it already."""
        packet = given if isinstance(given, FlowControl) else read_limit(given)
        if packet is None:
            self.settle(now)
            self.errors += 1
            self._damaged()
        elif self.incoming.plan_arrival is None:
            self.expect(packet, now)

    def take(self, packet: LinkPacket, now: Time) -> bool:
        """Count a packet that arrives; `False` if it is dropped here.

        The packet is then in the buffer until it is taken out of it, unless it is on VL15.
        """
        if now >= self.settles_at:
            self.settle(now)
        counters = self.counters
        counters.port_rcv_pkts += 1
        counters.port_rcv_data += packet.words
        if packet.is_damaged:
            counters.symbol_error_counter += 1
            self._damaged()
        elif self.local_errors.more:
            self.local_errors.more -= 1
        if packet.is_malformed:
            counters.reject(MALFORMED)
            return False
        vl = packet.vl
        least = INIT if vl == MANAGEMENT_VL else ARMED
        if self.state < least or self.state == ACTIVE_DEFER:
            return False
        if FIRST_MULTICAST <= packet.dlid != PERMISSIVE_LID:
            counters.port_multicast_rcv_pkts += 1
        if vl == MANAGEMENT_VL:
            return True
        if vl >= self.lanes:
            counters.reject(MALFORMED)
            return False
        if not self.buffers[vl].take(packet.cost):
            counters.reject(OVERRUN)
            self.overruns += 1
            return False
        if self.state == ARMED and not packet.is_damaged:
            self.state = self.port.state = PortState.ACTIVE
        return True

    def is_bad(self, packet: LinkPacket) -> bool:
        """Whether a packet turns out to be damaged at its end; counts it then.

        It needs not be asked for a packet of a device, unless this end `verifies`.
        """
        frame = packet.build()
        if type(frame) is AbortedFrame:
            self.counters.port_rcv_remote_physical_errors += 1
            return True
        if (self.verifies or packet.is_damaged) and not has_good_vcrc(frame):
            self.counters.reject(DAMAGED)
            return True
        return False

    def give(self, vl: int) -> bool:
        """Have the limit of a lane sent, which has grown; whether it is."""
        if self.state < INIT or vl >= self.lanes:
            return False
        self.due |= 1 << vl
        return True

    def __repr__(self) -> str:
        return f"<end of the link at {self.port.node.name}[{self.port.number}]>"
