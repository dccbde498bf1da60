"""What a capture between the guest and its tap, or our own, shows of a meeting."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from click.testing import CliRunner

from ibwire.cli.check import command as check
from ibwire.dissect import FIELDS, Columns, read
from ibwire.rules.catalogue import RULES

OURS = {4: "10.0.0.9", 6: "fd00::9"}
THEIRS = {4: "10.0.0.1", 6: "fd00::1"}
"""Addresses by IP version."""


class Packet(NamedTuple):
    """One packet of a capture."""

    time_ns: int
    is_ours: bool
    opcode: str
    psn: int
    syndrome: int | None
    """Of the AETH, if it has one."""
    is_intact: bool
    """Whether its ICRC is right."""


class Wire:
    """What a capture shows of a meeting."""

    def __init__(self, path: Path, guest_mac: str) -> None:
        self.path = path
        self.packets: list[Packet] = []
        self.strangers: list[int] = []
        """Frames that have no business here, by their numbers."""
        self._mac = int(guest_mac.replace(":", ""), 16)
        for columns in read(path):
            self._take(columns)

    def of(self, *, is_ours: bool) -> list[Packet]:
        """The packets that one side has sent, without the damaged."""
        return [each for each in self.packets if each.is_ours == is_ours and each.is_intact]

    @property
    def damaged(self) -> list[Packet]:
        """The packets with a wrong ICRC."""
        return [packet for packet in self.packets if not packet.is_intact]

    def assert_clean(
        self, service: str = "RC", profile: str = "spec", *, uses_cm: bool = False
    ) -> None:
        """Nothing is wrong with it, but for packets of ours that were damaged on purpose.

        service: that of every packet. profile: ours. uses_cm: whether the connection
        manager speaks, by datagrams.
        """
        intact = [packet for packet in self.packets if packet.is_intact]
        services = {service, "UD"} if uses_cm else {service}
        assert {packet.opcode.split("_")[0] for packet in intact} == services
        assert [packet for packet in self.damaged if not packet.is_ours] == []
        assert self.strangers == []
        result = CliRunner().invoke(check, ["--json", "--profile", "spec", str(self.path)])
        findings = map(json.loads, result.stdout.splitlines())
        wrong = [each for each in findings if not _is_allowed(each, profile)]
        assert wrong == []

    def _take(self, columns: Columns) -> None:
        has_bth = columns.valid("bth.psn")
        self.packets += map(
            Packet,
            columns["frame.time_ns"][has_bth].tolist(),
            (columns["eth.src"][has_bth] != self._mac).tolist(),
            _words(columns, "bth.opcode_name", has_bth),
            columns["bth.psn"][has_bth].tolist(),
            [
                syndrome if has else None
                for syndrome, has in zip(
                    columns["aeth.syndrome"][has_bth].tolist(),
                    columns.valid("aeth.syndrome")[has_bth].tolist(),
                    strict=True,
                )
            ],
            [status == "good" for status in _words(columns, "icrc.status", has_bth)],
        )
        others = zip(
            columns["frame.number"][~has_bth].tolist(),
            _words(columns, "frame.protocol", ~has_bth),
            columns["udp.dstport"][~has_bth].tolist(),
            strict=True,
        )
        self.strangers += [
            number
            for number, protocol, port in others
            if protocol not in _EXPECTED and port != _DISCARD
        ]


def _is_allowed(finding: dict[str, Any], profile: str) -> bool:
    """Whether it is a habit of rxe, and of rxe or of ours when we imitate it, or no more than
    worth knowing."""
    if finding["severity"] == "note":
        return True
    rule = RULES[finding["rule"]]
    return "rxe" in rule.habits and (profile == "rxe" or finding["src"] in THEIRS.values())


_EXPECTED = {"ROCEV2", "TCP", "ARP", "ICMP", "ICMPV6"}

_DISCARD = 9
"""UDP port to which an empty datagram is sent, so that the kernel resolves the MAC address."""


def _words(columns: Columns, name: str, rows: npt.NDArray[np.bool_]) -> list[str]:
    words = FIELDS[name].type.words
    return [words[value] for value in columns[name][rows].tolist()]
