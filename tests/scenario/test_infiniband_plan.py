"""Metrics of transfers over an InfiniBand fabric."""

from __future__ import annotations

from ibwire.base.units import MS
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.routing import bring_up
from ibwire.rc.work import WCStatus
from ibwire.scenario.infiniband import FabricTraffic
from ibwire.scenario.infiniband_plan import metrics_of


def test_a_transfer_that_failed_has_no_rate() -> None:
    subnet = generate("star:hosts=3")
    bring_up(subnet)
    traffic = FabricTraffic(subnet)
    first, second, third = (node.ports[1] for node in subnet.nodes.values() if not node.is_switch)
    failed = traffic.add(first, second, 10_000, timeout=1, retry_cnt=0)
    traffic.add(first, third, 10_000)
    traffic.fabric.fail(second)

    traffic.run(10 * MS)

    metrics = metrics_of(traffic)
    assert failed.status is WCStatus.RETRY_EXC_ERR
    assert (metrics["failed"], metrics["success"]) == (1, 1)
    assert metrics["rate.min"] == 0 < metrics["rate.max"]
    assert metrics["fairness"] == 500
