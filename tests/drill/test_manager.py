"""Connection management in scripts: what is filled in, what is reported, what is refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import pytest

from drill.test_docs import BLOCKS
from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.base.units import MS
from ibwire.drill import Verdict, parse, report, run
from ibwire.drill.application import Application
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.steps import Inject
from ibwire.drill.runner import carry_out
from ibwire.drill.targets.emulated import Emulated
from ibwire.drill.targets.target import ManagerEvent
from ibwire.rc.attributes import QPState
from ibwire_layers import cm
from ibwire_layers.headers import DETH, IPCM
from ibwire_layers.mad import GSI_QKEY, MAD
from ibwire_layers.packet import CrcStatus, Packet

ASKED = "qp state=RESET\nlisten\n< CM_REQ\ncm_event CONNECT_REQUEST\n"
"""Four lines."""

CONNECTED = ASKED + "accept\n> CM_REP\n< CM_RTU\ncm_event ESTABLISHED\n"


def drill(text: str, profile: str = "spec") -> Verdict:
    script = parse(text.encode(), "s.drill", profile)
    (case,) = script.cases
    return run(script, case, profile)


def frames_of(text: str, way: str) -> list[Packet]:
    verdict = drill(text)
    assert verdict.passed, report(verdict)
    return [Packet.parse(each.frame) for each in verdict.entries if each.frame and each.way == way]


def test_example_of_the_documentation_passes() -> None:
    (text,) = (block for block in BLOCKS if "> CM_REP" in block)

    verdict = drill(text)

    assert verdict.passed, report(verdict)


def test_fields_of_a_request_that_are_not_given_are_right() -> None:
    """IBA 12.6 and annex A11; reference/cm#mad: QP1, its Q_Key, the IP addresses."""
    text = 'qp sq_psn=0x123 mtu=1024\n< CM_REQ retry_count=3 data="ab cd"\n> CM_REJ'

    (packet,) = frames_of(text, "<")

    assert packet.icrc_status() is CrcStatus.GOOD
    deth = packet.extension(DETH)
    assert deth is not None
    assert (packet.bth.dest_qp, deth.src_qp, deth.qkey) == (1, 1, GSI_QKEY)
    assert len(packet.payload) == 256
    common = MAD.unpack(packet.payload)
    assert (common.base_version, common.mgmt_class, common.class_version) == (1, 7, 2)
    assert (common.method, common.attribute_id) == (3, 0x10)
    request = cm.REQ.unpack(packet.payload, MAD.SIZE)
    assert (request.local_qpn, request.starting_psn) == (0x77, 0x123)
    assert request.service_id == 0x0000000001061C06  # TCP port 7174
    assert request.path_packet_payload_mtu == 3
    assert request.retry_count == 3
    addresses = IPCM.unpack(request.private_data)
    assert (addresses.src_ip, addresses.dst_ip) == (0x0A000001, 0x0A000002)
    assert request.private_data[36:40] == bytes.fromhex("abcd0000")


def test_queue_pair_gets_what_the_messages_say() -> None:
    text = (
        "qp state=RESET rq_psn=7\nlisten\n< CM_REQ local_qpn=0x99 starting_psn=0xFFFFFF\n"
        "cm_event CONNECT_REQUEST\naccept\n> CM_REP starting_psn=7\n< CM_RTU\n"
        "cm_event ESTABLISHED\npost_send RDMA_WRITE len=512\n> WRITE_FIRST 0xFFFFFF dest_qp=0x99\n"
        "> WRITE_LAST 0\n< ACKNOWLEDGE psn+1\npoll send"
    )

    verdict = drill(text)

    assert verdict.passed, report(verdict)


