"""Scripts about several queue pairs, other services, and what their applications share."""

from __future__ import annotations

import pytest

from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.drill import parse, run
from ibwire.drill.verdict import Verdict, report
from ibwire.rc.profile import PROFILES

SCRIPTS = {
    # What follows from the rules of each service (IBA 9.7, 9.8, 10.2, 10.6, 10.8, 10.9).
    "two queue pairs have their own PSNs, requests and completions": """
      qp rq_psn=10
      qp b rq_psn=7000
      post_recv wr_id=1 len=600
      b post_recv wr_id=2 len=600 addr=va+4096
      interleaved {
        < SEND_FIRST 10 len=256
        < SEND_LAST psn+1 len=100 ack
      } and {
        b < SEND_FIRST 7000 len=256
        b < SEND_LAST psn+1 len=8 ack
      }
      b > ACK 7001 dest_qp=b.peer_qpn
      > ACK 11 dest_qp=peer_qpn
      b poll recv wr_id=2 byte_len=264
      poll recv wr_id=1 byte_len=356
    """,
    "an error of one queue pair is none of another": """
      qp b
      < WRITE_ONLY psn len=8 ack
      > ACK psn
      b < READ_REQUEST psn dma_len=8 va=end
      b > ACK psn nak=REMOTE_ACCESS_ERROR
      b state ERR
      state RTS
      < READ_REQUEST psn+1 dma_len=8
      > READ_RESPONSE_ONLY psn+1 len=8
      event QP_ACCESS_ERR
    """,
    "a window belongs to its queue pair": """
      qp b
      b mw w len=64 access=REMOTE_WRITE
      b < WRITE_ONLY psn len=8 rkey=w.rkey va=w.va ack
      b > ACK psn
      < WRITE_ONLY psn len=8 rkey=w.rkey va=w.va ack
      > ACK psn nak=REMOTE_ACCESS_ERROR
      event QP_ACCESS_ERR
    """,
    "a receive is scattered over its pieces": """
      post_recv wr_id=1 len={3, 0, 5} addr={va+100, va, va+200}
      < SEND_ONLY psn len=8 ack
      > ACK psn
      poll recv wr_id=1 byte_len=8
      memory va+100 len=3 at=0
      memory va+103 len=8 zero
      memory va+200 len=5 at=3
    """,
    "a request is gathered from pieces, one behind the other": """
      mr other len=4096
      store va len=300 at=0
      store other.va len=8 at=300
      post_send RDMA_WRITE wr_id=1 len={300, 8} addr={va, other.va} lkey={lkey, other.lkey}
      > WRITE_FIRST psn len=256 at=0 dma_len=308
      > WRITE_LAST psn+1 len=52 at=256
      < ACK psn+1
      poll send wr_id=1
      post_send RDMA_WRITE wr_id=2 len={4, 4} addr=va
      > WRITE_ONLY psn+2 len=8 at=0
      < ACK psn+2
      poll send wr_id=2
    """,
    "more pieces than the queue pair takes are refused": """
      qp max_send_sge=2 max_recv_sge=1
      post_send SEND len={1, 2, 3} fails=EINVAL
      post_recv len={1, 2} fails=EINVAL
    """,
    "a P_Key of the table that is not the queue pair's is dropped": """
      qp pkey=0xffff pkey_1=0x8123 pkey_index=1
      < WRITE_ONLY psn len=8 ack pkey=0xffff
      silence
      < WRITE_ONLY psn len=8 ack pkey=0x0123
      > ACK psn pkey=0x8123
    """,
    "two limited members of a partition do not talk": """
      qp pkey_2=0x0123 pkey_index=2
      < WRITE_ONLY psn len=8 ack pkey=0x0123
      silence
      < WRITE_ONLY psn len=8 ack
      > ACK psn pkey=0x0123
    """,
    "a solicited event comes for a packet that asks for it": """
      notify recv solicited
      post_recv wr_id=1
      post_recv wr_id=2
      < SEND_ONLY psn len=8 ack
      > ACK psn
      poll recv wr_id=1
      cq_event nothing
      < SEND_ONLY psn+1 len=8 ack se
      > ACK psn+1
      cq_event recv
      poll recv wr_id=2
    """,
    "an event is for the queue that was armed": """
      qp b
      b notify send
      notify recv
      b post_send RDMA_WRITE len=8 wr_id=1
      b > WRITE_ONLY psn
      b < ACK psn
      b cq_event send
      b poll send wr_id=1
    """,
    "UC has no answers, and drops a message after a gap": """
      qp type=UC
      post_recv wr_id=1 len=600
      < UC_SEND_FIRST psn len=256
      < UC_SEND_LAST psn+2 len=8
      silence
      < UC_SEND_ONLY psn+3 len=8
      silence
      poll recv wr_id=1 byte_len=8
    """,
    "a datagram has 40 bytes in front of it, and its sender's number": """
      qp type=UD qkey=0x1234
      post_recv wr_id=1 len=256
      < UD_SEND_ONLY psn len=8 qkey=0x1235
      < UD_SEND_ONLY psn len=8
      silence
      poll recv wr_id=1 byte_len=48 src_qp=peer_qpn
      memory va+40 len=8 at=0
      post_send SEND wr_id=2 len=8 addr=va+40 remote_qkey=0x1234
      > UD_SEND_ONLY psn len=8 at=0 src_qp=qpn qkey=0x1234
      poll send wr_id=2
    """,
    "an XRC request names the shared receive queue": """
      qp type=XRC_RECV
      post_recv wr_id=1
      < XRC_SEND_ONLY psn len=8 ack
      > XRC_ACKNOWLEDGE psn
      poll recv wr_id=1 byte_len=8
    """,
    "an XRC initiator sends the number that it is given": """
      qp type=XRC_SEND
      post_send SEND wr_id=1 len=8 remote_srqn=0x123
      > XRC_SEND_ONLY psn xrc_srq=0x123 len=8
      < XRC_ACKNOWLEDGE psn
      poll send wr_id=1
    """,
    "two queue pairs take from one shared receive queue, whose limit is an event": """
      qp srq=1
      qp b srq=1
      post_recv wr_id=1
      post_recv wr_id=2
      srq_limit limit=1
      b < SEND_ONLY psn len=8 ack
      b > ACK psn
      b poll recv wr_id=1
      event nothing
      < SEND_ONLY psn len=8 ack
      > ACK psn
      poll recv wr_id=2
      event SRQ_LIMIT_REACHED
    """,
    "a window of type 2 is bound again when it is invalid, and its old key ends": """
      mw w len=64 access=REMOTE_WRITE
      < WRITE_ONLY psn len=8 rkey=w.rkey ack
      > ACK psn
      post_send LOCAL_INV wr_id=0 invalidate_rkey=w.rkey
      poll send wr_id=0
      bind w va=va+64 len=64 wr_id=1
      poll send wr_id=1 opcode=BIND_MW
      < WRITE_ONLY psn+1 len=8 rkey=w.rkey va=w.va ack
      > ACK psn+1
      < WRITE_ONLY psn+2 len=8 rkey=w.rkey-1 va=w.va ack
      > ACK psn+2 nak=REMOTE_ACCESS_ERROR
      event QP_ACCESS_ERR
    """,
    "a bound window of type 2 is not bound again": """
      mw w len=64
      bind w wr_id=1
      poll send wr_id=1 status=MW_BIND_ERR
      state ERR
      event nothing
    """,
    "a window of type 1 is bound again as it is": """
      mw w len=64 type=1
      bind w va=va+64 wr_id=1
      poll send wr_id=1 opcode=BIND_MW
      < WRITE_ONLY psn len=8 rkey=w.rkey va=w.va ack
      > ACK psn
    """,
    "a window is invalidated by its application": """
      mw w len=64
      post_send LOCAL_INV wr_id=1 invalidate_rkey=w.rkey
      poll send wr_id=1 opcode=LOCAL_INV
      < WRITE_ONLY psn len=8 rkey=w.rkey ack
      > ACK psn nak=REMOTE_ACCESS_ERROR
      event QP_ACCESS_ERR
    """,
    "an alternate path is armed by a packet without MigReq, and taken by one with it": """
      qp rearm=1
      < WRITE_ONLY psn len=8 ack mig_req=0
      > ACK psn mig_req=0
      < WRITE_ONLY psn+1 len=8 ack
      > ACK psn+1 mig_req=1
      event PATH_MIG
    """,
    "whatever comes is taken, within the time of the line": """
      qp b timeout=10 retry_cnt=1
      post_recv wr_id=5
      b post_send RDMA_WRITE len=8 wr_id=1
      < SEND_ONLY psn len=8 ack
      +20ms anything
      b state ERR
      poll recv nothing
      silence
    """,
    "a PFC frame is no packet for a queue pair": """
      pfc priorities=0x08 quanta=100
      silence
      < WRITE_ONLY psn len=8 ack
      > ACK psn
    """,
    "a datagram to any queue pair is of its sender": """
      qp b type=UD
      b post_send SEND len=8 wr_id=1 remote_qpn=0xABC remote_qkey=5
      b > UD_SEND_ONLY psn len=8 dest_qp=0xABC qkey=5
      b poll send wr_id=1
    """,
    "a queue pair is connected again with other numbers": """
      < READ_REQUEST psn dma_len=8 va=end
      > ACK psn nak=REMOTE_ACCESS_ERROR
      event QP_ACCESS_ERR
      post_recv wr_id=1
      poll recv wr_id=1 status=WR_FLUSH_ERR
      reconnect rq_psn=0xffffff sq_psn=9 mtu=512 retry_cnt=0
      < WRITE_FIRST 0xffffff len=512 dma_len=520
      < WRITE_LAST psn+1 len=8 ack
      > ACK 0
      post_send RDMA_WRITE len=8 wr_id=1 flags=NONE
      > WRITE_ONLY 9
      < ACK psn
    """,
    "a queue pair of another type takes the place of one that is connected again": """
      qp pkey=0xffff pkey_1=0x7fff pkey_2=0x9234
      reconnect type=UC pkey_index=2 rearm=1
      < UC_WRITE_ONLY psn pkey=0xffff len=8 at=8
      memory va len=8 zero
      < UC_WRITE_ONLY psn len=8 at=8
      silence
      memory va len=8 at=8
      post_send RDMA_WRITE len=8 wr_id=1
      > UC_WRITE_ONLY psn pkey=0x9234 mig_req=0
      poll send wr_id=1
      reconnect type=UD pkey_index=0
      post_recv wr_id=2 len=64
      < UD_SEND_ONLY psn len=8
      poll recv wr_id=2 byte_len=48
      reconnect type=RC rearm=0
      < WRITE_ONLY psn len=8 ack
      > ACK psn pkey=0xffff mig_req=1
    """,
    "a window keeps its numbers when it is invalidated": """
      mw w va=va+4096 len=64
      post_send LOCAL_INV wr_id=1 invalidate_rkey=w.rkey
      poll send wr_id=1
      < WRITE_ONLY psn va=w.end-8 rkey=w.rkey len=8 ack
      > ACK psn nak=REMOTE_ACCESS_ERROR
      event QP_ACCESS_ERR
    """,
    "a time of less than a nanosecond has its unit": """
      post_send SEND len=8
      > SEND_ONLY psn
      +1ps silence
    """,
}


