"""`ibwire wireshark`: open an annotated capture in Wireshark, or set Wireshark up for ibwire."""

from __future__ import annotations

import operator
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path

import click

from ibwire.base.errors import CaptureError
from ibwire.base.output import Output, make_directory, temporary_directory
from ibwire.cli.export import write_annotated
from ibwire.cli.messages import print_error, print_note
from ibwire.cli.paths import InputPath, OutputDirectory, home_directory
from ibwire.cli.rereading import STANDARD_INPUT, progress, spooled
from ibwire.cli.sources import UNREADABLE, Unreadable

PROFILE = "ibwire"
"""Name of the configuration profile."""

FILES = ("preferences", "colorfilters")

PROGRAM = "ibwire-extcap"
"""Name of the program in the extcap folder."""

CONFIGURATION = "WIRESHARK_CONFIG_DIR"
"""The environment variable that tells Wireshark where its personal configuration is."""

OWN_FOLDER = "Personal Extcap path"
"""The user's extcap folder among the folders of Wireshark; 4.0 and older have none."""

SYSTEM_FOLDERS = ("Extcap path", "Global Extcap path")
"""Names of the system's: of Wireshark that has only this one, and of later versions."""

MARK = "# Written by `ibwire wireshark --install`"
"""The second line of the program begins with it."""


@click.command("wireshark")
@click.argument("capture", required=False, type=InputPath())
@click.option(
    "--install", is_flag=True, help="Write the profile and the extcap program for Wireshark."
)
@click.option("--uninstall", is_flag=True, help="Remove what --install wrote.")
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
    help="Folder for the extcap program, if not the user's own.",
)
def command(
    capture: str | None,
    install: bool,
    uninstall: bool,
    config: Path | None,
    extcap: Path | None,
) -> None:
    """Open CAPTURE in Wireshark, with the findings of ibwire as comments of packets.

    It uses the profile `ibwire`, which has columns and colours for RDMA. --install
    writes that profile, and a program for Wireshark's extcap folder: then emulations,
    conformance scripts and annotated captures are interfaces of Wireshark and tshark.
    --uninstall removes both.

    \b
    ibwire wireshark capture.pcap
    ibwire wireshark --install
    tshark -D
    """
    if uninstall and (install or capture is not None):
        raise click.UsageError("--uninstall takes no capture, and not --install")
    if capture is None and not install and not uninstall:
        raise click.UsageError("name a capture, or give --install")
    if uninstall:
        _uninstall(config or _config(), extcap)
        return
    if install:
        for path in (
            *_write_profile(config or _config()),
            _write_program(extcap or _extcap_for_install()),
        ):
            click.echo(path)
    if capture is not None:
        _open(capture, config)


def _open(capture: str, given: Path | None) -> None:
    if capture != "-" and not os.path.exists(capture):
        raise click.ClickException(f"{capture}: no such file")
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
        with Output(directory / name) as file:
            file.file.write(_profile_file(name))
        yield directory / name


def _write_program(directory: Path) -> Path:
    make_directory(directory)
    path = directory / PROGRAM
    with Output(path) as file:
        file.text.write(
            "#!/bin/sh\n"
            f"{MARK}: the interfaces of ibwire.\n"
            # -P: no module comes from the folder in which Wireshark was started.
            f'exec {shlex.quote(sys.executable)} -P -m ibwire extcap "$@"\n'
        )
    path.chmod(0o755)
    return path


def _config() -> Path:
    """Wireshark's personal configuration."""
    given = os.environ.get(CONFIGURATION)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else home_directory() / ".config") / "wireshark"


def _extcap(folders: Mapping[str, Path]) -> Path:
    """The user's folder for extcap programs."""
    given = os.environ.get("WIRESHARK_EXTCAP_DIR")
    if given:
        return Path(given)
    return folders.get(OWN_FOLDER) or home_directory() / ".local" / "lib" / "wireshark" / "extcap"


def _system_folder(folders: Mapping[str, Path]) -> Path | None:
    return next((folders[name] for name in SYSTEM_FOLDERS if name in folders), None)


def _extcap_for_install() -> Path:
    """The user's folder, with a note if this Wireshark does not look there."""
    folders = _folders()
    path = _extcap(folders)
    system = _system_folder(folders)
    if OWN_FOLDER not in folders:
        if os.geteuid() == 0 and system is not None:
            print_note(
                "this Wireshark ignores the user's extcap folder when root runs it; for root: "
                f"ibwire wireshark --install --extcap {shlex.quote(str(system))}"
            )
        if os.environ.get("WIRESHARK_EXTCAP_DIR") is None:
            print_note(f"this Wireshark needs the variable WIRESHARK_EXTCAP_DIR={path}")
    return path


def _uninstall(config: Path, extcap: Path | None) -> None:
    """Remove the profile and the program, except files that are not as ibwire wrote them."""
    directory = config / "profiles" / PROFILE
    removed = [
        directory / name
        for name in FILES
        if _remove(directory / name, partial(operator.eq, _profile_file(name)))
    ]
    if removed:
        with suppress(OSError):  # Wireshark keeps files of its own there
            directory.rmdir()
    folders = _folders()
    program = (extcap or _extcap(folders)) / PROGRAM
    if _remove(program, _is_ours):
        removed.append(program)
    for path in removed:
        click.echo(f"removed {path}")
    system = _system_folder(folders)
    if system is not None and _is_ours(_content(system / PROGRAM)):
        print_note(
            f"{system / PROGRAM} is still there; to remove it: "
            f"ibwire wireshark --uninstall --extcap {shlex.quote(str(system))}"
        )
    elif not removed:
        print_note("nothing to remove")


def _remove(path: Path, is_ours: Callable[[bytes], bool]) -> bool:
    """Remove a file that is ours; whether it was removed."""
    if not path.is_file():
        return False
    if not is_ours(_content(path)):
        print_note(f"{path} is not as ibwire wrote it: it stays")
        return False
    try:
        path.unlink()
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be removed: {error.strerror}") from None
    return True


def _content(path: Path) -> bytes:
    """The bytes of a file; none if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_ours(program: bytes) -> bool:
    lines = program.splitlines()
    return len(lines) > 1 and lines[1].startswith(MARK.encode())


def _profile_file(name: str) -> bytes:
    return files("ibwire.report").joinpath("wireshark", name).read_bytes()


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
