"""What a subnet manager writes: LIDs, tables, partitions, and the states of links."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ibwire.base.errors import EncodeError
from ibwire.fabric.infiniband.multicast import Group, multicast_tables
from ibwire.fabric.infiniband.routing import (
    Engine,
    RoutingError,
    Tables,
    next_lids,
    routing_steps,
)
from ibwire.fabric.infiniband.subnet import ERROR_THRESHOLD, NO_PORT, Node, Port
from ibwire.sm.asking import Answer, Ask
from ibwire.sm.discovery import PAUSE, Steps, View
from ibwire_layers.attributes import PortInfo, PortState, SMAttribute, SwitchInfo

GID_PREFIX = 0xFE80_0000_0000_0000
SUBNET_TIMEOUT = 18
LIFE_TIME = 18
HOQ_LIFE, HOQ_LIFE_TO_ADAPTERS = 18, 16
STALL_COUNT = 7
LFT_BLOCK = 64
PKEYS_OF_A_BLOCK = 32
LOW, HIGH = 1, 3
"""First parts of the arbitration tables of low and of high priority."""
DEFAULT_PKEY = 0x7FFF
UNKNOWN = b""
"""Content of a block that a switch has or has not taken."""
FULL = 0x8000
"""Bit of a P_Key: full membership."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. full, limited: names or GUIDs of adapters; `ALL` is everybody.

    pkey: 15 bits. ipoib: whether it has a broadcast group of IP over InfiniBand; the default
    partition always has.
    """

    name: str
    pkey: int
    full: tuple[str, ...] = ("ALL",)
    limited: tuple[str, ...] = ()
    ipoib: bool = False

    def membership(self, node: Node, port: Port) -> int:
        """The P_Key of a port in it, or 0."""
        names = {"ALL", node.name, node.description, f"0x{port.guid:x}"}
        if names & set(self.full):
            return self.pkey | FULL
        return self.pkey if names & set(self.limited) else 0


def read_partition(text: str) -> Partition:
    """A partition such as `storage=0x10,ipoib:node-0,node-1=limited`; raises `EncodeError`.

    A member is the name or the GUID of an adapter, or ALL.
    """
    name, equals, rest = text.partition("=")
    number, colon, members = rest.partition(":")
    number, comma, flag = number.partition(",")
    full: list[str] = []
    limited: list[str] = []
    for each in members.split(","):
        member, _, kind = each.strip().partition("=")
        if not member or kind not in ("", "full", "limited"):
            raise EncodeError("partition", text, _PARTITION)
        (limited if kind == "limited" else full).append(member)
    try:
        pkey = int(number, 0)
    except ValueError:
        pkey = 0
    if comma and flag.strip() != _IPOIB:
        raise EncodeError("partition", text, _PARTITION)
    if not (name and equals and colon) or not 1 <= pkey & 0x7FFF == pkey & ~FULL:
        raise EncodeError("partition", text, _PARTITION)
    return Partition(name, pkey & 0x7FFF, tuple(full), tuple(limited), bool(comma))


_IPOIB = "ipoib"
_PARTITION = (
    "NAME=PKEY:HOST,... or NAME=PKEY,ipoib:HOST,... with a P_Key of 0x1 to 0x7fff, "
    "such as storage=0x10:node-0,node-1=limited"
)


def with_default(partitions: Sequence[Partition]) -> tuple[Partition, ...]:
    """Partitions with the default one first, which has everybody as a full member if not given."""
    if any(each.pkey == DEFAULT_PKEY for each in partitions):
        return tuple(partitions)
    return (Partition("Default", DEFAULT_PKEY), *partitions)


def broadcast_pkeys(partitions: Sequence[Partition]) -> list[int]:
    """P_Keys of the partitions with a broadcast group of IP over InfiniBand: the default first."""
    others = (each.pkey for each in partitions if each.ipoib and each.pkey != DEFAULT_PKEY)
    return [DEFAULT_PKEY, *dict.fromkeys(others)]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a subnet manager is told.

    priority: 0 to 15, the highest is master. roots: of up/down, by name or description. lanes: how
    many virtual lanes service levels are spread over; 0 leaves the tables as they are. mkey: the
    M_Key of all ports; 0 leaves them as they are. mkey_protect: M_KeyProtectBits beside it.
    """

    priority: int = 0
    engine: Engine = Engine.MINHOP
    roots: tuple[str, ...] = ()
    lmc: int = 0
    partitions: tuple[Partition, ...] = (Partition("Default", DEFAULT_PKEY),)
    lanes: int = 0
    mkey: int = 0
    mkey_protect: int = 1
    mkey_lease: int = 0
    """Seconds after a wrong M_Key, without the right one, until M_KeyProtectBits fall to 0; with 0
    they stay."""
    sweep_interval: int = 10
    """Seconds from one light sweep to the next; 0 for none."""
    poll_interval: int = 10
    """Seconds from one question of a standby to the master to the next."""

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("priority", self.priority, 0, 15),
            ("LMC", self.lmc, 0, 7),
            ("number of lanes", self.lanes, 0, 15),
            ("M_Key", self.mkey, 0, (1 << 64) - 1),
            ("M_KeyProtectBits", self.mkey_protect, 0, 3),
            ("M_Key lease period", self.mkey_lease, 0, 0xFFFF),
            ("poll interval", self.poll_interval, 1, 3600),
        ):
            if not least <= value <= most:
                raise EncodeError(name, value, f"{least} to {most}")


