"""A responder for the tests of a sender that waits for answers.

Argument: a JSON object with `qpns`, the `psn` that they expect, and if need be `faults`, a
file. Prints that it is ready, and once something is written to it, or its input ends, what has
come.
"""

import json
import select
import sys

from ibwire.link.afpacket import AFPacketPort
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.faults import Faults, read_faults
from ibwire.rc.attributes import MTU_CODES, AddressVector, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import gid_of
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR

SLOT = 4096
"""Bytes for each message."""
SLOTS = 4000
"""Messages to all queue pairs."""
SECONDS = 30


def main(wanted):
    faults = read_faults(wanted["faults"]) if "faults" in wanted else Faults()
    with AFPacketPort("veth-b") as port:
        endpoint = Endpoint(port, addresses=["10.0.0.2"], faults=faults)
        device = endpoint.device
        pd = device.alloc_pd()
        memory = bytearray(SLOT * SLOTS)
        region = pd.register(memory, int(ALL_ACCESS))
        cq = device.create_cq(2 * SLOTS)
        cap = QPCap(max_send_wr=16, max_recv_wr=SLOTS)
        each = SLOTS // len(wanted["qpns"])
        order = {}
        for number, qpn in enumerate(wanted["qpns"]):
            init = QPInit(QPType.RC, pd, send_cq=cq, recv_cq=cq, cap=cap)
            qp = device.create_qp(init, qpn)
            bring_up(
                qp,
                AddressVector(dgid=gid_of("10.0.0.1")),
                dest_qp_num=qpn,
                sq_psn=0,
                rq_psn=wanted["psn"],
                path_mtu=MTU_CODES[1024],
                timeout=14,
            )
            for slot in range(number * each, (number + 1) * each):
                qp.post_recv(RecvWR([SGE(region.iova + slot * SLOT, SLOT, region.lkey)], slot))
            order[qpn] = []
        print(json.dumps({"rkey": region.rkey, "va": region.iova}), flush=True)

        def over():
            for wc in cq.poll(SLOTS):
                begin = wc.wr_id * SLOT
                order[wc.qp_num].append(
                    (wc.status.name, wc.byte_len, int.from_bytes(memory[begin : begin + 8]))
                )
            return bool(select.select([0], [], [], 0)[0])

        endpoint.run(stop=over, watch=[0], seconds=SECONDS)
        over()
        print(json.dumps({"order": order, "faults": faults.hits}), flush=True)


main(json.loads(sys.argv[1]))
