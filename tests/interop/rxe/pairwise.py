"""Few cells of a matrix that hold every pair of values of two factors: pairwise testing.

A fault that needs one value shows in every cell with it, one that needs two together in one cell
at least; hardly any needs three.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product

Cell = tuple[object, ...]
"""One value of every factor, in their order."""


def pairwise(factors: Mapping[str, Sequence[object]]) -> list[Cell]:
    """Always the cell with the most pairs that no cell before it has; of these, the one whose
    pairs are the rarest so far."""
    cells: list[Cell] = []
    every = list(product(*factors.values()))
    missing = {pair for cell in every for pair in _pairs(cell)}
    seen: Counter[object] = Counter()

    def worth(cell: Cell) -> tuple[int, int]:
        pairs = _pairs(cell)
        return len(missing & pairs), -sum(seen[pair] for pair in pairs)

    while missing:
        cell = max(every, key=worth)
        cells.append(cell)
        missing -= _pairs(cell)
        seen.update(_pairs(cell))
    return cells


def _pairs(cell: Cell) -> set[tuple[int, object, int, object]]:
    """Two factors, by position, and the value of each."""
    return {(i, cell[i], j, cell[j]) for i, j in combinations(range(len(cell)), 2)}
