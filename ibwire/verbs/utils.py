"""GIDs and numbers as text (pyverbs' module name)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from string import hexdigits

from ibwire.verbs.libibverbs_enums import ibv_rereg_mr_err_code
from ibwire.verbs.pyverbs_error import PyverbsUserError


def be64toh(num: int) -> int:
    """Convert a 64-bit number from network order on a little-endian host."""
    (value,) = struct.unpack("<Q", struct.pack(">Q", num))
    return int(value)


def gid_text(gid: int) -> str:
    """A 128-bit GID as eight groups of four hexadecimal digits."""
    digits = f"{gid:032x}"
    return ":".join(digits[i : i + 4] for i in range(0, 32, 4))


def gid_number(text: str) -> int:
    """The number of a GID in the form of `gid_text`; `PyverbsUserError` for any other text."""
    groups = text.split(":")
    digits = "".join(groups)
    if [len(group) for group in groups] != [4] * 8 or not set(digits) <= set(hexdigits):
        raise PyverbsUserError(f"Invalid GID value ({text}): not eight groups of four digits")
    return int(digits, 16)


def gid_str(subnet_prefix: int, interface_id: int) -> str:
    """A GID as text from its halves, each in network order."""
    return gid_text(be64toh(subnet_prefix) << 64 | be64toh(interface_id))


def gid_str_to_array(val: str) -> list[str]:
    """The sixteen bytes of a GID as hexadecimal pairs."""
    digits = f"{gid_number(val):032x}"
    return [digits[i : i + 2] for i in range(0, 32, 2)]


def name_of(names: Mapping[int, str], value: int) -> str:
    """The name of a value, or `Unknown`."""
    return names.get(value, f"Unknown ({value})")


def names_of(names: Mapping[int, str], flags: int) -> str:
    """Names of the set flags."""
    return " ".join(name for flag, name in names.items() if flags & flag)


def qp_type_to_str(qp_type: int) -> str:
    """Name of a transport service."""
    return name_of(_QP_TYPES, qp_type)


def qp_state_to_str(qp_state: int) -> str:
    """Name of the state of a queue pair."""
    return name_of(_QP_STATES, qp_state)


def mtu_to_str(mtu: int) -> int:
    """Bytes of a path MTU code, 0 for an unknown one."""
    return 128 << mtu if 1 <= mtu <= 5 else 0


def access_flags_to_str(flags: int) -> str:
    """Names of access flags."""
    return names_of(_ACCESS, flags)


def mig_state_to_str(mig: int) -> str:
    """Name of a path migration state."""
    return name_of(_MIGRATION, mig)


def rereg_error_to_str(error: int) -> str:
    """Name of a re-registration error."""
    try:
        return ibv_rereg_mr_err_code(error).name
    except ValueError:
        return f"Unknown error ({error})"


_QP_TYPES = {
    2: "RC",
    3: "UC",
    4: "UD",
    8: "Raw Packet",
    9: "XRCD_SEND",
    10: "XRCD_RECV",
    0xFF: "Driver QP",
}

_QP_STATES = {
    0: "Reset",
    1: "Init",
    2: "RTR",
    3: "RTS",
    4: "SQD",
    5: "SQE",
    6: "Error",
    7: "Unknown",
}

_ACCESS = {
    1: "Local write",
    2: "Remote write",
    4: "Remote read",
    8: "Remote atomic",
    16: "MW bind",
    32: "Zero based",
    64: "On demand",
}

_MIGRATION = {0: "Migrated", 1: "Re-arm", 2: "Armed"}
