"""The functions of `_native.c`: `None` where it is not compiled, as in a pure Python build.

Whoever calls them does the same in Python without them.
"""

from __future__ import annotations

from types import ModuleType

native: ModuleType | None
try:
    from ibwire.base import _native as native
except ImportError:
    native = None
