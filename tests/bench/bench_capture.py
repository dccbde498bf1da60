"""CPU time of reading captures: `python tests/bench/bench_capture.py [FILE ...]`.

Without files, 200,000 packets of mixed sizes (210 MB) are written in each format
first. `read` is the time of only reading the same bytes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ibwire.capture import Record, open_capture, write_capture

SIZES = [1098] * 6 + [62, 1082, 78, 4178, 330, 90]
FORMATS = ("pcap", "pcapng", "pcap.gz", "pcap.zst")


def packets(count: int) -> Iterator[Record]:
    """Packets of an imagined RoCEv2 transfer; the bytes hardly compress."""
    rng = random.Random(1)
    body = rng.randbytes(2**20)
    now = 1_700_000_000_000_000_000
    for number in range(1, count + 1):
        size = rng.choice(SIZES)
        start = rng.randrange(len(body) - size)
        now += rng.randrange(100, 3000)
        yield Record(number, now, body[start : start + size], size, 1)


def cpu_seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """The least CPU time of a few rounds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def count_records(path: Path) -> int:
    """Walk over all batches."""
    with open_capture(path) as reader:
        return sum(len(batch) for batch in reader.batches())


def read_only(path: Path) -> None:
    """Read the file and do nothing."""
    buffer = bytearray(4 * 2**20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def main(paths: list[Path]) -> None:
    """Print one line a file."""
    print(f"{'file':<24} {'records':>9} {'cpu s':>7} {'read s':>7} {'us/record':>9}")
    for path in paths:
        count = count_records(path)
        seconds = cpu_seconds(lambda p=path: count_records(p))
        read = cpu_seconds(lambda p=path: read_only(p))
        each = seconds / max(count, 1) * 1e6
        print(f"{path.name:<24} {count:>9} {seconds:>7.3f} {read:>7.3f} {each:>9.3f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main([Path(argument) for argument in sys.argv[1:]])
    else:
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"mixed.{suffix}" for suffix in FORMATS]
            for file in files:
                write_capture(file, packets(200_000))
            main(files)
