"""How implementations differ where the specification leaves room or is not followed.

Every difference is one field; `SPEC` is the default of each. "rxe" is Linux Soft-RoCE
of kernel 6.1 as captured, rdmavt the Linux driver core of qib and hfi1 as read,
"connectx" what is known of NVIDIA's adapters; where nothing is known a profile keeps
the value of the specification.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ibwire.base.units import MS, Time
from ibwire.rc.work import WCFlags, WCStatus
from ibwire_layers.syndrome import RNR_TIMER_US, NakCode


class SourcePort(Enum):
    """How the UDP source port of a RoCEv2 flow is chosen."""

    FLOW_LABEL = "from the flow label, or from both QP numbers"
    """rdma-core `ibv_flow_label_to_udp_sport`, Linux `rdma_calc_flow_label`."""
    QPN = "the sender's QP number"
    """HiSilicon hns, seen in a capture."""


class DuplicateAck(Enum):
    """Which duplicate SEND or WRITE packets are acknowledged again."""

    EVERY = "every one"
    REQUESTED = "those that ask for it"


class DuplicateAckPSN(Enum):
    """What that acknowledgement says."""

    NEWEST = "the PSN before the expected one"
    EXECUTED = "the newest executed SEND, WRITE or atomic; READs do not count"


class ReadReplay(Enum):
    """Which duplicate READ requests are answered again."""

    INSIDE = "any that lies inside the original"
    NARROWING = "any inside what the last replay left"
    SAME_END = "those that end where the original ends"


class ExcessReads(Enum):
    """What a READ or atomic beyond `max_dest_rd_atomic` gets."""

    NAK = "NAK invalid request"
    RECYCLE = "takes the oldest slot, unless there are none"


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of one implementation."""

    name: str = "spec"

    # What packets look like.
    mig_req: int = 1
    """BTH.MigReq without an alternate path (IBA 17.2.8; rxe sends 0 in every capture)."""
    request_reserved: int = 0
    """BTH byte 4 bits 5:0 of requests (hns sends 0x10: reference/habits#hns-headers)."""
    source_port: SourcePort = SourcePort.FLOW_LABEL
    counts_identification: bool = False
    """Whether the IPv4 identification goes up with each packet (rxe: rc-pingpong)."""
    route_hop_limit: int | None = None
    """Hop limit that replaces the one asked for (rxe: 64, the route's)."""
    fixed_pkeys: tuple[int, ...] = ()
    """P_Keys accepted whatever the table says, the first of them sent (rxe: probe-odd-frames)."""
    asks_on_qp1: bool = False
    """Whether MADs on QP1 ask for an ACK, which no datagram gets (rxe: cm-rping; its
    other datagrams and native InfiniBand do not: docs/reference/habits.md#rxe-cm)."""

    # Both halves.
    refuses_annex_a19: bool = False
    """Whether FLUSH and ATOMIC WRITE, which a device need not have, are NAKed as reserved opcodes
    are. Who asks it for one gets LOC_QP_OP_ERR."""
    discards_annex_a19: bool = False
    """Whether they are discarded instead (Linux 6.1: rxe_opcode.c, `rxe_rcv`; rxe_req.c
    `next_opcode`). Known for an idle requester only: Linux takes them for responses."""
    rounds_read_depth: bool = False
    """Whether `max_rd_atomic` and `max_dest_rd_atomic` are rounded up to powers of two (rxe
    `rxe_qp_from_attr`)."""

    # The requester.
    ack_request_interval: int = 64
    """Packets in a row inside a message until one asks for an ACK (rxe 66, rdmavt 16: captures
    and qib_rc.c; mlx5 programs 256; the specification leaves it open)."""
    limited_message: bool = False
    """Whether the one message beyond the credits is sent whole (rdmavt, hns) instead of
    its first packet alone (IBA 9.7.7.2.5)."""
    max_unacked_psns: int = (1 << 23) - 1
    """A packet leaves while its PSN is at most this far ahead of the oldest unacknowledged
    one (IBA 9.7.1; rxe 128: docs/reference/habits.md#rxe-window)."""
    restarts_on_read_gap: bool = True
    """Whether a gap in the responses of a READ restarts it at once (rxe: drop-read-response)."""
    waits_for_recovery: bool = True
    """Whether, after going back, only the answer to something newer shows once more that a
    READ or atomic was lost (ours: the acknowledgement of a duplicate may show it falsely;
    rxe and qib restart again after any progress)."""
    timer_granularity: Time = 1
    """ACK timeouts are cut to multiples of it (rxe: jiffies of 4 ms)."""
    keeps_pending_timer: bool = False
    """Whether the ACK timer runs on when all is acknowledged, and expires during a later,
    healthy request (rxe: rc-pingpong, send-lat)."""
    timeout_sends_one: bool = False
    """Whether a timeout sends one packet and waits for its ACK (qib: RVT_S_SEND_ONE)."""
    retry_7_is_infinite: bool = False
    """Whether a retry count of 7 means for ever (rxe_completer)."""
    rnr_timer_us: tuple[int, ...] = RNR_TIMER_US
    """Microseconds by RNR timer code (rxe has 61.41 ms for code 25: `rnrnak_jiffies`)."""
    rnr_timer_percent: int = 100
    """Wait in percent of the table (Oracle PSIF: 500 times too fast)."""
    rnr_granularity: Time = 1
    """RNR waits are rounded up to multiples of it, and one more (rxe: rnr-late-recv)."""
    sends_during_rnr_wait: bool = False
    """Whether an RNR wait only delays what is sent again: queued requests leave meanwhile (rxe:
    rnr-multi-packet), and it goes on though what was refused is acknowledged (nothing stops
    `rnr_nak_timer`)."""
    counts_every_rnr_nak: bool = False
    """Whether an RNR NAK that comes during the wait counts as a retry and begins the wait anew
    (rxe `rxe_completer`)."""
    nak_is_progress: bool = True
    """Whether what a NAK acknowledges of its own message is progress. Otherwise it gives no
    retries back, and once the requester has gone back it waits for an ACK or its timer before it
    does so again; an RNR NAK does not acknowledge it at all (rxe `check_ack`, `started_retry`)."""
    bad_response: WCStatus = WCStatus.BAD_RESP_ERR
    """Status for a READ response to what is no READ."""
    misplaced_response: WCStatus = WCStatus.BAD_RESP_ERR
    """Status for any other response that does not fit: out of order, of another kind, with a
    syndrome that has no place there (rxe `check_ack` leaves the status at success)."""
    bad_response_length: WCStatus = WCStatus.BAD_RESP_ERR
    """Status for a READ response of the wrong length."""
    checks_response_length: bool = True
    """Whether it is looked at. Otherwise what fits is stored, and the READ goes on waiting (rxe
    `do_read`). When it is asked for again it takes a PSN for each packet that is missing,
    though these are not those that it had (`req_retry`); when its PSNs are over, whatever comes
    for the last of them completes it (`check_psn`)."""
    acks_answer: bool = False
    """Whether an ACK of their PSN completes a READ or an atomic (rxe `check_ack`). `RXE` leaves
    it out: where an answer is lost, the ACK of a duplicate then stands for it and data are
    missing, so nobody could rely on what this emulator delivers."""
    acks_unsent: bool = False
    """Whether a response to a PSN that was never sent acknowledges all that was (rxe
    `check_psn`, which counts 2^23 PSNs from the end of the oldest request)."""
    reserved_syndrome_fails: bool = False
    """Whether a reserved AETH syndrome ends the connection (rxe_completer) or is ignored."""
    reserved_bit_fails: bool = False
    """Whether bit 7 of a syndrome, which is reserved, ends the connection, or says nothing (rxe
    `check_ack`: `AETH_TYPE_MASK` has three bits)."""

    # The responder.
    coalesces_acks: bool = True
    """Whether an ACK that has not left is replaced by a newer one."""
    live_credits: bool = True
    """Whether AETHs carry credits, on queue pairs without SRQ (rxe: never)."""
    duplicate_ack: DuplicateAck = DuplicateAck.EVERY
    duplicate_ack_psn: DuplicateAckPSN = DuplicateAckPSN.NEWEST
    read_replay: ReadReplay = ReadReplay.INSIDE
    replays_mid_read: bool = False
    """Whether a READ replayed from a later PSN begins with MIDDLE or LAST instead of FIRST
    or ONLY (rxe: drop-read-response.b)."""
    excess_reads: ExcessReads = ExcessReads.NAK
    replays_by_psn: bool = False
    """Whether a duplicate atomic is answered with whatever is kept for its PSN: the result of
    another atomic, or the address of a READ (rxe `find_resource`, `struct resp_res`)."""
    rechecks_empty_reads: bool = False
    """Whether a duplicate READ of nothing needs a key that is known, which the first did not
    (rxe `rxe_recheck_mr`)."""
    answers_in_turn: bool = False
    """Whether each request is answered before the next is looked at, as rxe_resp.c does: an
    answer then has the MSN of its request, and a NAK goes out though the missing packet has
    come meanwhile. Otherwise the MSN is that of the moment (qib_rc.c, loss-ack-only.a)."""
    naks_after_rnr: bool = False
    """Whether packets after an RNR NAK draw one sequence NAK (rxe: rnr-multi-packet)."""
    duplicate_clears_nak: bool = False
    """Whether a duplicate that is answered lets the gap be NAKed again (qib_rc_rcv_error)."""
    checks_payload_size: bool = True
    """Whether SEND packets are checked against the path MTU (rxe 6.1 does not:
    probe-odd-frames)."""
    discards_unpadded: bool = True
    """Whether a payload that is no multiple of 4 without padding is discarded (rxe takes it:
    probe-odd-frames)."""
    checks_request_payload: bool = True
    """Whether a payload in a READ or atomic request is refused (rxe passes over it)."""
    checks_write_position: bool = True
    """Whether the size of a WRITE packet is checked against its position in the message.
    Otherwise only against what is left of the message (rxe `check_rkey`)."""
    checks_message_length: bool = True
    """Whether more than 2^31 bytes are refused as such (C9-94; rxe does not look)."""
    naks_reserved_opcode: bool = True
    """Whether a reserved opcode is NAKed or dropped (rxe: probe-odd-frames)."""
    bounds_windows: bool = True
    """Whether a memory window opens no more than was bound. Otherwise the whole region (rxe
    `check_rkey` compares with the region)."""
    acknowledges_bad_invalidate: bool = False
    """Whether a SEND that invalidates what cannot be is acknowledged before the connection
    ends (rxe `execute`, `acknowledge`)."""
    takes_receive_early: bool = False
    """Whether a WRITE with immediate data that is refused ends the receive request that it
    would have used (rxe `check_resource`)."""
    oversized_send: NakCode = NakCode.INVALID_REQUEST
    """NAK for a SEND longer than the receive buffer (rxe: nak-send-too-big)."""
    oversized_send_status: WCStatus = WCStatus.LOC_LEN_ERR
    """Receive completion of a SEND longer than the receive buffer."""
    atomic_alignment_first: bool = True
    """Whether alignment is checked before the R_Key (qib yes, rxe no)."""
    invalid_request_status: WCStatus = WCStatus.LOC_LEN_ERR
    """Receive completion of a message that drew NAK invalid request."""
    receive_fault_status: WCStatus = WCStatus.LOC_PROT_ERR
    """Receive completion when the receive buffer itself is at fault."""
    marks_grh: bool = False
    """Whether receive completions of connections have the flag GRH, as those of datagrams
    always have where there is one (rxe: `do_complete`)."""
    invalidate_flag: WCFlags = WCFlags.WITH_INV
    """Flag of a receive completion with an invalidated key (rxe hands the kernel's number on,
    which is that of IP_CSUM_OK in verbs.h)."""
    reports_refusals: bool = True
    """Whether the application hears QP_REQ_ERR and QP_ACCESS_ERR, for a refused request that
    had no receive request (IBA 11.6.3.2; rxe and rdmavt `rvt_rc_error` raise neither)."""
    reports_first_request: bool = True
    """Whether it hears COMM_EST (IBA 11.6.3.1; rxe does not raise it)."""

    # The library in front of the device.
    reset_discards_completions: bool = True
    """Whether the completions of a queue pair that is reset or destroyed leave their queues
    (rdma-core `mlx5_cq_clean`, `mlx4_cq_clean`, `hns_roce_v2_cq_clean`); `providers/rxe`
    leaves them, the specification leaves it open."""
    flushes_late_receives: bool = True
    """Whether a receive request that is posted in error ends at once (IBA 10.3.1.7;
    `providers/rxe` puts it into the queue without telling the kernel)."""


