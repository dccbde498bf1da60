"""What a recording says was expected and was received: where the two differ, and only there."""

from __future__ import annotations

from pathlib import Path

from ibwire.fuzz.case import Case, Connection, Post
from ibwire.fuzz.recording import record
from ibwire.fuzz.targets.emulator import target
from ibwire.rc.work import WROpcode

TABLE = """
[[mutant]]
name = "every-packet-repeats-its-first-eight-bytes"
[[mutant.patch]]
module = "rc/requester.py"
old = "        packet = TransportPacket(form, psn, payload)"
new = '''
        payload = payload[:8] * (len(payload) // 8)
        packet = TransportPacket(form, psn, payload)'''
"""


def test_other_data_is_shown_from_where_it_differs(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
    mutant = f"{tmp_path / 'table.toml'}:every-packet-repeats-its-first-eight-bytes"
    steps = (Post(int(WROpcode.SEND), 512),)

    recording = record(Case(Connection(), steps), target(f"py:mutants.target:{mutant}"))

    expected, got = (each[0] for each in (recording.expected, recording.got))
    before, _, due = expected.partition(": ")
    assert before == "SEND_FIRST psn (500) len=256 ack data from byte 8"
    assert got.startswith(f"{before}: ")
    assert due != got.removeprefix(f"{before}: ")
    assert len(bytes.fromhex(due)) == 8
