"""Profiles: the known differences between implementations of the transport.

Every difference is one field, whose default is that of `SPEC`. "rxe" is Linux Soft-RoCE of
kernel 6.1 from captures, "rdmavt" the core of the Linux qib and hfi1 drivers from their
source, "connectx" and "hns" the little that is known of NVIDIA's and HiSilicon's adapters.
An unknown value is that of the specification. A field that changes control flow selects
functions of `ibwire.rc.habits`; the transport reads the others directly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ibwire.base.units import MS, US, Time
from ibwire.rc.congestion.notification import Scope
from ibwire.rc.work import WCFlags, WCStatus
from ibwire_layers.syndrome import RNR_TIMER_US, NakCode


class SourcePort(Enum):
    """The choice of the UDP source port of a RoCEv2 flow."""

    FLOW_LABEL = "from the flow label, or from both QP numbers"
    """rdma-core `ibv_flow_label_to_udp_sport`, Linux `rdma_calc_flow_label`."""
    QPN = "the sender's QP number"
    """HiSilicon hns, seen in a capture."""


class DuplicateAck(Enum):
    """The duplicate SEND and WRITE packets that are acknowledged again."""

    EVERY = "all"
    REQUESTED = "those with AckReq"
    LAST = "those with AckReq, and the last one of each message"


class UnaskedAck(Enum):
    """The SENDs and WRITEs without AckReq that are acknowledged all the same."""

    NEVER = "none"
    LAST = "the last packet of each message"
    EVERY = "all"


class UnknownRefused(Enum):
    """The messages of unknown connections that a connection manager refuses; it ignores others.

    In TIMEWAIT, too.
    """

    NONE = "none"
    REP = "REP"
    RTU = "RTU"
    BOTH = "REP and RTU"


class MRAFor(Enum):
    """The messages for which a connection manager sends an MRA."""

    NONE = "none"
    REQ = "REQ"
    REP = "REP"
    BOTH = "REQ and REP"


class SenderGID(Enum):
    """Where a connection manager compares the GID of a sender with that of the peer."""

    ALWAYS = "in all messages"
    REQUESTS = "in requests only"
    NEVER = "nowhere"


class DuplicateAckPSN(Enum):
    """The PSN in the acknowledgement of a duplicate."""

    NEWEST = "the PSN before the expected one"
    EXECUTED = "the newest executed SEND, WRITE or atomic, not READ"


class ReadReplay(Enum):
    """The duplicate READ requests that are answered again."""

    INSIDE = "any part of the original"
    NARROWING = "any part that starts no earlier than the last replay"
    SAME_END = "parts that end where the original ends"


class ExcessReads(Enum):
    """The response to a READ or atomic beyond `max_dest_rd_atomic`."""

    NAK = "NAK invalid request"
    RECYCLE = "takes the oldest slot, unless the limit is 0"


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of one implementation."""

    name: str = "spec"

    # Both halves.
    places_early: bool = False
    """Whether packets that have overtaken others are kept and executed in order, instead of
    refused; the data of a WRITE goes to memory at once (ConnectX with out-of-order placement:
    both ends need it; docs/reference/transport.md#early-packets)."""
    early_window: int = 1024
    """Largest distance in PSNs from the expected one at which a packet is kept."""
    nak_distance: int = 1
    """Where early packets are kept: how far ahead one has to be for a missing one to be NAKed; 0
    for never."""
    selective_repeat: bool = False
    """Whether a NAK names what has arrived behind the missing packet, and only what is missing is
    retransmitted (IRN: docs/reference/transport.md#selective-repeat). Without such a peer a NAK is
    that of the specification."""

    cnp_scope: Scope = Scope.QUEUE_PAIR
    """What the interval between two CNPs applies to, unless the notification point says so itself
    (docs/reference/congestion.md#cnp-pacing)."""

    # Headers.
    mig_req: int = 1
    """BTH.MigReq without an alternate path (IBA 17.2.8; rxe sends 0 in every capture)."""
    request_reserved: int = 0
    """Bits 5:0 of BTH byte 4 in requests (hns sends 0x10: reference/habits#hns-headers)."""
    source_port: SourcePort = SourcePort.FLOW_LABEL
    counts_identification: bool = False
    """Whether the IPv4 identification increases with each packet (rxe: rc-pingpong)."""
    route_hop_limit: int | None = None
    """Hop limit that replaces the requested one (rxe: 64, that of the route)."""
    fixed_pkeys: tuple[int, ...] = ()
    """P_Keys accepted instead of those in the table; the first is sent (rxe:
    probe-odd-frames)."""
    refuses_unknown: UnknownRefused = UnknownRefused.BOTH
    refuses_unknown_mra: bool = False
    """Whether an MRA of an unknown connection is refused, too (docs/reference/cm.md
    #unknown-connection; Linux is silent)."""
    refuses_in_timewait: UnknownRefused = UnknownRefused.BOTH
    """The messages that draw REJ 10 (stale connection) in TIMEWAIT (docs/reference/cm.md#teardown;
    Linux is silent)."""
    mra_for_duplicate: MRAFor = MRAFor.BOTH
    """The messages that draw an MRA when they are repeated before the application decides
    (docs/reference/cm.md#handshake)."""
    repeats_mra: MRAFor = MRAFor.BOTH
    """The messages that draw the MRA again when they are repeated after it, before the application
    decides (docs/reference/cm.md#handshake)."""
    duplicate_restarts_rep: bool = False
    """Whether the wait for the RTU begins again where a duplicate REQ draws the REP again
    (docs/reference/cm.md#resending)."""
    repeats_rep_after_mra: bool = False
    """Whether a duplicate REQ draws the REP again after an MRA of the REP (docs/reference/cm.md
    #resending)."""
    mra_at_once: MRAFor = MRAFor.NONE
    """The messages that draw an MRA before the application decides, not only when they are
    repeated, as by the RDMA-CM of Linux (docs/reference/cm.md#handshake)."""
    rejects_expired_request: bool = True
    """Whether a REJ for a timeout is sent when a REQ was never answered (docs/reference/cm.md
    #resending; Linux sends none)."""
    keeps_refusal: bool = True
    """Whether a REQ that the application has refused is kept for a while, so that a repeated one
    draws the same REJ (docs/reference/cm.md#resending; Linux keeps none)."""
    sender_gid: SenderGID = SenderGID.ALWAYS
    """Where the GID of a sender counts (docs/reference/cm.md#peer; Linux looks only at IDs and
    the GUID of the CA)."""
    asks_on_qp1: bool = False
    """Whether MADs on QP1 set AckReq, although datagrams have no ACK (rxe: cm-rping; its other
    datagrams and native InfiniBand do not: docs/reference/habits.md#rxe-cm)."""

    refuses_annex_a19: bool = False
    """Whether FLUSH and ATOMIC WRITE, which are optional, are NAKed like reserved opcodes. A
    work request for one completes with LOC_QP_OP_ERR."""
    discards_annex_a19: bool = False
    """Whether FLUSH and ATOMIC WRITE are discarded instead of NAKed (Linux 6.1: rxe_opcode.c,
    `rxe_rcv`; rxe_req.c `next_opcode`). Known for an idle requester only: Linux takes them for
    responses."""
    rounds_read_depth: bool = False
    """Whether `max_rd_atomic` and `max_dest_rd_atomic` are rounded up to powers of two (rxe
    `rxe_qp_from_attr`)."""

    # The order of queue pairs.
    burst_packets: int = 1
    """Packets that a queue pair may send in its turn, before the next one of its priority has
    its own (rxe 64; the specification leaves it open: docs/reference/habits.md#qp-turns)."""

    # The requester.
    ack_request_interval: int = 64
    """Packets of a message between two that set AckReq (rxe 66, rdmavt 16: captures and
    qib_rc.c; mlx5 programs 256; the specification leaves it open)."""
    limited_message: bool = False
    """Whether the one message beyond the credits is sent whole (rdmavt, hns) instead of its
    first packet only (IBA 9.7.7.2.5)."""
    max_unacked_psns: int = (1 << 23) - 1
    """Largest distance of a sent PSN from the oldest unacknowledged PSN (IBA 9.7.1; rxe 128:
    docs/reference/habits.md#rxe-window)."""
    max_unacked_messages: int = 0
    """Messages that may be on their way; 0 for any number (no rule says when one must begin)."""
    fence_waits_for_all: bool = False
    """Whether a fence waits for all earlier requests, SENDs and WRITEs included, which it need not
    (docs/reference/transport.md#fence)."""
    messages_wait_for_reads: bool = False
    """Whether a SEND or WRITE begins only when all earlier READs and atomics have been answered (no
    rule says when one must begin: docs/reference/transport.md#psn-window)."""
    max_unacked_reads: int = 0
    """READs and atomics that may be on their way, where `max_rd_atomic` allows more; 0 for no
    further limit (no rule says when one must begin: docs/reference/transport.md#read-limit)."""
    reads_divided_by: int = 1
    """What `max_rd_atomic` is divided by: of 2, half of it is used, but at least one."""
    counts_flushes: bool = True
    """Whether a FLUSH counts as a READ for `max_rd_atomic` and for a fence. What the specification
    says of it is not known; rxe does not count it (rxe_req.c `rxe_requester`)."""
    controls_congestion: bool = False
    """Whether the reliable queue pairs towards a peer share a window that shrinks after a loss,
    and their ACK timeout follows the measured round trip (a choice of this emulator:
    `ibwire.rc.congestion.window`; `pingpong`, `perf` and `rping` set it)."""
    timeout_low: Time = 0
    """ACK timeout while few packets are unacknowledged, in place of that of the `timeout`
    attribute; 0 for none (IRN: docs/reference/transport.md#irn-timeouts)."""
    timeout_high: Time = 0
    """ACK timeout beside `timeout_low` while more packets are unacknowledged."""
    few_unacked_psns: int = 3
    """Unacknowledged PSNs up to which `timeout_low` applies."""
    restarts_on_read_gap: bool = True
    """Whether a gap in the responses of a READ restarts it at once (rxe:
    drop-read-response)."""
    waits_for_recovery: bool = True
    """Whether, after going back, a lost READ or atomic is detected again only by the response
    to a newer packet. A choice of this emulator, because the acknowledgement of a duplicate
    may look like a loss; rxe and qib restart again after any progress."""
    timer_granularity: Time = 1
    """ACK timeouts are rounded down to a multiple of it (rxe: jiffies of 4 ms)."""
    ack_timer_percent: int = 100
    """ACK timeouts in percent of the nominal time; up to four times as long is allowed
    (IBA 9.7.6.1.3)."""
    ack_timer_percents: tuple[int, ...] = ()
    """ACK timeouts by the number of retries used up since there was progress, in percent of the
    nominal time, in place of `ack_timer_percent`; the last for all further ones (a timer that backs
    off: docs/reference/transport.md#ack-timeout)."""
    timers_vary: bool = False
    """Whether each wait may be of another length, that of the ACK timer from T to 4 T, that after
    an RNR NAK at least its time (docs/reference/transport.md#ack-timeout, #rnr-wait). The reference
    of `ibwire fuzz` then follows the device; the emulator itself waits as the other values say."""
    keeps_pending_timer: bool = False
    """Whether the ACK timer keeps running when everything is acknowledged, and expires during
    a later, healthy request (rxe: rc-pingpong, send-lat)."""
    timeout_sends_one: bool = False
    """Whether a timeout sends one packet and waits for its ACK (qib: RVT_S_SEND_ONE)."""
    rnr_wait_sends_one: bool = False
    """Whether one packet is sent after an RNR wait, and its ACK awaited (no rule says when the
    others must follow: docs/reference/transport.md#psn-window)."""
    retry_7_is_infinite: bool = False
    """Whether a retry count of 7 is unlimited (rxe_completer)."""
    rnr_timer_us: tuple[int, ...] = RNR_TIMER_US
    """Microseconds by RNR timer code (rxe has 61.41 ms for code 25: `rnrnak_jiffies`)."""
    rnr_timer_percent: int = 100
    """RNR wait in percent of the table (Oracle PSIF: 500 times too fast)."""
    rnr_granularity: Time = 1
    """RNR waits are rounded up to a multiple of it, plus one more (rxe: rnr-late-recv)."""
    sends_during_rnr_wait: bool = False
    """Whether an RNR wait delays retransmissions only. Queued requests are sent during the
    wait (rxe: rnr-multi-packet), and an acknowledgement of the refused request does not end it
    (rxe never stops `rnr_nak_timer`)."""
    counts_every_rnr_nak: bool = False
    """Whether an RNR NAK during the wait takes a retry and restarts the wait (rxe
    `rxe_completer`)."""
    nak_is_progress: bool = True
    """Whether the packets of its own message that a NAK acknowledges count as progress. If
    not, the NAK does not reset the retries, the requester goes back once and then waits for an
    ACK or its timer, and an RNR NAK does not acknowledge them at all (rxe `check_ack`,
    `started_retry`)."""
    bad_response: WCStatus = WCStatus.BAD_RESP_ERR
    """Status for a READ response to a request that is not a READ."""
    misplaced_response: WCStatus = WCStatus.BAD_RESP_ERR
    """Status for any other response that does not fit: out of order, of another kind, or with
    a wrong syndrome (rxe `check_ack` leaves the status at success)."""
    bad_response_length: WCStatus = WCStatus.BAD_RESP_ERR
    """Status for a READ response of the wrong length."""
    checks_response_length: bool = True
    """Whether the length of a READ response is checked. If not, data that fits is stored and
    the READ keeps waiting (rxe `do_read`). A retransmitted READ takes a PSN for each missing
    packet, which are not its first PSNs (`req_retry`). After its last PSN, any response with
    that PSN completes it (`check_psn`)."""
    acks_answer: bool = False
    """Whether an ACK of its PSN completes a READ or atomic (rxe `check_ack`). `RXE` does not
    use it: after the loss of a response, the ACK of a duplicate would complete the request
    without its data, and results of the emulator would not be reliable."""
    ack_restarts_read: bool = True
    """Whether an ACK of its PSN restarts a READ or atomic, as a response behind it does
    (qib_rc.c `do_rc_ack`). Otherwise it only acknowledges what is before."""
    acks_unsent: bool = False
    """Whether a response to a PSN that was never sent acknowledges every sent packet (rxe
    `check_psn`, which counts 2^23 PSNs from the end of the oldest request)."""
    reserved_syndrome_fails: bool = False
    """Whether a reserved AETH syndrome ends the connection (rxe_completer) or is ignored."""
    reserved_bit_fails: bool = False
    """Whether bit 7 of a syndrome, which is reserved, ends the connection (rxe `check_ack`:
    `AETH_TYPE_MASK` has three bits) or is ignored."""

    # The responder.
    coalesces_acks: bool = True
    """Whether a newer ACK replaces one that is not sent yet."""
    acks_unasked: UnaskedAck = UnaskedAck.NEVER
    live_credits: bool = True
    """Whether AETHs carry credits, on queue pairs without SRQ (rxe: never)."""
    credits_divided_by: int = 1
    """What the number of free receive requests is divided by for the credits of an AETH, which
    promise no more than there are (docs/reference/transport.md#credits-granted)."""
    rnr_nak_steps: int = 0
    """By how many codes an RNR NAK asks for more than `min_rnr_timer`, the least that it may ask
    for (docs/reference/transport.md#rnr-timer)."""
    takes_credits: bool = False
    """Whether a requester whose own AETHs carry no credits waits for those of its peer, as one
    that gives credits does."""
    duplicate_ack: DuplicateAck = DuplicateAck.EVERY
    duplicate_ack_psn: DuplicateAckPSN = DuplicateAckPSN.NEWEST
    read_replay: ReadReplay = ReadReplay.INSIDE
    replays_mid_read: bool = False
    """Whether a READ replayed from a later PSN begins with MIDDLE or LAST instead of FIRST or
    ONLY (rxe: drop-read-response.b)."""
    excess_reads: ExcessReads = ExcessReads.NAK
    replays_by_psn: bool = False
    """Whether a duplicate atomic is answered with the record of its PSN, which may be the
    result of another atomic or the address of a READ (rxe `find_resource`, `struct
    resp_res`)."""
    rechecks_empty_reads: bool = False
    """Whether a duplicate READ of no bytes needs a known key, which the first did not (rxe
    `rxe_recheck_mr`)."""
    answers_in_turn: bool = False
    """Whether each request is answered before the next is processed (rxe_resp.c). Then a
    response has the MSN of its request. Otherwise the MSN is that at the time of sending
    (qib_rc.c, loss-ack-only.a)."""
    withdraws_naks: bool = True
    """Whether a NAK that is not sent yet is dropped when the missing packet arrives (qib_rc.c).
    Otherwise it is sent (rxe_resp.c)."""
    naks_after_rnr: bool = False
    """Whether packets after an RNR NAK cause one sequence NAK (rxe: rnr-multi-packet)."""
    duplicate_clears_nak: bool = False
    """Whether an answered duplicate lets the gap cause another NAK (qib_rc_rcv_error)."""
    checks_payload_size: bool = True
    """Whether SEND packets are checked against the path MTU (rxe 6.1 does not:
    probe-odd-frames)."""
    discards_unpadded: bool = True
    """Whether a payload that is not padded to a multiple of 4 is discarded (rxe accepts it:
    probe-odd-frames)."""
    checks_request_payload: bool = True
    """Whether a payload in a READ or atomic request is refused (rxe ignores it)."""
    checks_write_position: bool = True
    """Whether the size of a WRITE packet is checked against its position in the message. If
    not, only against the rest of the message (rxe `check_rkey`)."""
    checks_message_length: bool = True
    """Whether more than 2^31 bytes are refused (C9-94; rxe has no such check)."""
    naks_reserved_opcode: bool = True
    """Whether a reserved opcode is NAKed or dropped (rxe: probe-odd-frames)."""
    bounds_windows: bool = True
    """Whether a memory window grants access to its bound range only. If not, to the whole
    region (rxe `check_rkey` compares with the region)."""
    frees_windows_again: bool = True
    """Whether a window that is invalid already may be invalidated (rxe_mw.c `rxe_invalidate_mw`);
    of another device it is an error (docs/reference/transport.md#local-invalidate)."""
    acknowledges_bad_invalidate: bool = False
    """Whether a SEND that cannot invalidate its key is acknowledged before the connection ends
    (rxe `execute`, `acknowledge`)."""
    takes_receive_early: bool = False
    """Whether a refused WRITE with immediate data completes the receive request that it would
    have used (rxe `check_resource`)."""
    oversized_send: NakCode = NakCode.INVALID_REQUEST
    """NAK for a SEND longer than the receive buffer (rxe: nak-send-too-big)."""
    oversized_send_status: WCStatus = WCStatus.LOC_LEN_ERR
    """Receive completion of a SEND longer than the receive buffer."""
    atomic_alignment_first: bool = True
    """Whether alignment is checked before the R_Key (qib yes, rxe no)."""
    atomic_write_alignment_first: bool = True
    """The same of an ATOMIC WRITE, which has a handler of its own (newer rxe: `check_rkey` before
    `rxe_mr_do_atomic_write`)."""
    invalid_request_status: WCStatus = WCStatus.LOC_LEN_ERR
    """Receive completion of a message that caused NAK invalid request."""
    receive_fault_status: WCStatus = WCStatus.LOC_PROT_ERR
    """Receive completion when the memory of the receive request is not accessible."""
    marks_grh: bool = False
    """Whether receive completions of connections have the flag GRH, as those of datagrams with
    a GRH always have (rxe: `do_complete`)."""
    invalidate_flag: WCFlags = WCFlags.WITH_INV
    """Flag of a receive completion with an invalidated key (rxe passes on the number of the
    kernel, which is IP_CSUM_OK in verbs.h)."""
    reports_refusals: bool = True
    """Whether QP_REQ_ERR and QP_ACCESS_ERR are raised for a refused request without a receive
    request (IBA 11.6.3.2; rxe and rdmavt `rvt_rc_error` raise neither)."""
    reports_first_request: bool = True
    """Whether COMM_EST is raised for the first request (IBA 11.6.3.1; rxe does not raise
    it)."""

    # The user-space library.
    reset_discards_completions: bool = True
    """Whether a reset or destroyed queue pair removes its completions from their queues
    (rdma-core `mlx5_cq_clean`, `mlx4_cq_clean`, `hns_roce_v2_cq_clean`); `providers/rxe` keeps
    them, the specification leaves it open."""
    flushes_late_receives: bool = True
    """Whether a receive request posted in ERR completes at once (IBA 10.3.1.7; `providers/rxe`
    queues it without notifying the kernel)."""


