"""Metrics of runs, against what is counted or computed by hand."""

from __future__ import annotations

import pytest

from ibwire.base.units import US
from ibwire.scenario import read_scenario, run

FLOW = '[[flow]]\nfrom = "h1"\nto = "h0"\nsize = "1 kB"\n'


def metrics_of(text: str, hosts: int = 2) -> dict[str, int]:
    text = f'[topology]\nkind = "star"\nhosts = {hosts}\n{text}'
    return dict(run(read_scenario(text.encode(), "x.toml")).metrics)


def fault(sender: str, rule: str) -> str:
    return f'[[wire]]\nbetween = ["{sender}", "s0"]\n[[wire.faults.{sender}]]\n{rule}\n'


def test_frame_to_an_unknown_host_is_dropped_for_want_of_a_route() -> None:
    rule = "rewrite = { nth = 1, set = { eth.dst = 0x020000090909 } }"
    metrics = metrics_of(FLOW + fault("h1", rule))

    drops = {name: value for name, value in metrics.items() if name.startswith("drops.") and value}
    assert drops == {"drops.all": 1, "drops.no_route": 1}
    assert (metrics["timeouts"], metrics["verified"]) == (1, 1)


@pytest.mark.parametrize(
    ("rule", "ghosts", "unexpected"),
    [
        ("duplicate = { nth = 1 }", 1, 0),
        # One packet was sent: with another PSN, its ACK is for none.
        ("rewrite = { nth = 1, set = { bth.psn = 77 } }", 0, 1),
    ],
)
def test_responses_that_answer_nothing_are_counted(rule: str, ghosts: int, unexpected: int) -> None:
    metrics = metrics_of(FLOW + fault("h0", rule))

    assert (metrics["ghost_acks"], metrics["unexpected_responses"]) == (ghosts, unexpected)


def test_refused_messages_of_uc_are_dropped_and_those_with_a_gap_are_lost_too() -> None:
    """Of four messages the first has a gap; for the last two there is no receive request."""
    metrics = metrics_of(
        '[[connection]]\ntype = "UC"\nbetween = ["h1", "h0"]\n'
        '[[workload]]\nopcode = "SEND"\nsize = 4096\ncount = 4\n'
        "receives = { posted = 1, repost = false }\n" + fault("h1", "drop = { nth = 2 }")
    )

    assert (metrics["lost"], metrics["dropped_messages"]) == (3, 2)


def test_means_are_those_of_two_flows_that_do_not_meet() -> None:
    """The second flow loses its packet, and sends it again when its timer has expired."""
    # Both lines of the way store a packet: 58 bytes of headers, 16 of RETH, 24 besides the frame;
    # an ACK has 62 and 24. A byte takes 80 ps, each of the four lines 1 us.
    large = 4 * US + 2 * (1000 + 58 + 16 + 24 + 62 + 24) * 80
    small = 4 * US + 2 * (100 + 58 + 16 + 24 + 62 + 24) * 80
    timer = 4_096_000 << 14  # IBA 9.7.6.1.3: 4.096 us times 2 to the timeout, 14 here
    second = '[[flow]]\nfrom = "h3"\nto = "h2"\nsize = 100\ntimeout = 14\n'

    metrics = metrics_of(FLOW + second + fault("h3", "drop = { nth = 1 }"), hosts=4)

    assert metrics["fct.mean"] == (large + small + timer) // 2
    assert metrics["slowdown.mean"] == (1000 + (small + timer) * 1000 // small) // 2
