"""The tables of a capture: what they hold, how they are written, what SQL may do with them."""

import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.handmade import pcap_header, pcap_record

pa = pytest.importorskip("pyarrow", reason="pyarrow not installed")
pytest.importorskip("duckdb", reason="duckdb not installed")
import pyarrow.parquet as pq  # noqa: E402

from each_case import each_case  # noqa: E402
from examples import sampled, scaled  # noqa: E402
from ibwire.base.errors import CaptureError, QueryError  # noqa: E402
from ibwire.base.output import Output  # noqa: E402
from ibwire.connections.arrow import ROW_GROUP, TableFile, places_of, schema_of  # noqa: E402
from ibwire.connections.connection import Connection, End  # noqa: E402
from ibwire.connections.flow import FlowKey  # noqa: E402
from ibwire.connections.tables import EVENTS, PACKETS, TABLES, Type  # noqa: E402
from ibwire.dissect import FIELDS  # noqa: E402
from ibwire.query.database import Database  # noqa: E402
from ibwire.query.export import CaptureTables, export  # noqa: E402
from ibwire_layers.opcodes import Service  # noqa: E402

CAPTURES = Path(__file__).parents[2] / "captures"
INDEX = tomllib.loads((CAPTURES / "index.toml").read_text(encoding="utf-8"))["capture"]
SOME = ("rcx-all-ops.pcap", "rcx-ipv6.pcap", "ud-pingpong.pcap", "drop-one-middle.a.pcap")
TSHARK = shutil.which("tshark")


def packets(name: str, *columns: Any) -> Any:
    """The table `packets` of a capture as dictionaries."""
    batches = CaptureTables(str(CAPTURES / name)).packets(columns or None)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """Asks captures and Parquet files; every path is a string or a `Path`."""

    def run(sql: str, *paths: Any, captures: Iterable[Path] = ()) -> Any:
        directory = tempfile.mkdtemp(dir=tmp_path)
        opened = [CaptureTables(str(path)) for path in captures]
        with Database(opened, list(map(str, paths)), directory) as database:
            result = database.run(sql)
            return [tuple(row.values()) for batch in result for row in batch.to_pylist()]

    return run


# Packets.


@each_case("entry", INDEX, ids=lambda entry: entry["file"])
def test_packets_are_those_that_the_index_counts(entry: dict[str, Any]) -> None:
    rows = packets(entry["file"], "opcode", "dst_qpn", "icrc_status")

    assert len(rows) == entry["packets"]
    for code, count in entry["opcodes"].items():
        assert sum(row["opcode"] == int(code, 16) for row in rows) == count
    for qpn, count in entry["dest_qpns"].items():
        assert sum(row["dst_qpn"] == int(qpn, 16) for row in rows) == count
    assert sum(row["icrc_status"] == "bad" for row in rows) == entry["icrc"]["bad"]


def test_values_of_a_write() -> None:
    """Values are tshark's."""
    row = packets("rcx-all-ops.pcap")[15]

    expected = {
        "number": 16,
        "time_ns": 1795220249187545000,
        "wire_len": 1098,
        "protocol": "ROCEV2",
        "src": "10.77.0.1",
        "dst": "10.77.0.2",
        "dst_mac": "52:54:00:77:00:02",
        "vlan": None,
        "opcode": 6,
        "operation": "RC_RDMA_WRITE_FIRST",
        "dst_qpn": 0x66,
        "src_qpn": None,
        "psn": 4099,
        "va": 0x2A2A5000,
        "rkey": 0x4FDD,
        "dma_len": 5000,
        "payload_len": 1024,
        "icrc": 0x3A517A5D,
        "icrc_status": "good",
        "ack_kind": None,
        "fault": None,
    }
    assert {name: row[name] for name in expected} == expected


