"""A witness of each choice: a short case that shows it and no other choice.

`tests/fuzz/make_witnesses.py` finds them. Some have other numbers or further steps, or there is a
second one, to tell the choice from a fault that shows the same in the shortest case. The choices
without one are those that no case can show: the hop limit, which is the same on the first hop, and
how often an ACK is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.units import ACK_TIMEOUT_UNIT, MS, US, Time
from ibwire.fuzz.case import Command, Connection, Mad, Packet, Post, Receive, Step, Wait
from ibwire.fuzz.judge.witness import Witness
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

_ACK_AFTER_TIMEOUTS = (
    Wait((ACK_TIMEOUT_UNIT << 10) + 1),  # four times as long as the timer
    Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0)),
)


def _timeouts_after(time: Time) -> tuple[Step, ...]:
    """A request that the device retransmits until it is acknowledged, some time later."""
    return (
        Wait(time),
        Post(int(WROpcode.RDMA_WRITE), 8),
        *_ACK_AFTER_TIMEOUTS,
    )


def _timeouts_after_progress(time: Time) -> tuple[Step, ...]:
    """Two requests, of which the second is retransmitted, some time after both were sent."""
    return (
        Post(int(WROpcode.RDMA_WRITE), 8),
        Post(int(WROpcode.RDMA_WRITE), 8),
        Wait(time),
        *_ACK_AFTER_TIMEOUTS[1:],
        *_ACK_AFTER_TIMEOUTS,
    )


def _rnr_wait_after(time: Time) -> tuple[Step, ...]:
    """A request that the device retransmits after an RNR NAK, some time later."""
    return (
        Wait(time),
        Post(int(WROpcode.RDMA_WRITE), 8),
        Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 0x34}),
        Wait(80 * MS),  # beyond 4 times 10.24 ms, also in steps of 8 ms
        Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0)),
    )


WITNESSES: Sequence[Witness] = (
    Witness("live_credits", Connection(timeout=0), (Packet(int(OpCode.RC_SEND_ONLY)),)),
    Witness("takes_credits", Connection(timeout=0), (Post(int(WROpcode.SEND), 600),)),
    Witness(
        "counts_identification",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_SEND_ONLY), length=8),
            Packet(int(OpCode.RC_SEND_ONLY)),
        ),
    ),
    Witness(
        "coalesces_acks",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8, held=True),
            Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8),
        ),
    ),
    Witness(
        "acks_unasked",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_SEND_FIRST), length=256, fields={"bth.ack_req": 0}),
            Packet(int(OpCode.RC_SEND_LAST), length=8, fields={"bth.ack_req": 0}),
        ),
    ),
    Witness(
        "answers_in_turn",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_SEND_ONLY), held=True),
            Packet(int(OpCode.RC_FLUSH)),
        ),
    ),
    Witness(
        "withdraws_naks",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_SEND_ONLY), ("expected", 1), held=True),
            Packet(int(OpCode.RC_SEND_ONLY)),
        ),
    ),
    Witness(
        "duplicate_ack",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_SEND_ONLY), psn=("expected", -1), fields={"bth.ack_req": 0}),),
    ),
    Witness(
        "duplicate_ack",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_SEND_MIDDLE), psn=("expected", -1), fields={"bth.ack_req": 0}),),
    ),
    Witness(
        "read_replay",
        Connection(timeout=0),
        (
            Packet(
                int(OpCode.RC_RDMA_READ_REQUEST),
                fields={"reth.va": ("va", 5527), "reth.dma_len": 769},
            ),
            Packet(
                int(OpCode.RC_RDMA_READ_REQUEST),
                psn=("expected", -3),
                fields={"reth.va": ("va", 5783)},
            ),
        ),
    ),
    Witness(
        "read_replay",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 769}),
            Packet(
                int(OpCode.RC_RDMA_READ_REQUEST),
                psn=("expected", -1),
                fields={"reth.va": ("va", 768), "reth.dma_len": 1},
            ),
            Packet(
                int(OpCode.RC_RDMA_READ_REQUEST), psn=("expected", -4), fields={"reth.dma_len": 769}
            ),
        ),
    ),
    Witness(
        "atomic_alignment_first",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_FETCH_ADD), fields={"atomiceth.va": ("end", -4)}),),
    ),
    Witness(
        "atomic_write_alignment_first",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_ATOMIC_WRITE), length=8, fields={"reth.va": ("end", -4)}),),
    ),
    Witness(
        "invalid_request_status",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_SEND_FIRST), length=256),
            Packet(int(OpCode.RC_SEND_ONLY)),
        ),
    ),
    Witness("invalid_request_status", Connection(timeout=0), (Packet(int(OpCode.RC_SEND_FIRST)),)),
    Witness(
        "marks_grh", Connection(timeout=0), (Packet(int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)),)
    ),
    Witness(
        "timeout_sends_one",
        Connection(),
        (
            Post(int(WROpcode.RDMA_WRITE), 600),
            Wait(67108864001),
        ),
    ),
    Witness(
        "nak_is_progress",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 600),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 1), fields={"aeth.syndrome": 33}),
            Wait(20000000000),
        ),
    ),
    Witness(
        "waits_for_recovery",
        Connection(timeout=8),
        (
            Post(int(WROpcode.ATOMIC_CMP_AND_SWP), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(8120000000),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 1)),
        ),
    ),
    Witness(
        "bad_response_length",
        Connection(timeout=0),
        (
            Post(int(WROpcode.ATOMIC_CMP_AND_SWP), 8),
            Post(int(WROpcode.RDMA_READ), 8),
            Packet(int(OpCode.RC_ATOMIC_ACKNOWLEDGE), psn=("una", 0)),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_FIRST), psn=("una", 0)),
        ),
    ),
    Witness("source_port", Connection(timeout=0), (Packet(int(OpCode.RC_SEND_ONLY)),)),
    Witness(
        "max_unacked_psns",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 600),
            Post(int(WROpcode.RDMA_WRITE), 4096),
            Post(int(WROpcode.RDMA_WRITE), 4096),
            Post(int(WROpcode.RDMA_WRITE), 4096),
            Post(int(WROpcode.RDMA_WRITE), 4096),
            Post(int(WROpcode.RDMA_WRITE), 4096),
            Post(int(WROpcode.RDMA_WRITE), 4096),
            Post(int(WROpcode.RDMA_WRITE), 4096),
            Post(int(WROpcode.RDMA_WRITE), 4096),
        ),
    ),
    Witness("max_unacked_psns", Connection(timeout=0), (Post(int(WROpcode.RDMA_WRITE), 4096),)),
    Witness(
        "max_unacked_messages",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
        ),
    ),
    # Half of 16 is 8, of 4 it is 2; another number is a limit of its own.
    Witness(
        "reads_divided_by",
        Connection(timeout=0, max_rd_atomic=16),
        (Post(int(WROpcode.RDMA_READ), 8),) * 9,
    ),
    Witness(
        "reads_divided_by",
        Connection(timeout=0, max_rd_atomic=4),
        (Post(int(WROpcode.RDMA_READ), 8),) * 4,
    ),
    Witness(
        "max_unacked_reads",
        Connection(timeout=0, max_rd_atomic=16),
        (Post(int(WROpcode.RDMA_READ), 8),) * 9,
    ),
    Witness(
        "rnr_wait_sends_one",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 33}),
            Wait(20 * MS),
        ),
    ),
    *(
        Witness(
            "rnr_nak_steps",
            Connection(timeout=0, receives=0, min_rnr_timer=code),
            (Packet(int(OpCode.RC_SEND_ONLY)),),
        )
        for code in (1, 12, 28)
    ),
    *(
        Witness(
            "credits_divided_by",
            Connection(timeout=0, receives=count),
            (Packet(int(OpCode.RC_SEND_ONLY)),),
        )
        for count in (9, 5)
    ),
    # The second request tells both from a device that sends one message at a time.
    Witness(
        "fence_waits_for_all",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_WRITE), 8, fence=True),
        ),
    ),
    Witness(
        "messages_wait_for_reads",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Post(int(WROpcode.RDMA_READ), 8),
            Post(int(WROpcode.RDMA_WRITE), 8),
        ),
    ),
    Witness(
        "counts_flushes",
        Connection(timeout=0, max_rd_atomic=1),
        (
            Post(int(WROpcode.RDMA_READ), 8),
            Post(int(WROpcode.FLUSH), 8),
            Post(int(WROpcode.FLUSH), 8),  # who lets one more begin does not send this one
        ),
    ),
    Witness(
        "counts_every_rnr_nak",
        Connection(timeout=0, rnr_retry=2),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 63}),
            Wait(300000000000),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 63}),
            Wait(600000000000),  # the second wait ends in time
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 63}),
        ),
    ),
    Witness(
        "refuses_annex_a19",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_FLUSH), fields={"reth.dma_len": 8}),),
    ),
    Witness(
        "rnr_granularity",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 54}),
            Wait(28120000000),  # 20.48 ms become 28 ms, with a grain of 8 ms 24 ms or 32 ms
            Wait(20 * MS),  # by then it must be retransmitted
        ),
    ),
    Witness("request_reserved", Connection(timeout=0), (Post(int(WROpcode.RDMA_WRITE), 8),)),
    Witness(
        "naks_after_rnr",
        Connection(timeout=0, receives=0),
        (
            Packet(int(OpCode.RC_SEND_ONLY)),
            Packet(int(OpCode.RC_SEND_ONLY), psn=("expected", 1)),
        ),
    ),
    Witness(
        "duplicate_clears_nak",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_SEND_ONLY), psn=("expected", 1)),
            Packet(int(OpCode.RC_SEND_ONLY), psn=("expected", 8388608)),
            Packet(int(OpCode.RC_SEND_ONLY), psn=("expected", 1)),
        ),
    ),
    Witness(
        "oversized_send_status",
        Connection(timeout=0, room=0),
        (Packet(int(OpCode.RC_SEND_ONLY), length=8),),
    ),
    Witness(
        "receive_fault_status",
        Connection(timeout=0, sges=2, wrong_lkey=1),
        (Packet(int(OpCode.RC_SEND_ONLY), length=8),),
    ),
    Witness("limited_message", Connection(timeout=0), (Post(int(WROpcode.SEND), 600),)),
    Witness(
        "bad_response",
        Connection(timeout=0),
        (
            Post(int(WROpcode.SEND), 8),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), psn=("una", 0), length=8),
        ),
    ),
    Witness(
        "misplaced_response",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_MIDDLE), psn=("una", 0), length=256),
        ),
    ),
    Witness(
        "checks_response_length",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_READ), 8),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), psn=("una", 0), length=4),
        ),
    ),
    Witness(
        "acks_answer",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_READ), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0)),
        ),
    ),
    Witness(
        "ack_restarts_read",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_READ), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0)),
        ),
    ),
    Witness(
        "acks_unsent",
        Connection(timeout=0),
        (
            Post(int(WROpcode.SEND), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("next", 1)),
        ),
    ),
    Witness(
        "refuses_unknown",
        Connection(),
        (Mad(message="RTU", exchange=2), Mad(message="REP", exchange=4)),
    ),
    Witness(
        "refuses_unknown_mra",
        Connection(),
        (Mad(message="MRA", exchange=2),),
    ),
    Witness(
        "refuses_in_timewait",
        Connection(),
        (
            Mad(exchange=2),
            Command("accept", exchange=2),
            Mad(message="RTU", exchange=2),
            Mad(message="DREQ", exchange=2),
            Mad(message="RTU", exchange=2),
            Command("connect", exchange=4),
            Mad(message="REP", exchange=4),
            Command("ready", exchange=4),
            Mad(message="DREQ", exchange=4),
            Mad(message="REP", exchange=4),
        ),
    ),
    Witness(
        "mra_for_duplicate",
        Connection(),
        (
            Mad(exchange=2),
            Mad(exchange=2),
            Command("connect", exchange=4),
            Mad(message="REP", exchange=4),
            Mad(message="REP", exchange=4),
        ),
    ),
    Witness(
        "repeats_mra",
        Connection(),
        (
            Mad(exchange=2),
            Command("delay", exchange=2),
            Mad(exchange=2),
            Command("connect", exchange=4),
            Mad(message="REP", exchange=4),
            Command("delay", exchange=4),
            Mad(message="REP", exchange=4),
        ),
    ),
    Witness(
        "duplicate_restarts_rep",
        Connection(),
        (
            Mad(exchange=2),
            Command("accept", exchange=2),
            Wait(3_000_000_000_000),
            Mad(exchange=2),
            Wait(2_000_000_000_000),
        ),
    ),
    Witness(
        "repeats_rep_after_mra",
        Connection(),
        (
            Mad(exchange=2),
            Command("accept", exchange=2),
            Mad(message="MRA", exchange=2),
            Mad(exchange=2),
        ),
    ),
    Witness(
        "mra_at_once",
        Connection(),
        (
            Mad(exchange=2),
            Command("connect", exchange=4),
            Mad(message="REP", exchange=4),
        ),
    ),
    Witness(
        "rejects_expired_request",
        Connection(),
        (
            Command("connect", exchange=2),
            Wait(110_000_000_000_000),  # 16 times as long as an answer may take
        ),
    ),
    Witness(
        "keeps_refusal",
        Connection(),
        (Mad(exchange=2), Command("reject", exchange=2), Mad(exchange=2)),
    ),
    # First, because only NEVER shows in it.
    Witness(
        "sender_gid",
        Connection(),
        (
            Mad(exchange=2),
            Mad(exchange=2, fields={"ip.src": 0x0A000009}, why="a stranger"),
        ),
    ),
    Witness(
        "sender_gid",
        Connection(),
        (
            Mad(exchange=2),
            Command("accept", exchange=2),
            Mad(message="RTU", exchange=2, fields={"ip.src": 0x0A000009}, why="a stranger"),
        ),
    ),
    Witness(
        "asks_on_qp1",
        Connection(timeout=0),
        (
            Mad(exchange=2),
            Command(what="accept", exchange=2),
        ),
    ),
    Witness("mig_req", Connection(timeout=0), (Packet(int(OpCode.RC_SEND_ONLY)),)),
    Witness("mig_req", Connection(timeout=0), (Post(int(WROpcode.RDMA_WRITE), 8),)),
    Witness(
        "mig_req", Connection(timeout=0), (Mad(exchange=2), Command(what="accept", exchange=2))
    ),
    Witness(
        "duplicate_ack_psn",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_SEND_ONLY), psn=("expected", -1)),),
    ),
    Witness(
        "duplicate_ack_psn",
        Connection(timeout=0),
        (
            Mad(exchange=2),
            Command(what="accept", exchange=2),
            Packet(int(OpCode.RC_SEND_ONLY), psn=("expected", -1)),
        ),
    ),
    Witness(
        "ack_timer_percent",
        Connection(),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(268435456001),  # four times as long as the timer
        ),
    ),
    Witness(
        "ack_timer_percent",
        Connection(timeout=8),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(4194304001),
        ),
    ),
    # All retries are used up after 32 T at most.
    Witness(
        "ack_timer_percents",
        Connection(),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(2147483648001),
        ),
    ),
    Witness(
        "ack_timer_percents",
        Connection(timeout=8, retry_cnt=3),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(16777216001),
        ),
    ),
    Witness(
        "rnr_timer_percent",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 0x34}),
            Wait(40960000001),  # four times as long as the wait
        ),
    ),
    Witness(
        "rnr_timer_percent",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 0x3A}),
            Wait(327680000001),
        ),
    ),
    Witness(
        "timer_granularity",
        Connection(timeout=15),  # 134.2 ms become 132 ms, with a grain of 8 ms 128 ms
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(134217728001),
        ),
    ),
    Witness(
        "keeps_pending_timer",
        Connection(),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(4194304001),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0)),
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(67108864001),
        ),
    ),
    Witness(
        "rnr_timer_us",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 57}),
            Wait(61439999999),
        ),
    ),
    Witness(
        "replays_mid_read",
        Connection(timeout=0),
        (
            Packet(
                int(OpCode.RC_RDMA_READ_REQUEST),
                fields={"reth.va": ("va", 4690), "reth.dma_len": 697},
            ),
            Packet(
                int(OpCode.RC_RDMA_READ_REQUEST),
                psn=("expected", -1),
                fields={"reth.va": ("va", 5202)},
            ),
        ),
    ),
    Witness(
        "excess_reads",
        Connection(max_dest_rd_atomic=1, timeout=0),
        (
            # One more than the limit is not yet any number of them.
            Packet(int(OpCode.RC_RDMA_READ_REQUEST), held=True),
            Packet(int(OpCode.RC_RDMA_READ_REQUEST), held=True),
            Packet(int(OpCode.RC_RDMA_READ_REQUEST), held=True),
            Packet(int(OpCode.RC_RDMA_READ_REQUEST)),
        ),
    ),
    Witness(
        "rounds_read_depth",
        Connection(max_rd_atomic=5, timeout=0),  # 8: neither one more nor without limit
        (Post(int(WROpcode.RDMA_READ), 8),) * 9,
    ),
    Witness("checks_payload_size", Connection(timeout=0), (Packet(int(OpCode.RC_SEND_FIRST)),)),
    Witness(
        "checks_payload_size",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_SEND_ONLY), length=260),),
    ),
    Witness("discards_unpadded", Connection(timeout=0), (Packet(int(OpCode.RC_SEND_ONLY), pad=1),)),
    Witness(
        "checks_request_payload",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_RDMA_READ_REQUEST), length=4, fields={"reth.dma_len": 8}),),
    ),
    Witness(
        "checks_write_position",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=8),),
    ),
    Witness(
        "checks_message_length",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 2147483649}),),
    ),
    Witness(
        "checks_message_length",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 4294967295}),),
    ),
    Witness(
        "bounds_windows",
        Connection(timeout=0),
        (
            Packet(
                int(OpCode.RC_RDMA_READ_REQUEST),
                fields={"reth.dma_len": 8, "reth.rkey": ("mw.rkey", 0), "reth.va": ("mw.va", -1)},
            ),
        ),
    ),
    Witness(
        "frees_windows_again",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE), length=8),
            Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE), length=8),
        ),
    ),
    Witness(
        "acknowledges_bad_invalidate",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE), length=8, fields={"ieth.rkey": 1}),),
    ),
    Witness(
        "takes_receive_early",
        Connection(timeout=0),
        (
            Packet(
                int(OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE), length=8, fields={"reth.dma_len": 4}
            ),
        ),
    ),
    Witness(
        "replays_by_psn",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8}),
            Packet(int(OpCode.RC_FETCH_ADD), psn=("expected", -1)),
        ),
    ),
    Witness(
        "rechecks_empty_reads",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 0, "reth.rkey": 0}),
            Packet(
                int(OpCode.RC_RDMA_READ_REQUEST),
                psn=("expected", -1),
                fields={"reth.dma_len": 0, "reth.rkey": 0},
            ),
        ),
    ),
    Witness(
        "invalidate_flag",
        Connection(timeout=0),
        (
            Packet(
                int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE),
                length=8,
                fields={"ieth.rkey": ("mw.rkey", 0)},
            ),
        ),
    ),
    Witness(
        "reports_refusals", Connection(timeout=0), (Packet(int(OpCode.RC_SEND_LAST), length=8),)
    ),
    Witness(
        "reports_first_request",
        Connection(timeout=0),
        (
            Mad(exchange=4),
            Command(what="accept", exchange=4),
            Packet(int(OpCode.RC_SEND_ONLY)),
        ),
    ),
    Witness(
        "flushes_late_receives",
        Connection(timeout=0),
        (
            Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8, "reth.rkey": 0}),
            Receive(1),
        ),
    ),
    Witness(
        "naks_reserved_opcode",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_SEND_ONLY), fields={"bth.opcode": 31}),),
    ),
    Witness(
        "discards_annex_a19",
        Connection(timeout=0),
        (Packet(int(OpCode.RC_FLUSH), fields={"reth.dma_len": 8}),),
    ),
    Witness(
        "oversized_send",
        Connection(timeout=0, room=0),
        (Packet(int(OpCode.RC_SEND_ONLY), length=8),),
    ),
    Witness(
        "fixed_pkeys",
        Connection(timeout=0, pkey_index=2),
        (Packet(int(OpCode.RC_SEND_ONLY), fields={"bth.pkey": 0xFFFF}),),
    ),
    Witness(
        "restarts_on_read_gap",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_READ), 600),
            Packet(int(OpCode.RC_RDMA_READ_RESPONSE_MIDDLE), psn=("una", 1)),
        ),
    ),
    Witness(
        "reserved_syndrome_fails",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 103}),
        ),
    ),
    Witness(
        "reserved_bit_fails",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 159}),
        ),
    ),
    Witness(
        "retry_7_is_infinite",
        Connection(timeout=8),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Wait(200000000000),
        ),
    ),
    Witness(
        "sends_during_rnr_wait",
        Connection(timeout=0),
        (
            Post(int(WROpcode.RDMA_WRITE), 8),
            Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": 63}),
            Post(int(WROpcode.RDMA_WRITE), 8),
        ),
    ),
    # A timer that is too long by a constant factor, for one code or for all, is no varying one: in
    # each of these the code is the same, and what differs is when a timer begins, for which PSN,
    # and on which queue pair. They come last, where choices of constant values are known.
    Witness(
        "timers_vary",
        Connection(timeout=8),
        (
            *_timeouts_after(ACK_TIMEOUT_UNIT * 71),
            *_timeouts_after(ACK_TIMEOUT_UNIT * 39 + 1),
            *_timeouts_after(ACK_TIMEOUT_UNIT * 7 + 3),
        ),
    ),
    Witness(
        "timers_vary",
        Connection(timeout=8),
        (
            *_timeouts_after_progress(ACK_TIMEOUT_UNIT * 71),
            *_timeouts_after_progress(ACK_TIMEOUT_UNIT * 39 + 1),
            *_timeouts_after_progress(ACK_TIMEOUT_UNIT * 7 + 3),
        ),
    ),
    Witness(
        "timers_vary",
        Connection(timeout=8, pairs=3),
        (
            *(Post(int(WROpcode.RDMA_WRITE), 8, pair=pair) for pair in range(3)),
            Wait((ACK_TIMEOUT_UNIT << 10) + 1),
        ),
    ),
    Witness(
        "timers_vary",
        Connection(timeout=0),
        (
            *_rnr_wait_after(17 * US),
            *_rnr_wait_after(39 * US + 1),
            *_rnr_wait_after(7 * US + 3),
        ),
    ),
)
