"""Resolves host names with the resolver of the machine."""

from __future__ import annotations

import socket

from ibwire.base.errors import LinkError


def addresses_of(host: str) -> list[str]:
    """The IP addresses of a name or an address, the preferred one first.

    Raises `LinkError` for a name without an address.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else "invalid name"
        raise LinkError(host, f"no such host: {reason}") from None
    # A link-local address may end with its interface, which the caller knows.
    return [str(where[0]).partition("%")[0] for *_, where in found]
