"""The README's commands print what it says, and its Python runs."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each `$` line with the lines that follow it."""
    for language, block in BLOCKS:
        if language == "console":
            for entry in block.split("$ ")[1:]:
                command, *output = entry.rstrip("\n").split("\n")
                yield command, output


@pytest.mark.parametrize(
    ("command", "expected"), list(commands()), ids=lambda value: str(value)[:60]
)
def test_command_prints_what_the_readme_says(command: str, expected: list[str]) -> None:
    program, *arguments = shlex.split(command)
    assert program == "ibwire"

    run = subprocess.run(
        [sys.executable, "-m", "ibwire", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'layers'}"},
        capture_output=True,
        text=True,
        check=False,
    )

    printed = [line.rstrip() for line in (run.stdout + run.stderr).rstrip("\n").split("\n")]
    # `python -m ibwire` calls itself by another name than the installed command.
    assert [line.replace("python -m ibwire", "ibwire") for line in printed] == expected


DOCUMENT = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")


def test_python_of_the_emulators_document_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)

    exec(compile(code, "emulator.md", "exec"), {})

    assert "SUCCESS" in capsys.readouterr().out
    assert (tmp_path / "lossy.pcapng").stat().st_size > 8192


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_the_imports_in_the_python_of_a_page_exist(path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    imports = [
        ast.unparse(node)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ibwire")
    ]

    exec("\n".join(imports), {})


@pytest.mark.parametrize("code", [block for language, block in BLOCKS if language == "python"])
def test_python_of_the_readme_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {})
