"""How often the garbage collector of Python looks for objects that refer to each other.

An emulation and an analysis keep many objects, none of them garbage, and frames leave no reference
cycles: at Python's own thresholds the collector looks at them for nothing.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 50_000
"""Objects after which the collector looks at the new ones."""


def set_collector() -> None:
    """Have the collector of this process look less often, and not at what is left at its end."""
    gc.set_threshold(ALLOCATIONS, 20)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


_state = {"are_ignored": False}
"""Whether this module has left objects out. Python would count all of them to say so."""


def ignore_existing_objects() -> None:
    """Have the collector never look at the objects that there are, for the rest of the process."""
    gc.freeze()
    _state["are_ignored"] = True


@contextmanager
def existing_objects_ignored() -> Iterator[None]:
    """Have the collector look at objects only that are made in this block.

    A run makes few that last; those of the network are there before it, and none is garbage.
    Nothing happens where objects are left out already: they would be looked at again afterwards.
    """
    if _state["are_ignored"] or gc.get_freeze_count():
        yield
        return
    ignore_existing_objects()
    try:
        yield
    finally:
        gc.unfreeze()
        _state["are_ignored"] = False


@contextmanager
def no_collections() -> Iterator[None]:
    """Have the collector look at nothing in this block, whose objects last and leave no cycles.

    Those that last longer count as old afterwards, which it looks at seldom. If they counted as
    new, it would look at all of them at once right behind the block.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not _state["are_ignored"] and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
