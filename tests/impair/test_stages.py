"""What stages do to frames; ICRC and checksum verdicts come from `Packet` and by hand."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.base.node import DamagedFrame, Frame, Pipe
from ibwire.base.units import MS, US, Time
from ibwire.capture import PcapngWriter, PcapWriter, Tap, open_capture
from ibwire.impair import (
    Chance,
    Corrupt,
    Delay,
    Duplicate,
    Loss,
    MarkECN,
    Match,
    Only,
    Region,
    Reorder,
    Repair,
    Rewrite,
    always,
)
from ibwire_layers import OpCode, Packet
from ibwire_layers.outer import IPProto, LinkType
from ibwire_layers.packet import CrcStatus
from strategies import (
    HANDMADE,
    ROUTE1,
    ROUTE4,
    ROUTE6,
    ROUTE_GLOBAL,
    ROUTE_LOCAL,
    damaged,
    ethernet,
    ipv4,
    packet,
    tunnel,
)

FRAME = packet(ROUTE4, OpCode.RC_SEND_ONLY, bytes(range(64)))


def nth(*numbers: Any) -> Match:
    return Match(nth=numbers)


def through(stage: Any, frames: Any, gap: int = 1) -> Any:
    """What comes out of a stage, in order of arrival, for frames that enter a `gap` apart."""
    out: list[Any] = []
    for i, frame in enumerate(frames):
        out += [(i * gap + delay, len(out), each) for delay, each in stage(frame, i * gap)]
    return [each for _, _, each in sorted(out, key=lambda entry: entry[:2])]


def one(stage: Any, frame: Frame, now: Time = 0) -> Any:
    ((delay, out),) = stage(frame, now)
    assert delay == 0
    return out


def bits_changed(before: Any, after: Any) -> Any:
    assert len(before) == len(after)
    difference = int.from_bytes(before) ^ int.from_bytes(after)
    return difference.bit_count()


def bytes_changed(before: Any, after: Any) -> Any:
    return [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


def records_of(path: Path) -> Any:
    with open_capture(path) as capture:
        return list(capture.records())


@pytest.fixture(scope="module")
def good(request: pytest.FixtureRequest) -> Any:
    """Frames with a right ICRC: some of every shipped capture."""
    captures = request.getfixturevalue("captures")
    found = []
    for path in sorted(captures.glob("*.pcap")):
        frames = [record.data for record in records_of(path)]
        pick = Match(opcode=range(256))
        carrying = [data for data in frames if pick(data, 0)]
        found += [d for d in carrying[:12] if icrc(d) is CrcStatus.GOOD]
    assert len(found) > 100
    return found


def icrc(frame: Frame, link_type: int = LinkType.ETHERNET) -> Any:
    return Packet.parse(frame, link_type, strict=False).icrc_status()


# Loss, duplication, delay, order.


def test_loss_drops_what_is_picked_and_counts() -> None:
    stage = Loss(nth(2, 3))

    assert through(stage, [b"1", b"2", b"3", b"4"]) == [b"1", b"4"]
    assert stage.hits == 2


def test_duplicates_follow_the_original_one_delay_apart() -> None:
    stage = Duplicate(nth(2), copies=2, delay=5)

    assert list(stage(b"1", 0)) == [(0, b"1")]
    assert list(stage(b"2", 0)) == [(0, b"2"), (5, b"2"), (10, b"2")]
    assert stage.hits == 1


def test_delay_is_exact_without_jitter() -> None:
    stage = Delay(5 * US)

    assert [list(stage(b"x", now)) for now in (0, 7)] == [[(5 * US, b"x")]] * 2


def test_jitter_is_spread_over_its_whole_range() -> None:
    """1,000 draws of 11 values: each about 91 times, 5 deviations are 45."""
    stage = Delay(100, 10, seed=4)

    delays = Counter(delay for _ in range(1000) for delay, _ in stage(b"x", 0))

    assert set(delays) == set(range(100, 111))
    assert all(abs(times - 1000 / 11) < 45 for times in delays.values())


def test_delay_of_some_lets_the_others_overtake() -> None:
    stage = Delay(25, pick=nth(1))

    assert through(stage, [b"1", b"2", b"3", b"4", b"5"], gap=10) == [b"2", b"3", b"1", b"4", b"5"]


@pytest.mark.parametrize(("by", "expected"), [(1, b"13245678"), (3, b"13452678"), (6, b"13456782")])
def test_reordered_frame_comes_right_behind_so_many_later_ones(by: int, expected: bytes) -> None:
    frames = [bytes([n]) for n in b"12345678"]

    assert b"".join(through(Reorder(nth(2), by=by), frames)) == expected


def test_one_frame_is_held_at_a_time() -> None:
    stage = Reorder(always, by=2)
    frames = [bytes([n]) for n in b"12345678"]

    assert b"".join(through(stage, frames)) == b"2315648"
    assert stage.held == b"7"
    assert stage.hits == 3


def test_held_frame_goes_first_when_the_next_comes_too_late() -> None:
    stage = Reorder(nth(1), by=5, max_delay=1 * MS)
    assert list(stage(b"1", 0)) == []

    assert list(stage(b"2", 1 * MS)) == [(0, b"2")]
    assert list(stage(b"3", 1 * MS + 1)) == [(0, b"1"), (0, b"3")]
    assert stage.held is None


def test_only_sends_the_others_past_the_stage() -> None:
    stage = Only(nth(2), Delay(5))

    assert [list(stage(each, 0)) for each in (b"1", b"2")] == [[(0, b"1")], [(5, b"2")]]
    assert stage.hits == 1


# Corruption.


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_corrupt_packet_has_a_bad_icrc_whatever_bit_it_is(good: Any, bits: int) -> None:
    stage = Corrupt(bits=bits, seed=bits)

    for frame in good * 3:
        damaged = one(stage, frame)
        assert bits_changed(frame, damaged) == bits
        assert icrc(damaged) is not CrcStatus.GOOD
    assert stage.hits == 3 * len(good)


def test_every_single_bit_of_a_packet_can_be_hit_but_the_byte_that_the_icrc_leaves_out() -> None:
    frame = packet(ROUTE4, OpCode.RC_SEND_ONLY, b"")
    stage = Corrupt(seed=1)

    hit = Counter(bytes_changed(frame, one(stage, frame))[0] for _ in range(2000))

    # BTH from byte 42, ICRC to byte 57; byte 4 of the BTH holds FECN and BECN.
    assert set(hit) == set(range(42, 58)) - {46}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Region.PACKET, {*range(42, 46), *range(47, 66)}),
        (Region.PAYLOAD, set(range(54, 62))),
        (Region.ICRC, set(range(62, 66))),
        (Region.NETWORK, set(range(14, 42))),
        (Region.FRAME, set(range(14, 70))),
    ],
)
def test_region_bounds_what_is_hit(where: Region, expected: Any) -> None:
    """Ethernet 14, IPv4 20, UDP 8, BTH 12, payload 8, ICRC 4, then 4 bytes of trailer."""
    frame = packet(ROUTE4, OpCode.RC_SEND_ONLY, b"12345678") + b"\xee" * 4
    stage = Corrupt(where=where, seed=3)

    hit = {at for _ in range(1500) for at in bytes_changed(frame, one(stage, frame))}

    assert hit == expected


def test_payload_begins_behind_the_extension_headers() -> None:
    """A WRITE with immediate data has RETH 16 and ImmDt 4 behind the BTH."""
    frame = packet(ROUTE4, OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, b"1234")
    stage = Corrupt(where="payload", seed=3)

    hit = {at for _ in range(500) for at in bytes_changed(frame, one(stage, frame))}

    assert hit == set(range(74, 78))


def test_whole_region_is_flipped_when_it_has_fewer_bits_than_asked() -> None:
    frame = packet(ROUTE4, OpCode.RC_SEND_ONLY, b"1234")

    damaged = one(Corrupt(bits=1000, where="icrc"), frame)

    assert damaged[-4:] == bytes(0xFF ^ byte for byte in frame[-4:])
    assert damaged[:-4] == frame[:-4]


def test_frames_without_the_region_pass_untouched_and_uncounted() -> None:
    arp = ethernet(bytes(46), 0x0806)
    empty = packet(ROUTE4, OpCode.RC_SEND_ONLY, b"")
    stage = Corrupt(where="payload")

    assert [one(stage, each) for each in (arp, empty, b"", b"short")] == [arp, empty, b"", b"short"]
    assert stage.hits == 0


def test_tags_are_never_hit(captures: Path) -> None:
    records = records_of(captures / "vlan-rc-pingpong.pcap")
    frames = [record.data for record in records]
    stage = Corrupt(where="frame", bits=20)

    for frame in frames:
        assert frame[12:14] != b"\x81\x00" or one(stage, frame)[:18] == frame[:18]


@pytest.mark.parametrize("route", [ROUTE_LOCAL, ROUTE_GLOBAL])
@pytest.mark.parametrize("where", ["packet", "icrc"])
def test_native_infiniband_is_corrupted_when_told(route: Any, where: str) -> None:
    frame = packet(route)
    stage = Corrupt(where=where, link_type=LinkType.INFINIBAND)

    assert icrc(frame, LinkType.INFINIBAND) is CrcStatus.GOOD
    assert icrc(one(stage, frame), LinkType.INFINIBAND) is CrcStatus.BAD


def test_corruption_repeats_by_seed_and_name() -> None:
    def run(seed: int, name: str) -> Any:
        stage = Corrupt(seed=seed, name=name)
        return tuple(one(stage, FRAME) for _ in range(10))

    assert run(1, "a") == run(1, "a")
    assert len({run(s, n) for s in (1, 2) for n in "ab"}) == 4


# ECN.


def ecn_of(frame: Frame) -> Any:
    return Packet.parse(frame, strict=False).route.ip.ecn


def checksum_is_right(frame: Frame) -> Any:
    """Ones' complement sum of the IPv4 header words is all ones (RFC 1071)."""
    header = frame[14 : 14 + 4 * (frame[14] & 15)]
    total = sum(int.from_bytes(header[i : i + 2]) for i in range(0, len(header), 2))
    return total % 0xFFFF == 0 and total > 0


