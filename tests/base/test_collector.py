"""The garbage collector of a command, of processes that `--jobs` starts, and of a run."""

import gc
import pickle
import subprocess
import sys
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


def test_nothing_is_counted_to_see_that_objects_are_left_out_for_good() -> None:
    script = """
import gc
from ibwire.base.collector import existing_objects_ignored, ignore_existing_objects

ignore_existing_objects()
frozen = gc.get_freeze_count()
count, gc.get_freeze_count = gc.get_freeze_count, None
for _ in range(2):
    with existing_objects_ignored():
        pass
print(frozen > 0, count() == frozen)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "True"]


def test_collector_looks_only_at_what_is_made_in_the_block() -> None:
    # In a process of its own: in this one the tests themselves are left out.
    script = """
import gc, weakref
from ibwire.base.collector import existing_objects_ignored

class Ring:
    def __init__(self):
        self.own = self

gc.unfreeze()
gc.disable()  # its own time to look might be before the block
old = weakref.ref(Ring())
try:
    with existing_objects_ignored():
        new = weakref.ref(Ring())
        gc.collect()
        print(old() is None, new() is None)
        with existing_objects_ignored():
            frozen = gc.get_freeze_count()
        print(gc.get_freeze_count() == frozen > 0)
        raise ZeroDivisionError
except ZeroDivisionError:
    gc.collect()
    print(old() is None, gc.get_freeze_count())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "True", "True", "0"]


def test_what_a_block_without_collections_leaves_is_not_looked_at_right_behind_it() -> None:
    script = """
import gc, weakref
from ibwire.base.collector import no_collections

class Ring:
    def __init__(self):
        self.own = self

gc.collect()
gc.set_threshold(1000, 20)
looks = []
gc.callbacks.append(lambda phase, _: looks.append(phase))
with no_collections():
    rings = [Ring() for _ in range(5000)]
others = [[] for _ in range(500)]  # fewer than the collector waits for
print(len(looks), gc.isenabled(), gc.get_freeze_count())
left = weakref.ref(rings.pop())
gc.collect()
print(left() is None)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0", "True", "0", "True"]


@pytest.mark.parametrize("leave_out", ["gc.freeze", "ignore_existing_objects"])
def test_a_block_without_collections_takes_back_no_object_that_is_left_out(leave_out: str) -> None:
    script = f"""
import gc
from ibwire.base.collector import ignore_existing_objects, no_collections

{leave_out}()
with no_collections():
    pass
print(gc.get_freeze_count() > 0, gc.isenabled())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "True"]
