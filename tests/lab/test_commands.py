"""What a lab starts is ibwire, in every folder. Labs that are up: tests/live."""

import subprocess
from pathlib import Path

from ibwire.lab.veth import Lab


def test_command_takes_no_module_from_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "ibwire.py").write_text("raise SystemExit('another module')")
    lab = Lab(tmp_path / "none")

    done = subprocess.run(
        lab.command("a", ["true"]), cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr.startswith("error: none: ")
