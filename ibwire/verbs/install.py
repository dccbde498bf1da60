"""Installs the verbs interface as pyverbs, for scripts that import pyverbs."""

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
"""Modules that exist under the same name in `ibwire.verbs`."""


class Replacement(ModuleType):
    """The package installed as pyverbs."""

    def __init__(self) -> None:
        super().__init__("pyverbs", __doc__)
        # An empty path makes it a package; its modules are all in `sys.modules`.
        self.__path__: list[str] = []


def install_as_pyverbs() -> None:
    """Make `import pyverbs` and its modules return the verbs interface; idempotent.

    Raises `PyverbsUserError` if the real pyverbs is already imported: scripts could mix objects
    of both.
    """
    installed = sys.modules.get("pyverbs")
    if isinstance(installed, Replacement):
        return
    if installed is not None:
        raise PyverbsUserError("pyverbs is already imported; call install_as_pyverbs() before that")
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
    """Remove the modules that were installed as pyverbs; imported names stay valid. Idempotent."""
    if isinstance(sys.modules.get("pyverbs"), Replacement):
        for name in list(sys.modules):
            if name == "pyverbs" or name.startswith("pyverbs."):
                del sys.modules[name]
