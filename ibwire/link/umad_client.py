"""Run a program on a host of an emulated fabric, and ask the fabric about itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ibwire.base.errors import LinkError
from ibwire.link.umad_server import CONTROL, HELLO, LONGEST_COMMAND, MAGIC
from ibwire.sm.umad import WORD

SOURCE = Path(__file__).with_name("umad_shim.c")
CACHE = "XDG_CACHE_HOME"
DEFAULT_NAME = "fabric"
_TIMEOUT = 10.0
_LONGEST_PATH = 107
"""Bytes of the name of a Unix socket (unix(7))."""


class NotRunning(LinkError):
    """No process serves this fabric: nobody listens at its socket, or it has none."""


def fabric_folder(name: str) -> Path:
    """The folder of a fabric with this name, which only this user can access.

    Raises `LinkError` if the name has other signs than letters, digits, `_` and `-`, or the folder
    above belongs to another program.
    """
    if not name or len(name) > 32 or not all(sign.isalnum() or sign in "_-" for sign in name):
        raise LinkError(name, "invalid name: 1 to 32 letters, digits, _ and - are allowed")
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    directory = Path(base) / f"ibwire-{os.geteuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise LinkError(name, f"{directory}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise LinkError(name, f"{directory} is not a private directory of this user")
    folder = directory / f"fabric-{name}"
    if len(os.fsencode(folder / "socket")) > _LONGEST_PATH:
        raise LinkError(name, f"{folder} is too long for a socket; set XDG_RUNTIME_DIR")
    return folder


def ask(folder: Path, command: dict[str, Any]) -> dict[str, Any]:
    """The answer of the fabric in `folder` to a command.

    Raises `NotRunning` if no process serves it, and `LinkError` if it does not answer in time or
    refuses the command.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asked:
            asked.settimeout(_TIMEOUT)
            asked.connect(str(folder / "socket"))
            data = json.dumps(command).encode()
            if len(data) > LONGEST_COMMAND:
                raise LinkError(_name_of(folder), "a command this long is not taken")
            hello = HELLO.pack(MAGIC, CONTROL, 0, 0, b"")
            asked.sendall(hello + len(data).to_bytes(WORD, "little") + data)
            _received(asked, WORD)
            answer = json.loads(_received(asked, int.from_bytes(_received(asked, WORD), "little")))
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotRunning(
            _name_of(folder), "no fabric is running; `ibwire fabric run` starts one"
        ) from None
    except (OSError, ValueError) as error:
        raise LinkError(_name_of(folder), f"the fabric does not answer: {error}") from None
    if "file" in answer:
        path = Path(answer["file"])
        answer = json.loads(path.read_text())
        path.unlink()
    if "error" in answer:
        raise LinkError(_name_of(folder), answer["error"])
    found: dict[str, Any] = answer
    return found


def environment(folder: Path, host: str) -> dict[str, str]:
    """The environment in which a program uses the adapter of a host; raises `LinkError`."""
    variables = ask(folder, {"command": "attach", "host": host})["environment"]
    preload = [str(library()), *filter(None, [os.environ.get("LD_PRELOAD")])]
    private = Path(variables["IBWIRE_ROOT"]) / "var"
    private.mkdir(exist_ok=True)
    # opensm and osmtest write there; the system's directories are root's.
    kept = {"OSM_TMP_DIR": str(private), "OSM_CACHE_DIR": str(private)}
    return {**os.environ, **kept, **variables, "LD_PRELOAD": ":".join(preload)}


def library() -> Path:
    """The preload library, compiled at its first use; raises `LinkError`."""
    source = SOURCE.read_bytes()
    name = f"umad-{hashlib.sha256(source).hexdigest()[:12]}.so"
    cache = Path(os.environ.get(CACHE) or Path.home() / ".cache") / "ibwire"
    path = cache / name
    if path.exists():
        return path
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise LinkError(
            "cc",
            "not found; programs reach the fabric by a small C library (Debian: apt install gcc)",
        )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as place:
            made = Path(place) / name
            command = [compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", str(made)]
            command += [str(SOURCE), "-ldl"]
            subprocess.run(command, check=True, capture_output=True, text=True)
            os.replace(made, path)
    except subprocess.CalledProcessError as error:
        first = (error.stderr.strip().splitlines() or ["no message"])[0]
        raise LinkError(compiler, f"cannot compile the library for programs: {first}") from None
    except OSError as error:
        raise LinkError(str(cache), str(error.strerror)) from None
    return path


def _name_of(folder: Path) -> str:
    return folder.name.removeprefix("fabric-")


def _received(connected: socket.socket, size: int) -> bytes:
    """So many bytes; raises `OSError` if there are no more."""
    data = b""
    while len(data) < size:
        more = connected.recv(size - len(data))
        if not more:
            raise ConnectionResetError("it has closed the connection")
        data += more
    return data
