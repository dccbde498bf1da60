"""Every AETH syndrome against the table of the specification (golden/aeth.csv)."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

from each_case import each_case
from ibwire_layers import syndrome
from ibwire_layers.syndrome import AckKind, NakCode

TABLE = Path(__file__).parents[1] / "golden" / "aeth.csv"

# In the last row bit 7 is reserved and sent as zero.
*ROWS, _BIT_7 = csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())

KINDS = {
    "ack": AckKind.ACK,
    "rnr_nak": AckKind.RNR_NAK,
    "reserved": AckKind.RESERVED,
    "nak": AckKind.NAK,
    "nak_reserved": AckKind.NAK,
}


def rows(*kinds: str) -> list[dict[str, str]]:
    found = [row for row in ROWS if row["kind"] in kinds]
    assert found
    return found


def number(row: dict[str, str]) -> int:
    return int(row["syndrome_hex"], 16)


def test_the_table_has_every_syndrome_with_bit_7_clear() -> None:
    assert [number(row) for row in ROWS] == list(range(128))


@each_case("row", ROWS, ids=lambda row: row["syndrome_hex"])
def test_kind_and_credits(row: dict[str, str]) -> None:
    credits = int(row["credits"]) if row["credits"].isdigit() else None

    assert syndrome.kind(number(row)) is KINDS[row["kind"]]
    assert syndrome.code(number(row)) == number(row) % 32
    assert syndrome.credits(number(row)) == credits


def test_rnr_timers() -> None:
    for row in rows("rnr_nak"):
        code = syndrome.code(number(row))
        assert Decimal(syndrome.RNR_TIMER_US[code]) / 1000 == Decimal(row["rnr_ms"])
        assert syndrome.describe(number(row)) == f"RNR NAK wait={Decimal(row['rnr_ms'])}ms"


def test_nak_codes_have_the_names_of_the_specification() -> None:
    for row in rows("nak"):
        code = NakCode(syndrome.code(number(row)))
        assert code.name.replace("_", " ").lower() == row["meaning"].lower()
        described = syndrome.describe(number(row)).lower().replace("_", " ")
        assert described == f"nak {row['meaning']}".lower()
    for row in rows("nak_reserved"):
        assert syndrome.describe(number(row)) == f"NAK code {number(row) % 32}"


def test_credits_are_described_if_present() -> None:
    assert syndrome.describe(0x1F) == "ACK"
    assert syndrome.describe(0x05) == "ACK credits=6"
    assert syndrome.describe(0x41) == "reserved syndrome 0x41"


def test_any_byte_can_be_described() -> None:
    for value in range(256):
        assert syndrome.describe(value)
        assert syndrome.kind(value) is syndrome.kind(value & 0x7F)
