"""Every operator of the fuzzer, in one table: what it attacks, its group, and how often it is used.

To add an operator, write a function beside those of its role and a row here. The order of
the rows is part of what a seed means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Generic, TypeVar

from ibwire.fuzz.case import Packet, Role, Step
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import Management
from ibwire.fuzz.vocabulary.cm import operators as message
from ibwire.fuzz.vocabulary.cm.traffic import ManagerTraffic
from ibwire.fuzz.vocabulary.queue_pair import edge_operators as edge
from ibwire.fuzz.vocabulary.queue_pair import request_operators as request
from ibwire.fuzz.vocabulary.queue_pair import response_mutators as response
from ibwire.fuzz.vocabulary.queue_pair.traffic import Traffic


class Group(StrEnum):
    """What `--ops` calls operators of one kind."""

    PARSER = "parser"
    LENGTH = "length"
    ORDER = "order"
    PSN = "psn"
    DUP = "dup"
    MEMORY = "memory"
    ATOMIC = "atomic"
    RESOURCE = "resource"
    CONGESTION = "congestion"
    FIELD = "field"
    REPLY = "reply"
    PFC = "pfc"
    MAD = "mad"
    TIME = "time"


ON_REQUEST = (Group.PFC,)
"""Groups that are used only when `--ops` names them: they are about a port, not a queue pair."""

Function = TypeVar("Function", bound=Callable[..., Sequence[Step]])

RequestOperator = Callable[[Traffic, Emulation], Sequence[Step]]
"""Takes the right traffic of the case and the reference."""

ResponseMutator = Callable[[Random, Emulation, list[Packet]], Sequence[Step]]
"""Takes the correct responses to the reference's requests, at least one."""

MessageOperator = Callable[[ManagerTraffic, Management], Sequence[Step]]
"""Takes the exchanges of the case and the reference."""


@dataclass(frozen=True, slots=True)
class Operator(Generic[Function]):
    """One kind of deliberate error."""

    role: Role
    """The role that it attacks."""
    group: Group
    make: Function
    """Makes the steps."""
    weight: float = 2
    """How often it is used compared with the others."""
    fatal: bool = False
    """Whether a correct responder ends the connection for it; the case continues after others."""
    combined: bool = False
    """Whether only combined cases have it (`ibwire.fuzz.vocabulary.queue_pair.combined`)."""

    @property
    def name(self) -> str:
        """Name of its function."""
        return self.make.__name__


