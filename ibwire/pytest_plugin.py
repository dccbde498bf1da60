"""The pytest plug-in of ibwire: collects drill scripts, and has fixtures for emulated devices.

pytest imports this module in every run on a machine with ibwire, so it costs nothing
until it is used: everything of ibwire is imported where it is needed.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ibwire.drill import Case, Script, Verdict
    from ibwire.testing import LoggedFrame, Pair, Peer

LOGS = pytest.StashKey[dict[str, list["LoggedFrame"]]]()
"""Frames that the devices of a test have sent and received, by fixture."""

FAILED = pytest.StashKey[deque["Verdict"]]()
"""The last failed cases of `ibwire_drill` in a test."""

MOST_FAILED = 10

CAPTURES = pytest.StashKey[set[Path]]()
"""Files written by this process, so that no two tests share one."""

MOST_LINES = 60
"""The number of last frames shown when a test fails."""


class DrillFailed(Exception):
    """A device did not meet a script; the text is the report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The profile of the devices, and where captures go."""
    group = parser.getgroup("ibwire", "RDMA devices and drill scripts")
    group.addoption(
        "--ibwire-profile",
        metavar="NAME",
        help="profile of devices whose test does not choose one: spec, rxe, rdmavt, ...",
    )
    group.addoption(
        "--ibwire-captures",
        metavar="DIR",
        type=Path,
        help="write the packets of each test that fails to a pcapng file there",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks and check the profile."""
    for name in ("ibwire_pair", "ibwire_peer"):
        what = name.removeprefix("ibwire_").capitalize()
        config.addinivalue_line(
            "markers", f"{name}(**options): options of the fixture, as ibwire.testing.{what} has"
        )
    profile = config.getoption("--ibwire-profile")
    if profile is not None:
        from ibwire.rc.profile import PROFILES

        if profile not in PROFILES:
            known = ", ".join(PROFILES)
            raise pytest.UsageError(f"--ibwire-profile: {profile!r} is not one of {known}")