PASSING = {
    "a captured ID": ASKED + "accept\n> CM_REP local_comm_id=?x\n< CM_RTU remote_comm_id=$x\n"
    "cm_event ESTABLISHED",
    "a symbol": ASKED + "accept\n> CM_REP remote_comm_id=peer_cm_id local_ca_guid=guid",
    "fields of the headers before": ASKED + "accept\n> CM_REP mad.method=3 deth.src_qp=1 bth.psn=*",
    "one of two messages": "< CM_REQ\n> CM_REP | CM_REJ reason={NO_QP, INVALID_SERVICE_ID}",
    "an optional message": "< CM_REQ\n>? CM_MRA\n> CM_REJ",
    "in any order": "< CM_REQ\n< CM_DREQ\nunordered {\n> CM_DREP\n> CM_REJ\n}",
    "any packet": "< CM_REQ\n> any",
    "a wrong ICRC": "listen\n< CM_REQ icrc=bad\n+1s silence\ncm_event nothing",
    "over IPv6": CONNECTED.replace("state=RESET", "state=RESET version=6"),
    "verbs without a connection": "accept fails=EINVAL\nreject fails=EINVAL\ndelay fails=EINVAL\n"
    "ready fails=EINVAL\ndisconnect fails=EINVAL\nunlisten fails=EINVAL",
    "a queue pair that is in use": "listen\n< CM_REQ\ncm_event CONNECT_REQUEST\n"
    "accept fails=EINVAL\n> CM_REP",
    "private data that is expected": ASKED + 'accept\n> CM_REP data=""',
    "another exchange, in which the device has no ID yet": CONNECTED
    + "< CM_REQ local_comm_id=9 local_qpn=9 service_id=service+1\n> CM_REJ",
    "both directions at once": CONNECTED + "disconnect\n> CM_DREQ\n< CM_DREQ\n> CM_DREP\n"
    "cm_event DISCONNECTED",
}


@each_case("text", PASSING.values(), ids=PASSING)
def test_passes(text: str) -> None:
    verdict = drill(text)

    assert verdict.passed, report(verdict)


FAILING = {
    "another message": (
        "< CM_REQ\n> CM_REP",
        2,
        "CM_REJ local_comm_id=0 remote_comm_id=0xb0b0001 message_rejected=REQ "
        "reason=INVALID_SERVICE_ID, not CM_REP",
    ),
    "another number": (
        ASKED + "accept\n> CM_REP rnr_retry_count=1",
        6,
        "rnr_retry_count 7, not 1",
    ),
    "another reason": (
        "< CM_REQ\n> CM_REJ reason=NO_QP",
        2,
        "reason INVALID_SERVICE_ID (8), not NO_QP",
    ),
    "what goes without saying": (
        "< CM_REQ local_comm_id=5\n> CM_REJ remote_comm_id=peer_cm_id+1",
        2,
        "remote_comm_id 5, not peer_cm_id+1 (6)",
    ),
    "an ID that is not the exchange's": (
        ASKED + "accept\n> CM_REP\n< CM_DREQ remote_comm_id=3\n> CM_DREP",
        8,
        "local_comm_id 3, not ",
    ),
    "a transaction that is not the question's": (
        "< CM_REQ\n< CM_DREQ mad.transaction_id=9\n> CM_REJ\n> CM_DREP mad.transaction_id=8",
        4,
        "transaction_id 9, not 8",
    ),
    "a transaction that is not the last DREQ's": (
        "< CM_DREQ mad.transaction_id=9\n< CM_DREQ mad.transaction_id=10\n> CM_DREP",
        3,
        "transaction_id 9, not 10",
    ),
    "another Q_Key than that of QP1": (
        "impair > rewrite deth.qkey=1\n< CM_REQ\n> CM_REJ",
        3,
        "qkey 1, not 0x80010000",
    ),
    "another sender than QP1": (
        "impair > rewrite deth.src_qp=2\n< CM_REQ\n> CM_REJ",
        3,
        "src_qp 2, not 1",
    ),
    "private data": (ASKED + 'accept\n> CM_REP data="01"', 6, "private data 00"),
}


@each_case(("text", "line", "detail"), FAILING.values(), ids=FAILING)
def test_failure_has_its_reason(text: str, line: int, detail: str) -> None:
    failure = drill(text).failure

    assert failure is not None
    assert failure.line.number == line
    assert any(each.startswith(detail) for each in failure.details), failure.details


def test_unread_event_of_the_manager_is_a_failure() -> None:
    failure = drill("listen\n< CM_REQ\n").failure

    assert failure is not None
    assert failure.got == "the event CONNECT_REQUEST"


