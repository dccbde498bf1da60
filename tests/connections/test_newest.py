"""The newest packets by PSN are those that a plain dictionary would keep."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ibwire.connections.newest import NewestPackets
from ibwire.connections.packets import ROW, Rows

MOST = 8

puts = st.tuples(st.just("put"), st.integers(0, 30))
first_puts = st.tuples(st.just("put_first"), st.integers(0, 30))
runs = st.tuples(st.just("put_many"), st.integers(1, 12))
looks = st.tuples(st.just("get"), st.integers(-40, 2))
steps = st.lists(st.one_of(puts, first_puts, runs, looks, st.just(("all", 0))), max_size=120)


def _rows(first: int, count: int) -> Rows:
    data = np.zeros(count, ROW)
    data["number"] = np.arange(first, first + count)
    return Rows(data)


@given(steps=steps)
def test_the_newest_of_each_psn_are_kept(steps: list[tuple[str, int]]) -> None:
    """Runs have new PSNs, as regular requests have; single packets may have PSNs before them."""
    packets, kept = NewestPackets(MOST), dict[int, int]()
    number, following = 1, 100

    def keep(psn: int) -> None:
        kept.pop(psn, None)
        kept[psn] = number
        if len(kept) > MOST:
            del kept[next(iter(kept))]

    for step, value in steps:
        psn = following - value
        if step == "put_many":
            packets.put_many(
                np.arange(following, following + value), _rows(number, value), np.arange(value)
            )
            for _ in range(value):
                keep(following)
                number, following = number + 1, following + 1
        elif step == "all":
            found = {psn: packet.number for psn, packet in packets.all().items()}
            assert list(found.items()) == list(kept.items())
        elif step == "get":
            packet = packets.get(following + value)
            assert (packet and packet.number) == kept.get(following + value)
        else:
            [packet] = _rows(number, 1).packets()
            getattr(packets, step)(psn, packet)
            if step == "put" or psn not in kept:
                keep(psn)
            number, following = number + 1, max(following, psn + 1)

    assert {psn: packet.number for psn, packet in packets.all().items()} == kept


def test_psns_may_begin_again_from_0() -> None:
    packets = NewestPackets(MOST)

    packets.put_many(np.array([0xFFFFFE, 0xFFFFFF, 0, 1]), _rows(1, 4), np.arange(4))

    found = [packets.get(psn) for psn in (0xFFFFFE, 0xFFFFFF, 0, 1, 2)]
    assert [packet and packet.number for packet in found] == [1, 2, 3, 4, None]
