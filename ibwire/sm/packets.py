"""MADs as packets of a fabric in virtual time: SMPs on VL15, others on the lanes of data.

`Management` delivers MADs at once; here they share the links with data. Their agents, traps and
subnet managers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import Time
from ibwire.fabric.infiniband.counters import INACTIVE
from ibwire.fabric.infiniband.lrh import MANAGEMENT_VL
from ibwire.fabric.infiniband.network import PacketFabric, key_of
from ibwire.fabric.infiniband.subnet import PERMISSIVE_LID, Node, Port
from ibwire.sm.mads import (
    METHOD,
    MGMT_CLASS,
    MODIFIER,
    SMP_CLASSES,
    Datagram,
    attribute_of,
)
from ibwire.sm.management import Management
from ibwire.sm.recording import GLOBAL, packet_of
from ibwire.sm.routes import DELIVER, DISCARD, directed, next_port
from ibwire_layers.attributes import SMAttribute
from ibwire_layers.headers import BTH, DETH, GRH, LRH
from ibwire_layers.mad import MAD_SIZE, Method, Trap
from ibwire_layers.opcodes import Service

_SET = int(Method.SET)


class PacketManagement(Management):
    """The management of a packet fabric: a node of its simulator, without ports.

    An agent answers after `agent_delay` of the settings. A directed-route SMP is forwarded by each
    switch when it is there whole.
    """

    name = "management"

    def __init__(self, fabric: PacketFabric) -> None:
        super().__init__(fabric.subnet)
        self.fabric = fabric
        fabric.activates = False
        for switch in fabric.switches.values():
            switch.to_management = partial(self._arrive, switch.node)
            switch.on_bad_pkey = self._bad_pkey
        for adapter in fabric.adapters.values():
            adapter.to_management = partial(self._arrive, adapter.link.port.node)
            adapter.on_bad_key = self._bad_key
        fabric.subnet.on_change = self._link_changed
        fabric.on_link_error = self._link_error
        fabric.simulator.kick(self)

    @property
    def is_idle(self) -> bool:
        """Whether no trap is repeated, and no subnet manager waits for an answer."""
        return self.traps.poll_timeout() is None and not any(
            getattr(manager, "is_asking", False) for manager in self.managers.values()
        )

    # As a node of the simulator.

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Does nothing: it has no ports."""

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """`None`: it has no ports."""
        return None

    def run(self, now: Time, most: int | None = None) -> None:
        """Let all MADs leave that agents and managers have sent."""
        while self._waiting:
            datagram, port = self._waiting.popleft()
            self._leave(datagram, port, now)
        self.fabric.simulator.kick(self)

    # What leaves a node.

    def _leave(self, datagram: Datagram, port: Port, now: Time) -> None:
        """Send a MAD from the port of an adapter, or from port 0 of a switch."""
        node = port.node
        if node.is_switch:
            out = next_port(datagram, node, None)
        elif _is_by_path(datagram):
            # A channel adapter sends by the port that the program has opened.
            out = directed(datagram.mad, node, None)
            out = out if out in (DELIVER, port.number) else DISCARD
        else:
            out = DELIVER if port.has_lid(datagram.dlid) else port.number
        if out == DELIVER or (out == 0 and node.is_switch):
            self._hand_over(datagram, port, now)
        else:
            self._send(datagram, node, out, now)

    def _send(self, datagram: Datagram, node: Node, out: int, now: Time) -> None:
        """Put a packet into the queue of a port."""
        fabric = self.fabric
        port = node.ports[out] if 0 < out < len(node.ports) else None
        if port is None or port.peer is None or key_of(port) not in fabric.wires:
            self.lost += 1
            return
        if not port.is_up:
            port.counters.discard(INACTIVE)
            self.lost += 1
            return
        is_smp = datagram.mad[MGMT_CLASS] in SMP_CLASSES
        packet = packet_of(datagram, vl=MANAGEMENT_VL if is_smp else 0)
        if node.is_switch:
            switch = fabric.switches[node.name]
            if is_smp:
                switch.send_smp(packet, out, now)
            else:
                switch.send(packet, out, now)
            fabric.simulator.kick(switch)
            return
        adapter = fabric.adapters[key_of(port)]
        if is_smp:
            adapter.send_smp(packet)
        else:
            adapter.send_mad(packet)
        fabric.simulator.kick(adapter)

    # What arrives at a node.

    def _arrive(self, node: Node, frame: Frame, came: int, whole: Time) -> None:
        """Take a packet for the management of a node, which is there whole at a time."""
        begin = self.fabric.simulator.now
        if begin < whole:
            self._later(whole, partial(self._complete, node, frame, came, begin))
        else:
            self._complete(node, frame, came, begin, whole)

    def _complete(self, node: Node, frame: Frame, came: int, begin: Time, whole: Time) -> None:
        """Take a packet that is there whole, unless its link has gone down meanwhile."""
        if begin < whole and self.fabric.was_cut_since(node.ports[came], begin):
            self.lost += 1
            return
        datagram = datagram_of(frame)
        if datagram is None:
            self.lost += 1
            return
        port, settings = node.ports[came], self.fabric.settings
        out = DELIVER
        if datagram.is_directed or not node.is_switch:
            out = next_port(datagram, node, port)
        if out == DELIVER or (out == 0 and node.is_switch):
            delay = 0 if datagram.is_response else settings.agent_delay
            self._later(whole + delay, partial(self._hand_over, datagram, port))
        elif out == DISCARD:
            self.lost += 1
        else:
            self._later(whole + settings.latency, partial(self._send, datagram, node, out))

    def _later(self, time: Time, action: Callable[[Time], None]) -> None:
        timetable = self.fabric.timetable
        time = max(time, self.fabric.simulator.now)
        timetable.add(time, lambda: action(time))
        self.fabric.simulator.kick(timetable)

    def _hand_over(self, datagram: Datagram, arrived: Port, now: Time) -> None:
        """Give a MAD to the agent or the programs of a node."""
        self.delivered += 1
        mad = datagram.mad
        if mad[MGMT_CLASS] not in SMP_CLASSES or mad[METHOD] != _SET:
            self._deliver(datagram, arrived, now)
        else:
            node, attribute = arrived.node, attribute_of(mad)
            number = mad[MODIFIER][-1] if node.is_switch else arrived.number
            port = node.ports[number] if number < len(node.ports) else None
            before = None if port is None else _link_of(port)
            self._deliver(datagram, arrived, now)
            if port is not None and before is not None and _link_of(port) != before:
                self.fabric.follow(port)
            self._take_over(port, attribute)
        self.run(now)

    def _take_over(self, port: Port | None, attribute: int) -> None:
        """Let the fabric go by what a Set, of a port perhaps, may have changed."""
        if attribute == SMAttribute.LINEAR_FORWARDING_TABLE:
            self.fabric.routes_changed()
        elif attribute in _OF_PORTS and port is not None:
            self.fabric.tables_changed(port)

    def _link_changed(self, node: Node) -> None:
        self.traps.link_changed(node)
        self.fabric.simulator.kick(self)

    def _link_error(self, port: Port, number: Trap) -> None:
        self.traps.link_error(port, number)
        self.fabric.simulator.kick(self)

    def _bad_key(self, port: Port, frame: Frame, is_qkey: bool) -> None:
        """A queue pair of an adapter drops a packet of data by its Q_Key or its P_Key."""
        datagram, _ = _addresses_of(frame)
        if is_qkey:
            self.traps.bad_qkey(port, datagram)
        else:
            self.traps.bad_pkey(port, datagram)
        self.fabric.simulator.kick(self)

    def _bad_pkey(self, port: Port, frame: Frame) -> None:
        """A switch drops a packet, of data or with a MAD, by its P_Key."""
        datagram, has_source_qp = _addresses_of(frame)
        self.traps.bad_pkey_at_switch(port, datagram, has_source_qp=has_source_qp)
        self.fabric.simulator.kick(self)


