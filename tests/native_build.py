"""`ibwire/base/_native.c` as a module: that of a compiled build, or compiled here for the tests."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from ibwire.base import native as builds

SOURCE = Path(__file__).parents[1] / "ibwire" / "base" / "_native.c"


@cache
def native_module() -> ModuleType:
    """Skips the test where there is neither a compiled build nor a C compiler."""
    if builds.native is not None:
        return builds.native
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    headers = sysconfig.get_path("include")
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        options = ["-O1", "-fPIC"]
        if not os.path.exists(os.path.join(headers, "Python.h")):
            pytest.skip("this Python has no Python.h")
        try:
            subprocess.run(
                [*linker, *options, f"-I{headers}", str(SOURCE), "-o", str(library)], check=True
            )
        except FileNotFoundError:
            pytest.skip("there is no C compiler")
        spec = importlib.util.spec_from_file_location("_native", library)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
