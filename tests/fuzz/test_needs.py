"""The name of a finding says what its case needs: an attribute, reserved bits, a first PSN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fuzz.test_names_and_rules import named as named_of
from fuzz.test_naming import named
from ibwire.fuzz.case import GOOD, Case, Command, Connection, Mad, Packet, Post, Step, Wait
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.judge.needs import with_needs
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.table import Patch

SAVED_FOR_ALL_QUEUE_PAIRS = Patch(
    "rc/responder.py",
    "        self.resources: list[Resource] = []\n",
    "        self.resources: list[Resource] = (\n"
    "            qp.device.__dict__.setdefault('saved_for_all', [])\n"
    "        )\n",
)
OLD_PSN_IS_A_DUPLICATE = Patch(
    "rc/unreliable.py",
    "            if not packet.form.is_first:\n                return\n",
    "            if not packet.form.is_first or (packet.psn - self.epsn) & MASK >= 1 << 23:\n"
    "                return\n",
)
FENCE_IS_LOST_AT_A_RESTART = Patch(
    "rc/requester.py",
    "if wqe.fence and sends.reads:",
    "if wqe.fence and sends.reads and sends.restart_psn is None:",
)
READ = Post(int(WROpcode.RDMA_READ), 0)
READ_OF_8 = replace(READ, length=8)
SEND = Packet(int(OpCode.RC_SEND_ONLY), length=2047)
WRITE_ONLY = Packet(int(OpCode.RC_RDMA_WRITE_ONLY))
WRITE_FIRST = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256)
WRITE_LAST = Packet(int(OpCode.RC_RDMA_WRITE_LAST), length=64)
CASES: Sequence[tuple[str, Connection, Sequence[Step], str, str]] = (
    (
        "mtu-code-4-as-smaller",
        Connection(mtu=2048, room=4096),
        [SEND],
        "SEND_ONLY: NAK INVALID_REQUEST instead of ACK, as if mtu were 1024",
        "packet-length",
    ),
    (
        "mtu-code-4-as-smaller",
        Connection(mtu=2048),
        [Post(int(WROpcode.RDMA_WRITE), 2047)],
        "a posted RDMA_WRITE: WRITE_FIRST instead of WRITE_ONLY, as if mtu were 1024",
        "segmentation",
    ),
    (  # a smaller one would refuse it, too, but it is the room of its receive that counts
        "receive-room-of-two-sges",
        Connection(mtu=512, sges=4),
        [Packet(int(OpCode.RC_SEND_ONLY), length=512)],
        "SEND_ONLY (into a receive of several SGEs, one of 0 bytes): "
        "NAK INVALID_REQUEST instead of ACK",
        "receive-too-short",
    ),
    (
        "reads-6-one-more",
        Connection(max_rd_atomic=6),
        [READ] * 7,
        "a posted RDMA_READ: READ_REQUEST instead of nothing",
        "read-limit",
    ),
    (  # it would not do so from the beginning
        "slot-of-atomic-never-free",
        Connection(max_rd_atomic=1),
        [
            Post(int(WROpcode.ATOMIC_FETCH_AND_ADD), 8),
            Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), ("una", 0)),
            READ,
        ],
        "a posted RDMA_READ: nothing instead of READ_REQUEST",
        "read-limit",
    ),
    (
        "resv6a-bit-1",
        Connection(),
        [WRITE_FIRST.altered(fields={"reth.dma_len": 320, "bth.resv6a": 2})],
        "WRITE_FIRST with reserved bits: nothing instead of ACK",
        "reserved-bits",
    ),
    (  # the part that shows it may be a later one
        "resv6a-bit-1",
        Connection(),
        [
            WRITE_FIRST.altered(
                fields={"reth.dma_len": 320, "bth.resv6a": 2, "bth.ack_req": 0}, held=True
            ),
            WRITE_LAST,
        ],
        "WRITE_LAST after a packet with reserved bits: NAK PSN_SEQUENCE_ERROR instead of ACK",
        "reserved-bits",
    ),
    (
        "syndrome-0x91-ignored",
        Connection(),
        [
            Post(int(WROpcode.RDMA_WRITE), 0),
            Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0), fields={"aeth.syndrome": 0x91}),
        ],
        "ACKNOWLEDGE (a response with credits) with reserved bits: "
        "no completion SUCCESS of a posted RDMA_WRITE",
        "aeth",
    ),
    (
        "credit-limit-compared-as-number",
        Connection(),
        [
            Packet(
                int(OpCode.RC_ACKNOWLEDGE),
                ("una", -1),
                fields={"aeth.syndrome": 1, "aeth.msn": 0x800003},
            ),
            Post(int(WROpcode.SEND)),
        ],
        "a posted SEND after an ACK that repeats the last PSN: nothing instead of SEND_ONLY",
        "credits-limit",
    ),
    (  # that its R_Key is looked up elsewhere explains nothing
        "datagram-never-solicited",
        Connection(service="XRC_RECV"),
        [Packet(int(OpCode.XRC_SEND_ONLY), fields={"bth.se": 1})],
        "XRC_SEND_ONLY (a solicited event): completion with another solicited",
        "solicited-event",
    ),
    (
        "epsn-wraps-at-bit-13",
        Connection(rq_psn=8191),
        [WRITE_ONLY, WRITE_ONLY],
        "WRITE_ONLY: ACK with another aeth.msn, if the first PSN is 8191",
        "msn",
    ),
)


@pytest.mark.parametrize(("fault", "connection", "steps", "text", "rule"), CASES)
def test_a_name_says_what_the_case_needs(
    fault: str, connection: Connection, steps: Sequence[Step], text: str, rule: str
) -> None:
    name = with_needs(named(fault, *steps, connection=connection), Case(connection, steps))

    assert name.text == text
    assert name.rule.endswith(f"#{rule}")


def test_a_case_that_is_not_minimised_may_not_need_what_it_has() -> None:
    name = named(
        "icrc-ignored", SEND.altered(icrc=GOOD ^ 1, length=0), connection=Connection(rq_psn=5000)
    )

    assert name.text == "SEND_ONLY (a wrong ICRC): ACK instead of nothing"
    assert name.rule.endswith("#check-icrc")


def test_requests_of_another_queue_pair_are_said() -> None:
    case = Case(
        Connection(max_dest_rd_atomic=1, pairs=2),
        (
            Packet(int(OpCode.RC_FETCH_ADD), held=True),
            Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8}, pair=1),
        ),
    )
    alone = named_of(SAVED_FOR_ALL_QUEUE_PAIRS, *case.steps, connection=case.connection)

    name = with_needs(alone, case)

    assert name.text == (
        "READ_REQUEST beside requests of another queue pair: "
        "NAK INVALID_REQUEST instead of READ_RESPONSE_ONLY"
    )


@pytest.mark.parametrize(
    ("connection", "steps", "text"),
    [
        (
            Connection(service="UC", wrong_lkey=1),
            [Packet(int(OpCode.UC_SEND_FIRST), ("expected", -1), length=256)],
            "UC_SEND_FIRST (a SEND into a receive with a wrong L_Key) with an old PSN: ",
        ),
        (
            Connection(service="UC"),
            [
                Packet(int(OpCode.UC_RDMA_WRITE_FIRST), ("expected", -2)),
                Packet(int(OpCode.UC_RDMA_WRITE_ONLY), length=8, at=7),
            ],
            "UC_WRITE_ONLY after a WRITE FIRST that is too short after a message with an old PSN: ",
        ),
    ],
)
def test_an_old_psn_of_uc_is_said(connection: Connection, steps: list[Packet], text: str) -> None:
    plain = Packet(int(OpCode.UC_SEND_ONLY), ("expected", -1))
    of_plain = named_of(OLD_PSN_IS_A_DUPLICATE, plain, connection=Connection(service="UC"))
    alone = named_of(OLD_PSN_IS_A_DUPLICATE, *steps, connection=connection)

    name = with_needs(alone, Case(connection, tuple(steps)))

    assert name.text.startswith(text)
    assert name.rule.endswith("#uc")
    known = with_needs(of_plain, Case(Connection(service="UC"), (plain,)))
    assert set(known.keys) & set(name.keys)


def test_no_bytes_are_said_if_some_show_something_else() -> None:
    case = Case(Connection(), (WRITE_ONLY,))
    name = Name("WRITE_ONLY: ACK with another aeth.msn", "IBA 9.7.7.1; x#msn", "msn")

    def always(other: Case) -> bool:
        assert other == case.with_steps([WRITE_ONLY.altered(length=8)])
        return True

    assert with_needs(name, case, lambda other: False).text == (
        "WRITE_ONLY of no bytes: ACK with another aeth.msn"
    )
    assert with_needs(name, case, always) == name


def test_immediate_data_that_a_case_needs_are_said() -> None:
    last = Packet(int(OpCode.RC_SEND_ONLY_WITH_IMMEDIATE), fields={"immdt.imm_data": 0})
    name = Name("SEND_ONLY_WITH_IMMEDIATE: completion without the flag WITH_IMM", "IBA; x#y", "z")

    assert with_needs(name, Case(steps=(last,))).text == (
        "SEND_ONLY_WITH_IMMEDIATE with immediate data 0x0: completion without the flag WITH_IMM"
    )
    assert with_needs(name, Case(steps=(last.altered(fields={}),))) == name


def test_a_fence_that_a_case_needs_is_said() -> None:
    steps = [
        Post(int(WROpcode.RDMA_READ), 257),
        Post(int(WROpcode.RDMA_READ), fence=True),
        Packet(int(OpCode.RC_RDMA_READ_RESPONSE_LAST), ("una", 1)),
    ]

    name = with_needs(named_of(FENCE_IS_LOST_AT_A_RESTART, *steps), Case(steps=tuple(steps)))

    assert name.text == (
        "READ_RESPONSE_LAST (a gap in the responses of a READ) while a request with a fence waits: "
        "a READ_REQUEST too many"
    )
    assert "#fence" in name.rule


def test_an_odd_message_before_the_last_one_is_said() -> None:
    odd = Mad(message="REP", exchange=3, fields={"rep.local_comm_id": 0})
    case = Case(
        steps=(Command("connect", 3), odd, Command("ready", 3), Mad(message="REP", exchange=3))
    )
    name = Name("REP in ESTABLISHED: RTU instead of silence", "IBA 12.9; x#resending", "z")

    assert with_needs(name, case).text == (
        "REP in ESTABLISHED after a REP with another communication ID: RTU instead of silence"
    )
    elsewhere = case.with_steps([replace(odd, exchange=4), *case.steps[2:]])
    assert with_needs(name, elsewhere) == name


def test_the_q_key_of_a_posted_datagram_is_said() -> None:
    name = Name("a posted SEND: UD_SEND_ONLY with another deth.qkey", "IBA 10.2.5; x#ud", "z")
    case = Case(Connection(service="UD"), (Post(int(WROpcode.SEND), remote=8),))

    assert with_needs(name, case).text == (
        "a posted SEND with a Q_Key whose highest bit is set: UD_SEND_ONLY with another deth.qkey"
    )
    assert with_needs(name, replace(case, connection=Connection())) == name


NO_RECEIVE = Packet(int(OpCode.RC_SEND_ONLY))
READ_FIRST = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), ("una", 0), length=256)
EARLIER: Sequence[tuple[Connection, Sequence[Step], str]] = (
    (Connection(), [READ, Packet(int(OpCode.RC_FLUSH))], "FLUSH after a posted RDMA_READ: "),
    (
        Connection(receives=0),
        [Post(int(WROpcode.RDMA_WRITE), 257), NO_RECEIVE, Wait(67_108_864_001)],
        "a wait after SEND_ONLY (no receive request): ",
    ),
    (
        Connection(),
        [Post(int(WROpcode.RDMA_READ), 257), Wait(1_048_575_000), READ_FIRST, Wait(1_000)],
        "a wait after READ_RESPONSE_FIRST: ",
    ),
    (
        Connection(),
        [Post(int(WROpcode.RDMA_WRITE)), Post(int(WROpcode.LOCAL_INV)), READ_OF_8],
        "a posted RDMA_READ after a posted RDMA_WRITE and a posted LOCAL_INV: ",
    ),
)


@pytest.mark.parametrize(("connection", "steps", "text"), EARLIER)
def test_steps_before_the_last_one_that_a_case_needs_are_said(
    connection: Connection, steps: Sequence[Step], text: str
) -> None:
    case = Case(connection, tuple(steps))
    what, _, what_before = text.partition(" after ")
    name = Name(f"{what}: it is otherwise", "IBA 9.7; x#y", "z")

    assert what_before
    assert with_needs(name, case, lambda other: False).text == f"{text}it is otherwise"
    assert with_needs(name, case, lambda other: True) == name


def test_a_request_that_a_response_needs_is_not_said() -> None:
    case = Case(steps=(Post(int(WROpcode.RDMA_READ), 257), READ_FIRST))
    name = Name("READ_RESPONSE_FIRST: it is otherwise", "IBA 9.7; x#y", "z")

    assert with_needs(name, case, lambda other: False) == name


def test_the_size_of_the_receive_request_is_said_if_it_matters() -> None:
    last = Packet(int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE), length=8)
    case = Case(Connection(room=0), (last,))
    name = Name("WRITE_ONLY_WITH_IMMEDIATE: completion with another byte_len", "IBA; x#y", "z")

    assert with_needs(name, case, lambda other: other.connection.room == 0).text == (
        "WRITE_ONLY_WITH_IMMEDIATE with a receive request of 0 bytes: "
        "completion with another byte_len"
    )
    assert with_needs(name, case, lambda other: True) == name


def test_a_solicited_event_is_said_if_it_matters() -> None:
    name = Name("a posted SEND: SEND_ONLY with another bth.pkey", "IBA; x#y", "z")
    case = Case(steps=(Post(int(WROpcode.SEND), 8, solicited=True),))

    assert with_needs(name, case, lambda other: False).text == (
        "a posted SEND with a solicited event: SEND_ONLY with another bth.pkey"
    )
    assert with_needs(name, case, lambda other: True) == name
