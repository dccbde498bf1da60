"""The commands for a real wire in the README and in documents, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ibwire.base.errors import LinkError
from ibwire.lab.veth import Lab

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("docs/live.md", "docs/tap.md", "docs/inject.md", "docs/fuzz.md")
NAME = "readme"
SCRIPTS = [
    pytest.param(script, id=f"{name}-{number}")
    for name in DOCUMENTS
    for number, script in enumerate(
        re.findall(r"^ *```sh\n(.*?)^ *```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)
    )
]


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    try:
        Lab.create().down()
    except LinkError as error:
        pytest.skip(f"no lab: {error}")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """What a failed script leaves in the background ends with its lab."""
    yield
    left = Lab.find(NAME)
    if left is not None:
        left.down()


@pytest.mark.parametrize("script", SCRIPTS)
def test_commands_do_what_they_say(script: str, tmp_path: Path) -> None:
    """Every one ends with status 0; a lab of another name is out of the way of the user's."""
    command = tmp_path / "ibwire"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ibwire "$@"\n')
    command.chmod(0o755)
    script = re.sub(r"\bibwire lab (\w+)", rf"ibwire lab \1 --name {NAME}", script)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'layers'}",
    }
    done = subprocess.run(
        ["bash", "-ec", script + "\nwait -n || true; wait\n"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
