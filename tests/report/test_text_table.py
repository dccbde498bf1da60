"""Tables of text: every part of a table that is too wide has the names of its rows."""

from each_case import each_case
from ibwire.report.text_table import columns_in_words

ROWS = [("verified bytes", ["655,360", "1", "22"]), ("RNR waits", ["0", "333", "4"])]
TITLES = ["one", "first\nsecond", "three"]


def test_table_without_limit_is_one_table() -> None:
    assert list(columns_in_words(TITLES, ROWS, None)) == [
        "                          first",
        "                    one  second  three",
        "verified bytes  655,360       1     22",
        "RNR waits             0     333      4",
    ]


@each_case("width", [80, 37, 31, 24, 10])
def test_every_line_of_a_narrow_table_has_its_name_and_fits(width: int) -> None:
    lines = list(columns_in_words(TITLES, ROWS, width))

    tables = "\n".join(lines).split("\n\n")
    for table in tables:
        assert [line.partition("  ")[0] for line in table.splitlines()][-2:] == [
            "verified bytes",
            "RNR waits",
        ]
    cells = [line.removeprefix("verified bytes").split() for line in lines if "bytes" in line]
    assert [cell for row in cells for cell in row] == ["655,360", "1", "22"]
    if width >= 24:  # one column and the names of the rows need that
        assert max(map(len, lines)) <= width
