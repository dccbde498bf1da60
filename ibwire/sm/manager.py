"""A subnet manager: finds a subnet, brings it up, watches it, and agrees with others who is master.

It starts in `DISCOVERING`: it sweeps, and looks at the managers of other ports. If one is master,
or has a higher priority (of equal ones the smaller GUID is higher), it goes to `STANDBY` and asks
the other from time to time; when that no longer answers, it starts again. Otherwise it is `MASTER`:
it writes LIDs, tables and states, sweeps when a trap or a light sweep tells of a change, and hands
over to a higher manager that appears. `NOT_ACTIVE` it is when another has disabled it.

Nothing here waits: MADs come in by `deliver`, time by `handle_timeout` (IBA 14.4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from ibwire.base.errors import IbwireError
from ibwire.base.units import S, Time
from ibwire.fabric.infiniband.subnet import IS_SM, Port
from ibwire.sm.administration import TRUSTED as SM_KEY
from ibwire.sm.administration import Administration
from ibwire.sm.asking import Ask, Questions
from ibwire.sm.configuration import Settings, Written, configure, multicast
from ibwire.sm.discovery import PAUSE, Steps, View, discover
from ibwire.sm.mads import (
    METHOD,
    MGMT_CLASS,
    MODIFIER,
    SMP_CLASSES,
    SMP_DATA,
    TID,
    Datagram,
    attribute_of,
)
from ibwire.sm.port_tables import read_tables
from ibwire_layers.attributes import PortInfo, PortState, SMAttribute, SMInfo, SMState
from ibwire_layers.mad import MAD, MAD_SIZE, Method, MgmtClass, Notice, Status, Trap

log = logging.getLogger(__name__)

POLLS = 5
"""Questions without an answer until the master is taken to be gone."""
SETTLE: Time = S // 100
"""From a sign of a change to the sweep: signs often come together."""

MAXIMUM_HELD = 1000
"""Requests that wait until tables are read; more are not answered."""

HANDOVER, ACKNOWLEDGE, DISABLE, STANDBY, DISCOVER = 1, 2, 3, 4, 5
"""Modifiers of a Set of SMInfo."""


class SubnetManager:
    """A subnet manager at a port.

    send: takes a MAD that leaves the port.
    """

    def __init__(
        self, settings: Settings, send: Callable[[Datagram], None], *, window: int = 8
    ) -> None:
        self.settings = settings
        self.state = SMState.DISCOVERING
        self.view = View()
        self.sweeps = 0
        """Heavy sweeps that are done."""
        self.master: Port | None = None
        """Of a standby: the port of the master."""
        self.administration = Administration(settings, send)
        self.administration.describe = self._info
        self._send = send
        self._questions = Questions(send, mkey=settings.mkey, window=window)
        self._steps: Steps | None = None
        self._is_paused = False
        """Whether the steps go on at the next `handle_timeout`."""
        self._after: Callable[[Time], None] = self._start_sweep
        self._written = Written()
        self._wake: Time | None = 0
        """When to sweep or poll next."""
        self._is_changed = True
        """Whether the next sweep is a heavy one."""
        self._unanswered = 0
        self._held: dict[tuple[int, bytes], Datagram] = {}
        """Requests that wait until tables are read, by LID and transaction."""

    @property
    def is_up(self) -> bool:
        """Whether it is master, and has brought up what it knows of."""
        return self.state is SMState.MASTER and self._steps is None and not self._is_changed

    @property
    def is_asking(self) -> bool:
        """Whether it is in the middle of a sweep or a poll, or will sweep for a change."""
        return self._steps is not None or self._is_changed

    def deliver(self, datagram: Datagram, now: Time) -> bool:
        """Take a MAD that has come to the port; `False` if it is not for a manager."""
        mad = datagram.mad
        if mad[MGMT_CLASS] == MgmtClass.SUBN_ADM:
            if self.state is not SMState.MASTER:
                return False
            if self._reads_first(datagram, now):
                return True
            taken = self.administration.deliver(datagram, now)
            if self.administration.has_changed_groups and self._steps is None:
                self._write_groups(now)
            return taken
        if mad[MGMT_CLASS] not in SMP_CLASSES:
            return False
        if mad[METHOD] == Method.GET_RESP:
            if not self._questions.receive(datagram, now):
                return False
            self._go_on(now)
            return True
        if attribute_of(mad) == SMAttribute.SM_INFO and mad[METHOD] in (Method.GET, Method.SET):
            self._sm_info(datagram, now)
            return True
        if mad[METHOD] == Method.TRAP:
            self._trap(datagram, now)
            return True
        return False

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due."""
        if self._is_paused:
            return 0
        dues = [self._questions.poll_timeout() if self._steps is not None else self._wake]
        dues.append(self.administration.poll_timeout())
        return min((due for due in dues if due is not None), default=None)

    def handle_timeout(self, now: Time) -> None:
        """Sweep, poll, and repeat what was not answered."""
        self.administration.handle_timeout(now)
        if self._steps is not None:
            self._questions.handle_timeout(now)
            self._go_on(now)
        elif self._wake is not None and self._wake <= now:
            self._wake = None
            self._next(now)

    def stop(self) -> None:
        """Send nothing any more."""
        self.state = SMState.NOT_ACTIVE
        self._steps, self._wake, self._is_paused = None, None, False

    def _next(self, now: Time) -> None:
        if self.state is SMState.STANDBY:
            self._run(self._poll(), self._polled, now)
        elif self.state is SMState.DISCOVERING or self._is_changed:
            self._start_sweep(now)
        elif self.state is SMState.MASTER:
            self._run(self._look(), self._rest, now)

    def _run(self, steps: Steps, after: Callable[[Time], None], now: Time) -> None:
        """Start questions in steps; `after` is called when they are done."""
        self._steps, self._after = steps, after
        self._advance(lambda: next(steps), now)

    def _go_on(self, now: Time) -> None:
        steps = self._steps
        if steps is not None and not self._questions.is_busy:
            self._advance(lambda: steps.send(self._questions.take()), now)

    def _advance(self, step: Callable[[], list[Ask]], now: Time) -> None:
        steps = self._steps
        assert steps is not None
        self._is_paused = False
        try:
            asks = step()
            while not asks and asks is not PAUSE:
                asks = steps.send([])
        except StopIteration:
            self._steps = None
            self._after(now)
            return
        except IbwireError as error:
            self.view.problems.append(str(error))
            self._steps = None
            self._after(now)
            return
        self._is_paused = asks is PAUSE
        self._questions.start(asks, now)

    def _start_sweep(self, now: Time) -> None:
        self._is_changed = False
        self._run(self._sweep(), self._swept, now)

    def _sweep(self) -> Steps:
        """A heavy sweep: find everything, and as master write what differs."""
        view = View()
        if self.view.own is None:
            self.view = view  # others ask for our GUID before this ends
        yield from discover(view)
        if view.own is None:
            return
        self._take_over(view)
        others = view.managers()
        asks = [Ask(view.path(port), SMAttribute.SM_INFO) for port in others]
        answers = yield asks
        found = {
            port: SMInfo.unpack(answer)
            for port, answer in zip(others, answers, strict=True)
            if answer is not None
        }
        self.view = view
        yield from self._agree(found)
        if self.state is SMState.MASTER:
            self.administration.take(view)
            self.administration.managers = found
            groups = self.administration.groups()
            yield from configure(view, self.settings, self._written, groups)
            self.administration.take(view)

    def _take_over(self, view: View) -> None:
        """Keep in the new view what is not read anew, or later.

        Requests for paths and groups that come meanwhile need the tables.
        """
        for node in view.subnet.nodes.values():
            if (before := self.view.subnet.nodes.get(node.name)) is None:
                continue
            node.lft[:] = before.lft
            for port, old in zip(node.ports, before.ports, strict=False):
                # The tables of a port that has just come up may be those after power-on.
                if port.state != PortState.INIT:
                    port.sl2vl, port.arbitration = old.sl2vl, old.arbitration
                if port.state != PortState.INIT or port.management is port:
                    port.pkeys[:] = old.pkeys

    def _agree(self, found: dict[Port, SMInfo]) -> Steps:
        """Become master or standby, from what other managers say of themselves."""
        self.master = None
        for port, info in found.items():
            is_higher = self._is_higher(info)
            if self.state is SMState.MASTER:
                if is_higher and info.sm_state in (SMState.STANDBY, SMState.MASTER):
                    yield from self._hand_over(port)
                    return
            elif info.sm_state == SMState.MASTER or (
                is_higher and info.sm_state in (SMState.DISCOVERING, SMState.STANDBY)
            ):
                self.master = port
                self.state = SMState.STANDBY
                if info.sm_state == SMState.MASTER:
                    break
        if self.state is SMState.DISCOVERING:
            self.state = SMState.MASTER
            self._written = Written()

    def _hand_over(self, port: Port) -> Steps:
        ask = Ask(self.view.path(port), SMAttribute.SM_INFO, HANDOVER, self._info().pack())
        (answer,) = yield [ask]
        if answer is not None:
            log.info("handed over to 0x%x", port.guid)
            self.state, self.master = SMState.STANDBY, port

    def _is_higher(self, info: SMInfo) -> bool:
        own = self.view.own
        assert own is not None
        return (-info.priority, info.guid) < (-self.settings.priority, own.guid)

    def _swept(self, now: Time) -> None:
        self.sweeps += 1
        for problem in self.view.problems:
            log.warning("%s", problem)
        self._unanswered = 0
        if self.state is SMState.MASTER:
            self.administration.report_changes(now)
        self._rest(now)
        if self.state is SMState.STANDBY:
            self._tell_master(now)

    def _reads_first(self, datagram: Datagram, now: Time) -> bool:
        """Hold a request for tables that have to be read first; `False` if all are there."""
        if not self.administration.unread(datagram):
            return False
        key = datagram.slid, bytes(datagram.mad[TID])
        if key not in self._held and len(self._held) >= MAXIMUM_HELD:
            return True  # asked again later
        self._held[key] = datagram
        if self._steps is None:
            self._rest(now)
        return True

    def _rest(self, now: Time) -> None:
        """Answer what was held and write the groups that have changed, then wait."""
        if self.state is not SMState.MASTER:
            self._held.clear()
        while self._held:
            datagram = next(iter(self._held.values()))
            unread = self.administration.unread(datagram)
            if unread:
                self._run(read_tables(self.view, unread), self._rest, now)
                return
            self._held.pop((datagram.slid, bytes(datagram.mad[TID])))
            self.administration.deliver(datagram, now)
        if self.state is SMState.MASTER and self.administration.has_changed_groups:
            self._write_groups(now)
        elif self._wake is None or self._is_changed:
            self._schedule(now)

    def _schedule(self, now: Time) -> None:
        """When to look next."""
        if self._is_changed:
            self._wake = now + SETTLE
        elif self.state is SMState.STANDBY:
            self._wake = now + self.settings.poll_interval * S
        elif self.state is SMState.DISCOVERING:
            self._wake = now + S  # its own link is down
        elif self.settings.sweep_interval and self.state is SMState.MASTER:
            self._wake = now + self.settings.sweep_interval * S
        else:
            self._wake = None

    def _look(self) -> Steps:
        """A light sweep: whether a switch or the own link has a change, and who still answers."""
        own = self.view.own
        if own is not None and not own.node.is_switch:
            (answer,) = yield [Ask(self.view.path(own), SMAttribute.PORT_INFO, own.number)]
            self._is_changed |= answer is not None and _has_changed(own, answer)
        nodes = [node for node in self.view.subnet.nodes.values() if node.is_switch]
        paths = [self.view.path(node.ports[0]) for node in nodes]
        answers = yield [Ask(path, SMAttribute.SWITCH_INFO) for path in paths]
        for node, answer in zip(nodes, answers, strict=True):
            if answer is None:
                self._is_changed = True
                continue
            node.info[:] = answer
            self._is_changed |= bool(node.port_state_change)

    def _poll(self) -> Steps:
        """As standby: whether the master still answers."""
        master = self.master
        if master is None:
            return
        (answer,) = yield [Ask(self.view.path(master), SMAttribute.SM_INFO)]
        is_there = answer is not None and SMInfo.unpack(answer).sm_state != SMState.NOT_ACTIVE
        self._unanswered = 0 if is_there else self._unanswered + 1

    def _polled(self, now: Time) -> None:
        if self._unanswered >= POLLS or self.master is None:
            self.state = SMState.DISCOVERING
            self._is_changed = True
        elif self._unanswered == 0:
            self._tell_master(now)
        self._schedule(now)

    def _tell_master(self, now: Time) -> None:
        """Trap 144 to the master, which then compares priorities."""
        own = self.view.own
        if own is None or not own.lid or not own.master_sm_lid or own.master_sm_lid == own.lid:
            return
        details = bytes(2) + own.lid.to_bytes(2, "big") + bytes(3) + b"\1"
        details += (own.capability_mask | IS_SM).to_bytes(4, "big") + b"\0\x08"
        notice = Notice(
            is_generic=1,
            type=4,
            producer_type=1,
            trap_number=Trap.CAPABILITY_CHANGE,
            issuer_lid=own.lid,
            data_details=details.ljust(54, b"\0"),
        )
        header = MAD(
            mgmt_class=MgmtClass.SUBN_LID_ROUTED,
            class_version=1,
            method=Method.TRAP,
            transaction_id=now // S & 0xFFFF_FFFF,
            attribute_id=SMAttribute.NOTICE,
        )
        mad = bytearray(header.pack().ljust(MAD_SIZE, b"\0"))
        mad[SMP_DATA] = notice.pack().ljust(64, b"\0")
        self._send(Datagram(mad, slid=own.lid, dlid=own.master_sm_lid, sqp=0, dqp=0))

    def _info(self) -> SMInfo:
        own = self.view.own
        assert own is not None
        return SMInfo(
            guid=own.guid,
            sm_key=SM_KEY,
            act_count=self._questions.sent & 0xFFFF_FFFF,
            priority=self.settings.priority,
            sm_state=self.state,
        )

    def _sm_info(self, datagram: Datagram, now: Time) -> None:
        """Answer a question for SMInfo, and do what a Set of it says (IBA 14.4.1)."""
        mad = datagram.mad
        if self.view.own is None:
            return  # asked again later
        order = int.from_bytes(mad[MODIFIER], "big")
        status = 0
        if mad[METHOD] == Method.SET:
            moved = _ORDERS.get((self.state, order))
            if moved is None:
                status = int(Status.INVALID_ATTRIBUTE_VALUE)
            elif moved is not self.state or order == HANDOVER:
                self.state = moved
                self._written = Written()
                if moved in (SMState.MASTER, SMState.DISCOVERING):
                    self._change(now)
        self._send(datagram.answer(status=status, data=self._info().pack().ljust(64, b"\0")))

    def _trap(self, datagram: Datagram, now: Time) -> None:
        """Repress a trap, forward it to who has subscribed, and look what has changed."""
        mad = bytearray(datagram.mad)
        mad[METHOD] = Method.TRAP_REPRESS
        self._send(Datagram(mad, datagram.dlid, datagram.slid, datagram.dqp, datagram.sqp))
        if self.state is not SMState.MASTER:
            return
        notice = Notice.unpack(bytes(mad[SMP_DATA]))
        self.administration.report(bytes(mad[SMP_DATA])[: Notice.SIZE], now)
        # A sweep has the M_Key: it ends the lease that a wrong one has started.
        is_lease = notice.trap_number == Trap.BAD_M_KEY and self.settings.mkey_lease
        if notice.trap_number in (Trap.LINK_STATE_CHANGE, Trap.CAPABILITY_CHANGE) or is_lease:
            self._change(now)

    def _change(self, now: Time) -> None:
        """Sweep soon."""
        self._is_changed = True
        if self._steps is None:
            self._wake = now + SETTLE

    def _write_groups(self, now: Time) -> None:
        groups = self.administration.groups()
        self._run(multicast(self.view, self._written, groups), self._rest, now)


def _has_changed(own: Port, info: bytes) -> bool:
    """Whether the link of the manager went up or down, or leads to what the view lacks."""
    state = PortInfo.unpack(info).port_state
    if state != own.state:
        return True
    return state > PortState.DOWN and (state != PortState.ACTIVE or own.peer is None)


def _orders() -> Iterator[tuple[tuple[SMState, int], SMState]]:
    for state in (SMState.STANDBY, SMState.MASTER):
        yield (state, HANDOVER), SMState.MASTER
    yield (SMState.MASTER, ACKNOWLEDGE), SMState.MASTER
    yield (SMState.STANDBY, DISABLE), SMState.NOT_ACTIVE
    yield (SMState.STANDBY, DISCOVER), SMState.DISCOVERING
    yield (SMState.NOT_ACTIVE, STANDBY), SMState.STANDBY


_ORDERS = dict(_orders())
"""The new state by the old one and the modifier of a Set of SMInfo; others are refused."""
