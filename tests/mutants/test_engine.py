"""Copies of the emulator with a mutant: isolated from the original, harmless to plain traffic."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import pytest

import ibwire.cm
import ibwire.fuzz.targets.emulated_device
import ibwire.fuzz.targets.emulated_manager
import ibwire.rc
from examples import sampled
from ibwire.base.errors import VerbsError
from ibwire.base.units import GBPS, US, S
from ibwire.drill.packets import pattern
from ibwire.fabric.sim import Simulator
from ibwire.fuzz.case import Connection, Packet
from ibwire.fuzz.judge.comparison import ExactComparison
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.rc.packet import decode
from ibwire_layers import cm
from ibwire_layers.opcodes import OpCode
from mutants.engine import EMULATOR, StaleMutant, copied
from mutants.table import FUZZED, Mutant, Patch

ORIGINAL = {name: sys.modules[name] for name in sys.modules if name.startswith("ibwire.")}


def sample(module: str, old: str, new: str) -> Mutant:
    return Mutant("sample", (Patch(module, old, new),))


CRASH = sample("rc/packet.py", "    form = FORMS[opcode]\n", "    form = FORMS[opcode + 1 << 9]\n")

UNKNOWN_OPCODE = bytes([0x1F, 0x40]) + bytes(10)


# Isolation.


def attributes() -> dict[str, dict[str, object]]:
    """What the packages around the copied modules have as attributes."""
    packages = ("ibwire", "ibwire.rc", "ibwire.cm", "ibwire.fuzz", "ibwire.fuzz.targets")
    return {name: dict(vars(sys.modules[name])) for name in packages}


def test_copying_leaves_every_module_and_package_as_it_was() -> None:
    before = dict(sys.modules), attributes(), list(sys.meta_path)

    copied(CRASH)

    assert (dict(sys.modules), attributes(), list(sys.meta_path)) == before


@pytest.mark.parametrize(
    ("new", "error"),
    [("_PADS: Final = (,", SyntaxError), ("nowhere\n_PADS: Final = (", NameError)],
    ids=["no Python", "fails when it is imported"],
)
def test_failing_copy_leaves_every_module_and_package_as_it_was(
    new: str, error: type[Exception]
) -> None:
    before = dict(sys.modules), attributes(), list(sys.meta_path)

    with pytest.raises(error):
        copied(sample("rc/packet.py", "_PADS: Final = (", new))

    assert (dict(sys.modules), attributes(), list(sys.meta_path)) == before


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """A copy of the modules that crashes."""
    return copied(CRASH)


def test_copy_is_wrong_and_original_is_right(modules: dict[str, ModuleType]) -> None:
    packet = modules["ibwire.rc.packet"]

    with pytest.raises(IndexError):
        packet.decode(UNKNOWN_OPCODE, 0, 12)
    assert decode(UNKNOWN_OPCODE, 0, 12) is not None


def test_copied_modules_use_each_other_and_share_the_rest(modules: dict[str, ModuleType]) -> None:
    below = {
        name
        for name in sys.modules
        if any(name == each or name.startswith(each + ".") for each in EMULATOR)
    }
    # What nothing of it imports is not copied: only a document of the interface.
    assert below - {"ibwire.rc.reference"} <= set(modules) <= below
    assert modules["ibwire.rc.device"].Device is not ibwire.rc.Device
    assert modules["ibwire.peer.end"].Device is modules["ibwire.rc.device"].Device
    assert modules["ibwire.fuzz.targets.emulated_device"].End is modules["ibwire.peer.end"].End
    assert modules["ibwire.rc"].Device is modules["ibwire.rc.device"].Device
    assert modules["ibwire.rc.qp"].VerbsError is VerbsError


def test_no_copied_module_reaches_an_original_one(modules: dict[str, ModuleType]) -> None:
    originals = {
        f"{name}.{attribute}"
        for name, module in modules.items()
        for attribute, value in vars(module).items()
        if (isinstance(value, type | FunctionType) and value.__module__ in modules)
        and value.__qualname__.isidentifier()
        and getattr(modules[value.__module__], value.__qualname__, value) is not value
    }

    assert not originals


def test_two_copies_have_nothing_in_common(modules: dict[str, ModuleType]) -> None:
    one, other = modules, copied(CRASH)

    assert (
        one["ibwire.fuzz.targets.emulated_device"].Emulation
        is not other["ibwire.fuzz.targets.emulated_device"].Emulation
    )
    assert (
        one["ibwire.fuzz.targets.emulated_device"].End
        is not other["ibwire.fuzz.targets.emulated_device"].End
    )


def test_traceback_shows_the_line_that_is_run() -> None:
    packet = copied(FUZZED["unknown-opcode-crashes"])["ibwire.rc.packet"]

    with pytest.raises(KeyError) as caught:
        packet.decode(UNKNOWN_OPCODE, 0, 12)

    shown = "".join(traceback.format_exception(caught.value))
    assert "ibwire.rc.packet with unknown-opcode-crashes" in shown
    assert "    opcodes.INFO[opcode]\n" in shown


# Errors.


@pytest.mark.parametrize(
    ("module", "old", "why"),
    [
        ("rc/packet.py", "no such line", "the snippet occurs 0 times in rc/packet.py"),
        ("rc/packet.py", "packet", r"the snippet occurs \d\d+ times in rc/packet.py"),
        ("rc/packets.py", "packet", "there is no module ibwire.rc.packets"),
        ("fabric/sim.py", "class Simulator", "ibwire.fabric.sim is not copied"),
    ],
)
def test_mutant_that_does_not_fit_is_named(module: str, old: str, why: str) -> None:
    with pytest.raises(StaleMutant, match=f"^sample: {why}$"):
        copied(sample(module, old, "anything"))


# The mutants that the fuzzer is measured by.


def test_table_covers_all_roles_with_faults_that_differ() -> None:
    faults = FUZZED.values()
    roles = [each.role for each in faults]

    assert roles.count("responder") >= 24
    assert roles.count("requester") >= 9
    assert roles.count("cm") >= 4
    assert len({each.patches for each in faults}) == len(FUZZED)
    assert len({each.fuzz.about for each in faults if each.fuzz}) == len(FUZZED)


Modules = Mapping[str, ModuleType]

SIZE, ROOM = 1 << 16, 8192
LENGTHS = (0, 1, 256, 1001, 1024, 5000)


class End:
    """A device made of some copy of the modules, with one queue pair and some memory."""

    def __init__(self, modules: Modules, name: str, address: str, seed: int) -> None:
        rc: Any = modules["ibwire.rc"]
        self.rc = rc
        self.address = address
        self.device = rc.Device(name, address, key_start=seed)
        pd = self.device.alloc_pd()
        self.memory = bytearray(random.Random(seed).randbytes(SIZE))
        """First what is sent, then what the peer reads and writes, then what is received."""
        view = memoryview(self.memory)
        self.outbox = pd.register(view[: SIZE // 4], 1)
        self.open = pd.register(view[SIZE // 4 : SIZE // 2], 15)
        self.inbox = pd.register(view[SIZE // 2 :], 1)
        self.cqs = self.device.create_cq(256), self.device.create_cq(256)
        cap = rc.QPCap(max_send_wr=64, max_recv_wr=64)
        self.qp = self.device.create_qp(rc.QPInit(rc.QPType.RC, pd, *self.cqs, cap=cap))
        self.expected = bytearray(self.memory)

    def connect(self, peer: End, psn: int, peer_psn: int) -> None:
        self.rc.bring_up(
            self.qp,
            self.rc.AddressVector(dgid=peer.device.gids[0]),
            dest_qp_num=peer.qp.number,
            sq_psn=psn,
            rq_psn=peer_psn,
        )
        for slot in range(len(LENGTHS) * 2):
            start = self.inbox.iova + slot % 4 * ROOM
            sge = self.rc.SGE(start, ROOM, self.inbox.lkey)
            self.qp.post_recv(self.rc.RecvWR([sge], slot))

    def post(self, name: str, length: int, local: int, peer: End, remote: int, **more: int) -> None:
        rc = self.rc
        sges = [rc.SGE(self.outbox.iova + local, length, self.outbox.lkey)] if length else []
        address = peer.open.iova + remote
        key = peer.open.rkey
        flags = rc.SendFlags.SIGNALED
        wr = rc.SendWR(rc.WROpcode[name], sges, flags, remote_addr=address, rkey=key, **more)
        self.qp.post_send(wr)

    def completions(self, number: int) -> list[tuple[int, int]]:
        """Status and length of each: sends, then receives."""
        return [(int(wc.status), wc.byte_len) for wc in self.cqs[number].poll(256)]


def exchange(end: End, peer: End) -> int:
    """Post one of everything, and note what memory must be like then; how many were posted."""
    quarter = SIZE // 4
    for number, length in enumerate(LENGTHS):
        end.post("SEND", length, 0, peer, 0)
        inbox = 2 * quarter + 2 * number % 4 * ROOM
        peer.expected[inbox : inbox + length] = end.memory[:length]
        end.post("RDMA_WRITE", length, 256, peer, 512)
        peer.expected[quarter + 512 : quarter + 512 + length] = end.memory[256 : 256 + length]
        end.post("RDMA_WRITE_WITH_IMM", length, 64, peer, 6000, imm_data=9)
        peer.expected[quarter + 6000 : quarter + 6000 + length] = end.memory[64 : 64 + length]
    for number, length in enumerate(LENGTHS[:3]):
        end.post("RDMA_READ", length, 8192 + 512 * number, peer, 12288)
        at = 8192 + 512 * number
        end.expected[at : at + length] = peer.memory[quarter + 12288 : quarter + 12288 + length]
    end.post("RDMA_READ", 5000, 11000, peer, 6000)
    end.expected[11000:16000] = peer.expected[quarter + 6000 : quarter + 11000]
    word = quarter + 16000
    before = peer.expected[word : word + 8]
    number = int.from_bytes(before, "little")
    end.post("ATOMIC_FETCH_AND_ADD", 8, 16064, peer, 16000, compare_add=5)
    end.expected[16064:16072] = before
    end.post("ATOMIC_CMP_AND_SWP", 8, 16072, peer, 16000, compare_add=number + 5, swap=77)
    end.expected[16072:16080] = (number + 5).to_bytes(8, "little")
    peer.expected[word : word + 8] = (77).to_bytes(8, "little")
    end.post("RDMA_WRITE", 24, 0, peer, 15000)
    peer.expected[quarter + 15000 : quarter + 15024] = end.memory[:24]
    return 3 * len(LENGTHS) + 7


@pytest.mark.parametrize(
    ("role", "original"),
    [
        ("responder", Emulation),
        ("requester", Emulation),
        ("cm", managed_emulation),
    ],
)
def test_what_a_fault_is_planted_in_is_a_copy_of_what_is_attacked(
    role: str, original: Callable[[Connection], Emulation]
) -> None:
    modules = copied(next(each for each in FUZZED.values() if each.role == role))

    target = getattr(modules[original.__module__], original.__name__)

    assert target is not original
    assert target(Connection()).answers() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FUZZED)
def test_plain_traffic_works_under_each_fault(name: str) -> None:
    """In both directions at once, with a peer that is right."""
    wrong = End(copied(FUZZED[name]), "wrong", "10.0.0.1", 1)
    right = End(ORIGINAL, "right", "10.0.0.2", 2)
    wrong.connect(right, 100, 500)
    right.connect(wrong, 500, 100)
    sim = Simulator()
    sim.connect(wrong.device, right.device, rate_bps=100 * GBPS, delay=US)
    posted = exchange(wrong, right), exchange(right, wrong)
    sim.run(until=sim.now + S)

    received = [(0, length) for length in LENGTHS for _ in range(2)]
    for end, count in zip((wrong, right), posted, strict=True):
        assert [status for status, _ in end.completions(0)] == [0] * count
        assert end.completions(1) == received
        assert end.memory == end.expected


SERVICE = 0x1061C06


def connection_manager(modules: Modules, end: End, seed: int) -> Any:
    made: Any = modules["ibwire.cm"]
    ids = made.identifiers(random.Random(seed))
    manager = made.ConnectionManager(end.device.gids, seed, ids)
    manager.listen(SERVICE)
    return manager


def converse(sides: tuple[tuple[End, Any], tuple[End, Any]]) -> None:
    """Deliver MADs in both directions until none is left."""
    for _ in range(8):
        for (end, manager), (peer, other) in (sides, sides[::-1]):
            while (message := manager.poll_transmit(0)) is not None:
                way = peer.rc.AddressVector(dgid=end.device.gids[0])
                other.handle_mad(message[0], way, 0)


@pytest.mark.parametrize("active", [0, 1], ids=["passive", "active"])
@pytest.mark.parametrize(
    "name", sampled((name for name, each in FUZZED.items() if each.role == "cm"), 6)
)
def test_connection_is_made_and_ended_under_each_fault_of_its_management(
    name: str, active: int
) -> None:
    modules = copied(FUZZED[name])
    right, wrong = End(ORIGINAL, "a", "10.0.0.1", 1), End(modules, "b", "10.0.0.2", 2)
    managers = connection_manager(ORIGINAL, right, 1), connection_manager(modules, wrong, 2)
    sides = (right, managers[0]), (wrong, managers[1])
    (asking, client), (asked, server) = sides[::-1] if active else sides

    request = ibwire.cm.request(
        service_id=SERVICE,
        source=asking.device.gids[0],
        destination=asked.device.gids[0],
        qpn=0x22,
        starting_psn=1,
    )
    ours = client.connect(replace(request), 0)
    converse(sides)
    theirs = server.poll_event().connection
    server.accept(theirs, cm.REP(local_qpn=0x33, starting_psn=2), 0)
    converse(sides)
    client.ready(ours, 0)
    converse(sides)
    established = ours.state.name, theirs.state.name
    client.disconnect(ours, 0)
    converse(sides)

    assert established == ("ESTABLISHED", "ESTABLISHED")
    assert (ours.state.name, theirs.state.name) == ("TIMEWAIT", "TIMEWAIT")


# Where a fault is so narrow that a generator may go by: that it can be seen at all.

WORD = int.from_bytes(pattern(0, 8), "little")
"""What the first atomic finds."""

WINDOW = {"atomiceth.va": ("mw.va", 0), "atomiceth.rkey": ("mw.rkey", 0)}

NARROW: dict[str, list[Packet]] = {
    "empty-last-of-a-send": [
        Packet(OpCode.RC_SEND_FIRST, length=256, fields={"bth.ack_req": 0}),
        Packet(OpCode.RC_SEND_LAST),
    ],
    "write-permission-enough-for-atomics": [Packet(OpCode.RC_FETCH_ADD, fields=WINDOW)],
    "compare-swap-compares-half": [
        Packet(OpCode.RC_COMPARE_SWAP, fields={"atomiceth.compare": WORD ^ 1 << 40}),
    ],
    "padding-of-a-write-stored": [
        Packet(
            OpCode.RC_RDMA_WRITE_FIRST,
            length=256,
            fields={"bth.ack_req": 0, "reth.dma_len": 257},
        ),
        Packet(OpCode.RC_RDMA_WRITE_LAST, length=1),
    ],
    "odd-write-across-a-page": [
        Packet(OpCode.RC_RDMA_WRITE_ONLY, length=256, at=9, fields={"reth.va": ("va", 4001)}),
    ],
}


@pytest.mark.parametrize("name", sampled(NARROW, 3))
def test_narrow_fault_shows_in_the_last_packet(name: str) -> None:
    connection = Connection()
    target = copied(FUZZED[name])["ibwire.fuzz.targets.emulated_device"].Emulation(connection)
    duel = ExactComparison(
        Binding(PEER_ADDRESS, ADDRESS),
        ibwire.fuzz.targets.emulated_device.Emulation(connection),
        target,
    )

    *before, last = [duel.step(step) for step in NARROW[name]]

    assert not any(before)
    assert last is not None
    assert last.kind in ("answer", "memory")
