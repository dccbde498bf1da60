"""Own addresses on a veth pair, with the kernel of the other namespace as the judge."""

from __future__ import annotations

import json

import pytest

from live.sides import exchange, inside, peer, result

OWN = {"a": ("10.0.0.71", "fd00::71"), "b": ("10.0.0.72", "fd00::72")}
MACS = {"a": "0200000000aa", "b": "0200000000bb"}
"""Not those that a device takes for the addresses when it knows no better."""

PING = """
import json, socket, subprocess
with open("/proc/sys/net/ipv4/ping_group_range", "w") as group:
    group.write("0 0")  # in this namespace: the right to open the sockets of ping
said = []
for family, protocol, request, address in (
    (socket.AF_INET, socket.IPPROTO_ICMP, 8, "10.0.0.72"),
    (socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, "fd00::72"),
):
    for size in (0, 1, 1400):
        with socket.socket(family, socket.SOCK_DGRAM, protocol) as asking:
            asking.settimeout(10)
            asking.sendto(bytes((request, 0, 0, 0, 0, 0, 0, 7)) + bytes(size), (address, 0))
            answer = asking.recv(2000)
            said.append((answer[0], answer[6:8].hex(), len(answer) - 8))
neighbours = json.loads(subprocess.run(["ip", "-j", "neigh"], capture_output=True).stdout)
print(json.dumps([said, {each["dst"]: each["lladdr"] for each in neighbours}]))
"""


def own(side, version=0):
    return {"address": OWN[side][version], "mac": MACS[side]}


@pytest.mark.parametrize("version", [0, 1], ids=["v4", "v6"])
def test_kernel_finds_and_pings_an_own_address(lab, started, version):
    """The kernel's sockets for ping let only answers with a good checksum through."""
    process, _ = peer(lab, started, "b", "wait", peer=OWN["a"][version], **own("b", version))
    ping = PING.replace("(socket.AF_INET,", "(None,") if version else PING
    ping = ping if version else PING.replace("(socket.AF_INET6,", "(None,")
    ping = ping.replace("    for size in", "    for size in () if family is None else")

    said, neighbours = json.loads(inside(lab, ping))

    reply = 129 if version else 0
    assert said == [[reply, "0007", size] for size in (0, 1, 1400)]
    assert neighbours[OWN["b"][version]] == "02:00:00:00:00:bb"
    process.terminate()
    assert result(process)["ended"] == "signal"


@pytest.mark.parametrize("vlan", [None, 5], ids=["untagged", "vlan"])
@pytest.mark.parametrize("version", [0, 1], ids=["v4", "v6"])
def test_nodes_with_own_addresses_find_each_other_and_every_byte_arrives(
    lab, started, version, vlan
):
    exchange(lab, started, own("a", version), own("b", version), vlan=vlan)


DETECTION = """
import json, subprocess, time
setting = "/proc/sys/net/ipv6/conf/veth-a/accept_dad"
with open(setting, "w") as accept:
    accept.write("1")
subprocess.run("ip addr add fd00::72/64 dev veth-a".split(), check=True)
end = time.monotonic() + 10
flags = {"tentative": True}
while flags.get("tentative") and not flags.get("dadfailed") and time.monotonic() < end:
    time.sleep(0.05)
    shown = subprocess.run("ip -j -6 addr show dev veth-a to fd00::72".split(), capture_output=True)
    flags = json.loads(shown.stdout)[0]["addr_info"][0]
subprocess.run("ip addr del fd00::72/64 dev veth-a".split(), check=True)
with open(setting, "w") as accept:
    accept.write("0")
print(flags.get("dadfailed", False))
"""


def test_kernel_gives_an_address_up_that_is_ours(lab, started):
    """Duplicate address detection (RFC 4862 5.4)."""
    free = inside(lab, DETECTION)
    peer(lab, started, "b", "wait", peer=OWN["a"][1], **own("b", 1))
    taken = inside(lab, DETECTION)

    assert (free, taken) == ("False", "True")