def test_an_unexpected_event_is_reported_with_its_reason() -> None:
    text = "connect\n> CM_REQ\n< CM_REJ reason=NO_RESOURCES\ncm_event REJECTED reason=NO_QP"

    failure = drill(text).failure

    assert failure is not None
    assert failure.got == "REJECTED reason=NO_RESOURCES"


def test_target_without_a_manager_to_command_leaves_the_case_out() -> None:
    script = parse(b"listen\n", "s.drill")
    device = Emulated("spec", {})
    scope = Scope("s.drill", {})
    verdict = Verdict("s.drill", "", "", "", "spec")

    carry_out(script, script.cases[0].steps, device, verdict, Application(device, scope), scope)

    assert verdict.skipped == "needs a connection manager that a script can command"


def test_each_queue_pair_has_an_exchange_of_its_own() -> None:
    """IDs, transactions and queue pairs are those of the connection that a line is about."""
    verdict = drill("""
        qp state=RESET
        qp b
        listen
        < CM_REQ
        b < CM_REQ
        cm_event CONNECT_REQUEST
        b cm_event CONNECT_REQUEST
        b accept
        b > CM_REP remote_comm_id=0xb0c0001 transaction_id=0x7700000000010001 local_qpn=b.qpn
        accept
        > CM_REP remote_comm_id=0xb0b0001 transaction_id=0x7700000000000001 local_qpn=qpn
        b < CM_RTU remote_comm_id=b.cm_id
        b cm_event ESTABLISHED
        cm_event nothing
        b state RTS
        state RTR
        b < WRITE_ONLY psn len=8 ack
        b > ACKNOWLEDGE psn
        < CM_REJ
        cm_event REJECTED reason=CONSUMER_DEFINED
        b disconnect
        b > CM_DREQ
        b < CM_DREP
        b cm_event DISCONNECTED
    """)

    assert verdict.passed, report(verdict)


def test_event_of_an_earlier_connection_belongs_to_its_queue_pair() -> None:
    """And brings no other queue pair to RTS."""
    verdict = drill("""
        qp state=RESET
        qp b
        listen
        < CM_REQ
        cm_event CONNECT_REQUEST
        accept
        > CM_REP
        b < CM_REQ
        b cm_event CONNECT_REQUEST
        b accept
        b > CM_REP local_comm_id=?earlier
        b < CM_REQ local_comm_id=0xb0c0009 local_qpn=peer_qpn+5
        b cm_event CONNECT_REQUEST
        b < CM_RTU local_comm_id=0xb0c0001 remote_comm_id=$earlier
        b cm_event ESTABLISHED
        b state RTS
        state RTR
    """)

    assert verdict.passed, report(verdict)


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("b > CM_REP", "nothing"),
        ("> CM_REP remote_comm_id=0xb0c0001", "remote_comm_id 0xb0b0001, not"),
    ],
)
def test_message_of_another_exchange_does_not_fit(line: str, got: str) -> None:
    failure = drill(
        "qp state=RESET\nqp b\nlisten\n< CM_REQ\nb < CM_REQ\ncm_event CONNECT_REQUEST\n"
        f"b cm_event CONNECT_REQUEST\naccept\n{line}"
    ).failure

    assert failure is not None
    assert got in " ".join([failure.got, *failure.details])


def test_event_of_another_exchange_that_no_line_expects_is_named() -> None:
    failure = drill("qp b\nlisten\nb < CM_REQ").failure

    assert failure is not None
    assert failure.got == "the event CONNECT_REQUEST of b"


def test_datagram_services_are_resolved_both_ways() -> None:
    """IBA 12.6.10 and 12.6.11; `cma_accept` answers with the Q_Key 0x01234567."""
    verdict = drill("""
        listen
        < CM_SIDR_REQ len=4 at=0
        cm_event RESOLVE_REQUEST
        accept
        > CM_SIDR_REP request_id=peer_cm_id qpn=qpn qkey=0x01234567 status=0
        qp b
        b resolve
        b > CM_SIDR_REQ request_id=?id
        b < CM_SIDR_REP request_id=$id qpn=0x123
        b cm_event RESOLVED
    """)

    assert verdict.passed, report(verdict)


