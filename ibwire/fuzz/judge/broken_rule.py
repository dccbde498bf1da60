"""The rule that a device breaks at a packet or request without a fault."""

from __future__ import annotations

from ibwire.fuzz.case import Connection, Packet, Post
from ibwire.fuzz.judge.causes import changed_number
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.concurrency import ACK_DUE, both
from ibwire.fuzz.judge.effects import OF_FIELD, STATUS, Effect, statuses_of
from ibwire.fuzz.judge.request_names import INVALIDATE, SERVICES, UC_BEGINNINGS
from ibwire.fuzz.judge.response_names import INSIDE_MESSAGE
from ibwire.fuzz.judge.scene import RNR_WAIT, STEPS, TIME, Scene
from ibwire.fuzz.judge.setting import ORDER
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.targets.emulated_device import SENDS
from ibwire.rc.work import WCStatus
from ibwire_layers.opcodes import INFO, Operation, Position


def rule_of_right(about: About, effect: Effect, scene: Scene) -> str:
    """The rule for what goes wrong at a packet or request without a fault."""
    if scene.is_retransmission and effect.group in (*OF_FIELD, "data", "payload"):
        return rule_of_field(effect, scene)
    if effect.group in OF_FIELD:
        return rule_of_field(effect, scene) or about.rule
    if not scene.is_reliable:
        return _rule_of_service(about, effect, scene)
    if about.rule == ORDER or scene.repeats_invalidate:
        return about.rule
    if effect.group == "an answer" and scene.is_of_limited_message:
        return _LIMITED
    if about.rule == INVALIDATE.rule and _has_failed(scene.difference):
        return about.rule
    if completes_too_much(scene):
        return PARTIAL
    if about.rule.endswith("#ack-coalescing") and effect.rule == STATUS:
        return both(about.rule, effect.rule)
    if effect.rule:
        return effect.rule
    if not isinstance(scene.step, Packet):
        return about.rule
    info = INFO.get(scene.step.opcode)
    operation = None if info is None else info.operation
    if effect.group in _BYTES and operation is Operation.ATOMIC_ACKNOWLEDGE:
        return f"IBA 9.4.5; {_TRANSPORT}atomics"
    if about.rule not in _RULES_OF_RIGHT:
        return about.rule
    if effect.nak:
        return _rule_of_nak(about, effect, scene)
    if effect.group == "another answer" and effect.text.count("READ_RESPONSE") > 1:
        return STEPS[Post].rule  # it is cut into packets in another way
    rules = _RULES_OF_RIGHT[about.rule]
    if effect.group in _BYTES and operation in _STORED:
        return _PADDING if scene.is_beyond and scene.step.length & 3 else _STORED[operation]
    if effect.group not in ("no answer", "another answer"):
        return about.rule
    return _PSN_COUNT if scene.has_long_read else rules


def _rule_of_nak(about: About, effect: Effect, scene: Scene) -> str:
    """The rule that a NAK stands for which was sent without a reason."""
    if effect.nak.startswith("NAK PSN") and scene.has_long_read:
        return _PSN_COUNT
    rule = next((rule for nak, rule in _OF_NAK.items() if effect.nak.startswith(nak)), "")
    limits = {"max_dest_rd_atomic": _READ_RESOURCES, "access": _ACCESS_FLAGS}
    for name, limited in limits.items():
        if not rule and getattr(scene.connection, name) != getattr(Connection(), name):
            return limited
    return rule or about.rule


def _rule_of_service(about: About, effect: Effect, scene: Scene) -> str:
    """The rule for a right packet or request of an unreliable service."""
    fields = effect.group.split(" ")
    own = SERVICES[scene.service].rule
    if effect.rule == STATUS and about.rule != own:
        return about.rule
    if effect.rule == STATUS or "wr_id" in fields:
        return own
    if scene.service == "UD" and isinstance(scene.step, Post) and not effect.rule:
        return own
    if fields == ["byte_len"]:
        if scene.service == "UD":
            return both(own, effect.rule)
        return own if about in UC_BEGINNINGS else effect.rule
    is_own_memory = effect.group == "memory" and about.rule == own
    if scene.service == "UC" and is_own_memory and isinstance(scene.step, Packet):
        info = INFO.get(scene.step.opcode)
        if info is not None and info.operation is Operation.WRITE and about.what == "a right WRITE":
            is_first = info.position in (Position.FIRST, Position.ONLY)
            if scene.is_beyond and scene.step.length & 3:
                return _PADDING
            if scene.is_dropped:
                return own if is_first else _WRITE_LENGTH
            return _STORED[Operation.WRITE]
    return effect.rule or about.rule


def rule_of_field(effect: Effect, scene: Scene) -> str:
    """The rule of the field of an answer that differs, or of a packet that is sent again."""
    if effect.group == "aeth.msn" and _is_taken_for_duplicate(scene):
        return _PSN_COUNT
    if not isinstance(scene.step, Post):
        if effect.group.startswith("reth."):
            return f"IBA 9.7.6; {_TRANSPORT}read-restart"
        if effect.group == "bth.psn" and scene.about is RNR_WAIT:
            return both(TIME.rule, RNR_WAIT.rule)
        if scene.is_retransmission:
            is_migrated = effect.group == "bth.mig_req" and scene.connection.rearmed
            if is_migrated:
                return _MIGRATION
            has_own = effect.rule and effect.group != "bth.psn"
            return both(TIME.rule, effect.rule) if has_own else TIME.rule
    if not scene.is_reliable and effect.group == "bth.ack_req":
        return both(SERVICES[scene.service].rule, effect.rule)
    if effect.group == "bth.psn" and isinstance(scene.step, Post):  # of its own requests
        return _PSN_COUNT if scene.is_reliable else both(SERVICES[scene.service].rule, _PSN_COUNT)
    if effect.group == "bth.ack_req" and scene.is_of_limited_message:
        return both(effect.rule, _LIMITED)
    return effect.rule


