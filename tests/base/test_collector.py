"""The garbage collector of a command, of processes that `--jobs` starts, and of a run."""

import gc
import pickle
import weakref
from collections.abc import Iterator

import pytest

from ibwire.base.collector import existing_objects_ignored
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


class Ring:
    """Refers to itself: only the collector can free it."""

    def __init__(self) -> None:
        self.own = self


def test_collector_looks_only_at_what_is_made_in_the_block() -> None:
    before = Ring()
    old = weakref.ref(before)
    del before
    with existing_objects_ignored():
        made = weakref.ref(Ring())
        gc.collect()
        assert old() is not None
        assert made() is None
    gc.collect()
    assert old() is None


def test_collector_looks_at_everything_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), existing_objects_ignored():
        raise ZeroDivisionError
    assert gc.get_freeze_count() == 0
