"""`ibwire extcap`: interfaces of Wireshark whose packets come from ibwire.

Wireshark and tshark start the program in their extcap folder, which `ibwire wireshark --install`
puts there, and talk to it by these options (Wireshark's manual page extcap(4)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import click

from ibwire.base.errors import CaptureError, IbwireError, OutputError
from ibwire.base.interrupt import Terminated
from ibwire.base.output import Output
from ibwire.base.units import NS, Time
from ibwire.capture import PcapngWriter
from ibwire.cli.messages import print_error
from ibwire.cli.paths import InputPath, OutputPath
from ibwire.rc.profile import PROFILES
from ibwire_layers.outer import LinkType

ALL = "all"


class Wish(NamedTuple):
    """What a user has chosen in the dialog of an interface."""

    scenario: str
    seed: int | None
    script: str
    profile: str
    file: str | None


class Argument(NamedTuple):
    """One line of the dialog of an interface."""

    option: str
    display: str
    kind: str
    """Type in Wireshark's words."""
    default: str = ""
    choices: Callable[[], Sequence[tuple[str, str]]] | None = None
    """Values with what is shown for each."""
    tooltip: str = ""


class Interface(NamedTuple):
    """One interface of Wireshark."""

    display: str
    capture: Callable[[Wish, Output], None]
    arguments: tuple[Argument, ...]


@click.command("extcap")
@click.option("--extcap-interfaces", "lists", is_flag=True, help="List the interfaces.")
@click.option("--extcap-version", "asker", metavar="VERSION", help="Version of Wireshark.")
@click.option("--extcap-interface", "name", metavar="NAME", help="The interface that is meant.")
@click.option("--extcap-dlts", "dlts", is_flag=True, help="List its link types.")
@click.option("--extcap-config", "config", is_flag=True, help="List its options.")
@click.option("--extcap-reload-option", "reload", metavar="OPTION", help="List values anew.")
@click.option("--extcap-capture-filter", "condition", metavar="FILTER", help="Has no effect.")
@click.option("--capture", "is_capture", is_flag=True, help="Write packets to --fifo.")
@click.option("--fifo", type=OutputPath(), metavar="FILE", help="Where packets are written.")
@click.option(
    "--scenario",
    type=InputPath(),
    default="one-lost-packet",
    show_default=True,
    help="As `ibwire run`.",
)
@click.option("--seed", type=click.IntRange(min=0), help="As `ibwire run`.")
@click.option(
    "--script",
    type=InputPath(),
    default=ALL,
    show_default=True,
    help="Conformance scripts: a path, or the name of a subject.",
)
@click.option("--profile", type=click.Choice(list(PROFILES)), default="spec", show_default=True)
@click.option("--file", "file", type=InputPath(), metavar="FILE", help="As `ibwire export`.")
def command(
    lists: bool,
    asker: str | None,
    name: str | None,
    dlts: bool,
    config: bool,
    reload: str | None,
    condition: str | None,
    is_capture: bool,
    fifo: str | None,
    scenario: str,
    seed: int | None,
    script: str,
    profile: str,
    file: str | None,
) -> None:
    """Serve emulations, conformance scripts and annotated captures to Wireshark.

    Wireshark runs this command itself, after `ibwire wireshark --install`.

    \b
    tshark -i ibwire-run -o extcap.ibwire_run.scenario:rnr-storm
    """
    if lists:
        _print_interfaces()
        return
    if name not in INTERFACES:
        reason = f"{name!r} is not one of {', '.join(INTERFACES)}"
        raise click.BadParameter(reason, param_hint="--extcap-interface")
    interface = INTERFACES[name]
    if dlts:
        click.echo(f"dlt {{number={int(LinkType.ETHERNET)}}}{{name=EN10MB}}{{display=Ethernet}}")
    elif config or reload:
        for line in _dialog(interface):
            click.echo(line)
    elif is_capture:
        if fifo is None:
            raise click.UsageError("--capture needs --fifo")
        _capture(interface, Wish(scenario, seed, script, profile, file), fifo)


def _print_interfaces() -> None:
    click.echo(f"extcap {{version={version('ibwire')}}}{{display=ibwire}}")
    for name, interface in INTERFACES.items():
        click.echo(f"interface {{value={name}}}{{display={interface.display}}}")


