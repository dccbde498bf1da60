"""What `ibwire --version` says of the build, and the list of modules that are compiled."""

import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from click.testing import CliRunner

from ibwire.base.compiled import describe_build
from ibwire.cli import main
from ibwire.fabric import sim

ROOT = Path(__file__).parents[2]


def test_package_without_libraries_is_pure_python(tmp_path: Path) -> None:
    (tmp_path / "device.py").touch()

    assert describe_build(tmp_path) == "pure Python"


def test_compiled_modules_are_counted(tmp_path: Path) -> None:
    (tmp_path / "rc").mkdir()
    for name in ("sim", "rc/qp", "rc/device"):
        (tmp_path / f"{name}.py").touch()
        (tmp_path / f"{name}{EXTENSION_SUFFIXES[0]}").touch()

    assert describe_build(tmp_path) == "3 modules compiled"
    (tmp_path / f"sim{EXTENSION_SUFFIXES[0]}").unlink()
    (tmp_path / f"rc/qp{EXTENSION_SUFFIXES[0]}").unlink()
    assert describe_build(tmp_path) == "1 module compiled"


def test_version_says_how_ibwire_was_built() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    is_compiled = sim.__file__.endswith(tuple(EXTENSION_SUFFIXES))

    result = CliRunner().invoke(main, ["--version"])

    assert result.exit_code == 0
    assert result.output.startswith(f"ibwire, version {version} (")
    assert ("pure Python" in result.output) is not is_compiled


def test_modules_to_compile_exist() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        names = tomllib.load(file)["tool"]["ibwire"]["compiled"]

    assert len(names) > 20
    assert [name for name in names if not (ROOT / "ibwire" / name).is_file()] == []
