"""Every citation of docs/reference points to an entry, and every entry names its source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from each_case import each_case

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
CITING = ("ibwire", "layers", "tests", "docs", "captures", "README.md", "CHANGELOG.md", "Makefile")
TEXT = {".py", ".md", ".drill", ".toml", ".json", ".html", ".js", ".css", ".txt", ".cfg", ""}

CITATION = re.compile(r"\breference/([a-z-]+)(?:\.md)?#([\w-]+)")
PAGE = re.compile(r"\bdocs/reference/([\w-]+)\.md")
ANCHOR = re.compile(r'^<a id="([a-z0-9-]+)"></a>$', re.MULTILINE)
LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
ELSEWHERE = re.compile(r"rc-transport|rxe-peer|\.\./shared|(?<!\w)shared/|third-party/")
"""Documents and captures that a reader of the repository does not have."""

PAGES = {path.stem: path.read_text() for path in sorted(REFERENCE.glob("*.md"))}
ANCHORS = {name: ANCHOR.findall(text) for name, text in PAGES.items()}


def texts() -> Iterator[tuple[str, str]]:
    """Path and text of every file that may cite, except this one."""
    for place in CITING:
        top = ROOT / place
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix in TEXT and path != Path(__file__):
                yield path.relative_to(ROOT).as_posix(), path.read_text(errors="replace")


@cache
def cited_in() -> dict[str, str]:
    """All files that may cite: text by path."""
    return dict(texts())


def test_every_citation_points_to_an_entry() -> None:
    dangling = [
        f"{path}: {found[0]}"
        for path, text in cited_in().items()
        for found in CITATION.finditer(text)
        if found[2] not in ANCHORS.get(found[1], ())
    ]

    assert not dangling


def test_every_page_that_is_named_exists() -> None:
    named = {(path, found[1]) for path, text in cited_in().items() for found in PAGE.finditer(text)}

    assert not {each for each in named if each[1] not in PAGES}


def test_many_files_cite() -> None:
    assert sum(bool(CITATION.search(text)) for text in cited_in().values()) > 200


def test_no_text_names_a_document_outside_the_repository() -> None:
    outside = [
        f"{path}: {found[0]}"
        for path, text in cited_in().items()
        for found in ELSEWHERE.finditer(text)
    ]

    assert not outside


@each_case("page", PAGES)
def test_anchors_of_a_page_are_unique(page: str) -> None:
    repeated = [name for name, count in Counter(ANCHORS[page]).items() if count > 1]

    assert not repeated


@each_case("page", sorted(PAGES.keys() - {"index"}))
def test_every_entry_has_an_anchor_and_a_source(page: str) -> None:
    entries = re.split(r"^### ", PAGES[page], flags=re.MULTILINE)
    bare = [
        entry.partition("\n")[0]
        for before, entry in pairwise(entries)
        if not ANCHOR.search(before.rstrip("\n").rpartition("\n")[2])
        or not re.search(r"^Source: \S", entry, re.MULTILINE)
    ]

    assert len(entries) > 1
    assert not bare


@each_case("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    broken = []
    for found in LINK.finditer(PAGES[page]):
        target = (REFERENCE / found[1]).resolve() if found[1] else REFERENCE / f"{page}.md"
        anchors = [None, *ANCHORS.get(target.stem, ())]
        if not target.exists() or found[2] not in anchors:
            broken.append(found[0])

    assert not broken


def test_captures_that_sources_name_are_in_the_repository() -> None:
    shipped = {path.name.partition(".")[0] for path in (ROOT / "captures").glob("*.pcap*")}
    family = "|".join(sorted({name.partition("-")[0] for name in shipped}))
    named = {
        found[1]
        for text in PAGES.values()
        for source in re.findall(r"^Source: .*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        for found in re.finditer(rf"`((?:{family})[a-z0-9-]*)(?:\.[ab])?`", source)
    }

    assert named
    assert named <= shipped


def test_the_index_lists_every_page() -> None:
    listed = {found[1] for found in LINK.finditer(PAGES["index"])}

    assert {f"{name}.md" for name in PAGES} - {"index.md"} <= listed
