"""Opens files and decompresses them while reading.

Compression is recognised by the first bytes, never by the name, so it works
from a pipe too. Errors while reading are kept as `damage`, not raised: the reader
first returns every record before the damage.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, BinaryIO, Protocol, cast

from ibwire.base.errors import CaptureError, OutputError
from ibwire.base.output import Output

Source = str | os.PathLike[str] | BinaryIO
"""A path, `-` for standard input, or an open binary file, which stays open."""

Target = str | os.PathLike[str] | BinaryIO | Output
"""A path, `-` for standard output, an open binary file, which stays open, or an `Output`.

A file of a path has its name from the start; an `Output` is finished by its owner.
"""


class ByteSource(Protocol):
    """The bytes of a file after decompression."""

    path: str
    compression: str | None
    """`gzip`, `xz`, `zstd`, or None."""
    damage: str | None
    """Why `readinto()` returned 0 before the end of the file."""

    @property
    def size(self) -> int | None:
        """Bytes of the file as it is stored; None for a pipe."""

    @property
    def position(self) -> int:
        """Bytes of the stored file consumed so far."""

    def readinto(self, view: memoryview) -> int:
        """Fill the front of `view`; 0 at the end or at damage."""

    def close(self) -> None:
        """Close what was opened; a file object that was passed in stays open."""


def open_source(source: Source) -> ByteSource:
    """Open a file for reading, decompressed.

    Raises `CaptureError` for a file that cannot be opened.
    """
    raw = _open_raw(source)
    head = raw.peek(max(len(magic) for magic in _COMPRESSIONS))
    for magic, (name, new_decoder) in _COMPRESSIONS.items():
        if head.startswith(magic):
            try:
                return _Decompressed(raw, name, new_decoder)
            except ImportError as missing:
                raw.close()
                reason = f"compressed with {name}, and {missing.name} is not installed"
                raise CaptureError(raw.path, None, reason) from missing
    return raw


def open_output(target: Target, closing: ExitStack) -> BinaryIO:
    """Open a file for writing, compressed as its suffix says (.gz, .xz, .zst).

    What has to be closed afterwards, and in which order, is left in `closing`.
    Raises `CaptureError` for a file that cannot be opened.
    """
    if isinstance(target, (str, os.PathLike)):
        output = Output(target, keeps_name=True)
        closing.callback(output.finish)
    elif isinstance(target, Output):
        output = target
        closing.callback(output.file.flush)
    else:
        closing.callback(target.flush)
        return target
    compress = _COMPRESSORS.get(os.path.splitext(output.path)[1].lower())
    if compress is None:
        return output.file
    try:
        return cast(BinaryIO, closing.enter_context(compress(output.file)))
    except ImportError as missing:
        closing.close()
        reason = f"cannot be written: {missing.name} is not installed"
        raise OutputError(output.path, reason) from missing


class _RawFile:
    """A file as it is stored."""

    compression: str | None = None

    def __init__(self, file: BinaryIO, path: str, size: int | None, owned: bool) -> None:
        self.path = path
        self.size = size
        self.position = 0
        self.damage: str | None = None
        self._file = file
        self._owned = owned
        self._peeked = b""
        # One system call a read: a pipe then delivers what it has instead of waiting for more.
        self._readinto: Callable[[memoryview], int | None] = getattr(
            file, "readinto1", getattr(file, "readinto", self._read_and_copy)
        )

    def peek(self, size: int) -> bytes:
        """The first bytes, which later reads return again; fewer at the end of the file."""
        buffer = bytearray(size)
        length = 0
        while length < size and (got := self.readinto(memoryview(buffer)[length:])):
            length += got
        self._peeked = bytes(buffer[:length])
        self.position = 0
        return self._peeked

    def readinto(self, view: memoryview) -> int:
        if self._peeked:
            got = min(len(self._peeked), len(view))
            view[:got] = self._peeked[:got]
            self._peeked = self._peeked[got:]
            self.position += got
            return got
        try:
            read = self._readinto(view)
        except OSError as error:
            self.damage = f"cannot be read further: {_reason(error)}"
            return 0
        if read is None:
            self.damage = "cannot be read further: non-blocking, and nothing has arrived yet"
            return 0
        self.position += read
        return read

    def close(self) -> None:
        if self._owned:
            self._file.close()

    def _read_and_copy(self, view: memoryview) -> int:
        data = self._file.read(len(view))
        view[: len(data)] = data
        return len(data)


def _open_raw(source: Source) -> _RawFile:
    if not isinstance(source, (str, os.PathLike)):
        name = getattr(source, "name", None)
        return _RawFile(source, name if isinstance(name, str) else "stream", _size(source), False)
    path = os.fspath(source)
    if path == "-":
        if sys.stdin is None:
            raise CaptureError("standard input", None, "cannot be opened: it is closed")
        stdin = sys.stdin.buffer
        _widen(stdin)
        return _RawFile(stdin, "standard input", _size(stdin), False)
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by the reader)
    except (OSError, ValueError) as error:
        raise CaptureError(path, None, f"cannot be opened: {_reason(error)}") from error
    _widen(cast(BinaryIO, file))
    return _RawFile(cast(BinaryIO, file), path, _size(cast(BinaryIO, file)), True)


def _size(file: BinaryIO) -> int | None:
    try:
        status = os.fstat(file.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    except (OSError, AttributeError):
        pass  # not a file of the operating system; io.UnsupportedOperation is an OSError
    try:
        here = file.tell()
        end = file.seek(0, os.SEEK_END)
        file.seek(here)
        return end - here
    except (OSError, AttributeError):
        return None


def _widen(file: BinaryIO) -> None:
    """Let a pipe hold 1 MiB, the most that Linux gives by default, so that batches get larger."""
    try:
        import fcntl

        fcntl.fcntl(file.fileno(), fcntl.F_SETPIPE_SZ, 2**20)
    except (ImportError, AttributeError, OSError):
        pass  # another system, not a pipe, or above the user's limit: smaller batches then


def _reason(error: OSError | ValueError) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


class _Decoder(Protocol):
    """The common form of the decompressors of lzma, zstd and isal: one member or frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


