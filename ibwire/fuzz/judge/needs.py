"""What a minimised case needs to be unusual, although a right device does not mind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ibwire.fuzz.case import (
    Case,
    Command,
    Connect,
    Connection,
    Mad,
    Packet,
    Post,
    Step,
    Wait,
    article_of,
)
from ibwire.fuzz.judge.concurrency import ELSEWHERE, both
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.judge.packet_faults import with_own_faults
from ibwire.fuzz.judge.scene import FENCE, SHORT, STEPS, last_connection
from ibwire.fuzz.judge.setting import ORDER, is_of_requester
from ibwire.fuzz.judge.wording import step_text
from ibwire.fuzz.minimise import Shows
from ibwire.fuzz.targets.emulated_device import OWN_QKEY_OF_POST
from ibwire.fuzz.vocabulary.cm.wording import OTHER_ID_THAN, message_text
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WROpcode
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import INFO, Operation, Position
from ibwire_layers.psn import MASK


def with_needs(name: Name, case: Case, shows: Shows | None = None) -> Name:
    """The name of what the last step of a minimised case shows, with what the case needs.

    Only a minimised case has reserved or congestion bits, or another first PSN than the usual one,
    because it needs them. shows: whether another case shows the same; without it nothing is tried.
    """
    name = _with_connection(name, case)
    if len(case.steps) > SHORT:
        return name
    for add in (
        _with_immediate,
        _with_own_qkey,
        _with_fence,
        _with_odd_message,
        _with_odd_bits,
        _with_other_psn,
        _with_other_pair,
        _with_first_psn,
    ):
        name = add(name, case)
    if shows is None:
        return name
    for test in (_with_no_bytes, _with_solicited, _with_room, _with_earlier):
        name = test(name, case, shows)
    return name


def _saying(name: Name, words: str) -> Name:
    """The name with words about the packet, behind what it says of that already."""
    what, colon, does = name.text.partition(": ")
    return replace(name, text=f"{what} {words}{colon}{does}")


def _with_connection(name: Name, case: Case) -> Name:
    """The name and the rule of what a case shows that needs another connection before its last
    one, with what that one has if it is little.
    """
    places = [at for at, each in enumerate(case.steps[:-1]) if isinstance(each, Connect)]
    if not places or any(isinstance(each, Mad | Command) for each in case.steps):
        return name
    where = "after another connection"
    if len(places) > 1:
        where = f"after {len(places)} other connections"
    elif kinds := _kinds_of(with_own_faults(case, SPEC).steps[: places[0]]):
        where = f"{where} with {kinds}"
    does = name.text.partition(": ")[2]
    named = _saying(name, where)
    if _AS_IF in does:  # what was done on the connection before is known
        return named
    cause = f"after another connection: {does}"
    rule = both(name.rule, STEPS[Connect].rule)
    return replace(named, rule=rule, causes=(*name.causes, cause))


def _kinds_of(steps: Sequence[Step]) -> str:
    """Steps in words, each kind once; empty for none and for more than a few kinds."""
    texts = []
    for step in steps:
        why = step.why if isinstance(step, Packet) else ""
        texts.append(f"{step_text(step)} ({why})" if why else step_text(step))
    kinds = list(dict.fromkeys(texts))
    return " and ".join(kinds) if len(kinds) <= _MOST_KINDS else ""


def _with_no_bytes(name: Name, case: Case, shows: Shows) -> Name:
    """The name with that the last step has no bytes, if with some it does not show the same."""
    *earlier, last = case.steps
    longer = _with_bytes(last)
    if longer is None or "bytes" in name.text or shows(case.with_steps([*earlier, longer])):
        return name
    return _saying(name, "of no bytes")


def _with_solicited(name: Name, case: Case, shows: Shows) -> Name:
    """The name with the solicited event that the last step asks for, if that matters."""
    *earlier, last = case.steps
    if "solicited" in name.text:
        return name
    if isinstance(last, Post) and last.solicited:
        other: Step = replace(last, solicited=False)
    elif isinstance(last, Packet) and last.fields.get(_SOLICITED):
        other = last.altered(fields={**last.fields, _SOLICITED: 0})
    else:
        return name
    is_same = shows(case.with_steps([*earlier, other]))
    return name if is_same else _saying(name, "with a solicited event")


def _with_room(name: Name, case: Case, shows: Shows) -> Name:
    """The name with the bytes of the receive request, if those matter for the last packet."""
    room, usual = case.connection.room, Connection().room
    last = case.steps[-1]
    is_told = "receive" in name.text or any(isinstance(each, Connect) for each in case.steps)
    if room == usual or is_told or not isinstance(last, Packet):
        return name
    other = replace(case, connection=replace(case.connection, room=usual))
    return name if shows(other) else _saying(name, f"with a receive request of {room} bytes")


def _with_earlier(name: Name, case: Case, shows: Shows) -> Name:
    """The name with the steps before the last one that are not there for it anyway, if without
    them the case does not show the same.
    """
    if any(each in name.text for each in _SAYING_EARLIER):
        return name
    *earlier, last = with_own_faults(case, SPEC).steps
    told = [each for each in earlier if _is_told(each, last)]
    kinds = _kinds_of(told)
    if not kinds or any(isinstance(each, Connect) for each in earlier):
        return name
    rest = [one for one, other in zip(case.steps[:-1], earlier, strict=True) if other not in told]
    is_same = shows(case.with_steps([*rest, case.steps[-1]]))
    return name if is_same else _saying(name, f"after {kinds}")


def _is_told(step: Step, last: Step) -> bool:
    """Whether a step before the last one is no part of what that is about anyway.

    A response needs its request, and a wait for a timer one that waits.
    """
    if isinstance(last, Wait):
        return isinstance(step, Packet)
    if isinstance(last, Post):
        return isinstance(step, Packet | Post)
    return isinstance(step, Post) and not is_of_requester(last)


def _with_bytes(step: Step) -> Step | None:
    """A request of one packet without bytes, with some; `None` for another step."""
    if isinstance(step, Post) and not step.length and step.opcode in _OF_ANY_LENGTH:
        return replace(step, length=_FEW_BYTES)
    if not isinstance(step, Packet) or isinstance(step, Mad) or step.psn != _DUE:
        return None
    info = INFO.get(step.opcode)
    if info is None or info.is_response:
        return None
    if info.operation is Operation.READ and not step.fields.get(_DMA_LEN, 0):
        return step.altered(fields={**step.fields, _DMA_LEN: _FEW_BYTES})
    is_whole = info.operation in _SENDING and info.position is Position.ONLY
    return step.altered(length=_FEW_BYTES) if is_whole and not step.length else None


def _with_immediate(name: Name, case: Case) -> Name:
    """The name with the immediate data of the last packet, if a case needs these."""
    *_, last = case.steps
    number = last.fields.get(_IMMEDIATE) if isinstance(last, Packet) else None
    if not isinstance(number, int):
        return name
    return _saying(name, f"with immediate data 0x{number:x}")


def _with_own_qkey(name: Name, case: Case) -> Name:
    """The name of a posted datagram that is to have the Q_Key of its queue pair."""
    *_, last = case.steps
    service = last_connection(case, len(case.steps) - 1).service
    if service != "UD" or not isinstance(last, Post) or not last.remote & OWN_QKEY_OF_POST:
        return name
    return _saying(name, "with a Q_Key whose highest bit is set")


def _with_fence(name: Name, case: Case) -> Name:
    """The name and the rule with the fence of a request that the device was given."""
    if not any(isinstance(each, Post) and each.fence for each in case.steps):
        return name
    rule = name.rule if "#fence" in name.rule else both(FENCE, name.rule)
    name = replace(name, rule=rule, causes=(*name.causes, "a fence"))
    return name if "fence" in name.text else _saying(name, "while a request with a fence waits")


def _with_odd_message(name: Name, case: Case) -> Name:
    """The name with the message before the last one of an exchange that has something other."""
    *earlier, last = case.steps
    if not isinstance(last, Mad):
        return name
    own = [each for each in earlier if isinstance(each, Mad) and each.exchange == last.exchange]
    odd = next((text for text in map(message_text, reversed(own)) if text), "")
    if not odd or odd in name.text or OTHER_ID_THAN in name.text:
        return name
    return _saying(name, f"after {article_of(odd)} {odd}")


def _with_odd_bits(name: Name, case: Case) -> Name:
    *_, last = case.steps
    for step in reversed(case.steps):
        odd = _odd_bits(step) if isinstance(step, Packet) else None
        if odd is not None:
            words, rule = odd
            where = f"with {words}" if step is last else f"after a packet with {words}"
            return replace(_saying(name, where), rule=rule, group=words)
    return name


def _odd_bits(packet: Packet) -> tuple[str, str] | None:
    """Bits that are set and change nothing for a right device, with their rule."""
    for names, words, rule in _CHANGE_NOTHING:
        if any(packet.fields.get(each) for each in names):
            return words, rule
    syndrome = packet.fields.get("aeth.syndrome", 0)
    is_set = isinstance(syndrome, int) and syndrome & aeth.RESERVED_BIT
    return (_RESERVED, _SYNDROME) if is_set else None


def _with_other_psn(name: Name, case: Case) -> Name:
    """The name with the PSN of a message of UC that is not due, whatever else the message is."""
    packets = [each for each in case.steps if isinstance(each, Packet)]
    odd = [each for each in packets if each.psn[0] == "expected" and each.psn[1]]
    if last_connection(case, len(case.steps) - 1).service != "UC" or not odd:
        return name
    words = "an old PSN" if odd[-1].psn[1] < 0 else "a PSN that is not due yet"
    name = replace(name, causes=(*name.causes, f"UC: {words}"))
    if "PSN" in name.text or "gap" in name.text:
        return name
    where = f"with {words}" if odd[-1] is case.steps[-1] else f"after a message with {words}"
    return replace(_saying(name, where), rule=_UC)


def _with_other_pair(name: Name, case: Case) -> Name:
    """The name with the requests of another queue pair than that of the last step."""
    *earlier, last = case.steps
    own = last.pair if isinstance(last, _OF_A_PAIR) else None
    pairs = {each.pair for each in earlier if isinstance(each, _OF_A_PAIR)}
    if own is None or pairs <= {own} or "queue pair" in name.text:
        return name
    cause = f"{name.rule}, beside another queue pair"
    rule = both(name.rule, ELSEWHERE.rule)
    name = replace(name, rule=rule, causes=(*name.causes, cause))
    return _saying(name, "beside requests of another queue pair")


def _with_first_psn(name: Name, case: Case) -> Name:
    is_own = is_of_requester(case.steps[-1])
    connections = last_connection(case, len(case.steps) - 1), Connection()
    psn, usual = (each.sq_psn if is_own else each.rq_psn for each in connections)
    is_near_wrap = not SHORT <= psn <= MASK - SHORT
    if psn in (usual, FAR_FIRST_PSN) or is_near_wrap or name.rule.endswith("#psn-order"):
        return name
    text = f"{name.text}, if the first PSN is {psn}"
    return replace(name, text=text, rule=both(ORDER, name.rule))


FAR_FIRST_PSN = 1 << 20
"""A first PSN from which no case comes to the wrap."""

_AS_IF = ", as if "
_SAYING_EARLIER = (" after ", "as if", "posted receive", "its own requests", "beside requests")
"""What a name has in it that says already what comes before the last step, or why it matters."""

_MOST_KINDS = 2
"""Kinds of steps in a name."""

_FEW_BYTES = 8
_SOLICITED = "bth.se"
_IMMEDIATE = "immdt.imm_data"
_DUE = ("expected", 0)
_DMA_LEN = "reth.dma_len"
_SENDING = (Operation.SEND, Operation.WRITE)
_OF_ANY_LENGTH = (
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_WRITE_WITH_IMM,
    WROpcode.SEND,
    WROpcode.SEND_WITH_IMM,
    WROpcode.SEND_WITH_INV,
    WROpcode.RDMA_READ,
)
_OF_A_PAIR = (Packet, Post)
_RESERVED = "reserved bits"
_RESERVED_BITS = "IBA 9.2; docs/reference/wire-formats.md#reserved-bits"
_CONGESTION = (
    "IBA 9.2, 7.8.1; docs/reference/wire-formats.md#reserved-bits, "
    "docs/reference/wire-formats.md#icrc"
)
_CHANGE_NOTHING = (
    (("bth.resv6a", "bth.resv7", "deth.reserved", "xrceth.reserved"), _RESERVED, _RESERVED_BITS),
    (("bth.fecn",), "FECN", _CONGESTION),
    (("bth.becn",), "BECN", _CONGESTION),
)
_UC = "IBA 9.8.2; docs/reference/transport.md#uc"
_SYNDROME = "IBA 9.7.5.2; docs/reference/transport.md#aeth"
