"""Processes that `--jobs` starts set the garbage collector as the command itself does."""

import gc

import pytest

from ibwire.base.work import processes


def threshold(_: int) -> int:
    return gc.get_threshold()[0]


@pytest.mark.slow
def test_processes_look_for_garbage_as_rarely_as_the_command() -> None:
    # 700 at the start of Python 3.11, 2000 since 3.13.
    assert list(processes(1)(threshold, [1])) == [50_000]
