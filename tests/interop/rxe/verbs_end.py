"""One end of a connection, as a script for pyverbs: it runs on rxe and on ibwire.

The argument is a JSON object: `device`, `gid_index`; `listen` or `connect` with a TCP port and a
host; and the options that `ends.USUAL` lists. The ends exchange the numbers of their
queue pairs over TCP, a line of JSON each; they also wait for each other with such a line.
Prints a JSON object.
"""

import json
import socket
import subprocess
import sys
import time
import zlib

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PSN = 0xFFFFFE
"""First of both ends: it wraps at once."""

ACCESS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
)


class End:
    """A device with one queue pair and one region, of which a message takes the beginning."""

    def __init__(self, wish):
        self.wish = wish
        self.done = []
        self.context = Context(name=wish["device"])
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 100)
        self.region = MR(self.pd, wish["size"], ACCESS)
        content = bytes(range(251)) * (wish["size"] // 251 + 1) if wish["is_filled"] else b""
        self.region.write(content[: wish["size"]].ljust(wish["size"], b"\0"), wish["size"])
        attr = QPAttr()
        attr.qp_access_flags = ACCESS
        cap = QPCap(max_send_wr=50, max_recv_wr=50)
        init = QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(self.pd, init, attr)

    def words(self):
        """What the other end needs."""
        return {
            "qpn": self.qp.qp_num,
            "gid": str(self.context.query_gid(1, self.wish["gid_index"])),
            "rkey": self.region.rkey,
            "address": self.region.buf,
        }

    def bring_up(self, peer):
        self.peer = peer
        attr = QPAttr(path_mtu=self.wish["path_mtu"])
        attr.qp_access_flags = ACCESS
        route = GlobalRoute(dgid=GID(peer["gid"]), sgid_index=self.wish["gid_index"])
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attr.dest_qp_num = peer["qpn"]
        attr.sq_psn = attr.rq_psn = PSN
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        for name in ("timeout", "retry_cnt", "rnr_retry", "min_rnr_timer"):
            setattr(attr, name, self.wish[name])
        self.qp.to_rts(attr)

    def post(self):
        for length in self.wish["receives"]:
            self.qp.post_recv(RecvWR(num_sge=1, sg=[self.piece(length)]))

    def send(self, opcode, length, offset=0, wrong_key=0, imm_data=0):
        """offset: of the own memory."""
        request = SendWR(
            num_sge=1,
            sg=[self.piece(length, offset)],
            opcode=getattr(e, f"IBV_WR_{opcode}"),
            imm_data=imm_data,
        )
        if "RDMA" in opcode:
            request.set_wr_rdma(self.peer["rkey"] ^ wrong_key, self.peer["address"])
        self.qp.post_send(request)

    def piece(self, length, offset=0):
        return SGE(self.region.buf + offset, length, self.region.lkey)

    def poll(self):
        """Take what has completed: the status, and of a success what it is."""
        for wc in self.cq.poll(10)[1]:
            about = {"status": wc.status}
            if wc.status == e.IBV_WC_SUCCESS:
                about["opcode"] = wc.opcode
                if wc.opcode & e.IBV_WC_RECV:
                    about["length"] = wc.byte_len
                if wc.wc_flags & e.IBV_WC_WITH_IMM:
                    about["imm_data"] = wc.imm_data
            self.done.append(about)

    def live(self, until):
        """Poll until a condition holds or the time is over."""
        deadline = time.monotonic() + self.wish["seconds"]
        while not until() and time.monotonic() < deadline:
            self.poll()


class Peer:
    """The other end, over TCP."""

    def __init__(self, wish):
        if "listen" in wish:
            with socket.create_server(("", wish["listen"])) as listening:
                self.socket, _ = listening.accept()
        else:
            self.socket = self._connected(*wish["connect"])
        self.lines = b""
        self.is_gone = False

    @staticmethod
    def _connected(*address):
        """The other end may still be starting."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return socket.create_connection(address, 60)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def say(self, **words):
        try:
            self.socket.sendall(json.dumps(words).encode() + b"\n")
        except ConnectionError:
            self.is_gone = True

    def has_said(self):
        """Whether there is a line, or never will be one."""
        self.socket.setblocking(False)
        try:
            data = self.socket.recv(4096)
            self.lines += data
            self.is_gone = not data
        except BlockingIOError:
            pass
        except ConnectionError:
            self.is_gone = True
        self.socket.setblocking(True)
        return b"\n" in self.lines or self.is_gone

    def heard(self):
        line, _, self.lines = self.lines.partition(b"\n")
        return json.loads(line)


def main(wish):
    end, peer = End(wish), Peer(wish)
    peer.say(**end.words())
    end.live(peer.has_said)
    end.bring_up(peer.heard())
    end.post()
    peer.say(is_up=True)
    end.live(peer.has_said)
    peer.heard()
    subprocess.run(wish["before"], shell=True, check=True)
    begun = time.monotonic()
    for each in wish["sends"]:
        end.send(**each)
    end.live(lambda: len(end.done) >= wish["completions"])
    seconds = time.monotonic() - begun
    subprocess.run(wish["after"], shell=True, check=True)
    peer.say(is_over=True)
    end.live(peer.has_said)
    end.poll()
    crc = zlib.crc32(end.region.read(wish["size"], 0))
    print(json.dumps({"done": end.done, "seconds": seconds, "crc": crc}))


main(json.loads(sys.argv[1]))
