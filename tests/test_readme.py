"""What the README and the pages show is true: commands print it, files and Python work.

A page is worked through from top to bottom in an empty directory that has the repository's
captures and scripts:

- a block with a title, such as ```toml title="my.toml", becomes a file of that name;
- of a `console` block each command is run, and prints the lines after it. A line `...` stands for
  any number of lines that are left out;
- a `python` block is run, with the names of the blocks before it.
"""

import ast
import re
import runpy
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ibwire.cli import main

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)(?: title=\"([\w.-]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

NOT_RUN = {
    "docs/links.md": "two programs at once: tests/link/test_files.py; the other needs a link",
    "docs/pytest.md": "tests/drill/test_pytest_docs.py",
    "docs/respond.md": "a program for a directory of captures: tests/replay/",
}
"""Pages whose Python is not run here, and why."""


def blocks(path: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of each block of a page."""
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def printed(command: str) -> list[str]:
    """The lines of a command, first those of standard output."""
    program, *arguments = shlex.split(command)
    assert program == "ibwire", f"{command}: the tests run only ibwire"
    result = CliRunner().invoke(main, arguments, prog_name="ibwire")
    assert result.exception is None or isinstance(result.exception, SystemExit), command
    return [line.rstrip() for line in (result.stdout + result.stderr).rstrip("\n").split("\n")]


def matches(found: list[str], expected: list[str]) -> bool:
    """Whether lines are those expected, of which `...` is any number."""
    if not expected:
        return not found
    if expected[0] == "...":
        return any(matches(found[skip:], expected[1:]) for skip in range(len(found) + 1))
    return bool(found) and found[0] == expected[0] and matches(found[1:], expected[1:])


def run_console(block: str) -> None:
    """Each command of a block prints the lines after it."""
    for entry in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *expected = entry.rstrip("\n").split("\n")
        found = printed(command)
        if not matches(found, expected):
            assert found == expected, command


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory with what a checkout has."""
    for shared in ("captures", "tests"):
        (tmp_path / shared).symlink_to(ROOT / shared)
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = [
    path
    for path in PAGES
    if any(language in ("console", "python") or title for language, title, _ in blocks(path))
]


@pytest.mark.parametrize("path", RUN, ids=name)
def test_page_is_true(path: Path, workplace: Path) -> None:
    names: dict[str, object] = {}

    for language, title, text in blocks(path):
        if title:
            (workplace / title).write_text(text, encoding="utf-8")
            if language == "python":
                runpy.run_path(title)
        elif language == "console":
            run_console(text)
        elif language == "python" and name(path) not in NOT_RUN:
            exec(compile(text, path.name, "exec"), names)


def test_python_of_the_emulators_page_delivers_and_captures(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = [
        text for language, _, text in blocks(ROOT / "docs/emulator.md") if language == "python"
    ]

    exec(compile(code, "emulator.md", "exec"), {})

    assert "SUCCESS" in capsys.readouterr().out
    assert (workplace / "lossy.pcapng").stat().st_size > 8192


def test_pages_that_are_not_run_exist() -> None:
    assert set(NOT_RUN) <= {name(path) for path in RUN}


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("abc", "abc", True),
        ("abc", "ab", False),
        ("abc", "a.", True),
        ("abc", ".c", True),
        ("abc", "a.bc", True),
        ("abc", "a.d", False),
        ("abcbd", ".bd", True),
    ],
)
def test_dots_stand_for_any_number_of_lines(found: str, expected: str, same: bool) -> None:
    lines = ["..." if letter == "." else letter for letter in expected]

    assert matches(list(found), lines) is same


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_the_imports_in_the_python_of_a_page_exist(path: Path) -> None:
    imports = [
        ast.unparse(node)
        for language, _, text in blocks(path)
        if language == "python"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ibwire")
    ]

    exec("\n".join(imports), {})


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