REQUEST_OPERATORS: Sequence[Operator[RequestOperator]] = (
    Operator(Role.RESPONDER, Group.PARSER, request.wrong_icrc),
    Operator(Role.RESPONDER, Group.PARSER, request.truncated),
    Operator(Role.RESPONDER, Group.PARSER, request.wrong_padding, weight=4),
    Operator(Role.RESPONDER, Group.PARSER, request.wrong_outer_length),
    Operator(Role.RESPONDER, Group.PARSER, request.other_destination, weight=4),
    Operator(Role.RESPONDER, Group.PARSER, request.other_service),
    Operator(Role.RESPONDER, Group.PARSER, request.reserved_opcode, fatal=True),
    Operator(Role.RESPONDER, Group.PARSER, request.reserved_bits),
    Operator(Role.RESPONDER, Group.LENGTH, request.wrong_packet_size, weight=8, fatal=True),
    Operator(Role.RESPONDER, Group.LENGTH, request.wrong_dma_length, weight=5, fatal=True),
    Operator(Role.RESPONDER, Group.LENGTH, request.missing_or_extra_part, fatal=True),
    Operator(Role.RESPONDER, Group.LENGTH, request.longer_than_receive, fatal=True),
    Operator(Role.RESPONDER, Group.LENGTH, request.atomic_write_length, fatal=True),
    Operator(Role.RESPONDER, Group.ORDER, request.missing_first, fatal=True),
    Operator(Role.RESPONDER, Group.ORDER, request.interleaved, weight=8, fatal=True),
    Operator(Role.RESPONDER, Group.PSN, request.psn_gap, weight=4),
    Operator(Role.RESPONDER, Group.PSN, request.old_psn),
    Operator(Role.RESPONDER, Group.DUP, request.duplicate, weight=6),
    Operator(Role.RESPONDER, Group.DUP, request.altered_duplicate, weight=6),
    Operator(Role.RESPONDER, Group.MEMORY, request.out_of_bounds, weight=8, fatal=True),
    Operator(Role.RESPONDER, Group.MEMORY, request.wrong_key, weight=8, fatal=True),
    Operator(Role.RESPONDER, Group.MEMORY, request.zero_length_access),
    Operator(Role.RESPONDER, Group.MEMORY, request.huge_length, fatal=True),
    Operator(Role.RESPONDER, Group.ATOMIC, request.malformed_atomic, weight=6, fatal=True),
    Operator(Role.RESPONDER, Group.ATOMIC, request.duplicate_atomic, weight=4),
    Operator(Role.RESPONDER, Group.RESOURCE, request.repeated_request, weight=4),
    Operator(Role.RESPONDER, Group.RESOURCE, request.burst),
    Operator(Role.RESPONDER, Group.RESOURCE, request.posted_receives),
    Operator(Role.RESPONDER, Group.CONGESTION, request.congestion_marks),
    Operator(Role.RESPONDER, Group.CONGESTION, request.congestion_notifications),
    Operator(Role.RESPONDER, Group.PFC, request.paused_requests, weight=4),
    Operator(Role.RESPONDER, Group.FIELD, request.any_field, weight=3),
    Operator(Role.RESPONDER, Group.PARSER, edge.icrc_bits, weight=4, combined=True),
    Operator(Role.RESPONDER, Group.PARSER, edge.partition_key, weight=6, combined=True),
    Operator(Role.RESPONDER, Group.LENGTH, edge.whole_packets, weight=6, combined=True),
    Operator(Role.RESPONDER, Group.LENGTH, edge.whole_receive, weight=6, combined=True),
    Operator(Role.RESPONDER, Group.DUP, edge.rest_of_a_read, weight=5, combined=True),
    Operator(Role.RESPONDER, Group.DUP, edge.lost_answers, weight=5, combined=True),
    Operator(Role.RESPONDER, Group.PSN, edge.long_gap, weight=3, combined=True),
    Operator(Role.RESPONDER, Group.PSN, edge.reordered_requests, weight=5, combined=True),
    Operator(Role.RESPONDER, Group.DUP, edge.duplicate_of_another, weight=5, combined=True),
    Operator(Role.RESPONDER, Group.DUP, edge.duplicates_meanwhile, weight=8, combined=True),
    Operator(Role.RESPONDER, Group.FIELD, edge.migration_bit, weight=3, combined=True),
    Operator(Role.RESPONDER, Group.LENGTH, edge.empty_part, weight=8, fatal=True, combined=True),
    Operator(Role.RESPONDER, Group.FIELD, edge.key_bit, weight=6, fatal=True, combined=True),
    Operator(Role.RESPONDER, Group.LENGTH, edge.long_last, weight=4, fatal=True, combined=True),
    Operator(Role.RESPONDER, Group.MEMORY, edge.window_right, weight=4, fatal=True, combined=True),
    Operator(Role.RESPONDER, Group.MEMORY, edge.window_range, weight=4, fatal=True, combined=True),
)
"""Against a responder: wrong requests."""

