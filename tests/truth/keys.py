"""The keys of files with truth data: those that a run here follows, compares or leaves aside.

A key that none of the tables has may change what the other simulator did, so it is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

USED, UNUSED = True, False
"""Of a value: whether a run here follows it or compares it."""

ANY = "*"
"""Stands for all keys that a table does not name."""


def _each(use: bool, names: str) -> dict[str, bool]:
    return dict.fromkeys(names.split(), use)


_NOTES = _each(USED, "source wire time note")

_CONFIG = _each(
    USED,
    "cc qcn buf kmin kmax pmax rates g alpha_us dec_us rp_timer fr ai hai minr has_win varwin u "
    "mi_thresh dctcp_ai seed",
)
"""By the names of settings of ns-3 HPCC. `seed` says how the random numbers there began."""

_STATISTICS = {ANY: {"mean": USED, "sd": USED, "n": USED, "min": UNUSED, "max": UNUSED}}

_SIMULATION = _each(USED, "events cpu_s hops")
"""What the other simulator took for a run, which is no figure of the network."""

FILE = _NOTES

SET: Mapping[str, Any] = {
    **_SIMULATION,
    "name": USED,
    "setup": {
        **_each(USED, "topology senders receiver switch links packets_each flows"),
        "config": _CONFIG,
    },
    "stats": _STATISTICS,
    "flows": {
        **_each(USED, "src dst sport pkts start_ns fct_ns cnps decs"),
        **_each(UNUSED, "ideal_ns tx nacks min_rate_gbps"),
    },
    "ports": {
        **_each(USED, "node port maxq pause resume drops marks"),
        "deq": UNUSED,
    },
    "pause_rx": {ANY: {"ns": USED, "count": UNUSED}},
    "end_ns": USED,
    "series": _each(USED, "rate queue_bytes"),
    "pfc_frames_received": USED,
    "victim_gbps_payload_plus_headers": USED,
}

LOSS: Mapping[str, Any] = {
    **_each(USED, "name error packets runs"),
    "hung": UNUSED,
    "stats": _STATISTICS,
}

TAILS: Mapping[str, Any] = {
    **_NOTES,
    **_each(USED, "links switches hosts flows flow_columns workload load"),
    "sets": {
        "name": USED,
        "config": _CONFIG,
        "fct_seed1": UNUSED,
        "runs": {
            **_SIMULATION,
            "seed": USED,
            "slowdown": {"all": {"p50": USED, "p99": USED, ANY: UNUSED}, ANY: UNUSED},
            **_each(UNUSED, "finished end_ns maxq cnps pauses drops"),
        },
    },
}

PATHS: Mapping[str, Any] = {
    **_NOTES,
    **_each(USED, "topology tm matrix"),
    "runs": {
        **_each(USED, "strategy seed fct_us retransmitted_bytes"),
        "finished": UNUSED,
    },
}

HEADROOM: Mapping[str, Any] = {
    **_NOTES,
    "params": _each(USED, "asic cell peer_response_kib mac_phy_kib pipeline_kib tile"),
    "rows": _each(USED, "speed_mbps cable_m size xon xoff"),
}


def unknown(value: Any, known: Any) -> list[str]:
    """The keys of a value that a table does not have, as paths with dots."""
    return sorted({path for path, use in _paths(value, known) if use is None})


def unused(value: Any, known: Any) -> list[str]:
    """The keys of a value that are not compared."""
    return sorted({path for path, use in _paths(value, known) if use is UNUSED})


def _paths(value: Any, known: Any, path: str = "") -> Iterator[tuple[str, bool | None]]:
    if not isinstance(known, Mapping):
        yield path, known
    elif isinstance(value, list):
        for each in value:
            yield from _paths(each, known, path)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key in known:
                yield from _paths(inner, known[key], f"{path}.{key}".lstrip("."))
            elif ANY in known:
                yield from _paths(inner, known[ANY], f"{path}.{ANY}".lstrip("."))
            else:
                yield f"{path}.{key}".lstrip("."), None
    else:
        yield path, USED
