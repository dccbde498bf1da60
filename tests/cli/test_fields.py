"""`ibwire fields`: the catalogue, whole or in part."""

from typing import Any

from click.testing import CliRunner, Result

from ibwire.cli import main
from ibwire.dissect import FIELDS


def fields(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["fields", *arguments])


def names(result: Any) -> Any:
    assert result.exit_code == 0
    return [line.split()[0] for line in result.stdout.splitlines()[1:]]


def test_every_field_is_listed() -> None:
    assert names(fields()) == list(FIELDS)


def test_wildcards_select_by_name() -> None:
    found = names(fields("deth.*"))

    assert found == ["deth.q_key", "deth.reserved", "deth.srcqp"]


def test_a_word_selects_by_name_or_meaning() -> None:
    assert "aeth.msn" in names(fields("msn"))
    assert "reth.r_key" in names(fields("remote key"))


def test_a_field_has_type_meaning_and_wireshark_name() -> None:
    (line,) = [
        line for line in fields("bth.psn").stdout.splitlines() if line.startswith("bth.psn ")
    ]

    assert line.split()[1] == "uint"
    assert "packet sequence number" in line
    assert line.split()[-1] == "infiniband.bth.psn"


def test_a_pattern_without_match_is_wrong_usage() -> None:
    result = fields("nothing*")

    assert result.exit_code == 2
    assert "nothing*" in result.stderr
