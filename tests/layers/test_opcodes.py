"""Every opcode against the table of the specification (golden/opcodes.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

from each_case import each_case
from ibwire_layers import opcodes
from ibwire_layers.opcodes import INFO, Operation, Payload, Position, Service

TABLE = Path(__file__).parents[1] / "golden" / "opcodes.csv"

ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))

every_row = each_case("row", ROWS, ids=lambda row: row["name"])


def test_the_known_opcodes_are_those_of_the_table() -> None:
    assert {int(row["opcode_hex"], 16): row["name"] for row in ROWS} == {
        opcode: info.opcode.name for opcode, info in INFO.items()
    }


@every_row
def test_what_follows_the_bth(row: dict[str, str]) -> None:
    info = INFO[int(row["opcode_hex"], 16)]
    names = [] if row["headers_after_bth"] == "-" else row["headers_after_bth"].split("+")
    renamed = {"CNP_RESERVED": "CNPReserved"}

    assert [header.__name__ for header in info.headers] == [renamed.get(n, n) for n in names]
    assert info.header_size == int(row["header_bytes_incl_bth"])
    assert info.payload is Payload(row["payload_bytes"])
    assert any(h.__name__ == "ImmDt" for h in info.headers) == (row["has_immediate"] == "yes")


@every_row
def test_role_position_and_service(row: dict[str, str]) -> None:
    info = INFO[int(row["opcode_hex"], 16)]

    assert info.service is Service[row["transport"]]
    assert info.position is Position(row["position"])
    assert info.is_response == (row["role"] == "response")


@each_case(
    ("opcode", "operation"),
    [
        (0x00, Operation.SEND),
        (0x17, Operation.SEND),
        (0x2B, Operation.WRITE),
        (0x4C, Operation.READ),
        (0xB0, Operation.READ_RESPONSE),
        (0x11, Operation.ACKNOWLEDGE),
        (0x52, Operation.ATOMIC_ACKNOWLEDGE),
        (0x13, Operation.COMPARE_SWAP),
        (0xB4, Operation.FETCH_ADD),
        (0x55, Operation.RESYNC),
        (0x1C, Operation.FLUSH),
        (0x1D, Operation.ATOMIC_WRITE),
        (0x65, Operation.SEND),
        (0x81, Operation.CONGESTION),
    ],
)
def test_operation(opcode: int, operation: Operation) -> None:
    assert INFO[opcode].operation is operation


def test_every_extension_header_is_listed_once() -> None:
    used = {header for info in INFO.values() for header in info.headers}

    assert set(opcodes.EXTENSION_HEADERS) == used
    assert len(opcodes.EXTENSION_HEADERS) == len(used)


def test_an_unknown_opcode_has_a_name_too() -> None:
    assert opcodes.name_of(0x15) == "OPCODE_0x15"
    assert opcodes.name_of(0xFF) == "OPCODE_0xFF"
    assert opcodes.name_of(0x04) == "RC_SEND_ONLY"
