"""docs/fuzz.md names everything that there is, and its examples are true."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import click
from click.testing import CliRunner

from each_case import each_case
from ibwire.cli.fuzz import COMMANDS, command
from ibwire.cli.fuzz_live import target_options
from ibwire.cli.fuzz_run import command as run
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Connection, Packet, Role, Wait, from_json
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.operators import Group
from ibwire.fuzz.vocabulary.queue_pair.execution import moments
from ibwire.fuzz.vocabulary.reading import read_script
from ibwire.fuzz.vocabulary.vocabularies import queue_pair_generators
from ibwire.rc.profile import SPEC
from ibwire_layers.headers import AETH
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet as WholePacket

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "fuzz.md").read_text()
HAND = TEXT.split("```json\n")[1].split("```")[0]
SCRIPT = TEXT.split("## A case by hand")[1].split("```\n")[1]


@each_case("name", [*map(str, Group), *COMMANDS])
def test_every_group_and_command_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT or f"ibwire fuzz {name}" in TEXT or f"[{name}]" in TEXT


LIVE = {each.name for each in click.command(target_options(lambda **options: None)).params}
"""Options about devices on a link."""


@each_case(
    "option", [each for each in run.params if each.name not in LIVE], ids=lambda each: each.name
)
def test_every_option_of_a_run_is_documented(option: click.Parameter) -> None:
    assert any(f"`{spelling}" in TEXT for spelling in option.opts)


@each_case("name", [entry.name for entry in fields(Connection)])
def test_every_attribute_of_a_connection_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT


@each_case("symbol", sorted(Emulation(Connection()).symbols))
def test_every_symbol_is_documented(symbol: str) -> None:
    assert f"`{symbol}`" in TEXT


@each_case("step", ["packet", "post", "receive", "wait", "connect", "mad", "command"])
def test_every_step_is_documented(step: str) -> None:
    assert f"`{step}`" in TEXT


@each_case("word", [entry.name for entry in fields(Packet) if entry.name not in ("opcode", "psn")])
def test_everything_about_a_packet_is_documented(word: str) -> None:
    assert f"`{word}`" in TEXT


def test_the_case_by_hand_is_one_and_the_reference_refuses_it() -> None:
    """7 bytes before the end there is no room for 8: NAK remote access error."""
    case = from_json(HAND)
    deaf = Campaign(
        EmulatorTestbed(lambda connection: Emulation(connection)),
        queue_pair_generators(0, Role.BOTH),
    )

    assert [type(step) for step in case.steps] == [Packet, Wait]
    assert deaf.judge.replay(case) is None


def test_the_script_by_hand_is_a_case_that_the_reference_refuses() -> None:
    """7 bytes before the end there is no room for 8: NAK remote access error."""
    case = read_script(SCRIPT.encode(), "by-hand.drill")

    assert case.steps == (
        Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8, fields={"reth.va": ("end", -7)}),
        Wait(1_000_000),
    )
    (answer,) = (frame for each in moments(case, SPEC) for _, frame in each.answers)
    ack = WholePacket.parse(answer).extension(AETH)
    assert ack is not None
    assert ack.syndrome == 0x62  # NAK, code 2 (IBA 9.7.5.1.1)


def test_mistake_in_the_example_gives_the_shown_message(tmp_path: Path) -> None:
    document = json.loads(HAND)
    document["steps"][0]["fields"] = {"bth.key": 1}
    path = tmp_path / "case.json"
    path.write_text(json.dumps(document))

    told = CliRunner().invoke(command, ["replay", str(path)]).output

    assert "case.json: steps[0].fields.bth.key: no such field" in told
    assert "case.json: steps[0].fields.bth.key: no such field" in TEXT
