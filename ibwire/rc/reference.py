"""The page `docs/profiles.md`, generated from `profile.py`.

python -m ibwire.rc.reference docs/profiles.md
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import fields
from enum import Enum
from pathlib import Path

from ibwire.base.units import MS, US
from ibwire.rc import profile
from ibwire.rc.profile import PROFILES, SPEC, Profile

HEAD = """# Profiles

A profile describes one implementation of the transport. Each known difference is one field of
`Profile` (`ibwire.rc.profile`), listed here with its source. A device takes a profile by name in
a scenario (`profile = "rxe"`), and as an argument in Python (`Device(profile=RXE)`);
`dataclasses.replace` makes a variant. The table `override` of a node sets single fields. An
empty cell means the value of `spec`: the implementation does the same, or its value is unknown.

Most fields are numbers, statuses and flags. Those that change control flow select functions in
`ibwire/rc/habits/`: `spec.py` follows the specification, `rxe.py` and `rdmavt.py` the
implementation.

This page is generated from `ibwire/rc/profile.py` by `make docs`.
"""


def notes() -> dict[str, str]:
    """The text under each field of `Profile`, on one line."""
    tree = ast.parse(inspect.getsource(profile))
    body = next(
        node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Profile"
    )
    found: dict[str, str] = {}
    name = ""
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = " ".join(str(node.value.value).split())
    return found


def table() -> str:
    """The page."""
    about = notes()
    others = [each for each in PROFILES.values() if each is not SPEC]
    names = " | ".join(each.name for each in others)
    lines = [HEAD, f"| field | meaning and source | spec | {names} |"]
    lines.append("|---|---|---|" + "---|" * len(others))
    for entry in fields(Profile):
        if entry.name == "name":
            continue
        usual = getattr(SPEC, entry.name)
        cells = [_show(usual, entry.name)]
        for each in others:
            value = getattr(each, entry.name)
            cells.append("" if value == usual else _show(value, entry.name))
        # A field without a text is an enumeration: its docstring applies.
        text = about.get(entry.name) or (inspect.getdoc(type(usual)) or "").split("\n")[0]
        row = [f"`{entry.name}`", text, *cells]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _show(value: object, name: str) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, Enum):
        return value.name if isinstance(value, int) else str(value.value)
    if isinstance(value, tuple):
        if name == "rnr_timer_us":
            return "the table" if value == SPEC.rnr_timer_us else f"{value[25] / 1000:g} ms at 25"
        return ", ".join(f"0x{each:04x}" for each in value) or "–"
    if isinstance(value, int) and name.endswith("granularity"):
        return "–" if value < US else f"{value / MS:g} ms"
    return str(value)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table(), encoding="utf-8")
