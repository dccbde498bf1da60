"""UC and UD: the same messages without acknowledgements.

A send completes when its last packet is sent; if its memory is not accessible, the queue
pair moves to SQE. The receiver sends no responses; if the memory of a receive request is
not accessible, the queue pair moves to ERR. UC checks PSNs: after a gap the current message
is abandoned, and the next FIRST or ONLY starts a new one. UD messages are one packet, which
is checked by its Q_Key only.

Source: IBA 9.8.2, 9.8.3; rxe_resp.c `check_psn`, `do_class_d1e_error`; rxe_recv.c.
"""

from __future__ import annotations

from ibwire.base.units import Time
from ibwire.rc.attributes import QPState
from ibwire.rc.packet import TransportPacket
from ibwire.rc.requester import Requester
from ibwire.rc.responder import Responder
from ibwire.rc.work import WCFlags, WCStatus
from ibwire_layers.opcodes import Operation, Service
from ibwire_layers.psn import MASK
from ibwire_layers.syndrome import NakCode

GRH_SIZE = 40

QP1 = 1
"""The queue pair of general services, such as connection management."""


class UnreliableRequester(Requester):
    """Sends each packet once."""

    __slots__ = ()

    def poll_transmit(self, now: Time) -> TransportPacket | None:
        """The next request packet, or `None` if no request may be sent."""
        qp, sends = self.qp, self.sends
        while sends.wqes:
            wqe = sends.wqes[0]
            if not wqe.started and qp.state is not QPState.RTS:
                return None
            if wqe.plan.operation is None:
                self._run_local(wqe)
                if wqe.status is not None:
                    self._break(wqe.status)
                    return None
                sends.complete(wqe, WCStatus.SUCCESS)
                continue
            if qp.service is Service.UD and wqe.length > qp.mtu:
                sends.complete(wqe, WCStatus.SUCCESS)  # nothing is sent (C10-93.1.1)
                continue
            if not wqe.started:
                wqe.started = True
                wqe.first_psn = sends.psn
            packet = self._segment(wqe, (sends.psn - wqe.first_psn) & MASK, sends.psn)
            if packet is None:
                self._break(WCStatus.LOC_PROT_ERR)
                return None
            packet.ack_req = int(qp.number == QP1 and qp.profile.asks_on_qp1)
            sends.psn = sends.una = sends.next_psn = sends.psn + 1 & MASK
            qp.address(packet, wqe.wr)
            if packet.form.is_last:
                sends.complete(wqe, WCStatus.SUCCESS)
                qp.check_drained()
            return packet
        return None

    def _break(self, status: WCStatus) -> None:
        self.sends.complete(self.sends.wqes[0], status)
        self.qp.enter_send_error()


class UCResponder(Responder):
    """Receives messages and silently drops incomplete ones."""

    __slots__ = ()

    def handle_packet(self, packet: TransportPacket, now: Time) -> None:
        """Process a packet."""
        if packet.psn != self.epsn:
            self._abandon()
            if not packet.form.is_first:
                return
            self.epsn = packet.psn
        super().handle_packet(packet, now)

    def send_credits(self) -> None:
        """Does nothing: the service has no credits."""

    def _abandon(self) -> None:
        self._message = None
        self.receives.give_up()

    def _acknowledge(self, psn: int) -> None:
        """Does nothing: the service has no acknowledgements."""

    def _refuse(
        self,
        packet: TransportPacket,
        code: NakCode = NakCode.INVALID_REQUEST,
        status: WCStatus | None = None,
    ) -> bool:
        self.epsn = packet.psn + 1 & MASK
        if code == NakCode.REMOTE_OPERATIONAL_ERROR:
            # The memory of the receive request is at fault: class A, all services (rxe_resp.c).
            self.receives.fail(status or self.qp.profile.receive_fault_status)
            self.qp.enter_error()
            return False
        self._abandon()
        if packet.form.is_first and packet.form.operation in (Operation.SEND, Operation.WRITE):
            self.qp.counters.dropped_messages += 1
        return False

    def _refuse_not_ready(self, packet: TransportPacket) -> bool:
        return self._refuse(packet)


class UDResponder(Responder):
    """Receives datagrams, each with 40 bytes in front for the global route header."""

    __slots__ = ()

    def handle_packet(self, packet: TransportPacket, now: Time) -> None:
        """Process a datagram."""
        qp = self.qp
        receives = self.receives
        if packet.form.operation is not Operation.SEND:
            return
        if packet.qkey != qp.attr.qkey:
            qp.count_bad_qkey()
            return
        if len(packet.payload) > qp.mtu or not receives.take():
            qp.counters.dropped_messages += 1
            return
        arrival = packet.arrival
        grh = arrival.grh if arrival else b""
        flags = WCFlags.GRH if grh else 0  # the 40 bytes are reserved without a GRH too
        grh = grh or bytes(GRH_SIZE)
        if not receives.fits(GRH_SIZE + len(packet.payload)):
            qp.counters.dropped_messages += 1
            receives.give_up()
        elif not receives.fill(grh) or not receives.fill(packet.payload):
            receives.fail(qp.profile.receive_fault_status)
            qp.enter_error()  # class A, for every service (rxe_resp.c)
        else:
            receives.finish(packet, flags=flags, src_qp=packet.src_qp)

    def send_credits(self) -> None:
        """Does nothing: the service has no credits."""
