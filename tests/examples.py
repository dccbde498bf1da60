"""How many examples a property has, and which cases of a matrix `make test` runs."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

USUAL = 100
"""Examples of a property that names no number in `make test-all`."""


def scaled(count: int) -> int:
    """So many examples in `make test-all`, and the same share of them as of others in `make test`.

    To be called while a module of tests is imported, when the profile is chosen.
    """
    return max(count * settings.default.max_examples // USUAL, 1)


def few(count: int) -> int:
    """As `scaled`, but a quarter of it in `make test`: for a property of which there are many."""
    return count if settings.default.max_examples >= USUAL else max(scaled(count) // 4, 1)


def usual(count: int, *, quick: int) -> int:
    """So many of something within a test in `make test-all`, in `make test` `quick` of them."""
    return count if settings.default.max_examples >= USUAL else quick


def sampled(cases: Iterable[Any], every: int, are_tuples: bool = False) -> list[ParameterSet]:
    """All cases; of them `make test` takes the first, and one of each `every` after it.

    For matrices of which each case shows the same of another capture or name. are_tuples: each
    case has a value for each of several parameters.
    """
    return [
        pytest.param(
            *(case if are_tuples else (case,)), marks=[pytest.mark.slow] * (number % every > 0)
        )
        for number, case in enumerate(cases)
    ]
