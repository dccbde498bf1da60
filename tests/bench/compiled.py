"""Makes build/compiled: ibwire with its hottest modules compiled by mypyc.

    make compiled
    PYTHONPATH=build/compiled:build/compiled/layers .venv/bin/python tests/bench/fabric.py

It needs a C compiler, and takes minutes. Wheels are compiled by the same function.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from hatch_build import compile_modules  # noqa: E402 - it is not in a package

compile_modules(ROOT / "build" / "compiled")
