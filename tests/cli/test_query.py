"""`ibwire query`: what it prints, where it writes, how it ends; the document's queries run."""

import _thread
import csv
import json
import os
import re
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pa = pytest.importorskip("pyarrow", reason="pyarrow not installed")
pytest.importorskip("duckdb", reason="duckdb not installed")
import pyarrow.parquet as pq  # noqa: E402
from rich.console import Console  # noqa: E402

from examples import sampled  # noqa: E402
from ibwire.capture import PcapWriter, open_capture  # noqa: E402
from ibwire.cli import main  # noqa: E402
from ibwire.cli.export import command as export  # noqa: E402
from ibwire.connections.tables import TABLES  # noqa: E402
from ibwire.query.database import _Worker  # noqa: E402
from ibwire.report.rows import csv_lines, json_lines, table, text_lines  # noqa: E402
from ibwire_layers.outer import LinkType  # noqa: E402

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "layers")])}
DOCUMENT = (ROOT / "docs" / "query.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^```sql\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
CAPTURES = sorted(map(str, (ROOT / "captures").glob("*.pcap*")))

PROGRAM = [sys.executable, "-c", "from ibwire.cli.query import command; command()"]
WRITES = "SELECT number, psn FROM packets WHERE operation = 'RC_RDMA_WRITE_FIRST'"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["query", *map(str, arguments)])


def lines(*arguments: object) -> Any:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.splitlines()


@pytest.fixture
def rcx(captures: Path) -> Path:
    return captures / "rcx-all-ops.pcap"


# The values of these packets are tshark's.


def test_a_pipe_gets_tab_separated_values(rcx: Path) -> None:
    assert lines(rcx, WRITES) == ["number\tpsn", "16\t4099", "42\t4118"]


def test_a_missing_table_names_those_that_are_there(rcx: Path, tmp_path: Path) -> None:
    exported = tmp_path / "runs.parquet"
    assert run(rcx, WRITES, "-o", exported).exit_code == 0
    texts = {}
    for source in (rcx, exported):
        result = run(source, "FROM event")
        assert result.exit_code == 2
        texts[source] = result.stderr

    assert texts[rcx].endswith(
        "The tables here: packets, messages, events, incidents, connections\n"
    )
    assert texts[exported].endswith("event does not exist!\nThe tables here: runs\n")
    assert "of mine does not exist!\nThe tables here: " in run(rcx, 'FROM "event\nof mine"').stderr


def test_what_is_wrong_with_a_capture_is_said_where_its_connections_are_asked_for(
    captures: Path, tmp_path: Path
) -> None:
    """The headers of some packets are cut, so that the answer is not that of the whole packets."""
    cut = tmp_path / "cut.pcap"
    with open_capture(captures / "chaos.b.pcap") as capture, cut.open("wb") as stream:
        writer = PcapWriter(stream, LinkType.ETHERNET)
        for record in capture.records():
            writer.write(record.data[:60], record.time_ns, wire_len=record.wire_len)
        writer.flush()

    plain, asked = (
        run(cut, f"SELECT count(*) FROM {table}") for table in ("packets", "connections")
    )
    written = CliRunner().invoke(export, [str(cut), "-o", str(tmp_path / "tables")])

    assert (plain.exit_code, plain.stderr) == (0, "")
    for result in (asked, written):
        assert result.exit_code == 0
        assert f"warning: {cut}: 84 packets were cut" in result.stderr


def test_json_is_one_object_a_row(rcx: Path) -> None:
    found = [json.loads(line) for line in lines("--json", rcx, WRITES)]

    assert found == [{"number": 16, "psn": 4099}, {"number": 42, "psn": 4118}]


def test_csv_has_a_header(rcx: Path) -> None:
    assert list(csv.reader(lines("--csv", rcx, WRITES)))[1] == ["16", "4099"]


@pytest.mark.parametrize(
    ("suffix", "options"),
    [("json", ["--json"]), ("csv", ["--csv"]), ("tsv", []), ("CSV", ["--csv"])],
)
def test_the_suffix_of_the_output_picks_the_format(
    rcx: Path, tmp_path: Path, suffix: str, options: Any
) -> None:
    path = tmp_path / f"out.{suffix}"

    assert lines("-o", path, rcx, WRITES) == []

    assert path.read_text(encoding="utf-8").splitlines() == lines(*options, rcx, WRITES)


def test_parquet_output_is_a_source_again(rcx: Path, tmp_path: Path) -> None:
    path = tmp_path / "writes.parquet"

    assert lines("-o", path, rcx, WRITES) == []

    assert pq.read_table(path).to_pylist()[0] == {"number": 16, "psn": 4099}
    assert lines(path, "SELECT max(psn) AS psn FROM writes") == ["psn", "4118"]


