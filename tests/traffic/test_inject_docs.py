"""What docs/inject.md says can be done as it says."""

import re
from pathlib import Path

from ibwire.base.toml import Document
from ibwire.impair import build_pipe
from ibwire.traffic.injection_file import INJECTION, STREAM, read_injection
from ibwire.traffic.pause import read_storms
from ibwire_layers.packet import CrcStatus, Packet

TEXT = (Path(__file__).parents[2] / "docs" / "inject.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_its_files_can_be_read() -> None:
    streams, plan, storms = (block.encode() for language, block in BLOCKS if language == "toml")

    injection = read_injection(streams, "streams.toml", {}, lambda values: values)

    assert len(injection.streams) == 2
    build_pipe(Document(plan, "plan.toml").top.take("faults"), seed=0)
    assert len(read_storms(storms, "storms.toml")[0]) == 2


def test_every_key_stands_in_it() -> None:
    named = set(re.findall(r"`(\w+)`", TEXT))

    assert set(STREAM) | set(INJECTION) <= named


def test_its_python_runs() -> None:
    (code,) = (block for language, block in BLOCKS if language == "python")
    names: dict[str, bytes] = {}

    exec(compile(code, "inject.md", "exec"), names)

    assert Packet.parse(names["frame"]).icrc_status() is CrcStatus.GOOD
