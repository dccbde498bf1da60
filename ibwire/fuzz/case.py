"""Cases: a connection and symbolic steps, which mean the same on every connection.

PSNs, keys and addresses are relative to the connection that a case runs on, so that a
case replays with other numbers, and keeps its meaning when earlier steps are removed: a
PSN is relative to the one that the responder expects at that moment, not to the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from enum import IntFlag, StrEnum
from typing import Any

from ibwire.base.errors import IbwireError
from ibwire.base.quantities import exact_duration_text
from ibwire.drill.language.literals import ICRCS, MAXIMUM_PAYLOAD
from ibwire.drill.packets import BAD as BAD
from ibwire.drill.packets import GOOD as GOOD
from ibwire.drill.packets import NONE as NONE
from ibwire.drill.packets import SWAPPED as SWAPPED
from ibwire.drill.packets import icrc_text
from ibwire.fuzz.sge_sizes import sges_text
from ibwire.rc.attributes import MTU_CODES
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.memory import Access
from ibwire.rc.work import WROpcode
from ibwire_layers.cm import CMAttribute, MessageMRAed, MessageRejected
from ibwire_layers.headers import BTH
from ibwire_layers.opcodes import INFO, OpCode, Service
from ibwire_layers.outer import UDP, Ethernet, IPv4, IPv6
from ibwire_layers.schema import Header

FORMAT = 1
"""Of `case.json`."""

MAXIMUM_STEPS = 100_000
MAXIMUM_PAIRS = 8
"""Queue pairs of a device in a case."""

MAXIMUM_SGES = 16
"""SGEs of a work request."""

MAXIMUM_SHARED = 4096
"""Receive requests in a shared receive queue."""

MAXIMUM_TIME = 10**16
"""Picoseconds of a wait: longer than the longest ACK timeout."""

MAXIMUM_TEXT = 200
"""Characters of a text that is printed."""

Value = int | tuple[str, int]
"""A number, or a symbol and what is added to it."""


class Role(StrEnum):
    """What of a device is attacked."""

    RESPONDER = "responder"
    REQUESTER = "requester"
    BOTH = "both"
    """Responder and requester in turn."""
    CM = "cm"
    """The connection manager."""


class CaseError(IbwireError):
    """A case that cannot be read, or does not fit a connection."""


class NeverConnects(CaseError):
    """A device does not come back from making the connection of a case."""


class RunsAway(Exception):
    """A device that does not become idle; the text says how."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection that a case needs: attributes of the queue pair under test."""

    mtu: int = 256
    """Bytes."""
    rq_psn: int = 100
    sq_psn: int = 500
    access: int = int(ALL_ACCESS)
    """Of the queue pair: `ibv_access_flags`."""
    max_rd_atomic: int = 16
    max_dest_rd_atomic: int = 16
    min_rnr_timer: int = 12
    timeout: int = 14
    retry_cnt: int = 7
    rnr_retry: int = 7
    receives: int = 4
    """Receive requests that are posted at the beginning."""
    room: int = 1024
    """Bytes of each of them."""
    service: str = "RC"
    """One of `SERVICES`: the type of the queue pairs."""
    pairs: int = 1
    """Queue pairs of the device with these attributes; a step names one, the first by default."""
    sges: int = 1
    """SGEs of each receive request."""
    wrong_lkey: int = 0
    """The number of the SGE, from 1, whose L_Key opens nothing; 0 for none."""
    pkey_index: int = 0
    """Of the P_Key in the table of the device's port."""
    rearmed: int = 0
    """1 for an alternate path, for which the queue pair waits to be armed."""
    rtr: int = 0
    """1 for queue pairs in RTR: they receive, and cannot send requests yet."""
    srq: int = 0
    """1 for one receive queue that all queue pairs share."""
    srq_limit: int = 0
    """Its limit: fewer receive requests raise an event."""
    version: int = 4
    """Of IP, 4 or 6."""

    @property
    def is_plain(self) -> bool:
        """Whether it is one queue pair of a reliable connection with nothing unusual beside."""
        usual = (1, 1, 0, 0, 0, 0, 0)
        of_queues = self.pairs, self.sges, self.wrong_lkey, self.srq
        given = (*of_queues, self.pkey_index, self.rearmed, self.rtr)
        return self.service == "RC" and given == usual

    @property
    def is_reliable(self) -> bool:
        """Whether requests are acknowledged."""
        return self.service not in ("UC", "UD")

    @property
    def transport(self) -> Service:
        """The service that the opcodes of its packets belong to."""
        return Service.XRC if self.is_xrc else Service[self.service]

    @property
    def is_xrc(self) -> bool:
        """Whether the queue pairs belong to an XRC domain."""
        return self.service in XRC

    @property
    def shares_receive_queue(self) -> bool:
        """Whether the queue pairs take receive requests from one queue, as those of XRC do."""
        return self.service == "XRC_RECV" or (bool(self.srq) and self.service != "XRC_SEND")


