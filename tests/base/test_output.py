"""Files appear whole or not at all, and what a killed process leaves is removed."""

import multiprocessing
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ibwire.base import output as module
from ibwire.base.errors import OldResultKept, OutputError
from ibwire.base.output import Output, check_writable, command_files, temporary_directory


@pytest.fixture(autouse=True)
def looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a new process, as far as looking for leftovers goes."""
    monkeypatch.setattr(module, "_CLEANED", set())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text("old")
    return path


def test_result_has_its_name_when_it_is_whole(old: Path) -> None:
    with Output(old) as output:
        output.text.write("new")
        output.text.flush()
        assert old.read_text() == "old"

    assert old.read_text() == "new"
    assert os.listdir(old.parent) == [old.name]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_exception_leaves_what_was_there(old: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with Output(old) as output:
            output.text.write("new")
            raise error

    with pytest.raises(error):
        fail()

    assert old.read_text() == "old"
    assert os.listdir(old.parent) == [old.name]


def test_file_that_keeps_its_name_stays_and_is_called_incomplete(old: Path) -> None:
    def fail() -> None:
        with Output(old, keeps_name=True) as output:
            output.file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fail()

    assert old.read_text() == "new"
    assert caught.value.__notes__ == [f"{old} is incomplete: it has what was written so far"]


def test_incomplete_input_does_not_replace_an_older_result(old: Path) -> None:
    with pytest.raises(OldResultKept, match="left as it was"), Output(old) as output:
        output.input_failed = True

    assert old.read_text() == "old"
    assert os.listdir(old.parent) == [old.name]


def test_incomplete_input_gives_a_new_result(tmp_path: Path) -> None:
    with Output(tmp_path / "new.json") as output:
        output.text.write("some")
        output.input_failed = True

    assert (tmp_path / "new.json").read_text() == "some"


def test_mode_of_the_older_result_stays(old: Path) -> None:
    old.chmod(0o640)
    with Output(old):
        pass

    assert stat.S_IMODE(old.stat().st_mode) == 0o640


def test_symbolic_link_stays_and_its_target_is_replaced(old: Path) -> None:
    link = old.with_name("link.json")
    link.symlink_to(old)
    with Output(link) as output:
        output.text.write("new")

    assert link.is_symlink()
    assert old.read_text() == "new"


def test_device_is_written_and_never_replaced() -> None:
    with Output(os.devnull) as output:
        output.text.write("new")

    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with Output(path):
        pass

    assert path.exists()


@pytest.mark.parametrize("number", [1, 2])
def test_redirected_standard_output_is_appended_to(old: Path, number: int) -> None:
    """As with `-o /dev/stdout >> result.json`."""
    before = os.dup(number)
    redirected = os.open(old, os.O_WRONLY | os.O_APPEND)
    try:
        os.dup2(redirected, number)
        with Output(f"/proc/self/fd/{number}") as output:
            output.text.write(" and new")
        os.write(number, b", and more")
    finally:
        os.dup2(before, number)
        os.close(redirected)
        os.close(before)

    assert old.read_text() == "old and new, and more"
    assert os.listdir(old.parent) == [old.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_full_disk_names_the_file(size: int) -> None:
    with (
        pytest.raises(OutputError, match="/dev/full: cannot be written: no space left"),
        Output("/dev/full") as output,
    ):
        output.file.write(bytes(size))


@pytest.mark.parametrize("name", ["missing/x.json", "result.json/x.json", ".", "nul\0"])
def test_place_that_cannot_be_written_is_named(old: Path, name: str) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        Output(f"{old.parent}/{name}")


def test_file_without_permission_is_not_replaced() -> None:
    """Though its directory could be written."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        path = Path(place, "x.json")
        path.write_text("old")
        path.chmod(0o444)
        user = os.geteuid()
        os.seteuid(user or 65534)
        try:
            with pytest.raises(OutputError, match=r"x\.json: cannot be written: permission denied"):
                Output(path)
        finally:
            os.seteuid(user)

        assert path.read_text() == "old"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /tmp, to a user who may write the file of another one in it."""
    if os.geteuid():
        pytest.skip("needs root, to be two users")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o1777)
        path = Path(place, "Result.json")
        path.write_text("old, and longer than the new one")
        path.chmod(0o666)
        os.seteuid(65534)
        try:
            yield path
        finally:
            os.seteuid(0)


def test_file_that_cannot_be_replaced_is_overwritten(shared: Path) -> None:
    inode = shared.stat().st_ino

    with Output(shared) as output:
        output.text.write("new")

    assert (shared.read_text(), shared.stat().st_ino) == ("new", inode)
    assert os.listdir(shared.parent) == [shared.name]


def test_result_that_finds_no_space_is_kept_beside_the_old_one(shared: Path) -> None:
    """The limit of the process on file sizes stands for a full disk; a file above it gets EFBIG."""

    def finish(output: Output) -> None:
        output.file.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
        try:
            output.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    output = Output(shared)
    output.file.write(bytes(100))
    kept = f"{shared}.new-1"

    with pytest.raises(
        OutputError, match=f"cannot be written: file too large; the result is in {kept}"
    ):
        finish(output)
    module._CLEANED.clear()
    module.remove_leftovers(str(shared.parent))
    module.remove_unfinished()

    assert shared.read_text() == "old, and longer than the new one"
    assert Path(kept).read_bytes() == bytes(100)
    assert sorted(os.listdir(shared.parent)) == [shared.name, os.path.basename(kept)]


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare here")
@pytest.mark.parametrize("size", [10, 100_000])
def test_target_of_a_bind_mount_is_overwritten_or_the_result_kept(
    tmp_path: Path, size: int
) -> None:
    """The target is on a file system of 64 KiB."""
    (tmp_path / "x.json").write_text("old")
    script = """
        mount -t tmpfs -o size=64k none mounted && printf old >mounted/x || exit 77
        mount --bind mounted/x x.json || exit 77
        "$0" -c 'from ibwire.base.output import Output
        with Output("x.json") as output: output.file.write(bytes(SIZE))'
        cat x.json | wc -c
    """.replace("        ", "").replace("SIZE", str(size))
    (tmp_path / "mounted").mkdir()

    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable],
        cwd=tmp_path, text=True, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no mounts here: {done.stderr}")

    if size == 10:
        assert (done.stdout.strip(), done.stderr) == ("10", "")
    else:
        assert done.stdout.strip() == "3"
        assert "no space left on device; the result is in" in done.stderr
        assert (tmp_path / "x.json.new-1").stat().st_size == size


def test_checking_leaves_nothing(old: Path) -> None:
    check_writable(old)
    check_writable(old.with_name("new.json"))
    check_writable(os.devnull)

    assert os.listdir(old.parent) == [old.name]


def test_input_is_refused_by_every_name(old: Path) -> None:
    hard, soft = old.with_name("hard"), old.with_name("soft")
    os.link(old, hard)
    soft.symlink_to(old)
    with command_files() as files:
        files.add_input(old)
        for name in (old, hard, soft, old.parent / "." / old.name):
            with pytest.raises(OutputError, match="it is also an input"):
                Output(name, keeps_name=True)
            with pytest.raises(OutputError, match="it is also an input"):
                files.add_output(name)

    assert old.read_text() == "old"


@pytest.mark.parametrize(
    "names", [("new", "new"), ("result.json", "link"), ("new", "directory/new"), ("new", "later")]
)
def test_two_outputs_are_two_files(old: Path, names: tuple[str, str]) -> None:
    old.with_name("link").symlink_to(old)
    old.with_name("directory").symlink_to(".")
    old.with_name("later").symlink_to("new")
    first, second = names
    with command_files() as files:
        files.add_output(old.parent / first)
        with pytest.raises(OutputError, match="named for two outputs"):
            files.add_output(old.parent / second)


def test_device_may_be_named_more_than_once() -> None:
    with command_files() as files:
        files.add_input(os.devnull)
        files.add_output(os.devnull)
        files.add_output(os.devnull)


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Another process locks what is made first, to remove it: the path."""
    lock = module.lock
    paths: list[str] = []
    held: list[int] = []

    def lock_second(descriptor: int) -> bool:
        if not paths:
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            held.append(os.open(paths[0], os.O_RDONLY))
            lock(held[0])
        return lock(descriptor)

    monkeypatch.setattr(module, "lock", lock_second)
    yield paths
    os.close(held[0])


