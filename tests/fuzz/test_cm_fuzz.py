"""Attacks on the connection manager of a device: what they reach, find and leave alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import sampled, usual
from ibwire.base.node import Frame
from ibwire.base.units import S
from ibwire.cm.states import State
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    MESSAGES,
    Case,
    CaseError,
    Command,
    Connection,
    Mad,
    Packet,
    Step,
    Wait,
    from_json,
    step_text,
    to_json,
)
from ibwire.fuzz.judge.comparison import ExactComparison
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.emulated_manager import (
    BACKLOG,
    MAXIMUM_CONNECTIONS,
    OWN_TRANSACTION,
    managed_emulation,
    management_of,
)
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.cm.encoding import FORMS, encode_message
from ibwire.fuzz.vocabulary.operators import OPERATORS, Group
from ibwire.fuzz.vocabulary.vocabularies import (
    CONNECTION_MANAGER,
    MANAGER_OPENING,
    manager_generators,
)
from ibwire.rc.attributes import QPState
from ibwire.rc.unreliable import QP1
from ibwire_layers.headers import BTH, DETH
from ibwire_layers.mad import MAD
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import FIRMWARE, FUZZED, read_mutants

FAULTS = {name: mutant for name, mutant in FUZZED.items() if mutant.role == "cm"}

REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP = range(0x10, 0x19)
"""Attribute IDs (reference/cm#messages)."""

WHOLE = 14 + 20 + 8 + 12 + 8 + 256 + 4
"""Bytes of a MAD in its frame: Ethernet, IPv4, UDP, BTH, DETH and ICRC around it."""


class Alone:
    """A device and the fuzzer's way to it, without a second one to compare with."""

    def __init__(self, device: Emulation | None = None) -> None:
        self.device = device or managed_emulation(Connection())
        self.management = management_of(self.device)
        self._binding = Binding(PEER_ADDRESS, ADDRESS)

    def __call__(self, step: Step) -> list[Frame]:
        """Carry out a step: what the device sends."""
        device = self.device
        if isinstance(step, Wait):
            return [frame for _, frame in device.wait(step.time)]
        management = self.management
        management.choose(step.exchange if isinstance(step, Mad | Command) else management.exchange)
        if isinstance(step, Command):
            device.command(step)
        elif isinstance(step, Packet):
            device.receive(self._binding.frame(step, device.psn(step.psn[0]), device.symbols))
        return device.answers()

    def mads(self, *steps: Step) -> list[bytes]:
        """The MADs that the device sends."""
        return [frame[62:-4] for step in steps for frame in self(step) if len(frame) == WHOLE]


def say(message: str, exchange: int = 0, **fields: int | tuple[str, int]) -> Mad:
    given = {name.replace("__", "."): value for name, value in fields.items()}
    return Mad(message=message, exchange=exchange, fields=given)


def do(what: str, exchange: int = 0) -> Command:
    return Command(what, exchange)


def attribute(mad: bytes) -> int:
    """The attribute ID: 16 bits at byte 16 of the MAD."""
    return int.from_bytes(mad[16:18])


def transaction(mad: bytes) -> int:
    return int.from_bytes(mad[8:16])


def ids(mad: bytes) -> tuple[int, int]:
    """Local and remote communication ID: what the message begins with."""
    return int.from_bytes(mad[24:28]), int.from_bytes(mad[28:32])


def cases(seed: int, count: int) -> Iterator[tuple[Alone, Iterator[Step]]]:
    """Devices, and what each must do while it is observed, behind the opening of a run."""
    make = manager_generators(seed)
    for number in range(count):
        generator = make(MANAGER_OPENING + number)
        alone = Alone(managed_emulation(generator.connection))
        yield alone, iter(partial(generator.next, alone.device), None)


def test_connection_is_asked_for_made_used_and_ended() -> None:
    alone = Alone()

    (rep,) = alone.mads(say("REQ"), do("accept"))
    assert rep[:4] == bytes.fromhex("01070203")  # base version, CM, class version, Send
    assert attribute(rep) == REP
    assert transaction(rep) == OWN_TRANSACTION
    assert ids(rep)[1] == 0x0B0B0000
    assert alone.mads(say("RTU")) == []
    assert alone.management.exchange_state(0) is State.ESTABLISHED
    write = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8)
    (ack,) = alone(write)
    assert ack[42] == OpCode.RC_ACKNOWLEDGE
    assert int.from_bytes(ack[47:50]) == 0x200  # our queue pair of exchange 0
    (drep,) = alone.mads(say("DREQ"))
    assert attribute(drep) == DREP
    assert ids(drep) == ids(rep)
    assert alone(write) == []
    alone(Wait(300 * S))
    assert alone.management.exchange_state(0) is State.IDLE


