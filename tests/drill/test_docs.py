"""docs/drill.md names everything that the language has, and its examples are true."""

from __future__ import annotations

from pathlib import Path

from each_case import each_case
from ibwire.drill import parse, report, run
from ibwire.drill.language.cursor import SYMBOLS
from ibwire.drill.language.literals import INBOUND_WORDS, WORDS
from ibwire.drill.language.vocabulary import VERBS

ROOT = Path(__file__).parents[2]

TEXT = (ROOT / "docs" / "drill.md").read_text()

BLOCKS = TEXT.split("```\n")[1::2]
"""The examples: a script, a run of the command, a report, the usage, ..., last the blocks."""


@each_case("word", sorted({*VERBS, *WORDS, *INBOUND_WORDS, *SYMBOLS}))
def test_every_word_is_documented(word: str) -> None:
    assert f"`{word}" in TEXT


@each_case("argument", sorted(VERBS["qp"].args))
def test_every_attribute_of_the_connection_is_documented(argument: str) -> None:
    line = next(line for line in TEXT.splitlines() if line.startswith("| `qp "))

    assert argument in line or argument == "sqd_event"


def test_the_first_example_passes() -> None:
    script = parse(BLOCKS[0].encode(), "my.drill")

    assert all(run(script, case).passed for case in script.cases)


def test_the_failure_that_is_shown_is_that_of_the_example_with_one_number_changed() -> None:
    text = BLOCKS[0].replace("ACKNOWLEDGE psn+1", "ACKNOWLEDGE psn")
    script = parse(text.encode(), "my.drill")

    assert BLOCKS[2] == f"FAIL  {report(run(script, script.cases[0]))}\n"


def test_the_blocks_that_are_shown_are_a_script() -> None:
    assert len(parse(BLOCKS[-1].encode(), "my.drill").cases) == 2


def test_the_example_of_several_queue_pairs_passes() -> None:
    (text,) = (block for block in BLOCKS if "qp b" in block)
    script = parse(text.encode(), "my.drill")

    assert run(script, script.cases[0]).passed


def test_every_directory_of_scripts_is_in_the_table() -> None:
    names = {path.name for path in (ROOT / "tests" / "conformance").iterdir() if path.is_dir()}

    assert all(f"`{name}`" in TEXT for name in names - {"__pycache__"})
