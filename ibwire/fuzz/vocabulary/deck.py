"""A deck of cards, each a valid exchange in which one field has another value.

Drawing at random leaves some fields untouched for long. From a deck all exchanges come in turn, of
each exchange all fields, and of each field all values, in an order that depends on the seed alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from ibwire.fuzz.case import Value

EPOCH = 2048
"""Cards after which the deck is shuffled anew, so that a late card does not need all before."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a field becomes: its right value with some bits flipped, or a number."""

    number: int
    flips: bool = False

    def of(self, right: Value, symbols: Mapping[str, int]) -> Value:
        """The new value. right: the one that it replaces, whose symbol is kept if it has one."""
        if not self.flips:
            return self.number
        if isinstance(right, int):
            return right ^ self.number
        name, offset = right
        if name not in symbols:  # known only when the packet is sent
            return name, offset + self.number
        known = symbols[name] + offset
        return name, offset + (known ^ self.number) - known


@dataclass(frozen=True, slots=True)
class Card:
    """One case. exchange: its place among those of the deck."""

    exchange: int
    field: str
    change: Change
    turn: int
    """How many cards this exchange had before."""


@dataclass(frozen=True, slots=True)
class Order:
    """Which cards come early; by default the order is random."""

    exchanges: Callable[[Sequence[int]], Sequence[int]] = lambda shuffled: shuffled
    """All exchanges in the order in which they come."""
    is_early: Callable[[int, str], bool] = lambda exchange, name: False
    """Whether a field of an exchange comes before others that were changed as seldom."""


RANDOM = Order()


class Deck:
    """The cards by number, for a seed.

    exchanges: the fields of each. changes: what a field may become. order: what comes first of
    what would come at random.
    """

    def __init__(
        self,
        seed: str,
        exchanges: Sequence[Sequence[str]],
        changes: Callable[[str], Sequence[Change]],
        order: Order = RANDOM,
    ) -> None:
        self._seed = seed
        self._exchanges = exchanges
        self._changes = changes
        self._order = order
        self._epoch = -1
        self._cards: Sequence[Card] = ()

    def card(self, number: int) -> Card:
        """The card with this number, from 0."""
        epoch, place = divmod(number, EPOCH)
        if epoch != self._epoch:
            self._cards = self._shuffled(Random(f"{self._seed}:{epoch}"))
            self._epoch = epoch
        return self._cards[place]

    def _shuffled(self, rng: Random) -> Sequence[Card]:
        exchanges = _endless(rng, range(len(self._exchanges)), self._order.exchanges)
        shares = Counter(name for names in self._exchanges for name in names)
        left: list[list[str]] = [[] for _ in self._exchanges]
        used: Counter[str] = Counter()
        changes: dict[str, Iterator[Change]] = {}
        turns = [0] * len(left)
        cards = []
        for _ in range(EPOCH):
            exchange = next(exchanges)
            names = left[exchange]
            if not names:
                names += rng.sample(self._exchanges[exchange], len(self._exchanges[exchange]))
            name = self._next_of(exchange, names, used, shares)
            names.remove(name)
            used[name] += 1
            if name not in changes:
                changes[name] = _endless(rng, self._changes(name))
            cards.append(Card(exchange, name, next(changes[name]), turns[exchange]))
            turns[exchange] += 1
        return cards

    def _next_of(
        self, exchange: int, names: Sequence[str], used: Counter[str], shares: Counter[str]
    ) -> str:
        """The field that was changed least, for how many exchanges have it."""
        is_early = self._order.is_early
        return min(
            names, key=lambda each: (used[each] / shares[each], not is_early(exchange, each))
        )


Item = TypeVar("Item")


def _endless(
    rng: Random,
    items: Sequence[Item],
    arranged: Callable[[Sequence[Item]], Sequence[Item]] = lambda items: items,
) -> Iterator[Item]:
    """All items in some order, then in another one, and so on."""
    while True:
        yield from arranged(rng.sample(items, len(items)))


def changes_of(width: int) -> Sequence[Change]:
    """What a number of so many bits may become: each bit flipped, the edges of its range."""
    top = (1 << width) - 1
    if width <= NARROW:
        return [Change(bits, flips=True) for bits in range(1, top + 1)]
    bits = range(width) if width <= FEW_BITS else _PLACES
    flips = [Change(1 << bit, flips=True) for bit in bits]
    edges = {0, 1, top, top - 1, top >> 1, (top >> 1) + 1, *(top // part for part in _PARTS)}
    return [*flips, *map(Change, sorted(edges))]


NARROW = 4
"""Up to so many bits all other values are tried."""

FEW_BITS = 32
"""Up to so many bits each is flipped; of wider numbers those of `_PLACES`."""

_PLACES = (0, 1, 2, 3, 8, 12, 31, 32, 47, 63)
_PARTS = (3, 4, 5, 6, 7, 8, 9, 16)
"""Fractions of a range at which the values end that are tried."""
