"""Every test has its own network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ibwire.verbs.network import Network, use


@pytest.fixture(autouse=True)
def network() -> Iterator[Network]:
    with use(Network()) as fresh:
        yield fresh
