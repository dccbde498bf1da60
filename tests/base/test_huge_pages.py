"""Huge pages: the kernel's own count is the judge."""

from pathlib import Path

import pytest

from ibwire.base import huge_pages
from ibwire.base.huge_pages import HUGE_PAGE, ask_for_huge_pages

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def huge_bytes() -> int:
    """What the kernel counts for this process (proc_pid_smaps(5))."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no AnonHugePages in smaps_rollup")


@pytest.mark.skipif(not ENABLED.exists(), reason="a kernel without transparent huge pages")
def test_memory_is_in_huge_pages_where_the_kernel_says_so() -> None:
    held = bytearray(b"x") * (8 * HUGE_PAGE)

    agreed = ask_for_huge_pages()

    assert agreed % HUGE_PAGE == 0
    assert huge_bytes() >= agreed
    if "[never]" not in ENABLED.read_text():
        assert ask_for_huge_pages() >= agreed
    assert held == b"x" * len(held)


def test_nothing_happens_on_a_system_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "Path", lambda _: Path("/there/is/no/such/file"))

    assert ask_for_huge_pages() == 0
