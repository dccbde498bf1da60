"""Schedules by name in which the laws of `laws.py` and `laws_wire.py` have something to say.

`test_laws_examples.py` holds each against all laws; the mutation table names the one in
which a fault of the transport shows.
"""

from __future__ import annotations

from ibwire.base.units import MS, US
from ibwire.rc.work import WROpcode
from schedules import ALL_OPCODES, CARRIES_DATA, Bad, Fault, Harm, Schedule, Work

SEND, WRITE, READ = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ
WRITE_IMM = WROpcode.RDMA_WRITE_WITH_IMM
ADD, SWAP = WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.ATOMIC_CMP_AND_SWP

LAST_PSN = (1 << 24) - 1

EVERYTHING = tuple(
    Work(
        opcode,
        700 if opcode in CARRIES_DATA or opcode is READ else 0,
        place=index % 3,
        pieces=1 + index % 3,
        signaled=index % 2 == 1,
        solicited=index % 3 == 0,
        inline=index % 4 == 0 and opcode in CARRIES_DATA,
    )
    for index, opcode in enumerate(ALL_OPCODES)
)
"""Each opcode once."""


def _nak_waits_for_line(profile: str) -> Schedule:
    """The answers take a slow line, where the NAK still waits when the missing packet comes."""
    return Schedule(
        (Work(WRITE), Work(WRITE, 257), Work(READ), Work(WRITE)),
        faults=(Fault("a", 1), Fault("a", 8), Fault("a", 3, Harm.DUPLICATE, 3 * US)),
        profiles=("spec", profile),
        mtu=256,
        psns=(0, 0),
        timeout=4,
        rates_gbps=(100, 1),
    )


