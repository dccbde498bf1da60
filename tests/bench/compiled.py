"""Makes build/compiled: ibwire with its hottest modules compiled by mypyc.

    make compiled
    PYTHONPATH=build/compiled:build/compiled/layers .venv/bin/python tests/bench/fabric.py

It needs a C compiler, and takes minutes. Wheels are compiled by the same function. What stays
Python gets its bytecode, as pip makes it: else each start would make it again where Python writes
none (PYTHONDONTWRITEBYTECODE).
"""

from __future__ import annotations

import compileall
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from hatch_build import compile_modules  # noqa: E402 - it is not in a package

TARGET = ROOT / "build" / "compiled"

compile_modules(TARGET)
for package in ("ibwire", "layers"):
    compileall.compile_dir(TARGET / package, quiet=1)