def with_ecn(frame: Frame, ecn: Any) -> Any:
    ((_, out),) = Rewrite(always, {"ipv4.ecn": ecn})(frame, 0)
    return out


@pytest.mark.parametrize("ecn", [1, 2])
def test_ecn_capable_packets_are_marked_with_right_checksum_and_icrc(ecn: int) -> None:
    stage = MarkECN()
    frame = with_ecn(FRAME, ecn)

    marked = one(stage, frame)

    assert ecn_of(marked) == 3
    assert checksum_is_right(frame)
    assert checksum_is_right(marked)
    assert icrc(marked) is CrcStatus.GOOD
    assert bytes_changed(frame, marked)[0] == 15
    assert set(bytes_changed(frame, marked)) <= {15, 24, 25}
    assert stage.hits == 1


@each_case(
    "stage",
    [
        MarkECN(),
        Corrupt(),
        Duplicate(),
        Rewrite(always, {"bth.psn": 5}),
        Rewrite(always, {"bth.psn": 5}, Repair.NOTHING),
    ],
)
def test_damaged_frame_stays_damaged_when_it_is_changed_again(stage: Any) -> None:
    """A wrong FCS is not repaired on the wire."""
    frame = with_ecn(FRAME, 2)

    for _, out in stage(DamagedFrame(frame), 0):
        assert type(out) is DamagedFrame
    assert stage.hits == 1
    assert DamagedFrame not in {type(out) for _, out in stage(frame, 0) if out == frame}


