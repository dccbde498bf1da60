"""Cells of coverage: what a packet of a queue pair has met, in seven dimensions.

Opcode (with its position in a message), PSN, length of the payload, receive requests or credits,
state of the queue pair, message that it is receiving, and state of another queue pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ibwire.fuzz.case import Packet, Role, opcode_text
from ibwire.fuzz.coverage import Cell
from ibwire.fuzz.targets.emulated_device import Emulation, connection_state
from ibwire.fuzz.vocabulary.queue_pair.coverage import STATES
from ibwire_layers.opcodes import INFO, OpCode, OpCodeInfo, Operation, Service
from ibwire_layers.psn import HALF, MASK

PSN, LENGTH, CREDITS, STATE, MESSAGE, OTHER = range(1, 7)
"""Where a cell has the number of a value of `DIMENSIONS`; first is the opcode."""

_REQUEST_PSNS = (
    "expected",
    "one ahead",
    "further ahead",
    "ahead across the wrap",
    "the newest one again",
    "an older one",
    "an older one across the wrap",
)
_RESPONSE_PSNS = (
    "oldest outstanding",
    "outstanding",
    "outstanding across the wrap",
    "never sent",
    "acknowledged",
    "acknowledged across the wrap",
)

DIMENSIONS: Mapping[int, tuple[str, Sequence[str]]] = {
    PSN: ("PSN", (*_REQUEST_PSNS, *_RESPONSE_PSNS)),
    LENGTH: ("payload", ("none", "1 to 3 bytes", "below the path MTU", "path MTU", "above it")),
    CREDITS: (
        "receive requests or credits",
        ("no receive request", "one", "several", "limited by credits", "not limited by credits"),
    ),
    STATE: ("state", STATES),
    MESSAGE: ("message that is being received", ("none", "SEND", "WRITE")),
    OTHER: ("another queue pair", ("there is none", *STATES)),
}
"""Names of the dimensions and of their values."""

_STATE_NUMBERS = {name: number for number, name in enumerate(STATES)}
_SEND = Operation.SEND


def cell_of(reference: Emulation, packet: Packet) -> Cell:
    """The cell of a packet that the queue pair in focus is about to receive."""
    qp = reference.qp
    base, offset = packet.psn
    psn = reference.psn(base) + offset & MASK
    sends = qp.sends
    if packet.opcode in _RESPONSES:
        una = sends.una
        position = len(_REQUEST_PSNS) + _response_psn(psn, una, sends.next_psn - una & MASK)
        credits = 3 if sends.credits.limited else 4
    else:
        position = _request_psn(psn, qp.responder.epsn)
        credits = min(reference.waiting_receives, 2)
    length, mtu = packet.length, qp.mtu
    size = (length > 0) + (length > 3) + (length >= mtu) + (length > mtu)
    message = qp.responder.under_way
    other = 0
    if len(reference.pairs) > 1:
        pairs = reference.pairs
        following = pairs[(pairs.index(qp) + 1) % len(pairs)]
        other = 1 + _STATE_NUMBERS[connection_state(following)]
    state = _STATE_NUMBERS[connection_state(qp)]
    under_way = 0 if message is None else 1 if message is _SEND else 2
    return packet.opcode, position, size, credits, state, under_way, other


def _request_psn(psn: int, expected: int) -> int:
    ahead = psn - expected & MASK
    if not ahead:
        return 0
    if ahead < HALF:
        return 3 if psn < expected else 1 if ahead == 1 else 2
    if ahead == MASK:
        return 4
    return 6 if psn > expected else 5


def _response_psn(psn: int, una: int, sent: int) -> int:
    ahead = psn - una & MASK
    if ahead >= HALF:
        return 5 if psn > una else 4
    if ahead >= sent:
        return 3
    if not ahead:
        return 0
    return 2 if psn < una else 1


def summary(cells: Counter[Cell]) -> tuple[int, int]:
    """How many cells were met, and how many values of a dimension together with an opcode."""
    met = {(cell[0], place, cell[place]) for cell in cells for place in DIMENSIONS}
    return len(cells), len(met)


def unreached(
    cells: Counter[Cell], role: Role, combines: bool, packets: int, ops: Sequence[str] = ()
) -> Iterator[str]:
    """What no packet met although it could, with the reason; a line for a value of a dimension.

    combines: whether there were combined cases. packets: how many there were. ops: the only groups
    of operators, if not all were used.
    """
    met = {(cell[0], place, cell[place]) for cell in cells for place in DIMENSIONS}
    sent = {cell[0] for cell in cells} & _KNOWN
    more = f"not in {packets:,} packet{'' if packets == 1 else 's'}"
    more += f" of --ops {','.join(ops)}" * bool(ops)
    for opcode in _OPCODES:
        if opcode not in sent:
            why = _reason(INFO[opcode], role) if not combines else ""
            yield f"{opcode_text(opcode)}: {why or more}"
    for place, (name, values) in DIMENSIONS.items():
        for number, value in enumerate(values):
            possible = [each for each in sent if _is_possible(each, place, number)]
            missing = [each for each in possible if (each, place, number) not in met]
            if not missing:
                continue
            which = f"{len(missing)} of {len(possible)} opcodes"
            if len(missing) <= FEW:
                which = ", ".join(map(opcode_text, sorted(missing)))
            why = _PLAIN if place == OTHER and number and not combines else more
            yield f"{name}: {value}: {which}: {why}"


FEW = 4
"""Opcodes that are named; of more their number is."""

_OPCODES = tuple(
    int(opcode)
    for opcode, info in INFO.items()
    if info.service in (Service.RC, Service.UC, Service.XRC)
    or opcode in (OpCode.UD_SEND_ONLY, OpCode.CNP)
)
_KNOWN = frozenset(_OPCODES)
_RESPONSES = frozenset(int(opcode) for opcode, info in INFO.items() if info.is_response)

_PLAIN = "on a link, and from a capture, a case has one RC queue pair"


def _reason(info: OpCodeInfo, role: Role) -> str:
    """Why an opcode cannot come in a run without combined cases."""
    if info.service in (Service.UC, Service.UD, Service.XRC):
        return _PLAIN
    if role is Role.RESPONDER and info.is_response:
        return "the role responder sends requests"
    return ""


def _is_possible(opcode: int, place: int, number: int) -> bool:
    """Whether a packet with this opcode can meet a value at all."""
    info = INFO[opcode]
    is_waiting = DIMENSIONS[STATE][1][number : number + 1] in (("WAITING",), ("RNR WAIT",))
    if place == PSN:
        return (number >= len(_REQUEST_PSNS)) == info.is_response
    if place == CREDITS:
        return (number >= 3) == info.is_response
    if place == STATE and is_waiting:
        # An unreliable queue pair never waits, and takes no other service.
        return info.service in (Service.RC, Service.XRC)
    return True
