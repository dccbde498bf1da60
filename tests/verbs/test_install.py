"""`install_as_pyverbs` replaces pyverbs."""

from __future__ import annotations

import errno
import importlib
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import ibwire.verbs
from ibwire.verbs import install_as_pyverbs, uninstall
from ibwire.verbs.absent import ABSENT
from ibwire.verbs.install import PRESENT
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError


@pytest.fixture
def installed() -> Iterator[None]:
    install_as_pyverbs()
    yield
    uninstall()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", PRESENT)
def test_module_is_ours_under_both_names(name: str) -> None:
    module = importlib.import_module(f"pyverbs.{name}")

    assert module is importlib.import_module(f"ibwire.verbs.{name}")
    assert getattr(sys.modules["pyverbs"], name) is module


@pytest.mark.usefixtures("installed")
def test_script_runs_unchanged() -> None:
    script = (
        "import pyverbs.device as d\n"
        "from pyverbs.pd import PD\n"
        "import pyverbs.enums as e\n"
        "with d.Context(name=d.get_device_list()[0].name.decode()) as ctx, PD(ctx) as pd:\n"
        "    found = ctx.query_port(1).state == e.IBV_PORT_ACTIVE\n"
    )
    names: dict[str, object] = {}
    exec(script, names)

    assert names["found"] is True


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ABSENT)
def test_what_is_absent_can_be_imported_and_subclassed_but_not_made(name: str) -> None:
    module = importlib.import_module(f"pyverbs.{name}")
    kind = module.Anything
    assert kind is module.Anything
    assert not isinstance(3, kind)

    class Own(kind):  # type: ignore[misc, valid-type]
        pass

    with pytest.raises(PyverbsRDMAError) as pyverbs_errors:
        Own(1, two=3)
    assert pyverbs_errors.value.error_code == errno.EOPNOTSUPP


@pytest.mark.usefixtures("installed")
def test_nested_names_are_attributes() -> None:
    import pyverbs.providers.mlx5.mlx5dv as dv  # type: ignore[import-not-found]

    assert dv.Mlx5Context.__name__ == "Mlx5Context"
    assert dv.mlx5dv_dc_type.MLX5DV_DCTYPE_DCT == 0
    assert not hasattr(dv.Mlx5Context, "anything_else")


def test_twice_is_once_both_ways() -> None:
    install_as_pyverbs()
    first = sys.modules["pyverbs"]
    install_as_pyverbs()
    assert sys.modules["pyverbs"] is first

    uninstall()
    uninstall()

    assert not [name for name in sys.modules if name.split(".")[0] == "pyverbs"]


def test_real_pyverbs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("pyverbs")
    monkeypatch.setitem(sys.modules, "pyverbs", real)

    with pytest.raises(PyverbsUserError):
        install_as_pyverbs()
    uninstall()

    assert sys.modules["pyverbs"] is real


@pytest.mark.slow
def test_import_needs_no_heavy_library() -> None:
    script = (
        "import sys, ibwire.verbs\n"
        "ibwire.verbs.install_as_pyverbs()\n"
        "heavy = {'numpy', 'scapy', 'construct', 'rich', 'click', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )

    assert done.stdout == "[]\n"
    assert ibwire.verbs.__doc__
