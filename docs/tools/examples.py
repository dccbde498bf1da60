"""The examples in the README and the pages, and how to bring their output up to date.

A page is worked through from top to bottom in an empty directory that has the captures and tests of
the repository:

- a block with a title, such as ```toml title="my.toml", becomes a file of that name;
- of a `console` block each command is run, and prints the lines after it. A line `...` stands for
  any number of lines that are left out.

`examples.py` writes the output of all commands anew; blocks with `...` are named instead, if they
are no longer true. tests/test_readme.py compares.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from ibwire.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```([\w-]+)(?: title=\"([\w.-]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHARED = ("captures", "tests")


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Language, title and text of each block of a page."""
    return BLOCK.findall(text)


def entries(block: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, each with the lines after it."""
    for entry in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *expected = entry.rstrip("\n").split("\n")
        yield command, expected


def printed(command: str) -> list[str]:
    """The lines that a command prints, first those of standard output."""
    program, *arguments = shlex.split(command)
    if program != "ibwire":
        raise ValueError(f"{command}: only ibwire is run")
    result = CliRunner().invoke(main, arguments, prog_name="ibwire")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    text = (result.stdout + result.stderr).rstrip("\n")
    return [line.rstrip() for line in text.split("\n")] if text else []


def matches(found: list[str], expected: list[str]) -> bool:
    """Whether lines are those expected, of which `...` is any number."""
    if not expected:
        return not found
    if expected[0] == "...":
        return any(matches(found[skip:], expected[1:]) for skip in range(len(found) + 1))
    return bool(found) and found[0] == expected[0] and matches(found[1:], expected[1:])


def rewritten(text: str, place: Path) -> tuple[str, list[str]]:
    """A page with the output that its commands have now, and the commands to look at by hand."""
    stale: list[str] = []

    def renew(match: re.Match[str]) -> str:
        language, title, block = match.groups()
        if title:
            (place / title).write_text(block, encoding="utf-8")
        if language != "console":
            return match[0]
        lines = []
        for command, expected in entries(block):
            found = printed(command)
            if "..." in expected:
                stale.extend([] if matches(found, expected) else [command])
                found = expected
            lines += [f"$ {command}", *found]
        return "\n".join(("```console", *lines, "```"))

    return BLOCK.sub(renew, text), stale


if __name__ == "__main__":
    os.environ.pop("COLUMNS", None)
    to_correct = 0
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        if "```console" not in text:
            continue
        with tempfile.TemporaryDirectory() as directory:
            for shared in SHARED:
                (Path(directory) / shared).symlink_to(ROOT / shared)
            os.chdir(directory)
            renewed, stale = rewritten(text, Path(directory))
            os.chdir(ROOT)
        for command in stale:
            print(f"{path.relative_to(ROOT)}: to be corrected by hand: {command}", file=sys.stderr)
        to_correct += len(stale)
        if renewed != text:
            path.write_text(renewed, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: brought up to date")
    sys.exit(to_correct > 0)
