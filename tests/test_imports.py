"""Who may import whom: lower ranks never import higher ones, equal ranks only as listed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RANKS = {
    "ibwire_layers": 0,
    "ibwire": 0,
    "ibwire.base.closing": 0,
    "ibwire.base.errors": 0,
    "ibwire.base.units": 0,
    "ibwire_layers.construct": 1,
    "ibwire_layers.scapy": 1,
    "ibwire.capture": 2,
    "ibwire.base.node": 2,
    "ibwire.dissect": 3,
    "ibwire.rc": 3,
    "ibwire.impair": 3,
    "ibwire.base.trace": 3,
    "ibwire.analyse": 4,
    "ibwire.cm": 4,
    "ibwire.fabric": 4,
    "ibwire.strategies": 4,
    "ibwire.verbs": 4,
    "ibwire.link": 5,
    "ibwire.scenario": 5,
    "ibwire.traffic": 5,
    "ibwire.testing": 5,
    "ibwire.scenario.workload": 5,
    "ibwire.drill": 6,
    "ibwire.fuzz": 6,
    "ibwire.programs": 6,
    "ibwire.report": 6,
    "ibwire.cli": 7,
    "ibwire.pytest_plugin": 7,
    "ibwire.__main__": 7,
}

SIDEWAYS = {
    ("ibwire.base.errors", "ibwire_layers"),
    ("ibwire.verbs", "ibwire.fabric"),
    ("ibwire.drill", "ibwire.programs"),
    ("ibwire.fuzz", "ibwire.drill"),
    ("ibwire.fuzz", "ibwire.programs"),
    ("ibwire.scenario", "ibwire.scenario.workload"),
    ("ibwire.traffic", "ibwire.scenario"),
    ("ibwire.__main__", "ibwire.cli"),
}

# Modules that name another library's package on purpose, inside the function that needs it.
LAZY = {"ibwire_layers/derive.py"}

STANDARD_LIBRARY_ONLY = ("ibwire_layers", "ibwire.base.errors", "ibwire.base.units")

MODULES = [
    path
    for top in (ROOT / "ibwire", ROOT / "layers" / "ibwire_layers")
    for path in sorted(top.rglob("*.py"))
]


def package_of(module: str) -> str:
    """The entry of `RANKS` that a module belongs to: the longest that begins its name."""
    parts = module.split(".")
    while parts and ".".join(parts) not in RANKS:
        parts.pop()
    return ".".join(parts)


def name_of(path: Path) -> str:
    base = ROOT / "layers" if "ibwire_layers" in path.parts else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_imports_only_lower_ranks(path: Path) -> None:
    own = package_of(name_of(path))
    for imported in imports_of(path):
        if imported.split(".")[0] not in ("ibwire", "ibwire_layers"):
            continue
        other = package_of(imported)
        lazy = path.relative_to(path.parents[1]).as_posix() in LAZY
        allowed = RANKS[other] < RANKS[own] or other == own or (own, other) in SIDEWAYS or lazy
        assert allowed, f"{name_of(path)} imports {imported}"
        assert not (own.startswith("ibwire_layers") and other.startswith("ibwire."))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rank_zero_needs_only_the_standard_library(path: Path) -> None:
    if package_of(name_of(path)) not in STANDARD_LIBRARY_ONLY:
        return
    lazy = path.relative_to(path.parents[1]).as_posix() in LAZY
    foreign = {
        name.split(".")[0]
        for name in imports_of(path)
        if name.split(".")[0] not in sys.stdlib_module_names
    }

    assert lazy or foreign <= {"ibwire", "ibwire_layers"}


@pytest.mark.parametrize(
    "module", ["ibwire", "ibwire_layers", "ibwire_layers.packet", "ibwire.dissect"]
)
def test_import_leaves_the_heavy_libraries_alone(module: str) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    paths = f"{ROOT}:{ROOT / 'layers'}"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": paths, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert not loaded & {"scapy", "construct", "pcapy", "pyarrow", "rich", "click"}
