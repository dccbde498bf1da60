"""Whether scripts may fork, with pyverbs' names: the memory of a script here is its own."""

from __future__ import annotations

from ibwire.verbs.libibverbs_enums import ibv_fork_status


def fork_init() -> None:
    """Prepare for forking, for which nothing is needed."""


def is_fork_initialized() -> ibv_fork_status:
    """That nothing is needed."""
    return ibv_fork_status.IBV_FORK_UNNEEDED
