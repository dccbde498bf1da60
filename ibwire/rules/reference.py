"""The table of rules in `docs/rules.md`, made from the catalogue.

python -m ibwire.rules.reference docs/rules.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ibwire.rules.catalogue import FAMILIES, RULES

CITATION = re.compile(r"docs/reference/([\w-]+)\.md#([\w-]+)")
"""An entry of the reference, as sources name it."""

HEAD = """# Rules

The rules that `ibwire check` applies to captures.

| severity | meaning |
|---|---|
| error | a conforming peer may reject this |
| warning | not as specified, but receivers accept it; or the capture may mislead |
| note | worth knowing |

Some rules have a *habit*: the implementations named there always break the rule, without harm. By
default a breach of such a rule is a note that names the implementation. With `--profile` of that
implementation it is not reported; with another profile it has the severity of the rule. A habit
with a star concerns every packet of the implementation and is reported only if a profile is
given, such as `--profile spec`.

Loss, damage and reordering on the way break no rule. A rule is not applied where the capture
cannot show a breach: if only one direction was captured, if the capture begins in the middle of a
connection, or if packets are missing. Rules that compare times ({timed}) are not applied to a
capture whose times go back by more than 1 ms.

`--only` and `--ignore` take the id of a rule or of a family (the word before the dot).

The column "source" names the entry of [reference](reference/index.md) that explains the rule, and
code or captures that show it: rxe_resp.c and other files of Linux (`drivers/infiniband`),
captures by their names in `captures/`.

This page is generated from `ibwire/rules/` by `make docs`.
"""


def page() -> str:
    """The page."""
    timed = ", ".join(f"`{rule.id}`" for rule in RULES.values() if rule.is_timed)
    lines = [HEAD.format(timed=timed)]
    for family, about in FAMILIES.items():
        lines += [f"## {about}", "", "| id | severity | rule | habit of | specification | source |"]
        lines.append("|---|---|---|---|---|---|")
        for rule in RULES.values():
            if rule.family == family:
                habits = ", ".join(rule.habits) + "*" * rule.is_trait
                cells = (f"`{rule.id}`", rule.severity.word, rule.sentence, habits)
                source = CITATION.sub(r"[\1#\2](reference/\1.md#\2)", rule.source)
                lines.append("| " + " | ".join((*cells, rule.section, source)) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
