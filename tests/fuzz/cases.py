"""Hypothesis strategies: cases of a fuzzer, and what may stand in a damaged file."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ibwire.fuzz.case import (
    BAD,
    COMMANDS,
    GOOD,
    MESSAGES,
    NONE,
    PSN_BASES,
    Case,
    Command,
    Connect,
    Connection,
    Mad,
    Packet,
    Pause,
    Post,
    Receive,
    Value,
    Wait,
    parts_of,
)
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

WIDTHS = {
    "bth.se": 1,
    "bth.mig_req": 1,
    "bth.pad_count": 2,
    "bth.tver": 4,
    "bth.pkey": 16,
    "bth.fecn": 1,
    "bth.becn": 1,
    "bth.dest_qp": 24,
    "bth.ack_req": 1,
    "bth.resv7": 7,
}
"""Fields that every packet has, and their bits (IBA 9.2)."""

EXTENSIONS = {
    "reth": {"va": 64, "rkey": 32, "dma_len": 32},
    "atomiceth": {"va": 64, "rkey": 32, "swap": 64, "compare": 64},
    "aeth": {"syndrome": 8, "msn": 24},
    "immdt": {"imm_data": 32},
    "ieth": {"rkey": 32},
    "atomicacketh": {"orig": 64},
}
"""Fields of extension headers, and their bits (IBA 9.3)."""

FIELDS = ("bth.pkey", "reth.va", "atomiceth.swap", "aeth.syndrome", "immdt.imm_data", "ip.ttl")

SYMBOLS = ("va", "end", "size", "rkey", "mw.rkey", "qpn", "pkey", "mtu")

connections = st.builds(
    Connection,
    mtu=st.sampled_from((256, 512, 1024, 2048, 4096)),
    rq_psn=st.integers(0, 0xFFFFFF),
    sq_psn=st.integers(0, 0xFFFFFF),
    retry_cnt=st.integers(0, 7),
    receives=st.integers(0, 16),
    room=st.integers(0, 4096),
)

values: st.SearchStrategy[Value] = st.integers(0, (1 << 64) - 1) | st.tuples(
    st.sampled_from(SYMBOLS), st.integers(-(1 << 20), 1 << 20)
)

lines = st.text(max_size=10).filter(str.isprintable)

plain_packets = st.builds(
    Packet,
    opcode=st.sampled_from([int(opcode) for opcode in OpCode]) | st.integers(0, 255),
    psn=st.tuples(st.sampled_from(PSN_BASES), st.integers(-(1 << 23), 1 << 23)),
    length=st.integers(0, 4096),
    at=st.integers(0, 1 << 20),
    pad=st.none() | st.integers(0, 8),
    more=st.integers(0, 64),
    cut=st.none() | st.integers(0, 300),
    icrc=st.sampled_from((GOOD, BAD, NONE)) | st.integers(0, 0xFFFFFFFF),
    held=st.booleans(),
    why=lines,
)


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    """A packet with fields of headers that its opcode has."""
    packet = draw(plain_packets)
    known = [name for name in FIELDS if name.split(".")[0] in parts_of(packet.opcode)]
    return packet.altered(fields=draw(st.dictionaries(st.sampled_from(known), values, max_size=3)))


steps = (
    packets()
    | st.builds(
        Mad, message=st.sampled_from(MESSAGES), exchange=st.integers(0, 4095), length=st.just(8)
    )
    | st.builds(Command, st.sampled_from(COMMANDS), st.integers(0, 4095))
    | st.builds(
        Post,
        st.sampled_from([int(opcode) for opcode in WROpcode]),
        st.integers(0, 4096),
        st.integers(0, 4096),
        st.booleans(),
    )
    | st.builds(Receive, st.integers(0, 64))
    | st.builds(Wait, st.integers(0, 10**15))
    | st.builds(Pause, st.integers(0, 255), st.integers(0, 0xFFFF))
    | st.builds(Connect, connections)
)

cases = st.builds(
    Case,
    connections,
    st.lists(steps, max_size=8).map(tuple),
    st.sampled_from(("spec", "rxe")),
    lines,
    st.sampled_from([{}, {"mig_req": "0"}, {"live_credits": "False"}]),
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every member and element of a document, with what holds it."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    found = [(value, key) for key in keys]
    return found + [place for _, key in found for place in places(value[key])]
