"""`ibwire fuzz --role requester` against a device of ours on a real link: its agent asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from live.fuzzing import Fuzz, Serve

DEVIATIONS = {
    "7 retries are for ever",
    "BTH.MigReq is 0 without an alternate path",
    "a READ response to another request does not end it with BAD_RESP_ERR",
    "a gap in the responses of a READ waits for the timeout",
    "a reserved syndrome ends the connection",
    "a response out of place does not end its request with BAD_RESP_ERR",
    "an answer to what was never sent acknowledges what was",
    "requests are sent during an RNR wait",
    "the length of READ responses is not checked, and the READ waits for more",
}
"""Of profile rxe, as far as its requester shows them (docs/reference/habits.md)."""


@pytest.mark.parametrize("role", ["requester", "both"])
@pytest.mark.parametrize("profile", ["spec", "rxe"])
def test_a_device_like_its_reference_raises_no_alarm(
    serve: Serve, fuzz: Fuzz, profile: str, role: str
) -> None:
    serve("drill_agent.py", profile)

    status, output, errors = fuzz(
        "--role",
        role,
        "--budget",
        "700pkt,60s",
        "--seed",
        5,
        "--tolerance",
        50,
        "--profile",
        profile,
        "--json",
    )

    run = json.loads(output.splitlines()[-1])
    assert (status, run["findings"], run["unstable"]) == (0, {}, {}), output + errors
    assert run["role"] == role
    assert run["packets"] >= 300


def test_known_deviations_are_found_by_name(serve: Serve, fuzz: Fuzz, tmp_path: Path) -> None:
    """With short cases, which replay; the run continues."""
    serve("drill_agent.py", "rxe")
    directory = tmp_path / "found"

    status, output, errors = fuzz(
        "--role",
        "requester",
        "--ops",
        "reply",
        "--seed",
        14,
        "--budget",
        "600pkt,80s",
        "-o",
        directory,
        "--json",
    )
    *found, run = map(json.loads, output.splitlines())
    names = {name for each in found for name in each["bucket"].split("; ")}
    numbers = {each["bucket"]: each["number"] for each in found}
    gap = "a gap in the responses of a READ waits for the timeout"
    replayed = fuzz("replay", directory / f"F{numbers[gap]:04}")
    resumed = fuzz("--resume", directory, "--budget", "20pkt")

    assert names >= DEVIATIONS, errors
    assert status == 1
    assert run["lost"] is None
    cases = [each["case"]["steps"] for each in found]
    assert all(sum(step["step"] == "packet" for step in steps) <= 5 for steps in cases)
    assert replayed[0] == 1, replayed
    assert "differs at step" in replayed[1]
    assert resumed[0] == 1, resumed


def test_a_case_that_asks_with_an_ack_timeout_is_refused_in_one_sentence(
    serve: Serve, fuzz: Fuzz, tmp_path: Path
) -> None:
    serve("drill_agent.py", "spec")
    case = tmp_path / "case.json"
    case.write_text(
        '{"ibwire-fuzz-case": 1, "connection": {"timeout": 14},'
        ' "steps": [{"step": "post", "opcode": "SEND", "length": 8}]}'
    )

    status, _, errors = fuzz("replay", case)

    assert status == 2
    assert "a device on a link asks with timeout 0 or 17 only" in errors
    assert "Traceback" not in errors
