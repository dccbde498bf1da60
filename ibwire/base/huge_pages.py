"""Huge pages of memory for this process.

A large emulation follows references all over its memory. With pages of 4 KiB the processor often
has to look up where a page is, with pages of 2 MiB seldom. Where Linux gives huge pages only to
those who ask (`madvise` in /sys/kernel/mm/transparent_hugepage/enabled), Python does not ask.

Source: madvise(2), MADV_HUGEPAGE and, since Linux 6.1, MADV_COLLAPSE.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

HUGE_PAGE = 2 << 20

_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?$", re.M)
"""A line of /proc/self/maps for memory of no file; the stack has a name."""


def ask_for_huge_pages() -> int:
    """Have the memory that the process has by now in huge pages; the bytes for which Linux agreed.

    It costs about a millisecond for each MiB. Of 2 MiB that the process uses in part, the rest
    counts as used, too. Elsewhere, and on an older Linux, nothing happens.
    """
    try:
        maps = Path("/proc/self/maps").read_text()
        madvise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return 0
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    agreed = 0
    for start, end in _ANONYMOUS.findall(maps):
        first = -(-int(start, 16) // HUGE_PAGE) * HUGE_PAGE
        size = int(end, 16) // HUGE_PAGE * HUGE_PAGE - first
        if (
            size > 0
            and not madvise(first, size, _MADV_HUGEPAGE)
            and not madvise(first, size, _MADV_COLLAPSE)
        ):
            agreed += size
    return agreed
