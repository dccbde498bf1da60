"""A picture of a command and what it prints on a terminal, as SVG."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[2]

PICTURES = {
    "docs/pictures/explain.svg": "ibwire explain captures/drop-one-middle.b.pcap",
}
"""Files, and the commands that they show."""

WIDTH = 100

TITLE = 34
"""Units of height that the title bar of a window would take."""

COLOURS = "1b1f26 f07178 7ec882 e5c07b 61afef c68cde 56b6c2 abb2bf"
BRIGHT = "6e7681 ff878c 96dc96 f5d28c 78c3ff d7a0f0 69cdd7 f0f3f6"


def _colours(text: str) -> list[tuple[int, int, int]]:
    """Red, green and blue of each colour in hexadecimal."""
    return [(each[0], each[1], each[2]) for each in map(bytes.fromhex, text.split())]


THEME = TerminalTheme((27, 31, 38), (221, 225, 230), _colours(COLOURS), _colours(BRIGHT))

FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
<rect fill="#1b1f26" width="{width}" height="{height}" rx="8" />
<g transform="translate({terminal_x}, 8)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""As rich's own, without the frame of a window and without fonts from elsewhere."""


def picture(command: str) -> str:
    """The command line and what it prints on a terminal of `WIDTH` columns, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), legacy_windows=False)
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(_printed(command)), end="")
    drawn = console.export_svg(theme=THEME, code_format=FORMAT, unique_id="ibwire")
    # rich leaves room for the title bar of a window.
    drawn = re.sub(
        r'(viewBox="0 0 [\d.]+ |<rect fill="#1b1f26" width="[\d.]+" height=")([\d.]+)',
        lambda found: f"{found[1]}{float(found[2]) - TITLE:.1f}",
        drawn,
    )
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)


def _printed(command: str) -> str:
    """What a command writes to a terminal."""
    _, *arguments = shlex.split(command)
    process, terminal = pty.fork()
    if not process:
        os.chdir(ROOT)
        environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
        environment.pop("NO_COLOR", None)
        os.execve(sys.executable, [sys.executable, "-m", "ibwire", *arguments], environment)
    output = b""
    while block := _read(terminal):
        output += block
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    if status:
        raise SystemExit(f"{command}: status {os.waitstatus_to_exitcode(status)}")
    return output.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    """The next block of output; nothing after its end, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


if __name__ == "__main__":
    for name, command in PICTURES.items():
        (ROOT / name).write_text(picture(command), encoding="utf-8")