@each_case("name", SCRIPTS)
def test_scripts_pass(name: str) -> None:
    verdict = drill(SCRIPTS[name])

    assert verdict.passed, report(verdict)


FAILURES = {
    # A script, and what was expected and came.
    "qp b\nb < WRITE_ONLY psn len=8 ack\n> ACK psn": ("ACK", "nothing"),
    "qp b\n< WRITE_ONLY psn len=8 ack\nb > ACK psn": (" of b", "nothing"),
    "reconnect type=XRC_RECV": ("", "RC to XRC_RECV: a queue pair with a receive queue of its"),
    "qp b\nb < WRITE_ONLY psn len=8 ack\nsilence": ("silence", "ACKNOWLEDGE psn (1100) "),
    "qp b\nb < WRITE_ONLY psn len=8 ack\nb > ACK psn+1": (" of b", "ACKNOWLEDGE psn (1100) "),
    "qp b\nb < WRITE_ONLY psn len=8 ack\nunordered {\n> ACK psn\n}": ("in any order", " of b"),
    "qp b\nqp c\nb < WRITE_ONLY psn len=8 ack\nunordered {\nb > ACK psn\nc > ACK psn\n}": (
        "ACKNOWLEDGE psn=psn (2100) of c",
        "nothing",
    ),
    "qp b\nb post_recv\nb modify state=ERR": ("nothing", "a completion of the recv queue of b"),
    "notify recv\npost_recv\n< SEND_ONLY psn\npoll recv": ("nothing", "event of the completion"),
    "qp type=UD\npost_send SEND len=8 remote_qkey=5\n> UD_SEND_ONLY psn": ("UD_SEND", "qkey 0x5"),
}


