"""MADs between the ports of a subnet: delivered at once, hop by hop, with the rules of the fabric.

A MAD goes from port to port as a packet does: over links that are up, by the tables of the
switches, and every port it passes counts it. What arrives is answered by the agents of the node,
or handed to the programs at the port.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import expm1, log1p
from typing import Protocol

from ibwire.base.errors import EncodeError
from ibwire.base.units import Time
from ibwire.fabric.infiniband.counters import DAMAGED, INACTIVE, NO_ROUTE
from ibwire.fabric.infiniband.local_errors import LocalErrors
from ibwire.fabric.infiniband.lrh import VCRC_SIZE
from ibwire.fabric.infiniband.states import INIT
from ibwire.fabric.infiniband.subnet import IS_SM, PERMISSIVE_LID, Port, Subnet
from ibwire.sm.direct import DirectRequests
from ibwire.sm.link_times import LinkTimes, Way, is_broken
from ibwire.sm.mads import (
    DIRECTION,
    GRH_WORDS,
    HOP_COUNT,
    HOP_POINTER,
    INITIAL_PATH,
    METHOD,
    MGMT_CLASS,
    PACKET_WORDS,
    RETURN_PATH,
    SMP_CLASSES,
    STATUS_BYTE,
    Datagram,
    attribute_of,
)
from ibwire.sm.pma import PMA
from ibwire.sm.routes import (
    DELIVER,
    DISCARD,
    directed,
    is_directed_throughout,
    next_port,
)
from ibwire.sm.sma import SMA
from ibwire.sm.traps import TrapSender
from ibwire_layers.attributes import PortState, SMAttribute
from ibwire_layers.mad import GSI_QKEY, Method, MgmtClass, Status, Trap

_GET, _SET, _TRAP_REPRESS = int(Method.GET), int(Method.SET), int(Method.TRAP_REPRESS)
_DIRECTED_ROUTE = int(MgmtClass.SUBN_DIRECTED_ROUTE)
_SM_INFO, _PERFORMANCE = int(SMAttribute.SM_INFO), int(MgmtClass.PERF)
# Plain numbers: a member of an enumeration takes as long to look up as a MAD to cross a link.
_QKEY_OF_SENDER = 1 << 31
"""Bit of the Q_Key of a work request: the packet gets the one of its queue pair (IBA 10.2.5)."""
MAXIMUM_LID_HOPS = 1000
"""Switches that a MAD passes before it is taken to go round in a loop: in time, the lifetime limit
of a switch ends it."""


class Programs(Protocol):
    """What uses the queue pairs 0 and 1 of a port beside its agents."""

    def deliver(self, datagram: Datagram, now: Time) -> bool:
        """Take a MAD; `False` if nothing here waits for it."""
        ...


class Manager(Programs, Protocol):
    """A subnet manager at a port, which has times at which something is due."""

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due."""
        ...

    def handle_timeout(self, now: Time) -> None:
        """Do what is due."""
        ...