LaneTable = tuple[str, int, int, int]
"""Name of a node, port, attribute, and the input port or the part of the table."""


@dataclass(slots=True)
class Written:
    """What nodes already have, by GUID, so that only changes are sent."""

    lfts: dict[int, bytes] = field(default_factory=dict)
    mfts: dict[int, dict[tuple[int, int], bytes]] = field(default_factory=dict)
    lanes: dict[LaneTable, bytes] = field(default_factory=dict)
    cleared: set[tuple[int, int]] = field(default_factory=set)
    """Ports, by the GUID of the node and their number, whose P_Key tables have no other blocks
    than those that were written."""
    ready: set[int] = field(default_factory=set)
    """Ports of adapters whose clients have been told to register again."""

    def keep(self, nodes: Collection[Node]) -> None:
        """Forget nodes that are gone."""
        known = {node.guid for node in nodes}
        self.lfts = {guid: each for guid, each in self.lfts.items() if guid in known}
        self.mfts = {guid: each for guid, each in self.mfts.items() if guid in known}
        self.cleared = {each for each in self.cleared if each[0] in known}
        self.ready &= {port.guid for node in nodes for port in node.ports}


def configure(
    view: View, settings: Settings, written: Written, groups: Mapping[int, Group]
) -> Steps:
    """Bring a subnet up."""
    written.keep(view.subnet.nodes.values())
    yield from _clear_changes(view)
    yield from _partitions(view, settings, written)
    yield from _lids(view, settings, written)
    yield from _lanes(view, settings, written)
    yield from _forwarding(view, settings, written)
    yield from multicast(view, written, groups)
    yield from _links(view)
    yield from _states(view, PortState.INIT, PortState.ARMED)
    yield from _states(view, PortState.ARMED, PortState.ACTIVE)


def _switches(view: View) -> list[Node]:
    return [node for node in view.subnet.nodes.values() if node.is_switch]


def _clear_changes(view: View) -> Steps:
    """Clear PortStateChange of the switches first: what changes from now on is seen later."""
    changed = [node for node in _switches(view) if node.port_state_change]
    asks = [
        Ask(view.path(node.ports[0]), SMAttribute.SWITCH_INFO, 0, bytes(node.info))
        for node in changed
    ]
    for node, answer in zip(changed, (yield asks), strict=True):
        if answer is not None:
            node.info[:] = answer


def _set_port(view: View, port: Port, **changes: int) -> Ask:
    """A Set of PortInfo that leaves the states as they are, unless `changes` has one."""
    given = {"port_state": 0, "port_physical_state": 0, "client_reregister": 0} | changes
    data = PortInfo.unpack(port.info).altered(**given).pack()
    return Ask(view.path(port), SMAttribute.PORT_INFO, port.number, data)


def _write_ports(view: View, sets: Mapping[Port, Ask]) -> Steps:
    for port, answer in zip(sets, (yield list(sets.values())), strict=True):
        if answer is not None:
            port.info[:] = answer
            port.info[_REREGISTER] &= 0x7F
        else:
            view.problems.append(f"{port.node.description}[{port.number}]: PortInfo not accepted")


