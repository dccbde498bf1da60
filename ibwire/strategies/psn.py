"""Sequence numbers, mostly where they wrap."""

from __future__ import annotations

from hypothesis import strategies as st

from ibwire_layers import psn


def psns() -> st.SearchStrategy[int]:
    """PSNs, MSNs and SSNs: half of them near 0 or 2^23, where comparisons change."""
    near = st.builds(psn.add, st.sampled_from((0, psn.HALF)), st.integers(-8, 8))
    return near | st.integers(0, psn.MASK)
