"""Fields of the messages of connection managers in columns and filters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from each_case import each_case
from ibwire.capture import RecordBatch, open_capture
from ibwire.dissect import Columns
from ibwire.dissect.fields import FIELDS, type_of
from ibwire.dissect.where import parse

CAPTURES = Path(__file__).parents[2] / "captures"


def batch_of(name: str) -> RecordBatch:
    with open_capture(CAPTURES / name) as capture:
        (batch,) = list(capture.batches())
        return batch


def numbers(name: str, text: str) -> list[int]:
    columns = Columns(batch_of(name))
    selected = parse(text, type_of).select(columns.column, columns.rows)
    return (np.flatnonzero(selected) + 1).tolist()


# What tshark 4.0 shows of the same packets.
@pytest.mark.parametrize(
    ("name", "number", "values"),
    [
        (
            "cm-reject.pcap",
            1,
            {
                "cm.req.serviceid": 0x1061C06,
                "cm.req.localqpn": 0x98,
                "cm.req.startpsn": 1391381,
                "cm.req.pppmtu": 5,
                "cm.req.maxcmretr": 15,
            },
        ),
        ("cm-reject.pcap", 2, {"cm.rej.reason": 8, "cm.rej.msgrej": 0}),
        ("cm-rping.pcap", 2, {"cm.rep.localqpn": 0x5E, "cm.rep.startpsn": 4960639}),
        ("cm-rping.pcap", 124, {"cm.req.remoteqpneecn": 0x5E}),
    ],
)
def test_fields_of_a_message(name: str, number: int, values: dict[str, int]) -> None:
    columns = Columns(batch_of(name))

    assert {field: int(columns[field][number - 1]) for field in values} == values
    assert all(columns.valid(field)[number - 1] for field in values)


@each_case(
    ("name", "text", "expected"),
    [
        ("cm-reject.pcap", "cm.message", [1, 2]),
        ("cm-reject.pcap", "cm.message == REJ", [2]),
        ("cm-reject.pcap", "cm.rej.reason == INVALID_SERVICE_ID", [2]),
        ("cm-reject.pcap", "cm.rej.reason_name == INVALID_SERVICE_ID", [2]),
        ("cm-reject.pcap", "cm.rej.reason == 28", []),
        ("cm-rping.pcap", "cm.message in {REQ, REP, RTU}", [1, 2, 3]),
        ("cm-rping.pcap", "cm.message == DREQ or cm.message == DREP", [124, 125]),
        ("rcx-all-ops.pcap", "cm.message", []),
    ],
)
def test_filters(name: str, text: str, expected: list[int]) -> None:
    assert numbers(name, text) == expected


def test_fields_that_were_cut_off_are_absent() -> None:
    """The REQ begins 62 bytes behind the start of the frame, 24 of them its common header."""
    batch = batch_of("cm-reject.pcap")
    batch.cap_len[:] = 42 + 12 + 8 + 24 + 16
    columns = Columns(batch)

    assert columns.valid("cm.req.serviceid").tolist() == [True, False]
    assert not columns.valid("cm.req.localqpn").any()


def test_every_message_has_fields_and_a_name() -> None:
    messages = {name.split(".")[1] for name in FIELDS if name.startswith("cm.")}

    assert messages >= {"req", "rep", "rtu", "rej", "mra", "dreq", "drsp", "sidr_req", "sidr_rep"}
