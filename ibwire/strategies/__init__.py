"""Hypothesis strategies: packets, work requests and fault plans that are right.

    from ibwire.strategies import frames

    @given(frames())
    def test_parser_reads_any_packet(frame): ...

Hypothesis is no dependency of ibwire: `pip install 'ibwire[pytest]'` brings it.
docs/pytest.md shows what the strategies are for.
"""

try:
    from ibwire.strategies.packets import frames, packets, routes
    from ibwire.strategies.plans import NETWORK_ACTIONS, fault_plans
    from ibwire.strategies.psn import psns
    from ibwire.strategies.requests import Region, recv_requests, work_requests
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    # An ImportError, which is what `pytest.importorskip` waits for.
    raise ImportError("ibwire.strategies needs Hypothesis: pip install 'ibwire[pytest]'") from None

__all__ = [
    "NETWORK_ACTIONS",
    "Region",
    "fault_plans",
    "frames",
    "packets",
    "psns",
    "recv_requests",
    "routes",
    "work_requests",
]
