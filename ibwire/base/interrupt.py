"""The end of a command by a signal: SIGTERM as an exception, like SIGINT."""

from __future__ import annotations

import signal


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: what cleans up after Ctrl-C does so after it too."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """The number of the signal that has raised it."""
    return interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT


def notes_of(error: BaseException) -> list[str]:
    """What was added to an exception on its way: sentences for the user."""
    return list(getattr(error, "__notes__", ()))
