"""Attributes of devices and ports as text: the `translate_` functions of `pyverbs.device`."""

from __future__ import annotations

from collections.abc import Mapping

from ibwire.verbs.libibverbs_enums import (
    ibv_device_cap_flags,
    ibv_event_type,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
)
from ibwire.verbs.utils import be64toh, name_of


def translate_gid_type(gid_type: int) -> str:
    """Name of a GID type."""
    return name_of({0: "IB", 1: "RoCEv1", 2: "RoCEv2"}, gid_type)


def guid_format(num: int) -> str:
    """A GUID, given in memory order, as four groups of digits."""
    digits = f"{be64toh(num):016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def guid_to_hex(node_guid: int) -> str:
    """A GUID as hexadecimal digits."""
    return f"{node_guid:x}"


def translate_transport_type(transport_type: int) -> str:
    """Name of a transport type."""
    return name_of({0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC UDP"}, transport_type)


def translate_node_type(node_type: int) -> str:
    """Name of a node type."""
    return name_of(
        {1: "CA", 2: "Switch", 3: "Router", 4: "RNIC", 5: "USNIC", 6: "USNIC UDP"}, node_type
    )


def port_state_to_str(port_state: int) -> str:
    """Name of a port's logical state."""
    return _named(
        {0: "NOP", 1: "Down", 2: "Init", 3: "Armed", 4: "Active", 5: "Defer"}, port_state, "state"
    )


def translate_mtu(mtu: int) -> str:
    """Bytes of an MTU code."""
    return _named({1: "256", 2: "512", 3: "1024", 4: "2048", 5: "4096"}, mtu, "MTU")


def translate_link_layer(ll: int) -> str:
    """Name of a link layer."""
    names = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
    return names.get(ll, f"Invalid link layer ({ll})")


def translate_port_cap_flags(flags: int) -> str:
    """Names of port capabilities."""
    return str_from_flags(flags, {f.value: str(f.name) for f in ibv_port_cap_flags})


def translate_port_cap_flags2(flags: int) -> str:
    """Names of port capabilities, second word."""
    return str_from_flags(flags, {f.value: str(f.name) for f in ibv_port_cap_flags2})


def translate_device_caps(flags: int) -> str:
    """Names of device capabilities."""
    return str_from_flags(flags, {f.value: str(f.name) for f in ibv_device_cap_flags})


def str_from_flags(flags: int, dictionary: Mapping[int, str]) -> str:
    """Names of the set flags, one a line."""
    return "\n  " + "".join(f"{name}\n  " for bit, name in dictionary.items() if flags & bit)


def phys_state_to_str(phys: int) -> str:
    """Name of a port's physical state."""
    names = {
        1: "Sleep",
        2: "Polling",
        3: "Disabled",
        4: "Port configuration training",
        5: "Link up",
        6: "Link error recovery",
        7: "Phy test",
    }
    return _named(names, phys, "physical state")


def width_to_str(width: int) -> str:
    """Number of lanes of a link."""
    return _named({1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}, width, "width")


def speed_to_str(active_speed: int, active_speed_ex: int) -> str:
    """Speed of a lane; the second argument takes precedence unless it is 0."""
    return _named(_SPEEDS, active_speed_ex or active_speed, "speed")


def translate_event_type(event_type: int) -> str:
    """Name of an asynchronous event."""
    return name_of({e.value: e.name for e in ibv_event_type}, event_type)


def _named(names: Mapping[int, str], value: int, what: str) -> str:
    return f"{names[value]} ({value})" if value in names else f"Invalid {what} ({value})"


_SPEEDS = {
    0: "0.0 Gbps",
    1: "2.5 Gbps",
    2: "5.0 Gbps",
    4: "5.0 Gbps",
    8: "10.0 Gbps",
    16: "14.0 Gbps",
    32: "25.0 Gbps",
    64: "50.0 Gbps",
    128: "100.0 Gbps",
    256: "200.0 Gbps",
}