RESPONSE_MUTATORS: Sequence[Operator[ResponseMutator]] = (
    Operator(Role.REQUESTER, Group.REPLY, response.other_psn),
    Operator(Role.REQUESTER, Group.REPLY, response.sequence_nak),
    Operator(Role.REQUESTER, Group.REPLY, response.rnr_nak),
    Operator(Role.REQUESTER, Group.REPLY, response.rnr_until_error, weight=1),
    Operator(Role.REQUESTER, Group.REPLY, response.timeout_until_error, weight=1),
    Operator(Role.REQUESTER, Group.REPLY, response.any_syndrome),
    Operator(Role.REQUESTER, Group.REPLY, response.other_response),
    Operator(Role.REQUESTER, Group.REPLY, response.wrong_length, weight=3),
    Operator(Role.REQUESTER, Group.REPLY, response.excess_read_responses),
    Operator(Role.REQUESTER, Group.REPLY, response.lost_or_reordered),
    Operator(Role.REQUESTER, Group.REPLY, response.duplicate_ack, weight=1),
    Operator(Role.REQUESTER, Group.REPLY, response.other_msn, weight=1),
    Operator(Role.REQUESTER, Group.PARSER, response.malformed_response, weight=1),
    Operator(Role.REQUESTER, Group.PFC, response.paused_responses, weight=4),
    Operator(Role.REQUESTER, Group.PARSER, edge.odd_response, combined=True),
    Operator(Role.REQUESTER, Group.REPLY, edge.request_meanwhile, weight=3, combined=True),
    Operator(Role.REQUESTER, Group.REPLY, edge.ignored_meanwhile, weight=3, combined=True),
)
"""Against a requester: wrong responses to its requests."""

MESSAGE_OPERATORS: Sequence[Operator[MessageOperator]] = (
    Operator(Role.CM, Group.ORDER, message.duplicate),
    Operator(Role.CM, Group.ORDER, message.lost_answer),
    Operator(Role.CM, Group.ORDER, message.out_of_order, weight=3),
    Operator(Role.CM, Group.ORDER, message.simultaneous_messages, weight=1),
    Operator(Role.CM, Group.ORDER, message.simultaneous_disconnect, weight=1),
    Operator(Role.CM, Group.ORDER, message.reject),
    Operator(Role.CM, Group.ORDER, message.message_receipt_ack, weight=1),
    Operator(Role.CM, Group.ORDER, message.early_ready),
    Operator(Role.CM, Group.FIELD, message.boundary_field, weight=3),
    Operator(Role.CM, Group.FIELD, message.boundary_fields, weight=1),
    Operator(Role.CM, Group.FIELD, message.other_ids),
    Operator(Role.CM, Group.FIELD, message.other_queue_pair),
    Operator(Role.CM, Group.FIELD, message.same_id, weight=1),
    Operator(Role.CM, Group.FIELD, message.unavailable_service),
    Operator(Role.CM, Group.FIELD, message.other_source, weight=1),
    Operator(Role.CM, Group.FIELD, message.private_data, weight=1),
    Operator(Role.CM, Group.MAD, message.mad_header),
    Operator(Role.CM, Group.MAD, message.wrong_size),
    Operator(Role.CM, Group.MAD, message.datagram_headers),
    Operator(Role.CM, Group.RESOURCE, message.exhausted_backlog, weight=0.2),
    Operator(Role.CM, Group.RESOURCE, message.no_listener, weight=0.5),
    Operator(Role.CM, Group.TIME, message.timer_edges),
    Operator(Role.CM, Group.TIME, message.after_the_end, weight=1),
    Operator(Role.CM, Group.TIME, message.lost_messages, weight=0.5),
)
"""Against a connection manager: wrong messages, commands and times."""

OPERATORS: Sequence[Operator[Callable[..., Sequence[Step]]]] = (
    *REQUEST_OPERATORS,
    *RESPONSE_MUTATORS,
    *MESSAGE_OPERATORS,
)


def groups(role: Role) -> Sequence[str]:
    """What `--ops` may name for a role."""
    wanted = (Role.RESPONDER, Role.REQUESTER) if role is Role.BOTH else (role,)
    return tuple(dict.fromkeys(str(each.group) for each in OPERATORS if each.role in wanted))


def selected(
    operators: Sequence[Operator[Function]], ops: Collection[str], *, combined: bool = True
) -> list[Operator[Function]]:
    """Those of the groups that `--ops` names; without it all but `ON_REQUEST`.

    combined: whether for combined cases, too.
    """
    return [
        each
        for each in operators
        if (each.group in ops if ops else each.group not in ON_REQUEST)
        and (combined or not each.combined)
    ]
