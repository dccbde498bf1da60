"""`ibwire dissect`: what it prints, where it writes, how it ends."""

import csv
import gzip
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import terminal
from capture.handmade import pcap_header, pcap_record
from ibwire.cli import main

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "layers")])}

# Made by hand after IEEE 802.1Q 36: classes 3 and 0 enabled, 3 stops for 65,535 quanta, 0 resumes.
PFC = bytes.fromhex("0180c2000001 020000000001 8808 0101 0009 0000 0000 0000 ffff") + bytes(34)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["dissect", *map(str, arguments)])


def lines(*arguments: object) -> Any:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def records(*arguments: object) -> Any:
    return [json.loads(line) for line in lines("--json", *arguments)]


def process(*arguments: object, **options: Any) -> Any:
    command = [sys.executable, "-m", "ibwire", "dissect", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False, **options)


@pytest.fixture
def rcx(captures: Path) -> Path:
    return captures / "rcx-all-ops.pcap"


@pytest.fixture
def pfc(tmp_path: Path) -> Path:
    path = tmp_path / "pfc.pcap"
    path.write_bytes(pcap_header() + pcap_record(PFC))
    return path


# The values of these packets are tshark's.


def test_a_line_tells_what_matters_of_a_write(rcx: Path) -> None:
    line = lines(rcx)[15]

    for part in (
        "    16 ",
        "10.77.0.1 > 10.77.0.2",
        "RC_RDMA_WRITE_FIRST",
        "qp=0x000066",
        "psn=4099",
        "va=0x2a2a5000",
        "rkey=0x4fdd",
        "dmalen=5000",
        "payload=1024",
        "len=1098",
        "icrc=good",
    ):
        assert part in line


def test_a_line_tells_a_nak_in_words(captures: Path) -> None:
    line = lines(captures / "nak-bad-rkey-write-multi.pcap")[16]

    for part in ("10.77.0.2 > 10.77.0.1", "psn=2766361", "NAK REMOTE_ACCESS_ERROR", "msn=1"):
        assert part in line


def test_a_line_tells_how_long_an_rnr_nak_asks_to_wait(captures: Path) -> None:
    naks = [line for line in lines(captures / "rnr-late-recv.pcap") if "RNR" in line]

    assert len(naks) == 9
    assert all("wait=5.12ms" in line for line in naks)


def test_json_is_one_flat_object_a_packet(rcx: Path) -> None:
    found = records(rcx)

    assert [record["frame.number"] for record in found] == list(range(1, 65))
    assert not any(isinstance(v, dict) for record in found for v in record.values())


def test_json_values_and_their_types(rcx: Path) -> None:
    record = records(rcx)[15]

    expected = {
        "frame.time_ns": 1795220249187545000,
        "frame.len": 1098,
        "frame.protocol": "ROCEV2",
        "eth.dst": "52:54:00:77:00:02",
        "ip.src": "10.77.0.1",
        "bth.opcode": 6,
        "bth.opcode_name": "RC_RDMA_WRITE_FIRST",
        "bth.destqp": 0x66,
        "bth.psn": 4099,
        "reth.va": 0x2A2A5000,
        "reth.r_key": 0x4FDD,
        "reth.dmalen": 5000,
        "icrc": "3a517a5d",
        "icrc.status": "good",
    }
    assert {name: record[name] for name in expected} == expected
    assert all(type(record[name]) is type(value) for name, value in expected.items())


def test_json_leaves_out_what_a_packet_does_not_have(rcx: Path) -> None:
    found = records(rcx)

    assert not any(name.startswith(("bth", "icrc")) for name in found[0])  # TCP
    assert "aeth.msn" not in found[15]
    assert found[10]["aeth.msn"] == 1


def test_json_of_a_pfc_frame_lists_eight_classes(pfc: Path) -> None:
    (record,) = records(pfc)

    assert record["frame.protocol"] == "PFC"
    assert record["macc.opcode"] == 0x0101
    assert record["macc.pfc.classes"] == [1, 0, 0, 1, 0, 0, 0, 0]
    assert record["macc.pfc.time"] == [0, 0, 0, 0xFFFF, 0, 0, 0, 0]