_OF_PORTS = (
    SMAttribute.PORT_INFO,
    SMAttribute.SWITCH_INFO,
    SMAttribute.SL_TO_VL_MAPPING_TABLE,
    SMAttribute.VL_ARBITRATION_TABLE,
)
"""Attributes that change how packets move by a port; the low byte of the modifier is the port."""


def _link_of(port: Port) -> tuple[bool, int]:
    """What changes when a Set takes a link down or lets it come up: its state, and how often."""
    return port.is_up, port.counters.link_downed_counter


def _is_by_path(datagram: Datagram) -> bool:
    return datagram.is_directed and datagram.dlid == PERMISSIVE_LID


def _addresses_of(frame: Frame) -> tuple[Datagram, bool]:
    """What the headers of a packet say, without its content; whether they name the sender's QP."""
    lrh = LRH.unpack(frame)
    at = LRH.SIZE + (GRH.SIZE if lrh.lnh == GLOBAL else 0)
    bth = BTH.unpack(frame[at:])
    is_datagram = bth.opcode >> 5 == Service.UD
    deth = DETH.unpack(frame[at + BTH.SIZE :]) if is_datagram else DETH()
    datagram = Datagram(
        bytearray(),
        lrh.slid,
        lrh.dlid,
        deth.src_qp,
        bth.dest_qp,
        sl=lrh.sl,
        qkey=deth.qkey,
        pkey=bth.pkey,
        grh=bytes(frame[LRH.SIZE : at]) or None,
    )
    return datagram, is_datagram


def datagram_of(frame: Frame) -> Datagram | None:
    """The MAD in a packet; `None` if the packet is too short for one."""
    lrh = LRH.unpack(frame)
    at = LRH.SIZE + (GRH.SIZE if lrh.lnh == GLOBAL else 0)
    end = at + BTH.SIZE + DETH.SIZE
    if len(frame) < end + MAD_SIZE:
        return None
    bth, deth = BTH.unpack(frame[at:]), DETH.unpack(frame[at + BTH.SIZE :])
    return Datagram(
        bytearray(frame[end : end + MAD_SIZE]),
        slid=lrh.slid,
        dlid=lrh.dlid,
        sqp=deth.src_qp,
        dqp=bth.dest_qp,
        sl=lrh.sl,
        qkey=deth.qkey,
        pkey=bth.pkey,
        grh=bytes(frame[LRH.SIZE : at]) or None,
        psn=bth.psn,
    )
