import gzip
import io
import lzma
import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capture.handmade import (
    data_of,
    enhanced,
    interface,
    pcap_header,
    pcap_record,
    read,
    read_until_damage,
    section,
)
from ibwire.base.errors import CaptureError
from ibwire.capture import open_capture, stream

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROOT = Path(__file__).parents[2]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": zstd.compress,
}
compressions = pytest.mark.parametrize("compression", COMPRESS)

DATA = [random.Random(n).randbytes(700) for n in range(400)]
CAPTURE = pcap_header() + b"".join(pcap_record(data) for data in DATA)


class Pipe(io.RawIOBase):
    """Gives a few bytes a read and cannot seek."""

    def __init__(self, content: bytes, step: int) -> None:
        self._rest = content
        self._step = step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        got = min(self._step, len(buffer), len(self._rest))
        buffer[:got] = self._rest[:got]
        self._rest = self._rest[got:]
        return got


@compressions
@pytest.mark.parametrize("chunk_size", [1000, 2**22])
def test_compressed_capture_reads_like_the_plain_one(compression: str, chunk_size: int) -> None:
    content = COMPRESS[compression](CAPTURE)

    with open_capture(io.BytesIO(content), chunk_size) as reader:
        assert reader.compression == compression
        assert reader.format == "pcap"
        assert data_of(reader.records()) == DATA
        assert reader.position == reader.size == len(content)


def test_plain_capture_has_no_compression() -> None:
    with open_capture(io.BytesIO(CAPTURE)) as reader:
        assert reader.compression is None
        list(reader.batches())
        assert reader.position == reader.size == len(CAPTURE)


@compressions
def test_members_one_after_the_other_are_one_file(compression: str) -> None:
    compress = COMPRESS[compression]
    content = compress(CAPTURE[:1000]) + compress(b"") + compress(CAPTURE[1000:]) + bytes(512)

    assert data_of(read(content)) == DATA


@compressions
def test_suffix_does_not_matter(compression: str, tmp_path: Path) -> None:
    path = tmp_path / "capture.txt"
    path.write_bytes(COMPRESS[compression](CAPTURE))

    with open_capture(path) as reader:
        assert data_of(reader.records()) == DATA


@compressions
def test_cut_compressed_file_yields_what_it_holds(compression: str) -> None:
    content = COMPRESS[compression](CAPTURE)[:200_000]

    records, damage = read_until_damage(content)

    assert 100 < len(records) < len(DATA)
    assert data_of(records) == DATA[: len(records)]
    assert damage is not None
    assert damage.reason == f"the {compression} data is cut short"
    assert damage.offset is not None
    assert 0 <= damage.offset - (24 + 716 * len(records)) < 716


@compressions
def test_damaged_member_is_told_after_the_members_before_it(compression: str) -> None:
    compress = COMPRESS[compression]
    second = bytearray(compress(CAPTURE[200_000:]))
    second[40:60] = bytes(20)
    second[-12:] = bytes(12)

    records, damage = read_until_damage(compress(CAPTURE[:200_000]) + second)

    assert len(records) >= (200_000 - 24) // 716
    assert data_of(records[:279]) == DATA[:279]
    assert damage is not None
    assert f"the {compression} data is damaged" in damage.reason


@compressions
def test_rubbish_after_the_last_member_is_told_after_all_records(compression: str) -> None:
    records, damage = read_until_damage(COMPRESS[compression](CAPTURE) + b"rubbish rubbish")

    assert data_of(records) == DATA
    assert damage is not None
    assert damage.offset == len(CAPTURE)
    assert f"the {compression} data is damaged" in damage.reason


@compressions
def test_wrong_checksum_of_a_small_file_is_told(compression: str) -> None:
    if compression == "zstd":
        compressed = zstd.compress(CAPTURE, options={zstd.CompressionParameter.checksum_flag: 1})
    else:
        compressed = COMPRESS[compression](CAPTURE)
    content = bytearray(compressed)
    content[{"gzip": -8, "xz": -20, "zstd": -1}[compression]] ^= 1

    _, damage = read_until_damage(content)

    assert damage is not None
    assert f"the {compression} data is damaged" in damage.reason


@compressions
def test_magic_number_alone_is_an_error(compression: str) -> None:
    magic = COMPRESS[compression](b"")[:6]

    for length in range(6, 3, -1):
        records, damage = read_until_damage(magic[:length])
        assert records == []
        assert damage is not None


@compressions
def test_bomb_is_streamed(compression: str) -> None:
    # 400,000 empty records and a header: 6.4 MB of zero bytes in a few kilobytes.
    content = COMPRESS[compression](pcap_header() + bytes(16 * 400_000))

    with open_capture(io.BytesIO(content), 65536) as reader:
        sizes = [(len(batch), len(batch.data)) for batch in reader.batches()]

    assert sum(records for records, _ in sizes) == 400_000
    assert max(size for _, size in sizes) <= 65536 + 16 + 512


