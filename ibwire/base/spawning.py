"""Start processes of Python that take no module from the current directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "PYTHONSAFEPATH"
"""As the option -P of python(1)."""


@contextmanager
def safe_path() -> Iterator[None]:
    """Within, a process that `multiprocessing` starts looks for no module where it is started.

    It imports several before it has the `sys.path` of this process.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
