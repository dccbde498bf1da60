"""The responses to each wrong request (reference/transport#responder-checks).

The test is the peer and sends the packet. An expectation has the packets that leave, the state
afterwards, the receive completion and the asynchronous events. No refused request
changes memory. Rows are the numbers of that table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from each_case import each_case
from ibwire.rc.attributes import EventType, QPState
from ibwire.rc.memory import Access
from ibwire.rc.profile import CONNECTX, HNS, RDMAVT, RXE, SPEC, Profile
from ibwire.rc.work import SGE, MWBindInfo, RecvWR, WCStatus
from ibwire.testing import Peer, summaries
from ibwire_layers.opcodes import OpCode

EPSN = 100

INVALID, ACCESS, OPERATIONAL = 0x61, 0x62, 0x63

OTHERS = (SPEC, RDMAVT, CONNECTX, HNS)
"""Everyone but rxe."""

ALL = (*OTHERS, RXE)


def who_know(name: str) -> tuple[Profile, ...]:
    """Linux 6.1 supports no operation of annex A19."""
    return OTHERS if name.startswith(("FLUSH", "ATOMIC WRITE")) else ALL


@dataclass(frozen=True)
class Case:
    """A request and what is due."""

    row: str
    says: Callable[[Peer], Any]
    """Sends the packet, and returns what leaves."""
    nak: int | None = None
    """Syndrome; `None` for silence."""
    psn: int = EPSN
    """Of the answer."""
    profiles: tuple[Profile, ...] = ALL
    receives: tuple[WCStatus, ...] = ()
    """Receive completions, without those that are only flushed."""
    events: tuple[EventType, ...] = ()
    stays: bool = False
    """Whether the queue pair is in RTS afterwards."""
    attr: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.row


def send(payload: bytes = b"abcd", psn: int = EPSN, **said: Any) -> Callable[[Peer], Any]:
    return lambda lone: lone.receive_packet(OpCode.RC_SEND_ONLY, psn, payload, ack_req=1, **said)


def write(payload: bytes = b"abcd", psn: int = EPSN, **said: Any) -> Callable[[Peer], Any]:
    return lambda lone: lone.receive_packet(
        OpCode.RC_RDMA_WRITE_ONLY, psn, payload, ack_req=1, **said
    )


def request(opcode: int, payload: bytes = b"", **said: Any) -> Callable[[Peer], Any]:
    return lambda lone: lone.receive_packet(opcode, EPSN, payload, ack_req=1, **said)


def with_key(access: int, opcode: int, payload: bytes = b"", **said: Any) -> Callable[[Peer], Any]:
    """Names a region that allows only this."""

    def says(lone: Peer) -> Any:
        region = lone.pd.register(64, access)
        return lone.receive_packet(
            opcode, EPSN, payload, ack_req=1, rkey=region.rkey, va=region.iova, **said
        )

    return says


def foreign_domain(opcode: int, payload: bytes = b"", **said: Any) -> Callable[[Peer], Any]:
    """Names a region of another protection domain."""

    def says(lone: Peer) -> Any:
        region = lone.device.alloc_pd().register(64, ALL_REMOTE)
        return lone.receive_packet(
            opcode, EPSN, payload, ack_req=1, rkey=region.rkey, va=region.iova, **said
        )

    return says


def bound_window(lone: Peer) -> Any:
    """Writes through a type 2 window of another queue pair."""
    region = lone.pd.register(64, int(Access.LOCAL_WRITE | Access.MW_BIND))
    window = lone.pd.allocate_window(2)
    info = MWBindInfo(region, region.iova, 64, int(Access.REMOTE_WRITE))
    assert lone.device.keys.bind(window, lone.qp.number + 1, lone.pd, info, 1)
    return lone.receive_packet(
        OpCode.RC_RDMA_WRITE_ONLY, EPSN, b"abcd", rkey=window.rkey, va=region.iova
    )


def free_window(lone: Peer) -> Any:
    window = lone.pd.allocate_window(2)
    return lone.receive_packet(OpCode.RC_RDMA_WRITE_ONLY, EPSN, b"abcd", rkey=window.rkey)


def after(first: Callable[[Peer], Any], second: Callable[[Peer], Any]) -> Callable[[Peer], Any]:
    """Two packets; what leaves because of the second."""

    def says(lone: Peer) -> Any:
        first(lone)
        lone.poll_events()
        return second(lone)

    return says


def send_first(lone: Peer) -> Any:
    return lone.receive_packet(OpCode.RC_SEND_FIRST, EPSN, bytes(256))


def write_first(lone: Peer) -> Any:
    return lone.receive_packet(OpCode.RC_RDMA_WRITE_FIRST, EPSN, bytes(256), dma_len=400)


def then(opcode: int, payload: bytes = b"", **said: Any) -> Callable[[Peer], Any]:
    return lambda lone: lone.receive_packet(opcode, EPSN + 1, payload, ack_req=1, **said)


def faulty_receive(key: int = 0x77, beyond: int = 0) -> Callable[[Peer], Any]:
    """A SEND into a receive request whose own memory is invalid."""

    def says(lone: Peer) -> Any:
        while lone.qp.receives.waiting:
            lone.qp.receives.waiting.popleft()
        sge = SGE(lone.mr.iova + beyond, 256, key or lone.mr.lkey)
        lone.qp.post_recv(RecvWR([sge], 9))
        return send()(lone)

    return says


ALL_REMOTE = int(
    Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
)

REQ, ACC = (EventType.QP_REQ_ERR,), (EventType.QP_ACCESS_ERR,)

ONLY_LOCAL = int(Access.LOCAL_WRITE)

R = OpCode

SILENT = [
    Case("0 no queue pair with that number", send(dest_qp=0x1234), stays=True),
    Case("0 from another address", send(**{"ip.src": 0x0A000009}), stays=True),
    Case("0 to another address", send(**{"ip.dst": 0x0A000009}), stays=True),
    Case("0 transport version 1", send(tver=1), stays=True),
    Case("0 P_Key of another partition", send(pkey=0x8001), stays=True),
    Case("0 P_Key 0", send(pkey=0), stays=True),
    Case("0 shorter than its headers", lambda lone: _cut(lone), stays=True),
    Case("0 pad count beyond the packet", send(b"", pad_count=3), stays=True),
    Case("1 wrong ICRC", lambda lone: _damaged(lone), stays=True),
    Case("4' UC opcode", request(R.UC_SEND_ONLY, b"abcd"), stays=True),
    Case("4' UD opcode", request(R.UD_SEND_ONLY, b"abcd"), stays=True),
    Case("4' RD opcode", request(R.RD_SEND_ONLY, b"abcd"), stays=True),
    Case("4' XRC opcode", request(R.XRC_SEND_ONLY, b"abcd"), stays=True),
    Case("4' CNP", request(R.CNP), stays=True),
    Case("4' manufacturer's opcode", request(0xE4, b"abcd"), stays=True),
    Case("4 reserved opcode", request(0x1F, b"abcd"), stays=True, profiles=(RXE,)),
    Case("8 payload of 5 bytes, pad count 0", send(b"abcde", padding=b""), None, stays=True,
         profiles=OTHERS),
]  # fmt: skip

INVALID_REQUESTS = [
    *(
        Case(f"3 {name} without a first", request(opcode, payload), INVALID, events=REQ)
        for name, opcode, payload in [
            ("SEND MIDDLE", R.RC_SEND_MIDDLE, bytes(256)),
            ("SEND LAST", R.RC_SEND_LAST, b"abcd"),
            ("SEND LAST with immediate", R.RC_SEND_LAST_WITH_IMMEDIATE, b"abcd"),
            ("SEND LAST with invalidate", R.RC_SEND_LAST_WITH_INVALIDATE, b"abcd"),
            ("WRITE MIDDLE", R.RC_RDMA_WRITE_MIDDLE, bytes(256)),
            ("WRITE LAST", R.RC_RDMA_WRITE_LAST, b"abcd"),
            ("WRITE LAST with immediate", R.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, b"abcd"),
        ]
    ),
    *(
        Case(
            f"3 {name} after WRITE FIRST",
            after(write_first, then(opcode, payload)),
            INVALID,
            EPSN + 1,
            events=REQ,
            profiles=who_know(name),
        )
        for name, opcode, payload in [
            ("SEND LAST", R.RC_SEND_LAST, b"abcd"),
            ("WRITE ONLY", R.RC_RDMA_WRITE_ONLY, b"abcd"),
            ("WRITE FIRST", R.RC_RDMA_WRITE_FIRST, bytes(256)),
            ("SEND ONLY", R.RC_SEND_ONLY, b"abcd"),
            ("READ", R.RC_RDMA_READ_REQUEST, b""),
            ("FETCH ADD", R.RC_FETCH_ADD, b""),
            ("COMPARE SWAP", R.RC_COMPARE_SWAP, b""),
            ("FLUSH", R.RC_FLUSH, b""),
            ("ATOMIC WRITE", R.RC_ATOMIC_WRITE, bytes(8)),
        ]
    ),
    Case("4 reserved opcode 0x15", request(0x15), INVALID, events=REQ, profiles=OTHERS),
    Case("4 reserved opcode 0x1f", request(0x1F), INVALID, events=REQ, profiles=OTHERS),
    *(
        Case(
            f"5 {name} that the queue pair does not allow",
            request(opcode, payload, **said),
            INVALID,
            events=REQ,
            attr={"qp_access_flags": int(Access.LOCAL_WRITE)},
            profiles=who_know(name),
        )
        for name, opcode, payload, said in [
            ("WRITE", R.RC_RDMA_WRITE_ONLY, b"abcd", {}),
            ("WRITE FIRST", R.RC_RDMA_WRITE_FIRST, bytes(256), {"dma_len": 300}),
            ("READ", R.RC_RDMA_READ_REQUEST, b"", {"dma_len": 4}),
            ("READ of nothing", R.RC_RDMA_READ_REQUEST, b"", {"dma_len": 0}),
            ("FETCH ADD", R.RC_FETCH_ADD, b"", {}),
            ("COMPARE SWAP", R.RC_COMPARE_SWAP, b"", {}),
            ("FLUSH", R.RC_FLUSH, b"", {"plt": 1, "dma_len": 8}),
            ("ATOMIC WRITE", R.RC_ATOMIC_WRITE, bytes(8), {}),
        ]
    ),
    *(
        Case(
            f"6 {name} with max_dest_rd_atomic 0",
            request(opcode, **said),
            INVALID,
            events=REQ,
            attr={"max_dest_rd_atomic": 0},
        )
        for name, opcode, said in [
            ("READ", R.RC_RDMA_READ_REQUEST, {"dma_len": 4}),
            ("FETCH ADD", R.RC_FETCH_ADD, {}),
            ("COMPARE SWAP", R.RC_COMPARE_SWAP, {}),
        ]
    ),
    Case("8 READ of 2^31 + 1 bytes", request(R.RC_RDMA_READ_REQUEST, dma_len=(1 << 31) + 1),
         INVALID, events=REQ, profiles=OTHERS),
    Case("8 WRITE of 2^31 + 1 bytes",
         request(R.RC_RDMA_WRITE_FIRST, bytes(256), dma_len=(1 << 31) + 1), INVALID, events=REQ,
         profiles=OTHERS),
    Case("8 WRITE FIRST below the path MTU, bad R_Key",
         request(R.RC_RDMA_WRITE_FIRST, bytes(252), dma_len=400, rkey=1),
         INVALID, events=REQ, profiles=OTHERS),
    Case("8 WRITE ONLY above the path MTU",
         request(R.RC_RDMA_WRITE_ONLY, bytes(260)), INVALID, events=REQ),
    Case("11 WRITE ONLY shorter than DMALen", write(dma_len=8), INVALID, events=REQ),
    Case("11 WRITE ONLY longer than DMALen", write(dma_len=3), INVALID, events=REQ),
    Case("11 WRITE ONLY without payload and DMALen 4", write(b"", dma_len=4), INVALID, events=REQ),
    Case("11 WRITE FIRST that is the whole DMALen",
         request(R.RC_RDMA_WRITE_FIRST, bytes(256), dma_len=256), INVALID, events=REQ,
         profiles=OTHERS),
    Case("11 WRITE LAST shorter than the rest",
         after(write_first, then(R.RC_RDMA_WRITE_LAST, bytes(140))), INVALID, EPSN + 1, events=REQ),
    Case("11 WRITE LAST longer than the rest",
         after(write_first, then(R.RC_RDMA_WRITE_LAST, bytes(148))), INVALID, EPSN + 1, events=REQ),
    Case("11 WRITE MIDDLE in the place of LAST",
         after(write_first, then(R.RC_RDMA_WRITE_MIDDLE, bytes(256))),
         INVALID, EPSN + 1, events=REQ),
    Case("11 WRITE LAST with wrong padding",
         request(R.RC_RDMA_WRITE_ONLY, b"abcde", padding=b"", dma_len=5),
         INVALID, events=REQ, profiles=(RXE,)),
    Case("12 FETCH ADD at an odd address", lambda lone: _atomic_at(lone, 4), INVALID, events=REQ),
    Case("12 ATOMIC WRITE at an odd address",
         lambda lone: lone.receive_packet(R.RC_ATOMIC_WRITE, EPSN, bytes(8), va=lone.mr.iova + 4),
         INVALID, events=REQ, profiles=OTHERS),
    Case("12 alignment before R_Key", lambda lone: _atomic_at(lone, 4, rkey=1), INVALID,
         events=REQ, profiles=OTHERS),
    Case("8 ATOMIC WRITE of 4 bytes", request(R.RC_ATOMIC_WRITE, bytes(4), dma_len=4), INVALID,
         events=REQ, profiles=OTHERS),
    Case("8 READ with payload", request(R.RC_RDMA_READ_REQUEST, b"abcd", dma_len=4), INVALID,
         events=REQ, profiles=OTHERS),
]  # fmt: skip

ACCESS_ERRORS = [
    *(
        Case(f"10 {name}, unknown R_Key", request(opcode, payload, rkey=1, **said), ACCESS,
             events=ACC, profiles=who_know(name))
        for name, opcode, payload, said in [
            ("WRITE", R.RC_RDMA_WRITE_ONLY, b"abcd", {}),
            ("WRITE FIRST", R.RC_RDMA_WRITE_FIRST, bytes(256), {"dma_len": 300}),
            ("READ", R.RC_RDMA_READ_REQUEST, b"", {"dma_len": 4}),
            ("FETCH ADD", R.RC_FETCH_ADD, b"", {}),
            ("COMPARE SWAP", R.RC_COMPARE_SWAP, b"", {}),
            ("ATOMIC WRITE", R.RC_ATOMIC_WRITE, bytes(8), {}),
            ("FLUSH", R.RC_FLUSH, b"", {"plt": 1, "dma_len": 8}),
            ("FLUSH of nothing", R.RC_FLUSH, b"", {"plt": 1, "dma_len": 0}),
        ]
    ),
    *(
        Case(f"10 {name} that the region does not allow",
             with_key(ONLY_LOCAL, opcode, payload, **said), ACCESS, events=ACC,
             profiles=who_know(name))
        for name, opcode, payload, said in [
            ("WRITE", R.RC_RDMA_WRITE_ONLY, b"abcd", {}),
            ("READ", R.RC_RDMA_READ_REQUEST, b"", {"dma_len": 4}),
            ("FETCH ADD", R.RC_FETCH_ADD, b"", {}),
            ("ATOMIC WRITE", R.RC_ATOMIC_WRITE, bytes(8), {}),
            ("FLUSH", R.RC_FLUSH, b"", {"plt": 1, "dma_len": 8}),
        ]
    ),
    *(
        Case(f"10 {name}, region of another domain",
             foreign_domain(opcode, payload, **said), ACCESS, events=ACC)
        for name, opcode, payload, said in [
            ("WRITE", R.RC_RDMA_WRITE_ONLY, b"abcd", {}),
            ("READ", R.RC_RDMA_READ_REQUEST, b"", {"dma_len": 4}),
            ("FETCH ADD", R.RC_FETCH_ADD, b"", {}),
        ]
    ),
    Case("10 WRITE one byte beyond the region",
         lambda lone: lone.receive_packet(
             R.RC_RDMA_WRITE_ONLY, EPSN, b"abcd", va=lone.mr.iova + 4093),
         ACCESS, events=ACC),
    Case("10 WRITE one byte before the region",
         lambda lone: lone.receive_packet(R.RC_RDMA_WRITE_ONLY, EPSN, b"abcd", va=lone.mr.iova - 1),
         ACCESS, events=ACC),
    Case("10 WRITE whose end wraps around 2^64",
         request(R.RC_RDMA_WRITE_ONLY, b"abcd", va=(1 << 64) - 2), ACCESS, events=ACC),
    Case("10 READ one byte beyond the region",
         lambda lone: lone.receive_packet(
             R.RC_RDMA_READ_REQUEST, EPSN, va=lone.mr.iova + 4093, dma_len=4),
         ACCESS, events=ACC),
    Case("10 WRITE FIRST whose last packet is beyond the region",
         lambda lone: lone.receive_packet(
             R.RC_RDMA_WRITE_FIRST, EPSN, b"x" * 256, va=lone.mr.iova + 3584, dma_len=513),
         ACCESS, events=ACC),
    Case("10 type 2 window of another queue pair", bound_window, ACCESS, events=ACC),
    Case("10 window that is not bound", free_window, ACCESS, events=ACC),
    Case("12 R_Key before alignment", lambda lone: _atomic_at(lone, 4, rkey=1), ACCESS,
         events=ACC, profiles=(RXE,)),
    Case("8 WRITE FIRST below the path MTU, bad R_Key, unchecked length",
         request(R.RC_RDMA_WRITE_FIRST, bytes(252), dma_len=400, rkey=1), ACCESS,
         events=ACC, profiles=(RXE,)),
    Case("8 READ of 2^31 + 1 bytes, unchecked length",
         request(R.RC_RDMA_READ_REQUEST, dma_len=(1 << 31) + 1), ACCESS,
         events=ACC, profiles=(RXE,)),
    Case("8 WRITE of 2^31 + 1 bytes, unchecked length",
         request(R.RC_RDMA_WRITE_FIRST, bytes(256), dma_len=(1 << 31) + 1), ACCESS,
         events=ACC, profiles=(RXE,)),
]  # fmt: skip

SILENT_ABOUT_REFUSALS = (RDMAVT, RXE)
"""They raise no event for a request that they refuse (rdmavt `rvt_rc_error`, rxe_resp.c)."""

LEN, OP = WCStatus.LOC_LEN_ERR, WCStatus.LOC_QP_OP_ERR
NOT_RDMAVT = (SPEC, CONNECTX, HNS)

WITH_A_RECEIVE = [
    *(
        Case(f"3 {name} after SEND FIRST [{status.name}]",
             after(send_first, then(opcode, payload)), INVALID, EPSN + 1,
             receives=(status,), profiles=profiles)
        for name, opcode, payload in [
            ("WRITE ONLY", R.RC_RDMA_WRITE_ONLY, b"abcd"),
            ("WRITE LAST", R.RC_RDMA_WRITE_LAST, b"abcd"),
            ("SEND ONLY", R.RC_SEND_ONLY, b"abcd"),
            ("READ", R.RC_RDMA_READ_REQUEST, b""),
        ]
        for status, profiles in [
            (LEN, NOT_RDMAVT), (OP, (RDMAVT,)), (WCStatus.REM_INV_REQ_ERR, (RXE,)),
        ]
    ),
    *(
        Case(f"8 {name} [{status.name}]", request(opcode, payload), INVALID,
             receives=(status,), profiles=profiles)
        for name, opcode, payload in [
            ("SEND ONLY above the path MTU", R.RC_SEND_ONLY, bytes(260)),
            ("SEND FIRST below the path MTU", R.RC_SEND_FIRST, bytes(252)),
        ]
        for status, profiles in [(LEN, NOT_RDMAVT), (OP, (RDMAVT,))]
    ),
    *(
        Case(f"8 {name} [{status.name}]", after(send_first, then(R.RC_SEND_LAST, payload)),
             INVALID, EPSN + 1, receives=(status,), profiles=profiles)
        for name, payload in [("SEND LAST of nothing", b""), ("SEND LAST above", bytes(260))]
        for status, profiles in [(LEN, NOT_RDMAVT), (OP, (RDMAVT,))]
    ),
    Case("9 SEND longer than the buffer", lambda lone: _too_long(lone), INVALID,
         receives=(LEN,), profiles=NOT_RDMAVT),
    Case("9 SEND longer than the buffer (rdmavt)", lambda lone: _too_long(lone), INVALID,
         receives=(OP,), profiles=(RDMAVT,)),
    Case("9 SEND longer than the buffer (rxe)", lambda lone: _too_long(lone), OPERATIONAL,
         receives=(OP,), profiles=(RXE,)),
    *(
        Case(f"13 {name} [{status.name}]", says, OPERATIONAL, receives=(status,),
             profiles=profiles)
        for name, says in [
            ("receive buffer with an unknown L_Key", faulty_receive()),
            ("receive buffer beyond its region", faulty_receive(key=0, beyond=4094)),
        ]
        for status, profiles in [
            (WCStatus.LOC_PROT_ERR, OTHERS), (OP, (RXE,)),
        ]
    ),
    *(
        Case(f"14 invalidate of {name}", says, answer, receives=(WCStatus.REM_INV_REQ_ERR,),
             profiles=profiles)
        for name, says in [
            ("an unknown key", lambda lone: lone.receive_packet(
                R.RC_SEND_ONLY_WITH_INVALIDATE, EPSN, b"abcd", rkey=1, ack_req=1)),
            ("a region that was registered", lambda lone: lone.receive_packet(
                R.RC_SEND_ONLY_WITH_INVALIDATE, EPSN, b"abcd", rkey=lone.mr.rkey, ack_req=1)),
        ]
        for answer, profiles in [(None, OTHERS), (0x1F, (RXE,))]  # rxe acknowledges the packet
    ),
]  # fmt: skip


def _cut(lone: Peer) -> Any:
    packet = lone.packet(OpCode.RC_RDMA_WRITE_ONLY, EPSN)
    bare = lone.packet(OpCode.RC_SEND_ONLY, EPSN, bytes(8))
    return lone.receive(replace(bare, bth=packet.bth).build())


def _damaged(lone: Peer) -> Any:
    packet = lone.packet(OpCode.RC_SEND_ONLY, EPSN, b"abcd", ack_req=1)
    return lone.receive(replace(packet, icrc=bytes(4)).build())


def _atomic_at(lone: Peer, offset: int, **said: Any) -> Any:
    return lone.receive_packet(OpCode.RC_FETCH_ADD, EPSN, va=lone.mr.iova + offset, swap=1, **said)


def _too_long(lone: Peer) -> Any:
    lone.qp.receives.waiting.clear()
    lone.post_recv(100, wr_id=9)
    return lone.receive_packet(OpCode.RC_SEND_ONLY, EPSN, bytes(104), ack_req=1)


def pairs(cases: list[Case]) -> list[Any]:
    """Every case with each of its profiles."""
    return [
        pytest.param(case, profile, id=f"{case.row}-{profile.name}")
        for case in cases
        for profile in case.profiles
    ]


@each_case(
    ("case", "profile"), pairs([*SILENT, *INVALID_REQUESTS, *ACCESS_ERRORS, *WITH_A_RECEIVE])
)
def test_answer_to_a_wrong_request(case: Case, profile: Profile) -> None:
    lone = Peer(mtu=256, size=4096, profile=profile, peer_psn=EPSN, **case.attr)
    if case in WITH_A_RECEIVE or case in SILENT:
        lone.post_recv(256, wr_id=1)
    before = lone.memory

    heard = case.says(lone)

    said = [] if case.nak is None else [f"ACKNOWLEDGE {case.psn} {case.nak:#04x}"]
    assert summaries(heard) == said
    assert lone.qp.state is (QPState.RTS if case.stays else QPState.ERR)
    received = [wc.status for wc in lone.poll_recv_cq() if wc.status is not WCStatus.WR_FLUSH_ERR]
    assert tuple(received) == case.receives
    assert tuple(lone.poll_events()) == (() if profile in SILENT_ABOUT_REFUSALS else case.events)
    if case not in WITH_A_RECEIVE:
        assert lone.memory == before