@pytest.mark.skipif(TSHARK is None, reason="tshark not installed")
@pytest.mark.parametrize(
    "name", sampled(["rcx-all-ops.pcap", "rcx-ipv6.pcap", "vlan-rc-pingpong.pcap"], 3)
)
def test_values_are_tsharks(name: str) -> None:
    fields = {
        "number": "frame.number",
        "wire_len": "frame.len",
        "dst_qpn": "infiniband.bth.destqp",
        "psn": "infiniband.bth.psn",
        "pkey": "infiniband.bth.p_key",
        "syndrome": "infiniband.aeth.syndrome",
        "msn": "infiniband.aeth.msn",
        "dma_len": "infiniband.reth.dmalen",
        "icrc": "infiniband.invariant.crc",
        "vlan": "vlan.id",
        "udp_src_port": "udp.srcport",
    }
    names = [part for field in fields.values() for part in ("-e", field)]
    command = [TSHARK, "-n", "-r", CAPTURES / name, "-T", "fields", *names]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    expected = [
        [int(cell, 0) if cell else None for cell in line.split("\t")] for line in told.splitlines()
    ]
    found = [[row[name] for name in fields] for row in packets(name, *fields)]
    place = list(fields).index("icrc")
    for values, told_values in zip(found, expected, strict=True):
        if told_values[place] is None:  # tshark 4.0 stops before the ICRC of an ATOMIC ACK
            values[place] = None
    assert found == expected


def test_addresses_are_text_whatever_their_kind() -> None:
    ends = {(row["src"], row["dst"]) for row in packets("rcx-ipv6.pcap") if row["opcode"]}

    assert ends == {("fd77::1", "fd77::2"), ("fd77::2", "fd77::1")}


def test_a_nak_is_told_in_words() -> None:
    """Packet 17 is `NAK REMOTE_ACCESS_ERROR` in tshark as well."""
    row = packets("nak-bad-rkey-write-multi.pcap")[16]

    assert (row["ack_kind"], row["nak_code"]) == ("NAK", "REMOTE_ACCESS_ERROR")


def test_datagrams_name_their_sender() -> None:
    qpns = {(row["src_qpn"], row["dst_qpn"]) for row in packets("ud-pingpong.pcap")}

    assert qpns == {(None, None), (0x4D, 0x81), (0x81, 0x4D)}


def test_a_pause_frame_says_which_classes_stop(tmp_path: Path) -> None:
    # Made by hand after IEEE 802.1Q 36: classes 3 and 0 enabled, 3 stops for 65,535 quanta.
    frame = "0180c2000001 020000000001 8808 0101 0009 0000 0000 0000 ffff"
    path = tmp_path / "pfc.pcap"
    path.write_bytes(pcap_header() + pcap_record(bytes.fromhex(frame) + bytes(34)))
    (row,) = packets(path)

    assert row["pause_classes"] == [1, 0, 0, 1, 0, 0, 0, 0]
    assert row["pause_quanta"] == [0, 0, 0, 0xFFFF, 0, 0, 0, 0]
    assert row["src"] is None


def test_columns_that_are_fields_exist() -> None:
    assert {column.field for column in PACKETS.columns if column.field} <= set(FIELDS)


def test_quantities_can_be_subtracted_without_wrapping() -> None:
    unsigned = {
        (table.name, column.name)
        for table in TABLES.values()
        for column in table.columns
        if column.type is Type.WORD64
    }

    assert unsigned == {("packets", "va"), ("connections", "cm_service_id")}


