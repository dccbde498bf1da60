"""Cases as JSON: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from fuzz.cases import cases, json_values, places
from ibwire.fuzz.case import (
    BAD,
    Case,
    CaseError,
    Connection,
    Mad,
    Packet,
    Post,
    Value,
    Wait,
    from_json,
    step_text,
    to_json,
)
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

PACKET = {"step": "packet", "opcode": "RC_SEND_ONLY"}


def document(**members: Any) -> str:
    return json.dumps({"ibwire-fuzz-case": 1, **members})


@given(cases.filter(lambda case: bool(case.steps)))
def test_what_is_written_is_read_again(case: Case) -> None:
    assert from_json(to_json(case)) == case


@given(cases)
def test_every_step_has_a_line(case: Case) -> None:
    for step in case.steps:
        assert step_text(step)
        assert "\n" not in step_text(step)


def test_a_message_of_a_connection_manager_may_have_a_psn() -> None:
    case = Case(Connection(), (Mad(message="REQ", fields={"bth.psn": 5}),))

    assert from_json(to_json(case)) == case


def test_json_has_names_and_symbols() -> None:
    packet = Packet(
        int(OpCode.RC_RDMA_WRITE_ONLY), ("expected", -1), 8, fields={"reth.va": ("end", -8)}
    )
    case = Case(Connection(mtu=1024), (packet, Post(int(WROpcode.SEND), 5), Wait(7)))

    written = json.loads(to_json(case))

    assert written["connection"]["mtu"] == 1024
    assert written["steps"] == [
        {
            "step": "packet",
            "opcode": "RC_RDMA_WRITE_ONLY",
            "psn": "expected-1",
            "length": 8,
            "fields": {"reth.va": "end-8"},
        },
        {"step": "post", "opcode": "SEND", "length": 5},
        {"step": "wait", "time": 7},
    ]


def test_with_another_opcode_only_fields_of_its_headers_stay() -> None:
    fields: dict[str, Value] = {"reth.va": 1, "bth.pkey": 2, "ip.ttl": 3}
    write = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), fields=fields)

    assert write.altered(opcode=int(OpCode.RC_RDMA_READ_REQUEST)).fields == fields
    assert write.altered(opcode=int(OpCode.RC_SEND_ONLY)).fields == {"bth.pkey": 2, "ip.ttl": 3}


def test_line_of_a_case_shows_unusual_attributes() -> None:
    packet = Packet(0x1F, ("una", 2), 300, pad=1, cut=20, icrc=BAD, fields={"bth.pkey": 0x12345})

    assert step_text(packet) == ("OPCODE_0x1F una+2 bth.pkey=0x12345 len=300 pad=1 cut=20 icrc=bad")


@each_case(
    ("text", "reason"),
    [
        ("", "case.json: no JSON: "),
        ("[" * 100_000, "case.json: no JSON: "),
        ("[]", "no case of ibwire fuzz of format 1"),
        ('{"ibwire-fuzz-case": 2}', "no case of ibwire fuzz of format 1"),
        (document(stepps=[]), "stepps: no such key; known are ibwire-fuzz-case, profile"),
        (document(steps={}), "steps: not a list of at most 100000"),
        (document(steps=[7]), "steps[0].step: not one of packet, "),
        (document(steps=[{"step": ["packet"]}]), "steps[0].step: not one of packet, "),
        (document(steps=[{"step": "packet"}]), "steps[0].opcode: missing"),
        (document(steps=[{"step": "wait"}]), "steps[0].time: missing"),
        (document(steps=[PACKET, {"step": "connect"}]), "steps[1].connection: missing"),
        (document(steps=[{**PACKET, "opcode": "NAK"}]), "steps[0].opcode: no opcode 'NAK'"),
        (document(steps=[{**PACKET, "opcode": 256}]), "steps[0].opcode: no opcode 256"),
        (document(steps=[{**PACKET, "opcode": True}]), "steps[0].opcode: no opcode True"),
        (document(steps=[{**PACKET, "psn": "end"}]), "steps[0].psn: 'end' does not count from"),
        (document(steps=[{**PACKET, "psn": 5}]), "steps[0].psn: 5 does not count from"),
        (document(steps=[{**PACKET, "length": -1}]), "steps[0].length: -1, not a number from 0"),
        (document(steps=[{**PACKET, "held": 1}]), "steps[0].held: 1, not true or false"),
        (document(steps=[{**PACKET, "why": None}]), "steps[0].why: None, not a text"),
        (
            document(steps=[{**PACKET, "icrc": "ok"}]),
            "steps[0].icrc: 'ok', not good, bad, swapped, none",
        ),
        (document(steps=[{**PACKET, "fields": []}]), "steps[0].fields: not an object"),
        (
            document(steps=[{**PACKET, "fields": {"bth.pkey": "va*2"}}]),
            "steps[0].fields.bth.pkey: 'va*2', not a number or a symbol such as end-8",
        ),
        (document(steps=[{**PACKET, "fields": {"bth.pkey": 1 << 128}}]), "fields.bth.pkey: 340"),
        (
            document(steps=[{"step": "connect", "connection": {"mtu": 300}}]),
            "steps[0].connection.mtu: 300, not one of [256, 512, 1024, 2048, 4096]",
        ),
        (document(connection=[]), "case.json: connection: not an object"),
        (document(connection={"mtu": 1.5}), "connection.mtu: 1.5, not a number from 256 to 4096"),
        (document(connection={"psn": 1}), "connection.psn: no such key; known are mtu, "),
        (document(profile=7), "case.json: profile: 7, not a text"),
        (document(origin="a\nb"), "case.json: origin: not a line of at most 200 characters"),
        (document(steps=[{**PACKET, "why": "x" * 201}]), "steps[0].why: not a line of at most 200"),
        (
            document(steps=[{**PACKET, "fields": {"bth.key": 1}}]),
            "steps[0].fields.bth.key: no such field",
        ),
        (
            document(steps=[PACKET, {**PACKET, "fields": {"reth.va": 1}}]),
            "steps[1].fields.reth.va: SEND_ONLY has no such header",
        ),
        (
            document(steps=[{"step": "packet", "opcode": 31, "fields": {"aeth.msn": 1}}]),
            "steps[0].fields.aeth.msn: OPCODE_0x1F has no such header",
        ),
        (document(), "case.json: steps: missing, and a case without any shows nothing"),
        (document(steps=[]), "case.json: steps: missing, and a case without any shows nothing"),
        (document(choices=[]), "case.json: choices: not an object"),
        (document(choices={"mig_req": 1}), "case.json: choices.mig_req: 1, not a text"),
    ],
)
def test_an_error_names_the_place(text: str, reason: str) -> None:
    with pytest.raises(CaseError) as caught:
        from_json(text)

    assert reason in str(caught.value)
    assert str(caught.value).startswith("case.json: ")


@given(cases, json_values, st.data())
def test_a_damaged_case_is_read_or_refused(case: Case, value: object, data: st.DataObject) -> None:
    damaged = json.loads(to_json(case))
    holder, key = data.draw(st.sampled_from(places(damaged)))
    holder[key] = value

    try:
        read = from_json(json.dumps(damaged))
    except CaseError:
        return

    assert from_json(to_json(read)) == read


@given(json_values)
def test_any_json_is_refused(value: object) -> None:
    with pytest.raises(CaseError):
        from_json(json.dumps(value))
