"""Live: guests with Soft-RoCE boot, run commands, and communicate with each other."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.rxe import boot, build, network
from interop.rxe.boot import Guest, GuestError
from interop.rxe.network import Network

TESTS = Path(__file__).parents[2]

PINGPONG_PORT = 18515

MISSING = boot.missing() or network.missing()
live = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


@pytest.fixture(scope="module")
def lan() -> Iterator[Network]:
    with Network() as made:
        yield made


@pytest.fixture(scope="module")
def guests(lan: Network) -> Iterator[tuple[Guest, Guest]]:
    """Two guests on one bridge, 10.0.0.1 and 10.0.0.2, fd00::1 and fd00::2."""
    with Guest(lan) as one, Guest(lan) as other:
        one.add_rxe("10.0.0.1/24", "fd00::1/64")
        other.add_rxe("10.0.0.2/24", "fd00::2/64")
        yield one, other


def ibwire(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ibwire", *map(str, arguments)], capture_output=True, text=True
    )


def objects(run: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.stdout.splitlines()]


@live
def test_script_gives_output_and_status(guests: tuple[Guest, Guest]) -> None:
    guest, _ = guests

    assert guest.run("echo out; echo err >&2; exit 3") == (3, "out\nerr\n")
    assert guest.run("printf 'no newline'") == (0, "no newline")
    assert guest.run("kill -SEGV $$").status == 128 + signal.SIGSEGV


@live
def test_scripts_run_at_the_same_time(guests: tuple[Guest, Guest]) -> None:
    """The first waits for what the second does."""
    guest, _ = guests
    guest.check("mkfifo /run/pipe")

    reader = guest.start("cat /run/pipe")
    guest.check("echo said >/run/pipe")

    assert reader.wait() == (0, "said\n")


@live
def test_scripts_that_end_at_the_same_time_give_their_outputs_one_after_the_other(
    guests: tuple[Guest, Guest],
) -> None:
    guest, _ = guests

    for _ in range(10):
        jobs = [guest.start(f"yes {number} | head -n 1000") for number in range(10)]

        assert [job.wait() for job in jobs] == [(0, f"{number}\n" * 1000) for number in range(10)]


@live
def test_large_output_arrives_whole(guests: tuple[Guest, Guest]) -> None:
    guest, _ = guests

    assert guest.check("yes | head -c 3000000") == "y\n" * 1_500_000


@live
def test_script_over_its_limit_is_killed_with_what_it_started(
    guests: tuple[Guest, Guest],
) -> None:
    guest, _ = guests

    # Within the limit also a slow guest has begun.
    with pytest.raises(GuestError, match=r"(?s)took more than 5 s.*begun"):
        guest.run("echo begun; sleep 1000 & sleep 1000", limit=5)

    # What is killed may take a moment to be gone.
    guest.check("while pidof sleep; do :; done", 30)


@live
def test_guest_can_lose_packets_and_tag_them_by_itself(guests: tuple[Guest, Guest]) -> None:
    guest, _ = guests

    guest.check("tc qdisc add dev eth0 root netem loss 1% && tc qdisc del dev eth0 root")
    guest.check("ip link add link eth0 name eth0.5 type vlan id 5 && ip link del eth0.5")


@live
def test_gids_are_link_local_then_ipv4_then_ipv6(guests: tuple[Guest, Guest]) -> None:
    guest, _ = guests

    gids = guest.check("cd /sys/class/infiniband/rxe0/ports/1/gids; cat 0 1 2").split()

    assert gids[0].startswith("fe80:")
    assert gids[1] == "0000:0000:0000:0000:0000:ffff:0a00:0001"
    assert gids[2] == "fd00:0000:0000:0000:0000:0000:0000:0001"


@live
def test_guest_reaches_a_port_of_ours(lan: Network, guests: tuple[Guest, Guest]) -> None:
    """The kernel answers there; 8972 bytes and two headers fill the link."""
    lan.add_port("10.0.0.9/24", "fd00::9/64")

    guests[0].check("ping -c 1 -s 8972 10.0.0.9 && ping -c 1 fd00::9")


@live
@pytest.mark.parametrize("gid", [1, 2], ids=["ipv4", "ipv6"])
def test_pingpong_between_two_guests_is_captured_and_clean(
    guests: tuple[Guest, Guest], tmp_path: Path, gid: int
) -> None:
    """100 messages of 4096 bytes each way, at the path MTU of 1024.

    The server of ibv_rc_pingpong listens on IPv4 alone, whatever the GID.
    """
    client, server = guests
    command = f"ibv_rc_pingpong -d {boot.DEVICE} -g {gid} -n 100 -c"
    at_client, at_server = tmp_path / "client.pcap", tmp_path / "server.pcap"

    with client.capture(at_client), server.capture(at_server):
        served = server.start(command)
        server.wait_for_port(PINGPONG_PORT)
        asked = client.check(f"{command} 10.0.0.2")
        answered = served.wait()

    # Each end counts both directions.
    assert "819200 bytes in" in asked
    assert answered.status == 0
    assert "819200 bytes in" in answered.output
    packets = objects(ibwire("dissect", "--json", "--where", "bth", at_client))
    assert len(packets) >= 2 * 100 * (4 + 1)
    assert {packet["icrc.status"] for packet in packets} == {"good"}
    directions = objects(ibwire("flows", "--json", at_client, "--other", at_server))
    assert [direction["messages"] for direction in directions] == [100, 100]
    for capture in (at_client, at_server):
        checked = ibwire("check", "--profile", "rxe", capture)
        assert (checked.returncode, checked.stderr) == (0, "")
        assert "0 errors, 0 warnings" in checked.stdout


@live
def test_incomplete_guest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build.cached()
    assert made
    directory = tmp_path / made.kernel.parent.name
    directory.mkdir()
    for path in made:
        (directory / path.name).write_bytes(b"12345")
    (directory / "size").write_text("10")
    monkeypatch.setenv("IBWIRE_CACHE", str(tmp_path))

    whole = build.cached()
    (directory / made.initramfs.name).write_bytes(b"1234")

    assert whole
    assert build.cached() is None


@live
def test_guest_that_died_is_an_error() -> None:
    with Guest() as guest:
        # QEMU has closed the connection, or it was reset.
        with pytest.raises(GuestError, match=r"died: |lost \("):
            guest.run("poweroff -f")
        with pytest.raises(GuestError):
            guest.run("true")


@live
def test_guest_ends_with_the_program_that_made_it() -> None:
    script = (
        "from interop.rxe.boot import Guest\n"
        "from interop.rxe.network import Network\n"
        "network = Network()\n"
        "guest = Guest(network, accel='tcg')\n"
        "print(guest.pid, network.pid, flush=True)\n"
        "input()\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout
    pids = program.stdout.readline().split()
    handles = [os.pidfd_open(int(pid)) for pid in pids]

    program.kill()
    program.communicate()

    for handle in handles:
        assert select.select([handle], [], [], 120)[0]
        os.close(handle)


@pytest.mark.skipif(
    not build.KEYRING.is_file() or not all(map(shutil.which, build.NEEDED_TOOLS)),
    reason="not a Debian system: apt or its keyring is missing",
)
def test_unreachable_mirror_is_one_sentence_and_leaves_no_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IBWIRE_CACHE", str(tmp_path))
    # A path that does not exist: nothing is downloaded.
    monkeypatch.setenv("IBWIRE_DEBIAN_MIRROR", f"file:{tmp_path}/nothing")

    assert build.main() == 1

    assert capsys.readouterr().err.startswith("no guest: no package lists from file:")
    assert [path.name for path in tmp_path.iterdir()] == ["rxe.lock"]