def test_packets_of_other_transports_are_marked_only_by_force() -> None:
    frame = with_ecn(FRAME, 0)

    assert one(MarkECN(), frame) == frame
    forced = one(MarkECN(force=True), frame)
    assert (ecn_of(forced), checksum_is_right(forced)) == (3, True)


def test_marked_packet_is_not_counted_again() -> None:
    stage = MarkECN()
    marked = one(stage, with_ecn(FRAME, 2))

    assert one(stage, marked) == marked
    assert stage.hits == 1


def test_mark_in_a_shipped_capture_is_what_the_switch_would_have_made(captures: Path) -> None:
    """ecn-ce.b.pcap holds marked and unmarked packets of one flow, all from one sender."""
    records = records_of(captures / "ecn-ce.b.pcap")
    frames = [record.data for record in records if Match(opcode="WRITE")(record.data, 0)]
    before = Counter(map(ecn_of, frames))

    after = [one(MarkECN(), frame) for frame in frames]

    assert set(before) == {2, 3}
    assert set(map(ecn_of, after)) == {3}
    assert all(map(checksum_is_right, after))
    assert all(icrc(frame) is CrcStatus.GOOD for frame in after)


@each_case("checksum", [0, 1, 2])
@each_case("ecn", [1, 2])
def test_carry_out_of_the_checksum_comes_back_in(checksum: int, ecn: int) -> None:
    """The identification is chosen so that the checksum has this value."""
    plain = one(Rewrite(always, {"ipv4.id": 0, "ipv4.ecn": ecn}), FRAME)
    identification = int.from_bytes(plain[24:26]) - checksum
    frame = one(Rewrite(always, {"ipv4.id": identification, "ipv4.ecn": ecn}), FRAME)

    marked = one(MarkECN(), frame)

    assert int.from_bytes(frame[24:26]) == checksum
    assert checksum_is_right(marked)


