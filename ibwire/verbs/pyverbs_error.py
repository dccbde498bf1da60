"""The exceptions of the verbs interface, with pyverbs' names and attributes.

Each is an `IbwireError`, and `PyverbsRDMAError` is a `VerbsError` too, so code written for either
interface catches them.
"""

from __future__ import annotations

import os

from ibwire.base.errors import IbwireError, VerbsError


class PyverbsError(IbwireError):
    """Any failure of a verb.

    error_code: an errno for the message; -1 for none.
    """

    def __init__(self, msg: str, error_code: int = -1) -> None:
        if error_code != -1:
            msg = f"{msg}. Errno: {error_code}, {os.strerror(abs(error_code))}"
        # Not super(): in PyverbsRDMAError that is VerbsError, which has another message.
        IbwireError.__init__(self, msg)


class PyverbsRDMAError(PyverbsError, VerbsError):
    """A verb that failed on the device; `error_code` is its errno, -1 if there is none."""

    def __init__(self, msg: str, error_code: int = -1) -> None:
        PyverbsError.__init__(self, msg, error_code)
        self.errno = error_code
        self.reason = msg

    @property
    def error_code(self) -> int:
        """The errno."""
        return self.errno


class PyverbsUserError(PyverbsError):
    """Invalid arguments, detected before the device is involved."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)


class PyverbsRangeError(PyverbsUserError, OverflowError):
    """A number that does not fit its field; pyverbs raises a bare `OverflowError`."""
