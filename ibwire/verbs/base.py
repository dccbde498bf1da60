"""Base classes of the verbs interface: a logger, `close`, and children that close with a parent.

A parent holds weak references to its children. Closing it closes them first, and users before
the objects that they use; dropping the last reference to an object closes it too.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from threading import RLock
from types import TracebackType
from typing import ClassVar, NoReturn, Self

from ibwire.base.errors import VerbsError
from ibwire.verbs.pyverbs_error import PyverbsError, PyverbsRDMAError


def inc_rkey(rkey: int) -> int:
    """The next key of a type 2 window: the low byte incremented (`ibv_inc_rkey`)."""
    return rkey & 0xFFFFFF00 | (rkey + 1) & 0xFF


def PyverbsRDMAErrno(msg: str) -> PyverbsRDMAError:
    """A `PyverbsRDMAError` without an errno: the emulation has no global errno."""
    return PyverbsRDMAError(msg)


class pyverbs_errors:
    """Raises pyverbs errors in place of a device's, with the failed operation as the message.

    A context manager; lock: held inside. A class, as a generator for each verb takes longer than
    some verbs.
    """

    __slots__ = ("_lock", "_message")

    def __init__(self, msg: str, lock: RLock | None = None) -> None:
        self._message = msg
        self._lock = lock

    def __enter__(self) -> None:
        if self._lock is not None:
            self._lock.acquire()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.release()
        if isinstance(exc_value, VerbsError) and not isinstance(exc_value, PyverbsError):
            raise_pyverbs_error(self._message, exc_value)


def raise_pyverbs_error(msg: str, error: VerbsError) -> NoReturn:
    """Raise the pyverbs error in place of a device's, with the failed operation as the message."""
    if isinstance(error, PyverbsError):
        raise error
    raise PyverbsRDMAError(f"{msg}: {error.reason}", error.errno) from error


class PyverbsObject:
    """Base of every object of the verbs interface."""

    @property
    def logger(self) -> logging.Logger:
        """One logger per class."""
        return logging.getLogger(type(self).__name__)

    def set_log_level(self, val: int | str) -> None:
        """Set the level of the class's logger."""
        self.logger.setLevel(val)


class PyverbsCM(PyverbsObject):
    """A context manager: leaving it closes the object. `close` may be called any number of times.

    closing_rank: among the children of one parent lower ranks close first.
    """

    closing_rank: ClassVar[int] = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: not every object holds a resource of a device."""


class PyverbsResource(PyverbsCM):
    """An object that holds a resource of a device: dropping the last reference closes it.

    Work requests and their elements hold none; they are many, and a finaliser would cost each a
    call.
    """

    def __del__(self) -> None:
        # The garbage collector finalises a reference cycle in any order, parents before
        # children too; then the parent is busy and is closed with its last child.
        with suppress(PyverbsError):
            self.close()


class Children:
    """The open children of a parent, in creation order."""

    __slots__ = ("_members", "_serials")

    def __init__(self) -> None:
        self._serials = count()
        self._members: weakref.WeakValueDictionary[int, PyverbsCM] = weakref.WeakValueDictionary()

    def add(self, child: PyverbsCM) -> None:
        """Register a child to be closed with the parent."""
        self._members[next(self._serials)] = child

    def remove(self, child: PyverbsCM) -> None:
        """Unregister a child."""
        for serial, member in list(self._members.items()):
            if member is child:
                del self._members[serial]

    def close(self) -> None:
        """Close all children, by rank and newest first."""
        members = sorted(self._members.items(), key=lambda m: (m[1].closing_rank, -m[0]))
        self._members.clear()
        for _, member in members:
            member.close()


def close_weakrefs(iterables: Iterable[Iterable[PyverbsCM] | None]) -> None:
    """Close every member of several collections, emptying the sets among them."""
    for members in iterables:
        if members is None:
            continue
        for member in list(members):
            member.close()
        if isinstance(members, weakref.WeakSet):
            members.clear()


def table(*rows: tuple[str, object], indent: str = "") -> str:
    """Lines of a name and a value, as `str()` of the attribute classes shows them."""
    return "".join(f"{indent}{name:<22}: {value!s}\n" for name, value in rows)
