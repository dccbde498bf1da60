"""Ctrl-C, killed helpers, and input that would take all memory or time: a sentence, soon."""

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli.test_outputs import PARAMETERS, run
from cli.workplace import start, wait_until
from each_case import each_case
from ibwire.base.errors import WorkError
from ibwire.base.interrupt import Terminated
from ibwire.base.work import cluster
from ibwire.cli import main
from ibwire.cli.live import _exit_status
from processes import Processes

CAPTURES = Path(__file__).parents[2] / "captures"

QUERIES = [
    "SELECT count(*) FROM packets a, packets b, packets c",
    "SELECT connection, count(*) FROM packets GROUP BY 1",
    "FROM events",
    "SELECT a.number FROM packets a, packets b",
]
"""In DuckDB alone, in the analysis it waits for, and while rows are printed."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("sql", QUERIES)
def test_interrupted_query_ends_without_a_traceback(
    processes: Processes, workplace: Path, sql: str, number: signal.Signals
) -> None:
    process = start(processes, workplace, f"query long.pcap {shlex.quote(sql)} -o x.csv")
    wait_until(process, lambda: any(workplace.glob(".x.csv*")), "the query began")

    process.send_signal(number)
    _, told = process.communicate(timeout=10)

    assert process.returncode == 128 + number
    assert told == "error: interrupted\n"
    assert os.listdir(workplace.parent / "tmp") == []
    assert not list(workplace.glob("*x.csv*"))


@pytest.mark.parametrize(
    ("interrupt", "status"),
    [
        (KeyboardInterrupt(), 130),
        (Terminated(signal.SIGHUP), 129),
        (Terminated(signal.SIGTERM), 143),
    ],
)
def test_live_command_ends_with_the_status_of_its_signal(
    interrupt: KeyboardInterrupt, status: int
) -> None:
    with pytest.raises(SystemExit) as ended, _exit_status():
        raise interrupt

    assert ended.value.code == status


def children(process: "subprocess.Popen[str]") -> list[int]:
    """Processes that have started Python for `flows --jobs`."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = (status.parent / "cmdline").read_bytes()
            if parent == process.pid and b"spawn_main" in command:
                found.append(int(status.parent.name))
    return found


@pytest.mark.slow
def test_killed_worker_of_flows_is_a_sentence(processes: Processes, workplace: Path) -> None:
    (workplace / "other.pcap").symlink_to(workplace / "long.pcap")
    process = start(processes, workplace, "flows --jobs 2 long.pcap other.pcap")
    wait_until(process, lambda: len(children(process)) == 2, "it had workers")

    os.kill(children(process)[0], signal.SIGKILL)
    _, told = process.communicate()

    assert process.returncode == 1
    assert told.startswith("error: a process was killed, perhaps for lack of memory")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_of_flows_end_with_it(
    processes: Processes, workplace: Path, number: signal.Signals
) -> None:
    (workplace / "other.pcap").symlink_to(workplace / "long.pcap")
    process = start(processes, workplace, "flows --jobs 2 long.pcap other.pcap")
    wait_until(process, lambda: len(children(process)) == 2, "it had workers")
    workers = children(process)

    process.send_signal(number)
    _, told = process.communicate()  # the workers have its standard error, too

    assert process.returncode == (-9 if number is signal.SIGKILL else 128 + number)
    assert "Traceback" not in told
    assert not [pid for pid in workers if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "localhost:{}"])
def test_address_without_a_cluster_is_a_sentence(free_port: int, form: str) -> None:
    address = form.format(free_port)

    with pytest.raises(WorkError, match=f"no Ray cluster at {address}: connection refused"):
        cluster(address)


def test_port_that_is_none_is_a_sentence() -> None:
    result = run(f"flows --ray 127.0.0.1:99999 {CAPTURES}/rcx-all-ops.pcap")

    assert result.exit_code == 1
    assert result.stderr == "error: 127.0.0.1:99999: 99999 is not a port\n"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("line", ["--help", "--version", "run --help", "perf send --help"])
