"""Every file that a command writes: never over an input, whole or not at all, errors that name it.

The tests walk the tree of commands: an option that names a file has one of the types of
`ibwire/cli/paths.py`, and one that writes a file has a command line in `WRITERS`.
"""

import gc
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from examples import sampled
from ibwire.capture import open_capture
from ibwire.cli import main
from ibwire.cli.paths import InputPath, OutputDirectory, OutputPath

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "captures" / "rcx-all-ops.pcap"
SCENARIO = ROOT / "ibwire" / "scenarios" / "one-lost-packet.toml"

INJECT = "inject --src 10.0.0.1 --dst 10.0.0.2 --qpn 0x11 --count 10"

WRITERS: dict[tuple[str, str], str] = {
    ("dissect", "-o"): "dissect in.pcap -o {}.json",
    ("query", "-o"): "query in.pcap 'FROM packets' -o {}.csv",
    ("export", "-o"): "export in.pcap -o {}.pcapng",
    ("report", "-o"): "report in.pcap -o {}.html",
    ("run", "-o"): "run s.toml -o {}.pcapng",
    ("run", "--trace"): "run s.toml --trace {}",
    ("sweep", "-o"): "sweep s.toml --seeds 2 -o {}.parquet",
    ("inject", "-o"): INJECT + " -o {}.pcap",
    ("inject pfc", "-o"): "inject pfc --prio 3 --time 1ms -o {}.pcap",
    ("inject replay", "-o"): "inject replay in.pcap -o {}.pcap",
    ("tap", "-o"): "tap in.pcap --plan lumina -o {}.pcap",
    ("respond", "-o"): "respond in.pcap -o {}.pcapng",
    ("drill", "--junit"): "drill tests/acks --junit {}",
    ("fuzz run", "--junit"): "fuzz run --budget 50 --junit {}",
    ("fuzz run", "--sarif"): "fuzz run --budget 50 --sarif {}",
    ("fuzz run", "--html"): "fuzz run --budget 50 --html {}.html",
    ("fuzz min", "-o"): "fuzz min case.drill --target emu:rxe -o {}",
    ("flows", "-o"): "flows in.pcap -o {}.csv",
    ("extcap", "--fifo"): "extcap --extcap-interface ibwire-run --capture --fifo {}",
    ("show", "-o"): "show in.pcap 1 -o {}.json",
    ("fields", "-o"): "fields bth -o {}.csv",
    ("fabric ping", "--capture"): "fabric ping star2 node-0 node-1 --count 1 --capture {}.pcapng",
    ("fabric traffic", "--capture"): "fabric traffic star2 --size 1K --capture {}.pcapng",
    ("fabric traffic", "-o"): "fabric traffic star2 --size 1K -o {}.csv",
}
"""Command lines that write to a file, `{}` without its ending, and end with status 0 or 1."""

OTHERS = {
    "dissect in.pcap -o {}.parquet",
    "query in.pcap 'FROM packets' -o {}.parquet",
    "flows in.pcap -o {}.parquet",
}
"""Other formats of the same options."""

DIRECTORIES = {
    ("drill", "-o"),
    ("fuzz run", "-o"),
    ("fuzz run", "--resume"),
    ("man", "-o"),
    ("wireshark", "--config"),
    ("wireshark", "--extcap"),
}
"""Options that name a directory; what is written there has tests of its own."""

