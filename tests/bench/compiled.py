"""Makes build/compiled: ibwire with its hottest modules compiled by mypyc.

    make compiled
    PYTHONPATH=build/compiled:build/compiled/layers .venv/bin/python tests/bench/fabric.py

It needs a C compiler. The copy behaves as the original; only classes of the compiled modules
cannot be subclassed or patched by others. Linking one C file of some 30 modules takes minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from mypyc.build import mypycify
from setuptools import setup

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "build" / "compiled"

MODULES = [
    "base/run.py",
    "base/unbuilt.py",
    "base/telemetry.py",
    "fabric/flights.py",
    "fabric/line.py",
    "fabric/sim.py",
    "fabric/pause.py",
    "fabric/switch/buffer.py",
    "fabric/switch/classes.py",
    "fabric/switch/marking.py",
    "fabric/switch/port.py",
    "fabric/switch/routing.py",
    "fabric/switch/scheduling.py",
    "fabric/switch/switch.py",
    "rc/packet.py",
    "rc/path.py",
    "rc/device.py",
    "rc/qp.py",
    "rc/run.py",
    "rc/requester.py",
    "rc/responder.py",
    "rc/completer.py",
    "rc/send_queue.py",
    "rc/send_state.py",
    "rc/receive.py",
    "rc/replies.py",
    "rc/early.py",
    "rc/credits.py",
    "rc/sge.py",
    "rc/sizes.py",
    "rc/timers.py",
    "rc/cq.py",
    "rc/counters.py",
    "rc/memory.py",
    "rc/habits/__init__.py",
    "rc/habits/rdmavt.py",
    "rc/habits/rxe.py",
    "rc/habits/selective.py",
    "rc/habits/spec.py",
    "rc/congestion/feedback.py",
    "rc/congestion/dcqcn.py",
    "rc/congestion/notification.py",
    "capture/pcap.py",
    "capture/tap.py",
    "peer/host.py",
]

shutil.rmtree(TARGET, ignore_errors=True)
for name in ("ibwire", "layers"):
    shutil.copytree(ROOT / name, TARGET / name, ignore=shutil.ignore_patterns("__pycache__"))
os.chdir(TARGET)
os.environ["MYPYPATH"] = "layers"
sys.argv = [sys.argv[0], "build_ext", "--inplace"]
options = ["--explicit-package-bases", "--config-file=", "--ignore-missing-imports"]
setup(
    name="compiled",
    packages=[],
    ext_modules=mypycify(
        [*options, *(f"ibwire/{each}" for each in MODULES)], opt_level="2", debug_level="0"
    ),
)