def test_ipv6_packets_are_marked() -> None:
    ((_, frame),) = Rewrite(always, {"ipv6.ecn": 2, "ipv6.dscp": 0x2A})(packet(ROUTE6), 0)

    marked = one(MarkECN(), frame)

    route = Packet.parse(marked).route
    assert (route.ip.ecn, route.ip.dscp, route.ip.flow_label) == (3, 0x2A, 0)
    assert icrc(marked) is CrcStatus.GOOD
    assert bytes_changed(frame, marked) == [15]


def test_wrong_checksum_stays_wrong_by_as_much() -> None:
    frame = bytearray(with_ecn(FRAME, 2))
    frame[25] ^= 1

    marked = one(MarkECN(), bytes(frame))

    assert ecn_of(marked) == 3
    assert not checksum_is_right(marked)


def test_outer_header_of_a_tunnel_is_marked() -> None:
    inner = ipv4(bytes(20), IPProto.TCP)
    frame = bytearray(tunnel(inner, IPProto.IPIP))
    frame[15] |= 2

    marked = one(MarkECN(), bytes(frame))

    assert marked[15] & 3 == 3
    assert marked[34:] == inner


@pytest.mark.parametrize("frame", [packet(ROUTE1), ethernet(bytes(46), 0x0806), b"", b"\x45" * 15])
def test_frames_without_ip_are_not_marked(frame: Frame) -> None:
    assert one(MarkECN(force=True), frame) == frame


@given(st.integers(0, 0xFFFF), st.integers(1, 2), st.integers(0, 63))
def test_adjusted_checksum_is_the_computed_one(identification: int, ecn: int, dscp: int) -> None:
    frame = one(
        Rewrite(always, {"ipv4.id": identification, "ipv4.ecn": ecn, "ipv4.dscp": dscp}), FRAME
    )

    assert checksum_is_right(one(MarkECN(), frame))


# Rewriting.


def test_rewritten_packet_is_right_in_all_else() -> None:
    stage = Rewrite(nth(2), {"bth.psn": 77, "bth.pkey": 0x8001, "ipv4.ttl": 3})

    untouched, changed = through(stage, [FRAME, FRAME])

    parsed = Packet.parse(changed)
    assert untouched == FRAME
    assert (parsed.bth.psn, parsed.bth.pkey, parsed.route.ip.ttl) == (77, 0x8001, 3)
    assert parsed.payload == bytes(range(64))
    assert icrc(changed) is CrcStatus.GOOD
    assert checksum_is_right(changed)
    assert stage.hits == 1


def test_rewriting_what_is_there_already_changes_nothing(good: Any) -> None:
    for frame in good:
        psn = Packet.parse(frame).bth.psn
        assert one(Rewrite(always, {"bth.psn": psn}, "icrc"), frame) == frame


def test_rewritten_packet_without_repair_has_a_bad_icrc() -> None:
    changed = one(Rewrite(always, {"bth.psn": 77}, Repair.NOTHING), FRAME)

    assert icrc(changed) is CrcStatus.BAD
    assert bytes_changed(FRAME, changed) == [51, 52, 53]  # PSN: BTH bytes 9 to 11


def test_fields_that_the_icrc_leaves_out_need_no_repair() -> None:
    changed = one(Rewrite(always, {"bth.becn": 1, "ipv4.ttl": 3}, "nothing"), FRAME)

    assert icrc(changed) is CrcStatus.GOOD


def test_wrong_length_with_a_right_icrc_can_be_made() -> None:
    changed = one(Rewrite(always, {"udp.length": 9}, "icrc"), FRAME)

    parsed = Packet.parse(changed, strict=False)
    assert parsed.route.udp.length == 9
    assert parsed.icrc_status() is CrcStatus.GOOD


def test_wrong_length_is_repaired_away_with_everything() -> None:
    assert one(Rewrite(always, {"udp.length": 9}, "everything"), FRAME) == FRAME


