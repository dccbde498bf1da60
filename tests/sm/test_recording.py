"""MADs of a fabric in a capture: what the counters of a port say, and what each packet is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibwire.base.errors import CaptureError, LinkError, OutputError
from ibwire.capture.reader import open_capture
from ibwire.capture.writer import CaptureWriter
from ibwire.sm.configuration import Settings
from ibwire.sm.control import Control
from ibwire.sm.mads import Datagram
from ibwire.sm.umad import HEADER, Agent, Door
from ibwire_layers import crc
from ibwire_layers.headers import DETH
from ibwire_layers.mad import MAD, MgmtClass
from ibwire_layers.outer import ERF, LinkType
from ibwire_layers.packet import IBRoute, Packet
from sm.managed import Managed


def packets(path: Path) -> list[tuple[int, bytes]]:
    """Interface and bytes of each packet."""
    with open_capture(path) as capture:
        return [(record.interface, bytes(record.data)[ERF.SIZE :]) for record in capture.records()]


def test_words_of_a_port_are_the_sum_of_its_packets(tmp_path: Path) -> None:
    """XmitData and RcvData are what Wireshark sums up from PktLen (IBA 16.1.3.5)."""
    fabric = Managed("ring:switches=3,hosts=1")
    control = Control(fabric.management, lambda host: {})
    taps = [fabric.adapters[0], fabric.subnet.nodes["sw1"].ports[1]]
    named = [(port.node.name, port.number) for port in taps]
    control({"command": "capture", "file": str(tmp_path / "c.pcapng"), "taps": named})

    fabric.start(Settings())
    fabric.run(1)
    done = control({"command": "capture", "stop": True})

    found = packets(tmp_path / "c.pcapng")
    for interface, port in enumerate(taps):
        frames = [frame for number, frame in found if number == interface]
        words = sum(int.from_bytes(frame[4:6], "big") & 0x7FF for frame in frames)
        counters = port.counters
        assert words == counters.port_xmit_data + counters.port_rcv_data > 100
        assert len(frames) == counters.port_xmit_pkts + counters.port_rcv_pkts
    assert len({bytes(frame) for _, frame in found}) <= done["packets"] <= len(found)


def test_a_capture_of_all_links_has_each_packet_once_for_each_link(tmp_path: Path) -> None:
    fabric = Managed("ring:switches=3,hosts=1")
    control = Control(fabric.management, lambda host: {})
    control({"command": "capture", "file": str(tmp_path / "c.pcapng"), "taps": "all"})

    fabric.start(Settings())
    fabric.run(1)
    done = control({"command": "capture", "stop": True})

    ports = [port for link in fabric.subnet.links() for port in link]
    sent = sum(port.counters.port_xmit_pkts for port in ports)
    assert len(packets(tmp_path / "c.pcapng")) == done["packets"] == sent > 100


def test_each_is_a_whole_packet_with_the_path_so_far(tmp_path: Path) -> None:
    fabric = Managed("ring:switches=3,hosts=1")
    control = Control(fabric.management, lambda host: {})
    control({"command": "capture", "file": str(tmp_path / "c.pcapng"), "taps": [("sw1", 1)]})
    fabric.start(Settings())
    fabric.run(1)
    control.close()

    pointers = set()
    for _, frame in packets(tmp_path / "c.pcapng"):
        packet = Packet.parse(frame, LinkType.INFINIBAND)
        assert isinstance(packet.route, IBRoute)
        assert packet.icrc == packet.computed_icrc()
        assert frame[-2:] == crc.vcrc(frame[:-2])
        assert packet.route.lrh.vl == 15
        assert packet.extension(DETH) == DETH(qkey=0, src_qp=0)
        mad = packet.payload
        header = MAD.unpack(mad)
        assert (len(mad), header.mgmt_class) == (256, MgmtClass.SUBN_DIRECTED_ROUTE)
        # This link is the second hop for some, the third for others (IBA 14.2.2).
        pointers.add((mad[4] >> 7, mad[6]))
    assert {pointer for _, pointer in pointers} >= {3}
    assert {returns for returns, _ in pointers} == {0, 1}


def test_a_capture_that_cannot_be_is_refused(tmp_path: Path) -> None:
    fabric = Managed("star:hosts=2")
    control = Control(fabric.management, lambda host: {})

    with pytest.raises(CaptureError):
        control({"command": "capture", "file": str(tmp_path / "no" / "c.pcapng")})
    with pytest.raises(CaptureError):
        control({"command": "capture", "file": str(tmp_path / "c.txt")})
    with pytest.raises(LinkError, match="none is running"):
        control({"command": "capture", "stop": True})
    control({"command": "capture", "file": str(tmp_path / "c.pcapng")})
    with pytest.raises(LinkError, match="one is running"):
        control({"command": "capture", "file": str(tmp_path / "d.pcapng")})
    control.close()
    control({"command": "capture", "file": str(tmp_path / "e.pcap"), "taps": [("sw0", 1)]})
    control.close()
    assert packets(tmp_path / "e.pcap") == []


def test_a_file_that_cannot_be_written_any_more_ends_the_capture_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = Managed("star:hosts=2")
    control = Control(fabric.management, lambda host: {})
    control({"command": "capture", "file": str(tmp_path / "c.pcapng")})

    def full(self: CaptureWriter) -> None:
        raise OutputError(str(tmp_path / "c.pcapng"), "No space left on device")

    monkeypatch.setattr(CaptureWriter, "flush", full)
    manager = fabric.start(Settings())
    fabric.run(1)

    assert manager.sweeps > 0
    with pytest.raises(OutputError, match="No space left"):
        control({"command": "capture", "stop": True})
    monkeypatch.undo()
    control({"command": "capture", "file": str(tmp_path / "d.pcapng")})
    control.close()


def test_a_program_may_ask_for_a_service_level_q_key_and_queue_pair_that_no_packet_has(
    tmp_path: Path,
) -> None:
    fabric = Managed("star:hosts=2")
    fabric.start(Settings())
    fabric.run(1)
    control = Control(fabric.management, lambda host: {})
    control({"command": "capture", "file": str(tmp_path / "c.pcapng"), "taps": [("sw0", 2)]})
    port = fabric.adapters[1]
    file = Door(fabric.management, port).open(lambda: None)
    assert file.register(Agent(0, 1, MgmtClass.PERF, 1, 0, 0, is_rmpp=False)) == 0
    lid = fabric.adapters[0].lid.to_bytes(2, "big")
    qpn, qkey = bytes.fromhex("ff000001"), bytes.fromhex("80000000")
    addresses = (qpn, qkey, lid, 0xF3, *(0,) * 5, bytes(16), bytes(4), 0)
    mad = MAD(mgmt_class=MgmtClass.PERF, class_version=1, method=1, attribute_id=0x12).pack()

    assert file.write(HEADER.pack(0, 0, 0, 0, 0, *addresses) + mad.ljust(256, b"\0"), 0) == 0
    fabric.run(0)
    control.close()

    packet = Packet.parse(packets(tmp_path / "c.pcapng")[0][1], LinkType.INFINIBAND)
    assert isinstance(packet.route, IBRoute)
    assert (packet.route.lrh.sl, packet.bth.dest_qp) == (3, 1)
    # With bit 31 it is that of the sender's queue pair (IBA 10.2.5).
    assert packet.extensions[0] == DETH(qkey=0x80010000, src_qp=1)


def test_the_lane_of_a_mad_is_that_of_the_port_by_which_it_came(tmp_path: Path) -> None:
    """SLtoVLMappingTable has a row for each input port; 0 is the switch itself (IBA 14.2.5.9)."""
    fabric = Managed("star2")
    switch = fabric.subnet.nodes["sw0"]
    control = Control(fabric.management, lambda host: {})
    fabric.start(Settings())
    fabric.run(1)
    for number, lane in ((0, 1), (1, 2), (2, 3)):
        switch.ports[2].sl2vl[number] = bytes((lane << 4 | lane,)) * 8
    control({"command": "capture", "file": str(tmp_path / "c.pcapng"), "taps": [("sw0", 2)]})
    first, second = fabric.adapters
    for port in (first, switch.ports[0]):
        mad = bytearray(MAD(mgmt_class=MgmtClass.PERF, method=0x81).pack().ljust(256, b"\0"))
        fabric.management.send(Datagram(mad, port.lid, second.lid, 1, 1), port)
    fabric.management.run(fabric.now)
    control.close()

    assert [frame[0] >> 4 for _, frame in packets(tmp_path / "c.pcapng")] == [2, 1]
