"""`ibwire fuzz` on one side of a lab as its user starts it, and devices of ours on the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ibwire.lab.veth import Lab
from processes import Processes, wait_for

PATIENCE = 120
"""Seconds that anything may take here."""

HERE = Path(__file__).parent

Ended = tuple[int, str, str]
"""Exit status, output and errors."""


class Fuzz:
    """Carries the command out on side a, for a device on side b."""

    def __init__(self, lab: Lab, processes: Processes, peer: str = "10.0.0.2") -> None:
        self._lab = lab
        self._processes = processes
        self._peer = peer

    def __call__(self, *arguments: object, peer: str = "") -> Ended:
        return end(self.start(*arguments, peer=peer))

    def start(self, *arguments: object, peer: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ibwire", "fuzz", *map(str, arguments)]
        command += ["--dev", "veth-a", "--peer", peer or self._peer]
        return self._processes.start(self._lab.command("a", command), self._lab.environment())


class Serve:
    """Starts a program of this directory on side b, on its interface."""

    def __init__(self, lab: Lab, processes: Processes) -> None:
        self._lab = lab
        self._processes = processes

    def __call__(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / program), "veth-b", *map(str, arguments)]
        process = self._processes.start(self._lab.command("b", command), self._lab.environment())
        wait_for(process.stdout, "ready")
        return process


def end(process: subprocess.Popen[str]) -> Ended:
    """How a command has ended."""
    output, errors = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors, errors
    return process.returncode, output, errors
