"""What the wheel holds."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling not installed")
def test_wheel_has_the_two_packages_their_types_and_the_licence(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )

    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"ibwire", "ibwire_layers"}
    assert {"ibwire/py.typed", "ibwire_layers/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "ibwire_layers/scapy/transport.py" in names
    shipped = {f"ibwire/scenarios/{path.name}" for path in (ROOT / "ibwire/scenarios").iterdir()}
    assert shipped
    assert shipped <= set(names)
    scripts = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.drill")]
    scripts = [path for path in scripts if path.parts[0] == "conformance"]
    assert len(scripts) > 200
    assert {f"ibwire/{path.as_posix()}" for path in scripts} <= set(names)
    assert {"ibwire/report/plotly/plotly-basic.min.js", "ibwire/report/plotly/LICENSE"} <= set(
        names
    )


def test_release_notes_begin_with_the_version_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)

    assert headings[0] in (f"{version},", "Unreleased")
    assert f"{version}," in headings[:2]
