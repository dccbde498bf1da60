"""What a minimised case needs to be unusual, although a right device does not mind it."""

from __future__ import annotations

from dataclasses import replace

from ibwire.fuzz.case import Case, Connection, Mad, Packet, Post, Step, article_of
from ibwire.fuzz.judge.concurrency import ELSEWHERE, both
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.judge.scene import FENCE, SHORT, last_connection
from ibwire.fuzz.judge.setting import ORDER, is_of_requester
from ibwire.fuzz.minimise import Shows
from ibwire.fuzz.targets.emulated_device import OWN_QKEY_OF_POST
from ibwire.fuzz.vocabulary.cm.wording import OTHER_ID_THAN, message_text
from ibwire.rc.work import WROpcode
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import INFO, Operation, Position
from ibwire_layers.psn import MASK


def with_needs(name: Name, case: Case, shows: Shows | None = None) -> Name:
    """The name of what the last step of a minimised case shows, with what the case needs.

    Only a minimised case has reserved or congestion bits, or another first PSN than the usual one,
    because it needs them. shows: whether another case shows the same; without it nothing is tried.
    """
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
    return name if shows is None else _with_no_bytes(name, case, shows)


def _saying(name: Name, words: str) -> Name:
    """The name with words about the packet, behind what it says of that already."""
    what, colon, does = name.text.partition(": ")
    return replace(name, text=f"{what} {words}{colon}{does}")


def _with_no_bytes(name: Name, case: Case, shows: Shows) -> Name:
    """The name with that the last step has no bytes, if with some it does not show the same."""
    *earlier, last = case.steps
    longer = _with_bytes(last)
    if longer is None or "bytes" in name.text or shows(case.with_steps([*earlier, longer])):
        return name
    return _saying(name, "of no bytes")


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

_FEW_BYTES = 8
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
