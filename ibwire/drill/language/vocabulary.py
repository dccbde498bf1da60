"""The verbs of a script: what the application of the device does and checks.

Names of attributes, opcodes, states, statuses and events are those of libibverbs.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from ibwire.cm.states import EventKind
from ibwire.rc.attributes import EventType, QPState, QPType
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.memory import Access
from ibwire.rc.work import FlushLevel, FlushType, SendFlags, WCFlags, WCOpcode, WCStatus, WROpcode
from ibwire_layers.cm import RejectReason

Names = Mapping[str, int]

ACCESS: Names = {each.name: each.value for each in Access if each.name} | {
    "NONE": 0,
    "ALL": int(ALL_ACCESS),
}
TYPES: Names = {each.name: each.value for each in QPType}
STATES: Names = {each.name: each.value for each in QPState}
STATUSES: Names = {each.name: each.value for each in WCStatus}
SEND_OPCODES: Names = {each.name: each.value for each in WROpcode}
EVENTS: Names = {each.name: each.value for each in EventType}
_ERRNOS = errno.EINVAL, errno.ENOMEM, errno.EFAULT, errno.EADDRINUSE
ERRORS: Names = {errno.errorcode[each]: each for each in _ERRNOS}
REASONS: Names = {each.name: each.value for each in RejectReason}
NOTHING: Names = {}
SEND_FLAGS: Names = {each.name: each.value for each in SendFlags if each.name} | {"NONE": 0}
QUEUES: Names = {"send": 0, "recv": 1}


def _numbers(names: str) -> Mapping[str, Names]:
    """Arguments whose values have no names."""
    return dict.fromkeys(names.split(), NOTHING)


_ATTRIBUTES: Mapping[str, Names] = {
    "access": ACCESS,
    **_numbers(
        "timeout retry_cnt rnr_retry min_rnr_timer max_rd_atomic max_dest_rd_atomic sqd_event "
        "qkey pkey_index"
    ),
}
_FAILS: Mapping[str, Names] = {"fails": ERRORS}
_DEPTHS: Mapping[str, Names] = {"initiator_depth": NOTHING, "responder_resources": NOTHING}
_CONTENTS: Mapping[str, Names] = {"len": NOTHING, "at": NOTHING, "u64": NOTHING}


@dataclass(frozen=True, slots=True)
class VerbForm:
    """The arguments of a verb."""

    doc: str
    args: Mapping[str, Names]
    """Arguments, each with the names of its values."""
    words: Names | None = None
    """The words that may follow the name; `{}` for any new name."""
    what: str = ""
    """That word, in messages."""
    has_address: bool = False
    has_data: bool = False
    expects: bool = False
    """Whether it checks something, so that its arguments may be ranges."""
    waits: bool = False
    """Whether it waits, so that its time is a limit."""


VERBS: Mapping[str, VerbForm] = {
    "qp": VerbForm(
        "The connection: first of all, or not at all if everything is to be usual. With a name, "
        "another queue pair of the device.",
        {
            **_ATTRIBUTES,
            "type": TYPES,
            "state": STATES,
            **_numbers(
                "mtu rq_psn sq_psn pkey size srq max_send_wr max_recv_wr send_cqe recv_cqe version "
                "max_send_sge max_recv_sge pkey_1 pkey_2 pkey_3 rearm"
            ),
        },
    ),
    "reconnect": VerbForm(
        "Reset the queue pair and connect it again; what is not given stays as it was. With "
        "another type, a queue pair of that type takes its place.",
        {**_ATTRIBUTES, "type": TYPES, **_numbers("mtu rq_psn sq_psn rearm")},
    ),
    "mr": VerbForm(
        "Register memory; NAME.va, NAME.rkey, NAME.lkey, NAME.size and NAME.end are its numbers.",
        {"len": NOTHING, "access": ACCESS, "pd": NOTHING},
        words={},
        what="a name for the region",
    ),
    "mw": VerbForm(
        "Bind a memory window to the queue pair, of type 2 unless it says 1.",
        {"va": NOTHING, "len": NOTHING, "access": ACCESS, "type": {"1": 1, "2": 2}},
        words={},
        what="a name for the window",
    ),
    "dereg": VerbForm("Deregister a region.", _FAILS, words={}, what="the name of a region"),
    "bind": VerbForm(
        "Post the send request that binds a window again; one of no bytes unbinds it.",
        {**_numbers("wr_id va len"), "access": ACCESS, "flags": SEND_FLAGS, **_FAILS},
        words={},
        what="the name of a window",
    ),
    "modify": VerbForm(
        "Modify the queue pair; what the transition needs and is not given stays as it was.",
        {**_ATTRIBUTES, "state": STATES, **_FAILS},
    ),
    "post_recv": VerbForm(
        "Post a receive request.",
        {"wr_id": NOTHING, "len": NOTHING, "addr": NOTHING, "lkey": NOTHING, **_FAILS},
    ),
    "post_send": VerbForm(
        "Post a send request.",
        {
            **_numbers("wr_id len addr lkey remote_addr rkey imm_data"),
            **_numbers("invalidate_rkey compare_add swap flush_len u64"),
            **_numbers("remote_qpn remote_qkey remote_srqn"),
            "flags": SEND_FLAGS,
            "flush_type": {each.name: each.value for each in FlushType if each.name},
            "flush_level": {each.name: each.value for each in FlushLevel},
            **_FAILS,
        },
        words=SEND_OPCODES,
        what="the opcode of a work request",
    ),
    "store": VerbForm(
        "Write to the device's memory: the test pattern, a number in its byte order, or bytes.",
        _CONTENTS,
        has_address=True,
        has_data=True,
    ),
    "poll": VerbForm(
        "The next completion, within the time; or `nothing`.",
        {
            "wr_id": NOTHING,
            "status": STATUSES,
            "opcode": {each.name: each.value for each in WCOpcode},
            "byte_len": NOTHING,
            "imm_data": NOTHING,
            "src_qp": NOTHING,
            "pkey_index": NOTHING,
            "flags": {each.name: each.value for each in WCFlags if each.name} | {"NONE": 0},
            "nothing": NOTHING,
        },
        words=QUEUES,
        what="a queue, send or recv",
        expects=True,
        waits=True,
    ),
    "notify": VerbForm(
        "Request an event for the next completion of a queue; or for the next solicited one.",
        {"solicited": NOTHING},
        words=QUEUES,
        what="a queue, send or recv",
    ),
    "cq_event": VerbForm(
        "The next event of a completion queue, within the time; or `nothing`.",
        {},
        words={**QUEUES, "nothing": -1},
        what="a queue, send or recv, or nothing",
        expects=True,
        waits=True,
    ),
    "srq_limit": VerbForm(
        "Request an event when fewer receive requests than this are in the shared queue.",
        {"limit": NOTHING, **_FAILS},
    ),
    "event": VerbForm(
        "The next asynchronous event, within the time; or `nothing`.",
        {},
        words={**EVENTS, "nothing": -1},
        what="an asynchronous event or nothing",
        expects=True,
        waits=True,
    ),
    "state": VerbForm(
        "The state that the queue pair is in.",
        {},
        words=STATES,
        what="a state of a queue pair",
        expects=True,
    ),
    "memory": VerbForm(
        "What the memory of the device holds: the test pattern, a number, bytes, or zeros.",
        {**_CONTENTS, "zero": NOTHING},
        has_address=True,
        has_data=True,
        expects=True,
    ),
    "pfc": VerbForm(
        "A PFC frame pauses priorities of the device's port, a bit for each; with 0, resumes them.",
        {"priorities": NOTHING, "quanta": NOTHING},
    ),
    "listen": VerbForm(
        "Accept requests for a service.", {"service": NOTHING, "backlog": NOTHING, **_FAILS}
    ),
    "unlisten": VerbForm("Stop accepting.", _FAILS),
    "connect": VerbForm(
        "Ask the peer for a connection.",
        {
            **_numbers("service response_timeout max_cm_retries"),
            **_DEPTHS,
            **_FAILS,
        },
    ),
    "resolve": VerbForm(
        "Ask the peer for the queue pair of a datagram service.", {"service": NOTHING, **_FAILS}
    ),
    "accept": VerbForm(
        "Answer a REQ with a REP, with the queue pair in RTR.", {**_DEPTHS, **_FAILS}
    ),
    "reject": VerbForm("Refuse a REQ or a REP.", {"reason": REASONS, **_FAILS}),
    "delay": VerbForm("Ask for more time with an MRA.", {"service_timeout": NOTHING, **_FAILS}),
    "ready": VerbForm("Answer a REP with an RTU, with the queue pair in RTS.", _FAILS),
    "disconnect": VerbForm("End the connection with a DREQ.", _FAILS),
    "cm_event": VerbForm(
        "The next event of the connection manager, within the time; or `nothing`.",
        {"reason": REASONS},
        words={**{each.name: each.value for each in EventKind}, "nothing": -1},
        what="an event of the connection manager",
        expects=True,
        waits=True,
    ),
}

_ENUMERATIONS = frozenset({"type", "state", "status", "opcode", "flush_level", "fails"})
"""Arguments whose value is one of the numbers that have names."""

LISTS = frozenset({"len", "addr", "lkey"})
"""Arguments of `post_send` and `post_recv` that may have several values: pieces of memory."""

_FLAGS = frozenset({"access", "flags", "flush_type"})
"""Arguments whose value is a sum of the numbers that have names."""

_WORD, _LONG = (0, (1 << 32) - 1), (0, (1 << 64) - 1)

RANGES: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("timeout", "min_rnr_timer"), (0, 31)),
    **dict.fromkeys(("retry_cnt", "rnr_retry"), (0, 7)),
    **dict.fromkeys(("max_rd_atomic", "max_dest_rd_atomic"), (0, 255)),
    **dict.fromkeys(("srq", "sqd_event", "pd", "rearm", "solicited"), (0, 1)),
    **dict.fromkeys(("lkey", "rkey", "imm_data", "invalidate_rkey", "byte_len"), _WORD),
    **dict.fromkeys(("qkey", "remote_qkey"), _WORD),
    **dict.fromkeys(("remote_qpn", "remote_srqn", "src_qp"), (0, (1 << 24) - 1)),
    **dict.fromkeys(("pkey_index", "limit", "quanta"), (0, (1 << 16) - 1)),
    "priorities": (0, 0xFF),
    **dict.fromkeys(("wr_id", "addr", "va", "remote_addr", "compare_add", "swap", "u64"), _LONG),
}
"""Least and greatest number of an argument, as the fields of libibverbs have room for."""


def impossible(name: str, names: Names, number: int) -> str:
    """Why an argument cannot have this number, with what is possible; empty if it can."""
    if name in _ENUMERATIONS:
        if number in names.values():
            return ""
        return f"{name} is {number}, not one of {', '.join(names)}"
    if name in _FLAGS:
        known = 0
        for each in names.values():
            known |= each
        if number >= 0 and not number & ~known:
            return ""
        return f"{name} is {number:#x}, not a sum of {', '.join(names)}"
    low, high = RANGES.get(name, _LONG)
    return "" if low <= number <= high else f"{name} is {number}, not from {low} to {high}"


MANAGER_VERBS = (
    "listen",
    "unlisten",
    "connect",
    "resolve",
    "accept",
    "reject",
    "delay",
    "ready",
    "disconnect",
)
"""Commands of the application to its connection manager."""

OWNED_VERBS = (
    "bind",
    "cm_event",
    "cq_event",
    "modify",
    "mw",
    "notify",
    "poll",
    "post_recv",
    "post_send",
    "reconnect",
    "srq_limit",
    "state",
    *MANAGER_VERBS,
)
"""Verbs that may follow the name of a queue pair."""
