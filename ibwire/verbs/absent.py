"""Modules of pyverbs for what this network has not, so that scripts that import them run.

Connection manager, work queues, flow steering, vendors' extensions: every name can be
imported, subclassed and asked for with `isinstance`. What is called raises EOPNOTSUPP,
which is how scripts learn from a real device that it lacks something.
"""

from __future__ import annotations

import errno
from types import ModuleType

from ibwire.verbs.base import PyverbsCM
from ibwire.verbs.pyverbs_error import PyverbsRDMAError


class _Kind(type):
    def __getattr__(cls, name: str) -> int:
        # Scripts name constants of vendors' enumerations in default arguments and tables.
        if name.isupper():
            return 0
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


class Absent(PyverbsCM, metaclass=_Kind):
    """Something that does not exist here; as an enumeration its constants are 0."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise PyverbsRDMAError(
            f"{type(self).__name__} does not exist in a virtual network", errno.EOPNOTSUPP
        )


class AbsentModule(ModuleType):
    """A module any name of which is a subclass of `Absent`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> type[Absent]:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

        class Named(Absent):
            __doc__ = Absent.__doc__

        Named.__name__ = Named.__qualname__ = name
        Named.__module__ = self.__name__
        setattr(self, name, Named)
        return Named


_MLX5 = (
    "dr_action", "dr_domain", "dr_matcher", "dr_rule", "dr_table", "libmlx5", "mlx5_enums",
    "mlx5_vfio", "mlx5dv", "mlx5dv_crypto", "mlx5dv_dmabuf", "mlx5dv_event", "mlx5dv_flow",
    "mlx5dv_mkey", "mlx5dv_objects", "mlx5dv_sched",
)  # fmt: skip

ABSENT = (
    "cmid", "comp_cntr", "dma_util", "dmabuf", "flow", "spec", "wq",
    "providers", "providers.efa", "providers.mlx5",
    "providers.efa.efa_enums", "providers.efa.efadv", "providers.efa.libefa",
    *(f"providers.mlx5.{name}" for name in _MLX5),
)  # fmt: skip
"""Their names below `pyverbs`. Source: rdma-core, the directory `pyverbs`."""
