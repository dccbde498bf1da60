"""Pauses of the link on the page: beside the plots, and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ibwire.connections.pause import WHOLE_PORT, Lane, Pauses
from ibwire.report.figures import Pause
from ibwire.report.page_survey import Surveyed

MOST_ROWS = 300
"""Rows of the table of pauses."""

MOST_LANES = 8
"""Most pausing senders and priorities in figures, longest pauses first."""


_PORT = "whole port"


_SHORT = {f"priority {number}": f"PFC {number}" for number in range(WHOLE_PORT)} | {
    _PORT: "PAUSE",
}
"""Name of a lane beside a plot."""


def _lanes(pauses: Pauses) -> Iterator[tuple[str, str, Lane]]:
    """Sender, priority in words, and pauses, longest first."""
    lanes = [
        (mac.to_bytes(8).hex(":")[6:], priority, lane)
        for mac, sender in pauses.senders.items()
        for priority, lane in sender.lanes.items()
    ]
    for mac, priority, lane in sorted(lanes, key=lambda each: (-each[2].paused_ns, each[:2])):
        yield mac, _PORT if priority == WHOLE_PORT else f"priority {priority}", lane


def pauses_of(pauses: Pauses) -> list[Pause]:
    """The pauses that are drawn beside the plots of connections."""
    lanes = [lane for lane in _lanes(pauses) if lane[2].paused_ns][:MOST_LANES]
    return [
        Pause(f"{_SHORT.get(what, what)} …{mac[-8:]}", f"{what} held by {mac}", lane.longest)
        for mac, what, lane in lanes
    ]


def pause_rows(surveyed: Surveyed) -> dict[str, Any]:
    """The table of pauses, with a remark on its times."""
    pauses = surveyed.pauses
    return {
        "remark": ""
        if pauses.is_exact
        else "The speed of the link is not known, so times are those of a 10 Gb/s link, and upper "
        "bounds for a faster one; --link-rate sets it.",
        "rows": [
            {
                "sender": mac,
                "what": what,
                "frames": lane.frames,
                "pauses": lane.pauses,
                "paused": lane.paused_ns,
                "longest": lane.longest_ns,
                "storms": lane.storms,
                "number": lane.longest[0].number if lane.longest else 0,
            }
            for mac, what, lane in _lanes(pauses)
        ][:MOST_ROWS],
    }