def test_extension_headers_and_tags_are_rewritten(captures: Path) -> None:
    records = records_of(captures / "vlan-rc-pingpong.pcap")
    frames = [record.data for record in records if Match(opcode="ACKNOWLEDGE")(record.data, 0)]
    stage = Rewrite(always, {"aeth.syndrome": 0x60, "vlan.pcp": 5})

    for frame in frames:
        parsed = Packet.parse(one(stage, frame))
        assert [header.syndrome for header in parsed.extensions] == [0x60]  # type: ignore[attr-defined]
        assert [tag.pcp for tag in parsed.route.vlans] == [5]
        assert parsed.icrc_status() is CrcStatus.GOOD


def test_packets_without_the_header_pass_untouched_and_uncounted() -> None:
    stage = Rewrite(always, {"aeth.syndrome": 0x60, "ipv6.hop_limit": 1})

    assert one(stage, FRAME) == FRAME
    assert one(stage, b"no packet") == b"no packet"
    assert stage.hits == 0


@pytest.mark.parametrize("route", [ROUTE_LOCAL, ROUTE_GLOBAL])
def test_native_infiniband_gets_both_checksums(route: Any) -> None:
    stage = Rewrite(always, {"bth.psn": 1, "lrh.sl": 9}, "icrc", link_type=LinkType.INFINIBAND)

    changed = one(stage, packet(route))

    parsed = Packet.parse(changed, LinkType.INFINIBAND)
    assert (parsed.bth.psn, parsed.route.lrh.sl) == (1, 9)
    assert parsed.repaired().build() == changed


# Taps.


def test_tap_writes_what_passes_and_when(tmp_path: Path) -> None:
    path = tmp_path / "tap.pcap"
    with PcapWriter(path) as writer:
        tap = Tap(writer, epoch_ns=1_700_000_000_000_000_000)
        assert one(tap, FRAME, 1_999) == FRAME
        assert one(tap, FRAME[:60], 5 * US) == FRAME[:60]

    found = [(record.time_ns, record.data) for record in records_of(path)]
    assert found == [
        (1_700_000_000_000_000_001, FRAME),
        (1_700_000_000_000_005_000, FRAME[:60]),
    ]
    assert tap.hits == 2


def test_taps_share_a_file_with_an_interface_each(tmp_path: Path) -> None:
    path = tmp_path / "taps.pcapng"
    with PcapngWriter(path, name="a_to_b") as writer:
        there = Tap(writer)
        back = Tap(writer, interface=writer.add_interface(1, "b_to_a"))
        for now, tap in enumerate((there, back, back, there)):
            tap(FRAME, now * US)

    assert [record.interface for record in records_of(path)] == [0, 1, 1, 0]


def test_tap_writes_only_what_is_picked(tmp_path: Path) -> None:
    path = tmp_path / "tap.pcap"
    with PcapWriter(path) as writer:
        stage = Tap(writer, pick=nth(2))
        assert through(stage, [b"1" * 60, b"2" * 60, b"3" * 60]) == [
            b"1" * 60,
            b"2" * 60,
            b"3" * 60,
        ]

    assert [record.data for record in records_of(path)] == [b"2" * 60]


def test_tap_behind_a_stage_sees_what_it_lets_out(tmp_path: Path) -> None:
    path = tmp_path / "tap.pcap"
    with PcapWriter(path) as writer:
        pipe = Pipe(Loss(nth(1)), Duplicate(copies=1, delay=3 * US), Tap(writer))
        through(pipe, [b"1" * 60, b"2" * 60], gap=10 * US)

    found = [(record.time_ns, record.data) for record in records_of(path)]
    assert found == [(10_000, b"2" * 60), (13_000, b"2" * 60)]


def test_pcap_has_no_interfaces(tmp_path: Path) -> None:
    with PcapWriter(tmp_path / "x.pcap") as writer, pytest.raises(EncodeError, match="interface"):
        Tap(writer, interface=1)


# What cannot be.