NEED_A_LINK = {
    ("pingpong", "--tap"),
    ("perf atomic", "--tap"),
    ("perf read", "--tap"),
    ("perf send", "--tap"),
    ("perf write", "--tap"),
    ("rping", "--tap"),
    ("agent", "--tap"),
    ("drill", "--tap"),
    ("fuzz run", "--tap"),
    ("fuzz replay", "--tap"),
    ("fuzz min", "--tap"),
    ("fabric capture", "file"),
    ("fabric show", "-o"),
    ("fabric route", "-o"),
    ("fabric counters", "-o"),
}
"""Options whose files are written on a link: tests/link/test_tapped.py, tests/live/; or on a
running fabric: tests/cli/test_fabric.py."""


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command with its name."""
    if path:
        yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            yield from commands(each, (*path, name))


PARAMETERS = [(name, parameter) for name, command in commands(main) for parameter in command.params]


def of_type(*types: type) -> list[tuple[str, str]]:
    return [
        (name, parameter.opts[0])
        for name, parameter in PARAMETERS
        if isinstance(parameter.type, types)
    ]


OUTPUTS = of_type(OutputPath)
INPUTS = [
    (name, parameter)
    for name, parameter in PARAMETERS
    if isinstance(parameter.type, InputPath) and parameter.type.file_okay
]
PAIRS = [
    (name, output, parameter)
    for name, output in OUTPUTS
    for command, parameter in INPUTS
    if command == name
]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finding of the fuzzer."""
    place = tmp_path_factory.mktemp("fuzz") / "run"
    run(f"fuzz run --target emu:hns --stop-after 1 -o {place}")
    return place / "F0001" / "case.drill"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Path) -> Path:
    """A directory with an input of each kind."""
    monkeypatch.chdir(tmp_path)
    Path("in.pcap").write_bytes(CAPTURE.read_bytes())
    Path("s.toml").write_bytes(SCENARIO.read_bytes())
    Path("tests").symlink_to(ROOT / "tests" / "conformance")
    Path("case.drill").symlink_to(case)
    return tmp_path


def run(line: str, **more: Any) -> Result:
    return CliRunner().invoke(main, shlex.split(line), **more)


def test_every_option_that_names_a_file_has_a_type_of_files() -> None:
    """So that no command forgets the checks."""
    words = ("FILE", "DIR", "CAPTURE", "SOURCE", "PATH", "CASE")
    untyped = [
        f"{name} {parameter.opts}"
        for name, parameter in PARAMETERS
        if any(word in (parameter.metavar or "").upper() for word in words)
        or parameter.name in ("capture", "captures", "path", "paths", "scenario")
        or isinstance(parameter.type, click.Path | click.File)
        if not isinstance(parameter.type, InputPath | OutputPath | OutputDirectory)
    ]

    assert [each for each in untyped if each not in NOT_FILES] == []


NOT_FILES: set[str] = {"query ['--temp']"}


def test_every_output_is_tested_here_or_on_a_link() -> None:
    assert set(OUTPUTS) == WRITERS.keys() | NEED_A_LINK
    assert set(of_type(OutputDirectory)) == DIRECTORIES


HOWS = ("same name", "symbolic link", "hard link")
"""How an output may be an input. `make test` tries one of them with each pair, in turn."""


@pytest.mark.parametrize(
    ("command", "output", "parameter", "how"),
    [
        pytest.param(
            *pair,
            how,
            id=f"{pair[0]} {pair[1]} {pair[2].opts[0]} {how}",
            marks=[pytest.mark.slow] * (HOWS[number % len(HOWS)] != how),
        )
        for number, pair in enumerate(PAIRS)
        for how in HOWS
    ],
)
def test_no_output_takes_the_place_of_an_input(
    here: Path, command: str, output: str, parameter: click.Parameter, how: str
) -> None:
    source, other = here / "in.pcap", here / "other.pcap"
    before = source.read_bytes()
    if how == "same name":
        other = source
    elif how == "symbolic link":
        other.symlink_to(source)
    else:
        os.link(source, other)
    given = [parameter.opts[0]] if isinstance(parameter, click.Option) else []

    result = CliRunner().invoke(main, [*command.split(), output, str(other), *given, str(source)])

    assert result.exit_code == 2
    assert "cannot be written: it is also an input" in result.stderr
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    "line",
    [
        "run s.toml -o x.pcap --trace x.pcap",
        "tap --between a b --plan lumina -o x.pcapng -o x.pcapng",
        "run s.toml -o - --trace -",
        "drill tests --junit x --tap x",
    ],
)
def test_two_outputs_are_two_files(here: Path, line: str) -> None:
    result = run(line)

    assert result.exit_code == 2
    assert "is named for two outputs" in result.stderr
    assert not Path("x.pcap").exists()


