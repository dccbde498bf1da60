"""When the kernel has received what a socket delivers.

Source: socket(7), asm-generic/socket.h, cmsg(3).
"""

from __future__ import annotations

from struct import Struct

TIMESTAMPNS = 35
"""Option of a socket, SO_TIMESTAMPNS: a struct timespec comes with each message."""

TIME = Struct("@ll")
"""struct timespec: seconds since the epoch, nanoseconds."""
