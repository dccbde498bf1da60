"""Runs random lossy schedules between two emulated devices for as long as asked, under every law.

    PYTHONPATH=tests python tests/soak.py --seconds 3600

Each schedule has other requests, profiles, PSNs and faults of the wire. Prints the schedules and
frames so far with the memory of the process, and at the end the slope of that memory. Exit
status 1 when a law does not hold (Hypothesis prints the smallest schedule that it found), or when
memory grows by more than `--slope` bytes a schedule.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time

import numpy as np
from hypothesis import HealthCheck, given, seed, settings

from laws_wire import check
from random_schedules import schedules
from schedules import Schedule

BATCH = 200
"""Schedules between two looks at memory."""

ENOUGH = 40
"""Batches from which on the slope of the second half is judged: the first half fills caches."""


def main() -> int:
    """Run batches until time is up."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slope", type=float, default=1000, help="bytes a schedule (1000)")
    given_ = parser.parse_args()
    end = time.monotonic() + given_.seconds
    frames = batches = 0
    memory: list[int] = []
    while time.monotonic() < end:
        frames += batch(given_.seed + batches)
        batches += 1
        memory.append(resident())
        text = f"{batches * BATCH} schedules, {frames} frames, {memory[-1] / 1e6:.1f} MB"
        print(f"\r{text}", end="", flush=True)
    if len(memory) < ENOUGH:
        print(f"\nno law broken; memory is judged from {ENOUGH * BATCH} schedules on")
        return 0
    slope = slope_of(memory)
    print(f"\nno law broken; memory grows by {slope:.0f} bytes a schedule")
    return int(slope > given_.slope)


def batch(number: int) -> int:
    """Frames sent in the schedules with this seed; raises what a law raises."""
    frames = 0

    @seed(number)
    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(schedules(most_faults=12))
    def run(schedule: Schedule) -> None:
        nonlocal frames
        frames += sum(event.kind == "sent" for event in check(schedule).history)

    run()
    gc.collect()
    return frames


def resident() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope_of(memory: list[int]) -> float:
    """Bytes a schedule, fitted over the second half of the batches."""
    used = memory[len(memory) // 2 :]
    return float(np.polyfit(np.arange(len(used)) * BATCH, used, 1)[0])


if __name__ == "__main__":
    sys.exit(main())
