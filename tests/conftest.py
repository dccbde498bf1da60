"""What many tests share: the shipped captures."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def captures() -> Path:
    """The directory of the shipped captures."""
    return Path(__file__).parents[1] / "captures"
