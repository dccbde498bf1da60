"""How many examples a property has that needs more than the usual 100."""

from hypothesis import settings

USUAL = 100
"""Examples of a property that names no number in `make test-all`."""


def scaled(count: int) -> int:
    """So many examples in `make test-all`, and the same share of them as of others in `make test`.

    To be called while a module of tests is imported, when the profile is chosen.
    """
    return max(count * settings.default.max_examples // USUAL, 1)
