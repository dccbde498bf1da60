"""`ibwire wireshark`: open an annotated capture in Wireshark, or set Wireshark up for ibwire."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import click

from ibwire.base.errors import CaptureError
from ibwire.base.output import Output, make_directory, temporary_directory
from ibwire.cli.export import write_annotated
from ibwire.cli.messages import print_error, print_note
from ibwire.cli.paths import InputPath, OutputDirectory
from ibwire.cli.rereading import STANDARD_INPUT, progress, spooled
from ibwire.cli.sources import UNREADABLE, Unreadable

PROFILE = "ibwire"
"""Name of the configuration profile."""

FILES = ("preferences", "colorfilters")

PROGRAM = "ibwire-extcap"
"""Name of the program in the extcap folder."""

CONFIGURATION = "WIRESHARK_CONFIG_DIR"
"""The environment variable that tells Wireshark where its personal configuration is."""


@click.command("wireshark")
@click.argument("capture", required=False, type=InputPath())
@click.option(
    "--install", is_flag=True, help="Write the profile and the extcap program for Wireshark."
)
@click.option(
    "--config",
    metavar="DIR",
    type=OutputDirectory(path_type=Path),
    help="Wireshark's personal configuration, if not where Wireshark looks for it.",
)
@click.option(
    "--extcap",
    metavar="DIR",
    type=OutputDirectory(path_type=Path),
    help="Folder for the extcap program, if not the one that Wireshark names.",
)
def command(capture: str | None, install: bool, config: Path | None, extcap: Path | None) -> None:
    """Open CAPTURE in Wireshark, with the findings of ibwire as comments of packets.

    It uses the profile `ibwire`, which has columns and colours for RDMA. --install
    writes that profile, and a program for Wireshark's extcap folder: then emulations,
    conformance scripts and annotated captures are interfaces of Wireshark and tshark.

    \b
    ibwire wireshark capture.pcap
    ibwire wireshark --install
    tshark -D
    """
    if capture is None and not install:
        raise click.UsageError("name a capture, or give --install")
    if install:
        for path in (*_write_profile(config or _config()), _write_program(extcap or _extcap())):
            click.echo(path)
    if capture is not None:
        _open(capture, config)


def _open(capture: str, given: Path | None) -> None:
    program = shutil.which("wireshark")
    if program is None:
        hint = f"`ibwire export {shlex.quote(capture)} -o annotated.pcapng` writes the same capture"
        raise click.ClickException(f"Wireshark is not installed here; {hint}")
    config = given or _config()
    if not (config / "profiles" / PROFILE).exists():
        for written in _write_profile(config):
            print_note(f"wrote {written}")
    shown = STANDARD_INPUT if capture == "-" else capture
    with temporary_directory() as directory:
        path = os.path.join(directory, f"{os.path.basename(shown)}.pcapng")
        try:
            source = spooled(capture, directory)
            with Output(path) as file, progress() as bar:
                failures = write_annotated(source, shown, file, bar.read)
        except CaptureError as error:
            raise Unreadable(f"{shown}: {error.reason}") from None
        for failure in failures:
            print_error(failure)
        status = subprocess.run(
            [program, "-C", PROFILE, "-r", path],
            env=None if given is None else {**os.environ, CONFIGURATION: str(given.absolute())},
            check=False,
        ).returncode
    if failures:
        sys.exit(UNREADABLE)
    if status:
        raise click.ClickException(f"Wireshark ended with status {status}")


def _write_profile(config: Path) -> Iterator[Path]:
    directory = config / "profiles" / PROFILE
    make_directory(directory)
    for name in FILES:
        text = files("ibwire.report").joinpath("wireshark", name).read_text("utf-8")
        with Output(directory / name) as file:
            file.text.write(text)
        yield directory / name


def _write_program(directory: Path) -> Path:
    make_directory(directory)
    path = directory / PROGRAM
    with Output(path) as file:
        file.text.write(
            "#!/bin/sh\n"
            "# Written by `ibwire wireshark --install`: the interfaces of ibwire.\n"
            f'exec {shlex.quote(sys.executable)} -m ibwire extcap "$@"\n'
        )
    path.chmod(0o755)
    return path


def _config() -> Path:
    """Wireshark's personal configuration."""
    given = os.environ.get(CONFIGURATION)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "wireshark"


def _extcap() -> Path:
    """The folder where Wireshark looks for extcap programs: the user's, if it has one."""
    given = os.environ.get("WIRESHARK_EXTCAP_DIR")
    if given:
        return Path(given)
    named = _folders()
    for name in ("Personal Extcap path", "Extcap path"):
        if name in named and (name.startswith("Personal") or os.access(named[name], os.W_OK)):
            return named[name]
    path = Path.home() / ".local" / "lib" / "wireshark" / "extcap"
    print_note(
        "this Wireshark has no extcap folder that you can write to: set "
        f"WIRESHARK_EXTCAP_DIR={path}"
    )
    return path


def _folders() -> dict[str, Path]:
    """Wireshark's folders by their names; empty without Wireshark."""
    program = shutil.which("tshark") or shutil.which("wireshark")
    if program is None:
        return {}
    done = subprocess.run([program, "-G", "folders"], capture_output=True, text=True, check=False)
    found = {}
    for line in done.stdout.splitlines():
        name, _, path = line.partition(":")
        if path.strip():
            found[name.strip()] = Path(path.strip())
    return found