def _is_taken_for_duplicate(scene: Scene) -> bool:
    """Whether the ACK of a right request behind a long READ does not count that request."""
    is_new = scene.has_long_read and not scene.about.is_wrong and scene.held is None
    return is_new and changed_number(scene.difference, "aeth.msn") == -1


def _has_failed(difference: Difference) -> bool:
    """Whether a request succeeds on one side and fails on the other, by its completion."""
    if difference.kind is not Kind.COMPLETION:
        return False
    sides = (difference.expected, difference.got)
    statuses = [statuses_of(side) for side in sides]
    return (WCStatus.SUCCESS in statuses[0]) != (WCStatus.SUCCESS in statuses[1])


def rule_of_held(scene: Scene) -> str:
    """The rule of what a held packet stores, which the last step shows; empty for none."""
    held = scene.held
    info = None if held is None else INFO.get(held.opcode)
    if held is None or info is None or info.operation not in _STORED:
        return ""
    rule = _STORED[info.operation]
    return both(rule, _PADDING) if held.length & 3 else rule


def completes_too_much(scene: Scene) -> bool:
    """Whether an ACK or a NAK that acknowledges a part of a message completes the message."""
    step, difference = scene.step, scene.difference
    is_partial = scene.about.rule.endswith(("#ack-coalescing", "#rnr-place"))
    is_partial |= scene.about.what.endswith(INSIDE_MESSAGE)
    if difference.kind is not Kind.COMPLETION or not is_partial or not isinstance(step, Packet):
        return False
    expected, got = (
        {each[1] for each in side if isinstance(each, tuple) and _is_done(each)}
        for side in (difference.expected, difference.got)
    )
    return bool(got - expected)


def _is_done(completion: tuple[int, ...]) -> bool:
    """Whether a send request has succeeded."""
    return completion[0] == SENDS and completion[2] == WCStatus.SUCCESS


_TRANSPORT = "docs/reference/transport.md#"
_WIRE = "docs/reference/wire-formats.md#"
_READ_RESOURCES = f"IBA 9.7.4.1.5; {_TRANSPORT}read-resources"
_ACCESS_FLAGS = f"IBA 9.7.4.1.5; {_TRANSPORT}access-flags"
_PADDING = f"IBA 9.2.4; {_WIRE}padding"
_PSN_COUNT = f"IBA 9.7.2; {_TRANSPORT}psn-count"
PARTIAL = f"IBA 9.7.5.1.2; {_TRANSPORT}ack-coalescing"
_WRITE_LENGTH = f"C9-93; {_TRANSPORT}write-length"
_LIMITED = f"IBA 9.7.7.2.5; {_TRANSPORT}limited-message"

_BYTES = ("memory", "data")
"""What was stored is wrong in memory, or in a packet that is sent then."""

_OF_NAK = {
    "RNR NAK": f"IBA 9.7.5.2.8; {_TRANSPORT}receive-missing",
    "NAK PSN": f"IBA 9.7.5.1.3; {_TRANSPORT}psn-ahead",
    "NAK REMOTE_ACCESS": f"IBA 9.7.4.1.5; {_TRANSPORT}remote-key",
    "NAK REMOTE_OPERATIONAL": f"IBA 9.9.3 class A; {_TRANSPORT}receive-fault",
}
"""What a NAK says, which may be false; an invalid request may be one for many reasons."""

RESPONSES = f"IBA 9.7.6; {_TRANSPORT}responses"
ATOMICS = f"IBA 9.4.5; {_TRANSPORT}atomics"

_RULES_OF_RIGHT = {
    f"IBA 9.7.5; {_TRANSPORT}ack-due": ACK_DUE,
    f"IBA 9.7.5; {_TRANSPORT}write-length": ACK_DUE,
    INVALIDATE.rule: ACK_DUE,
    f"IBA 9.7.5; {_TRANSPORT}response-kinds": f"IBA 9.7.5; {_TRANSPORT}response-kinds",
    ATOMICS: ATOMICS,
    f"IBA A19; {_TRANSPORT}atomic-write": f"IBA A19; {_TRANSPORT}atomic-write",
}
"""For what a right request is about, the rule that says how it is answered."""

_STORED: dict[Operation | None, str] = {
    Operation.WRITE: f"IBA 9.3; {_TRANSPORT}reth",
    Operation.SEND: f"IBA 9.7.5.2; {_TRANSPORT}partial-data",
}
"""The rule that says where the bytes of a request go."""

_MIGRATION = f"IBA 17.2.8, 9.7.6.1.3; {_TRANSPORT}migration, {_TRANSPORT}retry-count"
"""A path changes too early or too late, or retries are counted wrongly."""
