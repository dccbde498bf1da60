"""XRC domains: which XRC queue pairs may use which shared receive queues."""

from __future__ import annotations

import errno

from ibwire.base.errors import VerbsError


class XRCDomain:
    """A set of XRC queue pairs and the shared receive queues that they may use."""

    __slots__ = ("closed", "users")

    def __init__(self) -> None:
        self.users = 0
        self.closed = False

    def attach(self) -> None:
        """Add one user; raises EINVAL after `close`."""
        if self.closed:
            raise VerbsError(errno.EINVAL, "the XRC domain is closed")
        self.users += 1

    def detach(self) -> None:
        """Remove one user."""
        self.users -= 1

    def close(self) -> None:
        """Release the domain; raises EBUSY while it is used."""
        if self.users:
            raise VerbsError(errno.EBUSY, f"the XRC domain has {self.users} users")
        self.closed = True
