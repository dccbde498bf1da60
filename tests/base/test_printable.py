"""Text from outside has no control characters when it is shown."""

from __future__ import annotations

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.printable import printable, printable_line


@each_case(
    ("text", "shown"),
    [
        ("plain, with ümläuts and 漢字", "plain, with ümläuts and 漢字"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("over\rwritten\b\x7f", "over\\x0dwritten\\x08\\x7f"),
        ("\x9b31m \x85", "\\x9b31m \\x85"),
        (b"\x9b31m \xff".decode("utf-8", "surrogateescape"), "\\x9b31m \\xff"),
        ("\u202egnp.exe\u2069", "\\u202egnp.exe\\u2069"),
        ("\u2028 \ud800", "\\u2028 \\ud800"),
    ],
)
def test_control_characters_are_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_is_shown_controls_a_terminal(text: str) -> None:
    shown = printable(text)

    kinds = {unicodedata.category(each) for each in shown if each not in "\n\t"}
    assert kinds.isdisjoint({"Cc", "Cs", "Zl", "Zp"})
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", shown)
    assert printable(shown) == shown


def test_a_line_is_one_line() -> None:
    assert printable_line("a\nerror: b\t\x1b") == "a\\nerror: b\\t\\x1b"
