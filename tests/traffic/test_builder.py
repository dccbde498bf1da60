"""The builder's packets are those that the emulator's encoder makes one by one."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled, usual
from ibwire.traffic import builder
from ibwire.traffic.blocks import Block
from ibwire.traffic.builder import Builder
from ibwire.traffic.cycle import Turn
from ibwire.traffic.stream import Link, Payload, PortRule, Stream, Verb
from ibwire_layers.crc import internet_checksum
from ibwire_layers.opcodes import Service
from ibwire_layers.outer import IPv4, IPv6
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route
from traffic.naive import in_turn, per_queue_pair

V4 = {"src": "10.0.0.1", "dst": "10.0.0.2"}
V6 = {"src": "fd00::1", "dst": "fd00::2"}


def frames_of(blocks: Iterator[Block], count: int) -> list[bytes]:
    """The first frames, each copied before it is overwritten."""
    found: list[bytes] = []
    for frames, lengths in blocks:
        found += (
            row[:length].tobytes() for row, length in zip(frames, lengths.tolist(), strict=True)
        )
        if len(found) >= count:
            return found[:count]
    raise AssertionError("the blocks have ended")


def built(*streams: Stream, count: int = 300, size: int = 64, **more: Any) -> list[bytes]:
    return frames_of(Builder(streams, **more).blocks(size), count)


def stream(qpn: int = 0x11, **more: Any) -> Stream:
    return Stream(**{"qpns": ((qpn, 1),), **V4, **more})


@st.composite
def streams(draw: st.DrawFn, qpns: st.SearchStrategy[Any] | None = None) -> Stream:
    """Anything that a stream can be, but for what is random."""
    numbers = st.integers(0, 0xFFFFFF)
    verb = draw(st.sampled_from(Verb))
    services = [Service.RC]
    if verb in (Verb.SEND, Verb.SEND_IMM):
        services += [Service.UC, Service.UD]
    elif verb in (Verb.WRITE, Verb.WRITE_IMM):
        services.append(Service.UC)
    service = draw(st.sampled_from(services))
    mtu = draw(st.sampled_from([256, 512, 1024, 2048, 4096]))
    largest = mtu if service is Service.UD else 4 * mtu
    size = draw(st.integers(0, largest) | st.sampled_from([0, 1, mtu, largest]))
    step = draw(st.sampled_from([0, 1, 64, 4096, 1 << 33]))
    if qpns is None:
        qpns = st.lists(numbers, min_size=1, max_size=5, unique=True).map(
            lambda found: tuple((qpn, 1) for qpn in found)
        )
    return Stream(
        verb=verb,
        service=service,
        qpns=draw(qpns),
        size=size,
        mtu=mtu,
        psn=draw(numbers | st.integers(0xFFFFF0, 0xFFFFFF)),
        ack_every=draw(st.none() | st.integers(0, 9)),
        **draw(st.sampled_from([V4, V6])),
        src_mac=draw(st.none() | st.binary(min_size=6, max_size=6)),
        dst_mac=draw(st.none() | st.binary(min_size=6, max_size=6)),
        link=draw(st.sampled_from(Link)),
        vlan=draw(st.none() | st.integers(0, 0xFFE)),
        pcp=draw(st.integers(0, 7)),
        dscp=draw(st.integers(0, 63)),
        ecn=draw(st.integers(0, 3)),
        ttl=draw(st.integers(0, 255)),
        count_ip_id=draw(st.booleans()),
        src_port=draw(st.integers(0, 0xFFFF) | st.sampled_from([PortRule.FLOW, PortRule.QPN])),
        src_qpn=draw(st.none() | st.integers(0, 0xFFFFF0)),
        pkey=draw(st.integers(0, 0xFFFF)),
        solicited=draw(st.booleans()),
        mig_req=draw(st.booleans()),
        rkey=draw(st.integers(0, 2**32 - 1)),
        va=draw(st.integers(0, 2**63)),
        va_step=step,
        va_window=max(size, 8) + draw(st.integers(0, 5)) * step if step else 0,
        imm=draw(st.integers(0, 2**32 - 1)),
        swap=draw(st.integers(0, 2**64 - 1)),
        compare=draw(st.integers(0, 2**64 - 1)),
        qkey=draw(st.integers(0, 2**32 - 1)),
        syndrome=draw(st.integers(0, 255)),
        msn=draw(numbers),
        payload=draw(st.binary(min_size=1, max_size=20) | st.just(Payload.COUNTER)),
    )


@pytest.mark.slow
@settings(deadline=None)
@given(made=streams(), size=st.integers(1, 70), count=st.integers(1, 120))
def test_packets_of_any_stream_are_those_of_the_emulators_encoder(
    made: Stream, size: int, count: int
) -> None:
    assert built(made, count=count, size=size) == list(islice(in_turn(made), count))


@pytest.mark.slow
@settings(deadline=None, max_examples=scaled(50))
@given(
    made=st.lists(
        streams(
            st.lists(
                st.tuples(st.integers(0, 0xFFFFFF), st.integers(1, 4)),
                min_size=1,
                max_size=3,
                unique_by=lambda pair: pair[0],
            ).map(tuple)
        ),
        min_size=2,
        max_size=3,
    ),
    turn=st.sampled_from(Turn),
)
def test_each_queue_pair_of_a_mix_gets_its_packets_in_order(made: list[Stream], turn: Turn) -> None:
    builder = Builder(made, turn=turn)
    count = min(3 * len(builder.cycle), 200)
    found = frames_of(builder.blocks(50), count)

    expected = per_queue_pair(made)
    owners = zip(builder.cycle.stream.tolist(), builder.cycle.qpn.tolist(), strict=True)
    cycle = list(owners)
    for number, frame in enumerate(found):
        owner = cycle[number % len(cycle)]
        if made[owner[0]].payload is not Payload.COUNTER:
            assert frame == next(expected[owner])


@pytest.mark.slow
def test_a_second_pass_of_the_ring_goes_on_where_the_first_ended() -> None:
    made = stream(psn=0xFFF000, payload=Payload.COUNTER, size=16)

    assert built(made, count=10_000, size=4096) == list(islice(in_turn(made), 10_000))


@pytest.mark.parametrize("ring", [1 << 13, 1 << 25])
def test_a_cycle_of_several_batches_is_built_the_same_kept_or_not(
    ring: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "BATCH", 16)
    monkeypatch.setattr(builder, "MAXIMUM_RING", ring)
    made = stream(size=40 * 1024, psn=0xFFFFF0, ack_every=7)

    assert built(made, count=500, size=7) == list(islice(in_turn(made), 500))


def test_marks_and_random_payloads_do_not_depend_on_the_size_of_blocks() -> None:
    made = stream(ce=0.3, payload=Payload.RANDOM, size=13)

    assert built(made, count=5000, size=4096) == built(made, count=5000, size=7)


def test_random_payloads_differ_and_leave_the_padding_zero() -> None:
    packets = [Packet.parse(frame) for frame in built(stream(payload=Payload.RANDOM, size=13))]

    assert len({packet.payload for packet in packets}) == len(packets)
    assert {packet.padding for packet in packets} == {bytes(3)}
    assert {packet.icrc_status() for packet in packets} == {CrcStatus.GOOD}


def test_another_seed_draws_otherwise() -> None:
    made = stream(payload=Payload.RANDOM, src_port=PortRule.RANDOM)

    assert built(made, seed=1) == built(made, seed=1) != built(made, seed=2)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("addresses", [V4, V6], ids=["ipv4", "ipv6"])
def test_a_mark_changes_ecn_and_ip_checksum_and_nothing_else(
    addresses: dict[str, str], counted: bool
) -> None:
    every: dict[str, Any] = {**addresses, "dscp": 26, "count_ip_id": counted}
    count = usual(1000, quick=200)
    plain = built(stream(**every), count=count)
    marked = built(stream(**every, ce_every=5, ce_run=2), count=count)

    for number, (before, after) in enumerate(zip(plain, marked, strict=True)):
        ip = Packet.parse(after).route.ip
        assert ip.ecn == (3 if number % 5 >= 3 else 2)
        changed = {
            at for at, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1
        }
        assert changed <= ({15, 24, 25} if ":" not in addresses["src"] else {15})
        if isinstance(ip, IPv4):
            assert internet_checksum(ip.pack()) == 0


def test_identifications_start_again_behind_the_largest() -> None:
    frames = built(stream(size=0, count_ip_id=True), count=(1 << 16) + 2, size=4096)

    packets = [Packet.parse(frame) for frame in frames[-3:]]
    assert [int.from_bytes(frame[18:20]) for frame in frames[-3:]] == [0xFFFF, 0, 1]
    assert {packet.icrc_status() for packet in packets} == {CrcStatus.GOOD}
    assert {internet_checksum(frame[14:34]) for frame in frames} == {0}


def test_chance_marks_about_as_many_packets_as_it_says() -> None:
    packets = [Packet.parse(frame) for frame in built(stream(ce=0.1, size=0), count=5000)]

    marked = sum(packet.route.ip.ecn == 3 for packet in packets)
    # Five standard deviations of a binomial distribution are 106.
    assert abs(marked - 500) < 106
    assert not any(ip_of(frame).ecn == 3 for frame in built(stream(ce=0.0)))
    assert all(ip_of(frame).ecn == 3 for frame in built(stream(ce=1.0)))


def ip_of(frame: bytes) -> IPv4 | IPv6:
    route = Packet.parse(frame).route
    assert isinstance(route, RoCEv2Route)
    return route.ip


def test_templates_and_their_tables_give_the_packets_of_the_builder() -> None:
    made = Builder([stream(size=2500, psn=0xFFFF00), stream(0x12, verb=Verb.READ, size=4000)])
    templates = made.templates()

    assert templates is not None
    for number, frame in enumerate(frames_of(made.blocks(64), 700)):
        template = templates[number % len(templates)]
        cycle = number // len(templates)
        at = template.psn_at
        old = int.from_bytes(template.frame[at : at + 3])
        new = (old + cycle * template.psn_step) % 2**24
        icrc = int.from_bytes(template.frame[template.icrc_at :], "little")
        for table, octet in zip(template.tables, (old ^ new).to_bytes(3), strict=True):
            icrc ^= int(table[octet])
        made_so = bytearray(template.frame)
        made_so[at : at + 3] = new.to_bytes(3)
        made_so[template.icrc_at :] = icrc.to_bytes(4, "little")
        assert bytes(made_so) == frame


@each_case(
    "more",
    [
        {"ack_every": 3},
        {"va_step": 64, "va_window": 4096},
        {"payload": Payload.COUNTER},
        {"payload": Payload.RANDOM},
        {"ce": 0.5},
        {"ce_every": 5},
        {"count_ip_id": True},
        {"verb": Verb.ACK},
    ],
    ids=str,
)
def test_there_are_no_templates_when_more_changes_than_the_psn(more: dict[str, Any]) -> None:
    assert Builder([stream(**more)]).templates() is None
