"""Whether the host of a device on a link is there, and where.

On the same link it is asked by ARP or neighbour discovery, which no host refuses. Behind a
router it is asked for an ICMP echo, if it has IPv4 and responded to one before; otherwise only
the router can be asked, and the host counts as there.
"""

from __future__ import annotations

from ibwire.base.errors import LinkError
from ibwire.link.afpacket import AFPacketPort
from ibwire.link.echo import answers_echo
from ibwire.link.neighbours import next_hop
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.device import gid_of
from ibwire.rc.path import address_of, is_v4


class Host:
    """The host with this GID.

    It must be alive when this is made, which finds out whether it responds to an echo. Raises
    `LinkError` when there is no route to it.
    """

    def __init__(self, endpoint: Endpoint, gid: int) -> None:
        self._endpoint = endpoint
        self._address = address_of(gid)
        name = endpoint.port.name
        # For an address that the kernel does not have, it has no route; we have only the link.
        is_ours = endpoint.device.mac != endpoint.port.mac
        self._hop = self._address if is_ours else next_hop(name, self._address)
        is_routed = self._hop != self._address and is_v4(gid)
        try:
            self._echoes = is_routed and answers_echo(name, self._address)
        except LinkError:  # a firewall forbids it, here or on the way
            self._echoes = False

    def mac(self) -> bytes:
        """The MAC address for frames to it; raises `LinkError` without a response.

        It is asked on the wire: the kernel's table may still have a host that is dead.
        """
        endpoint, gid = self._endpoint, gid_of(self._hop)
        device = endpoint.device
        with (
            AFPacketPort(
                endpoint.port.name, neighbours=True, promiscuous=True, hold_port=False
            ) as port,
            Endpoint(
                port, addresses=endpoint.addresses, mac=device.mac, vlan=device.vlan
            ) as asking,
        ):
            asking.gid_towards(gid)
            return asking.device.neighbours[gid]

    def fault(self) -> str:
        """Why it does not answer, empty if it does."""
        try:
            self.mac()
            if self._echoes and not answers_echo(self._endpoint.port.name, self._address):
                return f"{self._address} does not answer an echo request any more"
        except LinkError as error:  # or there is not even a carrier
            return str(error)
        return ""
