"""Nothing from a capture, a peer, a file name or a script controls the terminal.

Every command runs with hostile text wherever it takes text from outside, on a pseudoterminal. The
table of commands is compared with those that there are: a new command needs its line.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import click
import pytest

import terminal
from ibwire.capture import open_capture
from ibwire.capture.writer import CaptureWriter
from ibwire.cli import main
from terminal import EVIL, MARK, controls

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "captures" / "drop-one-middle.a.pcap"

LIMITED = f"{MARK}\u009b5n\u202e"
"""Where a format has no control characters of ASCII."""


def on_a_terminal(*arguments: object, cwd: Path) -> str:
    """All that `ibwire` writes on its terminal."""
    return terminal.output([sys.executable, "-m", "ibwire", *map(str, arguments)], cwd)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with hostile files: a capture, a scenario, scripts, plans and cases."""
    found = tmp_path_factory.mktemp("hostile")
    with open_capture(str(CAPTURE)) as reader:
        (batch, *_) = reader.batches()
        records = [batch.record(number) for number in range(len(batch))]
        link_type = records[0].link_type
    for name in ("c.pcapng", f"{EVIL}.pcapng"):
        with CaptureWriter(str(found / name)) as writer:
            number = writer.interface(0, link_type, EVIL)
            for record in records:
                writer.write(record.data, record.time_ns, interface=number, comments=[EVIL])
    quoted = json.dumps(EVIL)
    (found / "s.toml").write_text(
        f"""# {LIMITED}
[[node]]
name = {quoted}
[[node]]
name = "b"
[[wire]]
between = [{quoted}, "b"]
[[workload]]
opcode = "SEND"
size = 64
[expect]
verified = 2
"""
    )
    (found / "bad.toml").write_text(f"[[workload]]\nopcode = {quoted}\n")
    (found / "evil.toml").write_text(f"{quoted} = 1\n")
    (found / "plan.toml").write_text("[[from.a]]\nloss = 0.5\n")
    (found / "s.drill").write_text(f"// {EVIL}\n  < SEND_ONLY psn ack\n  > ACKNOWLEDGE psn+9\n")
    (found / f"{EVIL}.drill").write_text(f"  < {LIMITED} psn\n")
    (found / f"{EVIL}.json").write_text(json.dumps({"role": EVIL, EVIL: EVIL}))
    (found / f"{EVIL}.findings").mkdir()
    (found / f"{EVIL}.findings" / "run.json").write_text(json.dumps({EVIL: EVIL}))
    return found


NAMED = f"{EVIL}.pcapng"
MISSING = f"missing {EVIL}"
DEV = ("--dev", EVIL)

