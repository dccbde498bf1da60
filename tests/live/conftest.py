"""A lab, and the processes of a test in it."""

import pytest

from ibwire.errors import LinkError
from ibwire.link.veth import Lab

pytest.register_assert_rewrite("live.sides")


@pytest.fixture(scope="module")
def lab():
    try:
        built = Lab.create()
    except LinkError as error:
        pytest.skip(f"no lab: {error}")
    with built:
        yield built


@pytest.fixture
def started():
    """Processes that are ended with the test, however it ends."""
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()
