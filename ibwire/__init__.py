"""ibwire reads, writes, checks and emulates RDMA packets: InfiniBand, RoCEv1 and RoCEv2.

Public packages:

- `ibwire_layers`: header layouts, opcodes, `Packet`, `build`
- `ibwire.capture`: pcap and pcapng files
- `ibwire.dissect`: captures as NumPy columns
- `ibwire.testing`: emulated devices and connections for tests
- `ibwire.verbs`: the emulator with pyverbs' names
- `ibwire.strategies`: Hypothesis strategies for packets, requests and fault plans
- `ibwire.rc`, `ibwire.cm`: the transport and connection management, without I/O
- `ibwire.fabric`, `ibwire.impair`: networks in virtual time and faults on their wires
- `ibwire.scenario`, `ibwire.drill`: scenarios and conformance scripts

The names of `__all__` are the version and the errors, which are all derived from `IbwireError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `__getattr__` imports them, which keeps `import ibwire` fast
    from ibwire.base.errors import (
        CaptureError,
        DecodeError,
        EncodeError,
        IbwireError,
        LinkError,
        ScriptError,
        VerbsError,
    )

__all__ = [
    "CaptureError",
    "DecodeError",
    "EncodeError",
    "IbwireError",
    "LinkError",
    "ScriptError",
    "VerbsError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """The names of `__all__`, loaded on first use."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ibwire")
    if name in __all__:
        from ibwire.base import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