def _lids(view: View, settings: Settings, written: Written) -> Steps:
    own = view.own
    assert own is not None
    ports = sorted(view.end_ports(), key=lambda port: (port is not own, port.guid))
    wanted = {port: 0 if port.node.is_switch else settings.lmc for port in ports}
    has = {port: (port.lid, port.lmc) for port in ports if port.lid}
    try:
        lids = next_lids(has, wanted)
    except RoutingError as error:
        if not settings.lmc:
            raise
        view.problems.append(f"LMC {settings.lmc}: {error}; LMC 0 instead")
        wanted = dict.fromkeys(ports, 0)
        lids = next_lids(has, wanted)
    sets = {}
    for port, lid in lids.items():
        changes = {
            "lid": lid,
            "lmc": wanted[port],
            "master_sm_lid": lids[own],
            "master_sm_sl": 0,
            "gid_prefix": GID_PREFIX,
            "subnet_timeout": SUBNET_TIMEOUT,
        } | _key_fields(settings)
        is_new = not port.node.is_switch and port.guid not in written.ready
        if is_new or any(getattr(port, name) != value for name, value in changes.items()):
            sets[port] = _set_port(view, port, **changes, client_reregister=int(is_new))
    # The manager's own LID first: traps go there.
    yield from _write_ports(view, dict(sorted(sets.items(), key=lambda each: each[0] is not own)))
    written.ready |= {port.guid for port in sets}


def _key_fields(settings: Settings) -> dict[str, int]:
    """PortInfo with the M_Key."""
    if not settings.mkey:
        return {}
    return {
        "mkey": settings.mkey,
        "mkey_protect_bits": settings.mkey_protect,
        "mkey_lease_period": settings.mkey_lease,
    }


def _partitions(view: View, settings: Settings, written: Written) -> Steps:
    """Write P_Key tables, and clear blocks that an earlier manager has written."""
    asks: dict[tuple[Port, int], Ask] = {}
    for port in view.end_ports():
        keys = pkeys_of(port, settings)[:PKEYS_OF_A_BLOCK]
        if port is view.own:
            keys[0] |= FULL  # limited members reach the subnet administration, as in opensm
        block = b"".join(key.to_bytes(2, "big") for key in keys).ljust(64, b"\0")
        _pkey_blocks(view, port, block, written, asks)
        # A switch checks at the port to an adapter what the adapter may send and receive.
        if not port.node.is_switch and (peer := port.peer) is not None and peer.node.is_switch:
            _pkey_blocks(view, peer, block, written, asks)
    reads = [Ask(ask.path, ask.attribute, ask.modifier) for ask in asks.values()]
    for key, answer in zip(list(asks), (yield reads), strict=True):
        store_pkeys(*key, answer)
        if answer is None or answer == asks[key].data:
            del asks[key]
        if answer is None:
            written.cleared.discard((key[0].node.guid, key[0].number))
    for key, answer in zip(asks, (yield list(asks.values())), strict=True):
        if answer is not None:
            store_pkeys(*key, answer)
        else:
            written.cleared.discard((key[0].node.guid, key[0].number))


def _pkey_blocks(
    view: View, port: Port, first: bytes, written: Written, asks: dict[tuple[Port, int], Ask]
) -> None:
    """Add what the P_Key table of a port must be: its first block, and nothing behind it."""
    asks[port, 0] = pkey_ask(view, port, 0, first)
    place = port.node.guid, port.number
    if place in written.cleared and port.state != PortState.INIT:
        return
    written.cleared.add(place)
    for block in range(1, pkey_blocks_of(port)):
        asks[port, block] = pkey_ask(view, port, block, bytes(64))


