"""Every shipped capture holds what its index, made by other programs, says."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from each_case import each_case
from ibwire.dissect import FIELDS, read

CAPTURES = Path(__file__).parents[1] / "captures"
INDEX = tomllib.loads((CAPTURES / "index.toml").read_text(encoding="utf-8"))["capture"]

capture = each_case("entry", INDEX, ids=lambda entry: entry["file"])


def values(entry: dict[str, Any], name: str) -> Any:
    """The values of a field in all packets that have it."""
    chunks = [c[name][c.valid(name)] for c in read(CAPTURES / entry["file"])]
    return np.concatenate(chunks).tolist()


def numbers(table: Any) -> Any:
    """The index writes numbers as hexadecimal keys."""
    return {int(key, 16): count for key, count in table.items()}


def test_every_capture_is_in_the_index_once() -> None:
    there = {p.name for p in CAPTURES.iterdir()} - {"index.toml", "README.md"}
    logs = {name for name in there if name.endswith(".wire.json")}

    assert sorted(there - logs) == sorted(entry["file"] for entry in INDEX)
    # What a wire did stands beside the captures of its two ends.
    assert {log.replace(".wire.json", ".a.pcap") for log in logs} <= there


@capture
def test_every_entry_says_what_it_shows_and_where_it_comes_from(entry: dict[str, Any]) -> None:
    assert entry["shows"]
    assert entry["origin"]
    assert entry["licence"] == "BSD-2-Clause"


@capture
def test_packets_are_numbered_from_one_without_gaps(entry: dict[str, Any]) -> None:
    assert values(entry, "frame.number") == list(range(1, entry["packets"] + 1))


@capture
def test_roce_packets(entry: dict[str, Any]) -> None:
    assert len(values(entry, "bth.opcode")) == entry["roce_packets"]
    assert Counter(values(entry, "frame.protocol"))[1] == entry["roce_packets"]
    assert FIELDS["frame.protocol"].type.words[1] == "ROCEV2"


@capture
def test_opcodes(entry: dict[str, Any]) -> None:
    assert Counter(values(entry, "bth.opcode")) == numbers(entry["opcodes"])


@capture
def test_destination_queue_pairs(entry: dict[str, Any]) -> None:
    assert Counter(values(entry, "bth.destqp")) == numbers(entry["dest_qpns"])


@capture
def test_icrc_verdicts(entry: dict[str, Any]) -> None:
    words = FIELDS["icrc.status"].type.words
    verdicts = Counter(words[code] for code in values(entry, "icrc.status"))

    expected = {word: count for word, count in entry["icrc"].items() if count}
    assert verdicts == expected


@capture
def test_naks(entry: dict[str, Any]) -> None:
    found = Counter(values(entry, "aeth.syndrome"))

    # The index counts what is not a plain ACK.
    naks = {code: count for code, count in found.items() if code >> 5 & 3}
    assert naks == numbers(entry.get("syndromes", {}))