IP_VERSIONS = (4, 6)
"""Versions of IP that a connection may go over."""

XRC = ("XRC_RECV", "XRC_SEND")
"""The two ends of XRC: the target has no send queue, the initiator no receive queue."""

SERVICES = ("RC", "UC", "UD", *XRC)
"""Types of a queue pair, as drill scripts name them."""


@dataclass(slots=True)
class Packet:
    """The device receives a packet; fields that are not given have correct values.

    Treat it as immutable. It is not frozen because making a frozen one takes three times as long.
    """

    opcode: int
    psn: tuple[str, int] = ("expected", 0)
    """From `expected` (by its responder), `una` or `next` (of its requester) or `first`."""
    length: int = 0
    """Bytes of payload."""
    at: int = 0
    """Where in the test pattern the payload begins."""
    fields: Mapping[str, Value] = field(default_factory=dict)
    """Fields of headers that are not as they should be, or that have no right value: `bth.pkey`,
    `reth.va`, `ip.ttl`."""
    pad: int | None = None
    """Bytes of padding; `None` for what the payload needs."""
    more: int = 0
    """Zero bytes after the padding."""
    cut: int | None = None
    """Bytes that are left from the BTH on."""
    icrc: int = GOOD
    held: bool = False
    """Whether the next step comes before the device has answered."""
    why: str = ""
    """What is wrong with it on purpose."""
    pair: int = 0
    """Number of the queue pair that it is for."""

    def altered(self, **changes: Any) -> Packet:
        """A copy with other fields; four times as fast as `replace`.

        With another opcode, fields of headers that it does not have go.
        """
        new = Packet(
            self.opcode,
            self.psn,
            self.length,
            self.at,
            self.fields,
            self.pad,
            self.more,
            self.cut,
            self.icrc,
            self.held,
            self.why,
            self.pair,
        )
        for name, value in changes.items():
            setattr(new, name, value)
        if "opcode" in changes:
            given, parts = new.fields, parts_of(new.opcode)
            new.fields = {name: given[name] for name in given if name.split(".")[0] in parts}
        return new


@dataclass(slots=True)
class Mad(Packet):
    """QP1 of the device receives a message of communication management.

    `length` and `at` are of its private data; fields are also those of the MAD, `mad.method`,
    and of the message, `req.local_qpn`.
    """

    opcode: int = int(OpCode.UD_SEND_ONLY)
    message: str = "REQ"
    """One of `MESSAGES`."""
    exchange: int = 0
    """Number of the exchange, for connections that the fuzzer makes and that it is asked for."""


@dataclass(frozen=True, slots=True)
class Command:
    """The application of the device calls its connection manager."""

    what: str
    """One of `COMMANDS`."""
    exchange: int = 0


@dataclass(slots=True)
class Post:
    """The application of the device posts a send request; never modified, as packets are not."""

    opcode: int
    length: int = 0
    remote: int = 0
    """Where in the peer's memory, from its beginning."""
    signaled: bool = True
    pair: int = 0
    """Number of the queue pair."""
    sges: int = 1
    wrong_lkey: int = 0
    """The number of the SGE, from 1, whose L_Key opens nothing; 0 for none."""
    fence: bool = False
    solicited: bool = False