def test_number_for_a_field_of_bytes_is_its_first_eight() -> None:
    literal = "< CM_REJ ari=0x1122 reject_info_length=8 more=4 len=150 at=1"
    script = parse(f"qp state=RESET\n{literal}".encode(), "s.drill")
    device = Emulated("spec", {"state": QPState.RESET})
    (step,) = script.cases[0].steps[1:]
    assert isinstance(step, Inject)

    _, frame, _ = device.inject(step.literal, Scope("s.drill", device.symbols))

    mad = frame[14 + 20 + 8 + 12 + 8 : -4]  # between Ethernet, IPv4, UDP, BTH, DETH and the ICRC
    assert mad[24 + 12 : 24 + 20] == bytes.fromhex("0000000000001122")
    assert len(mad) == 256 + 2 + 2 + 4  # 148 bytes have room; padding; 4 more


class Slow(Emulated):
    """A device whose manager needs 50 ms to do something, in which the clock is not read."""

    slack = MS

    def __init__(self) -> None:
        super().__init__("spec", {"state": QPState.RESET})
        self._passed = 0

    @property
    def events(self) -> Mapping[str, deque[ManagerEvent]]:
        return self.manager.events

    def do(self, verb: str, given: Mapping[str, int], owner: str = "") -> None:
        self.manager.do(verb, given, owner)
        self._passed = 50 * MS

    def settle(self) -> None:
        self.now, self._passed = self.now + self._passed, 0
        super().settle()


def test_the_time_that_a_manager_needs_is_no_lateness_of_the_device() -> None:
    """As on a link, where it has to find the way to a peer first."""
    script = parse(b"connect\n> CM_REQ", "s.drill")
    device = Slow()
    scope = Scope("s.drill", {})
    verdict = Verdict("s.drill", "", "", "", "spec")
    application = Application(device, scope, lambda: device)

    carry_out(script, script.cases[0].steps, device, verdict, application, scope)

    assert verdict.passed, report(verdict)
    assert [each.time for each in verdict.entries] == [0, 50 * MS]


ERRORS = {
    "< CM_REX": "1:3: CM_REX is not a message of connection management; did you mean CM_REQ?",
    "< CM_REQ 7": "1:10: expected a field of the packet, found 7",
    "< CM_REQ remote_comm_id=3": "1:10: remote_comm_id is not a field of CM_REQ; did you mean ",
    "> CM_REQ private_data=3": "1:10: private_data is not a field of CM_REQ; did you mean ",
    "< CM_REJ reason=NOPE": "1:17: NOPE is not a number; did you mean NO_QP?",
    "> CM_REQ len=4": "1:10: len is not a field of CM_REQ; ",
    '< CM_REQ len=4 data="01"': "1:3: data sets the payload, so len and at cannot",
    "qp b\nb pfc": "2:3: b is a queue pair: expected '<', '>', ",
    "< CM_REQ retry_count=1 retry_count=2": "1:24: retry_count is given twice",
    '< CM_REQ data="' + "00" * 57 + '"': "1:3: CM_REQ has room for 56 bytes of private data",
    "listen port=3": "1:8: port is not an argument of listen; expected backlog, fails, service",
    "cm_event": "1:9: expected an event of the connection manager, found the end of the line",
    "cm_event GONE": "1:10: GONE is not an event of the connection manager; expected ",
    "+1us..2us accept": "1:11: this happens at one time: a range is for what is expected",
}


@each_case("text", ERRORS)
def test_an_error_has_its_position_and_the_expected_token(text: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(text.encode(), "s.drill")

    assert str(caught.value).startswith(f"s.drill:{ERRORS[text]}")


RUN_ERRORS = {
    "< CM_REQ retry_count=8": "1:10: retry_count is 0x8, which does not fit 3 bits",
    "listen backlog=0": "1:8: backlog is 0, not from 1 to 1024",
}


@pytest.mark.parametrize("text", RUN_ERRORS)
def test_a_number_that_does_not_fit_is_reported_with_its_position(text: str) -> None:
    with pytest.raises(ScriptError) as caught:
        drill(text)

    assert str(caught.value).startswith(f"s.drill:{RUN_ERRORS[text]}")
