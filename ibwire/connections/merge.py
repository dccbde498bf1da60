"""Several captures as one: each is analysed by itself, and joined to the one before.

Files of one capture point follow each other in time, and an open connection continues
from one to the next. The results are the same in one process, several or a cluster.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from ibwire.base.errors import CaptureError, MissingExtra, WorkError
from ibwire.base.spawning import safe_path
from ibwire.capture import CaptureReader, open_capture
from ibwire.connections.analysis import Analysis
from ibwire.connections.events import Observer
from ibwire.connections.summary import Summary
from ibwire.dissect import Columns


class Part(NamedTuple):
    """What one file holds."""

    path: str
    analysis: Analysis
    damage: str | None
    """Why the file could not be read to its end."""


Task = Callable[[str], Part]
Tell = Callable[[CaptureReader], None]
"""Receives a reader after each of its batches, for progress."""

Work = Callable[[Task, Sequence[str]], Iterable[Part]]
"""Does a task for each of several files, and gives the results in their order."""


def analyse(
    paths: Sequence[str],
    work: Work | None = None,
    *,
    rate_bps: int | None = None,
    tell: Tell | None = None,
    finished: Callable[[str], None] | None = None,
) -> tuple[Summary, list[str]]:
    """The connections of all captures together, and what could not be read of them.

    The files are taken in the order of their first packets. work: where it is done, in
    this process by default; see `processes` and `cluster`. rate_bps: of the link, for the
    times of pause frames. tell: called after each batch that this process reads; finished: with
    each file that has been read.
    """
    is_part = len(paths) > 1
    task = partial(_analyse_one, is_part=is_part, rate_bps=rate_bps)
    if work is None:
        task = partial(task, tell=tell)
    whole: Analysis | None = None
    damage = []
    for part in (work or _here)(task, in_order(paths)):
        if finished is not None:
            finished(part.path)
        if part.damage:
            damage.append(part.damage)
        if whole is None:
            whole = part.analysis
        else:
            whole.merge(part.analysis)
    return (whole or Analysis()).finish(), damage


def _analyse_one(
    path: str, *, is_part: bool, rate_bps: int | None, tell: Tell | None = None
) -> Part:
    analysis = Analysis(is_part=is_part, rate_bps=rate_bps, source=path)
    try:
        feed(analysis, path, tell)
    except CaptureError as error:
        return Part(path, analysis, str(error))
    finally:
        analysis.flush()
    return Part(path, analysis, None)


def follow(path: str, observer: Observer) -> Summary:
    """Analyse one capture; the observer receives its events and messages, or every packet."""
    analysis = Analysis(observer, source=path)
    feed(analysis, path)
    return analysis.finish()


def feed(analysis: Analysis, path: str, tell: Tell | None = None) -> None:
    """Give all of a capture to an analysis. Raises `CaptureError` at damage."""
    with open_capture(path, reuse=True) as capture:
        for batch in capture.batches():
            analysis.take(Columns(batch, capture.path))
            if tell is not None:
                tell(capture)


def in_order(paths: Sequence[str]) -> list[str]:
    """Captures in the order of their first packets; what cannot be read comes first."""
    if len(paths) < 2:
        return list(paths)
    return sorted(paths, key=_first_ns)


def _first_ns(path: str) -> int:
    if path == "-":
        return 0
    try:
        with open_capture(path, chunk_size=1 << 16) as capture:
            for batch in capture.batches():
                if len(batch):
                    return int(batch.time_ns[0])
    except CaptureError:
        pass  # reported when the file is read
    return 0


def _here(task: Task, paths: Sequence[str]) -> Iterator[Part]:
    return map(task, paths)


def processes(count: int) -> Work:
    """Work in this many processes of this machine.

    Raises `WorkError` when one of them is killed. They end with this process, however it ends.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    def work(task: Task, paths: Sequence[str]) -> Iterator[Part]:
        others = set(active_children())
        context = get_context("spawn")
        with safe_path():
            executor = ProcessPoolExecutor(count, context, initializer=_begin_worker)
        with executor as pool:
            try:
                with safe_path():
                    parts = pool.map(task, paths)  # starts them
                yield from parts
            except BrokenProcessPool:
                reason = "a process was killed, perhaps for lack of memory: use fewer --jobs"
                raise WorkError(reason) from None
            except BaseException:
                # Leaving the pool waits for the file that each process is at.
                for process in set(active_children()) - others:
                    process.kill()
                raise

    return work


def _begin_worker() -> None:
    """Leave signals to the process that has started this one, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def cluster(address: str) -> Work:
    """Work in a Ray cluster, one task a file; the files must be readable where it runs.

    address: as `ray.init` takes it; `local` starts a cluster on this machine. Raises `WorkError`
    if there is no cluster at the address.
    """
    require_listener(address)
    try:
        import ray
    except ImportError:
        raise MissingExtra("a cluster", "cluster") from None

    def work(task: Task, paths: Sequence[str]) -> Iterator[Part]:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
            raise WorkError(f"no Ray cluster at {address}: {error}") from None
        try:
            # Pickled here, because arrays that Ray hands out by itself cannot be written to.
            remote: Any = ray.remote(lambda path: pickle.dumps(task(path)))
            for pending in [remote.remote(path) for path in paths]:
                yield pickle.loads(ray.get(pending))
        finally:
            ray.shutdown()

    return work


def require_listener(address: str, seconds: float = 10) -> None:
    """Raise `WorkError` if nobody listens at HOST:PORT: Ray itself waits much longer."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isascii() or not port.isdecimal():
        return  # `auto`, `local` and other words of Ray
    if not 0 < int(port) < 1 << 16:
        raise WorkError(f"{address}: {port} is not a port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise WorkError(f"no Ray cluster at {address}: {reason}") from None