CASES: dict[str, list[tuple[object, ...]]] = {
    "dissect": [
        (NAMED, "-c", 1, "--fields", "frame.number,frame.file"),
        (MISSING,),
        ("c.pcapng", "--where", EVIL),
        ("c.pcapng", "--fields", EVIL),
    ],
    "show": [("c.pcapng", 1), (NAMED, 99999), (MISSING, 1)],
    "fields": [(EVIL,)],
    "flows": [(MISSING,)],
    "explain": [(MISSING,), (NAMED, "--qpn", EVIL)],
    "check": [(MISSING,), (NAMED, "--ignore", EVIL)],
    "query": [
        ("c.pcapng", f"select '{EVIL}' as \"{EVIL}\""),
        ("--csv", "c.pcapng", f"select '{EVIL}' as \"{EVIL}\""),
        ("--json", "c.pcapng", f"select '{EVIL}' as \"{EVIL}\""),
        ("c.pcapng", f"select {EVIL}"),
        (MISSING, "select * from packets"),
    ],
    "export": [(MISSING, "-o", "out"), ("c.pcapng", "-o", f"no {EVIL}/x.pcapng")],
    "report": [(MISSING,), ("c.pcapng", "-o", f"no {EVIL}/x.html")],
    "run": [("s.toml",), ("bad.toml",), (MISSING,), ("s.toml", "-o", f"no {EVIL}/x.pcapng")],
    "sweep": [("bad.toml",), (MISSING,), ("s.toml", "--set", EVIL)],
    "pingpong": [DEV, ("--dev", "lo", "--via", "udp", "--connect", EVIL)],
    "perf send": [DEV],
    "perf write": [DEV],
    "perf read": [DEV],
    "perf atomic": [DEV],
    "rping": [DEV, ("--dev", "lo", "--via", "udp", "--connect", EVIL)],
    "inject": [
        (*DEV, "--dst", "10.0.0.2", "--qpn", 17, "--count", 1),
        ("--stream", "evil.toml", "-o", "x.pcap"),
        ("-o", "x.pcap", "--src", "10.0.0.1", "--dst", EVIL, "--qpn", 17, "--count", 1),
    ],
    "inject replay": [(MISSING, *DEV), (MISSING, "-o", "x.pcap")],
    "inject pfc": [(*DEV, "--prio", 3, "--time", "1s")],
    "tap": [
        ("--between", EVIL, "lo", "-o", "x.pcapng", "--plan", "plan.toml"),
        (MISSING, "-o", "x.pcap", "--plan", "evil.toml"),
        ("c.pcapng", "-o", f"no {EVIL}/x.pcapng", "--plan", "plan.toml"),
    ],
    "drill": [
        ("s.drill",),
        (f"{EVIL}.drill",),
        (MISSING,),
        ("s.drill", "--capture", NAMED, "--device", "10.77.0.9"),
        ("s.drill", *DEV, "--peer", "10.0.0.2", "--token", "x"),
    ],
    "fuzz run": [
        ("--target", EVIL),
        ("--resume", MISSING),
        ("--ops", EVIL),
        ("--html", f"no {EVIL}/x.html"),
    ],
    "fuzz replay": [(f"{EVIL}.json",), (MISSING,)],
    "fuzz min": [(f"{EVIL}.json",), (MISSING,)],
    "fuzz cover": [(f"{EVIL}.findings",), (MISSING,)],
    "agent": [DEV],
    "wireshark": [(MISSING,)],
    "completion": [(EVIL,)],
    "man": [(EVIL,)],
    "extcap": [("--extcap-interface", EVIL, "--scenario", EVIL)],
    "lab up": [("--name", EVIL)],
    "lab run": [("--name", EVIL, "true"), ("--name", f"{EVIL}{EVIL}", "--", EVIL)],
    "lab shell": [("--name", EVIL)],
    "lab down": [("--name", EVIL)],
    "fabric run": [(MISSING,)],
    "fabric exec": [("--name", EVIL, "a", "true")],
    "fabric show": [("--name", EVIL)],
    "fabric route": [("--name", EVIL, "a", "b")],
    "fabric counters": [("--name", EVIL)],
    "fabric manage": [("--name", EVIL, "a"), ("--ibsim", EVIL, "a")],
    "fabric fail": [(EVIL,)],
    "fabric capture": [("--name", EVIL, "c.pcapng"), ("c.pcapng", "--tap", EVIL)],
    "fabric ping": [("star2", EVIL, "node-1"), (MISSING, "a", "b")],
    "fabric traffic": [("star2", "--flow", EVIL), (MISSING,)],
    "respond": [(MISSING,), (NAMED, "--profile", EVIL)],
}
"""Arguments of each command with hostile text. The text must come back, so that it is seen."""

QUICK = ("query",)
"""Commands whose first case runs in `make test` as well; all cases run in `make test-all`."""


def commands(group: click.Group, above: str = "") -> Iterator[str]:
    """Every command that does something itself."""
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from commands(found, f"{above}{name} ")
            if not found.invoke_without_command:
                continue
        yield f"{above}{name}"


def test_every_command_has_cases() -> None:
    assert sorted(CASES) == sorted(commands(main))


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(
            command, number, marks=[pytest.mark.slow] * (number > 0 or command not in QUICK)
        )
        for command, cases in CASES.items()
        for number in range(len(cases))
    ],
)
def test_hostile_text_is_escaped(place: Path, command: str, number: int) -> None:
    text = on_a_terminal(*command.split(), *CASES[command][number], cwd=place)

    assert controls(text) == [], text
    assert MARK in text, text