_NewDecoder = Callable[[], tuple[_Decoder, type[Exception]]]
"""Makes a decoder, and names the exception it raises on damage."""


class _Decompressed:
    """The decompressed bytes of a file: its members one after the other.

    Zero bytes after a member are padding (xz file format 2.2; gzip does the same).
    """

    def __init__(self, raw: _RawFile, compression: str, new_decoder: _NewDecoder) -> None:
        self.path = raw.path
        self.compression: str | None = compression
        self.damage: str | None = None
        self._raw = raw
        self._new_decoder = new_decoder
        self._decoder, self._error = new_decoder()
        self._input = bytearray(_INPUT_STEP)
        self._ended = False

    @property
    def size(self) -> int | None:
        return self._raw.size

    @property
    def position(self) -> int:
        return self._raw.position

    def readinto(self, view: memoryview) -> int:
        length = 0
        while length < len(view) and not self._ended:
            # Small steps: what a decoder produced in the call that finds damage is lost.
            data = self._step(min(_OUTPUT_STEP, len(view) - length))
            view[length : length + len(data)] = data
            length += len(data)
        return length

    def close(self) -> None:
        self._raw.close()

    def _step(self, max_length: int) -> bytes:
        try:
            if self._decoder.eof:
                more = self._next_member()
                if not more:
                    self._ended = True
                    return b""
                self._decoder, self._error = self._new_decoder()
            elif self._decoder.needs_input:
                more = self._read_raw()
                if not more:
                    self._end_with(f"the {self.compression} data is cut short")
                    return b""
            else:
                more = b""
            return self._decoder.decompress(more, max_length)
        except self._error as error:
            self._end_with(f"the {self.compression} data is damaged: {error}")
            return b""

    def _next_member(self) -> bytes:
        more = self._decoder.unused_data.lstrip(b"\0")
        while not more:
            read = self._read_raw()
            if not read:
                break
            more = read.lstrip(b"\0")
        return more

    def _read_raw(self) -> bytes:
        got = self._raw.readinto(memoryview(self._input))
        return bytes(self._input[:got])

    def _end_with(self, damage: str) -> None:
        self._ended = True
        self.damage = self._raw.damage or damage


class _ZlibDecoder:
    """Python's gzip decoder in the form of the others, where isal is not installed."""

    def __init__(self) -> None:
        import zlib

        self._inner = zlib.decompressobj(wbits=31)  # 31: with the gzip header and trailer
        self._pending = b""

    @property
    def needs_input(self) -> bool:
        return not self._pending

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        output = self._inner.decompress(self._pending + data, max_length)
        self._pending = self._inner.unconsumed_tail
        return output


def _gzip_decoder() -> tuple[_Decoder, type[Exception]]:
    try:
        from isal import igzip_lib
    except ImportError:
        import zlib

        return _ZlibDecoder(), zlib.error
    error: Any = igzip_lib.IsalError  # the stub has it as an instance
    return igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP), error


def _xz_decoder() -> tuple[_Decoder, type[Exception]]:
    import lzma

    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    return decoder, lzma.LZMAError


def _zstd_decoder() -> tuple[_Decoder, type[Exception]]:
    zstd = _zstd_module()
    return zstd.ZstdDecompressor(), zstd.ZstdError


def _zstd_module() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _gzip_output(file: BinaryIO) -> Any:
    try:
        from isal import igzip

        new: Any = igzip.IGzipFile
    except ImportError:
        import gzip

        new = gzip.GzipFile
    # No name and no time inside: the same records give the same file.
    return new(filename="", mode="wb", fileobj=file, mtime=0)


def _xz_output(file: BinaryIO) -> Any:
    import lzma

    return lzma.LZMAFile(file, "wb")


def _zstd_output(file: BinaryIO) -> Any:
    return _zstd_module().ZstdFile(file, "wb")


_COMPRESSIONS: dict[bytes, tuple[str, _NewDecoder]] = {
    b"\x1f\x8b": ("gzip", _gzip_decoder),  # RFC 1952, 2.3.1
    b"\xfd7zXZ\x00": ("xz", _xz_decoder),  # xz file format 1.2, 2.1.1.1
    b"\x28\xb5\x2f\xfd": ("zstd", _zstd_decoder),  # RFC 8878, 3.1.1
}

_COMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": _gzip_output,
    ".xz": _xz_output,
    ".zst": _zstd_output,
}

_INPUT_STEP = 32 * 1024
_OUTPUT_STEP = 16 * 1024

_XZ_MEMORY = 256 * 2**20
"""`xz -9`, the largest preset, needs 65 MiB to decompress (xz(1)); more is hardly a capture."""
