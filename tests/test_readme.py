"""What the README and the pages show is true: commands print it, files and Python work.

docs/tools/examples.py says how a page is worked through, and brings output up to date
(`make pages`). Here a `python` block is run too, with the names of the blocks before it.
"""

import ast
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from each_case import each_case

ROOT = Path(__file__).parents[1]
EXAMPLES = runpy.run_path(str(ROOT / "docs" / "tools" / "examples.py"))
PAGES: list[Path] = EXAMPLES["PAGES"]
matches: Callable[[list[str], list[str]], bool] = EXAMPLES["matches"]

NOT_RUN = {
    "docs/links.md": "two programs at once: tests/link/test_files.py; the other needs a link",
    "docs/pytest.md": "tests/drill/test_pytest_docs.py",
    "docs/respond.md": "a program for a directory of captures: tests/replay/",
}
"""Pages whose Python is not run here, and why."""

SLOW = {
    "docs/howto/buffer.md",
    "docs/tutorials/first-finding.md",
    "docs/tutorials/first-scenario.md",
}
"""Pages whose commands take seconds."""


def blocks(path: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of each block of a page."""
    found: list[tuple[str, str, str]] = EXAMPLES["blocks"](path.read_text(encoding="utf-8"))
    return found


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_console(block: str) -> None:
    """Each command of a block prints the lines after it."""
    for command, expected in EXAMPLES["entries"](block):
        found = EXAMPLES["printed"](command)
        if not matches(found, expected):
            assert found == expected, f"{command}: `make pages` writes the output anew"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory with what a checkout has."""
    for shared in EXAMPLES["SHARED"]:
        (tmp_path / shared).symlink_to(ROOT / shared)
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = [
    path
    for path in PAGES
    if any(language in ("console", "python") or title for language, title, _ in blocks(path))
]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (name(path) in SLOW)) for path in RUN],
    ids=name,
)
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


def test_pages_with_exceptions_exist() -> None:
    assert NOT_RUN.keys() | SLOW <= {name(path) for path in RUN}


@each_case(
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


@each_case("path", PAGES, ids=name)
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


def test_output_is_brought_up_to_date_except_where_lines_are_left_out(workplace: Path) -> None:
    page = """```toml title="my.toml"
[[workload]]
```
```console
$ ibwire fields bth.psn
old output
$ ibwire run my.toml
...
not a line of it
```
"""

    renewed, stale = EXAMPLES["rewritten"](page, workplace)

    assert "bth.psn" in renewed.split("fields bth.psn\n")[1].split("$ ")[0]
    assert "old output" not in renewed
    assert renewed.count("not a line of it") == 1
    assert stale == ["ibwire run my.toml"]
