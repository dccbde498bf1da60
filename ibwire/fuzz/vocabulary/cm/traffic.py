"""Correct traffic with a connection manager: the next message or command of each exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from ibwire.base.units import S
from ibwire.cm.states import WAITS, State
from ibwire.fuzz.case import MESSAGES, Command, Mad, Packet, Step, Value, Wait
from ibwire.fuzz.targets.emulated_manager import EXCHANGES, Management
from ibwire_layers import cm
from ibwire_layers.opcodes import OpCode


class ManagerTraffic:
    """The exchanges of a case, and the messages that were sent in them."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.exchange = rng.choice((0, 0, 1, EXCHANGES - 30))
        """The number of the exchange that continues."""
        self.newest = self.exchange
        """The number of the newest exchange."""
        self.sent: list[Mad] = []

    def start_exchange(self) -> None:
        """Continue with an exchange that has not begun yet."""
        self.newest = self.exchange = (self.newest + 1) % EXCHANGES

    def message(self, message: str, why: str = "", **fields: Value) -> Mad:
        """A message of the exchange; `__` in the name of a field stands for the dot."""
        said = Mad(message=message, exchange=self.exchange, why=why)
        if fields:
            said.fields = {name.replace("__", "."): value for name, value in fields.items()}
        return said

    def command(self, what: str) -> Command:
        """A command of the device's application about the exchange."""
        return Command(what, self.exchange)

    def next_steps(self, management: Management) -> Sequence[Step]:
        """The next step of the exchange, or the first of another when it is over."""
        rng, state = self.rng, management.exchange_state(self.exchange)
        if state in OVER:
            if rng.random() < 0.3 and state in WAITS:
                return [Wait(30 * S)]
            if state is not None or rng.random() < 0.1:
                self.start_exchange()
            return [self.opening()]
        return [rng.choice(_RIGHT[state])(self)]

    def opening(self) -> Step:
        """The first step of an exchange."""
        draw = self.rng.random()
        if draw < _XRC_RATE:
            said = self.message("REQ")
            said.fields = dict(XRC_REQUEST)
            return said
        if draw < 0.55:
            return self.message("REQ")
        if draw < 0.85:
            return self.command("connect")
        return self.message("SIDR_REQ") if draw < 0.93 else self.command("resolve")

    def valid_message(self, management: Management) -> Mad:
        """A message that is correct now, if there is one."""
        for _ in range(4):
            step = self.rng.choice(_RIGHT.get(management.exchange_state(self.exchange), _OPENING))(
                self
            )
            if isinstance(step, Mad):
                return step
        return self.message(self.rng.choice(MESSAGES))


_XRC_RATE = 0.02
XRC_REQUEST: Mapping[str, Value] = {
    "req.transport_service_type": int(cm.TransportType.EXTENDED),
    "req.extended_transport_type": cm.EXTENDED_XRC,
}
"""Of a right REQ for an XRC connection."""

_S = State
OVER = (None, _S.IDLE, _S.TIMEWAIT, _S.ANSWERED)
CONNECTED = (_S.REP_SENT, _S.ESTABLISHED)
REQUESTED = (_S.REQ_SENT, _S.MRA_REQ_RCVD)

Turn = Callable[[ManagerTraffic], Step]


def _message(name: str) -> Turn:
    return lambda traffic: traffic.message(name)


def _command(name: str) -> Turn:
    return lambda traffic: traffic.command(name)


def _data(traffic: ManagerTraffic) -> Step:
    """The first data, which replace an RTU; of any kind, and not always correct."""
    rng = traffic.rng
    opcode = rng.choice((OpCode.RC_RDMA_WRITE_ONLY, OpCode.RC_SEND_ONLY, OpCode.RC_ACKNOWLEDGE))
    return Packet(int(opcode), ("expected", rng.choice((0, 0, 0, 1, -1))), length=8)


_DECIDE = (*(_command("accept"),) * 6, _command("reject"), _command("delay"))
_OFFERED = (
    *(_message("RTU"),) * 4,
    *(_data,) * 2,
    _message("MRA"),
    _message("REJ"),
    _command("reject"),
)
_ASK = (*(_message("REP"),) * 5, _message("REJ"), _message("MRA"), _command("reject"))
_OPENING: Sequence[Turn] = (_message("REQ"), _message("REQ"), _message("SIDR_REQ"))
_RIGHT: dict[State | None, Sequence[Turn]] = {
    _S.REQ_RCVD: _DECIDE,
    _S.MRA_REQ_SENT: _DECIDE,
    _S.SIDR_REQ_RCVD: _DECIDE,
    _S.REP_SENT: _OFFERED,
    _S.MRA_REP_RCVD: _OFFERED,
    _S.REQ_SENT: _ASK,
    _S.MRA_REQ_RCVD: _ASK,
    _S.SIDR_REQ_SENT: (_message("SIDR_REP"), _message("SIDR_REP"), _command("reject")),
    _S.REP_RCVD: (*(_command("ready"),) * 6, _command("delay"), _command("reject")),
    _S.MRA_REP_SENT: (*(_command("ready"),) * 3, _command("reject")),
    _S.ESTABLISHED: (
        _data,
        _data,
        _message("DREQ"),
        _message("DREQ"),
        _command("disconnect"),
        _message("REP"),  # the RTU of the device was lost
    ),
    _S.DREQ_SENT: (_message("DREP"), _message("DREP"), _message("DREQ")),
}
"""What may come next in each state."""
