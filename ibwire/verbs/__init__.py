"""The emulator under pyverbs' names: modules, classes, arguments and errors.

`ibwire.verbs.qp.QP` is `pyverbs.qp.QP` and so on, on virtual devices whose time passes
while a script polls. `install_as_pyverbs` makes scripts that import pyverbs run here.
"""

from __future__ import annotations

from ibwire.verbs.install import install_as_pyverbs, uninstall
from ibwire.verbs.network import Network, current, set_current, use

__all__ = ["Network", "current", "install_as_pyverbs", "set_current", "uninstall", "use"]