SPEC = Profile()
"""The InfiniBand specification; where it leaves a choice, a frequent one."""

RXE = Profile(
    name="rxe",
    mig_req=0,
    counts_identification=True,
    route_hop_limit=64,
    fixed_pkeys=(0xFFFF, 0x7FFF),
    asks_on_qp1=True,
    discards_annex_a19=True,
    rounds_read_depth=True,
    ack_request_interval=66,
    max_unacked_psns=128,
    restarts_on_read_gap=False,
    waits_for_recovery=False,
    timer_granularity=4 * MS,
    keeps_pending_timer=True,
    retry_7_is_infinite=True,
    rnr_timer_us=(*RNR_TIMER_US[:25], 61410, *RNR_TIMER_US[26:]),
    rnr_granularity=4 * MS,
    sends_during_rnr_wait=True,
    counts_every_rnr_nak=True,
    nak_is_progress=False,
    bad_response=WCStatus.FATAL_ERR,
    misplaced_response=WCStatus.SUCCESS,
    checks_response_length=False,
    acks_unsent=True,
    reserved_syndrome_fails=True,
    reserved_bit_fails=True,
    coalesces_acks=False,
    live_credits=False,
    duplicate_ack_psn=DuplicateAckPSN.EXECUTED,
    read_replay=ReadReplay.NARROWING,
    replays_mid_read=True,
    excess_reads=ExcessReads.RECYCLE,
    replays_by_psn=True,
    rechecks_empty_reads=True,
    answers_in_turn=True,
    naks_after_rnr=True,
    checks_payload_size=False,
    discards_unpadded=False,
    checks_request_payload=False,
    checks_write_position=False,
    checks_message_length=False,
    naks_reserved_opcode=False,
    bounds_windows=False,
    acknowledges_bad_invalidate=True,
    takes_receive_early=True,
    oversized_send=NakCode.REMOTE_OPERATIONAL_ERROR,
    oversized_send_status=WCStatus.LOC_QP_OP_ERR,
    atomic_alignment_first=False,
    invalid_request_status=WCStatus.REM_INV_REQ_ERR,
    receive_fault_status=WCStatus.LOC_QP_OP_ERR,
    marks_grh=True,
    invalidate_flag=WCFlags.IP_CSUM_OK,
    reports_refusals=False,
    reports_first_request=False,
    reset_discards_completions=False,
    flushes_late_receives=False,
)
"""Linux Soft-RoCE, kernel 6.1. Sources: the captures named above, docs/reference/habits.md."""

