"""One of the two processes of the FIFO test: sends a message, or receives and checks one.

Arguments: `send` or `receive`, incoming FIFO, outgoing FIFO. Prints what came of it.
"""

import sys

from ibwire.link.files import FileLink
from ibwire.rc.attributes import AddressVector, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device, gid_of
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR, SendWR

MESSAGE = bytes(range(256)) * 400
QPNS = {"send": 0x100, "receive": 0x200}
ADDRESSES = {"send": "10.0.0.1", "receive": "10.0.0.2"}


def main(role: str, incoming: str, outgoing: str) -> None:
    peer = "receive" if role == "send" else "send"
    device = Device(role, ADDRESSES[role])
    pd = device.alloc_pd()
    memory = bytearray(MESSAGE if role == "send" else len(MESSAGE))
    region = pd.register(memory, int(ALL_ACCESS))
    cq = device.create_cq(16)
    qp = device.create_qp(QPInit(QPType.RC, pd, send_cq=cq, recv_cq=cq, cap=QPCap()), QPNS[role])
    # A second of ACK timeout, and a receive request that may be posted too late.
    bring_up(qp, AddressVector(dgid=gid_of(ADDRESSES[peer])), dest_qp_num=QPNS[peer], timeout=18)
    sge = SGE(region.iova, len(memory), region.lkey)
    if role == "send":
        qp.post_send(SendWR(sg_list=[sge], wr_id=7))
    else:
        qp.post_recv(RecvWR([sge], wr_id=8))
    done = []

    def stop() -> bool:
        done.extend(cq.poll(1))
        return bool(done)

    with FileLink(incoming, outgoing) as link:
        ended = link.run(device, stop=stop, seconds=30)
        (wc,) = done
        print(role, ended, wc.wr_id, wc.status.name, bytes(memory) == MESSAGE)
        # The sender leaves first; the receiver sees it go.
        if role == "receive":
            print(link.run(device, seconds=30))


if __name__ == "__main__":
    main(*sys.argv[1:])
