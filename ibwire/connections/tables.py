"""The tables that a capture is in SQL and in Parquet: names, columns, types, units.

Numbers are signed and wide enough, so that differences such as `psn - lag(psn)` do
not wrap around in SQL. A field that a packet does not have is null. In every table `file`
is the capture, and packet numbers count from 1 within it; connection numbers do
so as well, so `(file, connection, direction)` joins the tables, and
`(file, number)` finds the packet of an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from ibwire.connections.events import Cause, FlowEventKind
from ibwire.connections.status import Status


class Type(Enum):
    """The type of a column; the value is the type in SQL."""

    FLAG = "BOOLEAN"
    SMALL = "SMALLINT"
    INTEGER = "INTEGER"
    BIG = "BIGINT"
    WORD64 = "UBIGINT"
    """64 bits that are not a quantity, such as an address."""
    REAL = "DOUBLE"
    TEXT = "VARCHAR"
    NUMBERS = "INTEGER[]"
    BIGS = "BIGINT[]"
    TEXTS = "VARCHAR[]"
    COUNTS = "MAP(VARCHAR, BIGINT)"
    """How many by name."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column."""

    name: str
    type: Type
    doc: str
    field: str = ""
    """Of `packets`: the field of `ibwire.dissect.FIELDS` that it is, where it is one;
    of `connections`: where it stands in the JSON object, where that is not its name."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table."""

    name: str
    doc: str
    columns: tuple[TableColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns, in order."""
        return tuple(column.name for column in self.columns)


def _words(words: type[StrEnum]) -> str:
    return ", ".join(f"`{word}`" for word in words)


_FILE = TableColumn("file", Type.TEXT, "the capture")
_CONNECTION = TableColumn("connection", Type.INTEGER, "number of the connection in its capture")
_DIRECTION = TableColumn(
    "direction", Type.SMALL, "0 from the end that was seen first, 1 the other way"
)

PACKETS = TableSpec(
    "packets",
    "One row a packet of the capture, RDMA or not.",
    (
        _FILE,
        TableColumn("number", Type.BIG, "number in the capture, from 1", "frame.number"),
        TableColumn("time_ns", Type.BIG, "nanoseconds since 1970", "frame.time_ns"),
        TableColumn("wire_len", Type.BIG, "bytes on the wire", "frame.len"),
        TableColumn("cap_len", Type.BIG, "bytes captured", "frame.cap_len"),
        TableColumn("interface", Type.BIG, "interface of a pcapng capture", "frame.interface"),
        TableColumn("protocol", Type.TEXT, "what the frame carries", "frame.protocol"),
        TableColumn("connection", Type.INTEGER, "number of the connection it belongs to"),
        TableColumn("direction", Type.SMALL, _DIRECTION.doc),
        TableColumn("src", Type.TEXT, "source: IP address, GID, or `LID n`"),
        TableColumn("dst", Type.TEXT, "destination likewise"),
        TableColumn("src_mac", Type.TEXT, "source MAC address", "eth.src"),
        TableColumn("dst_mac", Type.TEXT, "destination MAC address", "eth.dst"),
        TableColumn("vlan", Type.SMALL, "VLAN, of the innermost tag", "vlan.id"),
        TableColumn("priority", Type.SMALL, "priority of that tag, 0 to 7", "vlan.priority"),
        TableColumn("dscp", Type.SMALL, "DSCP, 0 to 63"),
        TableColumn("ecn", Type.SMALL, "ECN: 3 is CE, congestion experienced"),
        TableColumn("ip_id", Type.INTEGER, "identification of IPv4", "ip.id"),
        TableColumn("udp_src_port", Type.INTEGER, "UDP source port", "udp.srcport"),
        TableColumn("opcode", Type.SMALL, "BTH opcode", "bth.opcode"),
        TableColumn("operation", Type.TEXT, "the opcode in words", "bth.opcode_name"),
        TableColumn("dst_qpn", Type.INTEGER, "destination queue pair", "bth.destqp"),
        TableColumn(
            "src_qpn", Type.INTEGER, "source queue pair, which datagrams name", "deth.srcqp"
        ),
        TableColumn("psn", Type.INTEGER, "packet sequence number, 24 bits", "bth.psn"),
        TableColumn("ack_req", Type.FLAG, "the AckReq bit", "bth.a"),
        TableColumn("solicited", Type.FLAG, "the solicited event bit", "bth.se"),
        TableColumn("mig_req", Type.FLAG, "the MigReq bit", "bth.m"),
        TableColumn("pkey", Type.INTEGER, "P_Key", "bth.p_key"),
        TableColumn("va", Type.WORD64, "remote address of a RETH or AtomicETH"),
        TableColumn("rkey", Type.BIG, "R_Key of a RETH or AtomicETH"),
        TableColumn("dma_len", Type.BIG, "DMA length of a RETH", "reth.dmalen"),
        TableColumn("imm", Type.BIG, "immediate data", "immdt"),
        TableColumn("syndrome", Type.SMALL, "AETH syndrome byte", "aeth.syndrome"),
        TableColumn("ack_kind", Type.TEXT, "what it is: `ACK`, `RNR_NAK`, `NAK`, `RESERVED`"),
        TableColumn("nak_code", Type.TEXT, "of a NAK: `PSN_SEQUENCE_ERROR` and so on"),
        TableColumn("msn", Type.INTEGER, "message sequence number of an AETH", "aeth.msn"),
        TableColumn("payload_len", Type.INTEGER, "bytes of payload without padding", "payload.len"),
        TableColumn("icrc", Type.BIG, "ICRC as it stands on the wire"),
        TableColumn(
            "icrc_status", Type.TEXT, "`good`, `bad`, `truncated`, `absent`", "icrc.status"
        ),
        TableColumn(
            "pause_classes",
            Type.NUMBERS,
            "of PFC: 1 for each class that it names",
            "macc.pfc.classes",
        ),
        TableColumn(
            "pause_quanta",
            Type.NUMBERS,
            "of PFC: pause of each class in 512 bit times",
            "macc.pfc.time",
        ),
        TableColumn("comment", Type.TEXT, "comments in a pcapng capture", "frame.comment"),
        TableColumn("fault", Type.TEXT, "why reading the packet stopped early", "fault"),
    ),
)

MESSAGES = TableSpec(
    "messages",
    "One row a message: what one work request put on the wire.",
    (
        _FILE,
        _CONNECTION,
        TableColumn("direction", Type.SMALL, "of its requests: 0 from the end that was seen first"),
        TableColumn("verb", Type.TEXT, "`SEND`, `RDMA_WRITE`, `RDMA_READ`, `COMPARE_SWAP`, ..."),
        TableColumn("first_psn", Type.INTEGER, "PSN of its first packet"),
        TableColumn("last_psn", Type.INTEGER, "its last PSN; of a READ the last it reserves"),
        TableColumn("size", Type.BIG, "bytes of payload, also of a READ's responses"),
        TableColumn("first_number", Type.BIG, "packet number of its first request"),
        TableColumn("last_number", Type.BIG, "packet number of its last request"),
        TableColumn("first_ns", Type.BIG, "time of the first request, ns since 1970"),
        TableColumn("last_ns", Type.BIG, "time of the last request, ns since 1970"),
        TableColumn("acked_number", Type.BIG, "packet number of the response that completes it"),
        TableColumn("acked_ns", Type.BIG, "time of that response, ns since 1970"),
        TableColumn("latency_ns", Type.BIG, "from the first request to that response"),
        TableColumn(
            "retransmitted_packets", Type.INTEGER, "its request packets that were retransmitted"
        ),
    ),
)

EVENTS = TableSpec(
    "events",
    "One row for each event of a connection.",
    (
        _FILE,
        _CONNECTION,
        TableColumn(
            "direction",
            Type.SMALL,
            "of the packets of the event; of a NAK, of the requests that it refuses",
        ),
        TableColumn("kind", Type.TEXT, f"what happened: {_words(FlowEventKind)}"),
        TableColumn("number", Type.BIG, "packet that shows it, the first of several"),
        TableColumn("last_number", Type.BIG, "last packet, of kinds with several"),
        TableColumn("time_ns", Type.BIG, "time of the packet, ns since 1970"),
        TableColumn("psn", Type.INTEGER, "PSN of the event, the first of several"),
        TableColumn("last_psn", Type.INTEGER, "the last of several"),
        TableColumn("count", Type.INTEGER, "number of packets"),
        TableColumn("opcode", Type.SMALL, "BTH opcode of the packet; null for lost packets"),
        TableColumn("cause", Type.TEXT, f"the cause, where the capture shows it: {_words(Cause)}"),
        TableColumn("cause_number", Type.BIG, "packet that caused it"),
        TableColumn("delay_ns", Type.BIG, "time since the cause; of an RNR NAK the requested wait"),
        TableColumn("code", Type.SMALL, "syndrome byte of a NAK or RNR NAK"),
        TableColumn("is_timeout", Type.FLAG, "an ACK timer began this retransmission"),
    ),
)

INCIDENTS = TableSpec(
    "incidents",
    "One row for each cause of an incident, as `explain` describes them.",
    (
        _FILE,
        _CONNECTION,
        TableColumn("direction", Type.SMALL, "of the requests that are affected"),
        TableColumn("incident", Type.INTEGER, "number of the incident in its connection, from 1"),
        TableColumn(
            "outcome",
            Type.TEXT,
            "how it ended: `open`, `recovered`, `harmless`, `refused`, `given_up`, `reset`",
        ),
        TableColumn("is_open", Type.FLAG, "not resolved when the capture ended"),
        TableColumn("first_number", Type.BIG, "packet number of its first sign"),
        TableColumn("last_number", Type.BIG, "its last packet"),
        TableColumn("first_ns", Type.BIG, "time of its first sign, ns since 1970"),
        TableColumn("last_ns", Type.BIG, "time of its last packet, ns since 1970"),
        TableColumn(
            "stall_ns", Type.BIG, "from the first transmission of what is affected to its response"
        ),
        TableColumn("retransmitted_packets", Type.BIG, "request packets that were retransmitted"),
        TableColumn("title", Type.TEXT, "what happened and how it ended, in words"),
        TableColumn("cause", Type.TEXT, "the cause; null where the capture shows none yet"),
        TableColumn(
            "possible", Type.TEXTS, "what the cause may be; several if the capture does not decide"
        ),
        TableColumn("count", Type.BIG, "packets that the cause affects, or how often it occurred"),
        TableColumn("frames", Type.BIGS, "numbers of the packets that show it"),
        TableColumn("evidence", Type.TEXT, "what the first of them shows, in words"),
    ),
)

CONNECTIONS = TableSpec(
    "connections",
    "One row for each direction of a connection; requests are counted where they are sent.",
    (
        _FILE,
        _CONNECTION,
        _DIRECTION,
        TableColumn("status", Type.TEXT, f"what became of it: {_words(Status)}"),
        TableColumn("status_detail", Type.TEXT, "kind of a `remote-error`, reason of a rejection"),
        TableColumn("src", Type.TEXT, "sender: IP address, GID, or `LID n`"),
        TableColumn("dst", Type.TEXT, "receiver likewise"),
        TableColumn("src_qpn", Type.INTEGER, "sender's queue pair, as far as known"),
        TableColumn("dst_qpn", Type.INTEGER, "receiver's queue pair, as far as known"),
        TableColumn("transport", Type.TEXT, "`RC`, `UC`, `UD`, `XRC`, `RD`; none for CNPs alone"),
        TableColumn("pairing", Type.TEXT, "how the two directions were paired"),
        TableColumn("path_mtu", Type.INTEGER, "path MTU in bytes, as far as known"),
        TableColumn("packets", Type.BIG, "packets in this direction"),
        TableColumn("bytes", Type.BIG, "bytes of their frames on the wire"),
        TableColumn("payload_bytes", Type.BIG, "bytes of their payload"),
        TableColumn("messages", Type.BIG, "messages requested in this direction"),
        TableColumn("verbs", Type.COUNTS, "messages by verb"),
        TableColumn("open_messages", Type.BIG, "messages without a response at the end"),
        TableColumn("message_bytes", Type.BIG, "payload bytes of completed messages"),
        TableColumn("goodput_bps", Type.BIG, "the same in bits per second"),
        TableColumn("first_ns", Type.BIG, "time of the first packet, ns since 1970"),
        TableColumn("last_ns", Type.BIG, "time of the last packet, ns since 1970"),
        TableColumn("retransmitted_packets", Type.BIG, "packets that were retransmitted"),
        TableColumn("lost_packets", Type.BIG, "packets that were never seen here"),
        TableColumn("duplicate_packets", Type.BIG, "duplicates made by the network or the capture"),
        TableColumn(
            "repeated_packets",
            Type.BIG,
            "packets that arrived again, as duplicates, late or retransmitted: nothing shows which",
        ),
        TableColumn("reordered_packets", Type.BIG, "packets that arrived after later ones"),
        TableColumn("naks", Type.COUNTS, "NAKs of these requests, by kind"),
        TableColumn("rnr_naks", Type.BIG, "RNR NAKs of these requests"),
        TableColumn("timeouts", Type.BIG, "retransmissions after an ACK timeout"),
        TableColumn("implied_naks", Type.BIG, "responses that passed over a READ or atomic"),
        TableColumn("restarts", Type.BIG, "times that PSNs restarted"),
        TableColumn("ecn_ce", Type.BIG, "packets with the CE mark"),
        TableColumn("cnps", Type.BIG, "CNPs that asked this sender to slow down"),
        TableColumn("icrc_bad", Type.BIG, "packets with a wrong ICRC"),
        TableColumn("cm_messages", Type.TEXT, "messages of connection managers: `2 REQ REJ`"),
        TableColumn("cm_service_id", Type.WORD64, "service ID that a REQ or SIDR_REQ asks for"),
        TableColumn("latency_min_ns", Type.BIG, "shortest time to completion", "latency_ns.min"),
        TableColumn("latency_p50_ns", Type.BIG, "median, within 1 %", "latency_ns.p50"),
        TableColumn("latency_p99_ns", Type.BIG, "99th percentile, within 1 %", "latency_ns.p99"),
        TableColumn("latency_max_ns", Type.BIG, "longest time to completion", "latency_ns.max"),
        TableColumn("max_outstanding_psns", Type.BIG, "most PSNs sent and not acknowledged"),
        TableColumn("messages_per_ack", Type.REAL, "messages that one response completed"),
        TableColumn(
            "not_observable", Type.TEXTS, "columns that this capture cannot show for certain"
        ),
    ),
)

TABLES = {table.name: table for table in (PACKETS, MESSAGES, EVENTS, INCIDENTS, CONNECTIONS)}
