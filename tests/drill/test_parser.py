"""Scripts are read with line and column: what stands there, and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.drill import Script, parse, run
from ibwire.drill.language.parser import MAXIMUM_CASES, MAXIMUM_STEPS
from ibwire.drill.language.steps import Expect, Inject, Verb
from ibwire.drill.language.tokens import MAXIMUM_LINE, MAXIMUM_SIZE
from ibwire.drill.language.vocabulary import VERBS
from ibwire.rc.profile import PROFILES


def read(text: str, profile: str = "spec") -> Script:
    return parse(text.encode(), "s.drill", profile)


def run_all(content: bytes, profile: str = "spec") -> None:
    script = parse(content, "s.drill", profile)
    for case in script.cases:
        run(script, case, profile)


def error_of(text: str) -> str:
    with pytest.raises(ScriptError) as caught:
        run_all(text.encode())
    return str(caught.value)


ERRORS = {
    # The text of a script, and the error. Columns were counted by hand.
    "frobnicate": "1:1: frobnicate is not an event; expected accept, anything, bind, choice, "
    "cm_event, connect, cq_event, delay, dereg, disconnect, event, impair, listen, memory, "
    "modify, mr, mw, notify, origin, pfc, poll, post_recv, post_send, qp, ready, reconnect, "
    "reference, reject, resolve, section, silence, srq_limit, state, store, tolerance, unlisten, "
    "virtual",
    "": "1:1: expected an event: nothing happens in this script",
    "// Nothing but words.": "1:1: expected an event: nothing happens in this script",
    "pol recv": "1:1: pol is not an event; did you mean poll?",
    "+10us..5us > ACK psn": "1:8: the range ends before it begins",
    "+10us..2*4us poll recv": "1:8: the range ends before it begins",
    "+1us": "1:5: expected '<', '>', silence or a verb, found the end of the line",
    "+ < SEND_ONLY": "1:3: expected a number, a symbol or a bracket, found <",
    "+1us 5": "1:6: expected '<', '>', silence or a verb, found 5",
    "+1us <": "1:7: expected the name of an opcode, found the end of the line",
    "+1us < SEND_ONYL": "1:8: SEND_ONYL is not an opcode; did you mean SEND_ONLY?",
    "< SEND_ONLY psm": "1:13: psm is not a field of SEND_ONLY; did you mean psn?",
    "< SEND_ONLY psn lenn=4": "1:17: lenn is not a field of SEND_ONLY; did you mean len?",
    "< SEND_ONLY psn len": "1:20: expected '=', found the end of the line",
    "< SEND_ONLY psn len=": "1:21: expected a number, a symbol or a bracket, "
    "found the end of the line",
    "< SEND_ONLY psn+": "1:17: expected a number, a symbol or a bracket, found the end of the line",
    "< SEND_ONLY psn len=8 len=9": "1:23: len is given twice",
    "< SEND_ONLY psn psn=5": "1:17: psn is given twice",
    "< SEND_ONLY psn va=4": "1:17: va is not a field of SEND_ONLY; expected ack, ack_req, at, "
    "becn, credits, cut, data, dest_qp, fecn, fill, icrc, len, mig_req, more, nak, opcode, pad, "
    "pad_count, pkey, psn, resv6a, resv7, rnr, se, tver",
    "< SEND_ONLY psn len=8 }": "1:23: expected a field of the packet, found }",
    "< SEND_ONLY psn len=(8": "1:23: expected ')', found the end of the line",
    "< SEND_ONLY psn nak=INVALID_REQUEST": "1:17: SEND_ONLY has no AETH and so no nak",
    "< ACK psn nak=INVALID": "1:15: INVALID is not a number; did you mean INVALID_REQUEST?",
    "< ACK psn nak=INVALID_REQUEST rnr=3": "1:3: nak and rnr are the same field",
    "< SEND_ONLY psn !len": "1:18: len is not a flag; expected ack, se",
    '< SEND_ONLY psn data="0g"': "1:22: '0g' is not hexadecimal",
    '< SEND_ONLY psn data="00" len=4': "1:3: data sets the payload, so len and at cannot",
    "< any": "1:3: any is not an opcode; expected one such as ACK, ACKNOWLEDGE, ATOMIC_ACK, "
    "ATOMIC_ACKNOWLEDGE, ATOMIC_WRITE, CNP, COMPARE_SWAP, FETCH_ADD, FLUSH, RC_ACKNOWLEDGE, "
    "RC_ATOMIC_ACKNOWLEDGE, RC_ATOMIC_WRITE",
    "> ACK psn len=4 | ": "1:18: expected the name of an opcode, found the end of the line",
    "> ACK psn icrc=bad": "1:11: icrc is not a field of ACK; expected ack, ack_req, at, becn, "
    "credits, data, dest_qp, fecn, len, mig_req, msn, nak, opcode, pad_count, pkey, psn, resv6a, "
    "resv7, rnr, se, syndrome, tver",
    "> ACK {1, 2": "1:12: expected '}', found the end of the line",
    "> ACK ?": "1:8: expected the name of a variable, found the end of the line",
    "> ACK $x": "1:7: no column, loop or ?x before has given $x a value",
    "+0..5us < SEND_ONLY psn": "1:9: this happens at one time: a range is for what is expected",
    "+0..5us state RTS": "1:9: this happens at one time: a range is for what is expected",
    "5us < SEND_ONLY psn": "1:1: expected a time such as +1us, found 5us",
    "+1h silence": "1:3: unit 'h'; expected ps, ns, us, ms, s",
    "+0.0001ps silence": "1:2: 0.0001ps is not a whole number of picoseconds",
    "+5 silence": "1:2: 5 is less than a nanosecond: is its unit missing?",
    "+0-5us silence": "1:2: 0-5us is negative: time does not go back",
    '+1us "x': "1:6: a text without its second quote",
    "state ERR #": "1:11: nothing begins with '#'",
    "state EROR": "1:7: EROR is not a state of a queue pair; did you mean ERR?",
    "state": "1:6: expected a state of a queue pair, found the end of the line",
    "event": "1:6: expected an asynchronous event or nothing, found the end of the line",
    "poll send wrid=3": "1:11: wrid is not an argument of poll; did you mean wr_id?",
    "poll send status=SUCESS": "1:18: SUCESS is not a number; did you mean SUCCESS?",
    "memory va len=8": "1:1: expected one of at=, u64=, data= or zero",
    "memory va len=8 at=0 zero": "1:1: expected one of at=, u64=, data= or zero",
    "memory nowhere zero": "1:8: nowhere is not a number; expected chosen_cm_id, cm_id, end, "
    "gid, guid, lkey, mtu, peer_cm_id, peer_gid, peer_guid, peer_qpn, pkey, psn, qpn, rkey, "
    "rq_psn, service, size, sq_psn, srqn, transaction, va",
    "dereg x": "1:7: x is not a region; expected mr",
    "mr x.y": "1:4: a name without a dot",
    "qp mtu=257": "1:4: mtu is 257, not one of [256, 512, 1024, 2048, 4096]",
    "qp version=5": "1:4: version is 5, not 4 or 6",
    "qp size=5": "1:4: size is 5, not from 4096 to 4194304",
    "state RTS\nqp mtu=256": "2:1: qp comes first, or not at all; another one has a name",
    "qp mtu=256\nqp mtu=256": "2:1: qp comes first, or not at all; another one has a name",
    "+1us state RTS\n}": "2:1: '}' without its '{'",
    "for i in 0..3 {": "1:15: '{' without its '}'",
    "for i in 0..3 {\n} otherwise {\n}": "2:3: 'otherwise' without its 'on PROFILE {'",
    "for i in 3..0 {\n}": "1:13: 0 comes before 3",
    "for i in 0..9999999 {\n}": f"1:13: a loop of more than {MAXIMUM_STEPS} turns",
    "for i 0..3 {\n}": "1:7: expected 'in', found 0",
    "for i in 0..psn {\n}": "1:13: psn is not known yet",
    "on rx {\n}": "1:4: rx is not a profile; did you mean rxe?",
    "{\n}": "1:2: expected cases, for, interleaved, on or unordered, found the end of the line",
    "unordered {\n}": "1:1: nothing is expected, in whatever order",
    "unordered {\n< SEND_ONLY psn\n}": "2:1: in any order come only packets, '>', without a time",
    "unordered {\n>? any\n}": "2:1: in any order come only packets, '>', without a time: no '>?' "
    "and no upto",
    "unordered {\n+1us > any\n}": "2:1: in any order come only packets, '>', without a time",
    "unordered": "1:1: the line of unordered ends with '{'; what it holds stands on the next",
    "+1us unordered": "1:6: the line of unordered ends with '{'; what it holds stands on the next",
    "for i in 1..3 { silence }": "1:1: the line of for ends with '{'; what it "
    "holds stands on the next",
    "on rxe\n{\nsilence\n}": "1:1: the line of on ends with '{'; what it holds stands on the next",
    "> ACK psn msn=5..3": "1:18: 3 comes before 5",
    "> ACK {1, 3..1+1}": "1:14: 1+1 comes before 3",
    "poll send status=SUCCESS byte_len=8..0": "1:38: 0 comes before 8",
    "> ACK * aeth.foo=1": "1:9: foo is not a field of aeth; expected msn, syndrome",
    "> ACK * udp.dst=1": "1:9: dst is not a field of udp; expected checksum, dst_port, length, "
    "src_port",
    "> ACK * ieth.rkey=1": "1:9: ACK has no header ieth, but aeth, bth, eth, ip, udp, vlan",
    '< SEND_ONLY psn ip.src="10.0.0"': "1:24: '10.0.0' is not an IP address such as 10.0.0.1 or "
    "fd00::1",
    '> ACK * eth.src="02:00:0a"': "1:17: '02:00:0a' is not a MAC address such as 02:00:0a:00:00:01",
    '> ACK * eth.src="10.0.0.1"': "1:17: '10.0.0.1' is not a MAC address such as 02:00:0a:00:00:01",
    '< SEND_ONLY psn ip.src="::1:0:0"': "1:17: ip.src is 0x100000000, which does not fit 32 bits",
    '> ACK * ip.ttl="64"': "1:16: expected a number, a symbol or a bracket, found 64",
    "mr m\nmr m": "2:4: m is the name of another region or window",
    "mr m\nmw m": "2:4: m is the name of another region or window",
    "mr mr": "1:4: mr is the name of another region or window",
    "on rxe {\nmr m\n} otherwise {\nmr m\n}\nmr m": "6:4: m is the name of another region or "
    "window",
    "for psn in 1..3 {\nsilence\n}": "1:5: psn is a number of the connection already",
    "> upto 0 any": "1:8: up to 0 packets: use silence",
    "> upto 1-2 any": "1:8: up to -1 packets: use silence",
    "for i in 1..0 {\n}": "1:13: 0 comes before 1",
    "cases n {\n-1\n}\nfor i in 1..$n {\n}": "2:1: -1 comes before 1",
    "> ACK psn rnr=44": "1:15: rnr is 44, not from 0 to 31",
    "> ACK psn rnr={1, 44}": "1:19: rnr is 44, not from 0 to 31",
    "> ACK psn rnr=4..44": "1:18: rnr is 44, not from 0 to 31",
    "> ACK psn credits=-1": "1:19: credits is -1, not from 0 to 31",
    "> ACK 0x1000000": "1:7: psn is 16777216, not from 0 to 16777215",
    "> ACK psn msn=1+0xffffff": "1:15: msn is 16777216, not from 0 to 16777215",
    "< SEND_ONLY 0x1000000": "1:13: psn is 16777216, not from 0 to 16777215",
    "< SEND_ONLY psn=0x1000000": "1:17: psn is 16777216, not from 0 to 16777215",
    "< ACK psn msn=0x1000000": "1:15: msn is 16777216, not from 0 to 16777215",
    "< ACK psn aeth.msn=0x1000000": "1:20: aeth.msn is 16777216, not from 0 to 16777215",
    "> ACK psn pkey=0x10000": "1:16: pkey is 65536, not from 0 to 65535",
    "> READ_RESPONSE_ONLY psn len=16385": "1:30: len is 16385, not from 0 to 16384",
    "> ACK psn ip.ttl=256": "1:18: ip.ttl is 256, not from 0 to 255",
    "qp timeout=32": "1:12: timeout is 32, not from 0 to 31",
    "qp rnr_retry=8": "1:14: rnr_retry is 8, not from 0 to 7",
    "qp type=7": "1:9: type is 7, not one of RC, UC, UD, XRC_SEND, XRC_RECV",
    "qp access=0x8000": "1:11: access is 0x8000, not a sum of LOCAL_WRITE, REMOTE_WRITE, "
    "REMOTE_READ, REMOTE_ATOMIC, MW_BIND, ZERO_BASED, ON_DEMAND, HUGETLB, FLUSH_GLOBAL, "
    "FLUSH_PERSISTENT, RELAXED_ORDERING, NONE, ALL",
    "modify state=9": "1:14: state is 9, not one of RESET, INIT, RTR, RTS, SQD, SQE, ERR",
    "poll send status=24": "1:18: status is 24, not one of SUCCESS, LOC_LEN_ERR, LOC_QP_OP_ERR, "
    "LOC_EEC_OP_ERR, LOC_PROT_ERR, WR_FLUSH_ERR, MW_BIND_ERR, BAD_RESP_ERR, LOC_ACCESS_ERR, "
    "REM_INV_REQ_ERR, REM_ACCESS_ERR, REM_OP_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR, "
    "LOC_RDD_VIOL_ERR, REM_INV_RD_REQ_ERR, REM_ABORT_ERR, INV_EECN_ERR, INV_EEC_STATE_ERR, "
    "FATAL_ERR, RESP_TIMEOUT_ERR, GENERAL_ERR, TM_ERR, TM_RNDV_INCOMPLETE",
    "poll recv imm_data=0x100000000": "1:20: imm_data is 4294967296, not from 0 to 4294967295",
    "post_send SEND flags=16": "1:22: flags is 0x10, not a sum of FENCE, SIGNALED, SOLICITED, "
    "INLINE, NONE",
    "post_send RDMA_READ rkey=0x100000000": "1:26: rkey is 4294967296, not from 0 to 4294967295",
    "post_recv wr_id=-1": "1:17: wr_id is -1, not from 0 to 18446744073709551615",
    "< SEND_ONLY psn icrc=-1": "1:22: icrc is -1, not from 0 to 4294967295",
    "< SEND_ONLY psn icrc=0x100000000": "1:22: icrc is 4294967296, not from 0 to 4294967295",
    "< SEND_ONLY psn icrc=good^0x100000000": "1:22: icrc is 4294967296, not from 0 to 4294967295",
    "< SEND_ONLY psn icrc=good+1": "1:26: expected a field of the packet, found +",
    "< SEND_ONLY psn icrc=bad^1": "1:25: expected a field of the packet, found ^",
    "< SEND_ONLY psn icrc=wrong": "1:22: wrong is not an ICRC; expected bad, good, none, swapped",
    "< SEND_ONLY psn icrc=1^1": "1:23: expected a field of the packet, found ^",
    "poll sent": "1:6: sent is not a queue, send or recv; did you mean send?",
    "poll": "1:5: expected a queue, send or recv, found the end of the line",
    "cases a, b {\n1\n}": "2:2: 1 cells in a table of 2 columns",
    "cases a, a {\n1, 2\n}": "1:10: column a is given twice",
    "cases {\n1\n}": "1:7: expected the name of a column, found {",
    "cases a {\n}": "1:1: a table without rows",
    "state RTS\ncases a {\n1\n}": "2:1: one table of cases, before everything that happens",
    "choice mig_req": "1:8: expected what a device does otherwise, such as mig_req=0",
    "choice mig_req=0\nchoice mig_req=1": "2:1: choice mig_req is given twice",
    "origin": "1:7: expected where the script comes from",
    "section": "1:8: expected a section of the specification",
    "< SEND_ONLY psn len=99999": "1:17: len is 99999, not from 0 to 16384",
    "< SEND_ONLY psn pkey=0x10000": "1:17: pkey is 0x10000, which does not fit 16 bits",
    "< SEND_ONLY psn tver=-1": "1:17: tver is -0x1, which does not fit 4 bits",
    "< SEND_ONLY psn ip.flow_label=1": "1:17: the packets of this connection have no ip.flow_label",
    "< SEND_ONLY psn cut=77": "1:17: cut is 77, not from 0 to 12",
    "+ack_timeout(32) silence": "1:2: ack_timeout(32): codes go from 0 to 31",
    "post_recv len=x.va": "1:15: x.va is not a number; did you mean va?",
    "post_recv fails=EPERM": "1:17: EPERM is not a number; expected EADDRINUSE, EFAULT, EINVAL, "
    "ENOMEM",
    "+1us state RTS extra": "1:16: extra is not an argument of state; expected nothing more",
    "< WRITE_ONLY psn va=1*2*99999999999999999999999*999999999999999999999": "1:48: the result is "
    "larger than any field",
    "< OPCODE_0xZZ psn": "1:3: OPCODE_0xZZ is not an opcode; expected one such as ACK, "
    "ACKNOWLEDGE, ATOMIC_ACK, ATOMIC_ACKNOWLEDGE, ATOMIC_WRITE, CNP, COMPARE_SWAP, FETCH_ADD, "
    "FLUSH, RC_ACKNOWLEDGE, RC_ATOMIC_ACKNOWLEDGE, RC_ATOMIC_WRITE",
}


@each_case("text", ERRORS, ids=lambda text: text.replace("\n", "|"))
def test_an_error_has_its_position_and_the_expected_token(text: str) -> None:
    assert error_of(text) == f"s.drill:{ERRORS[text]}"


def test_an_error_in_a_row_has_the_position_of_the_row() -> None:
    text = "cases opcode {\n  SEND_ONLY\n  SEND_ONYL\n}\n< $opcode psn\n"

    assert error_of(text) == "s.drill:3:3: SEND_ONYL is not an opcode; did you mean SEND_ONLY?"


def test_an_error_for_another_profile_is_reported_too() -> None:
    assert error_of("on rxe {\n  state NOWHERE\n}\n").startswith(
        "s.drill:2:9: NOWHERE is not a state"
    )


@each_case(
    ("content", "where"),
    [
        (b"a" * (MAXIMUM_SIZE + 1), "s.drill: a script has at most 65536 bytes"),
        (b"//\n" + b"a" * (MAXIMUM_LINE + 1), f"s.drill:2:{MAXIMUM_LINE + 1}: a line of"),
        (b"state RTS\n// \xff", "s.drill:2:4: not UTF-8"),
        (b"cases a {\n" + b"1\n" * (MAXIMUM_CASES + 1) + b"}", "s.drill:1:1: 501 rows"),
        (b"for i in 1..99 {\nfor j in 1..99 {\nstate RTS\n}\n}", "s.drill: more than 5000 steps"),
        (b"for i in 1..9 {\n" * 9 + b"}\n" * 9, "s.drill:9:15: more than 8 blocks"),
        (b"< SEND_ONLY " + b"(" * 50, "s.drill:1:33: more than 20 brackets"),
        (b"< SEND_ONLY psn=" + b"-" * 50, "s.drill:1:37: more than 20 brackets"),
        (
            b"cases a {\n1" + b"+1" * 190 + b"\n}\n< SEND_ONLY " + b"+".join([b"$a"] * 90),
            "s.drill:4:1: 34382 words",
        ),
        (b"+" + b"9" * 50 + b"s silence", "s.drill:1:2: a number of 50 digits"),
    ],
    ids=[
        "large",
        "wide",
        "bytes",
        "rows",
        "steps",
        "blocks",
        "brackets",
        "signs",
        "words",
        "digits",
    ],
)
def test_limits(content: bytes, where: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(content, "s.drill")

    assert str(caught.value).startswith(where)


def test_the_comment_at_the_top_is_the_rule_and_section_is_text() -> None:
    script = read(
        '// One rule,\n//   two lines.\n\nsection IBA 9.7, "quoted" (x) // y\nstate RTS\n'
    )

    assert script.rule == "One rule,\ntwo lines."
    assert script.section == 'IBA 9.7, "quoted" (x) // y'


def test_rows_and_loops_stand_for_tokens() -> None:
    script = read(
        "cases what, fields {\n  one, len=1 ack\n  two,\n}\n"
        "for i in 0..1 {\n  < SEND_ONLY psn+$i $fields\n}\n"
    )

    assert [case.name for case in script.cases] == ["one", "two"]
    assert [len(case.steps) for case in script.cases] == [2, 2]
    one = script.cases[0].steps[0]
    assert isinstance(one, Inject)
    assert set(one.literal.words) == {"len"}


def test_rows_whose_first_cells_are_equal_are_named_by_all_cells() -> None:
    script = read("cases a, b {\n 1, 2\n 1, 3\n}\nstate RTS\n")

    assert [case.name for case in script.cases] == ["1, 2", "1, 3"]


def test_cases_have_their_names_as_written() -> None:
    script = read(
        "cases what, fields {\n lies-zero, va=1\n"
        '"a/b, ä",\n  len=8 data="00"  ,// no\n}\nstate RTS\n'
    )

    assert [case.name for case in script.cases] == ["lies-zero", "a/b, ä", 'len=8 data="00"']


def test_rows_are_named_by_all_their_cells_as_written_where_the_first_is_not_enough() -> None:
    script = read("cases what, fields {\n a-1, va=1\n a-1 , va=end-2 ack\n}\nstate RTS\n")

    assert [case.name for case in script.cases] == ["a-1, va=1", "a-1, va=end-2 ack"]


@pytest.mark.parametrize(("profile", "count"), [("rxe", 1), ("spec", 2)])
def test_a_profile_has_its_own_steps(profile: str, count: int) -> None:
    script = read("on rxe {\nstate RTS\n} otherwise {\nstate RTS\nstate RTS\n}\n", profile)

    assert len(script.cases[0].steps) == count


@pytest.mark.parametrize("branch", ["{0}\n} otherwise {\n", "} otherwise {\n{0}\n"])
def test_regions_of_either_branch_are_known_behind_it(branch: str) -> None:
    given = branch.replace("{0}", "mr m len=8 access=NONE")

    assert read(f"on rxe {{\n{given}}}\ndereg m\n", "rxe").cases[0].steps


def test_the_example_of_the_architecture_is_a_script() -> None:
    script = read(
        """// A lost packet draws one NAK that names the first missing PSN.
   0     qp mtu=1024 rq_psn=500
  +0     post_recv wr_id=1 len=4096
  +1us   < RC_SEND_FIRST psn=500 len=1024
  +1us   < RC_SEND_LAST  psn=502 len=1024
  +0..5us > RC_ACKNOWLEDGE psn=501 nak=PSN_SEQUENCE_ERROR
