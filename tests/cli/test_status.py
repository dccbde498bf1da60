"""All commands say the same of every connection, and `--fail-on` and `--where` select by it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from examples import sampled
from ibwire.cli import main
from ibwire.connections import Status
from ibwire.query.export import CaptureTables
from shipped_captures import each_capture

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from ibwire.query.export import export

CAPTURES = Path(__file__).parents[2] / "captures"
NAMES = sorted(path.name for path in CAPTURES.glob("*.pcap*"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments], prog_name="ibwire")


def shown(row: dict[str, Any]) -> str:
    """A status as people read it."""
    return f"{row['status']}({row['status_detail']})" if row["status_detail"] else row["status"]


def of_flows(path: Path) -> dict[int, str]:
    rows = map(json.loads, run("flows", "--json", path).stdout.splitlines())
    return {row["connection"]: shown(row) for row in rows}


def of_table(path: Path) -> dict[int, str]:
    lines = run("flows", "--all", path).stdout.splitlines()
    found = (re.match(r"(\S+) +(\d+)  ", line) for line in lines)
    return {int(each[2]): each[1] for each in found if each}


def of_sql(path: Path, directory: Path) -> dict[int, str]:
    export(CaptureTables(str(path)), str(directory), "x")
    rows = pq.read_table(directory / "connections" / "x.parquet").to_pylist()
    return {row["connection"]: shown(row) for row in rows}


def of_explain(path: Path, numbers: list[int]) -> dict[int, str]:
    """From the verdict of the connection that is described, and the list of the others."""
    text = run("explain", "--all", path).stdout
    worst = re.findall(r", connection (\d+): .*\n(?:.*\n)*?Verdict: (\S+)\. ", text)
    others = re.findall(r"^ *(\d+)  (\S+) +(?:RC|UC|UD|XRC|\?)  ", text, re.MULTILINE)
    assert len(worst) == 1
    return {int(number): status for number, status in [*worst, *others]}


def of_check(path: Path) -> dict[int, str]:
    rows = map(json.loads, run("check", "--json", path).stdout.splitlines())
    return {
        row["connection"]: row["text"].split(": ")[0] for row in rows if row["rule"] == "status"
    }


def of_report(path: Path) -> tuple[dict[int, str], dict[int, str]]:
    """From the table, and from the headlines of the connections."""
    page = run("report", "--connections", "100", "-o", "-", path).stdout
    pattern = r'<script type="application/json" id="data">(.*?)</script>'
    (embedded,) = re.findall(pattern, page, re.DOTALL)
    data = json.loads(embedded)
    table = {row["number"]: row["status"]["text"] for row in data["rows"]}
    heads = {int(number): each["badge"]["text"] for number, each in data["connections"].items()}
    assert sum(data["statuses"].values()) == len(table)
    return table, heads


@each_capture
def test_all_commands_agree_on_the_status(path: Path, tmp_path: Path) -> None:
    status = of_flows(path)

    assert of_table(path) == status
    assert of_sql(path, tmp_path) == status
    assert of_explain(path, list(status)) == status
    trouble = {
        number: each
        for number, each in status.items()
        if Status(each.partition("(")[0]).severity >= Status.UNRESOLVED.severity
    }
    assert of_check(path) == trouble


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(NAMES, 3))
def test_the_report_agrees_on_the_status(name: str) -> None:
    pytest.importorskip("plotly")
    status = of_flows(CAPTURES / name)

    table, heads = of_report(CAPTURES / name)

    assert table == heads == status


def test_first_rows_are_the_worst() -> None:
    path = CAPTURES / "probe-odd-frames.pcap"

    order = [each.partition("(")[0] for each in of_table(path).values()]

    severity = [Status(each).severity for each in order]
    assert severity == sorted(severity, reverse=True)
    assert severity[0] > severity[-1]


@pytest.mark.parametrize(
    ("fail_on", "status"),
    [
        ("recovered", 1),
        ("recovered+", 1),
        ("ok+", 1),
        ("degraded+", 0),
        ("ok,degraded", 0),
        ("unresolved+, recovered", 1),
    ],
)
@pytest.mark.parametrize("command", ["flows", "explain", "check"])
def test_exit_status_is_that_of_fail_on(command: str, fail_on: str, status: int) -> None:
    result = run(command, "--fail-on", fail_on, CAPTURES / "drop-one-middle.b.pcap")

    assert result.exit_code == status
    assert result.stdout


def test_report_has_the_exit_status_too(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "page.html"
    capture = CAPTURES / "drop-one-middle.b.pcap"

    assert run("report", "-o", page, "--fail-on", "recovered", capture).exit_code == 1
    assert run("report", "-o", page, "--fail-on", "degraded+", capture).exit_code == 0
    assert page.exists()


def test_explain_judges_the_connections_that_it_describes() -> None:
    capture = CAPTURES / "probe-odd-frames.pcap"
    status = of_flows(capture)
    fine = next(number for number, each in status.items() if each == "ok")

    assert run("explain", "--fail-on", "remote-error", capture).exit_code == 1
    chosen = run("explain", "--connection", str(fine), "--fail-on", "remote-error", capture)
    assert chosen.exit_code == 0


def test_check_takes_severities_and_statuses_together() -> None:
    capture = CAPTURES / "retry-exceeded.pcap"

    assert run("check", "--fail-on", "never", capture).exit_code == 0
    assert run("check", "--fail-on", "note", capture).exit_code == 1
    assert run("check", "--fail-on", "error,unresolved+", capture).exit_code == 1
    assert run("check", "--fail-on", "error,unresolved", capture).exit_code == 0
    ignored = run("check", "--ignore", "status", "--fail-on", "note", capture)
    assert (ignored.exit_code, "gave up" in ignored.stdout) == (0, False)


def test_a_misspelled_status_in_where_is_named() -> None:
    result = run("flows", "--where", "status >= unresolvd", CAPTURES / "chaos.b.pcap")

    assert result.exit_code == 2
    assert "status takes one of ok, recovered, degraded, unresolved, unanswered" in result.stderr
    assert "not 'unresolvd'; did you mean unresolved?" in result.stderr


@pytest.mark.parametrize("command", ["flows", "explain", "check", "report"])
def test_an_unknown_status_is_named(command: str) -> None:
    result = run(command, "--fail-on", "unresolvd", CAPTURES / "drop-one-middle.b.pcap")

    assert result.exit_code == 2
    assert "'unresolvd'" in result.stderr
    assert "unanswered" in result.stderr
    assert "did you mean unresolved?" in result.stderr


def test_a_damaged_capture_has_the_exit_status_of_damage(tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes((CAPTURES / "drop-one-middle.b.pcap").read_bytes()[:-7])

    assert run("flows", "--fail-on", "ok+", cut).exit_code == 3


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("status >= recovered", {2, 3}),
        ("status == ok", {1}),
        ("status", {2, 3}),
        ("not status", {1}),
        ("status in {ok, degraded}", {1, 3}),
        ("status == remote-error and status_detail contains access", {2}),
        ("status_detail contains operational", set()),
        ("transport == UC", {1}),
        ("naks > 0 and naks <= 8", {2, 3}),
        ("ip.src == 10.77.0.2 and retransmitted_packets == 70", {3}),
        ("ip.dst in 10.78.0.0/16", set()),
        ("ipv6.src", set()),
        ("latency_ns.p99 > 2000000", {3}),
        ("path_mtu", {1, 3}),
        ("pairing == none", {1}),
    ],
)
def test_where_selects_connections(where: str, numbers: set[int], tmp_path: Path) -> None:
    """In the order of time: unreliable WRITEs, a WRITE that is refused, traffic with faults."""
    names = ("nak-bad-rkey-write.pcap", "uc-write-bw.pcap", "chaos.a.pcap")
    result = run("flows", "--json", "--where", where, *(CAPTURES / name for name in names))

    assert {row["connection"] for row in map(json.loads, result.stdout.splitlines())} == numbers


def test_where_selects_a_connection_without_packets() -> None:
    result = run("flows", "--json", "--where", "status >= refused", CAPTURES / "cm-reject.pcap")

    (row,) = map(json.loads, result.stdout.splitlines())
    assert shown(row) == "cm-rejected(invalid-service-id)"


def test_an_error_of_where_shows_its_position() -> None:
    result = run("flows", "--where", "status == ok and stats", CAPTURES / "chaos.a.pcap")

    assert result.exit_code == 2
    assert "did you mean status" in result.stderr
    assert "                   ^" in result.stderr
