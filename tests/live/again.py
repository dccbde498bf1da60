"""Starts a process in place of the one that it started before.

Arguments: a file for its process ID, and its command; prints when it has started.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def end(file):
    """End the process whose number a file has, if it still runs."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(Path(file).read_text()), signal.SIGKILL)


if __name__ == "__main__":
    file, *command = sys.argv[1:]
    end(file)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    Path(file).write_text(str(process.pid))
    if "ready" not in process.stdout.readline():
        sys.exit("it does not come up")