def test_device_asks_for_a_connection_and_ends_it() -> None:
    alone = Alone()

    (req,) = alone.mads(do("connect"))
    assert attribute(req) == REQ
    (rtu,) = alone.mads(say("REP"), do("ready"))
    assert (attribute(rtu), transaction(rtu)) == (RTU, transaction(req))
    assert ids(rtu) == (ids(req)[0], 0x0B0B0000)
    (dreq,) = alone.mads(do("disconnect"))
    assert attribute(dreq) == DREQ
    assert alone.mads(say("DREP")) == []
    assert alone.management.exchange_state(0) is State.TIMEWAIT


def test_data_stands_for_a_lost_rtu() -> None:
    alone = Alone()
    alone.mads(say("REQ"), do("accept"))

    alone(Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8))

    assert alone.management.exchange_state(0) is State.ESTABLISHED


def test_service_is_resolved_in_both_directions() -> None:
    alone = Alone()

    (answer,) = alone.mads(say("SIDR_REQ"), do("accept"))
    assert attribute(answer) == SIDR_REP
    assert ids(answer)[0] == 0x0B0B0000
    (asked,) = alone.mads(do("resolve", 1))
    assert attribute(asked) == SIDR_REQ
    alone(say("SIDR_REP", 1))
    assert alone.management.exchange_state(1) is State.IDLE


def test_exchanges_have_their_own_numbers() -> None:
    alone = Alone()

    (one,) = alone.mads(say("REQ", 1), do("accept", 1))
    (two,) = alone.mads(say("REQ", 2), do("accept", 2))
    assert ids(one)[0] != ids(two)[0]
    assert (ids(one)[1], ids(two)[1]) == (0x0B0B0001, 0x0B0B0002)
    (drep,) = alone.mads(say("DREQ", 2))
    assert ids(drep) == ids(two)
    assert alone.management.exchange_state(1) is State.REP_SENT


@pytest.mark.slow
def test_attacks_reach_every_state_and_come_from_every_group() -> None:
    campaign = Campaign(
        EmulatorTestbed(managed_emulation, CONNECTION_MANAGER), manager_generators(3)
    )

    assert list(campaign.run(4000)) == []
    table = campaign.report.coverage.table()
    states = {state for row in table.values() for state, cell in row.items() if cell}
    assert states >= {state.name for state in State}
    assert all(any(row.values()) for row in table.values())
    assert {each.group for each in OPERATORS} == set(Group)


