"""Which error of a failed connection is reported, and what is said of its cause."""

from __future__ import annotations

from ibwire.base.units import S
from ibwire.programs.failures import cause, first_status
from ibwire.rc.work import SendWR, WCStatus, WROpcode
from ibwire.testing import Peer
from ibwire_layers.opcodes import OpCode


def gone() -> Peer:
    peer = Peer()
    peer.post_recv(16)
    peer.qp.post_send(SendWR(WROpcode.SEND))
    peer.wait(10 * S)
    return peer


def test_the_flush_that_is_polled_first_has_the_status_of_the_first_error() -> None:
    peer = gone()
    (flushed,) = peer.poll_recv_cq()

    assert flushed.status is WCStatus.WR_FLUSH_ERR
    assert first_status(peer.qp, flushed.status) is WCStatus.RETRY_EXC_ERR


def test_a_peer_that_never_responds() -> None:
    text = cause(gone().qp, WCStatus.RETRY_EXC_ERR, ("-u", "-m"))

    assert text == (
        "nothing has arrived from the peer's queue pair: the peer is gone, or a firewall drops "
        "UDP port 4791, or packets of a path MTU of 1024 are lost on the way: try a smaller one "
        "with -m"
    )


def test_a_peer_that_stops_responding() -> None:
    peer = Peer()
    peer.request(WROpcode.RDMA_WRITE, 8, wr_id=1)
    peer.receive_ack(500)
    peer.request(WROpcode.RDMA_WRITE, 8, wr_id=2)
    peer.wait(10 * S)

    assert cause(peer.qp, WCStatus.RETRY_EXC_ERR, ("-u", "-m")) == (
        "the peer has stopped responding: it is gone, too slow, or packets are lost: -u with a "
        "larger code waits longer"
    )
    assert "-u" not in cause(peer.qp, WCStatus.RETRY_EXC_ERR)


def test_a_wrong_response_is_named() -> None:
    peer = Peer()
    peer.request(WROpcode.RDMA_READ, 2000, wr_id=1)
    peer.receive_packet(OpCode.RC_RDMA_READ_RESPONSE_LAST, 500, payload=bytes(16))
    (wc,) = peer.poll_send_cq()

    assert wc.status is WCStatus.BAD_RESP_ERR
    assert cause(peer.qp, wc.status) == (
        "the peer's response RC_RDMA_READ_RESPONSE_LAST with PSN 500 is not valid for the oldest "
        "request"
    )


def test_a_wrong_request_is_named() -> None:
    peer = Peer()
    peer.post_recv(16)
    peer.receive_packet(OpCode.RC_SEND_MIDDLE, 100, payload=bytes(1024))
    (wc,) = peer.poll_recv_cq()

    assert cause(peer.qp, wc.status) == (
        "the peer's request RC_SEND_MIDDLE with PSN 100 and 1024 bytes is not valid here (size, "
        "access or place in its message; has the first packet been retransmitted with another "
        "opcode?)"
    )
