"""Takes the place of pyverbs: scripts that import it get the verbs face."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from ibwire.verbs.absent import ABSENT, AbsentModule
from ibwire.verbs.pyverbs_error import PyverbsUserError

PRESENT = (
    "addr", "base", "cq", "device", "enums", "fork", "libibverbs_enums", "librdmacm_enums",
    "mem_alloc", "mr", "pd", "pyverbs_error", "qp", "srq", "utils", "wr", "xrcd",
)  # fmt: skip
"""Modules of pyverbs that exist here under the same name."""


class Replacement(ModuleType):
    """The package that stands in for pyverbs."""

    def __init__(self) -> None:
        super().__init__("pyverbs", __doc__)
        # A package whose modules are all in `sys.modules` already.
        self.__path__: list[str] = []


def install_as_pyverbs() -> None:
    """Have `import pyverbs` and its modules give the verbs face. Twice is once.

    Raises `PyverbsUserError` when the real pyverbs is imported already: scripts could
    have objects of both.
    """
    installed = sys.modules.get("pyverbs")
    if isinstance(installed, Replacement):
        return
    if installed is not None:
        raise PyverbsUserError("pyverbs is imported already; install before it is")
    modules: dict[str, ModuleType] = {"pyverbs": Replacement()}
    for name in PRESENT:
        modules[f"pyverbs.{name}"] = importlib.import_module(f"ibwire.verbs.{name}")
    for name in ABSENT:
        modules[f"pyverbs.{name}"] = AbsentModule(f"pyverbs.{name}")
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    sys.modules.update(modules)


def uninstall() -> None:
    """Give the names back; what scripts have imported stays with them. Twice is once."""
    if isinstance(sys.modules.get("pyverbs"), Replacement):
        for name in list(sys.modules):
            if name == "pyverbs" or name.startswith("pyverbs."):
                del sys.modules[name]