@pytest.mark.slow
@pytest.mark.parametrize("line", ["dissect --json in.pcap", "check in.pcap", "flows in.pcap"])
def test_input_is_not_read_while_standard_output_appends_to_it(here: Path, line: str) -> None:
    with open("in.pcap", "ab") as output:
        done = subprocess.run(
            [sys.executable, "-m", "ibwire", *line.split()],
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert done.returncode == 2
    assert b"standard output: cannot be written: it is also an input, in.pcap" in done.stderr
    assert Path("in.pcap").read_bytes() == CAPTURE.read_bytes()


LINES = [*WRITERS.values(), *sorted(OTHERS)]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("line", sampled(LINES, 5))
def test_full_disk_is_a_sentence_with_the_name(here: Path, line: str) -> None:
    for ending in ("", ".json", ".csv", ".html", ".pcap", ".pcapng", ".parquet"):
        Path(f"full{ending}").symlink_to("/dev/full")

    result = run(line.format("full"))

    assert result.exit_code == 1, result.output
    assert "full" in result.stderr
    assert "cannot be written: no space left on device" in result.stderr
    assert "Traceback" not in result.stderr


LIMITED = """
import resource, sys
from ibwire.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
main()
"""
"""A command whose files may have 2 KiB, as on a disk that becomes full on the way."""


@pytest.mark.slow
@pytest.mark.parametrize("line", [*LINES[:6], "export in.pcap -o ."])
def test_disk_that_becomes_full_leaves_the_old_result(here: Path, line: str) -> None:
    names = [f"old{ending}" for ending in (".json", ".csv", ".html", ".parquet")]
    names += [f"{table}/in.pcap.parquet" for table in ("packets", "messages", "events")]
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("old")
    command = [sys.executable, "-c", LIMITED, *shlex.split(line.format("old"))]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "cannot be written: file too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert {Path(name).read_text() for name in names} == {"old"}
    assert not list(here.rglob("*.ibwire-part"))


@pytest.mark.parametrize("line", sampled(LINES, 5))
def test_missing_directory_is_a_sentence_with_the_name(here: Path, line: str) -> None:
    result = run(line.format("missing/x"))

    assert result.exit_code in (1, 2), result.output
    assert "missing/x" in result.stderr
    assert "cannot be written: no such file or directory" in result.stderr


@pytest.mark.parametrize("line", sampled(LINES, 5))
def test_directory_in_place_of_a_file_is_a_sentence(here: Path, line: str) -> None:
    for ending in ("", ".json", ".csv", ".html", ".pcap", ".pcapng", ".parquet"):
        Path(f"dir{ending}").mkdir()

    result = run(line.format("dir"))

    assert result.exit_code in (1, 2), result.output
    assert "cannot be written: is a directory" in result.stderr


@pytest.mark.parametrize("line", sampled(LINES, 5))
def test_nothing_is_left_beside_the_result(here: Path, line: str) -> None:
    before = set(os.listdir())

    result = run(line.format("new"))

    assert result.exit_code in (0, 1), result.output
    (name,) = set(os.listdir()) - before
    assert name.startswith("new")
    assert Path(name).stat().st_size


FAILING_INPUTS = [
    line.replace("in.pcap", bad)
    for line in LINES
    for bad in ("missing.pcap", "text.pcap")
    if "in.pcap" in line
] + [line.replace("s.toml", "text.pcap") for line in LINES if "s.toml" in line]


@pytest.mark.parametrize("line", FAILING_INPUTS)
def test_failed_input_never_replaces_an_old_result(here: Path, line: str) -> None:
    Path("text.pcap").write_text("no capture\n" * 20)
    for ending in ("", ".json", ".csv", ".html", ".pcap", ".pcapng", ".parquet"):
        Path(f"old{ending}").write_text("old")
    before = {name: Path(name).read_bytes() for name in os.listdir() if Path(name).is_file()}

    result = run(line.format("old"))

    assert result.exit_code != 0
    after = {name: Path(name).read_bytes() for name in os.listdir() if Path(name).is_file()}
    assert after == before


CUT = [line for line in LINES if "in.pcap" in line and not line.startswith(("inject", "show"))]


@pytest.mark.parametrize("line", CUT)
def test_input_cut_short_does_not_replace_an_old_result(here: Path, line: str) -> None:
    Path("in.pcap").write_bytes(CAPTURE.read_bytes()[:-10])
    for ending in (".json", ".csv", ".html", ".pcap", ".pcapng", ".parquet"):
        Path(f"old{ending}").write_text("old")

    result = run(line.format("old"))

    assert result.exit_code == 3
    assert "left as it was, because an input could not be read to its end" in result.stderr
    assert {path.read_text() for path in here.glob("old*")} == {"old"}
    assert not list(here.glob(".*"))


TO_STANDARD_OUTPUT = [
    "run s.toml -o -",
    INJECT + " -o -",
    "inject replay in.pcap -o -",
    "tap in.pcap --plan lumina -o -",
    "export in.pcap -o -",
    "respond in.pcap -o -",
]


@pytest.mark.parametrize("line", TO_STANDARD_OUTPUT)
def test_capture_goes_to_standard_output_and_words_to_standard_error(here: Path, line: str) -> None:
    result = run(line)

    assert result.exit_code in (0, 1), result.stderr
    with open_capture(io.BytesIO(result.stdout_bytes)) as reader:
        assert reader.format == "pcapng"
        assert list(reader.records())


def test_lines_go_to_standard_output_and_words_to_standard_error(here: Path) -> None:
    result = run("run s.toml --trace -")

    assert [json.loads(line)["node"] for line in result.stdout.splitlines()]
    assert "messages" in result.stderr


def test_standard_output_is_restored_at_once_after_wrong_usage() -> None:
    """And not when the traceback is collected, at which another command may be running."""
    before = sys.stdout

    result = CliRunner().invoke(main, ["dissect", "-o", "-", "-c", "many", "in.pcap"])
    result.exc_info = result.exception = None
    gc.collect()

    assert result.exit_code == 2
    assert sys.stdout is before


def test_output_without_a_stream_refuses_standard_output(here: Path) -> None:
    result = run("drill tests --junit -")

    assert result.exit_code == 2
    assert "it needs a file" in result.stderr


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("bad.pcap").write_bytes((ROOT / "captures" / "cm-rping.pcap").read_bytes()[:3001])
    return "bad.pcap"


@pytest.mark.parametrize(
    ("name", "line"),
    [("out.csv", "query bad.pcap 'SELECT number FROM packets'"), ("out.pcapng", "export bad.pcap")],
)
def test_damage_is_named_also_where_an_older_result_is_kept(
    damaged: str, name: str, line: str
) -> None:
    Path(name).write_text("old")

    result = CliRunner().invoke(main, [*shlex.split(line), "-o", name])

    damage, kept = result.stderr.splitlines()
    assert f"{damaged}: byte " in damage
    assert f"{name}: left as it was" in kept
    assert result.exit_code == 3
    assert Path(name).read_text() == "old"


def test_older_tables_of_a_damaged_capture_do_not_keep_others_from_being_exported(
    damaged: str,
) -> None:
    Path("good.pcap").write_bytes(CAPTURE.read_bytes())
    old = Path("tables/packets/bad.pcap.parquet")
    old.parent.mkdir(parents=True)
    old.write_text("old")

    result = CliRunner().invoke(main, ["export", damaged, "good.pcap", "-o", "tables"])

    assert f"{damaged}: byte " in result.stderr
    assert f"{old}: left as it was" in result.stderr
    assert result.exit_code == 3
    assert old.read_text() == "old"
    assert Path("tables/packets/good.pcap.parquet").exists()


@pytest.mark.parametrize(
    ("ending", "shown"), [("csv", b"b\xff.pcap"), ("parquet", "b\ufffd.pcap".encode())]
)
def test_name_of_a_capture_may_be_any_bytes(here: Path, ending: str, shown: bytes) -> None:
    name = os.fsdecode(b"b\xff.pcap")
    Path("in.pcap").rename(name)

    result = CliRunner().invoke(main, ["dissect", name, name, "-c", "1", "-o", f"o.{ending}"])

    assert result.exit_code == 0, result.output
    assert shown in Path(f"o.{ending}").read_bytes()