def _dialog(interface: Interface) -> Iterator[str]:
    for number, argument in enumerate(interface.arguments):
        parts = {
            "number": str(number),
            "call": argument.option,
            "display": argument.display,
            "type": argument.kind,
            "default": argument.default,
            "tooltip": argument.tooltip,
            "required": "true" if argument.kind == "fileselect" else "",
            "group": "ibwire",
        }
        yield "arg " + "".join(f"{{{key}={value}}}" for key, value in parts.items() if value)
        for value, shown in argument.choices() if argument.choices else ():
            chosen = "true" if value == argument.default else "false"
            yield (
                f"value {{arg={number}}}{{value={value}}}{{display={_plain(shown)}}}"
                f"{{default={chosen}}}"
            )


def _plain(text: str) -> str:
    """Text without the characters that end a value."""
    return text.replace("{", "(").replace("}", ")")


def _capture(interface: Interface, wish: Wish, fifo: str) -> None:
    try:
        with Output(fifo, keeps_name=True) as output:
            interface.capture(wish, output)
    except Terminated:
        return  # Wireshark ends a capture so
    except OutputError as error:
        if isinstance(error.__context__, BrokenPipeError):
            return  # or so
        raise
    except IbwireError as error:
        raise click.ClickException(str(error)) from None


def _run_scenario(wish: Wish, output: Output) -> None:
    from ibwire.cli.run import FrameCapture
    from ibwire.scenario import load, run
    from ibwire.scenario.nodes import LINKS

    loaded = load(wish.scenario)
    hosts = [node.name for node in loaded.nodes if not node.is_bridge]
    with ExitStack() as stack:
        # One host: at two, each frame would be there twice.
        observer = FrameCapture(stack, output, hosts[:1], LINKS[loaded.link], "pcapng")
        run(loaded, wish.seed, [observer])


def _run_scripts(wish: Wish, output: Output) -> None:
    from ibwire.drill import load, run
    from ibwire.drill.files import write_packets
    from ibwire.drill.shipped import directory, shipped_path

    path = Path(wish.script)
    top = directory() if wish.script == ALL else shipped_path(path) or path
    scripts = sorted(top.rglob("*.drill")) if top.is_dir() else [top]
    start: Time = 0
    with PcapngWriter(output, name="drill") as writer:
        for each in scripts:
            script = load(each, wish.profile)
            for case in script.cases:
                verdict = run(script, case, wish.profile)
                start = write_packets(verdict, writer, start) + GAP


def _annotate(wish: Wish, output: Output) -> None:
    from ibwire.cli.export import write_annotated

    if wish.file is None:
        raise CaptureError("--file", None, "names the capture, and is not given")
    for failure in write_annotated(wish.file, wish.file, output, lambda reader: None):
        print_error(failure)


def _scenarios() -> list[tuple[str, str]]:
    from ibwire.scenario import shipped

    return [
        (name, f"{name}: {each.description.partition(chr(10))[0]}")
        for name, each in shipped().items()
    ]


def _subjects() -> list[tuple[str, str]]:
    from ibwire.drill.shipped import NAME, parts

    return [(ALL, "all of them"), *((f"{NAME}/{part}", part) for part in parts())]


def _profiles() -> list[tuple[str, str]]:
    return [(name, name) for name in PROFILES]


GAP: Time = 10**9 * NS
"""Virtual time between two conformance scripts in one capture."""

INTERFACES = {
    "ibwire-run": Interface(
        "ibwire: emulation of a scenario",
        _run_scenario,
        (
            Argument(
                "--scenario",
                "Scenario",
                "selector",
                "one-lost-packet",
                _scenarios,
                "Network, faults and traffic, in virtual time",
            ),
            Argument("--seed", "Seed", "unsigned", tooltip="Of random numbers"),
        ),
    ),
    "ibwire-drill": Interface(
        "ibwire: conformance scripts on the emulator",
        _run_scripts,
        (
            Argument("--script", "Subject", "selector", ALL, _subjects, "Of the scripts"),
            Argument("--profile", "Implementation", "selector", "spec", _profiles),
        ),
    ),
    "ibwire-capture": Interface(
        "ibwire: a capture, annotated",
        _annotate,
        (Argument("--file", "Capture", "fileselect", tooltip="Findings become comments"),),
    ),
}
