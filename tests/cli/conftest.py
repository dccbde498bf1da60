"""Fixtures of the tests that end commands in the middle."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.workplace import ENDLESS
from ibwire.capture import Record, open_capture, write_capture
from processes import Processes, ending

CAPTURES = Path(__file__).parents[2] / "captures"

COPIES = 2_000
"""Of the capture in the long one."""


@pytest.fixture(scope="module")
def long_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture that takes seconds to read."""
    path = tmp_path_factory.mktemp("long") / "long.pcap"
    with open_capture(CAPTURES / "rcx-all-ops.pcap") as reader:
        records = list(reader.records())

    def copies() -> Iterator[Record]:
        for _ in range(COPIES):
            yield from records

    write_capture(path, copies())
    return path


@pytest.fixture
def workplace(tmp_path: Path, long_capture: Path) -> Path:
    """The directory `work`; temporary files of commands go to `tmp` beside it."""
    (tmp_path / "tmp").mkdir()
    here = tmp_path / "work"
    here.mkdir()
    (here / "long.pcap").symlink_to(long_capture)
    (here / "endless.toml").write_text(ENDLESS)
    (here / "none.toml").write_text("[[from.a]]\ndrop = { psn = 77777 }\n")
    return here


@pytest.fixture
def processes() -> Iterator[Processes]:
    with ending() as processes:
        yield processes
