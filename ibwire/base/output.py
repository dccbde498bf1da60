"""The one way in which commands write files.

A result appears under its name when it is whole: until then it is beside it, in a file whose
name ends in `.ibwire-part`, and an error or an interrupt leaves what was there before. A file
that cannot be replaced, such as the target of a bind mount, is overwritten at the end. What has
to survive the end of the process, such as the packets of a live run, has its name from the
start (`keeps_name`).

No output takes the place of an input: a command enters what it reads and writes in its
`CommandFiles`, and `Output` asks there.

A process holds a lock on its unfinished files and its temporary directories, which ends with
the process however that ends. What is not locked is removed by the next command that
writes to the same place.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, BinaryIO, Self, TextIO

from ibwire.base.errors import OldResultKept, OutputError

FileName = str | os.PathLike[str]

STANDARD_OUTPUT = "-"


class Output:
    """A file that is written; a context manager.

    Leaving the block normally finishes it, an exception discards it; with `keeps_name` the file
    stays, and the exception gets a note that it is incomplete. `-` is standard output. What is
    no regular file, such as a pipe or a device, is written as it is, and so is the file to which
    standard output or standard error is redirected (/dev/stdout): the shell may append to it.

    input_failed: set when the input could not be read to its end. The file then has what could
    be read, and does not take the place of an older one.

    Raises `OutputError` that names the file, from here, from `file` and from `finish`.
    """

    def __init__(self, path: FileName, *, keeps_name: bool = False) -> None:
        self.path = os.fspath(path)
        self.input_failed = False
        self._final = self.path
        self._beside: str | None = None
        """The unfinished file; `None` where the output has its name already."""
        self._owns = self.path != STANDARD_OUTPUT
        self._text: TextIO | None = None
        if not self._owns:
            self.file = standard_output()
            return
        with _failures(self.path):
            current_files().check_output(self.path)
            self.file = self._open(keeps_name=keeps_name)

    @property
    def text(self) -> TextIO:
        """The file for text, in UTF-8; bytes of file names that are not UTF-8 stay."""
        if not self._owns:
            return _standard_text()
        if self._text is None:
            self._text = io.TextIOWrapper(self.file, "utf-8", "surrogateescape")
        return self._text

    def finish(self) -> None:
        """Write what is buffered and give the file its name."""
        try:
            self._flush()
            if self.input_failed and self._beside and os.path.lexists(self._final):
                raise OldResultKept(self.path)
            if self._owns:
                self._close_and_rename()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Leave what was there before; a file that keeps its name stays as far as it came."""
        if not self._owns:
            self._flush()
            return
        with suppress(OSError, OutputError, ValueError):
            self._flush()
        with suppress(OSError, OutputError):
            self.file.close()
        if self._beside is not None:
            _remove(self._beside)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
            return
        self.discard()
        if self._owns and self._beside is None:
            error.add_note(incomplete(self.path))

    def _open(self, *, keeps_name: bool) -> BinaryIO:
        before = _status(self.path)
        if before is not None and stat.S_ISDIR(before.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        is_special = before is not None and not stat.S_ISREG(before.st_mode)
        standard = _standard_descriptor(before)
        if standard is not None:
            descriptor = os.dup(standard)
        elif keeps_name or is_special:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE)
        else:
            descriptor = self._open_beside(before)
        return io.BufferedWriter(_File(descriptor, self.path), _BUFFER)

    def _open_beside(self, before: os.stat_result | None) -> int:
        """A new file in the directory of the result, which it can be renamed in."""
        self._final = os.path.realpath(self.path)
        if before is not None:  # a file that may not be written may not be replaced either
            os.close(os.open(self._final, os.O_WRONLY))
        directory, name = os.path.split(self._final)
        remove_leftovers(directory)
        while True:
            self._beside = os.path.join(directory, _unfinished(name))
            _UNFINISHED[self._beside] = os.getpid()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(self._beside, flags, _MODE)
            if _hold(descriptor, self._beside):
                break
            os.close(descriptor)
            _remove(self._beside)
        if before is not None:
            with suppress(OSError):  # only root may give a file to another user
                os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
        return descriptor

    def _flush(self) -> None:
        if self._text is not None and not self._text.closed:
            self._text.flush()
        if not self.file.closed:
            self.file.flush()

    def _close_and_rename(self) -> None:
        with _failures(self.path):
            if self._beside is None:
                self.file.close()
                return
            locked = os.dup(self.file.fileno())
            try:
                # First: on a network file system, closing reports whether all was written.
                self.file.close()
                try:
                    os.replace(self._beside, self._final)
                except OSError:
                    self._overwrite()
            finally:
                os.close(locked)
            _UNFINISHED.pop(self._beside, None)

    def _overwrite(self) -> None:
        """Copy the whole result over a file that cannot be replaced.

        That is the target of a bind mount, or the file of another user in a sticky directory. If
        the copy fails, the result stays beside the file, under a name that the error has.
        """
        assert self._beside is not None
        try:
            _copy_over(self._beside, self._final)
        except BaseException as error:
            kept = _keep(self._beside, self._final)
            self._beside = None
            if isinstance(error, OSError):
                raise OutputError(self.path, f"{_reason(error)}; the result is in {kept}") from None
            error.add_note(f"{self.path} is incomplete: the result is in {kept}")
            raise
        os.unlink(self._beside)


