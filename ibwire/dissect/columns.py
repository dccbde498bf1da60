"""Fields of many packets as columns, computed on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.base.errors import MissingExtra
from ibwire.capture import RecordBatch
from ibwire.dissect.column import Column
from ibwire.dissect.fields import FIELDS, spec_of
from ibwire.dissect.frames import Frames
from ibwire.dissect.lines import python_values


class Columns(Mapping[str, npt.NDArray[Any]]):
    """The packets of one chunk of a capture: field name -> array, all of length n.

    A packet without the field has zero there; `valid` distinguishes the two.
    `ibwire.dissect.fields.FIELDS[name].type` describes the values of a field:
    numbers are unsigned, words are indices into `type.words`, IPv6 addresses are
    rows of 16 bytes; `to_list`, `to_arrow` and `to_pandas` give them as people
    write them. Names may carry Wireshark's `infiniband.` prefix; an unknown
    one raises `KeyError`.
    """

    def __init__(self, batch: RecordBatch, source: str = "") -> None:
        self.frames = Frames(batch, source)
        self._computed: dict[str, Column] = {}

    def column(self, name: str) -> Column:
        """Values of a field, and which packets have it."""
        spec = spec_of(name)
        if spec.name not in self._computed:
            self._computed[spec.name] = spec.read(self.frames)
        return self._computed[spec.name]

    def valid(self, name: str) -> npt.NDArray[np.bool_]:
        """(n,) which packets have the field."""
        valid = self.column(name).valid
        return np.ones(self.rows, np.bool_) if valid is None else valid

    @property
    def rows(self) -> int:
        """Packets of the chunk; `len` counts the fields, as of any mapping."""
        return len(self.frames)

    def without(self, rows: npt.NDArray[np.int64]) -> Columns:
        """The same chunk, in which nothing is known of the frames of these rows."""
        self.column("icrc.status")  # which is not to be computed again
        other = copy(self)
        other.frames = self.frames.without(rows)
        other._computed = {}
        return other

    def to_list(self, name: str) -> list[Any]:
        """Values of a field as Python has them, `None` for a packet without it.

        IP addresses are objects of `ipaddress`, MAC addresses and words texts, seconds
        `decimal.Decimal`, octets bytes.
        """
        spec = spec_of(name)
        values = python_values(spec, self[name])
        return [
            value if is_there else None
            for value, is_there in zip(values, self.valid(name).tolist(), strict=True)
        ]

    def to_arrow(self, *names: str) -> Any:
        """A `pyarrow.Table` of these fields, by default of those that a packet here has.

        Addresses and words are texts. Needs the extra `query`.
        """
        from ibwire.dissect.arrow import to_table

        chosen = [spec_of(name) for name in names] or [
            spec for spec in FIELDS.values() if spec.common and self.valid(spec.name).any()
        ]
        return to_table(self, chosen)

    def to_pandas(self, *names: str) -> Any:
        """The table of `to_arrow` as a `pandas.DataFrame`. Needs the extra `pandas`."""
        try:
            import pandas  # noqa: F401 - for an error with the name of the extra
        except ImportError:
            raise MissingExtra("A DataFrame", "pandas") from None
        return self.to_arrow(*names).to_pandas()

    def __repr__(self) -> str:
        first = self.frames.batch.first_number
        which = f"packets {first} to {first + self.rows - 1}" if self.rows else "no packets"
        source = f" of {self.frames.source!r}" if self.frames.source else ""
        return f"<Columns: {which}{source}>"

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.column(name).values

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)