def pkey_blocks_of(port: Port) -> int:
    """Blocks of the P_Key table of a port."""
    return max(1, -(-port.node.pkey_capacity_of(port) // PKEYS_OF_A_BLOCK))


def pkey_ask(view: View, port: Port, block: int, data: bytes | None = None) -> Ask:
    """A Get of a block of a P_Key table, or with `data` a Set."""
    modifier = (port.number << 16 if port.node.is_switch else 0) | block
    return Ask(view.path(port), SMAttribute.P_KEY_TABLE, modifier, data)


def store_pkeys(port: Port, block: int, data: bytes | None) -> None:
    """Remember a block of the P_Key table of a port; `None` if it could not be read."""
    start = block * 2 * PKEYS_OF_A_BLOCK
    if data is None:
        del port.pkeys[start:]
    elif len(port.pkeys) >= start:  # not behind a block that is not known
        port.pkeys[start : start + len(data)] = data


def pkeys_of(port: Port, settings: Settings) -> list[int]:
    """The P_Keys of an end port: that of the default partition first."""
    keys = [partition.membership(port.node, port) for partition in settings.partitions]
    keys = sorted({key for key in keys if key}, key=lambda key: key & 0x7FFF != DEFAULT_PKEY)
    if not any(key & 0x7FFF == DEFAULT_PKEY for key in keys):
        keys.insert(0, DEFAULT_PKEY)  # limited: it reaches the subnet administration
    return keys


def _lanes(view: View, settings: Settings, written: Written) -> Steps:
    """Write SL to VL mapping and arbitration of ports with a link, where they have changed."""
    if not settings.lanes:
        return
    before, written.lanes = written.lanes, {}
    asks: dict[LaneTable, Ask] = {}
    for node in view.subnet.nodes.values():
        ports = [port for port in node.external_ports() if port.peer is not None]
        for port in ports:
            port.sl2vl, port.arbitration = {}, {}
            for table, ask in _lane_tables(view, port, settings.lanes):
                # The tables of a port that has just come up may be those of before.
                if before.get(table) != ask.data or port.state == PortState.INIT:
                    asks[table] = ask
                else:
                    _keep_lanes(view, written, table, ask)
    answers = yield list(asks.values())
    for (table, ask), answer in zip(asks.items(), answers, strict=True):
        if answer is not None:
            _keep_lanes(view, written, table, ask)


def _keep_lanes(view: View, written: Written, table: LaneTable, ask: Ask) -> None:
    """Remember that a port has a table."""
    name, number, attribute, place = table
    port = view.subnet.nodes[name].ports[number]
    is_mapping = attribute == SMAttribute.SL_TO_VL_MAPPING_TABLE
    data = written.lanes[table] = ask.data or b""
    (port.sl2vl if is_mapping else port.arbitration)[place] = data


def _lane_tables(view: View, port: Port, most: int) -> Iterator[tuple[LaneTable, Ask]]:
    """The tables of a port for service levels that are spread over its lanes."""
    name, number, is_switch = port.node.name, port.number, port.node.is_switch
    lanes = min(most, _lanes_of(port))
    mapping = [level % lanes for level in range(16)]
    packed = bytes(a << 4 | b for a, b in zip(mapping[::2], mapping[1::2], strict=True))
    for came in range(len(port.node.ports)) if is_switch else [0]:
        attribute = SMAttribute.SL_TO_VL_MAPPING_TABLE
        modifier = came << 8 | number if is_switch else 0
        ask = Ask(view.path(port), attribute, modifier, packed)
        yield (name, number, attribute, came), ask
    table = b"".join(bytes((lane, 64)) for lane in range(lanes)).ljust(64, b"\0")
    for part in arbitration_parts(port):
        block = table if part == LOW else bytes(64)
        attribute = SMAttribute.VL_ARBITRATION_TABLE
        modifier = part << 16 | (number if is_switch else 0)
        yield (name, number, attribute, part), Ask(view.path(port), attribute, modifier, block)


def arbitration_parts(port: Port) -> list[int]:
    """The parts of the VL arbitration of a port: each has 32 entries (IBA 14.2.5.9)."""
    info = PortInfo.unpack(port.info)
    low, high = info.vl_arbitration_low_cap, info.vl_arbitration_high_cap
    parts = [(LOW, low > 0), (LOW + 1, low > 32), (HIGH, high > 0), (HIGH + 1, high > 32)]
    return [part for part, is_there in parts if is_there]


def _lanes_of(port: Port) -> int:
    """Virtual lanes of a link (VLCap: 1, 2, 4, 8, 15)."""
    peer = port.peer
    caps = [port.vl_cap] + ([peer.vl_cap] if peer is not None else [])
    return (0, 1, 2, 4, 8, 15)[min(*caps, 5)] or 1


def _tables(view: View, settings: Settings) -> Generator[list[Ask], list[Answer], Tables]:
    by_text = {node.description: node.name for node in _switches(view)}
    roots = [by_text.get(name, name) for name in settings.roots]
    try:
        return (yield from _paused(routing_steps(view.subnet, settings.engine, roots=roots)))
    except RoutingError as error:
        view.problems.append(f"{settings.engine.value} cannot route this: {error}; minhop instead")
        return (yield from _paused(routing_steps(view.subnet, Engine.MINHOP)))


def _paused(
    steps: Generator[None, None, Tables],
) -> Generator[list[Ask], list[Answer], Tables]:
    """Let others have a turn between the steps of a calculation."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            tables: Tables = end.value
            return tables
        yield PAUSE


def _forwarding(view: View, settings: Settings, written: Written) -> Steps:
    """Write the blocks of the forwarding tables that have changed."""
    tables = yield from _tables(view, settings)
    sets = {}
    for node, table in tables.items():
        top = max(0, len(table) - 1)
        node.lft[:] = table
        if node.linear_fdb_top != top or node.life_time != LIFE_TIME:
            info = SwitchInfo.unpack(node.info).altered(
                linear_fdb_top=top, life_time_value=LIFE_TIME, port_state_change=0
            )
            sets[node] = Ask(view.path(node.ports[0]), SMAttribute.SWITCH_INFO, 0, info.pack())
    for node, answer in zip(sets, (yield list(sets.values())), strict=True):
        if answer is not None:
            node.info[:] = answer
    asks = []
    for node, table in tables.items():
        before = written.lfts.get(node.guid, b"")
        for block, start in enumerate(range(0, len(table), LFT_BLOCK)):
            data = bytes(table[start : start + LFT_BLOCK]).ljust(LFT_BLOCK, bytes((NO_PORT,)))
            if before[start : start + LFT_BLOCK].ljust(LFT_BLOCK, bytes((NO_PORT,))) != data or (
                len(before) <= start
            ):
                path = view.path(node.ports[0])
                asks.append(Ask(path, SMAttribute.LINEAR_FORWARDING_TABLE, block, data))
    answers = yield asks
    lost = {ask.path for ask, answer in zip(asks, answers, strict=True) if answer is None}
    for node, table in tables.items():
        written.lfts[node.guid] = b"" if view.path(node.ports[0]) in lost else bytes(table)


def multicast(view: View, written: Written, groups: Mapping[int, Group]) -> Steps:
    """Write the blocks of the multicast tables that have changed."""
    asks: dict[tuple[int, tuple[int, int]], Ask] = {}
    for node, blocks in multicast_tables(view.subnet, groups).items():
        before = written.mfts.setdefault(node.guid, {})
        for block, position in sorted(blocks.keys() | before.keys()):
            data = blocks.get((block, position), bytes(64))
            if before.get((block, position), bytes(64)) != data:
                modifier = position << 28 | block
                path = view.path(node.ports[0])
                ask = Ask(path, SMAttribute.MULTICAST_FORWARDING_TABLE, modifier, data)
                asks[node.guid, (block, position)] = ask
        node.mft = blocks
    answers = yield list(asks.values())
    for ((guid, place), ask), answer in zip(asks.items(), answers, strict=True):
        # Without an answer the block may have either content: it is written again.
        written.mfts[guid][place] = UNKNOWN if answer is None else ask.data or UNKNOWN


def _links(view: View) -> Steps:
    """Let both ends of each link agree on MTU and lanes."""
    sets = {}
    for port in (end for link in view.subnet.links() for end in link):
        peer = port.peer
        assert peer is not None
        to_adapter = port.node.is_switch and not peer.node.is_switch
        enforced = int(to_adapter)
        changes = {
            "neighbor_mtu": min(port.mtu_cap, peer.mtu_cap) or port.mtu_cap,
            "operational_vls": min(port.vl_cap, peer.vl_cap) or port.vl_cap,
            "hoq_life": HOQ_LIFE_TO_ADAPTERS if to_adapter else HOQ_LIFE,
            "vl_stall_count": STALL_COUNT,
            "local_phy_errors": ERROR_THRESHOLD,
            "overrun_errors": ERROR_THRESHOLD,
            "partition_enforcement_inbound": enforced,
            "partition_enforcement_outbound": enforced,
        }
        info = PortInfo.unpack(port.info)
        if any(getattr(info, name) != value for name, value in changes.items()):
            sets[port] = _set_port(view, port, **changes)
    yield from _write_ports(view, sets)


def _states(view: View, before: PortState, after: PortState) -> Steps:
    sets = {
        port: _set_port(view, port, port_state=after)
        for link in view.subnet.links()
        for port in link
        if port.state == before
    }
    yield from _write_ports(view, sets)


_REREGISTER = next(each.offset // 8 for each in PortInfo.FIELDS if each.name == "client_reregister")
