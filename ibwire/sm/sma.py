"""The subnet management agent of a node: what it answers to Get and Set (IBA 14.2.5)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ibwire.base.units import S, Time
from ibwire.fabric.infiniband.states import ACTIVE, ARMED, DOWN, INIT
from ibwire.fabric.infiniband.stored import mask_of
from ibwire.fabric.infiniband.subnet import (
    ATTRIBUTE_SIZE,
    Node,
    Port,
    Subnet,
)
from ibwire.fabric.infiniband.tables import DEFAULT_ARBITRATION, DEFAULT_SL_TO_VL
from ibwire.sm.mads import ATTRIBUTE, METHOD, MKEY, MODIFIER, SMP_DATA, Datagram
from ibwire_layers.attributes import (
    PortInfo,
    PortPhysicalState,
    PortState,
    SMAttribute,
    SwitchInfo,
)
from ibwire_layers.mad import Method, Status

BLOCK = 64
"""LIDs of a block of the linear forwarding table."""
MELLANOX = 0x2C9
"""VendorID whose nodes have MlnxExtPortInfo."""
_FDR10_SUPPORTED, _FDR10_ENABLED, _FDR10_ACTIVE = 7, 11, 15
"""Bytes of MlnxExtPortInfo; the bit 1 is FDR10 (docs/reference/infiniband.md#rates)."""
PKEY_BLOCK = 64
"""Bytes of a block of the P_Key table: 32 entries."""

_INVALID = int(Status.INVALID_ATTRIBUTE_VALUE)
_UNKNOWN = int(Status.METHOD_ATTRIBUTE_NOT_SUPPORTED)

_GET, _SET = int(Method.GET), int(Method.SET)
_DISABLED = int(PortPhysicalState.DISABLED)
_TRAINING = int(PortPhysicalState.POLLING), int(PortPhysicalState.SLEEP)

_Answer = tuple[int, bytes]
"""Status and attribute."""


def _mask(*names: str) -> int:
    return mask_of(PortInfo, *names, size=ATTRIBUTE_SIZE)


_ENDPORT_FIELDS = (
    "mkey",
    "gid_prefix",
    "lid",
    "master_sm_lid",
    "mkey_lease_period",
    "mkey_protect_bits",
    "lmc",
    "master_sm_sl",
    "subnet_timeout",
    "mkey_violations",
    "pkey_violations",
    "qkey_violations",
)
"""PortInfo of channel adapters and of port 0 of a switch that a Set writes as it is."""
_LINK_FIELDS = (
    "vl_high_limit",
    "vl_stall_count",
    "hoq_life",
    "partition_enforcement_inbound",
    "partition_enforcement_outbound",
    "filter_raw_inbound",
    "filter_raw_outbound",
    "local_phy_errors",
    "overrun_errors",
    "init_type",
)
"""The same of ports with a link."""

_WRITABLE = {
    "adapter": _mask(*_ENDPORT_FIELDS, *_LINK_FIELDS),
    "external": _mask(*_LINK_FIELDS),
    "management": _mask(*_ENDPORT_FIELDS),
}
_number = int.from_bytes


class SMA:
    """The agents of all nodes of a subnet.

    on_bad_mkey: called with the port and the datagram whose M_Key is wrong.
    """

    def __init__(
        self, subnet: Subnet, on_bad_mkey: Callable[[Port, Datagram], None] | None = None
    ) -> None:
        self.subnet = subnet
        self.on_bad_mkey = on_bad_mkey
        self.leases: dict[Port, Time] = {}
        """Ports to which a wrong M_Key came, and when M_KeyProtectBits then fall to 0."""

    def answer(
        self, node: Node, arrived: int, datagram: Datagram, now: Time = 0
    ) -> Datagram | None:
        """The response to a Get or Set that came in by a port; `None` for no answer."""
        mad = datagram.mad
        method = mad[METHOD]
        if method not in (_GET, _SET):
            return datagram.answer(status=int(Status.METHOD_NOT_SUPPORTED))
        is_set = method == _SET
        port = node.ports[arrived] if not node.is_switch else node.ports[0]
        self._end_lease(port, now)
        if not self._has_key(port, datagram, is_set=is_set, now=now):
            return None
        attribute = mad[ATTRIBUTE]
        handler = HANDLERS.get(attribute[0] << 8 | attribute[1])
        modifier = int.from_bytes(mad[MODIFIER], "big")
        if handler is None:
            return datagram.answer(status=_UNKNOWN)
        data = bytes(mad[SMP_DATA]) if is_set else None
        status, found = handler(self, node, arrived, modifier, data)
        if handler is _PORT_INFO and not _knows_key(port, mad) and port.mkey_protect_bits:
            found = bytes(_MKEY_SIZE) + found[_MKEY_SIZE:]
        return datagram.answer(status=status, data=found)

    def _end_lease(self, port: Port, now: Time) -> None:
        """Let M_KeyProtectBits fall to 0 when no packet with the M_Key has come in time."""
        end = self.leases.get(port)
        if end is not None and end <= now:
            del self.leases[port]
            port.mkey_protect_bits = 0

    def _has_key(self, port: Port, datagram: Datagram, *, is_set: bool, now: Time) -> bool:
        if _knows_key(port, datagram.mad):
            self.leases.pop(port, None)
            return True
        if not is_set and port.mkey_protect_bits < 2:
            return True
        if port.mkey_lease_period:
            self.leases.setdefault(port, now + port.mkey_lease_period * S)
        port.mkey_violations = min(port.mkey_violations + 1, 0xFFFF)
        if self.on_bad_mkey is not None:
            self.on_bad_mkey(port, datagram)
        return False

    def _node_description(
        self, node: Node, arrived: int, modifier: int, data: bytes | None
    ) -> _Answer:
        text = node.description.encode()[:ATTRIBUTE_SIZE].ljust(ATTRIBUTE_SIZE, b"\0")
        return (0 if data is None else _UNKNOWN), text

    def _node_info(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        info = node.node_info(arrived).pack().ljust(ATTRIBUTE_SIZE, b"\0")
        return (0 if data is None else _UNKNOWN), info

    def _switch_info(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        if not node.is_switch:
            return _UNKNOWN, bytes(ATTRIBUTE_SIZE)
        if data is None:
            return 0, bytes(node.info)
        written = SwitchInfo.unpack(data)
        if written.linear_fdb_top >= written.linear_fdb_cap and written.linear_fdb_cap:
            return _INVALID, bytes(node.info)
        kept = SwitchInfo.unpack(node.info)
        node.info[: SwitchInfo.SIZE] = kept.altered(
            linear_fdb_top=written.linear_fdb_top,
            default_port=written.default_port,
            default_multicast_primary_port=written.default_multicast_primary_port,
            default_multicast_not_primary_port=written.default_multicast_not_primary_port,
            life_time_value=written.life_time_value,
            # Writing 1 clears it.
            port_state_change=0 if written.port_state_change else kept.port_state_change,
            multicast_fdb_top=written.multicast_fdb_top,
        ).pack()
        return 0, bytes(node.info)

    def _guid_info(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        port = node.ports[0] if node.is_switch else node.ports[arrived]
        guids = port.guid.to_bytes(8, "big") if modifier == 0 else b""
        return 0, guids.ljust(ATTRIBUTE_SIZE, b"\0")

    def _port_info(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        number = modifier & 0xFF
        if number == 0 and not node.is_switch:
            number = arrived
        if number >= len(node.ports):
            return _INVALID, bytes(ATTRIBUTE_SIZE)
        port = node.ports[number]
        status = 0
        if data is not None:
            if not node.is_switch and number != arrived:
                status = _INVALID
            else:
                status = self._set_port(port, data)
        info = port.info[:]
        info[_LOCAL_PORT] = arrived
        return status, bytes(info)

    def _set_port(self, port: Port, data: bytes) -> int:
        """Set PortInfo; the status. An invalid field changes nothing."""
        now = bytes(port.info)
        if port.number and port.node.is_switch:
            found = _written_external(data, now)
        else:
            found = _written(port.kind, data, now)
        if found is None:
            return _INVALID
        port.info[:], state, physical = found
        if physical == _DISABLED:
            self.subnet.disable(port)
        elif physical in _TRAINING:
            self.subnet.enable(port)
        elif state == DOWN:
            self.subnet.retrain(port)
        elif state:
            port.info[_STATE.at] = port.info[_STATE.at] & ~_STATE.mask | state
        return 0

    def _pkey_table(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        block, number = modifier & 0xFFFF, modifier >> 16
        if not node.is_switch:
            number = arrived
        if number >= len(node.ports):
            return _INVALID, bytes(ATTRIBUTE_SIZE)
        port = node.ports[number]
        if block == 0 and data is None:
            return 0, bytes(port.pkeys[:PKEY_BLOCK]).ljust(ATTRIBUTE_SIZE, b"\0")
        start = block * PKEY_BLOCK
        size = 2 * node.pkey_capacity_of(port)
        if start >= size:
            return _INVALID, bytes(ATTRIBUTE_SIZE)
        if data is not None:
            end = min(start + PKEY_BLOCK, size)
            if len(port.pkeys) < end:
                port.pkeys.extend(bytes(end - len(port.pkeys)))
            port.pkeys[start:end] = data[: end - start]
        return 0, bytes(port.pkeys[start : start + PKEY_BLOCK]).ljust(ATTRIBUTE_SIZE, b"\0")

    def _sl_to_vl(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        if node.is_switch:
            came, leaves = modifier >> 8 & 0xFF, modifier & 0xFF
        else:
            came, leaves = 0, arrived
        if max(came, leaves) > node.num_ports:
            return _INVALID, bytes(ATTRIBUTE_SIZE)
        port = node.ports[leaves]
        if data is not None:
            port.sl2vl[came] = data[: len(DEFAULT_SL_TO_VL)]
        return 0, port.sl2vl.get(came, DEFAULT_SL_TO_VL).ljust(ATTRIBUTE_SIZE, b"\0")

    def _arbitration(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        part, number = modifier >> 16, modifier & 0xFF
        if not node.is_switch:
            number = arrived
        if number > node.num_ports or part not in DEFAULT_ARBITRATION:
            return _INVALID, bytes(ATTRIBUTE_SIZE)
        port = node.ports[number]
        if data is not None:
            port.arbitration[part] = data
        return 0, port.arbitration.get(part, DEFAULT_ARBITRATION[part])

    def _linear_table(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        start = modifier * BLOCK
        if not node.is_switch:
            return _UNKNOWN, bytes(ATTRIBUTE_SIZE)
        if start >= node.linear_fdb_cap:
            return _INVALID, bytes(ATTRIBUTE_SIZE)
        if data is not None:
            if len(node.lft) < start:
                node.lft.extend(b"\xff" * (start - len(node.lft)))
            node.lft[start : start + BLOCK] = data
        return 0, bytes(node.lft[start : start + BLOCK]).ljust(ATTRIBUTE_SIZE, b"\xff")

    def _multicast_table(
        self, node: Node, arrived: int, modifier: int, data: bytes | None
    ) -> _Answer:
        if not node.is_switch:
            return _UNKNOWN, bytes(ATTRIBUTE_SIZE)
        block, position = modifier & 0x1FF, modifier >> 28
        if block >= node.multicast_fdb_cap // 32 or 16 * position > node.num_ports:
            # Tools ask for more than there is, and take zeros for the end.
            return 0, bytes(ATTRIBUTE_SIZE)
        if data is not None:
            node.mft[block, position] = data
        return 0, node.mft.get((block, position), bytes(ATTRIBUTE_SIZE))

    def _extended_port_info(
        self, node: Node, arrived: int, modifier: int, data: bytes | None
    ) -> _Answer:
        """Of Mellanox: whether a port supports, enables and has FDR10."""
        if node.vendor_id != MELLANOX:
            return _UNKNOWN, bytes(ATTRIBUTE_SIZE)
        number = modifier & 0xFF
        if number == 0 and not node.is_switch:
            number = arrived
        if number > node.num_ports or (data and not node.is_switch and number != arrived):
            return _INVALID, bytes(ATTRIBUTE_SIZE)
        port = node.ports[number]
        if data is not None:
            if data[_FDR10_ENABLED] > port.has_fdr10:
                return _INVALID, bytes(ATTRIBUTE_SIZE)
            port.enables_fdr10 = data[_FDR10_ENABLED] == 1
        info = bytearray(ATTRIBUTE_SIZE)
        info[_FDR10_SUPPORTED] = port.has_fdr10
        info[_FDR10_ENABLED] = port.enables_fdr10
        info[_FDR10_ACTIVE] = port.is_fdr10
        return 0, bytes(info)

    def _led(self, node: Node, arrived: int, modifier: int, data: bytes | None) -> _Answer:
        return 0, data if data is not None else bytes(ATTRIBUTE_SIZE)


def _knows_key(port: Port, mad: bytearray) -> bool:
    """Whether a packet has the M_Key of a port, or the port has none."""
    key = port.info[:_MKEY_SIZE]
    return key == _NO_KEY or key == mad[MKEY]


_MKEY_SIZE = 8
"""Bytes of M_Key, the first field of PortInfo."""
_NO_KEY = bytes(_MKEY_SIZE)
_LOCAL_PORT = next(field.offset // 8 for field in PortInfo.FIELDS if field.name == "local_port_num")
_LINK_PART = _LOCAL_PORT + 1
"""Where the fields of PortInfo begin that say what a Set may change."""


def takes_link_down(data: bytes) -> bool:
    """Whether a Set of this PortInfo may take a link down or train it, not only set fields."""
    return data[_STATE.at] & _STATE.mask == DOWN or data[_PHYSICAL.at] >> _PHYSICAL.shift != 0


def _written(kind: str, data: bytes, now: bytes) -> tuple[bytes, int, int] | None:
    """PortInfo after a Set; the state and the physical state to go to. `None` if it is invalid."""
    found = _changes(kind, data[_LINK_PART:], now[_LINK_PART:])
    if found is None:
        return None
    kept, taken, fixed, state, physical = found
    value = _number(now, "big") & kept | _number(data, "big") & taken | fixed
    return value.to_bytes(ATTRIBUTE_SIZE, "big"), state, physical


@lru_cache(4096)
def _written_external(data: bytes, now: bytes) -> tuple[bytes, int, int] | None:
    """The same of a port of a switch: a manager writes the same to thousands of them."""
    return _written("external", data, now)


@lru_cache(4096)
def _changes(kind: str, data: bytes, info: bytes) -> tuple[int, int, int, int, int] | None:
    """What a Set changes, by the parts of the old and the new PortInfo that decide it.

    Masks of the whole attribute: what stays as it was, what is taken over; other bits; the state
    and the physical state to go to. `None` if a field is invalid.
    """
    mask, fixed = _WRITABLE[kind], 0
    taken = mask
    if kind == "management":
        return ~mask, taken, 0, 0, 0
    data, info = bytes(_LINK_PART) + data, bytes(_LINK_PART) + info
    if not _is_valid(data, info):
        return None
    written = _number(data, "big")
    for field in _UNLESS_ZERO:
        if written & field:
            mask |= field
            taken |= field
    for enabled, supported, every in _ENABLED:
        value = data[enabled.at] >> enabled.shift & enabled.mask
        if value == every:
            value = info[supported.at] >> supported.shift & supported.mask
            mask |= enabled.bits
            fixed |= value << enabled.place
        elif value:
            mask |= enabled.bits
            taken |= enabled.bits
    state, physical = data[_STATE.at] & _STATE.mask, data[_PHYSICAL.at] >> _PHYSICAL.shift
    return ~mask, taken, fixed, state, physical


def _is_valid(data: bytes, info: bytes) -> bool:
    """Whether a Set has only values that the port supports (IBA 14.2.5.6)."""
    now = info[_STATE.at] & _STATE.mask
    if now not in _BEFORE.get(data[_STATE.at] & _STATE.mask, ()):
        return False
    if data[_PHYSICAL.at] >> _PHYSICAL.shift > _DISABLED:
        return False
    for field, largest in _AT_MOST:
        most = info[largest.at] >> largest.shift & largest.mask
        if data[field.at] >> field.shift & field.mask > most:
            return False
    for enabled, supported, every in _ENABLED:
        value = data[enabled.at] >> enabled.shift & enabled.mask
        if value != every and value & ~(info[supported.at] >> supported.shift & supported.mask):
            return False
    return True


class _Bits:
    """Where a field of PortInfo is that lies in one byte.

    at, shift, mask: the byte, and its bits. place: of the whole attribute as a number; bits: there.
    """

    __slots__ = ("at", "bits", "mask", "place", "shift")

    def __init__(self, name: str) -> None:
        self.bits = _mask(name)
        self.place = (self.bits & -self.bits).bit_length() - 1
        self.at = ATTRIBUTE_SIZE - 1 - self.place // 8
        self.shift = self.place % 8
        self.mask = self.bits >> self.place
        assert self.mask << self.shift <= 0xFF


_STATE, _PHYSICAL = _Bits("port_state"), _Bits("port_physical_state")
_ENABLED = (
    (_Bits("link_width_enabled"), _Bits("link_width_supported"), 0xFF),
    (_Bits("link_speed_enabled"), _Bits("link_speed_supported"), 0xF),
    (_Bits("link_speed_ext_enabled"), _Bits("link_speed_ext_supported"), 0x1F),
)
"""Fields that enable widths and speeds: the field, the supported ones, the value for all."""
_AT_MOST = (
    (_Bits("operational_vls"), _Bits("vl_cap")),
    (_Bits("neighbor_mtu"), _Bits("mtu_cap")),
)
"""Fields, and those with their largest values."""
_UNLESS_ZERO = tuple(map(_mask, ("operational_vls", "neighbor_mtu", "link_down_default_state")))
"""Fields that a Set changes only by a value that is not 0."""

_ANY_STATE = tuple(map(int, PortState))
_BEFORE = {
    int(PortState.NO_CHANGE): _ANY_STATE,
    DOWN: _ANY_STATE,
    ARMED: (INIT, ARMED),
    ACTIVE: (ARMED, ACTIVE),
}
"""The states from which a Set of PortState may go to another, by the new one."""

Handler = Callable[[SMA, Node, int, int, bytes | None], _Answer]

HANDLERS: dict[int, Handler] = {
    SMAttribute.NODE_DESCRIPTION: SMA._node_description,
    SMAttribute.NODE_INFO: SMA._node_info,
    SMAttribute.SWITCH_INFO: SMA._switch_info,
    SMAttribute.GUID_INFO: SMA._guid_info,
    SMAttribute.PORT_INFO: SMA._port_info,
    SMAttribute.P_KEY_TABLE: SMA._pkey_table,
    SMAttribute.SL_TO_VL_MAPPING_TABLE: SMA._sl_to_vl,
    SMAttribute.VL_ARBITRATION_TABLE: SMA._arbitration,
    SMAttribute.LINEAR_FORWARDING_TABLE: SMA._linear_table,
    SMAttribute.MULTICAST_FORWARDING_TABLE: SMA._multicast_table,
    SMAttribute.LED_INFO: SMA._led,
    SMAttribute.MLNX_EXTENDED_PORT_INFO: SMA._extended_port_info,
}
"""Attributes of a node, with what answers them."""

_PORT_INFO = HANDLERS[SMAttribute.PORT_INFO]
