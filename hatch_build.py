"""Compiles the hottest modules, by mypyc from the same source: for wheels, and for `make compiled`.

    IBWIRE_COMPILE=1 pip wheel --no-deps .

Without that variable, and in an editable installation, wheels are pure Python and need no compiler.
A compiled module behaves as its source; only its classes cannot be patched from Python, nor
subclassed unless they are marked as such (`ibwire.base.compiled`), and compute a
`functools.cached_property` whenever it is read. The modules are listed in pyproject.toml. With
them goes `ibwire/base/_native.c`, always optimised: it takes two seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "IBWIRE_COMPILE"
LEVEL = "IBWIRE_COMPILE_LEVEL"
"""How much the C compiler optimises, 0 to 3: 0 takes least time, 2 is the default."""

ROOT = Path(__file__).resolve().parent
PACKAGES = {"ibwire": ROOT / "ibwire", "layers/ibwire_layers": ROOT / "layers/ibwire_layers"}


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel, if the environment asks for them."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the compilation needs besides a C compiler."""
        return ["mypy==2.4.1", "setuptools>=65"] if self._is_asked_for else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what came out to the wheel."""
        if not self._is_asked_for or version == "editable":
            return
        target = Path(self.directory) / "compiled"
        compile_modules(target)
        for library in sorted(target.rglob("*.so")) + sorted(target.rglob("*.pyd")):
            build_data["force_include"][str(library)] = str(library.relative_to(target))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        self.target = target

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy of the sources."""
        shutil.rmtree(Path(self.directory) / "compiled", ignore_errors=True)

    @property
    def _is_asked_for(self) -> bool:
        return self.target_name == "wheel" and os.environ.get(SWITCH, "0") not in ("", "0")


def compile_modules(target: Path) -> None:
    """Copy the packages to a directory, and compile there the modules of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules = tomllib.load(file)["tool"]["ibwire"]["compiled"]
    shutil.rmtree(target, ignore_errors=True)
    for name, package in PACKAGES.items():
        shutil.copytree(package, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    level = os.environ.get(LEVEL, "2")
    script = _SETUP.format(modules=[f"ibwire/{each}" for each in modules], level=level)
    subprocess.run(
        [sys.executable, "-c", script, "build_ext", "--inplace"],
        cwd=target,
        check=True,
        env={**os.environ, "MYPYPATH": "layers"},
    )
    shutil.rmtree(target / "build", ignore_errors=True)


_SETUP = """
from mypyc.build import mypycify
from setuptools import Extension, setup

options = ["--explicit-package-bases", "--config-file=", "--ignore-missing-imports"]
extensions = mypycify([*options, *{modules}], opt_level={level!r}, debug_level="0")
native = Extension("ibwire.base._native", ["ibwire/base/_native.c"], extra_compile_args=["-O3"])
setup(name="compiled", packages=[], ext_modules=[*extensions, native])
"""
