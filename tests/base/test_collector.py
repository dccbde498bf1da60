"""Processes that `--jobs` starts set the garbage collector as the command itself does."""

import gc
import pickle
from collections.abc import Iterator

import pytest

from ibwire.base.work import cluster_task, processes


def threshold(_: int) -> int:
    return gc.get_threshold()[0]


@pytest.fixture
def own_threshold() -> Iterator[None]:
    """Leaves the collector of this process as it is."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("own_threshold")
def test_a_task_in_a_cluster_looks_for_garbage_as_rarely_as_the_command() -> None:
    assert pickle.loads(cluster_task(threshold, 1)) == 50_000


@pytest.mark.slow
def test_processes_look_for_garbage_as_rarely_as_the_command() -> None:
    # 700 at the start of Python 3.11, 2000 since 3.13.
    assert list(processes(1)(threshold, [1])) == [50_000]
