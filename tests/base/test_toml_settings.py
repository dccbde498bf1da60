"""Values that replace those of a TOML file."""

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError, ScriptError
from ibwire.base.toml import Document
from ibwire.base.toml_settings import parse_setting, parse_value, parse_values

FILE = b"""\
seed = 1
[[wire]]
name = "first"
rate = "10G"
[[wire]]
name = "second"
[limits]
drops = 3
"""


def document(*settings: str) -> Document:
    return Document(FILE, "f.toml", map(parse_setting, settings))


@each_case(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("25G", "25G"),
        ('"a, b"', "a, b"),
        ("[1, 2]", [1, 2]),
        ("{ min = 1 }", {"min": 1}),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_value_is_toml_or_else_a_string(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_commas_in_brackets_and_quotes_belong_to_a_value() -> None:
    text = 'a.b=1MiB, [1, [2, 3]], "x,y", {a = 1, b = 2}'

    assert parse_values(text) == ("a.b", ("1MiB", "[1, [2, 3]]", '"x,y"', "{a = 1, b = 2}"))


def test_key_without_an_index_is_set_in_every_table_of_an_array() -> None:
    rates = [each.take("rate") for each in document("wire.rate=25G").top.tables("wire")]

    assert rates == ["25G", "25G"]


@pytest.mark.parametrize("index", ["1", "second"])
def test_index_or_name_selects_one_table(index: str) -> None:
    rates = [each.take("rate") for each in document(f"wire[{index}].rate=25G").top.tables("wire")]

    assert rates == ["10G", "25G"]


def test_missing_tables_are_made() -> None:
    inner = document("new.inner.key=7").top.table("new").table("inner")

    assert inner.take("key") == 7


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("wire[7].rate=1G", "is not an index or a name of wire, which has 2"),
        ("limits[0].drops=1", "limits is not an array of tables"),
        ("seed.x=1", "seed is not a table"),
        ("wire[0]=1", "ends with a name"),
    ],
)
def test_key_that_does_not_fit_the_file_is_a_sentence(setting: str, reason: str) -> None:
    with pytest.raises(ScriptError, match=reason.replace("[", r"\[")):
        document(setting)


@each_case("text", ["", "=", "a", "a=", "=1", "a..b=1", "a b=1", "a[=1"])
def test_text_that_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(EncodeError):
        parse_setting(text)


@pytest.mark.parametrize("text", ["a=1,,2", "a=1,", "a=1,1"])
def test_empty_and_repeated_values_are_refused(text: str) -> None:
    with pytest.raises(EncodeError):
        parse_values(text)


def test_error_in_a_set_value_names_its_key() -> None:
    table = document("limits.drops=many").top.table("limits")

    with pytest.raises(ScriptError) as caught:
        table.take_int("drops", 0, 0, 9)

    assert str(caught.value) == "f.toml: limits.drops, which was set: 'many' is not an integer"


def test_unknown_key_that_was_set_names_the_near_one() -> None:
    top = document("limit.drops=1").top
    for key in ("seed", "wire", "limits"):
        top.take(key)

    with pytest.raises(ScriptError) as caught:
        top.end()

    expected = "f.toml: limit.drops, which was set: unknown; did you mean limits?"
    assert str(caught.value) == expected


def test_error_in_a_value_of_the_file_still_names_its_line() -> None:
    with pytest.raises(ScriptError, match=r"^f\.toml:8:9: limits\.drops: 3 is not from 5 to 9"):
        document("wire.rate=25G").top.table("limits").take_int("drops", 0, 5, 9)
