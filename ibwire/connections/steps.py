"""Differences between neighbours in arrays of a few packets."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.signedinteger[Any])


def steps(values: npt.NDArray[Number], before: int) -> npt.NDArray[Number]:
    """(n,) difference of each to the one before it, of the first to `before`.

    `np.diff` with `prepend` takes five times as long for a hundred values.
    """
    found = np.empty_like(values)
    if len(values):
        found[0] = values[0] - before
        np.subtract(values[1:], values[:-1], out=found[1:])
    return found