RDMAVT = Profile(
    name="rdmavt",
    ack_request_interval=16,
    limited_message=True,
    waits_for_recovery=False,
    timeout_sends_one=True,
    bad_response=WCStatus.LOC_QP_OP_ERR,
    misplaced_response=WCStatus.LOC_QP_OP_ERR,
    bad_response_length=WCStatus.LOC_LEN_ERR,
    duplicate_ack=DuplicateAck.REQUESTED,
    read_replay=ReadReplay.SAME_END,
    duplicate_clears_nak=True,
    oversized_send_status=WCStatus.LOC_QP_OP_ERR,
    invalid_request_status=WCStatus.LOC_QP_OP_ERR,
    reports_refusals=False,
)
"""Linux rdmavt with qib: the open engine with end-to-end credits. Source: qib_rc.c, rdmavt."""

CONNECTX = replace(
    SPEC,
    name="connectx",
    ack_request_interval=256,
)
"""NVIDIA ConnectX as far as known: MigReq 1 (scapy vectors), mlx5 `log_ack_req_freq` 8."""

HNS = Profile(
    name="hns",
    request_reserved=0x10,
    source_port=SourcePort.QPN,
    limited_message=True,
)
"""HiSilicon hns: live credits on the wire (reference/habits#hns-credits)."""

PROFILES: dict[str, Profile] = {p.name: p for p in (SPEC, RDMAVT, RXE, CONNECTX, HNS)}
"""By name."""
