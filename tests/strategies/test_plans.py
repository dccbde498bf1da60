"""Generated plans are valid wherever plans are used, and keep their limits."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import scaled, usual
from ibwire.base.errors import EncodeError
from ibwire.impair import build_pipe
from ibwire.impair.replies import Answering, Partners
from ibwire.rc.work import SendFlags, WCStatus, WROpcode
from ibwire.scenario import read_scenario
from ibwire.strategies import NETWORK_ACTIONS, fault_plans, packets, psns, work_requests
from ibwire.testing import Pair
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet

ALL = (*NETWORK_ACTIONS, "rewrite", "cnp", "nak", "pfc")


def answering() -> tuple[list[bytes], Answering]:
    sent: list[bytes] = []
    return sent, Answering(lambda frame, *rest: sent.append(frame), Partners())


def as_toml(value: Any) -> str:
    """An inline value; JSON's numbers and strings are TOML's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value)


@settings(max_examples=scaled(150))
@given(fault_plans(actions=ALL), st.sampled_from((LinkType.ETHERNET, LinkType.INFINIBAND)))
def test_every_plan_is_taken(plan: list[Any], link_type: LinkType) -> None:
    pipe = build_pipe(plan, link_type=link_type, answering=answering()[1])

    assert len(pipe.stages) == len(plan)


@given(fault_plans())
def test_a_scenario_takes_a_plan_as_text(plan: list[Any]) -> None:
    text = f"[[wire]]\nfaults.a = {as_toml(plan)}\n[[workload]]\n"

    scenario = read_scenario(text.encode(), "made.toml")

    assert scenario.wires[0].faults["a"] == plan


@pytest.mark.parametrize("action", ALL)
def test_each_action_is_made(action: str) -> None:
    made: list[Any] = []

    @settings(max_examples=usual(20, quick=5), database=None)
    @given(fault_plans(actions=[action], max_rules=1))
    def gather(plan: list[Any]) -> None:
        made.extend(plan)

    gather()
    assert {key for rule in made for key in rule} == {action}


@pytest.mark.slow
@settings(max_examples=60)
@given(
    fault_plans(actions=ALL, max_hits=3),
    st.lists(packets(links=["rocev2"], psn=st.integers(0, 40)), min_size=1, max_size=4),
)
def test_no_rule_matches_more_than_the_maximum_number_of_frames(
    plan: list[Any], made: list[Packet]
) -> None:
    pipe = build_pipe(plan, answering=answering()[1])
    frames = [packet.build() for packet in made] * 30

    for number, frame in enumerate(frames):
        pipe(frame, number * 10_000_000)

    assert all(stage.hits <= 3 for stage in pipe.stages)  # type: ignore[attr-defined]


ends = st.fixed_dictionaries(
    {},
    optional={name: fault_plans(actions=NETWORK_ACTIONS, max_rules=3, max_hits=2) for name in "ab"},
)


@settings(max_examples=scaled(80))
@given(st.data(), ends, psns(), st.sampled_from(("spec", "rxe", "connectx")))
def test_pair_survives_bounded_faults_with_its_data_or_an_error(
    data: st.DataObject, faults: dict[str, Any], psn: int, profile: str
) -> None:
    """Six rules of two frames each are at most twelve harms, in a row perhaps: with seven
    retries a request may fail, and then it must say so."""
    pair = Pair(profile=profile, mtu=256, psn_a=psn, faults=faults, timeout=8)
    half = pair.a.mr.length // 2
    pair.a.write(0, random.Random(1).randbytes(half))
    pair.b.write(0, random.Random(2).randbytes(half))
    opcode = data.draw(st.sampled_from((WROpcode.RDMA_WRITE, WROpcode.SEND, WROpcode.RDMA_READ)))
    lengths = data.draw(st.lists(st.integers(0, 2000), min_size=1, max_size=4))
    for number, length in enumerate(lengths):
        place = 4096 * number
        pair.b.post_recv(2000, offset=half + place)
        to = place if opcode is WROpcode.RDMA_READ else half + place
        own = half + place if opcode is WROpcode.RDMA_READ else place
        pair.a.post_send(opcode, length, offset=own, remote=to, wr_id=number)

    pair.run()

    done = pair.a.poll_send_cq()
    assert [wc.wr_id for wc in done] == list(range(len(lengths)))
    reader, writer = (pair.a, pair.b) if opcode is WROpcode.RDMA_READ else (pair.b, pair.a)
    for wc, length in zip(done, lengths, strict=True):
        if wc.status is WCStatus.SUCCESS:
            place = 4096 * wc.wr_id
            assert reader.read(half + place, length) == writer.read(place, length)


@settings(max_examples=scaled(60))
@given(st.data(), fault_plans(), fault_plans())
def test_pair_comes_to_rest_with_any_plans(
    data: st.DataObject, there: list[Any], back: list[Any]
) -> None:
    pair = Pair(mtu=256, faults={"a": there, "b": back}, timeout=6, retry_cnt=2, rnr_retry=2)
    requests = work_requests(pair.a.mr, pair.b.mr, mtu=256, max_length=2000)
    for wr in data.draw(st.lists(requests, min_size=1, max_size=3)):
        wr.send_flags &= ~SendFlags.SOLICITED
        pair.b.post_recv(2000)
        pair.a.qp.post_send(wr)

    assert pair.run() == "idle"
    assert all(wc.status in list(WCStatus) for wc in pair.a.poll_send_cq())


def test_unknown_action_is_refused() -> None:
    with pytest.raises(EncodeError, match="flood"):
        fault_plans(actions=["flood"])
