"""What is unusual about the queue pairs of a case, if a minimised case needs it."""

from __future__ import annotations

from dataclasses import replace

from ibwire.fuzz.case import Packet, Step
from ibwire.fuzz.judge.comparison import Kind
from ibwire.fuzz.judge.effects import FLUSH, STATUS, Effect, statuses_of
from ibwire.fuzz.judge.request_names import (
    EMPTY_RECEIVE_KEY,
    NOT_READY,
    OVERSIZED_DATAGRAM,
    UC_BEHIND,
    UC_GAP,
    WRAP,
)
from ibwire.fuzz.judge.scene import SHORT, Scene
from ibwire.fuzz.judge.subject import SGE_LIST, About
from ibwire.fuzz.sge_sizes import one_empty, sizes_of_sges
from ibwire.fuzz.targets.emulated_device import PKEYS
from ibwire.fuzz.vocabulary.queue_pair.encoding import number_of
from ibwire.rc.work import WCStatus
from ibwire_layers.opcodes import INFO, Operation, Position
from ibwire_layers.psn import MASK


def setting_of(scene: Scene, effect: Effect) -> About | None:
    """What is unusual about the queue pair of the last step, if that explains an effect."""
    connection, step = scene.connection, scene.step
    if connection.pkey_index and effect.group in _OF_PKEY:
        pkey = step.fields.get("bth.pkey") if isinstance(step, Packet) else None
        pkey = None if pkey is None else number_of(pkey, scene.reference.symbols)
        own = PKEYS[connection.pkey_index]
        member = "a limited member"
        if own & 0x8000:
            member = f"a member of partition 0x{own & 0x7FFF:04x}"
        what = f"to {member}" if pkey is None else f"another P_Key, to {member}"
        if pkey == own:  # of a limited member, as it is itself
            what = f"a limited member's P_Key, to {member}"
        elif not isinstance(step, Packet):
            what = f"as {member}"
        return replace(PKEY, what=what)
    if connection.rearmed and not scene.is_discarded:
        return REARMED  # whatever a packet is that is not discarded, its MigReq bit counts
    if not isinstance(step, Packet):
        return None
    is_of_request = effect.rule in ("", STATUS) or "wr_id" in effect.group.split()
    if connection.srq and is_of_request and not _is_dropped_message(scene):
        return SHARED
    if effect.rule not in ("", STATUS) or scene.about.is_wrong:
        return None
    info = INFO.get(step.opcode)
    is_scattered = connection.sges > 1 and scene.about is not EMPTY_RECEIVE_KEY
    if is_scattered and info is not None and info.operation is Operation.SEND:
        is_silent = effect.group == "no completion" or scene.is_dropped
        is_dropped = not scene.is_reliable and is_silent
        difference = scene.difference
        is_completion = difference.kind is Kind.COMPLETION
        is_refused = effect.nak or is_dropped or scene.stores_nothing
        found = _SGES_REFUSED if is_refused else _SGES
        if is_completion and WCStatus.LOC_PROT_ERR in statuses_of(difference.got):
            found = _SGES_KEY
        elif effect.nak.startswith("NAK REMOTE_OPERATIONAL"):
            found = _SGES_FAULT
        empty = one_empty(sizes_of_sges(connection.room, connection.sges))
        return replace(found, detail=f"{found.what}{empty}")
    return None


def _is_dropped_message(scene: Scene) -> bool:
    """Whether a message of UC or UD is dropped for what is wrong with it, on one side or on both.

    Its receive request, if it is of a shared queue, completes with an error then, which shows it.
    """
    about = scene.about
    if scene.is_reliable or scene.difference.kind is Kind.CRASH:
        return False
    if scene.service == "UD":
        return about is OVERSIZED_DATAGRAM
    info = INFO.get(scene.step.opcode) if isinstance(scene.step, Packet) else None
    is_whole = info is not None and info.position in (Position.ONLY, Position.LAST)
    is_whole &= about not in (UC_GAP, UC_BEHIND)  # which ends the message before it
    is_missing = scene.difference.kind is Kind.COMPLETION and not scene.difference.got
    if is_missing and is_whole and not about.is_wrong:
        return False  # it was dropped: taken, it would complete with success
    is_unusual = about.is_wrong or not about.rule.endswith("#uc")
    return is_unusual and about.rule != NOT_READY.rule


def across_wrap(scene: Scene, about: About, step: Step | None = None) -> About:
    """What a step is about, the last one by default, with the wrap of its PSNs if a short case
    needs that.
    """
    is_own = is_of_requester(step or scene.step)
    first_psn = scene.connection.sq_psn if is_own else scene.connection.rq_psn
    is_near = first_psn > MASK - SHORT or first_psn < SHORT
    if not (is_near and scene.is_short) or about.rule.endswith("#psn-order"):
        return about
    what = f"{about.what}{AT_WRAP}".strip()
    detail = f"{about.detail}{AT_WRAP}" if about.detail else ""
    group = WRAP if about.is_wrong else ""
    return replace(about, what=what, detail=detail, rule=ORDER, treatment="", group=group)


def is_of_requester(step: Step) -> bool:
    """Whether a step is about the requests of the device."""
    return not isinstance(step, Packet) or _is_response(step)


def _is_response(packet: Packet) -> bool:
    info = INFO.get(packet.opcode)
    return info is not None and info.is_response


_TRANSPORT = "docs/reference/transport.md#"
_WIRE = "docs/reference/wire-formats.md#"
AT_WRAP = " at the PSN wrap"
ORDER = f"IBA 9.7.1; {_TRANSPORT}psn-order"

PKEY = About(
    "with another P_Key index", f"IBA 10.9.3; {_WIRE}partition-key", group="another P_Key index"
)

_OF_PKEY = frozenset(
    (
        "bth.pkey",
        "pkey_index",
        "no answer",
        "an answer",
        "executed",
        "refused",
        "another answer",
        "another NAK",
        "no completion",
        "a completion",
        "status",
        "memory",
        FLUSH,
    )
)
"""What goes wrong where P_Keys are compared: packets are taken or dropped, or have another one."""

_SGES = About("into a receive of several SGEs", SGE_LIST)
_SGES_KEY = replace(
    _SGES,
    rule=f"IBA 9.9.3 class A, 10.6; {_TRANSPORT}receive-fault, {_TRANSPORT}memory-access",
)
_SGES_FAULT = replace(
    _SGES, rule=f"IBA 9.9.3 class A, 10.6; {_TRANSPORT}receive-fault, {_TRANSPORT}memory-access"
)
_SGES_REFUSED = replace(_SGES, rule=f"IBA 9.7.4.1.6; {_TRANSPORT}receive-too-short")
SHARED = About(
    "with a shared receive queue", f"IBA 10.2.9; {_TRANSPORT}srq", group="a shared receive queue"
)
REARMED = About(
    "with an alternate path", f"IBA 17.2.8; {_TRANSPORT}migration", group="an alternate path"
)
