"""XRC domains, with pyverbs' names."""

from __future__ import annotations

import errno
import os
from typing import SupportsInt

from ibwire.base.errors import VerbsError
from ibwire.rc.xrc import XRCDomain
from ibwire.verbs.base import Children, PyverbsCM, PyverbsResource
from ibwire.verbs.device import Context
from ibwire.verbs.fields import Structure, Unsigned
from ibwire.verbs.libibverbs_enums import ibv_xrcd_init_attr_mask
from ibwire.verbs.pyverbs_error import PyverbsUserError


class XRCDInitAttr(Structure):
    """Attributes of an XRC domain, shared by all users of a file; `fd` -1 is a private domain."""

    comp_mask = Unsigned(32)
    oflags = Unsigned(31)

    def __init__(self, comp_mask: int, oflags: int, fd: SupportsInt) -> None:
        self.comp_mask = comp_mask
        self.oflags = oflags
        self.fd = int(fd)


class XRCD(PyverbsResource):
    """An XRC domain: connects XRC queue pairs with shared receive queues."""

    closing_rank = 5
    xrcd: XRCDomain | None = None

    def __init__(self, context: Context, init_attr: XRCDInitAttr) -> None:
        if not isinstance(context, Context) or not isinstance(init_attr, XRCDInitAttr):
            raise PyverbsUserError("an XRCD is made from a Context and an XRCDInitAttr")
        with context.verb("Failed to allocate XRCD"):
            if init_attr.comp_mask & _NEEDED != _NEEDED:
                raise VerbsError(
                    errno.EINVAL,
                    "comp_mask without IBV_XRCD_INIT_ATTR_FD and IBV_XRCD_INIT_ATTR_OFLAGS",
                )
            self._file = _identity(init_attr.fd)
            self.xrcd = context.open_xrc_domain(self._file, init_attr.oflags)
        self.context = context
        self._children = Children()
        context.add_ref(self)

    @property
    def ctx(self) -> Context | None:
        """The context, `None` after closing."""
        return self.context if self.xrcd is not None else None

    def add_ref(self, obj: PyverbsCM) -> None:
        """Register an object to be closed with the domain."""
        self._children.add(obj)

    def close(self) -> None:
        """Close the objects of the domain, then the domain."""
        if self.xrcd is not None:
            self._children.close()
            with self.context.closing("Failed to dealloc XRCD"):
                self.context.close_xrc_domain(self._file, self.xrcd)
            self.xrcd = None


def _identity(fd: int) -> tuple[int, int] | None:
    """Device and inode of a file descriptor; raises `VerbsError` for an invalid one."""
    if fd == -1:
        return None
    try:
        status = os.fstat(fd)
    except (OSError, OverflowError) as error:
        raise VerbsError(errno.EBADF, f"file descriptor {fd}: {error}") from error
    return status.st_dev, status.st_ino


_NEEDED = (
    ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_FD
    | ibv_xrcd_init_attr_mask.IBV_XRCD_INIT_ATTR_OFLAGS
)