def test_a_line_of_a_pfc_frame_names_the_classes(pfc: Path) -> None:
    (line,) = lines(pfc)

    assert "PFC class0=resume class3=65535" in line


def test_fields_that_few_name_can_be_printed_too(rcx: Path) -> None:
    """Presence of a header is true or false; sixteen reserved bytes are digits."""
    found = records("--fields", "aeth,reth,bth.psn", "-c", 16, rcx)

    assert found[10] == {"aeth": True, "reth": False, "bth.psn": 4096}
    assert found[15] == {"aeth": False, "reth": True, "bth.psn": 4099}


@pytest.mark.parametrize("option", ["--json", "--csv", "--where=bth"])
def test_reserved_bytes_of_a_cnp_are_digits(captures: Path, option: str) -> None:
    path = captures / "probe-odd-frames.pcap"
    found = lines(option, "--fields", "cnp.reserved", "--where", "bth.opcode == 0x81", path)

    assert "0" * 32 in found[-1]


def test_csv_has_a_header_and_empty_cells(rcx: Path) -> None:
    rows = list(csv.DictReader(lines("--csv", rcx)))

    assert len(rows) == 64
    assert rows[15]["bth.psn"] == "4099"
    assert rows[0]["bth.psn"] == ""


@pytest.mark.parametrize("prefix", ["", "infiniband."])
def test_fields_with_and_without_wireshark_prefix(rcx: Path, prefix: str) -> None:
    found = lines("--fields", f"frame.number,{prefix}bth.destqp,{prefix}bth.psn", rcx)

    assert found[0] == "frame.number\tbth.destqp\tbth.psn"
    assert found[16] == "16\t0x66\t4099"
    assert found[1] == "1\t\t"


@pytest.mark.parametrize("names", ["bth.psnn", ",", "frame.number,nothing"])
def test_wrong_fields_are_wrong_usage(rcx: Path, names: str) -> None:
    result = run("--fields", names, rcx)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "--fields" in result.stderr


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_where_selects_what_the_index_counts(captures: Path, step: int) -> None:
    index = tomllib.loads((captures / "index.toml").read_text(encoding="utf-8"))

    for entry in index["capture"][::step]:
        path = captures / entry["file"]
        for opcode, count in entry["opcodes"].items():
            assert len(lines("--where", f"bth.opcode == {opcode}", path)) == count
        bad = lines("--where", "icrc.status == bad", path)
        assert len(bad) == entry["icrc"]["bad"]


def test_a_wrong_expression_points_at_the_place(rcx: Path) -> None:
    result = run("--where", "bth.psn == 1 and nothing", rcx)

    assert result.exit_code == 2
    assert "bth.psn == 1 and nothing\n  " + " " * 17 + "^" in result.stderr


@pytest.mark.parametrize("suffix", ["json", "jsonl", "ndjson"])
def test_output_as_json_by_suffix(rcx: Path, tmp_path: Path, suffix: str) -> None:
    assert lines("-o", tmp_path / f"out.{suffix}", rcx) == []

    text = (tmp_path / f"out.{suffix}").read_text(encoding="utf-8")
    assert text.splitlines() == lines("--json", rcx)


@pytest.mark.parametrize(("suffix", "option"), [("csv", ["--csv"]), ("txt", []), ("TXT", [])])
def test_output_by_suffix(rcx: Path, tmp_path: Path, suffix: str, option: str) -> None:
    assert lines("-o", tmp_path / f"out.{suffix}", rcx) == []

    text = (tmp_path / f"out.{suffix}").read_text(encoding="utf-8")
    assert text.splitlines() == lines(*option, rcx)


