"""The sets of opcodes as tables: (256,) arrays, by opcode."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ibwire.connections.opcode_sets import (
    ACKNOWLEDGE,
    ANSWERED,
    ENDS,
    FULL,
    PARTS,
    READ,
    RESPONSES,
    STARTS,
    VERB,
)

REFUSES = 0x20
"""From this syndrome on a response is a NAK or an RNR NAK."""


def _table(opcodes: frozenset[int]) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(opcodes)] = True
    return table


IS_RESPONSE, IS_START, IS_END = _table(RESPONSES), _table(STARTS), _table(ENDS)
IS_FULL, IS_READ, IS_ANSWERED = _table(FULL), _table(READ), _table(ANSWERED)
IS_ACKNOWLEDGE, CONTINUES = _table(ACKNOWLEDGE), _table(PARTS - STARTS)
VERBS = sorted(set(VERB.values()))
VERB_OF = np.zeros(256, np.uint8)
for _opcode, _verb in VERB.items():
    VERB_OF[_opcode] = VERBS.index(_verb)