@pytest.mark.slow
def test_an_unknown_command_and_option_are_escaped(place: Path) -> None:
    for arguments in ((EVIL,), ("show", f"--{EVIL}"), ("dissect", NAMED, "--count", EVIL)):
        text = on_a_terminal(*arguments, cwd=place)

        assert controls(text) == []
        assert MARK in text


@pytest.mark.slow
def test_bytes_do_not_go_to_a_terminal(place: Path) -> None:
    options = ("--src", "10.0.0.1", "--dst", "10.0.0.2", "--qpn", 17, "--count", 1)
    text = on_a_terminal("inject", "-o", "-", *options, cwd=place)

    assert "error: standard output: is a terminal: bytes need a file or a pipe" in text


@pytest.mark.slow
def test_own_styles_reach_the_terminal(place: Path) -> None:
    """Findings of check are red or yellow, tables of query have bold heads."""
    assert "\x1b[1m" in on_a_terminal("query", "c.pcapng", "select 1 as one", cwd=place)
    assert "\x1b[31m" in on_a_terminal("check", "--rules", cwd=place)


@pytest.mark.slow
def test_data_in_a_pipe_keep_their_values(place: Path) -> None:
    command = [sys.executable, "-m", "ibwire", "query", "--csv", "c.pcapng"]
    ended = subprocess.run(
        [*command, f"select '{EVIL}' as x"], cwd=place, capture_output=True, check=True
    )

    assert EVIL in ended.stdout.decode()


def test_a_comment_cannot_look_like_a_line_of_ours(place: Path, tmp_path: Path) -> None:
    with CaptureWriter(str(tmp_path / "c.pcapng")) as writer:
        writer.write(bytes(60), 0, comments=["first\npacket 2: forged"])
    command = [sys.executable, "-m", "ibwire", "show", "c.pcapng", "1"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True)

    assert "\ncomment: first\n         packet 2: forged\n" in ended.stdout


def test_standard_error_is_escaped_in_a_file_too(place: Path) -> None:
    command = [sys.executable, "-m", "ibwire", "show", MISSING, "1"]
    ended = subprocess.run(command, cwd=place, capture_output=True, check=False)

    assert controls(ended.stderr.decode("utf-8", "surrogateescape")) == []
    assert MARK in ended.stderr.decode()


@pytest.fixture
def answering() -> Iterator[Callable[[bytes], int]]:
    """A TCP server that answers every client; its port."""
    with ExitStack() as stack:

        def serve(answer: bytes) -> int:
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                with suppress(OSError):  # the test is over
                    while True:
                        connected, _ = listening.accept()
                        connected.recv(1 << 16)
                        connected.sendall(answer)
                        stack.enter_context(connected)

            threading.Thread(target=run, daemon=True).start()
            return int(listening.getsockname()[1])

        yield serve


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("pingpong",), ("perf", "send"), ("perf", "read", "--latency")], ids=" ".join
)
def test_what_a_server_sends_is_escaped(
    place: Path, answering: Callable[[bytes], int], command: tuple[str, ...]
) -> None:
    port = answering(EVIL.encode() * 20)
    link = ("--dev", "lo", "--via", "udp", "--connect", "127.0.0.1", "--port", port)
    text = on_a_terminal(*command, *link, cwd=place)

    assert controls(text) == []
    assert MARK in text


def test_styles_and_consoles_come_from_the_module_that_escapes() -> None:
    others = re.compile(r"click\.(style|secho)|import Console$|Console\(", re.MULTILINE)
    found = [
        file.name
        for file in sorted((ROOT / "ibwire" / "cli").glob("*.py"))
        if file.name != "terminal.py" and others.search(file.read_text().replace(TYPING_ONLY, ""))
    ]

    assert found == []


TYPING_ONLY = "if TYPE_CHECKING:\n    from rich.console import Console\n"