class CommandFiles:
    """The files that one command reads and writes: none is both, and none is written twice."""

    def __init__(self) -> None:
        self._inputs: dict[object, str] = {}
        self._outputs: dict[object, str] = {}

    def add_input(self, path: FileName) -> None:
        """Enter a file that is read, `-` for standard input.

        Raises `OutputError` if it is an output, also if it is standard output.
        """
        identity = _identity(path, standard=0)
        if identity is None:
            return
        self._inputs[identity] = os.fspath(path)
        if identity in self._outputs:
            raise _refusal(self._outputs[identity], os.fspath(path))
        if identity == _identity(STANDARD_OUTPUT, standard=1):
            raise _refusal("standard output", os.fspath(path))

    def add_output(self, path: FileName) -> None:
        """Enter a file that will be written, `-` for standard output.

        Raises `OutputError` if it is an input or another output.
        """
        path = os.fspath(path)
        self.check_output(path)
        identity = STANDARD_OUTPUT if path == STANDARD_OUTPUT else _identity(path)
        if identity in self._outputs:
            raise OutputError(path, "is named for two outputs: use two files")
        if identity is not None:
            self._outputs[identity] = path

    def check_output(self, path: FileName) -> None:
        """Raise `OutputError` for a path that is an input."""
        path = os.fspath(path)
        other = self._inputs.get(_identity(path, standard=1))
        if other is not None:
            raise _refusal(path, other)


@contextmanager
def command_files() -> Iterator[CommandFiles]:
    """The files of the command that runs in this block."""
    files = CommandFiles()
    token = _FILES.set(files)
    try:
        yield files
    finally:
        _FILES.reset(token)


def current_files() -> CommandFiles:
    """Those of the running command; outside of a command nothing is known of other files."""
    return _FILES.get() or CommandFiles()


def protect(*paths: FileName) -> None:
    """Enter files that the running command reads; see `CommandFiles.add_input`."""
    for path in paths:
        current_files().add_input(path)


def check_writable(path: FileName) -> None:
    """Raise `OutputError` for a file that `Output` could not write; nothing is left of it."""
    if os.fspath(path) == STANDARD_OUTPUT:
        return
    before = _status(os.fspath(path))
    if before is None or stat.S_ISREG(before.st_mode) or stat.S_ISDIR(before.st_mode):
        Output(path).discard()


def incomplete(path: FileName) -> str:
    """The note of an exception that has ended a file which keeps its name."""
    name = "standard output" if path == STANDARD_OUTPUT else os.fspath(path)
    return f"{name} is incomplete: it has what was written so far"


def make_directory(path: FileName, *, parents: bool = True) -> None:
    """Create a directory for outputs, unless it is there; raises `OutputError`."""
    with _failures(os.fspath(path)):
        from pathlib import Path

        Path(path).mkdir(parents=parents, exist_ok=True)


@contextmanager
def results_on_standard_error() -> Iterator[None]:
    """Keep standard output for the data of an `Output`; what is printed goes to standard error."""
    token = _DATA.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _DATA.reset(token)


def standard_output() -> BinaryIO:
    """Standard output for bytes."""
    stream = _standard_text()
    stream.flush()
    return stream.buffer


@contextmanager
def temporary_directory(parent: str | None = None) -> Iterator[str]:
    """A new directory that is removed at the end, or by the next command if the process is killed.

    parent: where; by default the system's place for temporary files. Raises `OutputError`.
    """
    if parent is None:
        import tempfile

        parent = tempfile.gettempdir()
    remove_leftovers(parent)
    with _failures(parent):
        while True:
            path = os.path.join(parent, f"{_PREFIX}{os.urandom(4).hex()}{_DIRECTORY}")
            _UNFINISHED[path] = os.getpid()
            os.mkdir(path, 0o700)
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY)
                if _hold(descriptor, path):
                    break
                os.close(descriptor)
            _remove(path)
    try:
        yield path
    finally:
        _remove(path)
        os.close(descriptor)


def remove_leftovers(directory: str) -> None:
    """Remove unfinished files and directories of processes of this user that are gone."""
    place = os.path.abspath(directory or ".")
    if place in _CLEANED:
        return
    _CLEANED.add(place)
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if _LEFTOVER.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_leftover(entry)


@atexit.register
def remove_unfinished() -> None:
    """Remove what this process has not finished: what an interrupt at a bad moment has left."""
    for path, process in list(_UNFINISHED.items()):
        if process == os.getpid():  # a forked process knows the files of its parent
            _remove(path)


