"""A task for each of many items: in this process, in several, or in a Ray cluster.

The results are the same wherever the work is done.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from ibwire.base.collector import set_collector
from ibwire.base.errors import MissingExtra, WorkError
from ibwire.base.spawning import safe_path

Item = TypeVar("Item")
Result = TypeVar("Result")


class Work(Protocol):
    """Does a task for each item; in another process, both are pickled."""

    def __call__(
        self, task: Callable[[Item], Result], items: Sequence[Item], *, in_order: bool = True
    ) -> Iterable[Result]:
        """The results: in the order of the items, or each as soon as it is there."""
        ...


def one_by_one(
    task: Callable[[Item], Result], items: Sequence[Item], *, in_order: bool = True
) -> Iterator[Result]:
    """Work in this process."""
    return map(task, items)


def processes(count: int) -> Work:
    """Work in this many processes of this machine.

    Raises `WorkError` when one of them is killed. They end with this process, however it ends.
    """
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    def work(
        task: Callable[[Item], Result], items: Sequence[Item], *, in_order: bool = True
    ) -> Iterator[Result]:
        others = set(active_children())
        context = get_context("spawn")
        with safe_path():
            executor = ProcessPoolExecutor(count, context, initializer=_begin_worker)
        with executor as pool:
            try:
                with safe_path():  # the first ones start the processes
                    futures = deque(pool.submit(task, item) for item in items)
                if not in_order:
                    for future in as_completed(futures):
                        yield future.result()
                    return
                while futures:  # a result that was given is not kept
                    yield futures.popleft().result()
            except BrokenProcessPool:
                reason = "a process was killed, perhaps for lack of memory: use fewer --jobs"
                raise WorkError(reason) from None
            except BaseException:
                # Leaving the pool waits for the item that each process is at.
                for process in set(active_children()) - others:
                    process.kill()
                raise

    return work


def _begin_worker() -> None:
    """Leave signals to the process that has started this one, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_collector()
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def cluster_task(task: Callable[[Item], Result], item: Item) -> bytes:
    """The pickled result of a task in a worker of Ray, whose collector is that of the command."""
    set_collector()
    return pickle.dumps(task(item))


def cluster(address: str) -> Work:
    """Work in a Ray cluster, one task an item; the files must be readable where it runs.

    address: as `ray.init` takes it; `local` starts a cluster on this machine. Raises `WorkError`
    if there is no cluster at the address.
    """
    require_listener(address)
    try:
        import ray
    except ImportError:
        raise MissingExtra("a cluster", "cluster") from None

    def work(
        task: Callable[[Item], Result], items: Sequence[Item], *, in_order: bool = True
    ) -> Iterator[Result]:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
            raise WorkError(f"no Ray cluster at {address}: {error}") from None
        try:
            # Pickled here, because arrays that Ray hands out by itself cannot be written to.
            remote: Any = ray.remote(lambda item: cluster_task(task, item))
            pending = [remote.remote(item) for item in items]
            while pending:
                done = pending[:1] if in_order else ray.wait(pending)[0]
                for each in done:
                    pending.remove(each)
                    yield pickle.loads(ray.get(each))
        finally:
            ray.shutdown()

    return work


def require_listener(address: str, seconds: float = 10) -> None:
    """Raise `WorkError` if no process listens at HOST:PORT: Ray itself waits much longer."""
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
