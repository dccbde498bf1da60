"""One of the two processes of the tests on a veth pair.

Arguments: a JSON object with `role` (a function here), `device`, own
and peer's `address`, `mtu`, and for a requester the `rkey` and `iova` of the responder's
memory; if need be the kind of `port`, the `mac` of an address that is not the kernel's, a
`vlan`, a `profile`. Prints a JSON object a line: first what it is, last what came of it.
"""

import json
import random
import select
import sys

from ibwire.base.errors import LinkError
from ibwire.link.afpacket import AFPacketPort
from ibwire.link.arp_nd import NeighbourResponder
from ibwire.link.live import Ended, Live
from ibwire.link.pcap import PcapPort
from ibwire.link.udp import UDPPort
from ibwire.rc.attributes import MTU_CODES, AddressVector, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device, gid_of
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WROpcode

SIZE = 100_001
"""Bytes of each message: not a whole number of packets, nor of words."""

QPNS = {"request": 0x100, "respond": 0x200}
PSNS = {"request": 0xFFFFF0, "respond": 0x10}
SECONDS = 10


def content(name):
    return random.Random(name).randbytes(SIZE)


def tell(**facts):
    print(json.dumps(facts), flush=True)


def told():
    """Whether the test has written something, or closed its end."""
    return bool(select.select([0], [], [], 0)[0])


class End:
    """A device on an interface, with a connection and some memory."""

    def __init__(self, port, wanted, role, size):
        self.peer = "respond" if role == "request" else "request"
        mac = bytes.fromhex(wanted["mac"]) if "mac" in wanted else port.mac
        vlan = wanted.get("vlan")
        self.device = Device(
            role, wanted["address"], mac=mac, vlan=vlan, profile=wanted.get("profile", "spec")
        )
        self.wanted = wanted
        self.responder = None
        self.live = Live(self.device, port)
        if "mac" in wanted:
            self.responder = NeighbourResponder(self.device, mac, wanted["address"], vlan=vlan)
            self.device.neighbours = self.responder.neighbours
            self.live = Live(self.responder, port)
        self.memory = bytearray(size)
        pd = self.device.alloc_pd()
        self.region = pd.register(self.memory, int(ALL_ACCESS))
        self.cq = self.device.create_cq(4096)
        cap = QPCap(max_send_wr=1024, max_recv_wr=1024)
        self.qp = self.device.create_qp(
            QPInit(QPType.RC, pd, send_cq=self.cq, recv_cq=self.cq, cap=cap), QPNS[role]
        )
        self.role = role
        self.done = []

    def connect(self):
        """Find the peer, if nothing else does, and bring the queue pair up."""
        if self.responder:
            asked = self.responder.resolve(gid_of(self.wanted["peer"]))
            self.live.run(stop=lambda: asked.mac or asked.failed, seconds=SECONDS)
        bring_up(
            self.qp,
            AddressVector(dgid=gid_of(self.wanted["peer"])),
            dest_qp_num=QPNS[self.peer],
            sq_psn=PSNS[self.role],
            rq_psn=PSNS[self.peer],
            path_mtu=MTU_CODES[self.wanted["mtu"]],
            timeout=18,  # a second: a busy machine is not a loss
        )

    def sge(self, offset=0, length=SIZE):
        return SGE(self.region.iova + offset, length, self.region.lkey)

    def completes(self, count=1):
        """A condition: this many completions since the last one."""
        self.done.clear()

        def stop():
            self.done.extend(self.cq.poll(count - len(self.done)))
            return len(self.done) >= count

        return stop


def opened(wanted):
    kind = wanted.get("port", "afpacket")
    own = "mac" in wanted
    if kind == "udp":
        return UDPPort(wanted["device"], addresses=[wanted["address"]])
    if kind == "pcap":
        return PcapPort(wanted["device"], neighbours=own, promiscuous=own)
    return AFPacketPort(wanted["device"], neighbours=own, promiscuous=own)


def respond(port, wanted):
    """Takes a SEND into the first third of the memory, a WRITE into the second."""
    end = End(port, wanted, "respond", 3 * SIZE)
    end.memory[2 * SIZE :] = content("read")
    live = end.live
    tell(rkey=end.region.rkey, iova=end.region.iova, addresses=port.addresses)
    end.connect()
    end.qp.post_recv(RecvWR([end.sge()]))
    ended = live.run(stop=end.completes(), seconds=SECONDS)
    # The READ that follows asks for no completion here; the test says when it is over.
    if ended is Ended.STOPPED:
        live.run(stop=told, watch=[0], seconds=SECONDS)
    tell(
        ended=ended,
        statuses=[each.status.name for each in end.done],
        sent=end.memory[:SIZE] == content("send"),
        written=end.memory[SIZE : 2 * SIZE] == content("write"),
        counters=end.device.counters,
    )


def request(port, wanted):
    end = End(port, wanted, "request", 3 * SIZE)
    end.memory[: 2 * SIZE] = content("send") + content("write")
    live = end.live
    tell(addresses=port.addresses)
    end.connect()
    remote = {"rkey": wanted["rkey"]}
    for opcode, place in ((WROpcode.RDMA_WRITE, 1), (WROpcode.SEND, 0), (WROpcode.RDMA_READ, 2)):
        remote["remote_addr"] = wanted["iova"] + place * SIZE
        end.qp.post_send(
            SendWR(opcode, [end.sge(place * SIZE)], SendFlags.SIGNALED, int(opcode), **remote)
        )
    ended = live.run(stop=end.completes(3), seconds=SECONDS)
    tell(
        ended=ended,
        statuses=[each.status.name for each in end.done],
        read=end.memory[2 * SIZE :] == content("read"),
        frames=live.sent + live.received,
        counters=end.device.counters,
    )


def wait(port, wanted):
    """Runs until a signal arrives or the link goes down."""
    end = End(port, wanted, "respond", SIZE)
    live = end.live
    told_so = []

    def stop():
        """Prints that it is running only once the run handles signals."""
        if not told_so:
            told_so.append(True)
            tell(running=True)
        return False

    try:
        tell(ended=live.run(seconds=SECONDS, stop=stop), signal=live.signal)
    except LinkError as error:
        tell(error=str(error))


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    roles = {"respond": respond, "request": request, "wait": wait}
    with opened(wanted) as port:
        roles[wanted["role"]](port, wanted)