@pytest.mark.slow
@settings(max_examples=scaled(60))
@given(st.data())
def test_any_bytes_make_one_row_a_packet(data: st.DataObject) -> None:
    """Frames are real ones with some bytes changed and their end cut off."""
    content = (CAPTURES / "probe-odd-frames.pcap").read_bytes()
    frames = []
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(24, len(content) - 200))
        frame = bytearray(content[start : start + data.draw(st.integers(0, 200))])
        for at in data.draw(st.lists(st.integers(0, max(len(frame) - 1, 0)), max_size=4)):
            frame[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
        frames.append(bytes(frame))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.pcap"
        path.write_bytes(pcap_header() + b"".join(map(pcap_record, frames)))
        capture = CaptureTables(str(path))
        export(capture, directory, "x")
        written = pq.read_table(Path(directory) / "packets" / "x.parquet")

    assert capture.damage is None
    assert written.num_rows == len(frames)
    assert written.schema.equals(schema_of(PACKETS))


# Files.


def test_export_writes_one_file_a_table(tmp_path: Path) -> None:
    export(CaptureTables(str(CAPTURES / SOME[0])), str(tmp_path), "name")

    found = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert found == {f"{table}/name.parquet" for table in TABLES}
    for name, table in TABLES.items():
        assert pq.read_schema(tmp_path / name / "name.parquet").equals(schema_of(table))


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    with Output(path) as output, TableFile(output, EVENTS) as file:
        file.add((None,) * len(EVENTS.columns))
        assert not path.exists()

    assert pq.read_metadata(path).num_rows == 1
    assert os.listdir(tmp_path) == ["events.parquet"]


def test_a_file_that_was_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with (
        suppress(KeyboardInterrupt),
        Output(tmp_path / "x.parquet") as output,
        TableFile(output, EVENTS) as file,
    ):
        file.add((None,) * len(EVENTS.columns))
        raise KeyboardInterrupt

    assert os.listdir(tmp_path) == []


def test_rows_are_written_in_groups(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    with Output(path) as output, TableFile(output, EVENTS) as file:
        for number in range(2 * ROW_GROUP + 1):
            file.add(("x", number, 0, *[None] * (len(EVENTS.columns) - 3)))

    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert groups == [ROW_GROUP, ROW_GROUP, 1]
    assert pq.read_table(path)["connection"].to_pylist() == list(range(2 * ROW_GROUP + 1))


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "packets").write_text("a file, where a folder should be")

    with pytest.raises(CaptureError, match=r"packets.*cannot be written"):
        export(CaptureTables(str(CAPTURES / SOME[0])), str(tmp_path), "name")


# Connections, events and messages, as far as the tables go: what is in them has its own tests.


@pytest.mark.slow
def test_every_packet_of_a_direction_has_its_numbers(ask: Any) -> None:
    paths = [CAPTURES / entry["file"] for entry in INDEX]
    # A connection that was rejected has no packets, and its status says so.
    counted = (
        "SELECT file, connection, direction, packets AS n FROM connections "
        "WHERE packets > 0 OR status NOT LIKE 'cm-rejected%'"
    )
    found = (
        "SELECT file, connection, direction, count(*) AS n FROM packets "
        "WHERE connection IS NOT NULL GROUP BY ALL"
    )

    (several,) = ask(f"SELECT count(*) FROM ({counted})", captures=paths)
    assert several[0] > len(paths)
    assert ask(f"({counted} EXCEPT {found}) UNION ({found} EXCEPT {counted})", captures=paths) == []


def test_packets_belong_to_the_connection_that_has_seen_any() -> None:
    """Two unreliable directions that were not paired, each of which knows the other's number."""
    near, far = End("a", 1), End("b", 2)
    there, back = Connection(1, (near, far), Service.UC), Connection(2, (far, near), Service.UC)
    for connection in (there, back):
        connection.directions[0].packets = 3

    assert places_of([there, back]) == {
        FlowKey("a", "b", 2, Service.UC): (1, 0),
        FlowKey("b", "a", 1, Service.UC): (2, 0),
    }


@pytest.mark.slow
def test_events_are_about_the_connection_of_their_packet(ask: Any) -> None:
    sql = (
        "SELECT count(*) AS n, count(*) FILTER (e.connection = p.connection) AS same "
        "FROM events e JOIN packets p USING (file, number)"
    )
    ((count, same),) = ask(sql, captures=[CAPTURES / entry["file"] for entry in INDEX])

    assert count == same > 0


def test_a_nak_and_what_was_sent_again_because_of_it(ask: Any) -> None:
    """tshark: packet 20 is a NAK of PSN 103, packets 21 to 27 repeat 13 to 19."""
    found = ask(
        "SELECT kind, number, last_number, psn, last_psn, count, cause, cause_number, code "
        "FROM events ORDER BY number",
        captures=[CAPTURES / "drop-one-middle.a.pcap"],
    )

    assert found == [
        ("nak", 20, 20, 103, 103, 1, None, None, 0x60),
        ("retransmission", 21, 27, 103, 109, 7, "nak", 20, None),
    ]


def test_messages_have_the_time_to_their_answer(ask: Any) -> None:
    """By hand from tshark's times: packet 10 to packet 28, packet 29 to packet 30."""
    found = ask(
        "SELECT verb, size, first_number, acked_number, latency_ns FROM messages ORDER BY 3",
        captures=[CAPTURES / "drop-one-middle.a.pcap"],
    )

    assert found == [("RDMA_WRITE", 10000, 10, 28, 9656000), ("SEND", 10, 29, 30, 1015000)]


def test_incidents_have_their_causes_and_what_they_may_be(ask: Any) -> None:
    """tshark: A sends frame 13 (PSN 103), frame 20 is a NAK of it, 21 to 27 are retransmitted; at
    the other end PSN 103 is missing, so it passed one end and was lost behind it."""
    sql = """
    SELECT outcome, is_open, first_number, retransmitted_packets, cause, possible, frames,
      substr(evidence, 1, 31)
    FROM incidents
    """
    before, after = (
        ask(sql, captures=[CAPTURES / f"drop-one-middle.{end}.pcap"]) for end in ("b", "a")
    )

    assert before == [
        (
            "recovered",
            False,
            13,
            7,
            "lost_before",
            ["lost_before"],
            [13],
            "A's request with PSN 103 did no",
        )
    ]
    assert after == [
        (
            "recovered",
            False,
            20,
            7,
            "lost_after",
            ["lost_after"],
            [20],
            "B: NAK, out of sequence, expect",
        )
    ]


def test_a_capture_without_events_is_not_followed_for_incidents(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ibwire.query.export.incident_rows", None)

    assert ask("SELECT * FROM incidents", captures=[CAPTURES / "rcx-all-ops.pcap"]) == []


# SQL.


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_what_is_exported_is_what_captures_say(ask: Any, tmp_path: Path, table: Any) -> None:
    paths = [CAPTURES / name for name in SOME]
    for path in paths:
        export(CaptureTables(str(path)), str(tmp_path / "tables"), path.name)
    sql = f"SELECT * FROM {table} ORDER BY ALL"

    mixed = ask(sql, *(tmp_path / "tables").glob(f"*/{SOME[0]}.parquet"), captures=paths[1:])
    assert ask(sql, tmp_path / "tables") == ask(sql, captures=paths) == mixed != []


def test_no_connection_is_followed_for_what_headers_say(tmp_path: Path) -> None:
    capture = CaptureTables(str(CAPTURES / SOME[0]))
    with Database([capture], [], str(tmp_path)) as database:
        for sql in (
            "SELECT count(*) FROM packets",
            "SELECT src, sum(payload_len) FROM packets WHERE psn > 4096 GROUP BY src",
        ):
            assert list(database.run(sql))
            assert not capture.is_analysed
        assert list(database.run("SELECT max(connection) FROM packets"))

    assert capture.is_analysed


def test_conditions_on_columns_that_are_not_asked_for(ask: Any) -> None:
    """The pushed-down condition names columns that the result does not have."""
    sql = (
        "SELECT number FROM packets WHERE operation = 'RC_RDMA_WRITE_FIRST' AND src LIKE '10.%' "
        "AND psn BETWEEN 4000 AND 5000 AND ack_kind IS NULL AND dst_qpn IN (102, 103)"
    )

    assert ask(sql, captures=[CAPTURES / "rcx-all-ops.pcap"]) == [(16,), (42,)]


def test_a_table_may_be_named_twice(ask: Any) -> None:
    sql = "SELECT count(*) FROM packets a JOIN packets b USING (file, number)"

    assert ask(sql, captures=[CAPTURES / SOME[0]]) == [(64,)]


def test_a_parquet_file_of_others_is_a_table_of_its_name(ask: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "other one.parquet")

    assert ask('SELECT sum(x) FROM "other one"', tmp_path / "other one.parquet") == [(3,)]


def test_columns_that_an_older_export_lacks_are_null(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    pq.write_table(pa.table({"file": ["a"], "connection": [1]}), tmp_path / "events" / "a.parquet")
    export(CaptureTables(str(CAPTURES / "drop-one-middle.a.pcap")), str(tmp_path), "b")

    assert ask("SELECT kind FROM events ORDER BY kind", tmp_path) == [
        ("nak",),
        ("retransmission",),
        (None,),
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('{folder}/*')",
        "COPY packets TO '{folder}/copy.csv'",
        "ATTACH '{folder}/x.db'",
        "EXPORT DATABASE '{folder}/all'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM 'https://example.org/x.parquet'",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SELECT * FROM captures",
    ],
)
def test_sql_reaches_nothing_but_the_sources(ask: Any, tmp_path: Path, sql: str) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,2\n")

    with pytest.raises(QueryError):
        ask(sql.format(file=file, folder=tmp_path), captures=[CAPTURES / SOME[0]])
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"secret.csv"}


@pytest.mark.parametrize("before", ["", "EXPLAIN ANALYZE ", "PREPARE p AS ", "SELECT 1; "])
def test_sql_writes_over_no_source(ask: Any, tmp_path: Path, before: str) -> None:
    """A file that may be read may be written, for DuckDB."""
    export(CaptureTables(str(CAPTURES / SOME[0])), str(tmp_path), SOME[0])
    (source,) = tmp_path.glob(f"packets/{SOME[0]}.parquet")
    content = source.read_bytes()

    sql = f"{before}COPY (SELECT 1 AS x) TO '{source}' (FORMAT parquet, USE_TMP_FILE false)"
    with pytest.raises(QueryError, match="write the result with -o"):
        ask(sql, tmp_path)
    assert source.read_bytes() == content


@pytest.mark.parametrize("folder", sampled(["a[1]*", "-", "it's", "b ?"], 2))
def test_paths_are_taken_literally(ask: Any, tmp_path: Path, folder: str) -> None:
    """`a[1]*` is a pattern for `a1x`, which must not be read in its place."""
    export(CaptureTables(str(CAPTURES / SOME[0])), str(tmp_path / folder), folder)
    export(CaptureTables(str(CAPTURES / SOME[1])), str(tmp_path / "a1x"), "a1x")

    assert ask("SELECT count(*) FROM packets", tmp_path / folder) == [(64,)]
    file = tmp_path / folder / "packets" / f"{folder}.parquet"
    assert ask("SELECT count(*) FROM packets", file) == [(64,)]


def test_sql_can_read_an_exported_directory_and_not_the_file_beside_it(
    ask: Any, tmp_path: Path
) -> None:
    export(CaptureTables(str(CAPTURES / SOME[0])), str(tmp_path / "tables"), "a")
    export(CaptureTables(str(CAPTURES / SOME[1])), str(tmp_path / "other"), "b")

    with pytest.raises(QueryError):
        ask(f"FROM read_parquet('{tmp_path}/other/packets/b.parquet')", tmp_path / "tables")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "Parser Error"),
        ("SELECT nothing FROM packets", 'Referenced column "nothing" not found'),
        ("SELECT * FROM nothing", "Table with name nothing does not exist"),
        ("SELECT CAST(protocol AS INTEGER) FROM packets", "Could not convert string 'TCP'"),
    ],
)
def test_wrong_sql_is_explained_in_the_words_of_duckdb(ask: Any, sql: str, words: str) -> None:
    with pytest.raises(QueryError, match=words):
        ask(sql, captures=[CAPTURES / SOME[0]])