def test_file_that_another_process_takes_for_a_leftover_is_given_up(
    old: Path, removed: list[str]
) -> None:
    with Output(old) as output:
        Path(removed[0]).unlink(missing_ok=True)
        output.text.write("new")

    assert old.read_text() == "new"
    assert os.listdir(old.parent) == [old.name]


def test_directory_that_another_process_takes_for_a_leftover_is_given_up(
    tmp_path: Path, removed: list[str]
) -> None:
    with temporary_directory(str(tmp_path)) as place:
        shutil.rmtree(removed[0], ignore_errors=True)

        assert os.listdir(tmp_path) == [os.path.basename(place)]


def begin(directory: str, pipe: Connection) -> None:
    """A process that is at work until it is killed."""
    with Output(os.path.join(directory, "x.json")), temporary_directory(directory) as temporary:
        Path(temporary, "data").write_text("much")
        pipe.send("at work")
        signal.pause()


@pytest.mark.slow
def test_leftovers_of_a_killed_process_are_removed_and_no_others(tmp_path: Path) -> None:
    foreign = tmp_path / ".x.json.00000000.ibwire-part.bak"
    foreign.write_text("of somebody else")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=begin, args=(str(tmp_path), there))
    process.start()
    here.recv()

    module.remove_leftovers(str(tmp_path))
    at_work = len(os.listdir(tmp_path))
    process.kill()
    process.join()
    module._CLEANED.clear()
    module.remove_leftovers(str(tmp_path))

    assert at_work == 3
    assert os.listdir(tmp_path) == [foreign.name]
