"""The captures of the repository, for tests of what holds for every capture."""

from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[1] / "captures"
PATHS = sorted(DIRECTORY.glob("*.pcap*"))

QUICK = [path for path in PATHS if ".b." not in path.name][::7]

each_capture = pytest.mark.parametrize(
    "path",
    [
        # `*.b.pcap` has the same traffic as `*.a.pcap`, seen at the other end.
        pytest.param(path, marks=pytest.mark.slow if path not in QUICK else (), id=path.name)
        for path in PATHS
    ],
)
"""A test for each capture; `make test` takes one in seven of those with traffic of their own."""