@dataclass(frozen=True, slots=True)
class Receive:
    """It posts receive requests."""

    count: int = 1
    pair: int = 0
    """Number of the queue pair."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes, in ps."""

    time: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A PFC frame pauses priorities of the device's port for a while, or resumes them.

    A device that supports PFC sends the same packets later.
    """

    priorities: int = 0xFF
    """A bit for each: bit 3 for priority 3."""
    quanta: int = 0xFFFF
    """For how long, in times of 512 bits; 0 lets them go on."""


@dataclass(frozen=True, slots=True)
class Connect:
    """The connection ends and the next one begins."""

    connection: Connection


Step = Packet | Mad | Command | Post | Receive | Wait | Pause | Connect

MESSAGES = (
    "REQ",
    "MRA",
    "REJ",
    "REP",
    "RTU",
    "DREQ",
    "DREP",
    "SIDR_REQ",
    "SIDR_REP",
    "LAP",
    "APR",
)
COMMANDS = (
    "connect",
    "resolve",
    "accept",
    "reject",
    "delay",
    "ready",
    "disconnect",
    "listen",
    "unlisten",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A connection and what is done with it."""

    connection: Connection = Connection()
    steps: tuple[Step, ...] = ()
    profile: str = "spec"
    """Of the reference."""
    origin: str = ""
    """How it was made: seed and number, or the capture it comes from."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """What the reference does otherwise than its profile: values by field."""

    @property
    def packets(self) -> int:
        """How many packets it sends."""
        return sum(isinstance(step, Packet) for step in self.steps)

    def with_steps(self, steps: Sequence[Step]) -> Case:
        """The same connection with other steps."""
        return replace(self, steps=tuple(steps))


def is_plain(case: Case) -> bool:
    """Whether a case is about one queue pair of a reliable connection, with nothing unusual."""
    return case.connection.is_plain and all(map(is_plain_step, case.steps))


def is_plain_step(step: Step) -> bool:
    """Whether a step is for the first queue pair, with one SGE and no flags but SIGNALED."""
    match step:
        case Connect():
            return step.connection.is_plain
        case Packet() | Receive():
            return not step.pair
        case Post():
            return step == Post(step.opcode, step.length, step.remote, step.signaled)
        case _:
            return True


# As JSON.


def to_json(case: Case) -> str:
    """A case as the text of `case.json`."""
    document = {
        "ibwire-fuzz-case": FORMAT,
        "profile": case.profile,
        "origin": case.origin,
        **({"choices": dict(case.choices)} if case.choices else {}),
        "connection": _connection_to_json(case.connection),
        "steps": [_step_to_json(step) for step in case.steps],
    }
    return json.dumps(document, indent=2) + "\n"


def from_json(text: str, path: str = "case.json") -> Case:
    """Read a case; raises `CaseError` that names the place."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CaseError(f"{path}: no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("ibwire-fuzz-case") != FORMAT:
        raise CaseError(f"{path}: no case of ibwire fuzz of format {FORMAT}")
    try:
        return _case_from_json(document)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


def _case_from_json(document: Mapping[str, Any]) -> Case:
    for name in document:
        if name not in _TOP:
            raise CaseError(f"{name}: no such key; known are {', '.join(_TOP)}")
    steps = document.get("steps", [])
    if not isinstance(steps, list) or len(steps) > MAXIMUM_STEPS:
        raise CaseError(f"steps: not a list of at most {MAXIMUM_STEPS}")
    choices = document.get("choices", {})
    if not isinstance(choices, dict):
        raise CaseError("choices: not an object")
    case = Case(
        _connection_from_json(document.get("connection", {}), "connection"),
        tuple(_step_from_json(step, f"steps[{i}]") for i, step in enumerate(steps)),
        _read_text(document.get("profile", "spec"), "profile"),
        _read_text(document.get("origin", ""), "origin"),
        {name: _read_text(each, f"choices.{name}") for name, each in choices.items()},
    )
    if not steps:
        raise CaseError("steps: missing, and a case without any shows nothing")
    return case


