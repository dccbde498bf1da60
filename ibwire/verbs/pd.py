"""Protection domains, with pyverbs' names."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ibwire.rc.memory import ProtectionDomain
from ibwire.verbs.base import Children, PyverbsCM, PyverbsObject, PyverbsResource
from ibwire.verbs.device import Context
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError

if TYPE_CHECKING:
    from ibwire.verbs.wr import SGE


class PD(PyverbsResource):
    """A protection domain; closing it closes its objects."""

    closing_rank = 6
    _open = False

    def __init__(self, creator: Context, **kwargs: object) -> None:
        if not isinstance(creator, Context):
            raise PyverbsUserError(f"a PD is made from a Context, not {type(creator).__name__}")
        if kwargs.get("handle") is not None:
            raise PyverbsRDMAError("Failed to import PD", errno.EOPNOTSUPP)
        self.context = creator
        """The context of the domain, kept open by it."""
        with creator.verb("Failed to allocate PD"):
            self.pd: ProtectionDomain = creator.device.alloc_pd()
        self._open = True
        self._children = Children()
        self.handle = creator.new_handle()
        creator.add_ref(self)

    @property
    def ctx(self) -> Context | None:
        """The context, `None` after closing."""
        return self.context if self._open else None

    def add_ref(self, obj: PyverbsCM) -> None:
        """Register an object to be closed with the domain."""
        self._children.add(obj)

    def remove_ref(self, obj: PyverbsCM) -> None:
        """Unregister an object that moved to another domain."""
        self._children.remove(obj)

    def advise_mr(self, advise: int, flags: int, sg_list: Sequence[SGE]) -> int:
        """Give advice on paging on demand; not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("Failed to advise MR", errno.EOPNOTSUPP)

    def unimport(self) -> NoReturn:
        """Not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("Failed to unimport PD", errno.EOPNOTSUPP)

    def close(self) -> None:
        """Close the objects of the domain, then the domain."""
        if self._open:
            self._children.close()
            with self.context.closing("Failed to dealloc PD"):
                self.pd.close()
            self._open = False


class ParentDomainContext(PyverbsObject):
    """Allocation functions for a parent domain."""

    def __init__(
        self, pd: PD, alloc_func: object, free_func: object, user_data: object = None
    ) -> None:
        self.pd = pd
        self.p_alloc = alloc_func
        self.p_free = free_func
        self.user_data = user_data


class ParentDomainInitAttr(PyverbsObject):
    """Attributes of a parent domain."""

    def __init__(
        self, pd: PD, pd_context: ParentDomainContext | None = None, comp_mask: int = 0
    ) -> None:
        self.pd = pd
        self.pd_context = pd_context
        self.comp_mask = comp_mask


class ParentDomain(PD):
    """A domain with its own allocators; not supported: EOPNOTSUPP."""

    def __init__(self, context: Context, attr: ParentDomainInitAttr) -> None:
        raise PyverbsRDMAError("Failed to allocate Parent Domain", errno.EOPNOTSUPP)
