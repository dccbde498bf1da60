"""An emulated device on which a program does what `listener.py` does on a real one.

Arguments: the interface, the port, and optionally a fault of its connection manager: `stubborn`.
Prints "ready" when it listens.
"""

import sys

from obeying import Obeying

from ibwire.cm import Endpoints
from ibwire.cm.states import TRANSITIONS, Input, State
from ibwire.link.afpacket import AFPacketPort
from ibwire.programs.cm import events
from ibwire.programs.endpoint import Endpoint, Interrupted

BACKLOG = 1 << 12
"""Some requests are never decided."""


def stubborn():
    """A refusal is not heard before the request is accepted."""
    for state in (State.REQ_SENT, State.MRA_REQ_RCVD):
        TRANSITIONS[state] = {**TRANSITIONS[state]}
        del TRANSITIONS[state][Input.REJ]


def main(interface, port, *faults):
    for fault in faults:
        {"stubborn": stubborn}[fault]()
    told = []

    def is_told():
        told.extend(events(endpoint))
        return bool(told)

    with AFPacketPort(interface) as link, Endpoint(link) as endpoint:
        application = Obeying(endpoint.manager)
        endpoint.manager.listen(Endpoints(0, 0, 0, int(port)).service_id, BACKLOG)
        print("ready", flush=True)
        try:
            while True:
                endpoint.run(stop=is_told)
                event = told.pop(0)
                endpoint.gid_towards(event.connection.peer.dgid)  # to be found if it is called
                application.handle(event, endpoint.live.now)
        except Interrupted:
            return


main(*sys.argv[1:])
