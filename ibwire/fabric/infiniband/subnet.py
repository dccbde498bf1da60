"""The nodes of an InfiniBand subnet, their ports, and the links between them.

A port keeps PortInfo as the bytes of its attribute, so what a subnet manager reads is what the
fabric goes by. Links change the state of their ports; everything else in the tables is written
by a subnet manager (IBA 14.2.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

from ibwire.base.errors import EncodeError
from ibwire.base.toml import closest
from ibwire.fabric.infiniband.counters import Counters
from ibwire.fabric.infiniband.speeds import Speed, Width
from ibwire.fabric.infiniband.stored import Stored, mask_of
from ibwire.fabric.infiniband.tables import NO_PORT as NO_PORT
from ibwire.fabric.infiniband.tables import output_port
from ibwire_layers.attributes import (
    MTUCode,
    NodeInfo,
    NodeType,
    PortInfo,
    PortPhysicalState,
    PortState,
    SwitchInfo,
)

ATTRIBUTE_SIZE = 64
"""Bytes of an attribute in a subnet management packet."""

LINEAR_FDB_CAP = 0xC000
MULTICAST_FDB_CAP = 0x400
PERMISSIVE_LID: Final = 0xFFFF
FIRST_MULTICAST: Final = 0xC000
"""The lowest multicast LID."""
MULTICAST_BLOCK = 32
"""LIDs of a block of the multicast forwarding table."""

CAPABILITIES = 0x0250C048
"""CapabilityMask of a channel adapter: traps, SL mapping, extended speeds, CapabilityMask2,
vendor classes, notices of changes, client reregistration (IBA 14.2.5.6)."""
SWITCH_CAPABILITIES = 0x0040D048
"""CapabilityMask of port 0 of a switch; bit 12 is trap 259 of its external ports."""
CAPABILITIES2 = 0x0430
"""CapabilityMask2: width 2x, speeds HDR and NDR."""
IS_SM = 0x2
"""Bit of CapabilityMask: a subnet manager runs here."""

ERROR_THRESHOLD = 8
"""LocalPhyErrors and OverrunErrors that a subnet manager writes (opensm osm_subnet.c)."""

HEADERS_SIZE = 124
"""Bytes of a packet besides its payload, at most, that do not count against the MTU (IBA 7.7.8)."""

_VLS = 4
"""VLCap: VL0 to VL7."""
_PKEYS = 64
"""PartitionCap: entries of the P_Key table of a channel adapter, and of port 0 of a switch."""
_SWITCH_PORT_PKEYS = 64
"""PartitionEnforcementCap: the same of the other ports of a switch."""


class Port:
    """A port of a node; port 0 of a switch is its management port."""

    __slots__ = (
        "arbitration",
        "counters",
        "enables_fdr10",
        "guid",
        "has_fdr10",
        "info",
        "is_fdr10",
        "node",
        "number",
        "peer",
        "pkeys",
        "sl2vl",
    )

    def __init__(self, node: Node, number: int, guid: int) -> None:
        self.node = node
        self.number = number
        self.guid = guid
        self.info = bytearray(ATTRIBUTE_SIZE)
        """PortInfo."""
        self.peer: Port | None = None
        """The port at the other end of the link."""
        self.is_fdr10 = False
        """Whether a link that is QDR by PortInfo is FDR10."""
        self.has_fdr10 = self.enables_fdr10 = False
        """Whether it supports FDR10, and may use it: PortInfo has no bit for that."""
        self.pkeys: bytearray = bytearray(b"\xff\xff")
        """P_Key table; entries behind its end are 0."""
        self.sl2vl: dict[int, bytes] = {}
        """SL to VL mapping by input port; 0 on a channel adapter."""
        self.arbitration: dict[int, bytes] = {}
        """VL arbitration: 1 and 2 low, 3 and 4 high priority."""
        self.counters = Counters()
        self.info[:] = _INITIAL[self.kind]

    lid = Stored(PortInfo, "lid")
    lmc = Stored(PortInfo, "lmc")
    mkey = Stored(PortInfo, "mkey")
    mkey_protect_bits = Stored(PortInfo, "mkey_protect_bits")
    mkey_lease_period = Stored(PortInfo, "mkey_lease_period")
    mkey_violations = Stored(PortInfo, "mkey_violations")
    pkey_violations = Stored(PortInfo, "pkey_violations")
    qkey_violations = Stored(PortInfo, "qkey_violations")
    master_sm_lid = Stored(PortInfo, "master_sm_lid")
    master_sm_sl = Stored(PortInfo, "master_sm_sl")
    capability_mask = Stored(PortInfo, "capability_mask")
    state = Stored(PortInfo, "port_state")
    physical_state = Stored(PortInfo, "port_physical_state")
    width = Stored(PortInfo, "link_width_active")
    speed = Stored(PortInfo, "link_speed_active")
    speed_ext = Stored(PortInfo, "link_speed_ext_active")
    speed_ext2 = Stored(PortInfo, "link_speed_ext_active2")
    width_enabled = Stored(PortInfo, "link_width_enabled")
    speed_enabled = Stored(PortInfo, "link_speed_enabled")
    speed_ext_enabled = Stored(PortInfo, "link_speed_ext_enabled")
    speed_ext2_enabled = Stored(PortInfo, "link_speed_ext_enabled2")
    neighbor_mtu = Stored(PortInfo, "neighbor_mtu")
    mtu_cap = Stored(PortInfo, "mtu_cap")
    vl_cap = Stored(PortInfo, "vl_cap")
    operational_vls = Stored(PortInfo, "operational_vls")
    vl_high_limit = Stored(PortInfo, "vl_high_limit")
    vl_stall_count = Stored(PortInfo, "vl_stall_count")
    hoq_life = Stored(PortInfo, "hoq_life")
    local_phy_errors = Stored(PortInfo, "local_phy_errors")
    overrun_errors = Stored(PortInfo, "overrun_errors")
    enforces_pkeys_inbound = Stored(PortInfo, "partition_enforcement_inbound")
    enforces_pkeys_outbound = Stored(PortInfo, "partition_enforcement_outbound")
    subnet_timeout = Stored(PortInfo, "subnet_timeout")
    gid_prefix = Stored(PortInfo, "gid_prefix")

    @property
    def kind(self) -> str:
        """Which fields of PortInfo it uses: `adapter`, `external` or `management` of a switch."""
        if not self.node.is_switch:
            return "adapter"
        return "external" if self.number else "management"

    @property
    def is_up(self) -> bool:
        """Whether its link is up: Initialize, Armed, Active or ActiveDefer."""
        return self.state >= PortState.INIT

    def carries(self, least: int) -> bool:
        """Whether packets pass that need at least this state; none does in ActiveDefer."""
        return least <= self.state <= PortState.ACTIVE

    @property
    def management(self) -> Port:
        """The port whose LID stands for this one: port 0 of a switch."""
        return self.node.ports[0] if self.node.is_switch else self

    @property
    def largest_packet(self) -> int:
        """Bytes of the largest packet from the LRH to the ICRC, by NeighborMTU."""
        return (128 << self.neighbor_mtu) + HEADERS_SIZE

    def accepts_pkey(self, pkey: int) -> bool:
        """Whether the table has the partition, with a full member on one side (IBA 10.9.3)."""
        table = self.pkeys
        for at in range(0, len(table), 2):
            own = table[at] << 8 | table[at + 1]
            if own & 0x7FFF == pkey & 0x7FFF and own & 0x7FFF and (own | pkey) & 0x8000:
                return True
        return False

    def passes_pkey(self, pkey: int) -> bool:
        """Whether a port of a switch that checks P_Keys lets a packet pass: it has the partition.

        Source: docs/reference/infiniband.md#mad-pkeys.
        """
        table = self.pkeys
        wanted = pkey & 0x7FFF
        return wanted != 0 and any(
            (table[at] & 0x7F) << 8 | table[at + 1] == wanted for at in range(0, len(table), 2)
        )

    def pkey_like(self, pkey: int) -> int:
        """The P_Key of its table for a partition; the first of the table if it has none."""
        table = self.pkeys
        for at in range(0, len(table), 2):
            own = table[at] << 8 | table[at + 1]
            if own & 0x7FFF == pkey & 0x7FFF and own & 0x7FFF:
                return own
        return self.pkey_at(0)

    def pkey_at(self, index: int) -> int:
        """An entry of its P_Key table; 0 behind the end."""
        return int.from_bytes(self.pkeys[2 * index : 2 * index + 2], "big")

    def pkey_index(self, pkey: int) -> int:
        """The entry of its P_Key table for a partition; 0 if it has none."""
        for index in range(len(self.pkeys) // 2):
            if self.pkey_at(index) & 0x7FFF == pkey & 0x7FFF:
                return index
        return 0

    def has_lid(self, lid: int) -> bool:
        """Whether a LID is one of the port's 2^LMC."""
        own = self.lid
        return own != 0 and own <= lid < own + (1 << self.lmc)

    def __repr__(self) -> str:
        return f"<port {self.node.name}[{self.number}]>"


