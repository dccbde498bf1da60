"""What `ibwire --version` says of the build, and the list of modules that are compiled."""

import re
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
    assert len(names) == len(set(names)), "mypyc refuses a module that is listed twice"
    assert [name for name in names if not (ROOT / "ibwire" / name).is_file()] == []


def test_no_class_elsewhere_inherits_from_a_compiled_one() -> None:
    """Such a class cannot be made in a compiled build, unless its base is marked for heirs."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        names = set(tomllib.load(file)["tool"]["ibwire"]["compiled"])
    plain = (name.removesuffix(".py").removesuffix("/__init__") for name in names)
    modules = [name.replace("/", ".") for name in plain]
    imports = re.compile(
        rf"^from ibwire\.(?:{'|'.join(map(re.escape, modules))}) import (\([^)]*\)|.*)$",
        re.MULTILINE,
    )

    open_to_all = {
        base
        for name in names
        for base in re.findall(
            r"^@mypyc_attr\(allow_interpreted_subclasses=True\).*\nclass (\w+)",
            (ROOT / "ibwire" / name).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    heirs = []
    for path in (ROOT / "ibwire").rglob("*.py"):
        if str(path.relative_to(ROOT / "ibwire")) in names:
            continue
        text = path.read_text(encoding="utf-8")
        imported = set(re.findall(r"\w+", " ".join(imports.findall(text))))
        for name, bases in re.findall(r"^class (\w+)\(([^)]*)\)", text, re.MULTILINE):
            classes = re.sub(r"\[.*\]", "", bases)  # what they hold may be compiled
            if (imported - open_to_all) & set(re.findall(r"\w+", classes)):
                heirs.append(f"{path.name}: {name}")

    assert heirs == []


def test_no_compiled_module_has_cached_properties() -> None:
    """Compiled classes compute such a property anew whenever it is read.

    mypyc translates `functools.cached_property` as it does `property`.
    """
    with (ROOT / "pyproject.toml").open("rb") as file:
        names = tomllib.load(file)["tool"]["ibwire"]["compiled"]

    cached = [
        name
        for name in names
        if "cached_property" in (ROOT / "ibwire" / name).read_text(encoding="utf-8")
    ]

    assert cached == []
