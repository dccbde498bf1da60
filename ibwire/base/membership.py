"""Which integers of an array are among others.

`np.isin` finds that, too, but imports `numpy.ma` where the arrays are large, which makes a command
slower to start.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def are_among(values: npt.NDArray[np.integer[Any]], others: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """(n,) which of these integers are among others, in any order.

    Values of 64 bits without a sign need others of the same type.
    """
    others = np.sort(np.asarray(others))
    if not len(others):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(others, values), len(others) - 1)
    found: npt.NDArray[np.bool_] = others[at] == values
    return found
