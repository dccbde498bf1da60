"""Several captures as one, worked on here or in several processes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from connections.talk import Talk
from emulated_traffic import Stamped, pcap
from ibwire.base.errors import MissingExtra
from ibwire.base.work import cluster, processes
from ibwire.connections.merge import analyse, in_order
from ibwire.connections.summary import Summary


def pieces(tmp_path: Path, frames: list[Stamped], count: int) -> list[str]:
    """A capture cut into so many files."""
    paths = []
    size = -(-len(frames) // count)
    for number in range(count):
        path = tmp_path / f"{number}.pcap"
        path.write_bytes(pcap(frames[number * size : (number + 1) * size]).getvalue())
        paths.append(str(path))
    return paths


def talked() -> list[Stamped]:
    """Two losses that a NAK shows, one of them across a cut."""
    talk = Talk()
    talk.sends(0xFFFFE0, 40)
    talk.ask(4, 9, 64, ack_req=1)
    talk.answer(8, 41, 0x60)
    talk.sends(8, 60, msn=41)
    return talk.frames


def told(found: Summary) -> list[dict[str, Any]]:
    return [each.to_json(direction) for each in found.connections for direction in (0, 1)]


def test_files_of_one_capture_are_the_capture(tmp_path: Path) -> None:
    frames = talked()
    whole, _ = analyse(pieces(tmp_path, frames, 1))

    for count in (2, 3, 7):
        found, damage = analyse(pieces(tmp_path, frames, count))

        assert told(found) == told(whole)
        assert (found.problems, damage) == ([], [])
        assert found.packets == len(frames)
        assert len(found.sources) == count
    assert told(whole)[0]["lost_packets"] == 1


@pytest.mark.slow
def test_several_processes_come_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with a module that each process imports when it starts, too."""
    paths = pieces(tmp_path, talked(), 3)
    (tmp_path / "multiprocessing.py").write_text("raise SystemExit('another module')")
    monkeypatch.chdir(tmp_path)

    alone, _ = analyse(paths)
    together, damage = analyse(paths, processes(2))

    assert json.dumps(told(together)) == json.dumps(told(alone))
    assert damage == []


def test_files_are_taken_in_the_order_of_their_times(tmp_path: Path) -> None:
    paths = pieces(tmp_path, talked(), 4)
    mixed = [paths[2], paths[0], paths[3], paths[1]]

    found, _ = analyse(mixed)

    assert in_order(mixed) == paths == found.sources
    assert found.problems == []
    assert told(found) == told(analyse(paths)[0])


def test_clocks_that_overlap_are_reported(tmp_path: Path) -> None:
    frames = talked()
    early = [(time_ns - 500_000, frame) for time_ns, frame in frames[50:]]
    paths = []
    for name, part in (("one", frames[:50]), ("two", early)):
        paths.append(str(tmp_path / f"{name}.pcap"))
        Path(paths[-1]).write_bytes(pcap(part).getvalue())

    found, _ = analyse(paths)

    (problem,) = found.problems
    # The second begins 10 us after the end of the first, had its clock not been 500 us behind.
    assert problem.startswith(f"the captures overlap in time: {paths[1]} begins 0.000490 s before")


def test_a_damaged_file_in_the_middle_leaves_the_rest_readable(tmp_path: Path) -> None:
    frames = talked()
    paths = pieces(tmp_path, frames, 3)
    data = Path(paths[1]).read_bytes()
    Path(paths[1]).write_bytes(data[: len(data) // 2])

    found, damage = analyse(paths)

    assert len(damage) == 1
    assert paths[1] in damage[0]
    assert len(frames) // 3 * 2 < found.packets < len(frames)
    assert len(found.connections) == 1


@pytest.mark.slow
def test_a_file_that_is_no_capture_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    paths = pieces(tmp_path, talked(), 2)
    other = tmp_path / "notes.txt"
    other.write_text("not a capture")

    found, damage = analyse([paths[0], str(other), paths[1]], processes(2))

    assert len(damage) == 1
    assert str(other) in damage[0]
    assert told(found) == told(analyse(paths)[0])


def test_no_files_are_an_empty_summary() -> None:
    found, damage = analyse([])

    assert (found.connections, found.packets, damage) == ([], 0, [])


def test_a_cluster_without_ray_says_what_to_install() -> None:
    if find_spec("ray") is not None:
        pytest.skip("ray is installed")

    with pytest.raises(MissingExtra, match="cluster"):
        cluster("local")


def test_a_cluster_comes_to_the_same(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray not installed")
    paths = pieces(tmp_path, talked(), 3)

    found, damage = analyse(paths, cluster("local"))

    assert told(found) == told(analyse(paths)[0])
    assert damage == []