@each_case("text", FAILURES, ids=lambda text: text.replace("\n", "|"))
def test_what_does_not_fit_is_a_failure(text: str) -> None:
    verdict = drill(text)

    expected, got = FAILURES[text]
    assert verdict.failure is not None
    assert expected in verdict.failure.expected
    assert got in " ".join([verdict.failure.got, *verdict.failure.details])


ERRORS = {
    "qp b\nqp b": "2:4: b is the name of another queue pair",
    "qp psn": "1:4: psn means something else: choose another name",
    "qp a.b": "1:4: a name without a dot",
    "qp b size=4096": "1:6: size is of the device: the first qp may give it",
    "qp b\nmr b": "2:4: b is the name of a queue pair",
    "b < SEND_ONLY psn": "1:1: b is not an event; expected accept, ",
    "qp b\nb silence": "2:3: b is a queue pair: expected '<', '>', bind, cm_event, cq_event, ",
    "qp b\nstate RTS\n< SEND_ONLY b.psn": "3:13: b.psn is not a number; did you mean b.qpn?",
    "state RTS\nqp": "2:1: qp comes first, or not at all; another one has a name",
    "interleaved {\nsilence\n}": "1:1: one block: the next begins with '} and {'",
    "for i in 1..2 {\nsilence\n} and {\n}": "3:3: 'and' without its 'interleaved {'",
    "post_recv len={1, 2} addr={va, va, va}": "1:11: 2 numbers for 3 pieces",
    "post_recv len={1, 2": "1:20: expected '}', found the end of the line",
    "post_send SEND wr_id={1, 2}": "1:22: expected a number, a symbol or a bracket, found {",
    "bind w": "1:6: w is not a window; expected nothing more",
    "notify recv solicited=2": "1:23: solicited is 2, not from 0 to 1",
    "qp pkey_index=4": "1:4: pkey_index is 4, not from 0 to 3",
    "reconnect rearm=2": "1:17: rearm is 2, not from 0 to 1",
    "mw w len=8\ndereg w": "2:7: w is not a region; expected mr",
    # What only other profiles make, or a line that comes later in turn.
    "on rxe {\nqp b\n}\nb poll send nothing": "4: b does not exist yet: no 'qp b' has been",
    "on rxe {\nqp b\n}\nunordered {\nb > ACK\n}": "5: b does not exist yet: no 'qp b' has been",
    "on rxe {\nmr r len=8\n}\ndereg r": "4:7: r does not exist yet",
    "on rxe {\nmw w len=8\n}\nbind w": "4:6: w does not exist yet",
    "on rxe {\nmw w\n} otherwise {\nbind w\n}": "4:6: w is not a window; expected nothing more",
    "interleaved {\nqp\nqp b\n} and {\nb > ACK\n}": "5: b does not exist yet: no 'qp b' has",
}


@each_case("text", ERRORS, ids=lambda text: text.replace("\n", "|"))
def test_errors_have_their_place(text: str) -> None:
    with pytest.raises(ScriptError) as caught:
        drill(text)

    assert str(caught.value).startswith(f"s.drill:{ERRORS[text]}")


@each_case("profile", sorted(PROFILES))
def test_other_profiles_have_several_queue_pairs_too(profile: str) -> None:
    text = SCRIPTS["two queue pairs have their own PSNs, requests and completions"]
    script = parse(text.encode(), "s.drill", profile)

    verdict = run(script, script.cases[0], profile)

    assert verdict.passed, report(verdict)


def test_blocks_take_turns_line_by_line() -> None:
    text = "interleaved {\nstate RTS\n} and {\npost_recv\nmodify timeout=3\nstate RTS\n} and {\n}"

    steps = parse(text.encode(), "s.drill").cases[0].steps

    assert [step.line.number for step in steps] == [2, 4, 5, 6]


def drill(text: str) -> Verdict:
    script = parse(text.encode(), "s.drill")
    return run(script, script.cases[0])