RECOVERING: dict[str, Schedule] = {
    "everything, both ways": Schedule(EVERYTHING, EVERYTHING, psns=(LAST_PSN - 2, LAST_PSN)),
    "a middle packet is lost": Schedule(
        (Work(WRITE, 1500), Work(SEND, 10)), faults=(Fault("a", 2),)
    ),
    "two packets of a message are lost": Schedule(
        (Work(WRITE, 2500), Work(SEND, 10)), faults=(Fault("a", 2), Fault("a", 14))
    ),
    "the missing packet comes before its NAK is sent": _nak_waits_for_line("spec"),
    "the missing packet comes before rxe's NAK is sent": _nak_waits_for_line("rxe"),
    "an ACK is lost": Schedule((Work(SEND, 10), Work(WRITE, 600)), faults=(Fault("b", 2),)),
    "ACKs are lost where the PSN wraps": Schedule(
        (Work(SEND, 300), Work(WRITE, 600)),
        faults=tuple(Fault("b", number) for number in (1, 2, 3)),
        psns=(LAST_PSN, 0),
    ),
    "one ACK for a message across the wrap": Schedule((Work(WRITE, 600),), psns=(LAST_PSN - 1, 0)),
    "packets arrive again where the PSN wraps": Schedule(
        (Work(SEND, 10), Work(WRITE, 600), Work(SEND, 10)),
        faults=tuple(Fault("a", number, Harm.DUPLICATE, 3 * US) for number in (1, 2, 3)),
        psns=(LAST_PSN, 0),
        msn=LAST_PSN,
    ),
    "a packet arrives again much later": Schedule(
        (Work(WRITE, 10), Work(SEND, 10), Work(SEND, 10, after=20 * US), Work(WRITE, 600)),
        faults=(Fault("a", 1, Harm.DUPLICATE, 40 * US), Fault("a", 2, Harm.DUPLICATE, 50 * US)),
    ),
    "a packet is damaged": Schedule(
        (Work(SEND, 200), Work(WRITE, 200)),
        faults=(Fault("a", 1, Harm.CORRUPT, 8 * 60), Fault("a", 2, Harm.CORRUPT, 8 * 75)),
    ),
    "a READ response is lost": Schedule(
        (Work(READ, 1500, place=3), Work(READ, 600, place=3), Work(SEND, 10)),
        faults=(Fault("b", 3),),
    ),
    "all responses of a READ are lost, the ACK behind is not": Schedule(
        (Work(READ, 600, place=3), Work(SEND, 10)),
        faults=tuple(Fault("b", number) for number in (1, 2, 3)),
    ),
    "more READs and atomics than may be outstanding": Schedule(
        tuple(Work(READ, 300, place=3) for _ in range(4)) + tuple(Work(ADD) for _ in range(4)),
        max_rd_atomic=2,
        max_dest_rd_atomic=2,
    ),
    "answers of atomics are lost": Schedule(
        (Work(ADD, operand=5), Work(SWAP, operand=6), Work(SWAP, operand=9), Work(SEND)),
        faults=(Fault("b", 1), Fault("b", 2)),
    ),
    "an atomic arrives again": Schedule(
        (Work(ADD, operand=5), Work(ADD, operand=7)),
        faults=(Fault("a", 1, Harm.DUPLICATE, 5 * US), Fault("b", 2, Harm.DROP)),
    ),
    "a fence after a READ": Schedule(
        (Work(READ, 600, place=3), Work(WRITE, 10, fence=True), Work(ADD), Work(SEND, fence=True))
    ),
    "receives come late": Schedule(
        (Work(SEND, 600), Work(WRITE_IMM, 600), Work(SEND, 10)),
        receives=((0, 0), (25 * US, 1), (300 * US, 4)),
        min_rnr_timer=5,
    ),
    "receives come late, the sender is rdmavt": Schedule(
        (Work(SEND, 600), Work(WRITE_IMM, 600), Work(SEND, 10)),
        receives=((0, 0), (25 * US, 1), (300 * US, 4)),
        profiles=("rdmavt", "spec"),
        min_rnr_timer=5,
    ),
    "receives come late between two soft-roce": Schedule(
        (Work(SEND, 600), Work(WRITE_IMM, 600), Work(SEND, 10)),
        receives=((0, 0), (25 * US, 1), (300 * US, 4)),
        profiles=("rxe", "rxe"),
        min_rnr_timer=5,
    ),
    "credits are short": Schedule(
        (*(Work(SEND, 300),) * 3, Work(WRITE, 10), *(Work(SEND, 10),) * 5),
        receives=((0, 2), (100 * US, 3), (200 * US, 8)),
        min_rnr_timer=5,
    ),
    "a message with immediate where the receiver has many buffers": Schedule(
        (Work(WRITE_IMM, 600), *(Work(SEND, 10),) * 4), receives=((0, 7),)
    ),
    "losses that outnumber the retries, with progress between": Schedule(
        (*(Work(SEND, 10, after=10 * MS),) * 4,),
        faults=tuple(Fault("a", number) for number in (1, 3, 5)),
        retry_cnt=1,
    ),
    "a NAK arrives when a timeout has made it go back already": Schedule(
        (Work(SEND, 1), Work(SEND, 255, after=20 * US), Work(SEND, 787, after=61 * US)),
        faults=(Fault("a", 2),),
        rates_gbps=(1, 1),
        timeout=4,
        retry_cnt=1,
    ),
    "a READ that takes longer than the timeout": Schedule(
        (Work(READ, 60 * 256, place=3),), rates_gbps=(1, 1), timeout=4
    ),
    "a message longer than the window of soft-roce": Schedule(
        (Work(WRITE, 200 * 256), Work(WRITE, 100 * 256)), profiles=("rxe", "spec")
    ),
    "unequal buffers, pieces and lengths": Schedule(
        (Work(SEND, 257, pieces=3), Work(SEND, 5, pieces=2), Work(SEND, 511), Work(SEND, 0)),
        receive_size=513,
        receive_pieces=3,
    ),
    "inline data": Schedule((Work(SEND, 300, inline=True), Work(WRITE, 5, inline=True))),
    "solicited and not": Schedule(
        (
            Work(SEND, 600, solicited=True),
            Work(WRITE, 600, solicited=True),
            Work(SEND, 600),
            Work(WRITE_IMM, 600, solicited=True),
        )
    ),
}
"""At the end of these every request has succeeded."""

FAILING: dict[str, Schedule] = {
    "an unsignalled WRITE with a bad R_Key, and others behind": Schedule(
        (
            Work(SEND, 10),
            Work(WRITE, 600, signaled=False, bad=Bad.RKEY),
            Work(SEND, 10),
            Work(ADD),
            Work(READ, 5),
            Work(WRITE, 5),
        )
    ),
    "a bad R_Key while a long READ is being answered": Schedule(
        (Work(READ, 9000, place=3), Work(WRITE, 600, bad=Bad.RKEY), Work(SEND, 10), Work(ADD))
    ),
    "a READ of one byte too many": Schedule((Work(READ, 300, bad=Bad.BOUNDS), Work(SEND, 10))),
    "the answers cease": Schedule(
        (Work(SEND, 10), Work(READ, 600), Work(WRITE, 5)),
        faults=tuple(Fault("b", number) for number in range(2, 40)),
        retry_cnt=3,
        timeout=18,
    ),
    "no receive ever comes": Schedule(
        (Work(WRITE, 10), Work(SEND, 10)), receives=(), rnr_retry=2, min_rnr_timer=0
    ),
}
"""These end in an error, as they should."""

EXAMPLES = {**RECOVERING, **FAILING}