def test_exported_directories_and_captures_go_together(
    captures: Path, rcx: Path, tmp_path: Path
) -> None:
    other = captures / "rcx-ipv6.pcap"
    CliRunner().invoke(export, [str(rcx), "-o", str(tmp_path)])
    sql = "SELECT file, count(*) AS n FROM packets GROUP BY file ORDER BY n"

    assert lines(tmp_path, other, sql) == ["file\tn", f"{other}\t54", f"{rcx}\t64"]


@pytest.mark.slow
def test_standard_input_may_be_read_twice(rcx: Path) -> None:
    child = subprocess.run(
        [*PROGRAM, "-", "SELECT count(*) AS n FROM packets a JOIN packets b USING (number)"],
        input=rcx.read_bytes(),
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )

    assert (child.returncode, child.stdout, child.stderr) == (0, b"n\n64\n", b"")


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_and_wrong_sql_leave_no_traces_of_the_library(
    rcx: Path,
) -> None:
    """DuckDB's binding would report what is left behind at exit."""
    for sql in ("SELECT range FROM range(10000000)", "SELECT 1 / 'x'", "SELEC"):
        with subprocess.Popen(
            [*PROGRAM, rcx, sql], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            child.stdout.readline()
            child.stdout.close()
            told = child.stderr.read()

        assert b"leaked" not in told
        assert b"Traceback" not in told


def test_tables_are_listed_with_columns_types_and_meanings(rcx: Path) -> None:
    """The types are what DuckDB makes of them, and those of the document."""
    expected = []
    for spec in TABLES.values():
        expected.append(f"{spec.name}  {spec.doc}")
        for column in spec.columns:
            expected.append(f"  {column.name:22}  {column.type.value:20}  {column.doc}")

    assert lines("--tables", rcx) == expected


def test_of_a_directory_the_tables_that_are_there_are_listed(rcx: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "mine.parquet")

    assert lines("--tables", tmp_path) == ["mine", f"  {'x':22}  BIGINT"]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT psnn FROM packets", ['Referenced column "psnn" not found']),
        ("SELEC 1", ["Parser Error", 'at or near "SELEC"']),
        (
            "SELECT CAST(src AS INTEGER) FROM packets",
            ["Could not convert string '10.77.0.1'", "LINE 1", "^"],
        ),
    ],
)
def test_wrong_sql_is_explained_in_the_words_of_duckdb(
    rcx: Path, sql: str, words: list[str]
) -> None:
    result = run(rcx, sql)

    assert result.exit_code == 2
    assert all(word in result.stderr for word in words)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["capture.pcap"], "name a capture and then the SQL"),
        (["capture.pcap", ""], "name a capture and then the SQL"),
        (["-o", "out.xml", "capture.pcap", "SELECT 1"], "cannot tell a format"),
        (["--csv", "-o", "out.json", "capture.pcap", "SELECT 1"], "--csv contradicts the suffix"),
        (["--memory", "much", "{rcx}", "SELECT 1"], "Memory"),
        (["capture.pcap", "{rcx}"], "the SQL comes last"),
    ],
)
def test_wrong_usage(rcx: Path, arguments: list[str], words: str) -> None:
    result = run(*(argument.format(rcx=rcx) for argument in arguments))

    assert result.exit_code == 2
    assert words in result.stderr


def test_a_source_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    before = path.read_bytes()

    result = run("-o", path, path, "FROM x")

    assert result.exit_code == 2
    assert f"{path}: cannot be written: it is also an input" in result.stderr
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["missing/out.json", "missing/out.parquet"])
def test_output_that_cannot_be_written_is_told(rcx: Path, tmp_path: Path, name: str) -> None:
    result = run("-o", tmp_path / name, rcx, WRITES)

    assert result.exit_code == 1
    assert "out." in result.stderr
    assert "Traceback" not in result.stderr


def test_a_damaged_capture_is_asked_up_to_the_damage(rcx: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.pcap"
    path.write_bytes(rcx.read_bytes()[:-1])

    result = run(path, "SELECT count(*) AS n FROM packets")

    assert (result.exit_code, result.stdout) == (3, "n\n63\n")
    assert f"{path}: byte" in result.stderr


@pytest.mark.parametrize("content", [None, b"", b"no capture at all", b"\x1f\x8b\x08\0rubbish"])
@pytest.mark.parametrize("name", ["x.pcap", "x.parquet"])
def test_what_cannot_be_read_is_told(tmp_path: Path, content: bytes | None, name: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)

    result = run(tmp_path / name, "SELECT count(*) FROM events")

    assert result.exit_code == 3
    assert f"{tmp_path / name}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", ["duckdb", "pyarrow"])
