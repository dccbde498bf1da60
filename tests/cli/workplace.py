"""A directory in which commands run that take long, and are ended on the way."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from processes import Processes

ENDLESS = """
limit = "100000s"

[[workload]]
opcode = "RDMA_WRITE"
size = 8192
count = 1000000
"""

ENDED = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


def environment(workplace: Path) -> Mapping[str, str]:
    return {**os.environ, "TMPDIR": str(workplace.parent / "tmp")}


def start(processes: Processes, workplace: Path, line: str, **more: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ibwire", *shlex.split(line)]
    return processes.start(command, environment(workplace), cwd=workplace, **more)


def wait_until(process: "subprocess.Popen[str]", condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that a process brings about."""
    while not condition():
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
            if not condition():
                pytest.fail(f"ended before {what}: {process.communicate()}")
