"""`ibwire fuzz min` against devices with a fault, in cases in which they also make choices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ibwire.base.units import MS, US
from ibwire.cli import main
from ibwire.fuzz.case import Case, Connection, Packet, Post, Step, Wait
from ibwire.fuzz.saved import case_text, parse_case
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied

FAULTS = '''
[[mutant]]
name = "ignores-ack-of-psn-0"
module = "rc/completer.py"
old = """        ahead = (psn - sends.una) & MASK
        habits"""
new = """        if is_ack and psn == 0:
            return
        ahead = (psn - sends.una) & MASK
        habits"""

[[mutant]]
name = "acknowledges-one-less"
module = "rc/completer.py"
old = "            if self.acknowledge_before(psn + 1 & MASK, now):"
new = "            if self.acknowledge_before(psn & MASK, now):"

[[mutant]]
name = "ignores-sequence-nak"
module = "rc/completer.py"
old = """        elif kind is AckKind.NAK:
            self._take_nak("""
new = """        elif kind is AckKind.NAK and packet.syndrome != 0x60:
            self._take_nak("""

[[mutant]]
name = "refuses-atomic-write"
module = "rc/responder.py"
old = """        if not self._permits(_REMOTE_WRITE):
            return self._refuse(packet)
        if packet.va & 7 and not qp.profile"""
new = """        if packet.form.operation is Operation.ATOMIC_WRITE:
            return self._refuse(packet)
        if packet.va & 7 and not qp.profile"""
'''
"""Requesters that no choice describes."""

SEND, WRITE = (Post(int(each), 257) for each in (WROpcode.SEND, WROpcode.RDMA_WRITE))
SHORT_READ = Post(int(WROpcode.RDMA_READ), 8)
RESPONSE = Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), psn=("una", 0), length=8)
ACK, RNR, NAK = (
    Packet(int(OpCode.RC_ACKNOWLEDGE), psn=("una", 0), fields={"aeth.syndrome": syndrome})
    for syndrome in (31, 33, 0x60)
)
HELD_SEND = Packet(int(OpCode.RC_SEND_ONLY), held=True)
READ_REQUEST = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 8})


@pytest.fixture(scope="module", autouse=True)
def _one_copy_of_each_device() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mutants.target.copied", cache(copied))
        yield


def fuzz(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["fuzz", *map(str, arguments)])


def cases() -> Iterator[tuple[str, Case]]:
    on_0 = Connection(timeout=0, sq_psn=0)
    rnr_wait: tuple[Step, ...] = (RNR, Wait(10 * US))
    yield "wait first", Case(on_0, (SEND, *rnr_wait, ACK, ACK, WRITE, NAK, NAK))
    yield "wait last", Case(on_0, (SEND, ACK, ACK, WRITE, *rnr_wait, NAK))
    yield "in turn", Case(on_0, (HELD_SEND, READ_REQUEST, SEND, *rnr_wait, ACK, NAK))
    yield "two waits", Case(on_0, (SHORT_READ, *rnr_wait, RESPONSE, SEND, *rnr_wait, ACK))
    yield (
        "all",
        Case(
            on_0,
            (HELD_SEND, READ_REQUEST, SHORT_READ, *rnr_wait, RESPONSE, SEND, *rnr_wait, Wait(MS)),
        ),
    )


FAULTY = ("ignores-ack-of-psn-0", "acknowledges-one-less", "ignores-sequence-nak")


@pytest.mark.parametrize("fault", FAULTY)
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases()])
def test_what_is_minimised_still_differs_when_it_is_replayed(
    tmp_path: Path, fault: str, case: Case
) -> None:
    of_fault = planted(tmp_path, fault)

    short = minimised(tmp_path, case, of_fault)

    if short is None:
        assert fuzz("replay", tmp_path / "case.drill", *of_fault).exit_code == 0
        return
    assert fuzz("replay", short, *of_fault).exit_code == 1
    assert fuzz("replay", short, "--target", "emu").exit_code == 0
    assert not parse_case(short.read_bytes(), "short").choices


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases()])
def test_what_is_minimised_without_witnesses_still_differs_when_it_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """As on a link: a choice that the case suggests is not compared with its witness."""
    monkeypatch.setattr(EmulatorTestbed, "is_deterministic", False)
    of_fault = planted(tmp_path, FAULTY[0])

    short = minimised(tmp_path, case, of_fault)

    assert short is not None
    assert fuzz("replay", short, *of_fault).exit_code == 1
    assert fuzz("replay", short, "--target", "emu").exit_code == 0


def test_a_choice_that_its_witness_refutes_explains_no_case(tmp_path: Path) -> None:
    """A device that knows FLUSH may not refuse ATOMIC WRITE as one does that knows neither."""
    of_fault = planted(tmp_path, "refuses-atomic-write")
    atomic_write = Packet(
        int(OpCode.RC_ATOMIC_WRITE), length=8, fields={"reth.dma_len": 8, "reth.va": ("va", 0)}
    )

    short = minimised(tmp_path, Case(Connection(), (SEND, atomic_write)), of_fault)

    assert short is not None
    assert fuzz("replay", short, *of_fault).exit_code == 1


def planted(directory: Path, fault: str) -> tuple[str, str]:
    """Options that select a device with a fault."""
    table = directory / "faults.toml"
    table.write_text(FAULTS)
    return "--target", f"py:mutants.target:{table}:{fault}"


def minimised(directory: Path, case: Case, target: tuple[str, str]) -> Path | None:
    """The script of the shorter case; `None` if it shows no difference."""
    path, short = directory / "case.drill", directory / "short.drill"
    path.write_text(case_text(case))
    result = fuzz("min", path, *target, "-o", short)
    assert result.exit_code in {0, 1}, result.output
    return short if result.exit_code else None