def value_text(value: Value) -> str:
    """A value as people write it: `end-8`."""
    if isinstance(value, int):
        return hex(value) if value >= 1 << 16 else str(value)
    name, offset = value
    return f"{name}{offset:+d}" if offset else name


def field_text(name: str, value: Value) -> str:
    """The value of a field; those of keys as keys are written, and read by drill. What names a
    message is its name.
    """
    messages = _MESSAGE_NAMES.get(name.rpartition(".")[2], {})
    if value in messages:
        return messages[value]
    is_key = isinstance(value, int) and name.endswith(_KEYS)
    return hex(value) if is_key and isinstance(value, int) else value_text(value)


OUTBOX = 4096 + 1024
"""Bytes of memory for what the device sends and reads: more than the largest path MTU."""

_KEYS = ("pkey", "qkey", "rkey")
_ATOMICS = (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)
_MESSAGE_NAMES: Mapping[str, Mapping[object, str]] = {
    "message_rejected": {int(each): each.name for each in MessageRejected},
    "message_mraed": {int(each): each.name for each in MessageMRAed},
}
_OF_8_BYTES = (*_ATOMICS, WROpcode.ATOMIC_WRITE)
"""Requests of which the length is always the same."""


def step_text(step: Step) -> str:
    """A step in a line."""
    if isinstance(step, Receive):
        return f"receive x{step.count}{pair_text(step.pair)}"
    if isinstance(step, Wait):
        return f"wait {exact_duration_text(step.time)}"
    if isinstance(step, Pause):
        return f"PFC priorities={step.priorities:#04x} quanta={step.quanta}"
    if isinstance(step, Connect):
        return f"connect again {connection_text(step.connection)}".rstrip()
    if isinstance(step, Post):
        words = [f"post {WROpcode(step.opcode).name}"]
        if step.opcode == WROpcode.LOCAL_INV:
            words.append("rkey=mw.rkey")
        elif step.opcode not in _OF_8_BYTES:
            words.append(f"len={length_of(step)}")
        if step.sges > 1:
            words.append(f"sges={sges_text(length_of(step), step.sges)}")
        words += [f"wrong_lkey={step.wrong_lkey}"] * bool(step.wrong_lkey)
        words += ["fence"] * step.fence + ["solicited"] * step.solicited
        words += ["unsignaled"] * (not step.signaled)
        return " ".join(words) + pair_text(step.pair)
    if isinstance(step, Command):
        return f"{step.what} #{step.exchange}"
    fields = step.fields
    if isinstance(step, Mad):
        words, fields = [message_on_wire(step) or step.message, f"#{step.exchange}"], dict(fields)
        if words[0] != step.message:
            words.append(f"(the bytes of {article_of(step.message)} {step.message})")
            del fields[ATTRIBUTE]
        elif step.message == "MRA":
            fields.setdefault("mra.service_timeout", MRA_TIMEOUT)
        elif step.message == "REJ" and "rej.ari" in fields:
            fields.setdefault("rej.reject_info_length", 0)
    else:
        words = [packet_text(step), value_text(step.psn)]
        is_again = step.psn[0] == "expected" and step.psn[1] < 0
        if step.opcode == OpCode.RC_RDMA_READ_REQUEST and is_again:
            fields = {"reth.va": ("va", 0), "reth.dma_len": 0, **fields}
    words += [f"{name}={field_text(name, value)}" for name, value in fields.items()]
    words += [f"len={step.length}"] * bool(step.length)
    words += [f"{name}={getattr(step, name)}" for name in ("pad", "cut") if name in _said(step)]
    words += [f"more={step.more}"] * bool(step.more)
    words += [f"icrc={icrc_text(step.icrc)}"] * (step.icrc != GOOD)
    return " ".join(words) + pair_text(step.pair)


