"""Which integers are among others."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.membership import are_among

NUMBERS = st.lists(st.integers(0, 300))


@given(NUMBERS, NUMBERS)
def test_each_value_that_is_in_the_others_is_among_them(
    values: list[int], others: list[int]
) -> None:
    found = are_among(np.array(values, np.uint32), others)

    assert found.tolist() == [each in others for each in values]


def test_hashes_of_64_bits_are_compared_exactly() -> None:
    """As floating-point numbers these two were equal."""
    hashes = np.array([2**63, 2**63 + 1], np.uint64)

    assert are_among(hashes, hashes[1:]).tolist() == [False, True]


def test_masked_arrays_are_not_imported() -> None:
    """`np.isin` imports them in both of these cases: others far apart, and no values.

    NumPy 1 imports them with itself.
    """
    script = (
        "import sys, numpy as np\n"
        "from ibwire.base.membership import are_among\n"
        "before = 'numpy.ma' in sys.modules\n"
        "are_among(np.arange(9), 1000 * np.arange(99))\n"
        "are_among(np.arange(0), (256, 4096))\n"
        "print('numpy.ma' in sys.modules and not before)"
    )

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "False"
