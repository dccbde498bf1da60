"""Which network scripts see, and how it is made."""

from __future__ import annotations

import threading

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.base.units import GBPS, US
from ibwire.rc.device import Device
from ibwire.rc.profile import RXE, SPEC
from ibwire.verbs import libibverbs_enums as e
from ibwire.verbs.addr import AHAttr
from ibwire.verbs.device import Context, get_device_list
from ibwire.verbs.network import Network, current, set_current, use
from verbs.ends import End, ends

SEND = e.ibv_wr_opcode.IBV_WR_SEND


def test_first_use_makes_a_network_of_two_devices() -> None:
    before = current()
    set_current(None)

    assert [device.name for device in get_device_list()] == [b"ibwire0", b"ibwire1"]
    assert current() is current()
    set_current(before)


def test_network_in_use_ends_with_the_block() -> None:
    outer = current()
    with use(Network(5)) as inner:
        assert current() is inner
        assert len(get_device_list()) == 5
    assert current() is outer


def test_network_before_is_back_after_an_error() -> None:
    outer = current()
    with pytest.raises(ZeroDivisionError), use(Network()):
        raise ZeroDivisionError
    assert current() is outer


def test_devices_have_their_profile_and_different_numbers() -> None:
    with use(Network(profile=["rxe", SPEC])) as network:
        first, second = network.devices.values()
        a, b = End("ibwire0"), End("ibwire1")

        assert (first.profile, second.profile) == (RXE, SPEC)
        assert Context(name="ibwire0").query_device().fw_version == "ibwire rxe"
        assert a.qp.qp_num != b.qp.qp_num
        assert a.mr.rkey != b.mr.rkey
        assert a.mr.buf != b.mr.buf


def infiniband(*names: str) -> list[Device]:
    return [Device(name, f"fe80::{i}", link="ib", lid=i) for i, name in enumerate(names, 1)]


def test_two_native_infiniband_devices_have_a_wire_between_them() -> None:
    with use(Network(infiniband("ibwire0", "ibwire1"))):
        a, b = End("ibwire0"), End("ibwire1")
        port = b.ctx.query_port(1)
        for end, lid in (a, 2), (b, 1):
            attr = end.attr()
            attr.ah_attr = AHAttr(dlid=lid)
            attr.dest_qp_num = (b if end is a else a).qp.qp_num
            end.qp.to_rts(attr)
        b.qp.post_recv(b.recv())
        a.mr.write(b"no Ethernet", 11)
        a.qp.post_send(a.send(SEND, 11))

        assert b.wc().status == e.ibv_wc_status.IBV_WC_SUCCESS
        assert b.mr.read(11, 0) == b"no Ethernet"
        assert (port.link_layer, port.lid) == (e.IBV_LINK_LAYER_INFINIBAND, 2)


@pytest.mark.parametrize("link", ["rocev1", "rocev2"])
def test_ethernet_devices_may_be_given(link: str) -> None:
    made = [Device(f"ibwire{i}", f"2001:db8::{i + 1}", link=link, vlan=7) for i in range(2)]
    with use(Network(made)):
        a, b = ends()
        b.qp.post_recv(b.recv())
        a.qp.post_send(a.send(SEND))

        assert b.wc().status == e.ibv_wc_status.IBV_WC_SUCCESS


def test_rate_and_delay_are_those_of_every_wire() -> None:
    with use(Network(rate_bps=10 * GBPS, delay=5 * US)) as network:
        a, b = ends()
        b.qp.post_recv(b.recv())
        a.qp.post_send(a.send(SEND))
        b.wc()

        assert 10 * US < network.now < 11 * US
        assert a.ctx.query_port_speed(1) == 100


def test_frames_from_the_network_pass_the_incoming_stage_of_a_device() -> None:
    def lose(frame: bytes, now: int) -> list[tuple[int, bytes]]:
        return []

    with use(Network(incoming={"ibwire1": lose})):
        a, b = ends(changes={"retry_cnt": 1})
        b.qp.post_recv(b.recv())
        a.qp.post_send(a.send(SEND))

        assert a.wc().status == e.ibv_wc_status.IBV_WC_RETRY_EXC_ERR


@each_case(
    "wrong",
    [
        {"devices": -1},
        {"devices": 251},
        {"devices": [Device("a"), Device("a")]},
        {"devices": infiniband("a", "b", "c")},
        {"devices": [*infiniband("a"), Device("b")]},
        {"profile": "mellanox"},
        {"profile": ["rxe"]},
        {"outgoing": {"mlx5_0": lambda frame, now: []}},
        {"rate_bps": 0},
        {"delay": -1},
    ],
)
def test_network_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(EncodeError):
        Network(**wrong)


def test_advancing_moves_time_exactly(network: Network) -> None:
    network.advance(123)

    assert network.now == 123


def test_threads_share_the_network() -> None:
    a, b = ends()
    received: list[int] = []

    def receiver() -> None:
        for _ in range(100_000):
            received.extend(wc.wr_id for wc in b.cq.poll(16)[1])
            if len(received) == 50:
                return

    for wr_id in range(50):
        b.qp.post_recv(b.recv(64, wr_id=wr_id))
    thread = threading.Thread(target=receiver)
    thread.start()
    for _ in range(50):
        a.qp.post_send(a.send(SEND))
        a.wc()
    thread.join()

    assert received == list(range(50))
