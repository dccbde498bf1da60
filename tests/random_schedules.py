"""Random schedules: right ones with any faults of the wire; broken requests are put in by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ibwire.base.units import MS, US
from ibwire.rc.profile import PROFILES
from ibwire.rc.work import WROpcode
from schedules import (
    ALL_OPCODES,
    CARRIES_DATA,
    SLOTS,
    TAKES_RECEIVE,
    Fault,
    Harm,
    Schedule,
    Work,
)

PSNS = (0, 1, (1 << 23) - 1, 1 << 23, (1 << 24) - 1, (1 << 24) - 2, (1 << 24) - 7)
"""First PSNs, around everything that wraps."""

ANNEX_A19 = (WROpcode.FLUSH, WROpcode.ATOMIC_WRITE)
"""What Linux 6.1 does not know."""

KNOWN_TO_ALL = tuple(opcode for opcode in ALL_OPCODES if opcode not in ANNEX_A19)

OPERANDS = (1, 2, 3, (1 << 64) - 1)

TIMES = (0, 1 * US, 3 * US, 11 * US, 20 * US, 61 * US, 700 * US, 6 * MS, 90 * MS)
"""From less than a frame takes to more than several timeouts."""


@st.composite
def work_requests(
    draw: st.DrawFn, /, mtu: int, *, opcodes: Sequence[WROpcode] = ALL_OPCODES
) -> Work:
    """A right work request."""
    opcode = draw(st.sampled_from(opcodes))
    length = 0
    if opcode in CARRIES_DATA or opcode is WROpcode.RDMA_READ:
        length = draw(
            st.sampled_from((0, 1, 5, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 3))
            | st.integers(0, 5 * mtu)
        )
    flags = draw(st.integers(0, 15))
    return Work(
        opcode,
        length,
        place=draw(st.integers(0, SLOTS - 1 if opcode is WROpcode.RDMA_READ else SLOTS - 2)),
        operand=draw(st.sampled_from(OPERANDS)),
        signaled=flags & 3 != 0,
        fence=bool(flags & 4),
        solicited=bool(flags & 8),
        inline=opcode in CARRIES_DATA and length <= 1024 and draw(st.integers(0, 3)) == 0,
        pieces=draw(st.integers(1, 3)),
        after=draw(st.sampled_from((0, 0, 0, *TIMES))),
    )


@st.composite
def work_lists(
    draw: st.DrawFn, /, mtu: int, most: int = 8, *, opcodes: Sequence[WROpcode] = ALL_OPCODES
) -> tuple[Work, ...]:
    """Right work requests, of which the last is signalled."""
    works = draw(st.lists(work_requests(mtu, opcodes=opcodes), min_size=1, max_size=most))
    works[-1] = replace(works[-1], signaled=True)
    return tuple(works)


def faults(harms: Sequence[Harm] = tuple(Harm), last: int = 30) -> st.SearchStrategy[Fault]:
    """Harm to one of the first frames of either end."""
    numbers = st.integers(1, last)
    times = st.sampled_from(TIMES[1:])
    made = [
        st.builds(Fault, st.sampled_from("ab"), numbers, st.just(harm), amounts)
        for harm in harms
        for amounts in [st.integers(0, 1 << 14) if harm is Harm.CORRUPT else times]
    ]
    return st.one_of(made)


@st.composite
def schedules(
    draw: st.DrawFn,
    /,
    *,
    opcodes: Sequence[WROpcode] = ALL_OPCODES,
    harms: Sequence[Harm] = tuple(Harm),
    most_faults: int = 6,
    profiles: Sequence[str] = tuple(PROFILES),
    late_receives: bool = True,
    **fixed: Any,
) -> Schedule:
    """Any schedule in which all requests are right, and every receive comes in the end."""
    mtu = fixed.pop("mtu", None) or draw(st.sampled_from((256, 256, 256, 512, 1024, 4096)))
    ends = draw(st.sampled_from(profiles)), draw(st.sampled_from(profiles))
    if "rxe" in ends:
        opcodes = tuple(opcode for opcode in opcodes if opcode not in ANNEX_A19)
    works = draw(work_lists(mtu, opcodes=opcodes))
    back = draw(st.just(()) | work_lists(mtu, 3, opcodes=opcodes))
    needed = max(sum(w.opcode in TAKES_RECEIVE for w in each) for each in (works, back))
    at_once = draw(st.integers(0, needed)) if late_receives else needed
    # No later than a few dozen of the shortest RNR waits: longer tells no more.
    late = draw(st.sampled_from(TIMES[:7])) if late_receives else 0
    depth = draw(st.sampled_from((1, 2, 4)))  # rxe rounds other numbers up
    given = {
        "works": works,
        "back": back,
        "faults": tuple(draw(st.lists(faults(harms), max_size=most_faults))) if harms else (),
        "receives": ((0, at_once), (late, needed - at_once)),
        "receive_size": max([w.length for w in (*works, *back)]) + draw(st.integers(0, 3)),
        "receive_pieces": draw(st.integers(1, 3)),
        "profiles": ends,
        "mtu": mtu,
        "psns": (draw(st.sampled_from(PSNS)), draw(st.sampled_from(PSNS))),
        "msn": draw(st.sampled_from((0, (1 << 23) - 2, (1 << 24) - 1, (1 << 24) - 3))),
        "rates_gbps": draw(st.sampled_from(((100, 100), (100, 1), (1, 100), (1, 1)))),
        "timeout": draw(st.sampled_from((4, 8, 12))),
        "min_rnr_timer": draw(st.sampled_from((1, 5, 14))),
        "max_rd_atomic": depth,
        "max_dest_rd_atomic": depth * draw(st.integers(1, 2)),
    }
    return Schedule(**{**given, **fixed})
