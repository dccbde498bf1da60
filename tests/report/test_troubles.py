"""A direction in which nothing went wrong is left out of totals, and its cells are empty."""

from types import SimpleNamespace

from each_case import each_case
from ibwire.connections import Connection, End
from ibwire.connections.pause import Pauses
from ibwire.report.flows import Row, lines
from ibwire.report.page_rows import row_of, totals
from ibwire_layers.opcodes import Service

TROUBLES = {  # count of a direction: name in the totals, heading in the table
    "retransmitted": ("retransmitted", "retransmitted"),
    "lost": ("lost before this point", "lost"),
    "reordered": ("reordered", "reordered"),
    "duplicates": ("duplicates", "duplicates"),
    "rnr_naks": ("RNR NAKs", "RNR NAKs"),
    "timeouts": ("timeouts", "timeouts"),
    "damaged": ("wrong ICRC", "bad ICRC"),
    "marked": ("CE marks", "CE"),
    "cnps": ("CNPs", "CNPs"),
    "restarts": (None, "restarts"),
    "implied_naks": (None, "implied NAKs"),
    "naks": ("NAKs", "NAKs"),
}


def pair_of_connections(name: str) -> list[Connection]:
    """A quiet one, and one with three of something in one direction and four in the other."""
    found = []
    for number in (1, 2):
        ends = End("10.0.0.1", number), End("10.0.0.2", number)
        connection = Connection(number, ends, Service.RC)
        connection.pairing = "responses"
        for counts in connection.directions:
            counts.packets = 100
        found.append(connection)
    for counts, count in zip(found[1].directions, (3, 4), strict=True):
        setattr(counts, name, {"psn_sequence_error": count} if name == "naks" else count)
    return found


@each_case("name", TROUBLES)
def test_each_kind_of_trouble_is_in_the_totals_and_in_the_table(name: str) -> None:
    connections = pair_of_connections(name)
    summary = SimpleNamespace(connections=connections, stray_damaged=0)
    surveyed = SimpleNamespace(summary=summary, pauses=Pauses())
    total, heading = TROUBLES[name]

    counted = {what.partition(" (")[0]: count for what, count, _ in totals(surveyed, {})}
    head, *table = lines([Row(each, way) for each in connections for way in (0, 1)], None)

    assert heading in head
    assert [name for line in table[:2] for name in line.split() if name in "34"] == []
    column = slice(head.index(heading) - 3, head.index(heading) + len(heading) + 12)
    cells = [line[column] for line in table[2:]]
    assert ["3" in cells[0], "4" in cells[1]] == [True, True]
    if total is not None:
        assert counted.pop(total).removeprefix(">=") == "7"
    assert {count for what, count, _ in totals(surveyed, {}) if what in counted} <= {"0", "?"}


def test_the_share_of_retransmitted_packets_stands_behind_their_count() -> None:
    row = row_of(pair_of_connections("retransmitted")[1])

    keys = list(row)

    assert keys[keys.index("retransmitted") + 1] == "share"
    assert row["share"] == 7 / 200
