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


def write_host(root: Path, node: Node) -> None:
    """Write the files of a channel adapter below `root`, as Linux names them."""
    sys = root / "sys" / "class"
    device = sys / "infiniband" / DEVICE
    mads = sys / "infiniband_mad"
    files = {
        mads / "abi_version": ABI_VERSION,
        device / "node_type": "1: CA",
        device / "fw_ver": "1.0",
        device / "hw_rev": "1",
        device / "hca_type": "ibwire",
        device / "board_id": "ibwire",
        device / "node_desc": node.description,
        device / "node_guid": _groups(node.guid),
        device / "sys_image_guid": _groups(node.system_guid),
    }
    for port in node.external_ports():
        files |= _port_files(device / "ports" / str(port.number), port)
        for name in ("umad", "issm"):
            files[mads / f"{name}{port.number - 1}" / "ibdev"] = DEVICE
            files[mads / f"{name}{port.number - 1}" / "port"] = port.number
    for path, value in files.items():
        _write(path, f"{value}\n")


def _port_files(folder: Path, port: Port) -> dict[Path, object]:
    files: dict[Path, object] = {
        folder / "lid": f"0x{port.lid:x}",
        folder / "lid_mask_count": port.lmc,
        folder / "sm_lid": f"0x{port.master_sm_lid:x}",
        folder / "sm_sl": port.master_sm_sl,
        folder / "state": f"{port.state}: {_STATES.get(port.state, 'NOP')}",
        folder / "phys_state": f"{port.physical_state}: {_PHYSICAL.get(port.physical_state, '')}",
        folder / "rate": _rate(port),
        folder / "cap_mask": f"0x{port.capability_mask:08x}",
        folder / "link_layer": "InfiniBand",
        folder / "gids" / "0": _gid(port),
    }
    entries = bytes(port.pkeys).ljust(64, b"\0")[:64]
    for index in range(32):
        files[folder / "pkeys" / str(index)] = f"0x{entries[2 * index : 2 * index + 2].hex()}"
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


def _write(path: Path, text: str) -> None:
    """Replace a file at once: a program may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_text() == text:
        return
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    os.replace(draft, path)
