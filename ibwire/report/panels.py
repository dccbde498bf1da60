"""Panels of a plot, one above the other, with a time axis below them all, for plotly.js."""

from __future__ import annotations

from typing import Any

GAP = 44
"""Pixels between panels: the title of the lower one."""

TOP, BOTTOM = 4, 52
"""Pixels above the first and below the last panel."""

_AXIS = {"exponentformat": "none", "zeroline": False}


class Panels:
    """The panels that are added, from top to bottom."""

    def __init__(self) -> None:
        self._panels: list[tuple[str, int, dict[str, Any]]] = []

    def add(self, title: str, height: int, **options: Any) -> str:
        """A panel of so many pixels; the name of its vertical axis, which has the options."""
        self._panels.append((title, height, options))
        return self._last_axis()

    def layout(self, title: str, span: tuple[float, float]) -> dict[str, Any]:
        """The layout of all of them, with the title and the span of the time axis."""
        total = sum(height + GAP for _, height, _ in self._panels)
        layout: dict[str, Any] = {
            "height": total + TOP + BOTTOM,
            "margin": {"l": 96, "r": 16, "t": TOP, "b": BOTTOM},
            "hovermode": "closest",
            "dragmode": "zoom",
            "annotations": [],
        }
        top = total
        for count, (name, height, options) in enumerate(self._panels, 1):
            top -= GAP
            layout["annotations"].append(_title(name, top / total))
            layout["yaxis" if count == 1 else f"yaxis{count}"] = {
                "domain": [(top - height) / total, top / total],
                "automargin": True,
                **_AXIS,
                **options,
            }
            top -= height
        layout["xaxis"] = {
            "anchor": self._last_axis(),
            "title": {"text": title},
            "range": list(span),
            **_AXIS,
        }
        return layout

    def _last_axis(self) -> str:
        """The name of the vertical axis of the last panel."""
        count = len(self._panels)
        return "y" if count < 2 else f"y{count}"


def _title(text: str, top: float) -> dict[str, Any]:
    return {
        "text": text,
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": top,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "name": "title",
    }
