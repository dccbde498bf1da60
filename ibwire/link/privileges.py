"""Giving up the rights of root when they are no longer needed.

A packet socket needs CAP_NET_RAW to be opened, and nothing to be used. What a peer or a capture
makes of a process afterwards should not be able to do more than that.

Source: capabilities(7), capset(2), prctl(2); linux/capability.h, linux/prctl.h.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from pathlib import Path

CAP_NET_BIND_SERVICE = 10
"""For TCP ports below 1024."""

CAP_NET_RAW = 13
"""Before Linux 5.7 also to bind an ordinary socket to an interface."""


def drop_capabilities(keep: Collection[int] = (CAP_NET_BIND_SERVICE,)) -> None:
    """Give up all capabilities but these, for ever, also for programs that are started.

    It is for this thread and those that it starts, so call it before there are others. A process
    without capabilities gets none by this. The user ID stays: root without capabilities opens
    the files that root's user and group may open, and no others.
    """
    kept = sum(1 << number for number in keep)
    if _release() < (5, 7):
        kept |= 1 << CAP_NET_RAW
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    number = 0
    # It fails behind the last capability, and without CAP_SETPCAP: then there is nothing to drop.
    while _prctl(_PR_CAPBSET_READ, number) >= 0:
        if not kept >> number & 1:
            _prctl(_PR_CAPBSET_DROP, number)
        number += 1
    header = _Header(_VERSION_3, 0)
    sets = (_Sets * 2)()
    if _libc.capget(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for word, each in enumerate(sets):
        each.permitted &= kept >> 32 * word & 0xFFFFFFFF
        each.effective &= each.permitted
        each.inheritable = 0
    if _libc.capset(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def effective_capabilities(task: str = "self") -> int:
    """Effective capabilities of a process or thread of this one, as bits."""
    status = Path(f"/proc/{task}/status").read_text(encoding="ascii", errors="replace")
    (line,) = (each for each in status.splitlines() if each.startswith("CapEff:"))
    return int(line.split()[1], 16)


def _release() -> tuple[int, int]:
    """Version of the kernel."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def _prctl(what: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    found: int = _libc.prctl(what, *map(ctypes.c_ulong, padded))
    return found


class _Header(ctypes.Structure):
    """struct __user_cap_header_struct."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    """struct __user_cap_data_struct: 32 capabilities."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


_libc = ctypes.CDLL(None, use_errno=True)

_VERSION_3 = 0x20080522
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
