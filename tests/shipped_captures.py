"""The captures of the repository, for tests of what holds for every capture."""

from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[1] / "captures"
PATHS = sorted(DIRECTORY.glob("*.pcap*"))

each_capture = pytest.mark.parametrize(
    "path",
    [
        # The same traffic as in `*.a.pcap`, seen at the other end.
        pytest.param(path, marks=pytest.mark.slow if ".b." in path.name else (), id=path.name)
        for path in PATHS
    ],
)
"""A test for each capture. Of two captures of the same traffic `make test` takes the first."""