def test_a_missing_extra_is_named(rcx: Path, module: str) -> None:
    script = f"import sys; sys.modules['{module}'] = None; {PROGRAM[-1]}"
    child = subprocess.run(
        [sys.executable, "-c", script, rcx, "SELECT 1"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert child.returncode == 1
    assert "pip install 'ibwire[query]'" in child.stderr


# How rows are shown.


def batch(**columns: Any) -> Any:
    return pa.record_batch(columns)


NS = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
VALUES = batch(
    text=["tab\there\nand é"],
    null=pa.array([None], pa.int64()),
    flag=[True],
    big=pa.array([Decimal(2**70)], pa.decimal128(38, 0)),
    share=[0.1],
    no_number=[float("nan")],
    time=NS,
    times=pa.array([[NS[0]]], pa.list_(pa.timestamp("ns"))),
    naks=pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    pair=[{"x": 1, "y": None}],
    raw=[b"\x00\xff"],
    word=pa.array(["w"]).dictionary_encode(),
)
TIME = "2023-11-14 22:13:20.123456789"


def test_json_keeps_numbers_and_nanoseconds() -> None:
    (line,) = json_lines(VALUES.schema.names, [VALUES])

    assert json.loads(line) == {
        "text": "tab\there\nand é",
        "null": None,
        "flag": True,
        "big": 2**70,
        "share": 0.1,
        "no_number": None,
        "time": TIME,
        "times": [TIME],
        "naks": {"a": 1},
        "pair": {"x": 1, "y": None},
        "raw": "00ff",
        "word": "w",
    }


def test_text_stays_on_its_line() -> None:
    _, line = text_lines(VALUES.schema.names, [VALUES])

    assert line.split("\t") == [
        "tab\\there\\nand é",
        "",
        "true",
        str(2**70),
        "0.1",
        "nan",
        TIME,
        f'["{TIME}"]',
        '{"a": 1}',
        '{"x": 1, "y": null}',
        "00ff",
        "w",
    ]


def test_csv_can_be_read_back() -> None:
    rows = list(csv.reader(csv_lines(["a", "b"], [batch(a=['x,"y"\nz'], b=[None])])))

    assert rows == [["a", "b"], ['x,"y"\nz', ""]]


def test_columns_of_the_same_name_are_told_apart_in_json() -> None:
    (line,) = json_lines(["a", "a"], [pa.RecordBatch.from_arrays([[1], [2]], ["a", "a"])])

    assert json.loads(line) == {"a": 1, "a_2": 2}


def shown(names: Any, rows: Any, width: Any) -> Any:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        for part in table(names, rows, width):
            console.print(part, soft_wrap=True)
    return captured.get().splitlines()


def test_a_terminal_shows_a_table() -> None:
    found = shown(["name", "count"], [("[bold]x", 5), ("y", 1234)], 20)

    assert [line.rstrip() for line in found] == [
        "name     count",
        "[bold]x      5",
        "y         1234",
    ]


def test_what_is_wider_than_the_terminal_is_shown_row_by_row_and_whole() -> None:
    rows = [("x" * 50, 5, None), ("y", 1234, "z")]

    assert shown(["name", "count", "why"], rows, 20) == [
        "row 1",
        f"  name   {'x' * 50}",
        "  count  5",
        "row 2",
        "  name   y",
        "  count  1234",
        "  why    z",
    ]


def test_nothing_in_a_capture_moves_the_cursor_of_a_terminal() -> None:
    (_, line) = shown(["comment"], [("\x1b[2J\x9b31m",)], 80)

    assert line.rstrip() == "\\x1b[2J\\x9b31m"


# The document.


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All shipped captures, exported once."""
    directory = tmp_path_factory.mktemp("tables")
    assert CliRunner().invoke(export, [*CAPTURES, "-o", str(directory)]).exit_code == 0
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("sql", sampled(QUERIES, 4), ids=lambda sql: sql.split("\n")[0][:50])
def test_queries_of_the_document_find_something_in_the_shipped_captures(
    tables: Path, sql: str
) -> None:
    assert len(lines(tables, sql)) > 1


def test_the_document_lists_the_tables_as_they_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.+) \|$", DOCUMENT, re.MULTILINE)

    assert rows == [
        (column.name, column.type.value, column.doc)
        for spec in TABLES.values()
        for column in spec.columns
    ]
    assert re.findall(r"^### `(\w+)`$", DOCUMENT, re.MULTILINE) == list(TABLES)


def test_the_first_command_of_the_document_prints_what_it_says() -> None:
    (entry,) = re.findall(
        r"^```console\n\$ ibwire query (\S+) \"(.*?)\"\n(.*?)^```",
        DOCUMENT,
        re.MULTILINE | re.DOTALL,
    )
    capture, sql, expected = entry

    assert lines(ROOT / capture, sql) == expected.splitlines()


def test_a_query_that_begins_after_the_signal_is_interrupted() -> None:
    """DuckDB forgets an interrupt that comes before a query has begun."""
    tries: list[None] = []
    ended = threading.Event()

    def interrupt() -> None:
        tries.append(None)
        if len(tries) > 1:
            ended.set()

    def query() -> bool:
        _thread.interrupt_main()
        return ended.wait(10)

    with pytest.raises(KeyboardInterrupt):
        _Worker(interrupt).call(query)

    assert ended.is_set()
