"""The fuzz targets themselves: their seeds are right inputs, and mutations of them end normally."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fuzzing.targets import TARGETS, joined, pieces
from ibwire.dissect.filters import parse_filter
from ibwire.drill.language.parser import parse as parse_script
from ibwire.scenario.model import read_scenario
from ibwire_layers.cm import CMAttribute
from ibwire_layers.packet import Packet

READERS: dict[str, Callable[[bytes], object]] = {
    "packet": lambda data: Packet.parse(data[1:]),
    "filter": lambda data: parse_filter(data.decode()),
    "scenario": lambda data: read_scenario(data, "scenario.toml"),
    "drill": lambda data: parse_script(data, "script.drill"),
    "device": lambda data: [Packet.parse(frame) for frame in pieces(data)],
}
"""What raises where a seed is wrong. The other targets have seeds that other tests read."""


@pytest.mark.parametrize("name", READERS)
def test_the_reader_accepts_every_seed(name: str) -> None:
    """Mutations of a rejected input would only reach the first check."""
    seeds = list(TARGETS[name].seeds())

    assert seeds
    for seed in seeds:
        assert READERS[name](seed)


def test_seeds_of_the_connection_manager_are_its_messages() -> None:
    """Attribute ID in bytes 16 and 17 of a MAD (IBA 13.4.3): REQ, REP, RTU, DREQ, DREP."""
    (seed,) = TARGETS["cm"].seeds()

    found = {CMAttribute(int.from_bytes(mad[16:18], "big")).name for mad in pieces(seed)}

    assert {"REQ", "REP", "RTU", "DREQ", "DREP"} <= found


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_seeds_end_normally(name: str) -> None:
    source, target = random.Random(name), TARGETS[name]
    seeds = list(target.seeds())
    for _ in range(30):
        data = bytearray(source.choice(seeds)[:4096])
        for _ in range(source.randrange(8)):
            data[source.randrange(len(data))] = source.randrange(256)
        target.run(bytes(data[: source.randrange(len(data) + 1)]))


def test_pieces_are_what_was_joined() -> None:
    parts = [b"", b"one", b"x" * 256]

    assert list(pieces(joined(iter(parts)))) == parts
