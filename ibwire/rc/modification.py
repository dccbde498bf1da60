"""The attributes that a modify sets, and the values they may have."""

from __future__ import annotations

import errno
from dataclasses import fields
from functools import lru_cache

from ibwire.base.errors import VerbsError
from ibwire.rc.attributes import (
    MTU_BYTES,
    AddressVector,
    MigState,
    QPAttr,
    QPAttrMask,
    QPState,
)
from ibwire.rc.limits import PortTables
from ibwire_layers.psn import MASK


@lru_cache(maxsize=256)
def names_of(mask: int) -> tuple[str, ...]:
    """The fields of `QPAttr` that a modify with this mask sets."""
    return tuple(name for bit, names in _ATTRIBUTES.items() if mask & bit for name in names)


def check_values(port: PortTables, attr: QPAttr, mask: int) -> None:
    """Raise `VerbsError` EINVAL for an invalid value among the attributes that are set."""
    for name, highest in _limits_of(mask):
        if not 0 <= getattr(attr, name) <= highest:
            raise VerbsError(errno.EINVAL, f"{name} {getattr(attr, name)}, not 0 to {highest}")
    if mask & _PATH_MTU and attr.path_mtu not in MTU_BYTES:
        raise VerbsError(errno.EINVAL, f"path_mtu {attr.path_mtu}, not 1 to 5")
    if mask & _PORT and attr.port_num != 1:
        raise VerbsError(errno.EINVAL, f"port {attr.port_num}, the device has port 1 only")
    if mask & _PKEY_INDEX:
        _check_pkey(port, attr.pkey_index)
    if mask & _AV:
        check_address(port, attr.ah_attr)
    if mask & _ALT_PATH:
        _check_pkey(port, attr.alt_pkey_index)
        check_address(port, attr.alt_ah_attr)
    highest = port.limits.max_qp_rd_atom
    for bit, depth in ((_READS, attr.max_rd_atomic), (_DEST_READS, attr.max_dest_rd_atomic)):
        if mask & bit and not 0 <= depth <= highest:
            raise VerbsError(errno.EINVAL, f"{depth} reads, at most {highest}")


def check_migration(before: QPAttr, attr: QPAttr, target: QPState, *, has_alternate: bool) -> None:
    """Raise `VerbsError` EINVAL for an illegal change of the migration state.

    MIGRATED from ARMED, REARM from MIGRATED and only in RTS (rvt_modify_qp).
    """
    wanted = attr.path_mig_state
    if wanted == MigState.MIGRATED:
        allowed = before.path_mig_state is not MigState.REARM
    else:
        allowed = (
            wanted == MigState.REARM
            and before.path_mig_state is not MigState.ARMED
            and target is QPState.RTS
            and has_alternate
        )
    if not allowed:
        raise VerbsError(
            errno.EINVAL, f"migration state {wanted} cannot follow {before.path_mig_state}"
        )


def check_address(port: PortTables, av: AddressVector) -> None:
    """Raise `VerbsError` EINVAL for an invalid address."""
    if not 0 <= av.sgid_index < len(port.gids):
        raise VerbsError(errno.EINVAL, f"no GID at index {av.sgid_index}")
    for name, bits in _ADDRESS_BITS:
        value = getattr(av, name)
        if value is not None and value >> bits:
            raise VerbsError(errno.EINVAL, f"{name} {value:#x}, not a number of {bits} bits")
    if av.dmac is not None and len(av.dmac) != 6:
        raise VerbsError(errno.EINVAL, f"a MAC address of {len(av.dmac)} bytes")


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less than a number; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0


def _check_pkey(port: PortTables, index: int) -> None:
    if not 0 <= index < len(port.pkeys):
        raise VerbsError(errno.EINVAL, f"no P_Key at index {index}")


@lru_cache(maxsize=256)
def _limits_of(mask: int) -> tuple[tuple[str, int], ...]:
    return tuple((name, _LIMITS[name]) for name in names_of(mask) if name in _LIMITS)


# Plain numbers: combining members of an enumeration is slow.
_M = QPAttrMask
_AV, _ALT_PATH, _PATH_MTU = map(int, (_M.AV, _M.ALT_PATH, _M.PATH_MTU))
_PKEY_INDEX, _PORT = int(_M.PKEY_INDEX), int(_M.PORT)
_READS, _DEST_READS = int(_M.MAX_QP_RD_ATOMIC), int(_M.MAX_DEST_RD_ATOMIC)

_ATTRIBUTES: dict[int, tuple[str, ...]] = {
    int(QPAttrMask.EN_SQD_ASYNC_NOTIFY): ("en_sqd_async_notify",),
    int(QPAttrMask.ACCESS_FLAGS): ("qp_access_flags",),
    int(QPAttrMask.PKEY_INDEX): ("pkey_index",),
    int(QPAttrMask.PORT): ("port_num",),
    int(QPAttrMask.QKEY): ("qkey",),
    int(QPAttrMask.AV): ("ah_attr",),
    int(QPAttrMask.PATH_MTU): ("path_mtu",),
    int(QPAttrMask.TIMEOUT): ("timeout",),
    int(QPAttrMask.RETRY_CNT): ("retry_cnt",),
    int(QPAttrMask.RNR_RETRY): ("rnr_retry",),
    int(QPAttrMask.RQ_PSN): ("rq_psn",),
    int(QPAttrMask.MAX_QP_RD_ATOMIC): ("max_rd_atomic",),
    int(QPAttrMask.ALT_PATH): ("alt_ah_attr", "alt_pkey_index", "alt_port_num", "alt_timeout"),
    int(QPAttrMask.MIN_RNR_TIMER): ("min_rnr_timer",),
    int(QPAttrMask.SQ_PSN): ("sq_psn",),
    int(QPAttrMask.MAX_DEST_RD_ATOMIC): ("max_dest_rd_atomic",),
    int(QPAttrMask.PATH_MIG_STATE): ("path_mig_state",),
    int(QPAttrMask.DEST_QPN): ("dest_qp_num",),
}
"""Attributes by bit of a modify's mask."""

_ADDRESS_BITS = (
    ("dgid", 128),
    ("traffic_class", 8),
    ("flow_label", 20),
    ("hop_limit", 8),
    ("sl", 4),
    ("dlid", 16),
    ("src_path_bits", 7),
    ("udp_source_port", 16),
)
"""Widths of the fields of an address in the headers."""

_LIMITS = dict.fromkeys(("timeout", "min_rnr_timer"), 31)
_LIMITS |= {"retry_cnt": 7, "rnr_retry": 7, "dest_qp_num": MASK, "qkey": (1 << 32) - 1}
"""Largest values of attributes."""

assert {name for names in _ATTRIBUTES.values() for name in names} <= {
    entry.name for entry in fields(QPAttr)
}
