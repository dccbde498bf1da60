"""Drill scripts as cases of the fuzzer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Pause,
    Post,
    Receive,
    RunsAway,
    Wait,
)
from ibwire.fuzz.saved import case_text, parse_case, says
from ibwire.fuzz.vocabulary.reading import read_script
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

SEND_FIRST, SEND_LAST = int(OpCode.RC_SEND_FIRST), int(OpCode.RC_SEND_LAST)
ACK, WRITE = int(OpCode.RC_ACKNOWLEDGE), int(OpCode.RC_RDMA_WRITE_ONLY)
SILENT = {"bth.ack_req": 0}


def read(text: str) -> Case:
    return read_script(text.encode(), "s.drill")


def test_psns_count_from_the_one_that_is_expected_at_that_moment() -> None:
    case = read(
        """
        post_recv len=600
        < SEND_FIRST psn len=256
        silence
        < SEND_LAST psn+1 len=8 ack
        > ACK psn+1
        < SEND_LAST psn+1 len=8 ack
        > ACK psn+1
        < WRITE_ONLY psn+5 len=8 ack  // a gap
        """
    )

    assert case.connection == Connection(timeout=18, receives=1, room=600)
    assert case.steps == (
        Packet(SEND_FIRST, ("expected", 0), 256, fields=SILENT),
        Packet(SEND_LAST, ("expected", 0), 8),
        Packet(SEND_LAST, ("expected", -1), 8),
        Packet(WRITE, ("expected", 3), 8, why="a gap"),
    )


def test_packets_on_lines_that_follow_each_other_arrive_before_an_answer() -> None:
    case = read("< WRITE_ONLY psn\n< WRITE_ONLY psn\n+1us < WRITE_ONLY psn")

    held = [step.held for step in case.steps if isinstance(step, Packet)]
    assert held == [True, False, False]
    assert case.steps[2] == Wait(1_000_000)


def test_the_times_of_lines_are_waits() -> None:
    case = read(
        """
        post_send RDMA_WRITE len=8 flags=SIGNALED+FENCE
        +5us > WRITE_ONLY psn
        +1us..3us > WRITE_ONLY psn
        +2us silence
        poll send wr_id=0
        < ACK psn rnr=12
        +1ms anything
        """
    )

    assert case.steps == (
        Post(int(WROpcode.RDMA_WRITE), 8, fence=True),
        Wait(10_000_000),
        Packet(ACK, ("una", 0), fields={**SILENT, "aeth.syndrome": 0x2C}),
        Wait(1_000_000_000),
    )


def test_a_queue_pair_that_only_receives_is_in_rtr() -> None:
    case = read("qp state=RTR\n< WRITE_ONLY psn")

    assert case.connection.rtr == 1
    assert "state=RTR" in case_text(case)
    assert read(case_text(case)) == case


def test_a_local_invalidate_is_of_the_window_and_takes_no_memory() -> None:
    case = read("mw mw va=va+1024 len=509\npost_send LOCAL_INV invalidate_rkey=mw.rkey flags=FENCE")

    assert case.steps == (Post(int(WROpcode.LOCAL_INV), signaled=False, fence=True),)
    assert read(case_text(case)).steps == case.steps


def test_queue_pairs_have_their_steps_and_connections_follow_each_other() -> None:
    case = read(
        """
        qp type=UC mtu=512
        qp other rq_psn=100 sq_psn=500
        post_recv len={8, 4} addr={va, va+8}
        other post_recv len={8, 4} addr={va, va+8}
        other < UC_SEND_ONLY psn len=8 ack icrc=good^0x10000
        silence
        other post_recv len={8, 4} addr={va, va+8}
        pfc priorities=8 quanta=1
        reconnect rq_psn=7 sq_psn=8
        other reconnect rq_psn=7 sq_psn=8
        < UC_SEND_ONLY psn len=8 ack
        """
    )

    usual = Connection(mtu=512, timeout=18, receives=1, room=12, service="UC", pairs=2, sges=2)
    only = int(OpCode.UC_SEND_ONLY)
    assert case.connection == usual
    assert case.steps[:3] == (
        Packet(only, length=8, icrc=1 << 32 | 0x10000, pair=1),
        Receive(1, 1),
        Pause(8, 1),
    )
    assert isinstance(case.steps[3], Connect)
    assert case.steps[3].connection.rq_psn == 7
    assert case.steps[4] == Packet(only, length=8)


def test_connections_have_other_queue_pairs_types_keys_and_receive_requests() -> None:
    case = read(
        """
        qp pkey=0xffff pkey_1=0x7fff pkey_2=0x9234 pkey_3=0x1234
        qp b rq_psn=100 sq_psn=500
        post_recv len=8
        b post_recv len=8
        b < SEND_ONLY psn len=8 ack
        anything
        reconnect type=UC pkey_index=2
        b modify state=RESET
        post_recv len={4, 4} addr={va, va+4}
        < UC_SEND_ONLY psn len=8 ack
        anything
        reconnect type=RC pkey_index=0 rearm=1
        b reconnect rearm=1
        qp c rq_psn=100 sq_psn=500 rearm=1
        c < WRITE_ONLY psn len=8 ack
        """
    )

    connections = [step.connection for step in case.steps if isinstance(step, Connect)]
    usual = Connection(timeout=18, receives=1, room=8, pairs=2)
    assert case.connection == usual
    assert connections == [
        replace(usual, service="UC", pkey_index=2, pairs=1, sges=2),
        replace(usual, rearmed=1, pairs=3, receives=0, sges=2),
    ]
    assert case.steps[-1] == Packet(WRITE, length=8, pair=2)


def test_queue_pairs_share_a_receive_queue_with_a_limit() -> None:
    """Whichever of them posts a request; the limit is there before any is taken."""
    case = read(
        """
        qp srq=1
        qp b rq_psn=100 sq_psn=500
        srq_limit limit=2
        post_recv len=8
        b post_recv len=8
        b < SEND_ONLY psn len=8 ack
        """
    )

    assert case.connection == Connection(
        timeout=18, receives=1, room=8, pairs=2, srq=1, srq_limit=2
    )
    assert case.steps == (Packet(int(OpCode.RC_SEND_ONLY), length=8, pair=1),)


ERRORS = {
    '< SEND_ONLY psn data="00"': "1: the payload of a case is the test pattern",
    "qp type=XRC_RECV\n< XRC_WRITE_ONLY psn\nreconnect": "3: XRC queue pairs are those of one conn",
    "reconnect type=XRC_SEND\npost_send SEND": "1: XRC queue pairs are those of one connection",
    "qp type=XRC_SEND\npost_recv": "2: an XRC_SEND queue pair takes no receive requests",
    "qp type=XRC_SEND\nsrq_limit limit=1": "2: srq_limit of a case comes right after the queue",
    "qp type=XRC_SEND\npost_send SEND remote_srqn=5": "2: remote_srqn of a request of a case",
    "qp type=XRC_RECV\nqp b type=RC rq_psn=100 sq_psn=500": "2: type is not that of the first ",
    "qp srq=1\n< WRITE_ONLY psn\nreconnect": "3: a shared receive queue is that of one connection",
    "srq_limit limit=1": "1: srq_limit of a case comes right after the queue pairs with srq=1",
    "qp srq=1\n< WRITE_ONLY psn\nsrq_limit limit=1": "3: srq_limit of a case comes right after ",
    "qp b srq=1 rq_psn=100 sq_psn=500": "1: srq is not that of the first queue pair",
    "qp b rq_psn=1 sq_psn=500": "1: rq_psn is not that of the first queue pair",
    "mr other": "1: a case of the fuzzer has the regions readable, foreign, ",
    "mr readable len=64": "1: readable of a case has len=512 access=LOCAL_WRITE+REMOTE_READ",
    "mw mw len=8 va=va": "1: the window of a case is of the first queue pair, va=va+1024 len=509 ",
    'store va data="00"': "1: memory of a case of the fuzzer has the test pattern",
    "store va+8 len=8 at=9": "1: memory of a case of the fuzzer has the test pattern: here at=8",
    "< SEND_ONLY psn\nstore va at=0": "2: memory of a case is written before the device receives",
    "qp rq_psn=5 sq_psn=6\n< SEND_ONLY psn\nqp b rq_psn=5 sq_psn=6": "3: queue pairs of a case ",
    "state RTS\nqp mtu=512": "2: qp comes first, or not at all; another one has a name",
    "on rxe {\nqp b\n}\nb < SEND_ONLY psn": "4: b does not exist yet: no 'qp b' has been",
    "qp b rq_psn=100 sq_psn=500\nb < SEND_ONLY psn\nb reconnect": "3: the first queue pair ",
    "qp b rq_psn=100 sq_psn=500\nreconnect\npost_send SEND": "2: all queue pairs connect again "
    "together: not b",
    "post_send SEND_WITH_IMM imm_data=5": "1: imm_data of a request of a case is 0x1a2b3c4d",
    "qp type=UD\npost_send SEND remote_qpn=5": "2: post_send remote_qpn= is not for cases of the",
    "qp type=UD\npost_send SEND remote_qkey=5": "2: remote_qkey of a request of a case is ",
    "post_send SEND len=5121": "1: a request of a case has at most 5120 bytes in 16 pieces",
    "post_recv len=8193": "1: a request of a case has at most 8192 bytes in 16 pieces",
    "< WRITE_ONLY psn vlan.vid=3": "1: packets of a case have no VLAN tag",
    "+99999s silence": "1: a wait of 99999",
    "modify state=ERR": "1: modify is for cases as 'NAME modify state=RESET' after reconnect",
    "qp b rq_psn=100 sq_psn=500\nb modify state=RESET": "2: modify is for cases as 'NAME modify ",
    "qp b rq_psn=100 sq_psn=500\nreconnect\nb modify state=RESET\nb < SEND_ONLY psn": "4: b is "
    "left out since the last reconnect",
    "qp b rq_psn=100 sq_psn=500\nqp c rq_psn=100 sq_psn=500\nreconnect\nb modify state=RESET\n"
    "c reconnect\npost_send SEND": "3: the queue pairs that are left out are the last ones",
    "qp b rq_psn=100 sq_psn=500\nreconnect retry_cnt=3\nb reconnect": "3: retry_cnt is not ",
    "reconnect mtu=512\nqp b rq_psn=100 sq_psn=500": "2: mtu is not that of the first queue pair",
    "qp pkey=0xffff pkey_1=0x7fff pkey_2=0x9234 pkey_3=0x1234\npost_send SEND": "1: the P_Key ",
    "impair > drop nth=1": "1: impairments are not for cases of the fuzzer",
    "post_recv len=8\npost_recv len=9": "2: all receive requests of a case have the same pieces",
    "post_send SEND remote_addr=1": "1: the peer's memory is at 0x5000",
    "post_send SEND flags=INLINE": "1: requests of a case are not inline",
    "< WRITE_ONLY psn va=va+end": "1: va+end: not a number of the connection and an offset",
}


@each_case("text", ERRORS, ids=lambda text: text.replace("\n", "|"))
def test_what_is_no_case_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(CaseError) as caught:
        read(text)

    assert str(caught.value).startswith(f"s.drill:{ERRORS[text]}")


@each_case("packet", ["< SEND_ONLY psn", "qp state=RESET\n< CM_REQ"])
@each_case("word", ["len=-1", "len=16385", "more=-1", "more=99999", "pad=-1"])
def test_word_out_of_range_is_refused_as_drill_does(packet: str, word: str) -> None:
    with pytest.raises(ScriptError, match=r"is -?\d+, not from 0 to 16384"):
        read(f"{packet} {word}")


@each_case(
    ("text", "reason"),
    [
        ("< CM_REQ", "s.drill: a case about connections begins with qp state=RESET"),
        ("state RTS", "s.drill: the device receives nothing, and does nothing"),
        (
            "cases a {\n1\n2\n}\nstate RTS",
            "s.drill: a table of 2 cases, not one case: choose one with --case (cases: 1, 2)",
        ),
        ("qp max_rd_atomic=129\npost_send SEND", "s.drill: qp.max_rd_atomic: 129, not a number"),
        ("reference nowhere\nstate RTS", "s.drill: profile: 'nowhere', not one of "),
        ("choice a=b\nstate RTS", "s.drill: choices.a: 'b', no such choice"),
    ],
)
def test_what_no_case_has_is_refused(text: str, reason: str) -> None:
    with pytest.raises(CaseError) as caught:
        read(text)

    assert str(caught.value).startswith(reason)


TABLE = """
cases what, va {
  "inside, at the end", end-8
  outside,              end-7
  side,                 end
}
< WRITE_ONLY psn ack va=$va len=8
"""


@pytest.mark.parametrize(
    ("wanted", "va"), [("inside", -8), ("outside", -7), ("out", -7), ("side", 0)]
)
def test_case_of_a_table_is_chosen_by_its_name(wanted: str, va: int) -> None:
    """In whole, or by a part that no other name has."""
    (packet,) = parse_case(TABLE.encode(), "s.drill", wanted).steps

    assert isinstance(packet, Packet)
    assert packet.fields["reth.va"] == ("end", va)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [("i", "3 cases have 'i' in their names, not one (cases: inside, "), ("x", "no cases have")],
)
def test_name_of_no_case_or_of_several_is_refused(wanted: str, reason: str) -> None:
    with pytest.raises(CaseError) as caught:
        parse_case(TABLE.encode(), "s.drill", wanted)

    assert str(caught.value).startswith(f"s.drill: {reason}")


def test_json_has_no_table() -> None:
    with pytest.raises(CaseError, match="JSON has one case"):
        parse_case(b"{}", "case.json", "inside")


CONFORMANCE = Path(__file__).parents[1] / "conformance"


@pytest.mark.parametrize("name", ["acks/coalesced", "sequence/nak-after-each-gap"])
def test_conformance_scripts_are_cases_that_are_written_as_they_were_read(name: str) -> None:
    path = CONFORMANCE / f"{name}.drill"
    case = parse_case(path.read_bytes(), path.name)

    assert case.packets > 1
    assert says(case_text(case), case)


SHIPPED = sorted(path.read_text() for path in CONFORMANCE.rglob("*.drill"))


@pytest.mark.slow
@given(st.data())
def test_no_script_does_worse_than_an_error(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(SHIPPED)).splitlines()
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(lines)))
        other = data.draw(st.sampled_from(SHIPPED)).splitlines()
        lines[at : at + data.draw(st.integers(0, 3))] = [data.draw(st.sampled_from(other))]

    try:
        case = read("\n".join(lines))
    except (CaseError, ScriptError, RunsAway):
        return
    assert case.steps
