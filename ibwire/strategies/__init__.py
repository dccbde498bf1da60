"""Hypothesis strategies for valid packets, work requests and fault plans.

    from ibwire.strategies import frames

    @given(frames())
    def test_parser_reads_any_packet(frame): ...

Hypothesis is an optional dependency: `pip install 'ibwire[pytest]'`. docs/pytest.md shows how to
use the strategies.
"""

try:
    from ibwire.strategies.packets import frames, packets, routes
    from ibwire.strategies.plans import NETWORK_ACTIONS, fault_plans
    from ibwire.strategies.psn import psns
    from ibwire.strategies.requests import Region, recv_requests, work_requests
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    # An ImportError, which `pytest.importorskip` expects.
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
