"""Filter expressions over the fields of captures, with Wireshark's names for groups of them."""

from __future__ import annotations

from ibwire.dissect.fields import FIELDS, GROUPS, PROTOCOLS, type_of
from ibwire.dissect.where import Expression, parse


def parse_filter(text: str) -> Expression:
    """A filter as `--where` takes it; `ExpressionError` points at the error in it."""
    return parse(text, type_of, FIELDS, groups=GROUPS, definitions=PROTOCOLS)
