"""rping's server of ours, maybe with a fault in its connection manager.

Arguments: the interface, the port, and perhaps the name of a fault, which is a function here.
Prints "ready" when it listens.
"""

import signal
import sys
from dataclasses import replace

from ibwire.cm import manager
from ibwire.link.afpacket import AFPacketPort
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.programs.rping_live import Service


def swapped():
    """A DREP names the connection from the wrong side."""
    right = manager.disconnect_reply

    def wrong(message):
        answer = right(message)
        return replace(
            answer, local_comm_id=answer.remote_comm_id, remote_comm_id=answer.local_comm_id
        )

    manager.disconnect_reply = wrong


def fragile():
    """A REQ with UC as its transport stops QP1, until SIGUSR1 comes."""
    handle = manager.ConnectionManager.handle_mad

    def handle_mad(self, mad, source, now):
        received = manager.decode(mad)
        if getattr(received and received.message, "transport_service_type", 0) == 1:
            type(self).handle_mad = lambda self, mad, source, now: None
        handle(self, mad, source, now)

    def restart(*_):
        manager.ConnectionManager.handle_mad = handle_mad

    restart()
    signal.signal(signal.SIGUSR1, restart)


def main(interface, port, *faults):
    for fault in faults:
        {"swapped": swapped, "fragile": fragile}[fault]()
    with AFPacketPort(interface) as link, Endpoint(link) as endpoint:
        service = Service(endpoint, int(port), is_persistent=True)
        print("ready", flush=True)
        try:
            service.run()
        except Interrupted:
            return


main(*sys.argv[1:])
