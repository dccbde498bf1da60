"""Operators against a connection manager: what a hostile or broken peer sends.

The table of all operators is `ibwire.fuzz.vocabulary.operators`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from random import Random

from ibwire.base.units import ACK_TIMEOUT_UNIT, MS, NS, S
from ibwire.fuzz.case import (
    BAD,
    MESSAGES,
    NONE,
    Mad,
    Step,
    Value,
    Wait,
)
from ibwire.fuzz.targets.emulated_manager import (
    BACKLOG,
    MAXIMUM_CONNECTIONS,
    Management,
)
from ibwire.fuzz.vocabulary.cm.encoding import FORMS
from ibwire.fuzz.vocabulary.cm.traffic import CONNECTED, REQUESTED, ManagerTraffic
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import MAD, MAD_SIZE, Method, MgmtClass
from ibwire_layers.opcodes import OpCode

# Order: right messages at the wrong time.


def duplicate(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """A message that was sent before, once or several times."""
    said = copy(traffic.rng.choice(traffic.sent[-6:])) if traffic.sent else traffic.message("REQ")
    said.why = "repeated"
    return [said] * traffic.rng.choice((1, 1, 1, 2, 4))


def lost_answer(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """The last request of this exchange or an earlier one, as if its answer had been lost."""
    if traffic.rng.random() < 0.3:
        traffic.exchange = max(traffic.newest - 1, 0)
    connection = management.exchanges.get(traffic.exchange)
    question = "REP" if connection is not None and connection.is_active else "REQ"
    return [traffic.message(question, "unheard")] * traffic.rng.choice((1, 1, 2))


def out_of_order(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Any message of the exchange, whatever its state."""
    return [traffic.message(traffic.rng.choice(MESSAGES), "out of turn")]


