"""Which package may import which: lower ranks never import higher ones."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from outlines import outline

ROOT = Path(__file__).parents[1]

RANKS: list[list[str]] = [
    ["ibwire_layers", "ibwire", "ibwire.base"],
    ["ibwire_layers.construct", "ibwire_layers.scapy"],
    ["ibwire.capture", "ibwire.rc", "ibwire.impair"],
    ["ibwire.dissect", "ibwire.cm", "ibwire.fabric"],
    ["ibwire.connections", "ibwire.peer", "ibwire.sm"],
    ["ibwire.diagnosis", "ibwire.rules", "ibwire.compare", "ibwire.verbs", "ibwire.link"],
    [
        "ibwire.query",
        "ibwire.replay",
        "ibwire.traffic",
        "ibwire.tap",
        "ibwire.lab",
        "ibwire.programs",
        "ibwire.scenario",
        "ibwire.collective",
        "ibwire.strategies",
        "ibwire.testing",
    ],
    ["ibwire.drill"],
    ["ibwire.fuzz"],
    ["ibwire.report", "ibwire.cli", "ibwire.pytest_plugin", "ibwire.__main__"],
]
"""Packages by rank, lowest first. A module imports its own package and lower ranks."""

EXCEPTIONS = {
    ("ibwire", "ibwire.base"): "the public names of ibwire are the errors",
    ("ibwire.base", "ibwire_layers"): "the root of all errors is that of the layers",
    ("ibwire.cli", "ibwire.report"): "a command prints what report formats",
    ("ibwire.__main__", "ibwire.cli"): "`python -m ibwire` is the command",
}
"""Imports within one rank, each with its reason."""

LAZY = {"ibwire_layers.derive": "names Construct inside the function that needs it"}
"""Modules that import a higher rank inside a function."""

STANDARD_LIBRARY_ONLY = ("ibwire_layers", "ibwire", "ibwire.base")
FOREIGN = {
    "ibwire.base.compiled": {"mypy_extensions"},  # only while types are checked
    "ibwire.base.histogram": {"numpy"},
    "ibwire.base.membership": {"numpy"},
    "ibwire.base.work": {"ray"},
}
"""Modules of these packages that need another library."""

HEAVY = {"scapy", "construct", "pcapy", "pyarrow", "rich", "click"}
"""Libraries that importing the package must not load."""


def test_modules_import_only_lower_ranks() -> None:
    breaches = []
    for module, path in modules():
        own = package_of(module)
        for imported in outline(path).imports:
            other = package_of(imported)
            if not is_ours(imported) or other == own or module in LAZY:
                continue
            into_layers = own.startswith("ibwire_layers") and not other.startswith("ibwire_layers")
            is_lower = rank(other) < rank(own) or (own, other) in EXCEPTIONS
            if into_layers or not is_lower:
                breaches.append(f"{module} imports {imported}")

    assert not breaches, "\n".join(breaches)


def test_each_exception_is_needed() -> None:
    found = {
        (package_of(module), package_of(imported))
        for module, path in modules()
        for imported in outline(path).imports
        if is_ours(imported)
    }

    assert set(EXCEPTIONS) <= found


def test_every_package_has_a_rank() -> None:
    packages = {path.parent.name for path in (ROOT / "ibwire").glob("*/__init__.py")}

    assert {f"ibwire.{name}" for name in packages} <= {each for rank in RANKS for each in rank}


def test_rank_zero_needs_only_the_standard_library() -> None:
    breaches = [
        f"{module} imports {imported}"
        for module, path in modules()
        if package_of(module) in STANDARD_LIBRARY_ONLY and module not in LAZY
        for imported in outline(path).imports
        if not is_ours(imported)
        and imported.split(".")[0] not in sys.stdlib_module_names | FOREIGN.get(module, set())
    ]

    assert not breaches, "\n".join(breaches)


def test_no_circle_of_files_but_those_listed() -> None:
    graph = {
        module: {
            name for each in outline(path).imports if (name := module_of(each)) and name != module
        }
        for module, path in modules()
    }

    circles = [circle for circle in strongly_connected(graph) if len(circle) > 1]

    assert [sorted(each) for each in circles if not any(each <= known for known in CIRCLES)] == []


CIRCLES: list[set[str]] = [
    {"ibwire.rc.device", "ibwire.rc.qp"},
    {
        "ibwire.verbs.addr",
        "ibwire.verbs.cq",
        "ibwire.verbs.device",
        "ibwire.verbs.mr",
        "ibwire.verbs.pd",
        "ibwire.verbs.wr",
    },
]
"""Files that import each other, also if only for types: this list only shrinks."""


@pytest.mark.parametrize(
    "module", ["ibwire", "ibwire_layers", "ibwire_layers.packet", "ibwire.dissect"]
)
def test_import_leaves_the_heavy_libraries_alone(module: str) -> None:
    assert not {name.split(".")[0] for name in imported_with(module)} & HEAVY


@pytest.mark.parametrize("module", ["ibwire.cli.flows", "ibwire.cli.check"])
def test_commands_begin_without_what_only_several_processes_need(module: str) -> None:
    """NumPy 1 imports `secrets` with itself."""
    found = imported_with(module) - imported_with("numpy")
    assert not found & {"logging", "multiprocessing", "secrets", "socket"}


def imported_with(module: str) -> set[str]:
    """Everything that is imported when a module is."""
    script = f"import sys, {module}; print(*sys.modules)"
    paths = f"{ROOT}:{ROOT / 'layers'}"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": paths, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split())


def test_scapy_is_imported_where_the_page_of_licences_says() -> None:
    """docs/dependencies.md: GPL-2.0-only code is left out with the folder `ibwire_layers/scapy`."""
    importing = {
        name
        for name, path in modules()
        if any(each.split(".")[0] == "scapy" for each in outline(path).imports)
        and not name.startswith("ibwire_layers.scapy")
    }

    # Inside functions: `show --scapy`, and what makes Scapy fields out of headers for that folder.
    assert importing == {"ibwire.cli.show", "ibwire_layers.derive"}


def modules() -> Iterator[tuple[str, Path]]:
    """Name and file of each module of both import packages."""
    for base, top in ((ROOT, "ibwire"), (ROOT / "layers", "ibwire_layers")):
        for path in sorted((base / top).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


def is_ours(imported: str) -> bool:
    return imported.split(".")[0] in ("ibwire", "ibwire_layers")


def rank(package: str) -> int:
    return next(number for number, packages in enumerate(RANKS) if package in packages)


@cache
def package_of(module: str) -> str:
    """The entry of `RANKS` that a module belongs to: the longest that begins its name."""
    return longest_prefix(module, {each for packages in RANKS for each in packages})


@cache
def module_of(imported: str) -> str:
    return longest_prefix(imported, MODULES)


def longest_prefix(name: str, known: set[str]) -> str:
    parts = name.split(".")
    while parts and ".".join(parts) not in known:
        parts.pop()
    return ".".join(parts)


MODULES = {name for name, _ in modules()}


def strongly_connected(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of nodes that reach each other (Tarjan's algorithm, one node sets included)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            start = stack.index(node)
            found.append(set(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