def test_help_on_a_full_disk_is_a_sentence(line: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ibwire", *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr == "error: standard output: No space left on device\n"


# Bombs.

RULE = """
[[wire.faults.a]]
duplicate = {{ copies = {} }}
"""

WORKLOAD = """
[[workload]]
opcode = "RDMA_WRITE"
size = 8192
count = {}
"""


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([1000, 1000, 1000], "the rules make more than 100,000 frames of one"),
        pytest.param(
            [1000, 90], "more than 1,000,000 frames are on their way", marks=pytest.mark.slow
        ),
    ],
)
def test_rules_that_multiply_frames_are_refused(
    tmp_path: Path, rules: list[int], words: str
) -> None:
    path = tmp_path / "bomb.toml"
    path.write_text("".join(map(RULE.format, rules)) + WORKLOAD.format(1000))

    result = run(f"run {path}")

    assert result.exit_code == 1
    assert words in result.stderr
    assert "lower the `copies`" in result.stderr


@pytest.mark.parametrize(
    ("count", "top", "words"),
    [
        (10**12, "max_frames = 1000", "about 6 years; the run ends after max_frames = 1,000 or"),
        (10**9, 'max_frames = 1000000000000\nlimit = "10us"', "about 2 days; it ends earlier with"),
    ],
)
def test_count_that_takes_long_says_how_long(
    tmp_path: Path, count: int, top: str, words: str
) -> None:
    path = tmp_path / "long.toml"
    path.write_text(top + WORKLOAD.format(count))

    result = run(f"run {path}")

    assert f"note: {count:,} messages are at least {8 * count:,} packets" in result.stderr
    assert words in result.stderr


def test_short_scenario_says_nothing_of_its_length() -> None:
    assert run("run one-lost-packet").stderr == ""


# Numbers.

JUNK = ["-1", "0811", "1e3", "٣", "²", "0x", "nan", "inf", "-inf", "1_000", "+5", "1e400"]
JUNK += ["0x11..", "1..0", "5,", "1=2", "=", "-5s"]
JUNK += ["", " 7", "9" * 30, "0x1ffffffffffffffff"]

OFFLINE = {
    "dissect": "{}",
    "show": "{} 1",
    "explain": "{}",
    "check": "{}",
    "flows": "{}",
    "query": "{} 'SELECT 1'",
    "export": "{} -o x.pcapng",
    "report": "{} -o x.html",
    "run": "lost-ack",
    "sweep": "lost-ack",
    "inject": "--dry-run --src 10.0.0.1 --dst 10.0.0.2 --qpn 0x11 --count 2",
    "inject pfc": "--dry-run --prio 3 --time 1ms",
    "inject replay": "--dry-run {}",
    "tap": "{} --plan lumina -o x.pcapng",
    "respond": "{}",
}
"""Commands that are carried out with each value; of the others only the options are read."""

VALUED = [
    (name, parameter)
    for name, parameter in PARAMETERS
    if isinstance(parameter, click.Option) and not parameter.is_flag
    if parameter.opts[0] != "--jobs"  # which starts processes
]


@pytest.fixture
def parsing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let commands but those of `OFFLINE` do nothing."""
    original = click.Command.invoke

    def invoke(command: click.Command, context: click.Context) -> object:
        name = context.command_path.partition(" ")[2]
        done = name in OFFLINE or isinstance(command, click.Group)
        return original(command, context) if done else None

    monkeypatch.setattr(click.Command, "invoke", invoke)
    return lambda name: None


@pytest.mark.slow
@pytest.mark.usefixtures("parsing")
@pytest.mark.parametrize(
    ("name", "option"),
    VALUED,
    ids=[f"{name} {option.opts[0]}" for name, option in VALUED],
)
def test_any_value_of_an_option_is_taken_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, option: click.Option
) -> None:
    monkeypatch.chdir(tmp_path)
    base = shlex.split(OFFLINE.get(name, "").format(CAPTURES / "rnr-late-recv.pcap"))
    for value in JUNK:
        given = [*name.split(), *base, option.opts[0], *[value] * option.nargs]

        result = CliRunner().invoke(main, given)

        assert isinstance(result.exception, SystemExit | None), (given, result.exception)


@each_case("value", ["0811", "0x", "-1", "9" * 30, "²"])
def test_queue_pair_that_is_no_number_is_an_error(value: str) -> None:
    line = "inject --dry-run --src 10.0.0.1 --dst 10.0.0.2 --count 1"

    result = CliRunner().invoke(main, [*line.split(), "--qpn", value])

    assert result.exit_code == 2
    assert result.stderr.startswith("error: --qpn: ")


def test_more_jobs_than_processes_can_be_is_an_error() -> None:
    result = run(f"flows --jobs {10**30} {CAPTURES}/rcx-all-ops.pcap")

    assert result.exit_code == 2
    assert "--jobs" in result.stderr
