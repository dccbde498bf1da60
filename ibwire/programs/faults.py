"""A fault plan for the frames of a live device, read from TOML.

    seed = 7

    [[in]]
    loss = 0.01
    [[out]]
    drop = { opcode = "RC_SEND_LAST", nth = 3 }

`in` applies to received frames, `out` to sent ones; the rules are those of `ibwire.impair.plan`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ibwire.base.node import Pipe
from ibwire.base.toml import Document, Table, read_content
from ibwire.impair import PlanError, build_pipe


class Faults(NamedTuple):
    """The stages of both directions; `None` for no faults."""

    inbound: Pipe | None = None
    outbound: Pipe | None = None

    @property
    def hits(self) -> int:
        """Frames that a rule acted on."""
        stages: list[Any] = [stage for pipe in self if pipe for stage in pipe.stages]
        return sum(stage.hits for stage in stages)


def read_faults(path: str) -> Faults:
    """Read a plan; a `ScriptError` gives the place of a mistake."""
    top = Document(read_content(Path(path)), path).top
    seed = top.take_int("seed", 1, 0, (1 << 63) - 1)
    faults = Faults(_pipe(top, "in", seed), _pipe(top, "out", seed))
    top.end()
    return faults


def _pipe(top: Table, direction: str, seed: int) -> Pipe | None:
    rules = top.take(direction)
    if rules is None:
        return None
    rules = [rules] if isinstance(rules, dict) else rules
    try:
        return build_pipe(rules, seed=seed, name=direction, path=(direction,))
    except PlanError as error:
        raise top.error_at(error.key_path, error.reason, at_key=error.at_key) from None
