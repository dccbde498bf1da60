"""`ibwire flows`: what is printed, for people and for programs, and how it ends."""

import gc
import json
import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from connections.talk import Talk
from ibwire.capture import CaptureWriter
from ibwire.cli.flows import command
from ibwire.cli.run import command as run
from ibwire.connections import merge
from ibwire.connections.pause import WHOLE_PORT
from ibwire_layers import crc, headers, outer
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import LinkType

CAPTURES = Path(__file__).parents[2] / "captures"


def flows(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def directions(*arguments: object) -> list[dict[str, Any]]:
    """One object a direction."""
    result = flows("--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def frame(psn: int, opcode: OpCode, back: bool = False, aeth: int | None = None) -> bytes:
    """A RoCEv2 frame over IPv4 between 0.0.0.1 and 0.0.0.2."""
    src, dst, qpn = (2, 1, 7) if back else (1, 2, 5)
    body = headers.BTH(opcode=opcode, dest_qp=qpn, psn=psn, ack_req=aeth is None).pack()
    body += b"" if aeth is None else struct.pack(">I", aeth)
    udp = outer.UDP(src_port=0xC000, length=12 + len(body)).pack()
    ip = outer.IPv4(total_length=32 + len(body), df=1, src=src, dst=dst).pack()
    covered = ip + udp + body
    masks = ((0, crc.IPV4_MASK), (20, crc.UDP_MASK), (28, crc.BTH_MASK))
    return outer.Ethernet(dst=2, src=1, type=0x800).pack() + covered + crc.icrc(covered, masks)


def pause(priority: int, quanta: int) -> bytes:
    """A PFC frame (IEEE 802.1Qbb) for one priority, or a PAUSE frame for the whole port."""
    start = bytes.fromhex("0180c20000010200000000aa")
    if priority == WHOLE_PORT:
        return start + struct.pack(">HHH", 0x8808, 0x0001, quanta) + bytes(42)
    timers = [0] * 8
    timers[priority] = quanta
    return start + struct.pack(">HHH8H", 0x8808, 0x0101, 1 << priority, *timers) + bytes(26)


def pcap(path: Path, frames: list[tuple[int, bytes]]) -> Path:
    """A nanosecond pcap of frames with their times (ns)."""
    records = b"".join(
        struct.pack("<IIII", 1 + ns // 10**9, ns % 10**9, len(data), len(data)) + data
        for ns, data in frames
    )
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1) + records)
    return path


def test_every_direction_has_the_fields_that_programs_rely_on() -> None:
    wanted = {
        "src",
        "dst",
        "src_qpn",
        "dst_qpn",
        "transport",
        "packets",
        "bytes",
        "messages",
        "first_ns",
        "last_ns",
        "retransmitted_packets",
        "lost_packets",
        "duplicate_packets",
        "reordered_packets",
        "naks",
        "rnr_naks",
        "timeouts",
        "ecn_ce",
        "cnps",
        "icrc_bad",
        "path_mtu",
    }

    for direction in directions(CAPTURES / "loss-both-2pc.b.pcap"):
        assert wanted <= direction.keys()


def test_one_lost_write_packet_is_counted_with_its_nak_and_its_resend() -> None:
    """tshark and the wire's log: PSN 103 lost, packet 19 NAKs it, 7 packets again (20-26)."""
    there, back = directions(CAPTURES / "drop-one-middle.b.pcap")

    assert (there["src"], there["src_qpn"], there["dst_qpn"]) == ("10.77.0.1", 0xB8, 0x83)
    assert there["packets"] == 17
    assert there["lost_packets"] == 1
    assert there["retransmitted_packets"] == 7
    assert there["naks"] == {"psn_sequence_error": 1}
    assert there["path_mtu"] == 1024
    assert (back["src_qpn"], back["dst_qpn"], back["packets"]) == (0x83, 0xB8, 3)


def test_a_direction_without_answers_has_no_sender_queue_pair_but_what_was_agreed() -> None:
    """Nothing of the dead peer is in the capture; only the exchange over TCP names its QP."""
    (there,) = directions(CAPTURES / "retry-exceeded.pcap")

    assert there["pairing"] == "none"
    assert there["retransmitted_packets"] == 3
    assert there["timeouts"] == 3
    assert set(there["not_observable"]) >= {"naks", "rnr_naks"}


def test_the_worst_connection_comes_first() -> None:
    names = [CAPTURES / "rcx-all-ops.pcap", CAPTURES / "rnr-late-recv.pcap"]

    assert directions(*names)[0]["rnr_naks"] == 9
    assert directions(*reversed(names))[0]["rnr_naks"] == 9


def test_the_table_leaves_out_what_nobody_has() -> None:
    result = flows(CAPTURES / "rcx-all-ops.pcap")

    assert "8 SEND 4 WRITE 3 READ 1 FADD 1 CAS" in result.stdout
    assert "NAK" not in result.stdout
    assert "lost" not in result.stdout


def test_a_count_that_is_only_a_lower_bound_is_marked_and_explained() -> None:
    result = flows(CAPTURES / "retry-exceeded.pcap")

    assert "?" in result.stdout.splitlines()[1]
    assert "a timer expired" in result.stdout


def test_other_names_each_lost_frame() -> None:
    """The log of the wire: 4 frames lost from a to b, 1 back."""
    log = json.loads((CAPTURES / "loss-both-2pc.wire.json").read_text(encoding="utf-8"))
    found = directions(
        CAPTURES / "loss-both-2pc.a.pcap", "--other", CAPTURES / "loss-both-2pc.b.pcap"
    )

    for direction, way in zip(found, ("ab", "ba"), strict=True):
        lost = [(each["opcode"], each["psn"]) for each in direction["lost_between"]]
        acts = [a for a in log["actions"] if a["dir"] == way and a["act"] == "loss"]
        assert lost == [(act["op"], act["psn"]) for act in acts]


def test_other_says_of_no_unmatched_direction_that_it_lost_nothing(tmp_path: Path) -> None:
    """All ACKs are lost between the points: nothing shows that they were."""
    talk = Talk(counts_ids=False)
    talk.sends(0, 6)
    requests, acks = talk.frames[::2], talk.frames[1::2]
    one, other = tmp_path / "a.pcap", tmp_path / "b.pcap"
    pcap(one, requests)
    pcap(other, sorted([(time_ns + 3_000, data) for time_ns, data in requests] + acks))

    result = flows(one, "--other", other)

    assert "reordered, of the directions with frames in both" in result.stdout


def test_pauses_and_silent_connections_are_listed(tmp_path: Path) -> None:
    """65,535 quanta at 100 Gb/s are 335.5 us; refreshed after 300 us, released 200 us later."""
    ack = 0x1F000001
    path = pcap(
        tmp_path / "pfc.pcap",
        [
            (0, frame(1, OpCode.RC_SEND_ONLY)),
            (1_000, frame(1, OpCode.RC_ACKNOWLEDGE, back=True, aeth=ack)),
            (2_000, pause(3, 0xFFFF)),
            (302_000, pause(3, 0xFFFF)),
            (502_000, pause(3, 0)),
            (503_000, frame(2, OpCode.RC_SEND_ONLY)),
            (504_000, frame(2, OpCode.RC_ACKNOWLEDGE, back=True, aeth=ack + 1)),
        ],
    )

    result = flows("--link-rate", "100G", path)

    assert "02:00:00:00:00:aa paused priority 3: 3 frames, 1 pause, 500 us in all" in result.stdout
    assert (
        "connection 1, 0.0.0.1 - 0.0.0.2, silent for 500 us of pauses, perhaps of other "
        "priorities\npackets without a VLAN tag do not show their priority\n" in result.stdout
    )
    (found, *_) = directions("--link-rate", "100G", path)
    assert found["paused_ns"] == 500_000
    assert "paused_ns" in found["not_observable"]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("tags", "paused", "held"),
    [
        ((3,), 3, 500_000),
        ((5,), 3, 0),
        ((5,), WHOLE_PORT, 500_000),
        ((3, 0), 3, 500_000),
        ((0, 3), 3, 500_000),
        ((0, 5), 3, 0),
    ],
)
def test_pauses_count_for_connections_whose_vlan_tag_has_that_priority(
    tags: tuple[int, ...],
    paused: int,
    held: int,
    later: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """IEEE 802.1Qbb; a PAUSE frame stops all priorities. With `later`, in a second file."""
    if tags != (3,):  # one case starts processes
        monkeypatch.setattr("ibwire.base.work.processes", lambda count: pickled_one_by_one)
    ack = 0x1F000001
    files = [
        [
            (0, tagged(frame(1, OpCode.RC_SEND_ONLY), tags)),
            (1_000, tagged(frame(1, OpCode.RC_ACKNOWLEDGE, back=True, aeth=ack), tags)),
        ],
        [
            (2_000, pause(paused, 0xFFFF)),
            (302_000, pause(paused, 0xFFFF)),
            (502_000, pause(paused, 0)),
            (503_000, frame(2, OpCode.RC_SEND_ONLY)),
            (504_000, frame(2, OpCode.RC_ACKNOWLEDGE, back=True, aeth=ack + 1)),
        ],
    ]
    if not later:
        files = [files[0] + files[1]]
    paths = [pcap(tmp_path / f"{number}.pcap", each) for number, each in enumerate(files)]
    options = ("--link-rate", "100G", *(("--jobs", "2") if later else ()))

    (found, *_) = directions(*options, *paths)
    assert found["paused_ns"] == held
    assert "paused_ns" not in found["not_observable"]
    text = flows(*options, *paths).stdout
    assert "VLAN" not in text
    is_of_priority = paused != WHOLE_PORT
    ending = f"silent for 500 us of pauses{' of its priority' if is_of_priority else ''}\n"
    assert (ending in text) == (held > 0)


def pickled_one_by_one(
    task: Callable[[Any], Any], items: Sequence[Any], *, in_order: bool = True
) -> Iterator[Any]:
    """As in other processes, each item for itself and pickled, but here."""
    for item in items:
        own_task, own_item = pickle.loads(pickle.dumps((task, item)))
        yield pickle.loads(pickle.dumps(own_task(own_item)))


def tagged(data: bytes, priorities: tuple[int, ...]) -> bytes:
    """A frame with VLAN tags of these priorities, the first one first."""
    tags = b"".join(struct.pack("!HH", 0x8100, each << 13 | 100) for each in priorities)
    return data[:12] + tags + data[12:]


def test_a_capture_without_rdma_says_so(tmp_path: Path) -> None:
    arp = bytes.fromhex("ffffffffffff0200000000010806") + bytes(46)

    result = flows(pcap(tmp_path / "arp.pcap", [(0, arp), (1, arp)]))

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "no RDMA packets among 2 frames" in result.stderr


def test_a_damaged_file_keeps_what_is_readable_and_ends_with_status_3(tmp_path: Path) -> None:
    whole = (CAPTURES / "rcx-all-ops.pcap").read_bytes()
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(whole[: len(whole) // 2])

    result = flows(cut)

    assert result.exit_code == 3
    assert "10.77.0.1" in result.stdout
    assert "cut.pcap" in result.stderr


def test_overlapping_captures_are_reported(tmp_path: Path) -> None:
    """The two ends of a wire are not parts of one capture: their times overlap."""
    result = flows(CAPTURES / "chaos.a.pcap", CAPTURES / "chaos.b.pcap")

    assert "warning: the captures overlap in time: " in result.stderr
    assert "Two points of one path are compared with --other" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.pcap", "--jobs", "2", "--ray", "local"], "exclude each other"),
        (["x.pcap", "y.pcap", "--other", "z.pcap"], "one capture"),
        (["x.pcap", "--link-rate", "fast"], "fast"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], message: str) -> None:
    result = flows(*arguments)

    assert result.exit_code == 2
    assert message in result.stderr


def test_credits_are_the_fewest_and_the_most_that_were_given(tmp_path: Path) -> None:
    """Codes 5 and 6 are 6 and 8 receive work requests (IBA 9.7.7.2)."""
    path = pcap(
        tmp_path / "credits.pcap",
        [
            (0, frame(1, OpCode.RC_SEND_ONLY)),
            (1_000, frame(1, OpCode.RC_ACKNOWLEDGE, back=True, aeth=0x06000001)),
            (2_000, frame(2, OpCode.RC_SEND_ONLY)),
            (3_000, frame(2, OpCode.RC_ACKNOWLEDGE, back=True, aeth=0x05000002)),
        ],
    )

    there, back = directions(path)

    assert there["credits"] == [6, 8]
    assert back["credits"] is None


def test_packets_that_were_captured_at_two_interfaces_are_counted_in_a_warning(
    tmp_path: Path,
) -> None:
    # a sends 14 requests (8, and 6 again), of which 1 is dropped; b sends a NAK and an ACK.
    one, both = tmp_path / "one.pcapng", tmp_path / "both.pcapng"
    CliRunner().invoke(run, ["one-lost-packet", "-o", str(one), "--tap", "a"])
    CliRunner().invoke(run, ["one-lost-packet", "-o", str(both), "--tap", "a", "--tap", "b"])
    assert "interface" not in flows(one).stderr
    assert "15 packets were captured again at another interface" in flows(both).stderr


def test_connections_at_two_interfaces_are_no_copies(tmp_path: Path) -> None:
    # As on a bond of two ports: each connection, and each packet, uses one of them.
    path = tmp_path / "bond.pcapng"
    with CaptureWriter(path) as writer:
        for number in range(2):
            writer.interface(f"eth{number}", LinkType.ETHERNET, f"eth{number}")
            talk = Talk(number=number)
            for psn in range(4):
                talk.put(0, OpCode.RC_SEND_ONLY, psn, 64)
            for ns, data in talk.frames:
                writer.write(data, ns, interface=number)
    assert [each["packets"] for each in directions(path)] == [4, 4]
    assert "interface" not in flows(path).stderr


def test_nothing_is_garbage_while_one_capture_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    analyse = merge.analyse

    def noting(*given: Any, **options: Any) -> Any:
        looks.append(gc.isenabled())
        return analyse(*given, **options)

    monkeypatch.setattr(merge, "analyse", noting)
    capture = CAPTURES / "drop-one-middle.b.pcap"

    flows(capture)
    flows(capture, capture)
    flows("--jobs", 1, "--ray", "local", capture)  # a wrong usage

    assert looks == [False, True]
    assert gc.isenabled()