def length_of(post: Post) -> int:
    """The bytes of the SGEs of a send request."""
    return 8 if post.opcode in _ATOMICS else min(post.length, OUTBOX)


def connection_text(connection: Connection) -> str:
    """Attributes of a connection that are not as usual."""
    return " ".join(
        f"{entry.name}={_attribute_text(connection, entry.name)}"
        for entry in fields(Connection)
        if getattr(connection, entry.name) != entry.default
    )


def _attribute_text(connection: Connection, name: str) -> str:
    """The value of an attribute; of access flags their names."""
    value = getattr(connection, name)
    return flag_names(Access, value) if name == "access" else str(value)


def flag_names(kind: type[IntFlag], value: int) -> str:
    """The flags that are set by their names: `GRH+WITH_IMM`; 0 for none."""
    names = [each.name or "" for each in kind if value & each]
    rest = value & ~sum(int(each) for each in kind)
    return "+".join([*names, *([hex(rest)] if rest else [])]) or "0"


def pair_text(pair: int) -> str:
    """Which queue pair a step is about, if it is not the first."""
    return f" on queue pair {pair + 1}" if pair else ""


def message_on_wire(step: Mad) -> str:
    """The message whose attribute ID another one has; empty for none."""
    number = step.fields.get(ATTRIBUTE)
    return _MESSAGES.get(number, "") if isinstance(number, int) else ""


def article_of(message: str) -> str:
    """The article before the name of a message, with or without more behind it."""
    return "an" if message.startswith(("A", "M", "RT")) else "a"


def packet_text(step: Packet) -> str:
    """The name of what a packet carries."""
    return step.message if isinstance(step, Mad) else opcode_text(step.opcode)


def opcode_text(opcode: int) -> str:
    """The name of an opcode, as drill scripts have it."""
    try:
        name = OpCode(opcode).name
    except ValueError:
        return f"OPCODE_0x{opcode:02X}"
    return name.removeprefix("RC_").replace("RDMA_", "")


def parts_of(opcode: int) -> Set[str]:
    """What fields of a packet may begin with: headers of this opcode, and those before the BTH."""
    info = INFO.get(opcode)
    return _EVERYWHERE | {kind.KEY for kind in (info.headers if info else ())}


def _said(step: Packet) -> set[str]:
    return {name for name in ("pad", "cut") if getattr(step, name) is not None}


ATTRIBUTE = "mad.attribute_id"
"""The field that says which message a MAD is."""

MRA_TIMEOUT = 20
"""The time that an MRA of a case asks for where it has no other one: 4.3 s."""