def lock(descriptor: int) -> bool:
    """Lock a file until it is closed everywhere; whether the file system has locks.

    Raises `BlockingIOError` if another process has locked it.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        return False
    return True


class _File(io.FileIO):
    """A file whose errors name it, and are no `OSError` that could be taken for another's."""

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor, "w")
        self._path = path

    def write(self, data: Any, /) -> int:
        with _failures(self._path):
            return super().write(data)


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """Errors of the operating system as `OutputError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise OutputError(path, _reason(error)) from None


def _reason(error: OSError | ValueError) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return f"cannot be written: {reason.lower()}"


def _copy_over(source: str, target: str) -> None:
    """Overwrite a file; where the disk is too small for the new bytes, it keeps the old ones."""
    with open(source, "rb") as new:
        size = os.fstat(new.fileno()).st_size
        with open(_open_target(target), "wb") as old:
            before = os.fstat(old.fileno()).st_size
            try:
                _reserve(old.fileno(), size)
            except OSError:
                old.truncate(before)
                raise
            while part := new.read(_PIECE):
                old.write(part)
            old.truncate(size)


_PIECE = 1 << 20


def _open_target(path: str) -> int:
    try:
        # Without O_CREAT, which Linux refuses for files of other users in sticky directories.
        return os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)


def _reserve(descriptor: int, size: int) -> None:
    """Have the file system keep space for so many bytes, where it can."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise


def _keep(unfinished: str, final: str) -> str:
    """Give a result that could not be copied a name that does not look like a leftover."""
    directory, name = os.path.split(final)
    number = 1
    while os.path.lexists(kept := os.path.join(directory, f"{name[:_LONGEST_KEPT]}.new-{number}")):
        number += 1
    _UNFINISHED.pop(unfinished, None)
    try:
        os.rename(unfinished, kept)
    except OSError:
        return unfinished
    return kept


def _refusal(output: str, source: str) -> OutputError:
    where = "" if source == output else f", {source}"
    return OutputError(output, f"cannot be written: it is also an input{where}")


def _identity(path: FileName, standard: int | None = None) -> object:
    """Identifies a file under all its names; `None` if it is not a regular file.

    standard: the descriptor that `-` stands for.
    """
    try:
        place: FileName | int = path
        if standard is not None and path == STANDARD_OUTPUT:
            place = standard
        status = os.stat(place)
    except ValueError:  # no name that a file could have
        return None
    except OSError:  # no file yet: two ways to one directory are the same
        return None if path == STANDARD_OUTPUT else os.path.realpath(os.fspath(path))
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _standard_descriptor(status: os.stat_result | None) -> int | None:
    """The descriptor, 1 or 2, by which this process writes the file already."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        with suppress(OSError):
            if status is not None and os.path.samestat(status, os.fstat(descriptor)):
                if stream is not None:
                    stream.flush()  # what was printed before comes first
                return descriptor
    return None


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _unfinished(name: str) -> str:
    """A name beside that of a result, not longer than file systems allow."""
    ending = f".{os.urandom(4).hex()}{_PART}"
    kept = os.fsencode(name)[: _LONGEST_NAME - len(ending) - 1]
    return f".{os.fsdecode(kept)}{ending}"


def _hold(descriptor: int, path: str) -> bool:
    """Lock a new file or directory; whether it is ours.

    Until it is locked, another process can take it for a leftover, lock it and remove it.
    """
    try:
        lock(descriptor)
    except BlockingIOError:
        return False
    return os.path.exists(path)


def _remove(path: str) -> None:
    """Remove an unfinished file or a temporary directory."""
    with suppress(OSError):
        if os.path.isdir(path):
            import shutil

            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    _UNFINISHED.pop(path, None)


def _remove_leftover(entry: os.DirEntry[str]) -> None:
    status = entry.stat(follow_symlinks=False)
    is_directory = stat.S_ISDIR(status.st_mode)
    if status.st_uid != os.geteuid() or not (is_directory or stat.S_ISREG(status.st_mode)):
        return
    descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if lock(descriptor):
            if is_directory:
                import shutil

                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)
    finally:
        os.close(descriptor)


def _standard_text() -> TextIO:
    return _DATA.get() or sys.stdout


_FILES: ContextVar[CommandFiles | None] = ContextVar("files", default=None)
_DATA: ContextVar[TextIO | None] = ContextVar("data", default=None)
"""Standard output, while it is kept for data."""

_UNFINISHED: dict[str, int] = {}
"""Files and directories to be removed, with the process that has made them."""

_CLEANED: set[str] = set()
"""Directories in which this process has looked for leftovers."""

_MODE = 0o666
_BUFFER = 256 * 1024
_LONGEST_NAME = 255
"""Bytes of a file name, NAME_MAX of Linux."""

_LONGEST_KEPT = 50
"""Characters of a name that are kept before an ending; each has at most four bytes."""

_PART = ".ibwire-part"
_PREFIX = "ibwire-"
_DIRECTORY = ".ibwire-tmp"
_LEFTOVER = re.compile(
    rf"\..*\.[0-9a-f]{{8}}{re.escape(_PART)}|{_PREFIX}.*{re.escape(_DIRECTORY)}", re.DOTALL
)
