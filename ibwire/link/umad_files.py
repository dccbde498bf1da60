"""The files under /sys/class/infiniband that programs read, for a host of an emulated fabric."""

from __future__ import annotations

import os
from pathlib import Path

from ibwire.fabric.infiniband.speeds import Width
from ibwire.fabric.infiniband.subnet import Node, Port, rate_of
from ibwire_layers.attributes import PortPhysicalState, PortState

DEVICE = "ibwire0"
ABI_VERSION = 5

_STATES: dict[int, str] = {
    PortState.DOWN: "DOWN",
    PortState.INIT: "INIT",
    PortState.ARMED: "ARMED",
    PortState.ACTIVE: "ACTIVE",
    PortState.ACTIVE_DEFER: "ACTIVE_DEFER",
}
_PHYSICAL: dict[int, str] = {
    PortPhysicalState.SLEEP: "Sleep",
    PortPhysicalState.POLLING: "Polling",
    PortPhysicalState.DISABLED: "Disabled",
    PortPhysicalState.TRAINING: "PortConfigurationTraining",
    PortPhysicalState.LINK_UP: "LinkUp",
    PortPhysicalState.LINK_ERROR_RECOVERY: "LinkErrorRecovery",
    PortPhysicalState.PHY_TEST: "Phy Test",
}


class HostFiles:
    """The files of a channel adapter below `root`, as Linux names them."""

    def __init__(self, root: Path, node: Node) -> None:
        self.root = root
        self._node = node
        self._state = b""
        self._written: dict[str, object] = {}
        """What each file says."""

    def write(self) -> None:
        """Write the files that are not there yet, or say what is no longer so.

        Raises `OSError`, such as without room; the next call then writes what is missing.
        """
        state = b"".join([bytes(each.info + each.pkeys) for each in self._node.external_ports()])
        if state == self._state:
            return
        written = self._written
        for name, value in _contents(self._node).items():
            if name not in written:
                self._make(name, value)
            elif written[name] != value:
                self._replace(name, value)
            written[name] = value
        self._state = state

    def _make(self, name: str, value: object) -> None:
        path = f"{self.root}/{name}"
        try:
            self._put(path, value)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path))
            self._put(path, value)

    def _replace(self, name: str, value: object) -> None:
        """At once: a program may be reading it."""
        folder, _, last = name.rpartition("/")
        draft = f"{self.root}/{folder}/.{last}"
        self._put(draft, value)
        os.replace(draft, f"{self.root}/{name}")

    def _put(self, path: str, value: object) -> None:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            data = f"{value}\n".encode()
            while data:  # a disk that becomes full takes a part of it first
                data = data[os.write(opened, data) :]
        finally:
            os.close(opened)


def _contents(node: Node) -> dict[str, object]:
    """What the files of an adapter say, by their names."""
    device, mads = f"sys/class/infiniband/{DEVICE}", "sys/class/infiniband_mad"
    files: dict[str, object] = {
        f"{mads}/abi_version": ABI_VERSION,
        f"{device}/node_type": "1: CA",
        f"{device}/fw_ver": "1.0",
        f"{device}/hw_rev": "1",
        f"{device}/hca_type": "ibwire",
        f"{device}/board_id": "ibwire",
        f"{device}/node_desc": node.description,
        f"{device}/node_guid": _groups(node.guid),
        f"{device}/sys_image_guid": _groups(node.system_guid),
    }
    for port in node.external_ports():
        files |= _contents_of_port(f"{device}/ports/{port.number}", port)
        for name in ("umad", "issm"):
            files[f"{mads}/{name}{port.number - 1}/ibdev"] = DEVICE
            files[f"{mads}/{name}{port.number - 1}/port"] = port.number
    return files


def _contents_of_port(folder: str, port: Port) -> dict[str, object]:
    files: dict[str, object] = {
        f"{folder}/lid": f"0x{port.lid:x}",
        f"{folder}/lid_mask_count": port.lmc,
        f"{folder}/sm_lid": f"0x{port.master_sm_lid:x}",
        f"{folder}/sm_sl": port.master_sm_sl,
        f"{folder}/state": f"{port.state}: {_STATES.get(port.state, 'NOP')}",
        f"{folder}/phys_state": f"{port.physical_state}: {_PHYSICAL.get(port.physical_state, '')}",
        f"{folder}/rate": _rate(port),
        f"{folder}/cap_mask": f"0x{port.capability_mask:08x}",
        f"{folder}/link_layer": "InfiniBand",
        f"{folder}/gids/0": _gid(port),
    }
    entries = bytes(port.pkeys).ljust(64, b"\0")[:64]
    for index in range(32):
        files[f"{folder}/pkeys/{index}"] = f"0x{entries[2 * index : 2 * index + 2].hex()}"
    return files


def _rate(port: Port) -> str:
    name = rate_of(port)
    if not name:
        return "2.5 Gb/sec (1X SDR)"
    speed, width = name
    if width is Width.X1 and speed.label == "SDR":
        return "2.5 Gb/sec (1X SDR)"
    gbps = round(speed.named_bps * width.lanes / 1e9, 1)
    return f"{gbps:g} Gb/sec ({width.lanes}X {speed.label})"


def _gid(port: Port) -> str:
    prefix = port.gid_prefix or 0xFE80 << 48
    return f"{_groups(prefix)}:{_groups(port.guid)}"


def _groups(value: int) -> str:
    """A GUID in four groups."""
    text = f"{value:016x}"
    return ":".join(text[start : start + 4] for start in range(0, 16, 4))