class Node:
    """A channel adapter or a switch."""

    __slots__ = (
        "description",
        "device_id",
        "guid",
        "info",
        "is_switch",
        "lft",
        "mft",
        "name",
        "pkey_cap",
        "ports",
        "system_guid",
        "vendor_id",
    )

    def __init__(
        self,
        name: str,
        *,
        is_switch: bool,
        guid: int,
        num_ports: int,
        port_guids: dict[int, int] | None = None,
        description: str | None = None,
        system_guid: int | None = None,
        vendor_id: int = 0,
        device_id: int = 0,
        pkey_cap: int = _PKEYS,
    ) -> None:
        if not 1 <= num_ports <= 254:
            raise EncodeError(f"number of ports of {name}", num_ports, "1 to 254")
        self.name = name
        self.is_switch = is_switch
        self.guid = guid
        self.system_guid = guid if system_guid is None else system_guid
        self.description = name if description is None else description
        self.vendor_id = vendor_id
        self.device_id = device_id
        self.pkey_cap = pkey_cap
        """PartitionCap."""
        self.info = bytearray(ATTRIBUTE_SIZE)
        """SwitchInfo; zeros on a channel adapter."""
        self.lft = bytearray()
        """Linear forwarding table, by LID; LIDs behind its end drop."""
        self.mft: dict[tuple[int, int], bytes] = {}
        """Multicast forwarding table: port masks by block and position."""
        given = port_guids or {}
        first = 0 if is_switch else 1
        # A program at umad2sim takes the GUID of a port to be that of the node plus its number.
        self.ports: list[Port] = [] if is_switch else [Port(self, 0, 0)]
        for number in range(first, num_ports + 1):
            default = guid if is_switch else guid + number
            self.ports.append(Port(self, number, given.get(number, default)))
        if max(guid, self.ports[-1].guid) >> 64:
            most = (1 << 64) - 1 - (0 if is_switch else num_ports)
            expected = f"a number of at most 0x{most:x}"
            if not is_switch:
                expected += ": its ports have the next ones"
            raise EncodeError(f"GUID of {name}", hex(guid), expected)
        if is_switch:
            switch = SwitchInfo(
                linear_fdb_cap=LINEAR_FDB_CAP,
                multicast_fdb_cap=MULTICAST_FDB_CAP,
                partition_enforcement_cap=_SWITCH_PORT_PKEYS,
                inbound_enforcement_cap=1,
                outbound_enforcement_cap=1,
            ).pack()
            self.info[: len(switch)] = switch

    linear_fdb_cap = Stored(SwitchInfo, "linear_fdb_cap")
    multicast_fdb_cap = Stored(SwitchInfo, "multicast_fdb_cap")
    linear_fdb_top = Stored(SwitchInfo, "linear_fdb_top")
    port_state_change = Stored(SwitchInfo, "port_state_change")
    life_time = Stored(SwitchInfo, "life_time_value")
    enhanced_port_0 = Stored(SwitchInfo, "enhanced_port0")
    partition_enforcement_cap = Stored(SwitchInfo, "partition_enforcement_cap")
    multicast_primary_port = Stored(SwitchInfo, "default_multicast_primary_port")

    @property
    def num_ports(self) -> int:
        """External ports."""
        return len(self.ports) - 1

    def pkey_capacity_of(self, port: Port) -> int:
        """Entries of the P_Key table of a port."""
        if self.is_switch and port.number:
            return self.partition_enforcement_cap
        return self.pkey_cap

    def external_ports(self) -> list[Port]:
        """Ports 1 and up."""
        return self.ports[1:]

    def route(self, lid: int) -> int:
        """The output port of a LID on a switch, or `NO_PORT`."""
        return output_port(self.info, self.lft, lid)

    def multicast_ports(self, lid: int) -> int:
        """The output ports of a multicast LID on a switch, as bits."""
        index = lid - FIRST_MULTICAST
        block, entry = divmod(index, MULTICAST_BLOCK)
        ports = 0
        for position in range(self.num_ports // 16 + 1):
            table = self.mft.get((block, position))
            if table is not None:
                mask = table[2 * entry] << 8 | table[2 * entry + 1]
                ports |= mask << 16 * position
        return ports

    def node_info(self, arrived: int) -> NodeInfo:
        """NodeInfo, as asked through port `arrived`."""
        port = self.ports[0] if self.is_switch else self.ports[arrived]
        return NodeInfo(
            base_version=1,
            class_version=1,
            node_type=NodeType.SWITCH if self.is_switch else NodeType.CA,
            num_ports=self.num_ports,
            system_image_guid=self.system_guid,
            node_guid=self.guid,
            port_guid=port.guid,
            partition_cap=self.pkey_cap,
            device_id=self.device_id,
            revision=1,
            local_port_num=arrived,
            vendor_id=self.vendor_id,
        )

    def __repr__(self) -> str:
        return f"<node {self.name}>"


class Subnet:
    """Nodes and their links."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        """By name."""
        self.on_change: Callable[[Node], None] | None = None
        """Called for a switch when the link of one of its ports has come up or gone down."""
        self.on_down: Callable[[Port], None] | None = None
        """Called for a port whose link was up and has just gone down."""
        self.changes = 0
        """How often the link of a port has come up, gone down, or been deferred."""
        self._by_guid: dict[int, Node] = {}
        self._by_port_guid: dict[int, Port] = {}

    def add(self, node: Node) -> Node:
        """Take a node in; raises `EncodeError` if its name or one of its GUIDs is taken.

        Ports with the GUID 0 have none yet.
        """
        if node.name in self.nodes:
            raise EncodeError("node", node.name, "a name of its own")
        if other := self._by_guid.get(node.guid):
            raise _duplicate(node.guid, node.name, other.name)
        ports = _with_guids(node)
        found: dict[int, Port] = {}
        for port in ports:
            taken = self._by_port_guid.get(port.guid) or found.get(port.guid)
            if taken is not None:
                raise _duplicate(port.guid, _name(port), _name(taken))
            found[port.guid] = port
        self.nodes[node.name] = node
        self._by_guid[node.guid] = node
        self._by_port_guid |= found
        return node

    def has_guid(self, guid: int) -> bool:
        """Whether a node has this GUID."""
        return guid in self._by_guid

    def remove(self, node: Node) -> None:
        """Take a node out whose ports have no links; raises `EncodeError` if one has."""
        for port in node.external_ports():
            if port.peer is not None:
                raise EncodeError("port", _name(port), "a port without a link")
        del self.nodes[node.name], self._by_guid[node.guid]
        for port in _with_guids(node):
            self._by_port_guid.pop(port.guid, None)

    def node(self, name: str) -> Node:
        """The node of a name, or else of a description; raises `EncodeError`."""
        found = self.nodes.get(name)
        if found is not None:
            return found
        for node in self.nodes.values():
            if node.description == name:
                return node
        near = closest(name, list(self.nodes))
        proposed = f"; did you mean {near}?" if near else ""
        raise EncodeError("node", name, f"the name of a node of this fabric{proposed}")

    def port(self, name: str, number: int) -> Port:
        """A port by name and number; raises `EncodeError`."""
        node = self.node(name)
        if not 1 <= number <= node.num_ports:
            raise EncodeError(f"port of {node.name}", number, f"1 to {node.num_ports}")
        return node.ports[number]

    def host_ports(self) -> list[Port]:
        """The ports of adapters that have a link."""
        return [
            port
            for node in self.nodes.values()
            if not node.is_switch
            for port in node.external_ports()
            if port.peer is not None
        ]

    def connect(self, a: Port, b: Port, width: Width = Width.X4, speed: Speed = Speed.EDR) -> None:
        """Put a link between two ports that have none, and bring it to Initialize."""
        for port in (a, b):
            if port.peer is not None or port.number == 0 or a is b:
                raise EncodeError(
                    "port", f"{port.node.name}[{port.number}]", "a port without a link"
                )
        a.peer, b.peer = b, a
        for port in (a, b):
            port.has_fdr10 = port.enables_fdr10 = speed.lane_bps >= Speed.FDR10.lane_bps
            _limit(port, width, speed)
        self._train(a, b)

    def disconnect(self, port: Port) -> None:
        """Take the link of a port away; both ends go Down."""
        peer = port.peer
        if peer is None:
            raise EncodeError("port", f"{port.node.name}[{port.number}]", "a port with a link")
        port.peer = peer.peer = None
        for end in (port, peer):
            self._down(end)

    def reconnect(self, a: Port, b: Port) -> None:
        """Put a link back that `disconnect` has taken away, with its width and speed."""
        for port in (a, b):
            if port.peer is not None:
                raise EncodeError(
                    "port", f"{port.node.name}[{port.number}]", "a port without a link"
                )
        a.peer, b.peer = b, a
        self._train(a, b)

    def defer(self, port: Port) -> None:
        """Lose the signal of an active link for a while: both ends go to ActiveDefer."""
        for end in _active_ends(port, PortState.ACTIVE):
            self.changes += 1
            end.state = PortState.ACTIVE_DEFER
            end.physical_state = PortPhysicalState.LINK_ERROR_RECOVERY

    def recover(self, port: Port) -> None:
        """The signal of a link that was deferred is back: both ends are Active again."""
        for end in _active_ends(port, PortState.ACTIVE_DEFER):
            self.changes += 1
            end.state = PortState.ACTIVE
            end.physical_state = PortPhysicalState.LINK_UP
            end.counters.link_error_recovery_counter += 1

    def retrain(self, port: Port) -> None:
        """Bring a link down and up again, as a Set of PortState Down does.

        It stays down if one of its ports is disabled, or if they agree on no speed and width.
        """
        peer = port.peer
        if peer is None:
            return
        for end in (port, peer):
            self._down(end)
        self._train(port, peer)

    def enable(self, port: Port) -> None:
        """Let the link of a port train, also if the port was disabled."""
        port.physical_state = PortPhysicalState.POLLING
        self.retrain(port)

    def disable(self, port: Port) -> None:
        """Take a link down until the port is set to Polling."""
        for end in (port, port.peer):
            if end is not None:
                self._down(end)
        port.physical_state = PortPhysicalState.DISABLED

    def links(self) -> Iterator[tuple[Port, Port]]:
        """Each link once, in the order of the nodes."""
        position = {id(node): place for place, node in enumerate(self.nodes.values())}
        for node in self.nodes.values():
            for port in node.external_ports():
                peer = port.peer
                if peer is None:
                    continue
                there = position[id(peer.node)], peer.number
                if (position[id(node)], port.number) < there:
                    yield port, peer

    def _train(self, a: Port, b: Port) -> None:
        """Bring a link up, with the best speed and width that both ports have enabled."""
        if PortPhysicalState.DISABLED in (a.physical_state, b.physical_state):
            return
        found = _best_rate(a, b)
        if found is None:
            return
        width, speed = found
        is_fdr10 = a.enables_fdr10 and b.enables_fdr10 and speed == _QDR
        for port in (a, b):
            port.is_fdr10 = is_fdr10
            port.width = width.code
            port.speed, port.speed_ext, port.speed_ext2 = speed
            port.state = PortState.INIT
            port.physical_state = PortPhysicalState.LINK_UP
            self._changed(port)

    def _down(self, port: Port) -> None:
        was_up = port.is_up
        port.state = PortState.DOWN
        if port.physical_state != PortPhysicalState.DISABLED:
            port.physical_state = PortPhysicalState.POLLING
        if was_up:
            port.counters.link_downed_counter += 1
            if self.on_down is not None:
                self.on_down(port)
        self._changed(port)

    def _changed(self, port: Port) -> None:
        self.changes += 1
        node = port.node
        if node.is_switch:
            node.port_state_change = 1
            if self.on_change is not None:
                self.on_change(node)


def _active_ends(port: Port, state: PortState) -> tuple[Port, Port]:
    """Both ends of a link that is in a state; raises `EncodeError`."""
    peer = port.peer
    if peer is None or port.state != state or peer.state != state:
        raise EncodeError("port", _name(port), f"a port in the state {state.name}")
    return port, peer


def _with_guids(node: Node) -> list[Port]:
    """The ports of a node that have a GUID of their own: all of an adapter, port 0 of a switch."""
    ports = node.ports[:1] if node.is_switch else node.external_ports()
    return [port for port in ports if port.guid]


def _duplicate(guid: int, name: str, other: str) -> EncodeError:
    return EncodeError("GUID", f"0x{guid:x} of {name}", f"its own: it is that of {other}")


def _name(port: Port) -> str:
    return f"{port.node.name}[{port.number}]"


_QDR = Speed.QDR.code, 0, 0


def _best_rate(a: Port, b: Port) -> tuple[Width, tuple[int, int, int]] | None:
    """The width, and the codes of the speed, that a link of two ports trains at (IBA 14.2.5.6)."""
    widths = a.width_enabled & b.width_enabled
    speeds = (
        a.speed_enabled & b.speed_enabled,
        a.speed_ext_enabled & b.speed_ext_enabled,
        a.speed_ext2_enabled & b.speed_ext2_enabled,
    )
    return _best_of(widths, speeds)


@cache
def _best_of(
    widths: int, speeds: tuple[int, int, int]
) -> tuple[Width, tuple[int, int, int]] | None:
    """The widest width, and the codes of the fastest speed, of those with their bits."""
    best = max((each for each in Width if each.code & widths), key=_lanes_of, default=None)
    if best is None or not any(speeds):
        return None
    base, extended, extended2 = (1 << bits.bit_length() >> 1 for bits in speeds)
    # Above QDR LinkSpeedActive stays 4.
    if extended2:
        return best, (Speed.XDR.code, 0, extended2)
    if extended:
        return best, (Speed.FDR.code, extended, 0)
    return best, (base, 0, 0)


def _lanes_of(width: Width) -> int:
    return width.lanes


def _limit(port: Port, width: Width, speed: Speed) -> None:
    """Let a port support what its link has and everything below: tools warn if it could be more."""
    kept = int.from_bytes(port.info, "big") & ~_RATES
    port.info[:] = (kept | _rates(width, speed)).to_bytes(ATTRIBUTE_SIZE, "big")


@cache
def _rates(width: Width, speed: Speed) -> int:
    """The fields of PortInfo for a link and everything below, as one number."""
    widths = sum(each.code for each in Width if each.lanes <= width.lanes)
    slower = [each for each in Speed if each.lane_bps <= speed.lane_bps]
    speeds = extended = extended2 = 0
    for each in slower:
        speeds |= each.code
        extended |= each.extended
        extended2 |= each.extended2
    info = PortInfo(
        link_width_supported=widths,
        link_width_enabled=widths,
        link_speed_supported=speeds,
        link_speed_enabled=speeds,
        link_speed_ext_supported=extended,
        link_speed_ext_enabled=extended,
        link_speed_ext_supported2=extended2,
        link_speed_ext_enabled2=extended2,
    )
    return int.from_bytes(info.pack().ljust(ATTRIBUTE_SIZE, b"\0"), "big") & _RATES


_RATES = mask_of(
    PortInfo,
    "link_width_supported",
    "link_width_enabled",
    "link_speed_supported",
    "link_speed_enabled",
    "link_speed_ext_supported",
    "link_speed_ext_enabled",
    "link_speed_ext_supported2",
    "link_speed_ext_enabled2",
    size=ATTRIBUTE_SIZE,
)


def rate_of(port: Port) -> tuple[Speed, Width] | None:
    """Speed and width of a port's link; `None` if it has had none."""
    found = _BY_CODES.get((port.width, port.speed, port.speed_ext, port.speed_ext2))
    if port.is_fdr10 and found is not None and found[0] is Speed.QDR:
        return Speed.FDR10, found[1]
    return found


def data_rate(port: Port) -> int | None:
    """Bits a second of data on a port's link, without its encoding; `None` if it has had none."""
    found = rate_of(port)
    if found is None:
        return None
    speed, width = found
    return int(speed.lane_bps * speed.encoding * width.lanes)


def rate_name(port: Port) -> str:
    """The same as text, like `4xEDR`."""
    found = rate_of(port)
    return f"{found[1].lanes}x{found[0].label}" if found is not None else ""


_BY_CODES = {
    (width.code, speed.code, speed.extended, speed.extended2): (speed, width)
    for width in Width
    for speed in reversed(Speed)
}
"""Speed and width by the codes of PortInfo; of two speeds with one code the first."""


def _initial(**values: int) -> bytes:
    return PortInfo(**values).pack().ljust(ATTRIBUTE_SIZE, b"\0")


_LINK = {
    "link_width_enabled": 0x1F,
    "link_width_supported": 0x1F,
    "link_speed_supported": 0x7,
    "link_speed_enabled": 0x7,
    "link_speed_ext_supported": 0xF,
    "link_speed_ext_enabled": 0xF,
    "link_speed_ext_supported2": 1,
    "link_speed_ext_enabled2": 1,
    "link_width_active": 0x2,
    "link_speed_active": 0x1,
    "port_state": PortState.DOWN,
    "port_physical_state": PortPhysicalState.POLLING,
    "link_down_default_state": PortPhysicalState.POLLING,
    "neighbor_mtu": MTUCode.MTU_4096,
    "mtu_cap": MTUCode.MTU_4096,
    "vl_cap": _VLS,
    "operational_vls": _VLS,
    "vl_arbitration_high_cap": 64,
    "vl_arbitration_low_cap": 64,
}

_INITIAL: dict[str, bytes] = {
    "adapter": _initial(
        **_LINK,
        capability_mask=CAPABILITIES,
        capability_mask2=CAPABILITIES2,
        guid_cap=1,
        subnet_timeout=18,
        resp_time_value=16,
    ),
    "external": _initial(**_LINK | {"gid_prefix": 0}),
    "management": _initial(
        capability_mask=SWITCH_CAPABILITIES,
        capability_mask2=CAPABILITIES2,
        link_width_enabled=0x2,
        link_width_supported=0x2,
        link_width_active=0x2,
        link_speed_supported=0x1,
        link_speed_enabled=0x1,
        link_speed_active=0x1,
        port_state=PortState.ACTIVE,
        port_physical_state=PortPhysicalState.LINK_UP,
        neighbor_mtu=MTUCode.MTU_2048,
        mtu_cap=MTUCode.MTU_2048,
        vl_cap=1,
        operational_vls=1,
        guid_cap=1,
        subnet_timeout=18,
        resp_time_value=16,
    ),
}
"""PortInfo after power-on (IBA 14.2.5.6)."""
