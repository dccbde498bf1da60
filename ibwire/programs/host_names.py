"""Which IP addresses a host's name stands for, by the resolver of the machine."""

from __future__ import annotations

import socket

from ibwire.base.errors import LinkError


def addresses_of(host: str) -> list[str]:
    """The addresses of a name, or of an address itself, the preferred one first.

    Raises `LinkError` for a name that means none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "no possible name"
        raise LinkError(host, f"no such host: {reason}") from None
    # An IPv6 address may say which interface it is on, and so does whoever uses it.
    return [str(where[0]).partition("%")[0] for *_, where in found]
