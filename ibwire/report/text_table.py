"""Tables of text whose rows keep their names, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

GAP = "  "


def columns_in_words(
    titles: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], width: int | None
) -> Iterator[str]:
    """The lines of a table: named rows, columns of numbers.

    Columns beyond `width` follow in another table below, which has the names of the rows again.
    A title may have several lines. `None` is no limit, as for a file or a pipe.
    """
    heads = [title.split("\n") for title in titles]
    height = max(map(len, heads), default=1)
    heads = [[""] * (height - len(head)) + head for head in heads]
    label = max((len(name) for name, _ in rows), default=0)
    sizes = [
        max([*map(len, head), *(len(cells[index]) for _, cells in rows)])
        for index, head in enumerate(heads)
    ]
    for number, chosen in enumerate(_groups(sizes, label, width)):
        if number:
            yield ""
        for line in range(height):
            yield _line("", label, [(heads[index][line], sizes[index]) for index in chosen])
        for name, cells in rows:
            yield _line(name, label, [(cells[index], sizes[index]) for index in chosen])


def _line(name: str, label: int, cells: Sequence[tuple[str, int]]) -> str:
    return (name.ljust(label) + "".join(GAP + cell.rjust(size) for cell, size in cells)).rstrip()


def _groups(sizes: Sequence[int], label: int, width: int | None) -> list[list[int]]:
    """Columns that fit beside each other; one that fits nowhere has a table of its own."""
    groups: list[list[int]] = [[]]
    used = label
    for index, size in enumerate(sizes):
        if groups[-1] and width is not None and used + len(GAP) + size > width:
            groups.append([])
            used = label
        groups[-1].append(index)
        used += len(GAP) + size
    return groups
