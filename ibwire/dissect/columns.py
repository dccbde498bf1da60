"""Fields of many packets as columns, computed on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.capture import RecordBatch
from ibwire.dissect.column import Column
from ibwire.dissect.fields import FIELDS, spec_of
from ibwire.dissect.frames import Frames


class Columns(Mapping[str, npt.NDArray[Any]]):
    """The packets of one chunk of a capture: field name -> array, all of length n.

    A packet without the field has zero there; `valid` distinguishes the two.
    `ibwire.dissect.fields.FIELDS[name].type` describes the values of a field:
    numbers are unsigned, words are indices into `type.words`, IPv6 addresses are
    rows of 16 bytes. Names may carry Wireshark's `infiniband.` prefix; an unknown
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

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.column(name).values

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)
