"""The process that plays a fabric for opensm beside ibsim: CPU time of a sweep, and memory.

    python tests/bench/fabric_server.py [--nodes N ...] [--rounds N] [--port umad|ibsim]

Each round runs `ibwire fabric run` and the real ibsim in turns, with the same topology and the same
opensm (`opensm -o`), which reaches ibwire through its own preload library, or with `--port ibsim`
through Debian's libumad2sim as it reaches ibsim. CPU time is that of the process that plays the
fabric, while opensm runs, as the system counts it: user and kernel. Needs opensm and ibsim-utils.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ibwire.fabric.infiniband.netfile import write_topology
from ibwire.fabric.infiniband.shipped import find_topology

KEYS = {
    351: "fattree:ports=36,leaves=18",
    1476: "fattree:ports=36,levels=3,pods=4",
    6642: "fattree:ports=36,levels=3,pods=18",
    13284: "fattree:ports=36,levels=3",
}
"""Topologies by their number of nodes."""
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
IBWIRE = [sys.executable, "-P", "-m", "ibwire", "fabric"]
IBSIM_CAPACITY = ("-N", "20000", "-S", "5000", "-P", "200000", "-L", "49152")
OPENSM = ("opensm", "-o", "-t", "20000")
"""The long timeout keeps a busy machine from adding retransmitted requests."""


@dataclass(frozen=True)
class Sweep:
    """What a sweep of opensm cost the process that plays the fabric."""

    requests: int
    """MADs that opensm has sent; 0 if unknown."""
    load: float
    """CPU seconds before the first MAD."""
    cpu: float
    """CPU seconds of the sweep."""
    memory: int
    """Largest resident memory, in bytes."""


def measure_ibwire(key: str, folder: Path, port: str) -> Sweep:
    """A sweep over `ibwire fabric run`."""
    folder.mkdir(mode=0o700)
    name = f"bench-{os.getpid()}"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PATH": PATH}
    served = ["--ibsim", name] if port == "ibsim" else []
    process = subprocess.Popen(
        [*IBWIRE, "run", key, *served],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "--" in line:
                break
        host = line.split()[3]
        before = _cpu_of(process.pid)
        sweep = [*IBWIRE, "exec", host, "--", *OPENSM]
        if port == "ibsim":
            sweep = ["ibsim-run", *OPENSM]
            environment |= {"IBSIM_SOCKNAME": name, "SIM_HOST": host}
        _sweep(sweep, environment, folder)
        used = _cpu_of(process.pid) - before
        memory = _memory_of(process.pid)
        shown = subprocess.run(
            [*IBWIRE, "counters", host, "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        requests = int(shown.split('"port_xmit_pkts": ')[1].split(",")[0])
        return Sweep(requests, before, used, memory)
    finally:
        process.terminate()
        process.communicate()


def measure_ibsim(key: str, folder: Path) -> Sweep:
    """The same over ibsim."""
    folder.mkdir(mode=0o700)
    name = f"bench-{os.getpid()}"
    subnet = find_topology(key)
    host = next(node.name for node in subnet.nodes.values() if not node.is_switch)
    net = folder / "net"
    net.write_text(write_topology(subnet))
    environment = {**os.environ, "IBSIM_SOCKNAME": name, "SIM_HOST": host, "PATH": PATH}
    with (folder / "printed").open("w") as printed:
        process = subprocess.Popen(
            ["ibsim", "-s", *IBSIM_CAPACITY, str(net)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=printed,
        )
    try:
        while "sim>" not in (folder / "printed").read_text():
            if process.poll() is not None:
                raise SystemExit((folder / "printed").read_text())
            time.sleep(0.1)
        before = _cpu_of(process.pid)
        _sweep(["ibsim-run", *OPENSM], environment, folder)
        return Sweep(0, before, _cpu_of(process.pid) - before, _memory_of(process.pid))
    finally:
        process.terminate()
        process.communicate()


def _sweep(command: list[str], environment: dict[str, str], folder: Path) -> None:
    """Let opensm bring the subnet up once."""
    log = folder / "log"
    subprocess.run(
        [*command, "-f", str(log)],
        env=environment | {"OSM_TMP_DIR": str(folder), "OSM_CACHE_DIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if "SUBNET UP" not in log.read_text():
        raise SystemExit(f"opensm has not brought the subnet up: {log.read_text()[-2000:]}")


def _cpu_of(process: int) -> float:
    """CPU seconds of a process with one thread."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def _memory_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", choices=KEYS, default=[351, 1476])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", choices=("umad", "ibsim"), default="umad")
    options = parser.parse_args()
    for program in ("opensm", "ibsim", "ibsim-run"):
        if shutil.which(program, path=PATH) is None:
            raise SystemExit(f"{program} is not installed: apt install opensm ibsim-utils")
    print(
        f"{'nodes':>6}{'MADs':>10}{'load, s':>9}{'sweep, s':>10}{'us a MAD':>10}"
        f"{'ibsim, s':>10}{'us a MAD':>10}{'ratio':>7}{'MB':>6}{'ibsim, MB':>11}"
    )
    for nodes in options.nodes:
        own: list[Sweep] = []
        other: list[Sweep] = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as place:
                own.append(measure_ibwire(KEYS[nodes], Path(place) / "r", options.port))
                other.append(measure_ibsim(KEYS[nodes], Path(place) / "s"))
        _print(nodes, own, other)


def _print(nodes: int, own: list[Sweep], other: list[Sweep]) -> None:
    requests = own[0].requests
    ours, theirs = (statistics.median(each.cpu for each in runs) for runs in (own, other))
    load = statistics.median(each.load for each in own)
    memory, reference = (max(each.memory for each in runs) / 1e6 for runs in (own, other))
    print(
        f"{nodes:>6}{requests:>10}{load:>9.2f}{ours:>10.3f}{1e6 * ours / requests:>10.1f}"
        f"{theirs:>10.3f}{1e6 * theirs / requests:>10.1f}{ours / theirs:>7.2f}"
        f"{memory:>6.0f}{reference:>11.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
