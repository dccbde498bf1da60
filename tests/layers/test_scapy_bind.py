"""Together with Scapy's own layers: bound, unbound and bound again, in any import order.

Each case runs in its own process, because bindings belong to the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORTS = {
    "ours last": "from scapy.contrib import roce, mac_control; import ibwire_layers.scapy as ours",
    "ours first": "import ibwire_layers.scapy as ours; from scapy.contrib import roce, mac_control",
}

SETUP = """
from scapy.all import IP, UDP, IPv6, CookedLinux, Ether, Raw, conf
IMPORT
ADDRESSES = dict(src="00:00:00:00:00:01", dst="00:00:00:00:00:02")
V2 = bytes(Ether(**ADDRESSES) / IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=50000, dport=4791)
    / roce.BTH(opcode=0x11, psn=7) / roce.AETH(msn=5))
V1 = bytes(Ether(**ADDRESSES, type=0x8915) / bytes(range(40)) / bytes(20))
GATE = bytes(Ether(**ADDRESSES, type=0x8808) / b"\\0\\2" / bytes(44))

def assert_ours():
    v2, v1 = Ether(V2), Ether(V1)
    assert ours.BTH in v2 and roce.BTH not in v2 and v2[ours.AETH].msn == 5
    assert v2[ours.BTH].icrc_ok() is True
    assert ours.GRH in v1 and roce.GRH not in v1
    assert mac_control.MACControlGate in Ether(GATE)
    assert conf.l2types.num2layer[247] is ours.LRH and conf.l2types.num2layer[197] is ours.ERF

def assert_theirs():
    v2, v1 = Ether(V2), Ether(V1)
    assert roce.BTH in v2 and ours.BTH not in v2 and v2[roce.AETH].msn == 5
    assert bytes(v2) == V2
    assert roce.GRH in v1 and roce.BTH in v1 and ours.GRH not in v1
    assert mac_control.MACControlGate in Ether(GATE)
    assert 247 not in conf.l2types and 197 not in conf.l2types
    assert ours.LRH not in conf.l2types
    assert bytes(UDP() / ours.BTH())[:4] == bytes(UDP() / b"")[:4]

def assert_theirs_builds():
    built = Ether(**ADDRESSES) / IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=50000)
    assert bytes(built / roce.BTH(opcode=0x11, psn=7) / roce.AETH(msn=5)) == V2
    assert (Ether() / roce.GRH()).type == 0x8915
    assert (Ether() / mac_control.MACControlPause()).type == 0x8808
"""


def run(script: str) -> None:
    """`script` in a new interpreter with the layers on its path."""
    paths = [str(ROOT / "layers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("order", IMPORTS.values(), ids=list(IMPORTS))
def test_ours_reads_while_bound_and_theirs_after_unbind(order: str) -> None:
    run(
        SETUP.replace("IMPORT", order)
        + """
assert_ours()
assert_theirs_builds()
ours.unbind()
assert_theirs()
assert_theirs_builds()
ours.bind()
assert_ours()
assert_theirs_builds()
ours.bind()
ours.unbind()
ours.unbind()
assert_theirs()
"""
    )


STATE = """
def state():
    from scapy.packet import Packet
    classes, todo = set(), [Packet]
    while todo:
        for sub in todo.pop().__subclasses__():
            if sub not in classes:
                classes.add(sub)
                todo.append(sub)
    return {
        "guess": {c: [(dict(f), u) for f, u in c.payload_guess] for c in classes},
        "overload": {c: dict(c._overload_fields) for c in classes},
        "numbers": dict(conf.l2types.num2layer),
        "layers": dict(conf.l2types.layer2num),
        "answers": UDP.__dict__["answers"],
        "config": (conf.checkIPsrc, conf.checkIPaddr, conf.checkIPinIP),
    }
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", IMPORTS.values(), ids=list(IMPORTS))
def test_unbind_is_the_exact_inverse_of_bind(order: str) -> None:
    run(
        SETUP.replace("IMPORT", order)
        + STATE
        + """
bound = state()
ours.unbind()
unbound = state()
assert unbound != bound
assert all(not u.__module__.startswith("ibwire") for c, b in unbound["guess"].items() for _, u in b)
ours.bind()
assert state() == bound
ours.unbind()
assert state() == unbound
"""
    )


@pytest.mark.slow
def test_import_changes_nothing_that_unbind_does_not_give_back() -> None:
    run(
        "from scapy.all import *\n"
        + STATE
        + """
before = state()
import ibwire_layers.scapy as ours
ours.unbind()
after = state()
for kind in before:
    if kind in ("guess", "overload"):
        assert all(after[kind][c] == before[kind][c] for c in before[kind]), kind
    else:
        assert after[kind] == before[kind], kind
"""
    )


@pytest.mark.slow
def test_unbind_restores_the_former_link_type() -> None:
    run(
        """
from scapy.all import Packet, conf
class Other(Packet):
    pass
conf.l2types.register(247, Other)
import ibwire_layers.scapy as ours
assert conf.l2types[247] is ours.LRH
ours.unbind()
assert conf.l2types[247] is Other and conf.l2types[Other] == 247
"""
    )


@pytest.mark.slow
def test_answers_with_swapped_ports_are_read_and_not_built() -> None:
    run(
        SETUP.replace("IMPORT", IMPORTS["ours last"])
        + """
swapped = Ether(V2[:34] + V2[36:38] + V2[34:36] + V2[38:])
assert swapped[UDP].sport == 4791 and swapped[ours.AETH].msn == 5
assert (UDP() / ours.BTH()).dport == 4791 and (UDP() / ours.BTH()).sport != 4791
"""
    )


@pytest.mark.slow
def test_a_wrapper_around_udp_answers_survives_unbind_and_bind() -> None:
    run(
        """
from scapy.all import IP, UDP
import ibwire_layers.scapy as ours
inner = UDP.answers
UDP.answers = lambda self, other: inner(self, other)
wrapper = UDP.answers
ours.unbind()
ours.bind()
assert UDP.answers is wrapper
ask = IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=5, dport=6) / b"a"
tell = IP(src="192.0.2.2", dst="192.0.2.1") / UDP(sport=6, dport=5) / b"b"
assert tell.answers(ask) and not ask.copy().answers(ask)
"""
    )


def test_ibwire_layers_alone_does_not_import_scapy() -> None:
    run(
        """
import sys
import ibwire_layers.derive, ibwire_layers.packet, ibwire_layers.management
assert not any(name == "scapy" or name.startswith("scapy.") for name in sys.modules)
"""
    )


@pytest.mark.slow
def test_names_do_not_collide_with_those_of_scapy() -> None:
    run(
        """
from scapy.all import *
from ibwire_layers.scapy import *
from ibwire_layers.scapy.mad import MAD, REQ, PortInfo
packet = IP(dst="192.0.2.2", src="192.0.2.1") / UDP() / BTH(dest_qp=1) / DETH(src_qp=1) / MAD()
assert packet.dport == 4791 and packet.sport == 0xC000
"""
    )
