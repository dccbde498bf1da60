"""`[cc]` of a scenario: every name of mlx5's `cc_params` has an effect, or is refused."""

import re
from pathlib import Path
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.rc.congestion import Parameters
from ibwire.scenario.model import read_scenario
from ibwire.scenario.specs import ControlSpec

PAGE = Path(__file__).parents[2] / "docs/reference/congestion.md"

CC_PARAMS = [
    "rp_clamp_tgt_rate",
    "rp_clamp_tgt_rate_ati",
    "rp_time_reset",
    "rp_byte_reset",
    "rp_threshold",
    "rp_ai_rate",
    "rp_max_rate",
    "rp_hai_rate",
    "rp_min_dec_fac",
    "rp_min_rate",
    "rp_rate_to_set_on_first_cnp",
    "rp_dce_tcp_g",
    "rp_dce_tcp_rtt",
    "rp_rate_reduce_monitor_period",
    "rp_initial_alpha_value",
    "rp_gd",
    "np_min_time_between_cnps",
    "np_cnp_dscp",
    "np_cnp_prio_mode",
    "np_cnp_prio",
    "rtt_resp_dscp_valid",
    "rtt_resp_dscp",
]
"""`mlx5_ib_dbg_cc_name` of Linux drivers/infiniband/hw/mlx5/cong.c."""


def control(text: str) -> ControlSpec:
    flow = "[[flow]]\nfrom = 'h0'\nto = 'h1'\n"
    scenario = read_scenario(
        f"[topology]\nkind = 'star'\nhosts = 2\n{flow}[cc]\n{text}".encode(), "x.toml"
    )
    assert scenario.control is not None
    return scenario.control


def documented() -> dict[str, str]:
    """Default of ConnectX by name, from the page."""
    return dict(re.findall(r"^\| `((?:rp|np|rtt)_\w+)` \|[^|]*\| (\w+) \|", PAGE.read_text(), re.M))


def test_page_has_all_names_of_mlx5_in_their_order() -> None:
    assert list(documented()) == CC_PARAMS


def test_defaults_are_those_of_the_page() -> None:
    given = documented()
    usual = control("")
    parameters: Parameters = usual.make(10**11).parameters  # type: ignore[attr-defined]

    assert {name: str(getattr(parameters, name)) for name in CC_PARAMS[:16]} == {
        name: given[name] for name in CC_PARAMS[:16]
    }
    found = (usual.interval // 10**6, usual.dscp, int(usual.follows_priority), usual.priority)
    assert [str(value) for value in found] == [given[name] for name in CC_PARAMS[16:20]]


@each_case("name", CC_PARAMS[:16])
def test_parameter_of_the_reaction_point_reaches_each_queue_pair(name: str) -> None:
    parameters = control(f"{name} = 1").make(10**11).parameters  # type: ignore[attr-defined]

    assert getattr(parameters, name) == 1


def test_parameters_of_the_notification_point() -> None:
    found = control("np_min_time_between_cnps = 7\nnp_cnp_dscp = 20\nnp_cnp_prio = 5\n")

    assert (found.interval, found.dscp, found.priority) == (7 * 10**6, 20, 5)
    assert control("np_cnp_prio_mode = 1").follows_priority
    assert not control("np_cnp_prio_mode = 0\nnp_cnp_prio = 5").follows_priority


@pytest.mark.parametrize(
    ("algorithm", "low", "high"),
    [
        ("timely", "t_low = '600us'", "t_high = '900us'"),
        ("swift", "fs_min_cwnd = 150.0", "fs_max_cwnd = 200.0"),
        ("swift", "min_cwnd = 300.0", "max_cwnd = 400.0"),
    ],
)
def test_limits_of_one_value_may_both_be_beyond_their_defaults(
    algorithm: str, low: str, high: str
) -> None:
    found = control(f"algorithm = '{algorithm}'\n{high}\n{low}\n")

    parameters: Any = found.make(10**11).parameters  # type: ignore[attr-defined]
    for line in (low, high):
        name, value = line.split(" = ")
        assert str(getattr(parameters, name)) in (value, value.strip("'").replace("us", "000000"))


def test_priority_of_cnps_that_follow_their_connection_is_refused() -> None:
    # Linux mlx5 cong.c: writing np_cnp_prio sets the mode to 0, so an adapter never has both.
    with pytest.raises(ScriptError, match="no effect with np_cnp_prio_mode = 1") as caught:
        control("np_cnp_prio_mode = 1\nnp_cnp_prio = 5")

    assert "np_cnp_prio" in str(caught.value)


@pytest.mark.parametrize("algorithm", ["dcqcn", "timely"])
@pytest.mark.parametrize("name", CC_PARAMS[20:])
def test_dscp_of_rtt_responses_is_refused_with_the_reason(name: str, algorithm: str) -> None:
    with pytest.raises(ScriptError, match="answers to the RTT requests of mlx5") as caught:
        control(f"algorithm = '{algorithm}'\n{name} = 1")

    assert "x.toml:9:" in str(caught.value)
    assert f"cc.{name}" in str(caught.value)
