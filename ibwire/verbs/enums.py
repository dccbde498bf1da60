"""The enumerations of libibverbs under the name that older pyverbs scripts import.

`pyverbs.enums` has the names of `pyverbs.libibverbs_enums`.
"""

from __future__ import annotations

from ibwire.verbs import libibverbs_enums

globals().update(
    {
        name: value
        for name, value in vars(libibverbs_enums).items()
        if name.lower().startswith(("ibv_", "_ibv_"))
    }
)
