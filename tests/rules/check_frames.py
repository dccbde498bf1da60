"""Frames in, findings out: what the tests of the rules share."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from capture.handmade import NANOSECONDS, pcap_header, pcap_record
from ibwire.capture import open_capture
from ibwire.dissect import Columns
from ibwire.rules.conformance import Conformance
from ibwire.rules.findings import SPEC, Finding, Severity

Frames = Sequence[tuple[int, bytes]]
"""Time in nanoseconds, and the frame."""


def judge(frames: Frames, profile: str = SPEC, *, snaplen: int = 65535) -> list[Finding]:
    """What is found in these frames."""
    records = (
        pcap_record(
            frame[:snaplen], time // 1_000_000_000, time % 1_000_000_000, wire_len=len(frame)
        )
        for time, frame in frames
    )
    data = pcap_header(magic=NANOSECONDS) + b"".join(records)
    return judge_capture(io.BytesIO(data), profile)


def judge_capture(source: Path | io.BytesIO, profile: str = SPEC) -> list[Finding]:
    """What is found in a capture."""
    checked = Conformance(profile)
    with open_capture(source) as capture:
        for batch in capture.batches():
            checked.take(Columns(batch, capture.path))
    return checked.finish()


def read_frames(source: Path) -> list[tuple[int, bytes]]:
    """The frames of a capture."""
    with open_capture(source) as capture:
        return [(record.time_ns, record.data) for record in capture.records()]


def ids(findings: Iterable[Finding]) -> set[str]:
    """The rules that were broken."""
    return {finding.rule.id for finding in findings}


def grave(findings: Iterable[Finding]) -> list[str]:
    """What is more than a note, in words."""
    return [
        f"{each.rule.id} in {each.numbers}: {each.text}"
        for each in findings
        if each.severity > Severity.NOTE
    ]
