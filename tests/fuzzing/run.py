"""Fuzzes readers of foreign bytes, guided by the branches that they take (atheris, libFuzzer).

    pip install atheris
    PYTHONPATH=tests python tests/fuzzing/run.py all --seconds 60
    PYTHONPATH=tests python tests/fuzzing/run.py packet --seconds 3600 --corpus corpus/packet

An input that ends a target with an exception is kept as `crash-*` and the exit status is not 0.
`run.py TARGET FILE` tries one again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ibwire", "ibwire_layers"]):
    from fuzzing.targets import TARGETS

MAXIMUM_LENGTH = 1 << 16
"""Bytes of an input."""

MEMORY_MB = 2048
"""What a target may hold: more is a bug, as is an input that takes longer than SLOWEST."""

SLOWEST = 20
"""Seconds."""


def fuzz(name: str, corpus: Path, *, seconds: int, seed: int) -> None:
    """Run one target in this process; libFuzzer ends the process."""
    target = TARGETS[name]
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={MAXIMUM_LENGTH}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-timeout={SLOWEST}",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], str(corpus), *options], target.run)
    atheris.Fuzz()


def main() -> int:
    """One target, or each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=["all", *TARGETS])
    parser.add_argument("file", nargs="?", type=Path, help="an input to try once")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the mutations; 0 takes another each time"
    )
    parser.add_argument("--corpus", type=Path, help="a directory that keeps inputs between runs")
    given = parser.parse_args()
    if given.file is not None:
        TARGETS[given.target].run(given.file.read_bytes())
        return 0
    if given.target != "all":
        with tempfile.TemporaryDirectory() as directory:
            corpus = given.corpus or Path(directory)
            corpus.mkdir(parents=True, exist_ok=True)
            fuzz(given.target, corpus, seconds=given.seconds, seed=given.seed)
    failed = []
    for name in TARGETS:
        print(f"--- {name}", flush=True)
        options = ["--seconds", str(given.seconds), "--seed", str(given.seed)]
        command = [sys.executable, __file__, name, *options]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "no target failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
