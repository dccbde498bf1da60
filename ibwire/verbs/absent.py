"""Placeholders for the modules of pyverbs that have no emulated counterpart.

Scripts can import every name of the connection manager, work queues, flow steering and the
vendors' extensions, subclass it and use it with `isinstance`. Calling one raises EOPNOTSUPP, as
a real device without the feature does.
"""

from __future__ import annotations

import errno
from types import ModuleType

from ibwire.verbs.base import PyverbsCM
from ibwire.verbs.pyverbs_error import PyverbsRDMAError


class _Kind(type):
    def __getattr__(cls, name: str) -> int:
        # Scripts use constants of vendors' enumerations in default arguments and tables.
        if name.isupper():
            return 0
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


class Absent(PyverbsCM, metaclass=_Kind):
    """A class without an emulated counterpart; its upper-case attributes are 0."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise PyverbsRDMAError(
            f"{type(self).__name__} is not supported by emulated devices", errno.EOPNOTSUPP
        )


class AbsentModule(ModuleType):
    """A module whose every name is a subclass of `Absent`."""

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
"""Module names below `pyverbs` (source: rdma-core, directory `pyverbs`)."""
