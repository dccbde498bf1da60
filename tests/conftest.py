"""What many tests share: the shipped captures, and property tests without a clock."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ibwire.base.collector import ignore_existing_objects, set_collector

pytest_plugins = ["ibwire.pytest_plugin"]  # *.drill files are tests, also where it is not installed

# Output is wrapped to the width of the terminal; commands that tests run shall not see one.
os.environ.pop("COLUMNS", None)

# They may run in another directory, where relative folders would be others.
if folders := os.environ.get("PYTHONPATH"):
    absolute = [os.path.abspath(each) for each in folders.split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(absolute)

# A background job of a shell without job control ignores Ctrl-C, and so would what it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test fails because a machine is busy: no example has a deadline, and drawing the first ones may
# take 30 s, which is what the health check `too_slow` allows then.
settings.register_profile("ibwire", deadline=None)
# For `make test`: fewer examples than the usual 100, which `make test-all` draws; always the same.
settings.register_profile("quick", deadline=None, max_examples=12, derandomize=True)
# For `.ci/run`: the same examples each time, so that it judges a change and not its luck.
settings.register_profile("fixed", deadline=None, derandomize=True)
settings.load_profile("ibwire")

# Collection makes a million objects that stay until the end: they are not searched for garbage,
# neither while they are made nor later. pytest searches at its end, where that took seconds.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the test files first, another one in each worker, where all are collected.

    pytest compiles a test file when it is imported for the first time, in half a minute all.
    Workers that import in the same order compile most of them at the same time, each
    for itself; so each finds what is not of its share compiled by another one.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)  # of pytest-xdist
    if worker is None or config.args != config.getini("testpaths"):
        return
    ignored = [config.rootpath / each for each in config.getoption("ignore") or ()]
    files = sorted(
        path.relative_to(config.rootpath)
        for path in Path(__file__).parent.rglob("test_*.py")
        if not any(path.is_relative_to(each) for each in ignored)
    )
    place = int(worker["workerid"].removeprefix("gw"))
    for path in files[place :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # told when it is collected
            import_module(".".join(path.with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Search for garbage again, as seldom as commands do, but not among what was collected."""
    ignore_existing_objects()
    set_collector()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(
    report: pytest.CollectReport | pytest.TestReport,
) -> Generator[None, dict[str, Any], dict[str, Any]]:
    """Leave out what nobody reads of a passed test: a worker sends three reports for each."""
    data = yield
    if isinstance(report, pytest.TestReport) and report.passed:
        data["keywords"] = {}
    return data


@pytest.fixture(scope="session", autouse=True)
def _capabilities_of_the_tests() -> Iterator[None]:
    """A command that is called in this process does not take the rights of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ibwire.cli.live.drop_capabilities", lambda: None)
        yield


@pytest.fixture(scope="session")
def captures() -> Path:
    """The directory of the shipped captures."""
    return Path(__file__).parents[1] / "captures"
