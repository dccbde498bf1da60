"""Commands on a pseudoterminal, and text that would control it."""

import os
import pty
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "hOsTiLe"
"""What shows that hostile text was printed at all."""

EVIL = f"\x1b]0;{MARK}\x07\x1b[38;5;199m\u009b5n\u202e\x08"
"""A title, a colour, a C1 sequence, a direction, a backspace."""

FORBIDDEN = ("\x1b]", "\x07", "\x1b[38;5;199m", "\u009b", "\u202e", "\x08", "\x1bP", "\x0e")

PATIENCE = 60
"""Seconds that a command may take: a test that fails shall not hang."""


def output(command: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """All that a command writes on a terminal of its own."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env={**(environment or os.environ), "TERM": "xterm-256color", "COLUMNS": "100"},
        start_new_session=True,
    )
    os.close(slave)
    limit = threading.Timer(PATIENCE, process.kill)
    limit.start()
    said = b""
    try:
        while data := os.read(master, 1 << 16):
            said += data
    except OSError:
        pass  # EIO: the other end is closed
    finally:
        os.close(master)
        process.wait()
        limit.cancel()
    assert b"Traceback" not in said, said.decode(errors="replace")
    return said.decode("utf-8", "surrogateescape")


def controls(text: str) -> list[str]:
    """What of it would control a terminal, except colours of our own and a progress bar."""
    return [each for each in FORBIDDEN if each in text] + re.findall("[\udc80-\udcff]", text)