def pytest_collection_finish() -> None:
    """Draw once from the strategies, if tests have imported them.

    At the first draw of a process, Hypothesis looks for constants in the source of every module
    loaded from outside site-packages. On a slow machine its health check would count that time
    against the first test.
    """
    if "ibwire.strategies" not in sys.modules:
        return
    from hypothesis import HealthCheck, Phase, given, settings

    from ibwire.strategies import fault_plans, packets

    @settings(
        max_examples=1,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(packets(), fault_plans())
    def draw(packet: object, plan: object) -> None:
        pass

    draw()


# Drill scripts.


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    """Collect scripts: each that is named to pytest, and others that look like one."""
    if file_path.suffix != ".drill":
        return None
    if not parent.session.isinitpath(file_path) and not _is_script(file_path):
        return None
    collector: pytest.Collector = DrillFile.from_parent(parent, path=file_path)
    return collector


class DrillFile(pytest.File):
    """A script."""

    def collect(self) -> Iterator[pytest.Item]:
        """Its cases."""
        from ibwire.drill import load

        script = load(self.path, _profile(self.config))
        for case in script.cases:
            name = case.name or self.path.stem
            yield DrillItem.from_parent(self, name=name, script=script, case=case)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """The error of a script, without a traceback."""
        from ibwire.base.errors import ScriptError

        if isinstance(excinfo.value, ScriptError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)


class DrillItem(pytest.Item):
    """A case of a script."""

    def __init__(self, *, script: Script, case: Case, **options: Any) -> None:
        super().__init__(**options)
        self._script = script
        self._case = case

    def runtest(self) -> None:
        """Run the case on the emulator."""
        from ibwire.drill import report, run

        verdict = run(self._script, self._case, _profile(self.config))
        if verdict.passed:
            return
        text = report(verdict)
        directory = self.config.getoption("--ibwire-captures", default=None)
        if directory is not None:
            text += f"\n\npackets in {_kept(verdict, directory, self.config)}"
        raise DrillFailed(text)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """The report instead of a traceback."""
        from ibwire.base.errors import ScriptError

        if isinstance(excinfo.value, DrillFailed | ScriptError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the case is, and its name."""
        return self.path, None, self.name


def _is_script(path: Path) -> bool:
    """Whether a line begins like one of a script: other programs have `.drill` files, too."""
    from ibwire.drill.language.tokens import MAXIMUM_SIZE
    from ibwire.drill.language.vocabulary import VERBS

    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_SIZE)
    except OSError:
        return True  # reading it again reports the error
    words = "|".join([*VERBS, "section", "silence"])
    event = rf"^\s*(?:\+\S+\s+)?(?:<\s+\w|>\??\s+\w|(?:{words})\b)"
    return re.search(event.encode(), content, re.MULTILINE) is not None


# Fixtures.


@pytest.fixture
def ibwire_drill(request: pytest.FixtureRequest) -> Callable[..., list[Verdict]]:
    """Runs the text of a script: `ibwire_drill(text, profile="spec")`, a verdict for each case."""
    from ibwire.drill import parse, run

    def drill(text: str, profile: str | None = None) -> list[Verdict]:
        used = profile or _profile(request.config)
        script = parse(text.encode(), "script", used)
        verdicts = [run(script, case, used) for case in script.cases]
        failed = request.node.stash.setdefault(FAILED, deque(maxlen=MOST_FAILED))
        failed.extend(verdict for verdict in verdicts if verdict.failure is not None)
        return verdicts

    return drill


@pytest.fixture
def ibwire_pair(request: pytest.FixtureRequest) -> Pair:
    """Two emulated devices and a connection, in virtual time: an `ibwire.testing.Pair`.

    Its options are those of the mark `ibwire_pair`, or of an indirect parameter.
    """
    from ibwire.testing import Pair

    pair = Pair(**_options(request))
    request.node.stash.setdefault(LOGS, {})["ibwire_pair"] = pair.log
    return pair


@pytest.fixture
def ibwire_peer(request: pytest.FixtureRequest) -> Peer:
    """An emulated device whose peer is the test: an `ibwire.testing.Peer`.

    Its options are those of the mark `ibwire_peer`, or of an indirect parameter.
    """
    from ibwire.testing import Peer

    peer = Peer(**_options(request))
    request.node.stash.setdefault(LOGS, {})["ibwire_peer"] = peer.log
    return peer


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of a fixture; the mark nearest to the test takes precedence."""
    options: dict[str, Any] = {"profile": _profile(request.config)}
    for mark in reversed(list(request.node.iter_markers(request.fixturename))):
        if mark.args:
            raise pytest.UsageError(f"{request.fixturename}: options have names, found {mark.args}")
        options |= mark.kwargs
    return options | getattr(request, "param", {})


def _profile(config: pytest.Config) -> str:
    profile: str | None = config.getoption("--ibwire-profile", default=None)
    return profile or "spec"


# Failures.


# The older kind of wrapper: with a newer one, pytest could not even start beside an old pluggy.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Show the packets of the devices of a failed test."""
    report = (yield).get_result()
    if call.when != "call" or not report.failed:
        return
    report.sections += [*_sections_of_scripts(item), *_sections_of_devices(item)]


def _sections_of_scripts(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Reports of `ibwire_drill`, and the files of their packets."""
    failed = item.stash.get(FAILED, None)
    if not failed:
        return
    from ibwire.drill import report

    directory = item.config.getoption("--ibwire-captures")
    for verdict in failed:
        yield "report of ibwire_drill", report(verdict)
        if directory is not None:
            yield "packets in", _kept(verdict, directory, item.config, _file_name(item.nodeid))


def _sections_of_devices(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """Packets of pairs and peers, and their file."""
    logs = {name: log for name, log in item.stash.get(LOGS, {}).items() if log}
    for name, log in logs.items():
        lines = [str(entry) for entry in log[-MOST_LINES:]]
        if len(log) > MOST_LINES:
            lines.insert(0, f"... {len(log) - MOST_LINES} before")
        yield f"packets of {name}", "\n".join(lines)
    directory = item.config.getoption("--ibwire-captures")
    if logs and directory is not None:
        yield (
            "packets in",
            _where(lambda: _write_capture(item.nodeid, logs, directory, _captures(item.config))),
        )


def _kept(verdict: Verdict, directory: Path, config: pytest.Config, name: str = "") -> str:
    """Write the packets of a case; returns the file name or the error."""
    from ibwire.drill.files import write_capture

    return _where(lambda: write_capture(verdict, directory, _captures(config), name))


def _where(write: Callable[[], Path]) -> str:
    """The name of a written file, or the error: an exception here would end all tests."""
    from ibwire.base.errors import CaptureError

    try:
        return str(write())
    except (CaptureError, OSError) as error:
        return f"no file: {error}"


def _captures(config: pytest.Config) -> set[Path]:
    return config.stash.setdefault(CAPTURES, set())


def _write_capture(
    test: str, logs: Mapping[str, list[LoggedFrame]], directory: Path, taken: set[Path]
) -> Path:
    """Write the packets of a test to a file, with an interface for each fixture."""
    from ibwire.base.trace import SENT
    from ibwire.base.units import NS
    from ibwire.capture import PcapngWriter
    from ibwire.drill.files import free

    directory.mkdir(parents=True, exist_ok=True)
    path = free(directory / f"{_file_name(test)}.pcapng", taken)
    with ExitStack() as stack:
        writer: PcapngWriter | None = None
        for name, log in logs.items():
            link_type, interface = log[0].link_type, 0
            if writer is None:
                writer = stack.enter_context(PcapngWriter(str(path), link_type, name=name))
            else:
                interface = writer.add_interface(link_type, name)
            # What one of two devices receives, the other has sent: it is written once.
            is_alone = len({entry.device for entry in log}) == 1
            for entry in log:
                if is_alone or entry.event == SENT:
                    writer.write(entry.frame, entry.time // NS, interface=interface)
    return path


def _file_name(test: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", test)[-120:]
