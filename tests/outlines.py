"""What statements of the source say, read once for all tests that look at every file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Extent(NamedTuple):
    """A function and its lines, decorators not counted."""

    name: str
    first: int
    last: int


class Outline(NamedTuple):
    """Imports and functions of a file, also those inside of others."""

    imports: tuple[str, ...]
    functions: tuple[Extent, ...]


@cache
def outline(path: Path) -> Outline:
    """Every name that a file imports, also inside functions and for types, and its functions."""
    imports: list[str] = []
    functions = []
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            imports += (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, Function):
            assert node.end_lineno is not None
            functions.append(Extent(node.name, node.lineno, node.end_lineno))
    return Outline(tuple(imports), tuple(functions))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node, without a look into expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)
