"""The fuzzer in process: packets a second, beside what others need only to make a packet.

    python tests/bench/fuzz.py [--packets N] [--rounds N]

A packet of ibwire is generated, executed on the reference and on a target, and judged:
responses, completions, events and all memory are compared after each. Scapy's `fuzz(BTH())`
and boofuzz, if it is installed, only make packets, which are neither received nor judged.
(boofuzz has no ICRC; it computes a CRC of the same length over the same bytes.)
Processor time; all take turns in every round, and
the table shows medians, and medians of the ratios in the same round.

Which mutants are found: `PYTHONPATH=tests python tests/bench/fuzz_score.py`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.packet import fuzz as scapy_fuzz

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Role
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.vocabularies import (
    CONNECTION_MANAGER,
    manager_generators,
    queue_pair_generators,
)

PAYLOAD = bytes(64)
PEER_PACKETS = 1000
"""Packets of a measurement of Scapy or boofuzz."""


def ours(role: str, seed: int, packets: int) -> float:
    """Packets a second."""
    campaign: Campaign
    if role == "cm":
        campaign = Campaign(
            EmulatorTestbed(managed_emulation, CONNECTION_MANAGER), manager_generators(seed)
        )
    else:
        campaign = Campaign(EmulatorTestbed(Emulation), queue_pair_generators(seed, Role(role)))
    gc.collect()  # what was made before is not to be paid for here
    begin = time.process_time()
    findings = list(campaign.run(packets))
    seconds = time.process_time() - begin
    assert not findings
    assert campaign.report.packets == packets
    return packets / seconds


def scapys() -> float:
    """Packets a second with a random value in every field of the BTH, and a right ICRC."""
    packet = Ether() / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(dport=4791, chksum=0)
    packet = packet / scapy_fuzz(BTH()) / Raw(PAYLOAD)
    begin = time.process_time()
    for _ in range(PEER_PACKETS):
        bytes(packet)
    return PEER_PACKETS / (time.process_time() - begin)


def boofuzzes() -> float:
    """Packets a second with one primitive at a value of its library, a WRITE with a CRC."""
    from boofuzz.mutation_context import MutationContext

    request = write_request()
    mutations = islice(_for_ever(request.get_mutations), PEER_PACKETS)
    begin = time.process_time()
    for mutation in mutations:
        request.render(MutationContext(mutation))
    return PEER_PACKETS / (time.process_time() - begin)


def _for_ever(mutations: Callable[[], Iterator[object]]) -> Iterator[object]:
    while True:
        yield from mutations()


def write_request() -> Any:  # type: ignore[no-untyped-def]
    """An RDMA WRITE ONLY in boofuzz's blocks."""
    import boofuzz as b

    big = {"endian": b.BIG_ENDIAN}
    packet = (
        b.Byte("opcode", 0x0A),
        b.Byte("flags", 0x40),
        b.Word("pkey", 0xFFFF, **big),
        b.DWord("dest_qp", 0x11, **big),
        b.DWord("psn", 0x80000064, **big),
        b.QWord("va", 0x1000, **big),
        b.DWord("rkey", 0x1234, **big),
        b.Size("dma_len", block_name="payload", length=4, fuzzable=True, **big),
        b.Block("payload", children=(b.Bytes("bytes", PAYLOAD, max_len=4096),)),
    )
    crc = b.Checksum("crc", block_name="packet", algorithm="crc32")
    return b.Request("write", children=(b.Block("packet", children=packet), crc))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--packets", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    peers: dict[str, Callable[[], float]] = {"Scapy fuzz(BTH())": scapys}
    if find_spec("boofuzz") is not None:
        peers["boofuzz"] = boofuzzes
    roles = ("responder", "requester", "cm")
    found: dict[str, list[float]] = {name: [] for name in (*roles, *peers)}
    for number in range(given.rounds):
        for role in roles:
            found[role].append(ours(role, number + 1, given.packets))
        for name, measure in peers.items():
            found[name].append(measure())
    print(f"\n{given.packets:,} packets a run, {given.rounds} rounds, medians\n")
    print("| | packets a CPU second |", " | ".join(f"times {name}" for name in peers), "|")
    print("|---" * (2 + len(peers)) + "|")
    for name, rates in found.items():
        what = f"ibwire, role {name}: made, carried out twice, judged"
        if name in peers:
            what = f"{name}: made"
        cells = [f"{statistics.median(rates):,.0f}"]
        for peer in peers:
            ratios = [one / other for one, other in zip(rates, found[peer], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}")
        print(f"| {what} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
