"""`make audit`: what a report of pip-audit means."""

import runpy
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[1] / "requirements" / "audit.py"

VERDICT = runpy.run_path(str(AUDIT))["verdict"]

# As pip-audit 2.10 writes them.
GOOD = {"name": "attrs", "version": "26.1.0", "vulns": []}
BAD = {
    "name": "jinja2",
    "version": "3.1.5",
    "vulns": [
        {
            "id": "PYSEC-2025-1",
            "fix_versions": ["3.1.6"],
            "aliases": ["CVE-2025-27516"],
            "description": "a sandbox breakout",
        }
    ],
}
UNKNOWN = {
    "name": "click",
    "skip_reason": "Dependency not found on PyPI and could not be audited: click (8.5.1)",
}


@pytest.mark.parametrize(
    ("packages", "text", "status"),
    [
        ([GOOD], "packages without known vulnerabilities: 1", 0),
        ([GOOD, BAD], "jinja2 3.1.5: PYSEC-2025-1, fixed in 3.1.6", 1),
        ([GOOD, UNKNOWN], "not looked up: click", 3),
        ([BAD, UNKNOWN], "jinja2 3.1.5: PYSEC-2025-1, fixed in 3.1.6\nnot looked up: click", 1),
        ([UNKNOWN], "not audited: the database of vulnerabilities cannot be reached", 3),
    ],
)
def test_packages_that_were_not_looked_up_are_not_called_safe(
    packages: list[dict[str, Any]], text: str, status: int
) -> None:
    found, ended = VERDICT(packages)

    assert found.startswith(text)
    assert ended == status
