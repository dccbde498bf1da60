"""Processes of a test, which end with it however it ends."""

import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


class Processes:
    """Starts processes whose output and errors are text."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )
        self.all.append(process)
        return process


@contextmanager
def ending() -> Iterator[Processes]:
    """Processes that are killed at the end, if they still run."""
    processes = Processes()
    try:
        yield processes
    finally:
        for process in processes.all:
            process.kill()
            process.communicate()


def wait_for(lines: Iterable[str] | None, words: str) -> str:
    """The next line of a process's output, or errors, with these words."""
    assert lines is not None
    said = []
    for line in lines:
        said.append(line)
        if words in line:
            return line
    pytest.fail(f"never said {words!r}: {said}")
