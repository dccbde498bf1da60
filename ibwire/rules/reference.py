"""The table of rules in `docs/rules.md`, made from the catalogue.

python -m ibwire.rules.reference docs/rules.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from ibwire.rules.catalogue import FAMILIES, RULES

HEAD = """# Rules

What `ibwire check` judges captures by. An *error* is a breach that a conforming peer need not
put up with; a *warning* is not as the specification has it, but receivers take it, or the capture
may deceive; a *note* is worth knowing. A rule with a *habit* is broken by that implementation
always and harmlessly: its breach is shown as a note that names it, not at all with `--profile` of
that implementation, and in its own severity with the profile of another one. What is marked with
a star is in every packet of these implementations; it is shown only when a profile is named, such
as `--profile spec`.

Loss, damage and reordering on the way are no breach of anybody's. A rule says nothing where the
capture cannot show it: what was captured on one side, begins in the middle, or lacks packets.

`--only` and `--ignore` take the id of a rule or of a family (the word before the dot).

This page is generated from `ibwire/rules/` by `make docs`.
"""


def page() -> str:
    """The page."""
    lines = [HEAD]
    for family, about in FAMILIES.items():
        lines += [f"## {about}", "", "| id | severity | rule | habit of | specification | source |"]
        lines.append("|---|---|---|---|---|---|")
        for rule in RULES.values():
            if rule.family == family:
                habits = ", ".join(rule.habits) + "*" * rule.is_trait
                cells = (f"`{rule.id}`", rule.severity.word, rule.sentence, habits)
                lines.append("| " + " | ".join((*cells, rule.section, rule.source)) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
