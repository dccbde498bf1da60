"""How fast two ibwire processes are over a veth pair: a measurement, not a test.

    python tests/live/speed.py [afpacket|udp|pcap]

Each row: a ping-pong of SENDs, half the round trip as perftest has it; then a stream of
WRITEs of 64 KiB, counting the frames that the writer sends.
"""

import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise

from ibwire.lab.veth import ADDRESSES, INTERFACES, Lab
from ibwire.link.afpacket import AFPacketPort
from ibwire.link.live import Live
from ibwire.link.pcap import PcapPort
from ibwire.link.udp import UDPPort
from ibwire.rc.attributes import MTU_CODES, AddressVector, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device, gid_of
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR, SendWR, WCOpcode, WROpcode

PINGS = 2000
WRITES = 200
WRITE_SIZE = 1 << 16
SECONDS = 120
"""The longest that each part may take; a machine with much other work needs minutes."""
PORTS = {"afpacket": AFPacketPort, "udp": UDPPort, "pcap": PcapPort}


def main(port):
    print("wait   bytes  path MTU  latency us: median  p99  frames/s sent  MB/s")
    with Lab.create() as lab:
        for spin, size, mtu in ((0, 64, 1024), (1, 64, 1024), (1, 1024, 1024), (1, 4096, 4096)):
            server = start(lab, "b", port, spin, size, mtu)
            client = start(lab, "a", port, spin, size, mtu)
            printed = client.communicate()[0]
            if client.returncode:
                server.kill()
                sys.exit(f"the sender of {size} bytes has failed, see above")
            median, p99, frames, megabytes = json.loads(printed)
            server.wait()
            way = "spin" if spin else "sleep"
            print(f"{way:5} {size:6} {mtu:9} {median:19.1f} {p99:5.1f} {frames:9} {megabytes:5}")


def start(lab, side, *arguments):
    process = subprocess.Popen(
        lab.command(side, [sys.executable, __file__, side, *map(str, arguments)]),
        env=lab.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    if side == "b":
        assert process.stdout.readline() == "ready\n"
    return process


def run(side, kind, spin, size, mtu):
    other = "b" if side == "a" else "a"
    with PORTS[kind](INTERFACES[side]) as port:
        device = Device(side, ADDRESSES[side][0], mac=port.mac)
        pd = device.alloc_pd()
        region = pd.register(WRITE_SIZE, int(ALL_ACCESS), iova=0x1000)
        cq = device.create_cq(1 << 14)
        cap = QPCap(max_send_wr=WRITES, max_recv_wr=16)
        qp = device.create_qp(QPInit(QPType.RC, pd, send_cq=cq, recv_cq=cq, cap=cap), 0x100)
        bring_up(
            qp,
            AddressVector(dgid=gid_of(ADDRESSES[other][0])),
            dest_qp_num=0x100,
            path_mtu=MTU_CODES[mtu],
            timeout=18,
        )
        live = Live(device, port, spin=spin)
        message = SGE(region.iova, size, region.lkey)
        qp.post_recv(RecvWR([message]))
        times = [time.perf_counter_ns()]

        def ping():
            """Answer each message that has come, as a step of the loop: one run for all."""
            for each in cq.poll(16):
                if each.opcode is WCOpcode.RECV:
                    times.append(time.perf_counter_ns())
                    qp.post_recv(RecvWR([message]))
                    if side == "b" or len(times) <= PINGS:
                        qp.post_send(SendWR(WROpcode.SEND, [message]))
            return len(times) > PINGS

        if side == "a":
            qp.post_send(SendWR(WROpcode.SEND, [message]))
        else:
            print("ready", flush=True)
        live.run(stop=ping, seconds=SECONDS)
        if len(times) <= PINGS:
            sys.exit(f"{side}: {len(times) - 1} of {PINGS} messages in {SECONDS} s, busy machine?")
        if side == "b":
            # The last message says that the stream is over.
            live.run(stop=lambda: ping() and len(times) > PINGS + 1, seconds=SECONDS)
            return
        live.run(stop=lambda: not cq.poll(16), seconds=SECONDS)
        rounds = sorted(after - before for before, after in pairwise(times))
        writes = 0

        def written():
            nonlocal writes
            writes += len(cq.poll(WRITES))
            return writes >= WRITES

        # Both ends register the same memory, so its key and address are known.
        whole = SGE(region.iova, WRITE_SIZE, region.lkey)
        write = SendWR(WROpcode.RDMA_WRITE, [whole], rkey=region.rkey, remote_addr=region.iova)
        begin, sent = time.perf_counter_ns(), live.sent
        for _ in range(WRITES):
            qp.post_send(write)
        live.run(stop=written, seconds=SECONDS)
        seconds = (time.perf_counter_ns() - begin) / 1e9
        if writes < WRITES:
            sys.exit(f"{writes} of {WRITES} WRITEs in {SECONDS} s, busy machine?")
        frames = live.sent - sent
        qp.post_send(SendWR(WROpcode.SEND, [message]))
        live.run(stop=lambda: bool(cq.poll(1)), seconds=SECONDS)
        result = (
            statistics.median(rounds) / 2e3,
            rounds[PINGS * 99 // 100] / 2e3,
            round(frames / seconds),
            round(writes * WRITE_SIZE / seconds / 1e6),
        )
        print(json.dumps(result))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(*sys.argv[1:3], *map(int, sys.argv[3:]))
    else:
        main(*sys.argv[1:] or ["afpacket"])
