"""The emulator with pyverbs' modules, classes, arguments and errors.

`ibwire.verbs.qp.QP` corresponds to `pyverbs.qp.QP`, and so on, on emulated devices whose virtual
time advances while a script polls. `install_as_pyverbs` runs scripts that import pyverbs.
"""

from __future__ import annotations

from ibwire.verbs.install import install_as_pyverbs, uninstall
from ibwire.verbs.network import Network, current, set_current, use

__all__ = ["Network", "current", "install_as_pyverbs", "set_current", "uninstall", "use"]