@pytest.mark.slow
def test_python_gzip_is_used_where_isal_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    decoder, error = stream._gzip_decoder()
    assert error is zlib.error
    assert isinstance(decoder, stream._ZlibDecoder)

    content = gzip.compress(CAPTURE[:5000]) + gzip.compress(CAPTURE[5000:])
    assert data_of(read(content)) == DATA

    bomb = gzip.compress(pcap_header() + bytes(16 * 100_000))
    assert len(read(bomb)) == 100_000

    _, damage = read_until_damage(content[:-100])
    assert damage is not None
    assert damage.reason == "the gzip data is cut short"

    damaged = bytearray(content)
    damaged[-6] ^= 1
    _, damage = read_until_damage(bytes(damaged))
    assert damage is not None
    assert "the gzip data is damaged" in damage.reason


def test_missing_zstd_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)

    with pytest.raises(CaptureError, match=r"compressed with zstd, and .* is not installed"):
        open_capture(io.BytesIO(zstd.compress(CAPTURE)))


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_pipe_that_gives_little_at_a_time(step: int) -> None:
    content = pcap_header() + b"".join(pcap_record(data) for data in DATA[:30])
    ng = section() + interface() + b"".join(enhanced(data) for data in DATA[:30])

    for each in (content, gzip.compress(content), ng):
        with open_capture(Pipe(each, step)) as reader:
            assert reader.size is None
            assert data_of(reader.records()) == DATA[:30]
            assert reader.position == len(each)


def test_pipe_gives_records_as_they_arrive() -> None:
    read_end, write_end = os.pipe()
    with open(read_end, "rb", buffering=0) as source, open(write_end, "wb", buffering=0) as sink:
        sink.write(pcap_header() + pcap_record(b"first") + pcap_record(b"second")[:9])
        with open_capture(source) as reader:
            records = reader.records()
            assert next(records).data == b"first"
            sink.write(pcap_record(b"second")[9:])
            assert next(records).data == b"second"


def test_file_object_stays_open_and_needs_only_read() -> None:
    class OnlyRead:
        def __init__(self) -> None:
            self.file = io.BytesIO(CAPTURE)
            self.read = self.file.read

    source = OnlyRead()
    with open_capture(source) as reader:
        assert data_of(reader.records()) == DATA
    assert not source.file.closed


@pytest.mark.parametrize("compression", ["gzip", None])
def test_standard_input(compression: str | None) -> None:
    content = CAPTURE if compression is None else COMPRESS[compression](CAPTURE)
    script = (
        "from ibwire.capture import open_capture\n"
        "with open_capture('-') as r: print(r.path, r.compression, sum(map(len, r.batches())))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "layers")])}

    run = subprocess.run(
        [sys.executable, "-c", script],
        input=content,
        capture_output=True,
        env=environment,
        check=True,
    )

    assert run.stdout.decode().strip() == f"standard input {compression} 400"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"cannot be opened: no such file") as caught:
        open_capture(tmp_path / "none.pcap")
    assert caught.value.path == str(tmp_path / "none.pcap")
    assert caught.value.offset is None


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be opened: is a directory"):
        open_capture(tmp_path)


def test_name_that_cannot_be_a_path() -> None:
    with pytest.raises(CaptureError, match="cannot be opened: embedded null byte"):
        open_capture("a\0b.pcap")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything"
)
def test_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.pcap"
    path.write_bytes(CAPTURE)
    path.chmod(0)

    with pytest.raises(CaptureError, match="cannot be opened: permission denied"):
        open_capture(path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.pcap"
    path.touch()

    with pytest.raises(CaptureError, match="the file is empty"):
        open_capture(path)


@compressions
def test_nothing_inside_a_compressed_file(compression: str) -> None:
    with pytest.raises(CaptureError, match="the file is empty"):
        open_capture(io.BytesIO(COMPRESS[compression](b"")))


@pytest.mark.parametrize("content", [b"MZ\x90\x00" + bytes(100), b"\x7f", b"# text\n" * 9])
def test_what_is_no_capture_is_named_by_its_first_bytes(content: bytes) -> None:
    with pytest.raises(CaptureError, match="not a capture: it begins with") as caught:
        open_capture(io.BytesIO(content))
    assert content[:4].hex(" ") in caught.value.reason


def test_read_error_of_the_system_is_told_after_the_records_before_it() -> None:
    class Failing(Pipe):
        def readinto(self, buffer: Any) -> Any:
            if not self._rest:
                raise OSError(5, "Input/output error")
            return super().readinto(buffer)

    with open_capture(Failing(CAPTURE, 1000)) as reader:
        records = reader.records()
        for data in DATA:
            assert next(records).data == data
        with pytest.raises(CaptureError, match="cannot be read further: input/output error"):
            next(records)
