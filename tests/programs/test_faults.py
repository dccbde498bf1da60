"""Plans of faults for live devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibwire.base.errors import ScriptError
from ibwire.programs.faults import read_faults

FRAME = bytes(60)


def written(path: Path, text: str) -> str:
    file = path / "plan.toml"
    file.write_text(text)
    return str(file)


def test_directions_have_rules_of_their_own(tmp_path: Path) -> None:
    faults = read_faults(written(tmp_path, "[[in]]\nloss = 1.0\n[[out]]\nduplicate = 1.0\n"))

    assert faults.inbound is not None
    assert faults.outbound is not None
    assert list(faults.inbound(FRAME, 0)) == []
    assert [frame for _, frame in faults.outbound(FRAME, 0)] == [FRAME, FRAME]
    assert faults.hits == 2


def test_direction_without_rules_is_nothing(tmp_path: Path) -> None:
    faults = read_faults(written(tmp_path, "[[out]]\nloss = 0.5\n"))

    assert faults.inbound is None
    assert faults.hits == 0


def test_seed_decides_what_is_lost(tmp_path: Path) -> None:
    def kept(seed: int) -> list[bool]:
        text = f"seed = {seed}\n[[in]]\nloss = 0.5\n"
        pipe = read_faults(written(tmp_path, text)).inbound
        assert pipe is not None
        return [bool(pipe(FRAME, 0)) for _ in range(64)]

    assert kept(1) == kept(1)
    assert kept(1) != kept(2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[in]]\nloss = 2.0\n", "plan.toml:2:8: in[0].loss"),
        ("[[inbound]]\nloss = 0.1\n", "plan.toml:1:"),
        ("in = 5\n", "plan.toml:1:6: in"),
        ("[[in]\n", "plan.toml:1:"),
    ],
)
def test_wrong_plan_says_where(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ScriptError) as caught:
        read_faults(written(tmp_path, text))

    assert reason in str(caught.value)


def test_missing_plan_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="No such file"):
        read_faults(str(tmp_path / "nothing.toml"))
