"""How much work a scenario is, as far as is known before it runs."""

from __future__ import annotations

from ibwire.scenario.specs import Scenario, WorkloadSpec

PACKETS_PER_SECOND = 40_000
"""What one processor simulates, in order of magnitude: WRITEs of 8 KiB in `ibwire run`."""

LONG = 60
"""Seconds from which on a run is announced to take long."""


def announcement(scenario: Scenario) -> str | None:
    """A sentence about a run that takes long, or that `max_frames` ends early."""
    messages = sum(_messages(scenario, each) for each in scenario.workloads)
    packets = sum(_packets(scenario, each) for each in scenario.workloads)
    seconds = packets / PACKETS_PER_SECOND
    if packets <= scenario.max_frames and seconds < LONG:
        return None
    work = f"{messages:,} messages are at least {packets:,} packets, about {_duration(seconds)}"
    if packets > scenario.max_frames:
        return f"{work}; the run ends after max_frames = {scenario.max_frames:,} or the limit"
    return f"{work}; it ends earlier with a lower count, limit or max_frames"


def _messages(scenario: Scenario, workload: WorkloadSpec) -> int:
    pairs = sum(each.count for each in scenario.connections if each.name == workload.connection)
    return workload.traffic.count * pairs


def _packets(scenario: Scenario, workload: WorkloadSpec) -> int:
    """Request or response packets, as if each message had the mean size."""
    sizes = workload.traffic.sizes.values
    mean = sum(sizes) // len(sizes)
    mtu = next(each.mtu for each in scenario.connections if each.name == workload.connection)
    return _messages(scenario, workload) * max(1, -(-mean // mtu))


def _duration(seconds: float) -> str:
    for size, name in _UNITS:
        if seconds >= size:
            count = round(seconds / size)
            return f"{count:,} {name}{'' if count == 1 else 's'}"
    return "a second"


_UNITS = ((365 * 86400, "year"), (86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
