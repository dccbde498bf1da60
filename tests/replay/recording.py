"""Captures for the tests of replays: shipped ones, changed in places."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ibwire.capture import PcapWriter, Record, open_capture
from ibwire.replay.conversation import Conversation
from ibwire.replay.report import ReplayReport
from ibwire_layers.packet import Packet

Edit = Callable[[int, Packet], Packet | None]
"""Number and packet of a RoCE record; what stands in its place, `None` for nothing."""


def records_of(source: Path | io.BytesIO) -> list[Record]:
    with open_capture(source) as reader:
        return list(reader.records())


def capture_of(records: Iterable[Record]) -> io.BytesIO:
    """A capture with these records; its numbers start anew."""
    file = io.BytesIO()
    with PcapWriter(file) as writer:
        for record in records:
            writer.write(record.data, record.time_ns)
    file.seek(0)
    return file


def edited(path: Path, edit: Edit) -> io.BytesIO:
    """A capture with some packets changed, with good ICRCs, or left out."""
    kept = []
    for record in records_of(path):
        packet = (
            Packet.parse(record.data, record.link_type, strict=False) if _is_roce(record) else None
        )
        if packet is None:
            kept.append(record)
            continue
        changed = edit(record.number, packet)
        if changed is packet:
            kept.append(record)
        elif changed is not None:
            kept.append(replace(record, data=changed.repaired().build()))
    return capture_of(kept)


def replayed(source: Any, **options: Any) -> list[ReplayReport]:
    return list(Conversation(source, **options).reports())


def _is_roce(record: Record) -> bool:
    # Ethernet, IPv4 without options or IPv6, UDP to port 4791.
    udp = 34 if record.data[12:14] == b"\x08\x00" else 54
    return record.data[udp + 2 : udp + 4] == (4791).to_bytes(2)
