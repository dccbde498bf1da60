"""Speeds and widths of links: rates, and the codes in PortInfo and PathRecord.

`data/ib_rates.csv` has the figures, made from rdma-core (names and codes) and the encodings of the
specification; it is not made from this code.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from each_case import each_case
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.network import PacketFabric
from ibwire.fabric.infiniband.subnet import rate_name
from ibwire.fabric.sim import Simulator
from ibwire.sm.path_records import rate_code

FILE = Path(__file__).parent / "data/ib_rates.csv"
ROWS = list(csv.DictReader(FILE.read_text().splitlines()))
FIELDS = {
    "LinkSpeedActive": "speed",
    "LinkSpeedExtActive": "speed_ext",
    "LinkSpeedExtActive2": "speed_ext2",
}


@each_case("row", ROWS, ids=lambda row: f"{row['lanes']}x{row['speed']}")
def test_a_link_has_the_rate_and_the_codes_of_its_speed_and_width(row: dict[str, str]) -> None:
    name = f"{row['lanes']}x{row['speed']}"
    port = generate(f"star:hosts=1,rate={name}").nodes["node-0-0"].ports[1]
    field = FIELDS.get(row["portinfo_speed_field"])

    assert rate_name(port) == name
    assert port.width == int(row["width_code"])
    if field is None:  # FDR10: PortInfo says QDR, a vendor's attribute tells them apart
        assert (port.speed, port.speed_ext) == (4, 0)
    else:
        assert getattr(port, field) == int(row["speed_code"])
    if row["pathrecord_rate_code"]:
        assert rate_code(port) == int(row["pathrecord_rate_code"])


@each_case("row", ROWS, ids=lambda row: f"{row['lanes']}x{row['speed']}")
def test_a_line_carries_the_data_rate_of_its_speed_and_width(row: dict[str, str]) -> None:
    """Line bits without the encoding: so long a packet takes on the link."""
    subnet = generate(f"star:hosts=1,rate={row['lanes']}x{row['speed']}")
    fabric = PacketFabric(Simulator(0), subnet, {})

    rate = fabric.line(subnet.nodes["node-0-0"].ports[1]).rate_bps

    assert rate == pytest.approx(float(row["link_data_gbps"]) * 1e9, rel=1e-5)