class Management:
    """All MADs of a subnet.

    subnet: its nodes; they may change at any time. times: how long MADs travel; without, they are
    delivered at once.
    """

    def __init__(self, subnet: Subnet, times: LinkTimes | None = None) -> None:
        self.subnet = subnet
        self.times = times
        self.traps = TrapSender(self.send)
        self.sma = SMA(subnet, self.traps.bad_mkey)
        self.pma = PMA()
        self.programs: dict[Port, Programs] = {}
        """By port: of a channel adapter, or port 0 of a switch."""
        self.managers: dict[Port, Manager] = {}
        """Subnet managers of our own, which see MADs before the programs at the port."""
        self.on_packet: Callable[[Port, Port, Datagram, int], None] | None = None
        """Called for each link that a MAD passes, with the ports at its ends, and the number of
        the port by which it came into the first node: 0 if it comes from there."""
        self.delivered = 0
        """MADs that have reached their node."""
        self.lost = 0
        """MADs that have not."""
        self.direct = DirectRequests(subnet, self.sma, self._answered)
        self._psn = 0
        self._waiting: deque[tuple[Datagram, Port]] = deque()
        self._travelling: list[tuple[Time, int, Datagram, Port, Way]] = []
        """A heap of MADs by the time at which they arrive, with their way."""
        self._number = count().__next__
        self._errors: dict[Port, float] = {}
        """Bit error rate of what leaves a port; the ports of a link that damages nothing are not in
        it."""
        self._local_errors: dict[Port, LocalErrors] = {}
        """Of the ports at which damaged packets have arrived."""
        self._draw = random.Random(0)
        self._now: Time = 0
        """When `run` was called last."""
        subnet.on_change = self.traps.link_changed
        subnet.on_down = self._link_down

    def send(self, datagram: Datagram, port: Port) -> None:
        """Take a MAD that a program or an agent sends from a port; `run` delivers it."""
        self._psn = datagram.psn = self._psn + 1 & 0xFFFFFF
        if datagram.dqp:  # a packet has keys of its sender
            datagram.pkey = port.management.pkey_like(datagram.pkey)
            if datagram.qkey & _QKEY_OF_SENDER:
                datagram.qkey = GSI_QKEY
        self._waiting.append((datagram, port))

    def answers_at_once(self, port: Port) -> bool:
        """Whether `direct` may answer what a program writes at a port, in place of `send`.

        The ports on the way count it in `settle` or `run`.
        """
        if self._waiting or self.times is not None or self.on_packet is not None or self._errors:
            return False
        return not self.managers or port.management not in self.managers

    def damage(self, port: Port, rate: float) -> None:
        """Damage what leaves a port at a bit error rate, 0 for none: a damaged packet is lost."""
        if not 0 <= rate < 1:
            raise EncodeError("bit error rate", rate, "0 or above, and below 1")
        if rate:
            self._errors[port] = rate
            return
        self._errors.pop(port, None)
        if port.peer is not None:
            self._local_errors.pop(port.peer, None)

    def damages(self, port: Port) -> bool:
        """Whether what leaves a port has bit errors."""
        return port in self._errors

    def settle(self) -> None:
        """Bring the counters of ports up to date."""
        self.direct.settle()

    @property
    def waiting(self) -> int:
        """MADs that wait for `run`."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether MADs wait for `run`."""
        return bool(self._waiting)

    def run(self, now: Time, most: int | None = None) -> None:
        """Deliver what waits, and what is sent in answer to it.

        most: MADs after which the rest waits for the next call.
        """
        self.direct.settle()
        self._now = now
        waiting, times = self._waiting, self.times
        left = -1 if most is None else most
        while left:
            left -= 1
            if self._travelling and self._travelling[0][0] <= now:
                _, _, datagram, arrived, _ = heappop(self._travelling)
                self.delivered += 1
                self._deliver(datagram, arrived, now)
                continue
            if not waiting:
                return
            datagram, port = waiting.popleft()
            if times is not None:
                times.begin(now)
            end = self._carry(datagram, port)
            if end is None:
                self.lost += 1
            elif times is None:
                self.delivered += 1
                self._deliver(datagram, end, now)
            else:
                if not datagram.is_response:
                    times.answers()
                travelling = times.now, self._number(), datagram, end, times.way()
                heappush(self._travelling, travelling)

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due."""
        dues = [self.traps.poll_timeout()]
        if self._travelling:
            dues.append(self._travelling[0][0])
        dues += [manager.poll_timeout() for manager in self.managers.values()]
        return min((due for due in dues if due is not None), default=None)

    def handle_timeout(self, now: Time, most: int | None = None) -> None:
        """Repeat traps that nobody has repressed, and let managers do what is due.

        most: as for `run`.
        """
        self.traps.handle_timeout(now)
        for manager in list(self.managers.values()):
            due = manager.poll_timeout()
            if due is not None and due <= now:
                manager.handle_timeout(now)
        self.run(now, most)

    def add_manager(self, port: Port, manager: Manager) -> None:
        """Let a subnet manager run at a port; one at a time."""
        self.managers[port] = manager
        port.capability_mask |= IS_SM
        self.traps.capabilities_changed(port)

    def remove_manager(self, port: Port) -> None:
        """End the subnet manager at a port."""
        if self.managers.pop(port, None) is not None:
            port.capability_mask &= ~IS_SM
            self.traps.capabilities_changed(port)

    def _link_down(self, port: Port) -> None:
        """Lose the packets on a link that goes down, and those that have yet to pass it."""
        self._local_errors.pop(port, None)
        if self.times is None or not self._travelling:
            return
        now = self.times.clock() if self.times.clock is not None else self._now
        kept = [each for each in self._travelling if not is_broken(each[4], port, now)]
        self.lost += len(self._travelling) - len(kept)
        heapify(kept)
        self._travelling = kept

    def _answered(self, requests: int) -> None:
        """So many requests and their responses have been delivered by `direct`."""
        self._psn = self._psn + 2 * requests & 0xFFFFFF
        self.delivered += 2 * requests

    def _carry(self, datagram: Datagram, start: Port) -> Port | None:
        """Take a MAD to its destination: the port it arrives at, or `None`."""
        mad = datagram.mad
        if is_directed_throughout(datagram):
            return self._walk(datagram, start)
        node, arrived = start.node, None
        is_data = mad[MGMT_CLASS] not in SMP_CLASSES
        least = PortState.ACTIVE if is_data else PortState.INIT
        taken_from = min(least, PortState.ARMED)
        for _ in range(MAXIMUM_LID_HOPS):
            if arrived is None and not node.is_switch:
                if mad[MGMT_CLASS] == _DIRECTED_ROUTE and datagram.dlid == PERMISSIVE_LID:
                    # A channel adapter sends by the port that the program has opened.
                    out = directed(mad, node, None)
                    out = out if out in (DELIVER, start.number) else DISCARD
                else:
                    out = DELIVER if start.has_lid(datagram.dlid) else start.number
            else:
                out = next_port(datagram, node, arrived)
                is_by_lid = datagram.dlid != PERMISSIVE_LID
                if out == DISCARD and is_by_lid and arrived is not None and node.is_switch:
                    arrived.counters.reject(NO_ROUTE)
            if is_data and arrived is not None and not self._admits(datagram, arrived):
                return None
            if out == DELIVER or (out == 0 and node.is_switch):
                return start if arrived is None else arrived
            if not 0 < out < len(node.ports):
                return None
            leaving = node.ports[out]
            peer = leaving.peer
            if peer is None or not (leaving.carries(least) and peer.carries(taken_from)):
                leaving.counters.discard(INACTIVE)
                return None
            if (
                is_data
                and leaving.enforces_pkeys_outbound
                and node.is_switch
                and not leaving.passes_pkey(datagram.pkey)
            ):
                leaving.counters.port_xmit_constraint_errors += 1
                self.traps.bad_pkey_at_switch(leaving, datagram)
                return None
            if peer.state < least:  # Armed, and this is data
                peer.state = PortState.ACTIVE
            if not self._cross(leaving, peer, datagram, 0 if arrived is None else arrived.number):
                return None
            node, arrived = peer.node, peer
        return None

    def _admits(self, datagram: Datagram, arrived: Port) -> bool:
        """Whether a port lets a packet in by its P_Key, if it is one of a switch that checks."""
        if not (arrived.node.is_switch and arrived.enforces_pkeys_inbound):
            return True
        if arrived.passes_pkey(datagram.pkey):
            return True
        arrived.counters.port_rcv_constraint_errors += 1
        self.traps.bad_pkey_at_switch(arrived, datagram)
        return False

    def _cross(self, leaving: Port, peer: Port, datagram: Datagram, came: int) -> bool:
        """Take a MAD over a link; `False` if it is damaged there."""
        words = PACKET_WORDS + (GRH_WORDS if datagram.grh is not None else 0)
        leaving.counters.port_xmit_pkts += 1
        leaving.counters.port_xmit_data += words
        peer.counters.port_rcv_pkts += 1
        peer.counters.port_rcv_data += words
        if self.times is not None:
            self.times.passes(leaving, words)
        if self.on_packet is not None:
            self.on_packet(leaving, peer, datagram, came)
        return not (self._errors and self._is_damaged(leaving, peer, words))

    def _is_damaged(self, leaving: Port, peer: Port, words: int) -> bool:
        """Whether a packet arrives with bit errors; the port that receives it counts that."""
        rate = self._errors.get(leaving, 0.0)
        bits = 8 * (4 * words + VCRC_SIZE)
        # 1 - (1 - rate) ** bits, also for rates near 0.
        if not rate:
            return False
        local = self._local_errors.get(peer)
        if self._draw.random() >= -expm1(bits * log1p(-rate)):
            if local is not None and local.more:
                local.more -= 1
            return False
        peer.counters.symbol_error_counter += 1
        peer.counters.reject(DAMAGED)
        if local is None:
            local = self._local_errors[peer] = LocalErrors(peer)
        if local.count():
            self.traps.link_error(peer, Trap.LOCAL_LINK_INTEGRITY)
        return True

    def _walk(self, datagram: Datagram, start: Port) -> Port | None:
        """The same for a directed-route SMP without a part by LID: nearly all of a sweep."""
        mad = datagram.mad
        node, arrived, returns = start.node, start, bool(mad[STATUS_BYTE] & DIRECTION)
        hops = mad[HOP_COUNT]
        path = RETURN_PATH if returns else INITIAL_PATH
        first = hops if returns else 1
        for place in range(hops, 0, -1) if returns else range(1, hops + 1):
            out = mad[path + place]
            # An adapter sends by the port that the program has opened, and forwards nothing.
            if not node.is_switch and (place != first or out != start.number):
                return None
            if out == 0:
                mad[HOP_POINTER] = place
                return arrived
            if out >= len(node.ports):
                return None
            leaving = node.ports[out]
            peer = leaving.peer
            if peer is None or not (leaving.carries(INIT) and peer.carries(INIT)):
                leaving.counters.discard(INACTIVE)
                return None
            counters = leaving.counters
            counters.port_xmit_pkts += 1
            counters.port_xmit_data += PACKET_WORDS
            counters = peer.counters
            counters.port_rcv_pkts += 1
            counters.port_rcv_data += PACKET_WORDS
            if self.times is not None:
                self.times.passes(leaving, PACKET_WORDS)
            if self.on_packet is not None:
                mad[HOP_POINTER] = place
                self.on_packet(leaving, peer, datagram, 0)
            if self._errors and self._is_damaged(leaving, peer, PACKET_WORDS):
                return None
            node, arrived = peer.node, peer
            if not returns:
                mad[RETURN_PATH + place] = peer.number
        mad[HOP_POINTER] = 0 if returns else hops + 1
        return arrived

    def _deliver(self, datagram: Datagram, arrived: Port, now: Time) -> None:
        """Hand a MAD to the agent or the programs of a node."""
        mad = datagram.mad
        node = arrived.node
        mgmt_class, method = mad[MGMT_CLASS], mad[METHOD]
        if mgmt_class not in SMP_CLASSES and not self._has_keys(datagram, arrived.management):
            self.delivered -= 1
            self.lost += 1
            return
        is_request = method in (_GET, _SET)
        answer: Datagram | None = None
        if mgmt_class in SMP_CLASSES:
            if method == _TRAP_REPRESS and self.traps.repress(arrived.management, datagram):
                return
            if is_request and attribute_of(mad) != _SM_INFO:
                answer = self.sma.answer(node, arrived.number, datagram, now)
            elif not self._to_programs(datagram, arrived, now) and is_request:
                answer = datagram.answer(status=int(Status.METHOD_ATTRIBUTE_NOT_SUPPORTED))
        elif mgmt_class == _PERFORMANCE and is_request:
            answer = self.pma.answer(node, arrived.number, datagram)
        else:
            self._to_programs(datagram, arrived, now)
        if answer is not None:
            self.send(answer, arrived if arrived.number else node.ports[0])

    def _has_keys(self, datagram: Datagram, port: Port) -> bool:
        """Whether queue pair 1 of a port takes a packet by its P_Key and its Q_Key."""
        if not port.accepts_pkey(datagram.pkey):
            port.pkey_violations = min(port.pkey_violations + 1, 0xFFFF)
            self.traps.bad_pkey(port, datagram)
            return False
        if datagram.qkey in (0, GSI_QKEY):  # 0: not given
            return True
        port.qkey_violations = min(port.qkey_violations + 1, 0xFFFF)
        self.traps.bad_qkey(port, datagram)
        return False

    def _to_programs(self, datagram: Datagram, arrived: Port, now: Time) -> bool:
        manager = self.managers.get(arrived.management)
        if manager is not None and manager.deliver(datagram, now):
            return True
        programs = self.programs.get(arrived.management)
        return programs is not None and programs.deliver(datagram, now)