@each_case(
    ("make", "field"),
    [
        (lambda: Duplicate(copies=0), "copies"),
        (lambda: Duplicate(copies=1001), "copies"),
        (lambda: Duplicate(delay=-1), "delay"),
        (lambda: Delay(-1), "time"),
        (lambda: Delay(1.5), "time"),
        (lambda: Delay(0, -1), "jitter"),
        (lambda: Reorder(by=0), "by"),
        (lambda: Reorder(max_delay=-1), "max_delay"),
        (lambda: Corrupt(bits=0), "bits"),
        (lambda: Corrupt(where="ethernet"), "where"),
        (lambda: MarkECN(force=1), "force"),
        (lambda: Rewrite(always, {}), "fields"),
        (lambda: Rewrite(always, {"bth.psn": 1}, "some"), "repair"),
        (lambda: Rewrite(always, {"psn": 1}), "psn"),
        (lambda: Rewrite(always, {"tcp.port": 1}), "tcp.port"),
        (lambda: Rewrite(always, {"bth.foo": 1}), "bth.foo"),
        (lambda: Rewrite(always, {"bth.psn": 1 << 24}), "bth.psn"),
        (lambda: Rewrite(always, {"bth.psn": -1}), "bth.psn"),
        (lambda: Rewrite(always, {"bth.psn": "1"}), "bth.psn"),
        (lambda: Rewrite(always, {5: 1}), "5"),
    ],
)
def test_impossible_stage_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        make()

    assert caught.value.field == field


# Laws.

frames_of_any_kind = st.lists(
    st.one_of(
        st.sampled_from([f.data for f in HANDMADE if f.link_type == LinkType.ETHERNET]),
        damaged().map(lambda frame: frame.data),
        st.binary(max_size=80),
    ),
    max_size=12,
)


@given(frames_of_any_kind)
def test_pipe_without_stages_is_identity(frames: Any) -> None:
    assert through(Pipe(), frames) == frames


@given(frames_of_any_kind, st.integers(0, 9))
def test_no_frame_makes_a_stage_raise_and_those_that_only_change_bytes_keep_the_count(
    frames: Any, seed: int
) -> None:
    stages: list[Any] = [
        *(Corrupt(bits=seed + 1, where=region, seed=seed) for region in Region),
        MarkECN(),
        MarkECN(force=True),
        *(Rewrite(always, {"bth.psn": 5, "ipv4.ttl": 1, "vlan.vid": 7}, r) for r in Repair),
    ]

    for stage in stages:
        assert len(through(stage, frames)) == len(frames)
        assert stage.hits <= len(frames)
    assert len(through(Pipe(*stages), frames)) == len(frames)


@given(frames_of_any_kind, st.sampled_from([Region.PACKET, Region.NETWORK, Region.FRAME]))
def test_corruption_changes_exactly_its_bits_and_never_the_length(
    frames: Any, where: Region
) -> None:
    stage = Corrupt(bits=2, where=where)

    for frame in frames:
        hits = stage.hits
        after = one(stage, frame)
        if stage.hits > hits:
            assert bits_changed(frame, after) == 2
            assert after[:14] == frame[:14]
        else:
            assert after == frame


@given(st.integers(0, 40), st.floats(0, 1), st.integers(1, 4), st.integers(0, 9))
def test_duplicates_removed_leave_what_went_in(
    total: int, probability: float, copies: int, seed: int
) -> None:
    frames = [n.to_bytes(4) for n in range(total)]
    stage = Duplicate(Chance(probability, seed=seed), copies)

    out = through(stage, frames)

    assert list(dict.fromkeys(out)) == frames
    assert len(out) == total + copies * stage.hits


@given(st.integers(0, 60), st.floats(0, 1), st.integers(1, 6), st.integers(0, 9))
def test_reordering_conserves_frames_and_moves_none_further_than_it_says(
    total: int, probability: float, by: int, seed: int
) -> None:
    frames = list(range(total))
    stage = Reorder(Chance(probability, seed=seed), by)

    out = [int.from_bytes(each) for each in through(stage, [n.to_bytes(4) for n in frames])]

    held = [] if stage.held is None else [int.from_bytes(stage.held)]
    assert sorted(out + held) == frames
    for number in out:
        overtaking = [n for n in out[: out.index(number)] if n > number]
        assert len(overtaking) in (0, by)


@given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 9))
def test_frames_are_lost_or_pass_in_order(total: int, probability: float, seed: int) -> None:
    frames = [n.to_bytes(4) for n in range(total)]
    stage = Loss(Chance(probability, seed=seed))

    out = through(stage, frames)

    assert len(out) + stage.hits == total
    assert out == sorted(out)


@given(st.lists(st.integers(0, 5 * US), max_size=20), st.integers(0, 9))
def test_delays_never_go_back(times: list[int], seed: int) -> None:
    pipe = Pipe(Delay(3, 7, seed=seed), Duplicate(delay=2), Reorder(by=2), Delay(1, 1, seed=seed))

    for now in sorted(times):
        assert all(delay >= 4 for delay, _ in pipe(b"x", now))
