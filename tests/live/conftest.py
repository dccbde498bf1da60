"""A lab, and the processes of a test in it."""

import os

import pytest

from ibwire.base.errors import LinkError
from ibwire.drill.agent import agent_server
from ibwire.lab.veth import Lab
from live.fuzzing import Fuzz, Serve
from processes import ending

pytest.register_assert_rewrite("live.sides")


@pytest.fixture(scope="session", autouse=True)
def token():
    """The token of every agent here and of the programs that connect to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(agent_server.TOKEN_VARIABLE, agent_server.new_token())
        yield os.environ[agent_server.TOKEN_VARIABLE]


@pytest.fixture(scope="module")
def lab():
    try:
        built = Lab.create()
    except LinkError as error:
        pytest.skip(f"no lab: {error}")
    with built:
        yield built


@pytest.fixture
def processes():
    """Starts processes, which end with the test, however it ends."""
    with ending() as started:
        yield started


@pytest.fixture
def started():
    """As `processes`, for tests that start them otherwise: a list of them."""
    with ending() as those:
        yield those.all


@pytest.fixture
def fuzz(lab, processes):
    """Carries `ibwire fuzz` out on side a."""
    return Fuzz(lab, processes)


@pytest.fixture
def serve(lab, processes):
    """Starts programs on side b."""
    return Serve(lab, processes)