def test_what_does_not_fit_in_memory_is_told(tmp_path: Path) -> None:
    sql = "SELECT list(repeat(src, 1000000)) FROM packets, range(1000)"
    captures = [CaptureTables(str(CAPTURES / SOME[0]))]
    database = Database(captures, [], str(tmp_path), "1MB")

    with database, pytest.raises(QueryError, match=r"Out of Memory|could not allocate"):
        list(database.run(sql))


def test_tables_end_where_a_capture_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes((CAPTURES / "drop-one-middle.a.pcap").read_bytes()[:-1])
    capture = CaptureTables(str(path))
    with Database([capture], [], str(tmp_path)) as database:
        (batch,) = database.run("SELECT count(*) AS n FROM packets")  # type: ignore[misc]
        list(database.run("FROM events"))

        assert batch.to_pylist() == [{"n": 34}]
        (damage,) = database.damage
    assert "the file ends inside record 35" in str(damage)


@pytest.mark.parametrize("content", [b"", b"PAR1 and then nothing of the kind PAR1"])
def test_what_is_no_parquet_file_is_told(ask: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)

    with pytest.raises(CaptureError, match=r"x\.parquet: cannot be read"):
        ask("SELECT 1", path)


def test_a_directory_without_tables_is_told(ask: Any, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="holds no Parquet files"):
        ask("SELECT 1", tmp_path)