SPEC = Profile()
"""The InfiniBand specification; where it is open, a common choice."""

RXE = Profile(
    name="rxe",
    mig_req=0,
    counts_identification=True,
    route_hop_limit=64,
    fixed_pkeys=(0xFFFF, 0x7FFF),
    refuses_unknown=UnknownRefused.NONE,  # cm_rep_handler of Linux
    asks_on_qp1=True,
    discards_annex_a19=True,
    rounds_read_depth=True,
    burst_packets=64,
    ack_request_interval=66,
    max_unacked_psns=128,
    counts_flushes=False,
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
    withdraws_naks=False,
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
"""Linux rdmavt with qib, which has end-to-end credits. Source: qib_rc.c, rdmavt."""

CONNECTX = replace(
    SPEC,
    name="connectx",
    ack_request_interval=256,
)
"""NVIDIA ConnectX as far as known: MigReq 1 (scapy vectors), mlx5 `log_ack_req_freq` 8."""

CONNECTX_AR = replace(CONNECTX, name="connectx-ar", places_early=True, nak_distance=0)
"""NVIDIA ConnectX with out-of-order data placement, as for adaptive routing: early packets are
placed and never NAKed. What it does about a loss is not known; here the ACK timer finds it."""

IRN = replace(
    SPEC,
    name="irn",
    places_early=True,
    selective_repeat=True,
    ack_request_interval=1,
    max_unacked_psns=98,
    timeout_low=454 * US,
    timeout_high=1350 * US,
)
"""Improved RoCE NIC (SIGCOMM 2018): selective repeat, 100 KB on the way at path MTU 1024."""

HNS = Profile(
    name="hns",
    request_reserved=0x10,
    source_port=SourcePort.QPN,
    limited_message=True,
)
"""HiSilicon hns: live credits on the wire (reference/habits#hns-credits)."""

PROFILES: dict[str, Profile] = {p.name: p for p in (SPEC, RDMAVT, RXE, CONNECTX, HNS)}
"""By name."""

NETWORK_PROFILES: dict[str, Profile] = PROFILES | {p.name: p for p in (CONNECTX_AR, IRN)}
"""By name, with those whose order of packets both ends have to agree on: for whole networks."""
