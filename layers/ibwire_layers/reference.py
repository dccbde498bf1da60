"""The field reference as Markdown, generated from the header descriptions.

python -m ibwire_layers.reference layers/README.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ibwire_layers import attributes, cm, headers, mad, outer, performance, records
from ibwire_layers.schema import Header

MODULES: tuple[tuple[str, ModuleType], ...] = (
    ("InfiniBand", headers),
    ("Around it: Ethernet, IP, UDP, tunnels, MAC control, capture headers", outer),
    ("Management datagrams", mad),
    ("Subnet management attributes", attributes),
    ("Subnet administration records", records),
    ("Performance management", performance),
    ("Communication management", cm),
)

START, END = "<!-- generated: fields -->", "<!-- end of generated -->"


def headers_of(module: ModuleType) -> Iterator[type[Header]]:
    """The headers that a module describes, in its order."""
    for value in vars(module).values():
        described = isinstance(value, type) and issubclass(value, Header)
        if described and value.FIELDS and value.__module__ == module.__name__:
            yield value


def reference() -> str:
    """Tables of all headers: offset, width, name, column, Wireshark's name, meaning."""
    return "\n".join(line for title, module in MODULES for line in _section(title, module))


def updated(text: str) -> str:
    """The document with its generated part replaced."""
    before, rest = text.split(START)
    return f"{before}{START}\n\n{reference()}\n{END}{rest.split(END)[1]}"


def _section(title: str, module: ModuleType) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    for header in headers_of(module):
        yield f"#### {header.__name__}: {header.TITLE}, {header.SIZE} bytes ({header.SECTION})"
        yield ""
        yield "| byte:bit | bits | field | attribute | column | Wireshark 4.0 | meaning |"
        yield "|---|---|---|---|---|---|---|"
        for field in header.FIELDS:
            bits = f"{field.count} x {field.width}" if field.is_array else str(field.width)
            place = f"{field.offset // 8}:{7 - field.offset % 8}"
            names = f"{field.label} | `{field.name}` | `{field.key}` | {field.wireshark or ''}"
            yield f"| {place} | {bits} | {names} | {field.doc} |"
        yield ""


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
