"""What the requester of Linux Soft-RoCE does differently."""

from ibwire.rc.profile import RXE, SPEC
from ibwire.rc.work import WROpcode
from ibwire.units import GBPS
from pair import Pair


def first_of_a_long_send(profile):
    pair = Pair(profile=profile)
    pair.b.post_recv(4096)
    pair.post(length=4096)
    pair.drive()
    return pair.sent("a")[0].bth.ack_req


def test_rxe_asks_for_no_credits_with_its_first_packet():
    """rc-pingpong: SEND FIRST of the first message has AckReq 0, and MIDDLE follows at once.

    By the specification it is limited, because no credits are known (IBA 9.7.7.2).
    """
    assert first_of_a_long_send(RXE) == 0
    assert first_of_a_long_send(SPEC) == 1


def test_rxe_sends_on_before_it_has_heard_of_credits():
    """cm-ucmatose: five SENDs leave before the first acknowledgement."""
    pair = Pair(profile=RXE)
    for _ in range(5):
        pair.b.post_recv(64)
        pair.post(length=64)
    pair.drive()

    # The time of each frame is when it leaves; none of a's waits for one of b's.
    answered = next(time for time, sender, _ in pair.frames if sender == "b")
    assert all(time < answered for time, sender, _ in pair.frames if sender == "a")


def test_the_count_to_the_next_ack_request_goes_on_over_a_retransmission():
    """big-send-bw-loss.a: 19 resent MIDDLEs carry AckReq because of packets sent before."""
    pair = Pair(profile=RXE, rate_bps=1 * GBPS, mtu=256)
    pair.drop("a", 11)
    pair.post(WROpcode.RDMA_WRITE, length=100 * 256)
    pair.drive()
    sent = pair.sent("a")

    # A few packets follow the lost one before its NAK arrives; then all from there again.
    assert len(sent) > 100
    assert [n for n, packet in enumerate(sent, 1) if packet.bth.ack_req] == [66, len(sent)]
