"""The pages of the site, put together in one directory: `assemble.py build/pages`.

Pages of docs/ keep their places. Some files from elsewhere become pages, the reference of commands
is generated, and notebooks become pages with what they print. A link to a page leads to it on the
site; a link to any other file of the repository, such as source code, becomes its text. A link to
a file that does not exist is an error.
"""

from __future__ import annotations

import importlib
import inspect
import posixpath
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

OUTSIDE = {
    "layers/README.md": "header-fields.md",
    "captures/README.md": "captures.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-reports.md",
}
"""Files of the repository that are pages of the site, and their names there."""

COPIED = {".md", ".svg", ".csv", ".css"}

LINK = re.compile(r"\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
"""Text, path and anchor of a link inside the repository."""


class DeadLink(Exception):
    """A link to a file that does not exist."""


def assemble(pages: Path) -> None:
    """Write all pages to a new directory."""
    # nbclient is needed for this alone
    from notebooks import as_markdown

    from ibwire.cli import reference

    shutil.rmtree(pages, ignore_errors=True)
    places = all_pages()
    for source, page in places.items():
        target = pages / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".ipynb"):
            text = as_markdown(ROOT / source, target.parent)
        elif source.endswith(".md"):
            text = (ROOT / source).read_text(encoding="utf-8")
        else:
            shutil.copyfile(ROOT / source, target)
            continue
        target.write_text(relinked(text, source, places), encoding="utf-8")
    api = pages / "api.md"
    api.write_text(_with_members(api.read_text(encoding="utf-8")), encoding="utf-8")
    (pages / "commands.md").write_text(reference.page(), encoding="utf-8")


def _with_members(text: str) -> str:
    """The page of the Python interface, with every public name of each package that it lists."""

    def expand(match: re.Match[str]) -> str:
        package = importlib.import_module(match[1])
        options = "    options:\n      show_root_heading: true\n      show_root_full_path: false\n"
        options += "      members: true\n"
        members = [
            f"::: {match[1]}.{name}\n{options}"
            for name in package.__all__
            if inspect.isclass(found := getattr(package, name)) or inspect.isfunction(found)
        ]
        return "\n".join((f"::: {match[1]}\n    options:\n      members: false\n", *members))

    return re.sub(r"^::: (\S+)\n", expand, text, flags=re.MULTILINE)


def all_pages() -> dict[str, str]:
    """Files of the repository and their places on the site."""
    own = [path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").rglob("*"))]
    places = {f"docs/{path}": f"{path}" for path in own if path.suffix in COPIED}
    notebooks = {f"docs/notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in NOTEBOOKS}
    return places | OUTSIDE | notebooks


def relinked(text: str, source: str, places: dict[str, str]) -> str:
    """The text of a file with its links as seen from its page on the site."""
    here = posixpath.dirname(places[source])

    def relink(match: re.Match[str]) -> str:
        shown, path, anchor = match[1], match[2], match[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if source.endswith(".ipynb") and path.endswith(".png"):
            return match[0]  # a plot, which is beside its page
        if target == "docs/commands.md":
            return f"[{shown}]({posixpath.relpath('commands.md', here or '.')}{anchor})"
        if not (ROOT / target).exists():
            raise DeadLink(f"{source}: link to {path}, which does not exist")
        if target not in places:
            return shown
        if shown.endswith(".md"):
            shown = _title(ROOT / target)
        return f"[{shown}]({posixpath.relpath(places[target], here or '.')}{anchor})"

    return LINK.sub(relink, text)


def _title(page: Path) -> str:
    """The heading of a page, for links that show a file's name."""
    return page.read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0]


if __name__ == "__main__":
    try:
        assemble(Path(sys.argv[1]))
    except DeadLink as error:
        raise SystemExit(f"error: {error}") from None
