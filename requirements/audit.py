"""Prints the known vulnerabilities of the locked versions, as pip-audit finds them.

    python requirements/audit.py requirements/locked.txt

Exit status: 0 for none, 1 for some, 3 where not every package could be looked up: pip-audit ends
with 0 there too, also when the database cannot be reached at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOUND, UNKNOWN = 1, 3


def main(requirements: str) -> int:
    """Look all packages up and print what was found."""
    command = Path(sys.executable).with_name("pip-audit")
    arguments = ["--disable-pip", "--require-hashes", "--progress-spinner=off", "-f", "json"]
    done = subprocess.run(
        [command, *arguments, "-r", requirements], capture_output=True, text=True, check=False
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        lines = done.stderr.strip().splitlines()
        print(f"not audited: pip-audit has failed: {lines[-1] if lines else 'without a message'}")
        return UNKNOWN
    text, status = verdict(packages)
    print(text)
    return status


def verdict(packages: Sequence[dict[str, Any]]) -> tuple[str, int]:
    """What the packages of a report of pip-audit have, and the exit status."""
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if len(unknown) == len(packages):
        return (
            "not audited: the database of vulnerabilities cannot be reached, or has none of the "
            f"{len(packages)} packages",
            UNKNOWN,
        )
    lines = [
        f"{package['name']} {package['version']}: {each['id']}, "
        f"fixed in {', '.join(each['fix_versions']) or 'no version'}"
        for package in packages
        for each in package.get("vulns", ())
    ]
    status = FOUND if lines else 0
    if unknown:
        lines.append(f"not looked up: {', '.join(unknown)}")
        status = status or UNKNOWN
    return "\n".join(lines) or f"packages without known vulnerabilities: {len(packages)}", status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
