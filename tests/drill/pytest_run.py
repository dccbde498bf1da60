"""A run of pytest with our plug-in, as a user has it, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pytest_in(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a directory."""
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT} {ROOT / 'layers'}\n")
    (directory / "conftest.py").write_text('pytest_plugins = ["ibwire.pytest_plugin"]\n')
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'layers'}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
