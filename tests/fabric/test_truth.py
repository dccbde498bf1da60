"""Networks of switches against the numbers of ns-3 HPCC: reference/fabric#shared-buffer."""

import json
from typing import Any

import pytest

from ibwire.base.units import NS
from truth.network import PRIORITY, Run
from truth.sets import DATA

INCAST = json.loads((DATA / "pfc_incast.json").read_text())["sets"]


@pytest.mark.parametrize("found", INCAST, ids=lambda each: f"{each['setup']['senders']} to 1")
def test_incast_pauses_as_the_other_simulator_does(found: Any) -> None:
    run = Run(found["setup"])

    run.run()

    assert run.drops == 0
    # Real PFC frames and ACKs are longer than there, by 4 and 2 ns; that adds up at the end.
    assert run.end == pytest.approx(found["end_ns"] * NS, rel=0.0002)
    for flow, there in zip(run.flows, found["flows"], strict=True):
        assert flow.duration == pytest.approx(there["fct_ns"] * NS, rel=0.0002)
    (switch,) = run.network.switches.values()
    for port, there in zip(switch.counters, found["ports"], strict=True):
        assert port.pauses_sent[PRIORITY] == there["pause"]
        assert port.resumes_sent[PRIORITY] == there["resume"]
    last = switch.counters[-1]
    assert last.largest_queue[PRIORITY] == found["ports"][-1]["maxq"]
