"""Hooks of MkDocs: pages that stand outside docs/, and links to what stands there."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

OUTSIDE = {
    "layers/README.md": "header-fields.md",
    "captures/README.md": "captures.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files of the repository that are pages of the site, and their names there."""

LINK = re.compile(r"\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
"""Text, path and anchor of a link inside the repository."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_relinked(text, source, page)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the links of a page that leave docs/ lead to their pages on the site."""
    uri = page.file.src_uri
    return markdown if uri in OUTSIDE.values() else _relinked(markdown, f"docs/{uri}", uri)


def _relinked(text: str, source: str, page: str) -> str:
    """The text of a file with its links as seen from its page on the site.

    Links to files that are no pages, such as source code, become their text. Raises
    `PluginError` for a link to a file that does not exist.
    """

    def relink(match: re.Match[str]) -> str:
        shown, path, anchor = match[1], match[2], match[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / target).exists():
            raise PluginError(f"{source}: link to {path}, which does not exist")
        if target in OUTSIDE:
            uri = OUTSIDE[target]
        elif target.startswith("docs/"):
            uri = target.removeprefix("docs/")
        else:
            return shown
        return f"[{shown}]({posixpath.relpath(uri, posixpath.dirname(page) or '.')}{anchor})"

    return LINK.sub(relink, text)
