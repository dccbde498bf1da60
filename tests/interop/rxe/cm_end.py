"""Our end of tools of librdmacm that ibwire has no command for; see `test_cm.py`.

Arguments: a JSON object with `interface`, `address`, `host`, and a `role`, which is a function
here. Prints "ready", and at the end a JSON object.
"""

import json
import sys

from ibwire.cm import Endpoints, EventKind, resolve_request
from ibwire.link.afpacket import AFPacketPort
from ibwire.programs.cm import accept, events, leave, settle
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.attributes import AddressVector, QPCap, QPType
from ibwire.rc.device import gid_of
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WCOpcode
from ibwire_layers import cm

SECONDS = 60

MESSAGES, SIZE = 10, 100
"""What ucmatose sends (cmatose.c)."""

UCMATOSE_PORT, UDADDY_PORT = 7471, 7174


def ucmatose(endpoint, wanted):
    """The server: sends its messages, takes the client's, and disconnects."""
    endpoint.manager.listen(Endpoints(0, 0, 0, UCMATOSE_PORT).service_id)
    print("ready", flush=True)
    asked = wait_for(endpoint, EventKind.CONNECT_REQUEST)
    device = endpoint.device
    pd = device.alloc_pd()
    memory = pd.register(MESSAGES * SIZE, 1)
    cq = device.create_cq(4 * MESSAGES)
    cap = QPCap(MESSAGES, MESSAGES, max_inline_data=SIZE)
    qp = device.create_qp(QPInit(QPType.RC, pd, cq, cq, cap=cap))
    accept(endpoint, asked.connection, qp)
    for number in range(MESSAGES):
        qp.post_recv(RecvWR([SGE(memory.iova + number * SIZE, SIZE, memory.lkey)]))
    wait_for(endpoint, EventKind.ESTABLISHED)
    for number in range(MESSAGES):
        flags = SendFlags.SIGNALED | SendFlags.INLINE
        qp.post_send(SendWR(send_flags=flags, inline_data=bytes([number]) * SIZE))
    done = []
    endpoint.wait(
        lambda: done.extend(cq.poll(MESSAGES)) or len(done) == 2 * MESSAGES,
        "messages",
        seconds=SECONDS,
    )
    leave(endpoint, asked.connection)
    settle(endpoint, asked.connection)
    received = [wc.byte_len for wc in done if wc.opcode is WCOpcode.RECV]
    return {"received": received, "statuses": sorted({wc.status.name for wc in done})}


def udaddy(endpoint, wanted):
    """The client, as far as its question which queue pair it is."""
    print("ready", flush=True)
    gid = gid_of(wanted["host"])
    own = endpoint.gid_towards(gid)
    ends = Endpoints(endpoint.device.gids[own], 40_000, gid, UDADDY_PORT, cm.PortSpace.UDP)
    way = AddressVector(dgid=gid, sgid_index=own)
    endpoint.manager.resolve(resolve_request(ends), way, endpoint.live.now)
    answer = wait_for(endpoint, EventKind.RESOLVED)
    reply = answer.connection.reply
    return {"status": answer.reason, "qpn": reply.qpn, "qkey": reply.qkey}


def wait_for(endpoint, kind):
    found = []

    def has_come():
        found.extend(event for event in events(endpoint) if event.kind is kind)
        return bool(found)

    endpoint.wait(has_come, kind.name, seconds=SECONDS)
    return found[0]


def main(wanted):
    roles = {"ucmatose": ucmatose, "udaddy": udaddy}
    with (
        AFPacketPort(wanted["interface"]) as port,
        Endpoint(port, addresses=[wanted["address"]]) as endpoint,
    ):
        print(json.dumps(roles[wanted["role"]](endpoint, wanted)), flush=True)


main(json.loads(sys.argv[1]))