_MESSAGES = {int(each): each.name for each in CMAttribute}
_TOP = ("ibwire-fuzz-case", "profile", "origin", "choices", "connection", "steps")
_FLIPPED = re.compile(r"good\^0x([0-9a-f]{1,8})")
_VALUE = re.compile(r"([a-z_.]+)([+-]\d{1,20})?")
_KINDS: Mapping[str, type[Any]] = {
    "packet": Packet,
    "mad": Mad,
    "command": Command,
    "post": Post,
    "receive": Receive,
    "wait": Wait,
    "pause": Pause,
    "connect": Connect,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def _step_to_json(step: Step) -> dict[str, Any]:
    document: dict[str, Any] = {"step": _NAMES[type(step)]}
    for entry in fields(step):
        value = getattr(step, entry.name)
        if value == entry.default or (entry.name == "fields" and not value):
            continue
        if entry.name == "opcode":
            value = OpCode(value).name if value in _OPCODES else value
            if isinstance(step, Post):
                value = WROpcode(step.opcode).name
        elif entry.name == "psn":
            value = value_text(value)
        elif entry.name == "connection":
            value = _connection_to_json(value)
        elif entry.name == "icrc":
            value = value if value < GOOD else icrc_text(value)
        elif entry.name == "fields":
            value = {
                name: each if isinstance(each, int) else value_text(each)
                for name, each in value.items()
            }
        document[entry.name] = value
    return document


def _connection_to_json(connection: Connection) -> dict[str, Any]:
    """Its attributes; those of several queue pairs, SGEs and the like only where they are used."""
    usual = Connection()
    return {
        name: value
        for name, value in asdict(connection).items()
        if name not in _UNUSUAL or value != getattr(usual, name)
    }


_UNUSUAL = (
    *("service", "pairs", "sges", "wrong_lkey", "pkey_index", "rearmed", "rtr", "srq", "srq_limit"),
    "version",
)


def _step_from_json(document: Any, where: str) -> Step:
    kind = _KINDS.get(str(document.get("step"))) if isinstance(document, dict) else None
    if kind is None:
        raise CaseError(f"{where}.step: not one of {', '.join(_KINDS)}")
    known = {entry.name: entry for entry in fields(kind)}
    given: dict[str, Any] = {}
    for name, value in document.items():
        if name == "step":
            continue
        if name not in known:
            raise CaseError(f"{where}.{name}: no such key; known are {', '.join(known)}")
        given[name] = _read(kind, name, value, f"{where}.{name}")
    for name, entry in known.items():
        if entry.default is MISSING and entry.default_factory is MISSING and name not in given:
            raise CaseError(f"{where}.{name}: missing")
    step: Step = kind(**given)
    if kind is Packet:
        for name in given.get("fields", ()):
            if name.split(".")[0] not in parts_of(given["opcode"]):
                has_not = f"{opcode_text(given['opcode'])} has no such header"
                raise CaseError(f"{where}.fields.{name}: {has_not}")
    return step


def _read(kind: type[Any], name: str, value: Any, where: str) -> Any:
    if name == "opcode":
        return _read_opcode(kind, value, where)
    if name == "connection":
        return _connection_from_json(value, where)
    if name == "psn":
        psn = _read_value(value, where)
        if isinstance(psn, int) or psn[0] not in PSN_BASES:
            raise CaseError(f"{where}: {value!r} does not count from {', '.join(PSN_BASES)}")
        return psn
    if name == "fields" and kind is Packet and isinstance(value, dict) and "bth.psn" in value:
        raise CaseError(f"{where}.bth.psn: the key psn of the step says it")
    if name == "fields":
        if not isinstance(value, dict):
            raise CaseError(f"{where}: not an object")
        for key in value:
            if kind is Packet and key not in KNOWN_FIELDS:
                raise CaseError(f"{where}.{key}: no such field")
        return {key: _read_value(each, f"{where}.{key}") for key, each in value.items()}
    if name == "icrc" and isinstance(value, str):
        flipped = _FLIPPED.fullmatch(value)
        if flipped:
            return GOOD | int(flipped[1], 16)
        if value not in ICRCS:
            known = ", ".join(ICRCS)
            raise CaseError(f"{where}: {value!r}, not {known}, good^0x10000 or a number")
        return ICRCS[value]
    if name == "why":
        return _read_text(value, where)
    if name in _WORDS:
        if value not in _WORDS[name]:
            raise CaseError(f"{where}: {value!r}, not one of {', '.join(_WORDS[name])}")
        return value
    if name in ("held", "signaled", "fence", "solicited"):
        if not isinstance(value, bool):
            raise CaseError(f"{where}: {value!r}, not true or false")
        return value
    highest = _HIGHEST.get(name, MAXIMUM_PAYLOAD)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
        raise CaseError(f"{where}: {value!r}, not a number from 0 to {highest}")
    return value


PSN_BASES = ("expected", "una", "next", "first", "own")
"""The bases of a packet's PSN: `first` and `own` are the first PSN of the requests to the
device and of the device's requests.
"""

_OPCODES = frozenset(OpCode)
_ALWAYS: Sequence[tuple[str, type[Header]]] = (
    ("bth", BTH),
    ("eth", Ethernet),
    ("ip", IPv4),
    ("ip", IPv6),
    ("udp", UDP),
)
_EVERYWHERE = frozenset(part for part, _ in _ALWAYS)
_HEADERS: Sequence[tuple[str, type[Header]]] = (
    *_ALWAYS,
    *((kind.KEY, kind) for info in INFO.values() for kind in info.headers),
)
KNOWN_FIELDS = frozenset(f"{part}.{entry.name}" for part, kind in _HEADERS for entry in kind.FIELDS)
_HIGHEST = {
    "icrc": 0xFFFFFFFF,
    "pair": MAXIMUM_PAIRS - 1,
    "sges": MAXIMUM_SGES,
    "wrong_lkey": MAXIMUM_SGES,
    "count": 4096,
    "time": MAXIMUM_TIME,
    "length": 2 * MAXIMUM_PAYLOAD,
    "pad": MAXIMUM_PAYLOAD // 2,
    "more": MAXIMUM_PAYLOAD // 2,
    "remote": 1 << 20,
    "at": 1 << 31,
    "exchange": 0xFFF,
    "priorities": 0xFF,
    "quanta": 0xFFFF,
}
_WORDS = {"message": MESSAGES, "what": COMMANDS}


def _read_opcode(kind: type[Any], value: Any, where: str) -> int:
    known = WROpcode if kind is Post else OpCode
    if isinstance(value, str) and value in known.__members__:
        return int(known[value])
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if kind is not Post and is_number and 0 <= value <= 255:
        return int(value)
    raise CaseError(f"{where}: no opcode {value!r}")


def _read_value(value: Any, where: str) -> Value:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 128:
        return value
    found = _VALUE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise CaseError(f"{where}: {value!r}, not a number or a symbol such as end-8")
    return found[1], int(found[2] or 0)


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise CaseError(f"{where}: {value!r}, not a text")
    if len(value) > MAXIMUM_TEXT or not value.isprintable():
        raise CaseError(f"{where}: not a line of at most {MAXIMUM_TEXT} characters")
    return value


def check_connection(connection: Connection, where: str) -> None:
    """Raise `CaseError` for an attribute that no connection has."""
    _connection_from_json(asdict(connection), where)


def _connection_from_json(document: Any, where: str) -> Connection:
    if not isinstance(document, dict):
        raise CaseError(f"{where}: not an object")
    given: dict[str, Any] = {}
    for name, value in document.items():
        if name == "service":
            if value not in SERVICES:
                raise CaseError(f"{where}.service: {value!r}, not one of {', '.join(SERVICES)}")
            given[name] = value
            continue
        if name not in _LIMITS:
            known = ", ".join([*_LIMITS, "service"])
            raise CaseError(f"{where}.{name}: no such key; known are {known}")
        low, high = _LIMITS[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise CaseError(f"{where}.{name}: {value!r}, not a number from {low} to {high}")
        given[name] = value
    connection = Connection(**given)
    if connection.mtu not in MTU_CODES:
        raise CaseError(f"{where}.mtu: {connection.mtu}, not one of {list(MTU_CODES)}")
    if connection.version not in IP_VERSIONS:
        raise CaseError(f"{where}.version: {connection.version}, not 4 or 6")
    return connection


_LIMITS = {
    "mtu": (256, 4096),
    "rq_psn": (0, 0xFFFFFF),
    "sq_psn": (0, 0xFFFFFF),
    "access": (0, 0xFFFFFFFF),
    "max_rd_atomic": (0, 128),
    "max_dest_rd_atomic": (0, 128),
    "min_rnr_timer": (0, 31),
    "timeout": (0, 31),
    "retry_cnt": (0, 7),
    "rnr_retry": (0, 7),
    "receives": (0, 4096),
    "room": (0, 8192),
    "pairs": (1, MAXIMUM_PAIRS),
    "sges": (1, MAXIMUM_SGES),
    "wrong_lkey": (0, MAXIMUM_SGES),
    "pkey_index": (0, 3),
    "rearmed": (0, 1),
    "rtr": (0, 1),
    "srq": (0, 1),
    "srq_limit": (0, MAXIMUM_SHARED),
    "version": (4, 6),
}
