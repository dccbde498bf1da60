"""A field that is always wrong does not hide what else is wrong in the same packets, and later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, CaseError, Connection, Packet, Role, Step, from_json, to_json
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import PARTS_OF_COMPLETION, Finding
from ibwire.fuzz.judge.naming import name_of
from ibwire.fuzz.judge.profiles import MAY_BE_UNCHECKED, UNCHECKED, profile_of, without_checking
from ibwire.fuzz.run_file import Session, Settings
from ibwire.fuzz.run_file import load as load_session
from ibwire.fuzz.saved import case_text, parse_case
from ibwire.fuzz.targets import emulated_manager
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.queue_pair.script import script
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire.rc.profile import SPEC
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import Mutant, Patch

EVERY_MSN = Patch(
    "rc/responder.py",
    "        packet.msn = msn\n        self.qp.address(packet, None)\n",
    "        packet.msn = msn + 1 & MASK\n        self.qp.address(packet, None)\n",
)
ODD_READ = Patch(
    "rc/responder.py",
    "            payload = bytes(region.buffer[offset : offset + size])\n",
    "            payload = bytes(region.buffer[offset : offset + (size & ~1)])\n",
)
SHORT_WRITE = Patch(
    "rc/responder.py",
    "            self._view[start : start + size] = packet.payload\n        if not form.is_last:\n",
    "            self._view[start : start + size - 1] = packet.payload[:-1]\n"
    "        if not form.is_last:\n",
)
EVERY_LENGTH = Patch(
    "rc/receive.py",
    "        size = self.filled if byte_len is None else byte_len\n",
    "        size = 1 + (self.filled if byte_len is None else byte_len)\n",
)
LAST_OF_SEND = Patch(
    "rc/receive.py",
    "        if not scatter(self.qp.keys, self._pd, sges, self.filled, data):\n",
    "        if not scatter(self.qp.keys, self._pd, sges, self.filled, bytes(len(data))):\n",
)

SEND = Packet(int(OpCode.RC_SEND_ONLY), length=8)
WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8, at=7, fields={"reth.dma_len": 8})
READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 7})

WITHOUT_MSN = without_checking(SPEC, ["aeth.msn"])


def device(*patches: Patch) -> type[Emulation]:
    """A device with these faults."""
    made: type[Emulation] = copied(Mutant("planted", patches))[Emulation.__module__].Emulation
    return made


def difference(patches: Sequence[Patch], *steps: Step, unchecked: str) -> Difference | None:
    testbed = EmulatorTestbed(device(*patches))
    profile = without_checking(SPEC, unchecked.split(","))
    return testbed.replay(Case(Connection(), steps), profile)


def found(*patches: Patch, packets: int = 20_000) -> list[Finding]:
    vocabulary = vocabulary_for(Role.RESPONDER)
    testbed = EmulatorTestbed(device(*patches), vocabulary)
    run = Campaign(testbed, vocabulary.generators(1, Role.RESPONDER, ()))
    return list(run.run(packets))


def test_a_field_that_is_not_compared_makes_no_difference() -> None:
    assert difference([EVERY_MSN], SEND, WRITE, READ, unchecked="aeth.msn") is None


def test_another_field_of_the_same_packet_does() -> None:
    shown = difference([EVERY_MSN, ODD_READ], READ, unchecked="aeth.msn")

    assert shown is not None
    name = name_of(Case(Connection(), (READ,)), shown, WITHOUT_MSN)
    assert name.text == "READ_REQUEST: READ_RESPONSE_ONLY with 6 bytes instead of 7"
    assert "docs/reference/transport.md#segmentation" in name.rule


def test_a_name_says_what_else_is_wrong_in_the_packet() -> None:
    testbed = EmulatorTestbed(device(EVERY_MSN, ODD_READ))
    case = Case(Connection(), (READ,))
    shown = testbed.replay(case, SPEC)

    assert shown is not None
    assert name_of(case, shown, SPEC).text == (
        "READ_REQUEST: READ_RESPONSE_ONLY with another aeth.msn and 6 bytes instead of 7"
    )


def test_memory_behind_an_answer_is_compared_and_so_are_later_packets() -> None:
    shown = difference([EVERY_MSN, SHORT_WRITE], SEND, WRITE, unchecked="aeth.msn")

    assert shown is not None
    assert (shown.step, shown.kind) == (1, Kind.MEMORY)


def test_a_part_of_a_completion_is_left_out_in_the_same_way() -> None:
    unchecked = "completion.byte_len"
    assert difference([EVERY_LENGTH], SEND, unchecked=unchecked) is None

    shown = difference([EVERY_LENGTH, LAST_OF_SEND], SEND, unchecked=unchecked)

    assert shown is not None
    assert shown.kind is Kind.MEMORY


def test_what_is_not_compared_in_one_completion_hides_nothing_in_the_next() -> None:
    testbed = EmulatorTestbed(Emulation)
    profile = without_checking(SPEC, ["completion.byte_len"])
    comparison = testbed.comparison(Connection(), profile)
    length, data = (PARTS_OF_COMPLETION.index(name) for name in ("byte_len", "imm_data"))
    right = (0,) * len(PARTS_OF_COMPLETION)
    long, other = (tuple(int(at == part) for at in range(len(right))) for part in (length, data))

    assert comparison._in_completions(0, [right, right], [long, right]) is None
    shown = comparison._in_completions(0, [right, right], [long, other])

    assert shown is not None
    assert shown.got == [right, other]
    assert comparison._in_completions(0, [right, right], [long]) is not None


def test_a_script_says_nothing_of_a_field_that_is_not_compared() -> None:
    shown = difference([EVERY_MSN, ODD_READ], READ, unchecked="aeth.msn")
    case = Case(Connection(), (READ,))
    lenient = replace(case, choices={UNCHECKED: "aeth.msn"})

    assert "aeth.msn=" in script(case, shown, "")
    assert "aeth.msn=" not in script(lenient, shown, "")


def test_events_of_the_connection_manager_are_always_compared_whole() -> None:
    other_data = Patch(
        "fuzz/targets/emulated_manager.py",
        '    return int.from_bytes(b"\\1" + data) if any(data) else 0\n',
        '    return int.from_bytes(b"\\1" + data) + 1 if any(data) else 0\n',
    )
    modules = copied(Mutant("planted", (other_data,)))
    managed = modules[emulated_manager.__name__].managed_emulation
    vocabulary = vocabulary_for(Role.CM)
    run = Campaign(EmulatorTestbed(managed, vocabulary), vocabulary.generators(1, Role.CM, ()))

    assert list(run.run(300))
    assert not [each for each in run.report.unchecked if each.startswith("completion.")]


def test_an_answer_of_another_kind_is_never_left_out() -> None:
    refused = Packet(int(OpCode.RC_SEND_LAST), length=8)
    code = Patch(
        "rc/responder.py",
        "        self.replies.append(Reply(psn, self.msn, _NAK | code))\n",
        "        self.replies.append(Reply(psn, self.msn, _NAK | code + 1))\n",
    )

    assert difference([code], refused, unchecked="aeth.syndrome") is not None


@pytest.mark.slow
def test_faults_behind_one_that_is_always_there_have_findings_of_their_own() -> None:
    names = [each.bucket for each in found(EVERY_MSN, ODD_READ, SHORT_WRITE)]

    assert sum("aeth.msn" in each for each in names) == 1
    assert any("bytes instead of" in each for each in names)
    assert any("other bytes in its memory" in each for each in names)


@pytest.mark.slow
def test_a_finding_says_what_is_not_compared_and_shows_its_fault_again() -> None:
    (of_read,) = [each for each in found(EVERY_MSN, ODD_READ) if "bytes instead" in each.bucket]

    assert of_read.case.choices == {UNCHECKED: "aeth.msn"}
    case = parse_case(case_text(of_read.case).encode(), "case")
    assert case.choices == of_read.case.choices
    testbed = EmulatorTestbed(device(EVERY_MSN, ODD_READ))
    again = testbed.replay(case, profile_of(case.profile, case.choices))
    assert again is not None
    assert again.unchecked == ("aeth.msn",)
    assert EmulatorTestbed(Emulation).replay(case, SPEC) is None


def test_only_fields_of_packets_can_be_left_out() -> None:
    case = replace(Case(Connection(), (SEND,)), choices={UNCHECKED: "completion.status"})

    with pytest.raises(CaseError, match=r"choices\.unchecked: 'completion\.status', not fields"):
        profile_of(case.profile, from_json(to_json(case)).choices)


def test_fields_by_which_something_else_is_decided_are_always_compared() -> None:
    """What comes of another PSN or of other credits would be named as another fault."""
    assert MAY_BE_UNCHECKED.isdisjoint({"bth.psn", "bth.opcode", "aeth.syndrome"})


def test_a_run_that_is_resumed_still_knows_the_fields(tmp_path: Path) -> None:
    session = Session.new(Settings("emu", "spec", Role.RESPONDER))
    vocabulary = vocabulary_for(Role.RESPONDER)
    campaign = Campaign(
        EmulatorTestbed(Emulation),
        vocabulary.generators(1, Role.RESPONDER, ()),
        report=session.report,
    )
    session.report.unchecked = ["aeth.msn"]
    session.save(tmp_path, campaign)

    assert load_session(tmp_path).report.unchecked == ["aeth.msn"]
