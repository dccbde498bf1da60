"""Limits of a device, and the tables of its port that attributes are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Capacities of a device: `ibv_device_attr`."""

    max_qp: int = 1 << 20
    max_qp_wr: int = 1 << 16
    max_sge: int = 32
    max_cq: int = 1 << 20
    max_cqe: int = 1 << 22
    max_mr: int = 1 << 24
    max_srq: int = 1 << 16
    max_srq_wr: int = 1 << 16
    max_qp_rd_atom: int = 128
    max_inline_data: int = 1024
    port_mtu: int = 4096
    """Bytes; the largest path MTU."""


class PortTables(Protocol):
    """A device as the checks of attributes and addresses see it."""

    gids: list[int]
    pkeys: list[int]
    limits: DeviceLimits