def simultaneous_messages(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Two messages before the device has answered, in either order."""
    first, second = (
        traffic.valid_message(management),
        traffic.message(traffic.rng.choice(MESSAGES), "out of turn"),
    )
    pair = [first, second] if traffic.rng.random() < 0.5 else [second, first]
    pair[0].held = True
    return pair


def simultaneous_disconnect(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Both sides end the connection, and one sends a DREQ again when it is over."""
    steps: list[Step] = [
        traffic.command("disconnect"),
        traffic.message("DREQ", "crossing"),
        traffic.message("DREP"),
    ]
    if traffic.rng.random() < 0.5:
        steps[:2] = [steps[1], steps[0]]
    return [*steps, traffic.message("DREQ", "over")]


def reject(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """A REJ, with a reason, and about any message."""
    rng = traffic.rng
    fields: dict[str, Value] = {"rej__reason": rng.choice(_REASONS)}
    if rng.random() < 0.5:
        fields["rej__message_rejected"] = rng.randrange(4)
    if rng.random() < 0.3:  # a peer without a response is identified by its GUID
        fields |= {"rej__reason": cm.RejectReason.TIMEOUT, "rej__ari": ("own.guid", 0)}
        fields["rej__remote_comm_id"] = rng.choice((0, ("id", 0)))
        fields["rej__reject_info_length"] = rng.choice((8, 0, 72, 127))
    return [traffic.message("REJ", "refused", **fields)]


def message_receipt_ack(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """An MRA, about anything and for any time, and then that time or nearly."""
    rng = traffic.rng
    code = rng.choice((0, 1, 10, 20, 24, 31))
    about = rng.choice((("answered", 0), ("answered", 0), 0, 1, 2, 3))
    mra = traffic.message("MRA", "postponed", mra__service_timeout=code, mra__message_mraed=about)
    time = int(ACK_TIMEOUT_UNIT << min(code, 24))
    return [mra, Wait(time + rng.choice((0, 5 * S, -time // 2, 20 * S)))]


def early_ready(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """The peer repeats a request before the application decides, then continues as if it had."""
    traffic.start_exchange()
    return [
        traffic.message("REQ"),
        traffic.message("REQ", "repeated"),
        traffic.message("RTU", "early"),
    ]


# Fields.


def boundary_field(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """A message with one field at a boundary of its values."""
    message = traffic.valid_message(management)
    return [_with(message, _edge(traffic.rng, message.message), "edge of a field")]


def boundary_fields(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Several fields at once."""
    message = traffic.valid_message(management)
    for _ in range(traffic.rng.randrange(2, 5)):
        message = _with(message, _edge(traffic.rng, message.message), "edges of fields")
    return [message]


def other_ids(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """The IDs of another connection, near them, stale, or none."""
    rng = traffic.rng
    message = (
        traffic.valid_message(management)
        if rng.random() < 0.5
        else traffic.message(rng.choice(_ENDING))
    )
    part = message.message.lower()
    names = [name for name in _IDS if name in _NAMES[message.message]]
    if not names:
        return [message]
    name = rng.choice(names)
    values: Sequence[Value] = _OTHER_OWN if name == "local_comm_id" else _OTHER
    return [_with(message, {f"{part}.{name}": rng.choice(values)}, "another's ID")]


def other_queue_pair(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """A DREQ or LAP that names another queue pair, or a peer's queue pair that is in use."""
    rng = traffic.rng
    if management.exchange_state(traffic.exchange) in CONNECTED or rng.random() < 0.4:
        message = rng.choice(("DREQ", "DREQ", "LAP"))
        value = rng.choice((("qpn", 1), ("qpn", -1), 0, 1, 0xFFFFFF, ("own.qpn", 0)))
        fields = {f"{message.lower()}__remote_qpn": value}
        return [traffic.message(message, "another queue pair", **fields)]
    if rng.random() < 0.3 and management.exchange_state(traffic.exchange) in REQUESTED:
        return [traffic.message("REP", "a queue pair in use", rep__local_qpn=("own.qpn", -1))]
    traffic.start_exchange()
    back = -rng.choice((1, 1, 2, 3))
    return [traffic.message("REQ", "a queue pair in use", req__local_qpn=("own.qpn", back))]


def same_id(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """A REQ with the ID of the exchange but another queue pair, service, GUID or transaction."""
    change: dict[str, Value] = traffic.rng.choice(_DIFFERENT)
    return [_with(traffic.message("REQ"), change, "another REQ with the same ID")]


def unavailable_service(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """A REQ or SIDR_REQ for a service that the device does not have."""
    traffic.start_exchange()
    name, values = traffic.rng.choice(_NOT_HAD)
    message = "SIDR_REQ" if name.startswith("sidr_req") else "REQ"
    return [_with(traffic.message(message), {name: traffic.rng.choice(values)}, "not to be had")]


def other_source(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """A message of the exchange with another source."""
    message = traffic.valid_message(management)
    if traffic.rng.random() < 0.5:
        message = traffic.message(traffic.rng.choice(_ENDING))
    return [_with(message, {"ip.src": traffic.rng.choice((0x0A000009, 0x0A000001))}, "a stranger")]


def private_data(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Private data as long as it may be, or longer, so that the MAD is too long."""
    message = traffic.valid_message(management)
    room = FORMS[message.message].private
    length = traffic.rng.choice((1, 36, room - 1, room, room + 1, room + 4, room + 64))
    message.length, message.at = length, traffic.rng.randrange(256)
    message.why = "private data"
    return [message]


# The datagram: it is not a message of communication management.


def mad_header(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Another class, version, method, status or attribute."""
    name, values = traffic.rng.choice(_MAD)
    return [
        _with(traffic.valid_message(management), {name: traffic.rng.choice(values)}, "MAD header")
    ]


def wrong_size(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Shorter or longer than a MAD."""
    message, rng = traffic.valid_message(management), traffic.rng
    if rng.random() < 0.4:
        message.more, message.why = rng.choice((1, 3, 4, 64, 800)), "too long"
        return [message]
    ends = (*_HEADERS, _HEADERS[-1] + 4, _MAD_END - 4, _MAD_END - 1, rng.randrange(_MAD_END))
    message.cut, message.why = rng.choice(ends), "too short"
    return [message]


def datagram_headers(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Headers with which QP1 must not accept it."""
    message = traffic.valid_message(management)
    if traffic.rng.random() < 0.2:
        message.icrc, message.why = traffic.rng.choice((BAD, NONE, 0)), "ICRC"
        return [message]
    if traffic.rng.random() < 0.2:
        message.opcode, message.why = int(traffic.rng.choice(_OPCODES)), "opcode"
        return [message]
    name, values = traffic.rng.choice(_DATAGRAM)
    return [_with(message, {name: traffic.rng.choice(values)}, "datagram")]


# Resources and time.


def exhausted_backlog(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """More requests than the backlog or the memory of a listener takes; then a normal one."""
    rng = traffic.rng
    message = rng.choice(("REQ", "REQ", "SIDR_REQ"))
    steps: list[Step] = []
    accepted = rng.random() < 0.5
    for _ in range(rng.choice((BACKLOG + 2, MAXIMUM_CONNECTIONS + 2))):
        traffic.start_exchange()
        steps.append(traffic.message(message, "many"))
        if accepted:
            steps.append(traffic.command("accept"))
    traffic.start_exchange()
    return [*steps, traffic.command("connect")]


def no_listener(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """The application stops listening, with requests under way, and begins again."""
    steps: list[Step] = [traffic.command("unlisten")]
    if traffic.rng.random() < 0.5:
        steps.append(traffic.message("REQ"))
    traffic.start_exchange()
    return [
        *steps,
        traffic.message("REQ", "no listener"),
        traffic.command("listen"),
        traffic.message("REQ"),
    ]


def timer_edges(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """Time passes: until just before, just after, or long after the next timeout."""
    times = [1 * MS, 1 * S, 30 * S, 200 * S]
    due = management.emulation.node.poll_timeout()
    if due is not None:
        left = max(due - management.emulation.now, 2)
        times += [left - 1, left, left + 1 * NS, 3 * left] * 2
    return [Wait(int(traffic.rng.choice(times)))]


def lost_messages(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """A connection of which messages of the device are lost; at its end often all of them."""
    rng = traffic.rng
    traffic.start_exchange()
    opening: Sequence[Step] = [traffic.command("connect")]
    answers: Sequence[Step] = [traffic.message("REP", "late"), traffic.command("ready")]
    if rng.random() < 0.5:
        opening = [traffic.message("REQ"), traffic.command("accept")]
        answers = [traffic.message("RTU", "late")]
    lost = Wait(rng.choice((5 * S, 5 * S, 30 * S)))
    end = Wait(rng.choice((5 * S, 200 * S, 200 * S)))
    return [
        *opening,
        *[lost] * rng.choice((0, 1, 1, 2)),
        *answers,
        traffic.command("disconnect"),
        end,
        traffic.message("DREP", "late"),
    ]


def after_the_end(traffic: ManagerTraffic, management: Management) -> Sequence[Step]:
    """The exchange ends in one of several ways; then messages follow as if it had not."""
    rng = traffic.rng
    end: Step = rng.choice(
        (traffic.message("DREQ"), traffic.message("REJ"), traffic.command("reject"))
    )
    times = rng.choice(((), (), (1 * S,), (300 * S,)))
    late = rng.sample(MESSAGES, rng.choice((1, 2, 4)))
    return [end, *(Wait(time) for time in times), *(traffic.message(each, "over") for each in late)]


def _with(message: Mad, fields: dict[str, Value], why: str) -> Mad:
    """A message that was just made, with other fields."""
    message.fields, message.why = {**message.fields, **fields}, why
    return message


def _edge(rng: Random, message: str) -> dict[str, Value]:
    entry = rng.choice(FORMS[message].kind.FIELDS)
    name = f"{message.lower()}.{entry.name}"
    width = min(entry.size, 64)
    top = (1 << width) - 1
    values: list[Value] = [0, 1, top, top - 1, 1 << width - 1, rng.getrandbits(width)]
    if width <= 8:
        values += [rng.getrandbits(width)] * 3
    symbol = FORMS[message].symbols.get(entry.name)
    if symbol is not None:
        values += [(symbol, 1), (symbol, -1), (symbol, 1 << 16)]
    return {name: rng.choice(values)}


_NAMES = {name: {entry.name for entry in form.kind.FIELDS} for name, form in FORMS.items()}
_IDS = ("local_comm_id", "remote_comm_id", "request_id")
_ENDING = ("DREQ", "DREQ", "DREP", "REJ", "RTU", "LAP")
_OTHER: Sequence[Value] = (("other.id", 0), ("id", 1), ("id", -1), 0, 0xFFFFFFFF, ("own.id", 0))
_OTHER_OWN: Sequence[Value] = (("own.id", 1), ("own.id", -1), ("id", 0), 0, 0xFFFFFFFF)
_REASONS = (*(int(each) for each in cm.RejectReason), 0, 34, 36, 0xFFFF)
_DIFFERENT: Sequence[dict[str, Value]] = (
    {"req.local_qpn": ("own.qpn", 64)},
    {"req.service_id": ("service", 5)},
    {"req.local_ca_guid": ("own.guid", 1)},
    {"mad.transaction_id": ("transaction", 1)},
    {"req.starting_psn": ("own.psn", 1)},
)
_NOT_HAD: Sequence[tuple[str, Sequence[Value]]] = (
    ("req.service_id", (("service", 1), ("service", 1 << 16), 0, (1 << 64) - 1)),
    ("req.transport_service_type", (1, 2, 3)),
    ("req.path_packet_payload_mtu", (0, 6, 7, 8, 15, 5)),
    ("req.primary_remote_gid", (("own.gid", 0), 0, ("gid", 1))),
    ("req.primary_local_gid", (("gid", 0), 0, ("own.gid", 1))),
    ("req.pkey", (0x7FFF, 0, 0x1234)),
    ("req.primary_local_ack_timeout", (0, 31)),
    ("req.max_cm_retries", (0, 15)),
    ("req.local_cm_response_timeout", (0, 5, 31)),
    ("req.remote_cm_response_timeout", (0, 31)),
    ("req.responder_resources", (0, 255)),
    ("req.initiator_depth", (0, 255)),
    ("sidr_req.service_id", (("service", 1), 0)),
    ("sidr_req.pkey", (0, 0x1234)),
)
_MAD: Sequence[tuple[str, Sequence[Value]]] = (
    ("mad.base_version", (0, 2, 255)),
    ("mad.mgmt_class", (0, 6, 8, 255, *(int(each) for each in MgmtClass))),
    ("mad.class_version", (0, 1, 3, 255)),
    ("mad.method", (0, 4, 0x83, 255, *(int(each) for each in Method))),
    ("mad.status", (1, 0x0C, 0xFFFF)),
    ("mad.class_specific", (1, 0xFFFF)),
    ("mad.attribute_id", (0, 1, *range(0x0E, 0x1E), 0xFFFF)),
    ("mad.attribute_modifier", (1, 0x80000000, 0xFFFFFFFF)),
    ("mad.transaction_id", (0, ("transaction", 1), (1 << 64) - 1)),
    ("mad.reserved", (1, 0xFFFF)),
)
_DATAGRAM: Sequence[tuple[str, Sequence[Value]]] = (
    ("deth.qkey", (0, 1, 0x80010001, 0x00010000, 0x11111111, 0xFFFFFFFF)),
    ("deth.src_qp", (0, 2, ("own.qpn", 0), 0xFFFFFF)),
    ("bth.dest_qp", (0, 2, 0xFFFFFF, ("qpn", 0))),
    ("bth.pkey", (0x7FFF, 0, 0x1234, 0x9234)),
    ("bth.tver", (1, 15)),
    ("bth.pad_count", (1, 3)),
    ("bth.se", (1,)),
    ("bth.ack_req", (1,)),
    ("ip.dst", (0x0A000009, 0xFFFFFFFF)),
    ("ip.ttl", (0, 1, 255)),
    ("udp.dst_port", (4790, 0)),
)
_OPCODES = (
    OpCode.UD_SEND_ONLY_WITH_IMMEDIATE,
    OpCode.RC_SEND_ONLY,
    OpCode.UC_SEND_ONLY,
    OpCode.RC_ACKNOWLEDGE,
    OpCode.RC_RDMA_READ_REQUEST,
)
_HEADERS = (0, h.BTH.SIZE, h.BTH.SIZE + h.DETH.SIZE, h.BTH.SIZE + h.DETH.SIZE + MAD.SIZE)
_MAD_END = h.BTH.SIZE + h.DETH.SIZE + MAD_SIZE
"""Bytes from the BTH on."""