def test_output_as_parquet(rcx: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow not installed")

    assert lines("-o", tmp_path / "out.parquet", rcx) == []

    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 64
    assert table["bth.psn"][15].as_py() == 4099
    assert table["bth.psn"][0].as_py() is None


def test_output_with_an_unknown_suffix_is_wrong_usage(rcx: Path, tmp_path: Path) -> None:
    result = run("-o", tmp_path / "out.xml", rcx)

    assert result.exit_code == 2
    assert ".parquet" in result.stderr
    assert not (tmp_path / "out.xml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["missing/out.json", "missing/out.parquet", "."])
def test_output_that_cannot_be_written_is_told(rcx: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow not installed")
    options = ["--json"] if name == "." else []
    result = process(*options, "-o", tmp_path / name, rcx)

    assert result.returncode == 1
    assert str(tmp_path / name).encode() in result.stderr
    assert b"None" not in result.stderr
    assert b"Traceback" not in result.stderr


def test_a_suffix_that_contradicts_the_format_is_wrong_usage(rcx: Path, tmp_path: Path) -> None:
    result = run("--json", "-o", tmp_path / "out.csv", rcx)

    assert result.exit_code == 2
    assert "--json contradicts the suffix" in result.stderr


def test_a_field_named_twice_is_printed_once(rcx: Path) -> None:
    assert lines("-c", 1, "--json", "--fields", "frame.number,frame.number", rcx) == [
        '{"frame.number":1}'
    ]


@pytest.mark.parametrize("command", [["dissect", "-"], ["dissect", "x.pcap"], ["fields"]])
def test_closed_standard_streams_are_told(command: list[str]) -> None:
    """`<&-` and `>&-` of a shell leave Python without `sys.stdin` and `sys.stdout`."""
    shell = f"{sys.executable} -m ibwire {' '.join(command)} <&- >&-"
    told = subprocess.run(["sh", "-c", shell], env=ENVIRONMENT, stderr=subprocess.PIPE, check=False)

    assert told.returncode != 0
    assert b"closed" in told.stderr
    assert b"Traceback" not in told.stderr


def test_count_stops(rcx: Path) -> None:
    assert lines("-c", 5, rcx) == lines(rcx)[:5]
    assert lines("-c", 0, rcx) == []
    assert len(lines("-c", 3, "--where", "aeth", rcx)) == 3


def test_count_goes_on_over_several_captures(rcx: Path) -> None:
    assert len(lines("--json", "-c", 70, rcx, rcx)) == 70


def test_several_captures_tell_which_file_a_packet_is_in(rcx: Path, captures: Path) -> None:
    other = captures / "fmt-pcapng.pcapng"
    found = records(rcx, other)

    assert [r["frame.file"] for r in found] == [str(rcx)] * 64 + [str(other)] * 30
    assert "frame.file" not in records(rcx)[0]


def test_the_listing_of_several_captures_names_each_before_its_packets(
    rcx: Path, captures: Path
) -> None:
    other = captures / "fmt-pcapng.pcapng"
    found = lines(rcx, other)

    assert (found[0], found[65]) == (f"{rcx}:", f"{other}:")
    assert len(found) == 1 + 64 + 1 + 30


def test_a_pattern_stands_for_the_files_it_matches(captures: Path) -> None:
    found = records(captures / "fmt-*")

    names = {Path(record["frame.file"]).name for record in found}
    assert (len(found), names) == (62, {"fmt-pcap-nano.pcap", "fmt-pcapng.pcapng"})


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_standard_input(rcx: Path, packed: bool) -> None:
    content = rcx.read_bytes()
    result = process("-", input=gzip.compress(content) if packed else content)

    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode().splitlines() == lines(rcx)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pipes close otherwise on Windows")
@pytest.mark.parametrize("options", [[], ["--json"], ["--csv"], ["--fields", "bth.psn"]])
def test_a_reader_that_has_seen_enough_leaves_no_traceback(captures: Path, options: Any) -> None:
    paths = [str(captures / "uc-write-bw.pcap")] * 40
    command = [sys.executable, "-m", "ibwire", "dissect", *options, *paths]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_told(rcx: Path) -> None:
    result = process("--json", "-o", "/dev/full", rcx)
    assert result.returncode == 1
    assert b"/dev/full: cannot be written: no space left" in result.stderr

    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "ibwire", "dissect", "--json", str(rcx)]
        told = subprocess.run(
            command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert told.returncode != 0
    assert b"No space left" in told.stderr
    assert b"Traceback" not in told.stderr


@pytest.mark.slow
def test_terminal_has_one_coloured_line_for_each_packet(captures: Path) -> None:
    command = [sys.executable, "-m", "ibwire", "dissect", str(captures / "chaos.a.pcap")]

    text = terminal.output(command, ROOT, ENVIRONMENT)

    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) == 574
    assert max(map(len, lines)) == 100  # of the terminal
    assert "\x1b[31m" in text