@pytest.mark.slow
@pytest.mark.parametrize("packets", [4000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_nothing_is_found_in_the_unmodified_device(packets: int) -> None:
    campaign = Campaign(
        EmulatorTestbed(managed_emulation, CONNECTION_MANAGER), manager_generators(1)
    )

    assert list(campaign.run(packets)) == []
    assert not campaign.report.unstable
    assert campaign.report.packets == packets


@cache
def found(name: str) -> tuple[Callable[..., Emulation], Finding]:
    """A device with a planted fault, and what is found in it first."""
    device = copied(FAULTS[name])["ibwire.fuzz.targets.emulated_manager"].managed_emulation
    campaign = Campaign(
        EmulatorTestbed(device, CONNECTION_MANAGER), manager_generators(1), explains=False
    )
    return device, next(campaign.run(20_000))


@pytest.mark.parametrize("name", sampled(FAULTS, 6))
def test_planted_fault_is_found_made_short_and_replays(name: str) -> None:
    device, finding = found(name)

    assert finding.case.packets <= 5
    assert "docs/reference/cm.md#" in finding.rule
    saved = from_json(to_json(finding.case))
    assert saved == finding.case
    assert (
        Campaign(EmulatorTestbed(device, CONNECTION_MANAGER), manager_generators(1)).judge.replay(
            saved
        )
        is not None
    )
    assert (
        Campaign(
            EmulatorTestbed(managed_emulation, CONNECTION_MANAGER), manager_generators(1)
        ).judge.replay(saved)
        is None
    )


def test_a_dreq_with_the_retries_that_the_req_has_left_is_found() -> None:
    """Messages of the device are lost before a connection is made, and at its end."""
    fault = read_mutants(FIRMWARE)["retries-shared-after-mra"]
    device = copied(fault)["ibwire.fuzz.targets.emulated_manager"].managed_emulation
    campaign = Campaign(
        EmulatorTestbed(device, CONNECTION_MANAGER), manager_generators(1), explains=False
    )

    assert next(campaign.run(3_000), None) is not None


@pytest.mark.parametrize("name", sampled(FAULTS, 6))
def test_case_replays_where_both_sides_choose_other_ids(name: str) -> None:
    device, finding = found(name)
    case = finding.case

    reference = managed_emulation(case.connection, seed=77, own_id=0x4000)
    target = device(case.connection, seed=77, own_id=0x4000)
    again = ExactComparison(Binding(PEER_ADDRESS, ADDRESS), reference, target)
    differences = [again.step(step) for step in case.steps]

    assert differences[:-1] == [None] * (len(differences) - 1)
    assert differences[-1] is not None
    assert 0x0B0B0000 not in reference.symbols.values()


def test_cases_read_back_as_they_were() -> None:
    for alone, steps in cases(seed=4, count=usual(40, quick=20)):
        done: list[Step] = []
        for step in steps:
            done.append(step)
            alone(step)
        case = Case(Connection(), tuple(done))

        assert from_json(to_json(case)) == case
        assert len({step_text(step) for step in done}) > 1


@pytest.mark.slow
def test_every_answer_is_a_right_message_of_its_exchange() -> None:
    """REP, RTU, REJ have the REQ's transaction, DREP the DREQ's (reference/cm#transaction)."""
    seen: Counter[int] = Counter()
    for alone, steps in cases(seed=5, count=80):
        asked: set[int] = set()
        for step in steps:
            said = said_transaction(alone, step)
            asked |= said
            frames = alone(step)
            asked |= transactions(alone)
            mads = [frame for frame in frames if frame[42] == OpCode.UD_SEND_ONLY]
            assert len(mads) <= 2 or isinstance(step, Wait)
            for frame in mads:
                mad = frame[62:-4]
                seen[attribute(mad)] += 1
                assert len(frame) == WHOLE
                assert frame[47:50] == frame[59:62] == bytes((0, 0, 1))  # QP1, both ways
                assert frame[54:58] == bytes.fromhex("80010000")
                assert mad[:8] == bytes.fromhex("0107020300000000")
                assert transaction(mad) in asked
                if attribute(mad) == DREP:
                    assert transaction(mad) in said
                if attribute(mad) == REJ:
                    assert 1 <= int.from_bytes(mad[34:36]) <= 33
    assert set(seen) == set(range(REQ, SIDR_REP + 1))


def test_neither_confirmations_nor_refusals_are_answered() -> None:
    for alone, steps in cases(seed=6, count=usual(60, quick=20)):
        for step in steps:
            frames = alone(step)
            if isinstance(step, Mad) and not any(name.startswith("mad.") for name in step.fields):
                assert not frames or step.message not in ("DREP", "REJ", "MRA", "LAP", "APR")


@pytest.mark.slow
def test_after_any_messages_all_exchanges_end_and_nothing_is_left() -> None:
    for alone, steps in cases(seed=7, count=60):
        device = alone.device
        fresh = bytes(device.memory)
        for step in steps:
            alone(step)
        for connection in list(alone.management.manager.connections):
            if connection.state is State.ESTABLISHED:
                alone.management.manager.disconnect(connection, device.now)
            elif connection.state in UNDECIDED:
                alone.management.manager.reject(connection, device.now)
        alone(Wait(2000 * S))
        alone(Wait(1))

        assert not len(alone.management.manager.connections)
        assert alone.management.manager.poll_timeout() is None
        kept = {number: qp.state for number, qp in device.device.qps.items()}
        del kept[QP1], kept[device.qp.number]
        assert set(kept.values()) <= {QPState.RESET}  # they wait for other connections
        assert len(kept) <= 2 * MAXIMUM_CONNECTIONS
        assert device.memory[8192:] == fresh[8192:]  # what no key of the peer opens


def test_connection_beside_lives_through_everything() -> None:
    for alone, steps in cases(seed=8, count=40):
        for step in steps:
            if isinstance(step, Mad | Command | Wait):
                alone(step)

        assert alone.device.is_alive


@each_case("message", MESSAGES)
def test_mad_of_every_length_but_the_right_one_is_dropped(message: str) -> None:
    alone = Alone()
    alone.mads(say("REQ"), do("accept"))

    for length in range(20 + 256):
        assert alone.mads(replace(say(message), cut=length)) == []
    for length in (1, 4, 256):
        assert alone.mads(replace(say(message), more=length)) == []
    assert alone.management.exchange_state(0) is State.REP_SENT


def test_requests_beyond_the_backlog_and_beyond_all_room_are_dropped() -> None:
    alone = Alone()
    for exchange in range(BACKLOG + 3):
        alone(say("REQ", exchange))
    assert len(alone.management.manager.connections) == BACKLOG

    alone = Alone()
    for exchange in range(MAXIMUM_CONNECTIONS + 3):
        alone.mads(say("REQ", exchange), do("accept", exchange))
    assert len(alone.management.manager.connections) == MAXIMUM_CONNECTIONS


@each_case("field", ["rep.local_qpn", "req.no_such_field", "mad.class", "bth.nothing", "nothing"])
def test_field_that_a_message_does_not_have_is_refused(field: str) -> None:
    with pytest.raises(CaseError):
        Alone()(replace(say("REQ"), fields={field: 1}))


@each_case(
    ("step", "where"),
    [
        ({"step": "mad", "message": "HELLO"}, "steps[0].message"),
        ({"step": "mad", "exchange": 4096}, "steps[0].exchange"),
        ({"step": "command"}, "steps[0].what"),
        ({"step": "command", "what": "explode"}, "steps[0].what"),
        ({"step": "command", "what": ["accept"]}, "steps[0].what"),
    ],
)
def test_invalid_step_is_refused_with_its_position(step: dict[str, object], where: str) -> None:
    with pytest.raises(CaseError) as caught:
        from_json(json.dumps({"ibwire-fuzz-case": 1, "steps": [step]}))

    assert where in str(caught.value)


@settings(deadline=None)
@given(st.data())
def test_frame_of_a_message_is_what_the_schema_packs(data: st.DataObject) -> None:
    """BTH, DETH, MAD and message one after the other, each with every field that it has."""
    name = data.draw(st.sampled_from(MESSAGES))
    form = FORMS[name]
    kinds = BTH, DETH, MAD, form.kind
    fields = [f"{kind.KEY.split('.')[-1]}.{each.name}" for kind in kinds for each in kind.FIELDS]
    numbers = st.integers(0, (1 << 130) - 1)
    symbols = {symbol: data.draw(numbers) for symbol in (*form.symbols.values(), "transaction")}
    given_fields = data.draw(st.dictionaries(st.sampled_from(fields), numbers, max_size=4))
    psn = data.draw(st.integers(0, (1 << 24) - 1))

    values: dict[str, dict[str, Any]] = {
        "bth": {"opcode": 0x64, "mig_req": 1, "pkey": 0xFFFF, "dest_qp": 1, "psn": psn},
        "deth": {"qkey": 0x80010000, "src_qp": 1},
        "mad": {"mgmt_class": 7, "class_version": 2, "method": 3},
        form.kind.KEY.split(".")[-1]: dict(form.values),
    }
    values["mad"] |= {"attribute_id": form.attribute, "transaction_id": symbols["transaction"]}
    values[form.kind.KEY.split(".")[-1]] |= {
        field: symbols[symbol] for field, symbol in form.symbols.items()
    }
    for field, value in given_fields.items():
        part, _, key = field.partition(".")
        values[part][key] = value
    expected = b""
    for kind in kinds:
        said = values[kind.KEY.split(".")[-1]]
        for each in kind.FIELDS:
            if each.name in said and each.is_octets:
                number = said[each.name] & (1 << 64) - 1  # the first eight bytes
                said[each.name] = number.to_bytes(8).ljust(each.size // 8, b"\0")
            elif each.name in said:
                said[each.name] &= (1 << each.size) - 1
            elif each.default is None:
                said[each.name] = 0
        expected += kind(**said).pack()

    assert encode_message(Mad(message=name, fields=given_fields), psn, symbols) == expected


def said_transaction(alone: Alone, step: Step) -> set[int]:
    """The transaction ID of a message that is sent now."""
    if not isinstance(step, Mad):
        return set()
    alone.management.choose(step.exchange)
    value = step.fields.get("mad.transaction_id", ("transaction", 0))
    number = value if isinstance(value, int) else alone.device.symbols[value[0]] + value[1]
    return {number & (1 << 64) - 1}


def transactions(alone: Alone) -> set[int]:
    """Those of the device's own requests."""
    return {each.transaction_id for each in alone.management.manager.connections}


UNDECIDED = (
    State.REQ_RCVD,
    State.MRA_REQ_SENT,
    State.SIDR_REQ_RCVD,
    State.REP_RCVD,
    State.MRA_REP_SENT,
)
"""States in which the application's word is waited for."""
