"""The functions of `_native.c`: `None` where it is not compiled, as in a pure Python build.

Whoever calls them does the same in Python without them.
"""

from __future__ import annotations

import sys
from types import ModuleType

FORMAT = 2
"""That of the compiled file; another one was left from another version."""

native: ModuleType | None = None
if sys.maxsize > 1 << 32:  # NumPy's indices have 64 bits there, which the functions expect
    try:
        from ibwire.base import _native
    except ImportError:
        pass
    else:
        native = _native if getattr(_native, "FORMAT", 0) == FORMAT else None