"""
    )

    assert [type(step) for step in script.cases[0].steps] == [Verb, Verb, Inject, Inject, Expect]
    assert run(script, script.cases[0]).passed


WORDS = st.sampled_from([
    *VERBS,
    "<", ">", ">?", "{", "}", "(", ")", "|", "=", "+", "-", "*", "?", "!", ",", "..",
    "+1us", "+0..5us", "0", "7", "0xffffffffffffffffff", "1.5", "psn", "va", "rkey+1", "$i",
    "SEND_ONLY", "WRITE_FIRST", "READ_REQUEST", "ACK", "any", "len=8", "nak=", "status=",
    "cases", "for i in 0..3 {", "on rxe {", "otherwise", "unordered {", "upto", "silence",
    "section", "tolerance", "send", "recv", "nothing", "RTS", "RDMA_READ", "mr x", "x.va",
    "data=", '"00ff"', '"', "//", "\n", "\n", "\n", "\t", "é", "\x00", "?x", "$x", "at=0",
    "cut=3", "icrc=bad", "udp.length=5", "ip.ttl=0", "eth.dst=1", "pad=3", "ack", "se",
])  # fmt: skip
"""What scripts are made of, so that random text gets beyond the first word."""


@given(st.lists(WORDS, max_size=40).map(" ".join), st.sampled_from(sorted(PROFILES)))
def test_no_text_of_scripts_does_worse_than_a_script_error(text: str, profile: str) -> None:
    runs_or_tells(text.encode(), profile)


@given(st.binary(max_size=300))
def test_no_bytes_do_worse_than_a_script_error(content: bytes) -> None:
    runs_or_tells(content, "spec")


SHIPPED = sorted(
    path.read_text() for path in (Path(__file__).parents[1] / "conformance").rglob("*.drill")
)


@given(st.data())
def test_no_damage_to_a_script_does_worse_than_a_script_error(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SHIPPED))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(WORDS | st.just("")) + text[end:]

    runs_or_tells(text.encode(), "spec")


def runs_or_tells(content: bytes, profile: str) -> None:
    """A script runs, or an error says where: within the text."""
    line, column = 0, 0
    try:
        run_all(content, profile)
    except ScriptError as error:
        line, column = error.line or 0, error.column or 0
    if line:
        text = content.split(b"\n")[line - 1].decode(errors="replace")
        assert 1 <= column <= len(text) + 1
