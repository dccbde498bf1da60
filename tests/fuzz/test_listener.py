"""Where the listener of `fuzz --service` listens on the host of a device."""

from __future__ import annotations

from pathlib import Path

from ibwire.fuzz.targets.link.listener import device_addresses

ENTRIES = {
    "0": ("RoCE v1", "fe80:0000:0000:0000:0000:00ff:fe00:0001"),
    "1": ("RoCE v2", "fe80:0000:0000:0000:0000:00ff:fe00:0001"),
    "2": ("RoCE v1", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
    "3": ("RoCE v2", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
    "4": ("RoCE v2", "fd00:0000:0000:0000:0000:0000:0a00:0001"),
    "5": ("RoCE v2", "0000:0000:0000:0000:0000:0000:0000:0000"),
    "6": ("RoCE v2", "what is this"),
}
"""Type and GID, as in /sys/class/infiniband."""


def test_the_addresses_of_devices_are_their_gids_for_roce_v2(tmp_path: Path) -> None:
    port = tmp_path / "rxe0" / "ports" / "1"
    (port / "gids").mkdir(parents=True)
    (port / "gid_attrs" / "types").mkdir(parents=True)
    for index, (kind, gid) in ENTRIES.items():
        (port / "gid_attrs" / "types" / index).write_text(f"{kind}\n")
        (port / "gids" / index).write_text(f"{gid}\n")
    (port / "gids" / "7").write_text("no type, as for an entry that is not used")

    assert device_addresses(tmp_path) == ["10.0.0.1", "fd00::a00:1"]
    assert device_addresses(tmp_path / "rxe0") == []
