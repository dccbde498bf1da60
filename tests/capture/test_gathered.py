"""Records wait in the process, and are in the file when they have to be."""

import gc
import io
from pathlib import Path

import pytest

from ibwire.base.errors import OutputError
from ibwire.capture import PcapngWriter, PcapWriter, open_capture
from ibwire.capture.gathered import LIMIT

Writers = type[PcapWriter] | type[PcapngWriter]

both = pytest.mark.parametrize("writer", [PcapWriter, PcapngWriter])


def frames(path: Path) -> list[bytes]:
    with open_capture(path) as reader:
        return [bytes(record.data) for record in reader.records()]


@both
def test_what_waits_is_bounded(tmp_path: Path, writer: Writers) -> None:
    path = tmp_path / "out"
    with writer(path) as out:
        for number in range(1, 1001):
            out.write(bytes(1000), number)
            # 256 KiB here and as many in the file object; a block has 32 bytes more at most.
            assert number * 1000 - path.stat().st_size <= 2 * LIMIT + 1032
    assert len(frames(path)) == 1000


@both
def test_nothing_waits_after_flush(tmp_path: Path, writer: Writers) -> None:
    with writer(tmp_path / "out") as out:
        out.write(b"first", 1)
        out.flush()
        assert frames(tmp_path / "out") == [b"first"]


@both
def test_writer_that_nobody_closes_loses_nothing(tmp_path: Path, writer: Writers) -> None:
    out = writer(tmp_path / "out")
    out.write(b"first", 1)
    del out
    gc.collect()
    assert frames(tmp_path / "out") == [b"first"]


@both
def test_data_may_change_after_it_was_written(tmp_path: Path, writer: Writers) -> None:
    buffer = bytearray(b"before")
    with writer(tmp_path / "out") as out:
        out.write(memoryview(buffer), 1)
        buffer[:] = b"after!"
    assert frames(tmp_path / "out") == [b"before"]


@both
def test_file_of_the_caller_gets_each_record_at_once(writer: Writers) -> None:
    file = io.BytesIO()
    out = writer(file)
    out.write(b"first", 1)
    assert b"first" in file.getvalue()
    out.close()
    assert not file.closed


def fill(out: PcapWriter | PcapngWriter) -> None:
    for number in range(1000):
        out.write(bytes(1000), number)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@both
def test_full_disk_is_said_when_a_part_is_written_and_at_the_end(writer: Writers) -> None:
    out = writer("/dev/full")
    with pytest.raises(OutputError, match="no space left"):
        fill(out)
    out.write(b"more", 1)
    with pytest.raises(OutputError, match="no space left"):
        out.close()
    out.close()
