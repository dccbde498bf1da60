"""One guest for everything in which ibwire itself is the other end."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("interop.rxe.wire", "interop.rxe.workloads")

from interop.rxe import boot, network  # noqa: E402
from interop.rxe.peers import Peers  # noqa: E402


@pytest.fixture(scope="session")
def peers() -> Iterator[Peers]:
    """A guest and a port of ours on one bridge."""
    if reason := boot.missing() or network.missing():
        pytest.skip(reason)
    with Peers() as made:
        yield made
