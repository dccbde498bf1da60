"""Fork support with pyverbs' names: emulated memory needs no preparation."""

from __future__ import annotations

from ibwire.verbs.libibverbs_enums import ibv_fork_status


def fork_init() -> None:
    """Prepare for forking: nothing to do."""


def is_fork_initialized() -> ibv_fork_status:
    """Always IBV_FORK_UNNEEDED."""
    return ibv_fork_status.IBV_FORK_UNNEEDED
