"""Requests of a case in words, and the rule that each is about.

A request is classified as a right responder does, in the order in which it checks
(reference/transport#responder-checks): the first check that fails is what the request is about.
"""

from __future__ import annotations

from dataclasses import replace

from ibwire.fuzz.case import GOOD, Connection, Packet, flag_names
from ibwire.fuzz.judge.subject import SGE_LIST, About
from ibwire.fuzz.targets.emulated_device import Emulation, is_empty_piece
from ibwire.fuzz.vocabulary.queue_pair.encoding import number_of
from ibwire.rc.memory import Access, WindowState
from ibwire.rc.packet import FORMS
from ibwire.rc.unreliable import GRH_SIZE
from ibwire_layers.opcodes import INFO, OpCode, OpCodeInfo, Operation, Position, Service
from ibwire_layers.psn import HALF, MASK


def request(reference: Emulation, packet: Packet) -> About:
    """What a request is about that the responder gets now."""
    connection = reference.connection
    service = connection.service
    said = _Said(reference, packet)
    if service == "UD":
        return _datagram(said)
    found = _opcode(said, connection.transport)
    if found is not None:
        # Its PSN is looked at first.
        ahead = _ahead(said) if service == "RC" and found is RESERVED_OPCODE else None
        return ahead or found
    info = INFO[said.opcode]
    if service == "XRC_SEND":
        return _TO_INITIATOR
    if service == "UC":
        return _unreliable(said, info)
    return _psn(said, info) or _state(said, info) or _content(said, info)


def rule_of_operation(packet: Packet) -> str:
    """The rule of what a right request does, in whatever service; empty for no request."""
    info = INFO.get(packet.opcode)
    about = None if info is None or info.operation is None else _RIGHT.get(info.operation)
    return "" if about is None else about.rule


def missing_rights(connection: Connection) -> str:
    """The rights that a queue pair has not, but those of most cases: `REMOTE_ATOMIC`."""
    return flag_names(Access, Connection().access & ~connection.access)


def headers(reference: Emulation, packet: Packet) -> About | None:
    """A fault for which a packet is discarded, whatever it is; `None` if it has none."""
    about = _headers(_Said(reference, packet))
    if about is None:
        return None
    return replace(about, group=about.group or about.what, is_ignored=True)


class _Said:
    """The numbers in a packet."""

    def __init__(self, reference: Emulation, packet: Packet) -> None:
        self.reference = reference
        self.said_length = packet.length
        """Bytes of payload that the headers speak of, where no field says otherwise."""
        self.packet = packet = as_received(packet)
        fields, symbols = packet.fields, reference.symbols
        self.fields = {name: number_of(value, symbols) for name, value in fields.items()}
        self.opcode = self.fields.get("bth.opcode", packet.opcode) & 0xFF
        self.psn = self.fields.get("bth.psn", reference.psn(packet.psn[0]) + packet.psn[1]) & MASK

    def has_other(self, name: str, right: int) -> bool:
        """Whether a field is not as it should be."""
        return self.fields.get(name, right) != right


def as_received(packet: Packet) -> Packet:
    """A packet whose pad count fits its bytes, if not those that were meant: with that payload."""
    usual = -packet.length & 3
    padding = usual if packet.pad is None else packet.pad
    count = packet.fields.get("bth.pad_count", padding)
    if not isinstance(count, int) or count > 3:
        return packet
    size = packet.length + padding + packet.more
    if packet.cut is not None:
        size = min(size, packet.cut - FORMS[packet.opcode].header_size)
    length = size - count
    if length < 0 or count != -length & 3:
        return packet
    rest = {name: value for name, value in packet.fields.items() if name != "bth.pad_count"}
    return packet.altered(length=length, pad=None, more=0, cut=None, fields=rest)


def _headers(said: _Said) -> About | None:
    packet, symbols = said.packet, said.reference.symbols
    for name, about in _OUTER.items():
        if name in said.fields:
            return about
    if packet.cut is not None:
        is_whole = packet.cut >= FORMS[said.opcode].header_size
        return _CUT if is_whole else _CUT_HEADERS
    if said.has_other("bth.tver", 0):
        return _VERSION
    if said.has_other("bth.dest_qp", symbols["qpn"]):
        return _OTHER_QP
    pkey = said.fields.get("bth.pkey", symbols["pkey"])
    if pkey != symbols["pkey"] and not said.reference.accepts_pkey(pkey):
        return _PKEY
    if packet.icrc != GOOD:
        return _ICRC
    right = -packet.length & 3
    pad = right if packet.pad is None else packet.pad
    if FORMS[packet.opcode].header_size + packet.length < FORMS[said.opcode].header_size:
        return _TOO_SHORT
    if packet.more or pad != right or said.has_other("bth.pad_count", right):
        return _PADDING
    return None


def _opcode(said: _Said, service: Service) -> About | None:
    info = INFO.get(said.opcode)
    if info is not None and info.service is service:
        return None
    return RESERVED_OPCODE if said.opcode >> 5 == service else _OTHER_SERVICE


def _datagram(said: _Said) -> About:
    """What a datagram is about, whatever its opcode and PSN are."""
    reference, own = said.reference, SERVICES["UD"]
    if said.has_other("deth.qkey", reference.symbols["qkey"]):
        return _OTHER_QKEY
    if not _has_receive(reference):
        return replace(NOT_READY, treatment=own.rule)
    length = said.packet.length
    if length > reference.qp.mtu:
        return _LONG_DATAGRAM
    return OVERSIZED_DATAGRAM if GRH_SIZE + length > reference.connection.room else own


def _unreliable(said: _Said, info: OpCodeInfo) -> About:
    """What a packet of UC is about: a message may begin anywhere; its checks are those of RC."""
    own = SERVICES["UC"].rule
    expected = said.reference.psn("expected")
    if said.psn != expected:
        is_ahead = (said.psn - expected & MASK) < HALF
        if info.position not in _BEGINS:
            return UC_GAP if is_ahead else UC_BEHIND
        about = _content(said, info)  # it ends the message that another one has begun
        if about.is_wrong:
            return replace(about, treatment=own)
        return UC_BEGINS if is_ahead else _UC_BEGINS_BEHIND
    about = _state(said, info) or _content(said, info)
    if about.is_wrong:
        return replace(about, treatment=own)
    if about in (_NO_LENGTH, _NO_LENGTH_OUTSIDE):
        return replace(about, rule=f"IBA 9.8.2; {_TRANSPORT}zero-length")  # C9-88 is one of RC
    return replace(about, rule=own) if about in _RIGHT.values() else about


def _psn(said: _Said, info: OpCodeInfo) -> About | None:
    expected = said.reference.psn("expected")
    ahead = said.psn - expected & MASK
    if not ahead:
        return None
    if not said.reference.is_alive:
        return AFTER_ERROR
    if ahead < HALF:
        return _ahead(said)
    wraps = said.psn > expected
    if info.operation in (Operation.SEND, Operation.WRITE):
        about = replace(_DUPLICATE, what=f"a duplicate {info.operation.name}")
    else:
        about = _DUPLICATE_READ if info.operation is Operation.READ else _DUPLICATE_ATOMIC
        about = replace(about, detail=f"{about.what}{_of_saved(said, info)}")
    if ahead <= HALF + 1:
        return replace(_WINDOW_EDGE, treatment=about.rule)
    return replace(_DUPLICATE_WRAP, treatment=about.rule) if wraps else about


def _of_saved(said: _Said, info: OpCodeInfo) -> str:
    """How a duplicate READ or atomic differs from the request whose response is saved."""
    reference, mtu = said.reference, said.reference.connection.mtu
    resources, limit = reference.qp.responder.resources, reference.connection.max_dest_rd_atomic
    for place, saved in enumerate(resources):
        position = said.psn - saved.psn & MASK
        if position >= saved.count:
            continue
        if saved.form.operation is not info.operation:
            return " with the PSN of another request"
        length = said.fields.get("reth.dma_len", 0)
        if info.operation is Operation.READ and position * mtu + length > saved.length:
            return " that goes beyond the first one"
        return OLDEST_SAVED if not place and 1 < len(resources) == limit else ""
    return " of which no response is saved"


def _ahead(said: _Said) -> About | None:
    """A PSN that is not due yet."""
    expected = said.reference.psn("expected")
    ahead = said.psn - expected & MASK
    if not 0 < ahead < HALF:
        return None
    if ahead == HALF - 1:
        return _WINDOW_EDGE
    return _AHEAD_WRAP if said.psn < expected else AHEAD


def _state(said: _Said, info: OpCodeInfo) -> About | None:
    """Faults that the state of the connection makes: position, rights, resources."""
    reference, message = said.reference, said.reference.under_way
    if not reference.is_alive:
        return AFTER_ERROR
    is_first = info.position in _BEGINS
    if message is None and not is_first:
        return replace(_SEQUENCE, what=f"a {info.position.name} without its FIRST")
    if message is not None and (is_first or message is not info.operation):
        kind = "atomic" if info.operation in _ATOMICS else info.operation.name
        article = "another" if message is info.operation else "an" if kind[0] in "aA" else "a"
        kind = f"{article} {kind}"
        return replace(_SEQUENCE, what=f"{kind} inside a {message.name}")
    if reference.connection.is_xrc and is_first and _names_other_queue(said):
        return _UNKNOWN_QUEUE
    right = _RIGHTS.get(info.operation, 0) if is_first else 0
    if right & ~reference.connection.access:
        return _ACCESS
    if info.operation in _LIMITED and not _has_slot(reference):
        return _RESOURCES
    takes = info.operation is Operation.SEND and is_first
    takes |= info.operation is Operation.WRITE and said.opcode & _ANY in _WRITES_WITH_IMMEDIATE
    return NOT_READY if takes and not _has_receive(reference) else None


def _names_other_queue(said: _Said) -> bool:
    """Whether an XRCETH has another number than that of the shared receive queue."""
    right = said.reference.symbols["srqn"]
    return bool((said.fields.get("xrceth.xrc_srq", right) ^ right) & MASK)


def _has_receive(reference: Emulation) -> bool:
    """Whether a receive request waits, or is being filled."""
    return bool(reference.waiting_receives) or reference.qp.receives.current is not None


def _has_slot(reference: Emulation) -> bool:
    open_ones = [each for each in reference.qp.responder.resources if not each.answered]
    limited = [each for each in open_ones if each.form.operation in _LIMITED]
    return len(limited) < reference.connection.max_dest_rd_atomic


def _content(said: _Said, info: OpCodeInfo) -> About:
    """Faults in lengths, keys and addresses; at last, a right request."""
    find = _CONTENT.get(info.operation)
    found = find(said, info) if find is not None else None
    unusual = next((UNUSUAL[name] for name in UNUSUAL if name in said.fields), None)
    return found or unusual or _RIGHT.get(info.operation, RESERVED_OPCODE)


def _send(said: _Said, info: OpCodeInfo) -> About | None:
    reference, length = said.reference, said.packet.length
    receives = reference.qp.receives
    filled = receives.filled if receives.current is not None else 0
    if length > reference.connection.room - filled:
        return _TOO_LONG
    mtu = reference.connection.mtu
    if not _fits(info, length, mtu):
        size = "longer than the path MTU" if length > mtu else "that is too short"
        return replace(_SIZE, what=f"a SEND {info.position.name} {size}")
    is_invalidating, key = said.opcode & _ANY in _INVALIDATES, reference.symbols.get("mw.rkey")
    is_kept = is_invalidating and not reference.may_free_window
    if said.fields.get("ieth.rkey", key) != key:
        return _BAD_INVALIDATE
    if is_kept:
        return _OTHERS_INVALIDATE
    if wrong := reference.connection.wrong_lkey:
        connection = reference.connection
        is_empty = is_empty_piece(connection.room, connection.sges, wrong)
        return EMPTY_RECEIVE_KEY if is_empty else WRONG_LKEY
    is_full = length == mtu and info.position in _ENDS
    if length and length == reference.connection.room - filled:
        return _FILLING_FULL if is_full else _FILLING
    if is_full:
        return FULL
    return INVALIDATE if is_invalidating else None


def _fits(info: OpCodeInfo, length: int, mtu: int) -> bool:
    """Whether a payload fits the position and the path MTU."""
    if info.position in (Position.FIRST, Position.MIDDLE):
        return length == mtu
    return (info.position is Position.LAST) <= length <= mtu


def _write(said: _Said, info: OpCodeInfo) -> About | None:
    reference, length = said.reference, said.packet.length
    rest = reference.qp.responder.missing
    mtu = reference.connection.mtu
    if info.position in _BEGINS:
        rest = said.fields.get("reth.dma_len", said.said_length)
        if length > mtu:
            return _SIZE
        if rest > _LONGEST:
            return _MESSAGE_SIZE
        if found := _key(said, rest, int(Access.REMOTE_WRITE)):
            return found
    is_last = info.position in (Position.LAST, Position.ONLY)
    if not is_last and length != mtu:
        size = "longer than the path MTU" if length > mtu else "that is too short"
        return replace(_WRITE_SIZE, what=f"a WRITE {info.position.name} {size}")
    if not is_last and length == rest:
        what = f"a WRITE {info.position.name} that leaves nothing for a LAST"
        return replace(_WRITE_LENGTH, what=what)
    if length != rest if is_last else length >= rest:
        end = "end" if is_last else "middle"
        size = "less" if is_last and length < rest else "more"
        return replace(_WRITE_LENGTH, what=f"a WRITE with {size} in its {end} than its RETH says")
    return None


def _read(said: _Said, info: OpCodeInfo) -> About | None:
    length = said.fields.get("reth.dma_len", 0)
    if length > _LONGEST:
        return _MESSAGE_SIZE
    if said.packet.length:
        return _PAYLOAD
    return _key(said, length, int(Access.REMOTE_READ))


def _atomic(said: _Said, info: OpCodeInfo) -> About | None:
    if said.packet.length:
        return _PAYLOAD
    if said.fields.get("atomiceth.va", 0) & 7:
        return _ALIGNMENT
    return _key(said, 8, int(Access.REMOTE_ATOMIC), "atomiceth")


def _atomic_write(said: _Said, info: OpCodeInfo) -> About | None:
    if said.packet.length != 8 or said.fields.get("reth.dma_len", said.said_length) != 8:
        return _ATOMIC_WRITE_LENGTH
    if said.fields.get("reth.va", 0) & 7:
        return _ATOMIC_WRITE_ALIGNMENT
    return _key(said, 8, int(Access.REMOTE_WRITE))


def _flush(said: _Said, info: OpCodeInfo) -> About | None:
    fields, symbols = said.fields, said.reference.symbols
    placement, level = fields.get("feth.plt", 1), fields.get("feth.sel", 0)
    if said.packet.length or placement not in _PLACEMENTS or level > 1:
        return _FLUSH_FORM
    access = _PLACEMENTS[placement]
    if access & ~said.reference.connection.access:
        return _ACCESS
    rkey = fields.get("reth.rkey", symbols["rkey"])
    va = None if level else fields.get("reth.va", symbols["va"])
    length = 0 if level else fields.get("reth.dma_len", 0)
    reference = said.reference
    is_open = reference.device.keys.grants(
        reference.end.pd, reference.qp.number, rkey, va, length, access
    )
    return (
        None if is_open else _bad_key(reference, rkey, symbols["va"] if va is None else va, length)
    )


def _key(said: _Said, length: int, access: int, part: str = "reth") -> About | None:
    """A fault of key and range, or a key that is not looked at."""
    symbols = said.reference.symbols
    rkey = said.fields.get(f"{part}.rkey", symbols["rkey"])
    va = said.fields.get(f"{part}.va", symbols["va"])
    reference = said.reference
    if not length:
        if rkey not in (symbols["rkey"], symbols.get("mw.rkey")):
            return _NO_LENGTH
        return _NO_LENGTH_OUTSIDE if rkey != symbols["rkey"] or va != symbols["va"] else None
    found = reference.device.keys.find_remote(
        reference.end.pd, reference.qp.number, rkey, va, length, access
    )
    if found is None:
        about = _bad_key(reference, rkey, va, length)
        if about in (_RANGE[3], _WINDOW_RANGE[3]):
            return replace(about, what=f"{_OPERATIONS[access]} that its key does not permit")
        if about is _OTHERS_WINDOW:
            what = f"{_OPERATIONS[access]} through{OTHERS_WINDOW}"
            return replace(about, what=what)
        return about
    return _WINDOW if rkey == symbols.get("mw.rkey") else None


def _bad_key(reference: Emulation, rkey: int, va: int, length: int) -> About:
    """What is wrong with a key that does not open a range."""
    symbols = reference.symbols
    if rkey == symbols.get("mw.rkey"):
        if reference.window.state is WindowState.FREE:
            return INVALIDATED
        start, end = symbols["mw.va"], symbols["mw.end"]
        found = _range(_WINDOW_RANGE, va, va + length, start, end)
        return found if reference.owns_window or found is not _WINDOW_RANGE[3] else _OTHERS_WINDOW
    region = next((each for each in reference.regions.values() if each.rkey == rkey), None)
    if region is None:
        known = {each.rkey >> 8 for each in reference.regions.values()}
        return _KEY_BYTE if rkey >> 8 in known else _KEY
    if region is reference.regions["foreign"]:
        return _DOMAIN
    start, end = region.iova, region.iova + region.length
    return _range(_RANGE, va, va + length, start, end)


def _range(
    names: tuple[About, About, About, About], va: int, last: int, start: int, end: int
) -> About:
    """Where a range leaves the memory that a key opens; if it does not, what the key permits."""
    before, behind, wraps, permission = names
    if last > 1 << 64:
        return wraps
    if va < start:
        return before
    return behind if last > end else permission


_LONGEST = 1 << 31
_OPERATIONS = {
    int(Access.REMOTE_WRITE): "a WRITE",
    int(Access.REMOTE_READ): "a READ",
    int(Access.REMOTE_ATOMIC): "an atomic",
}
_LIMITED = (Operation.READ, Operation.COMPARE_SWAP, Operation.FETCH_ADD)
_ATOMICS = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)
_ANY = 0x1F
"""The bits of an opcode that are the same in all services."""

_BEGINS = (Position.FIRST, Position.ONLY)
_ENDS = (Position.LAST, Position.ONLY)
_WRITES_WITH_IMMEDIATE = (
    OpCode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    OpCode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
)
_INVALIDATES = (OpCode.RC_SEND_ONLY_WITH_INVALIDATE, OpCode.RC_SEND_LAST_WITH_INVALIDATE)
_CONTENT = {
    Operation.SEND: _send,
    Operation.WRITE: _write,
    Operation.READ: _read,
    Operation.COMPARE_SWAP: _atomic,
    Operation.FETCH_ADD: _atomic,
    Operation.ATOMIC_WRITE: _atomic_write,
    Operation.FLUSH: _flush,
}
_PLACEMENTS = {
    1: int(Access.FLUSH_GLOBAL),
    2: int(Access.FLUSH_PERSISTENT),
    3: int(Access.FLUSH_GLOBAL | Access.FLUSH_PERSISTENT),
}
"""What a FLUSH needs, by its placement type."""

_RIGHTS = {
    Operation.WRITE: int(Access.REMOTE_WRITE),
    Operation.ATOMIC_WRITE: int(Access.REMOTE_WRITE),
    Operation.READ: int(Access.REMOTE_READ),
    Operation.COMPARE_SWAP: int(Access.REMOTE_ATOMIC),
    Operation.FETCH_ADD: int(Access.REMOTE_ATOMIC),
}

_TRANSPORT = "docs/reference/transport.md#"
_WIRE = "docs/reference/wire-formats.md#"

_LENGTHS = About("a packet with a wrong length in IP or UDP", f"IBA 9.6; {_TRANSPORT}check-headers")
_ADDRESS = About("a packet from another address", f"IBA 9.6.1; {_WIRE}peer-address")
_OUTER = {
    "ip.total_length": _LENGTHS,
    "udp.length": _LENGTHS,
    "ip.src": _ADDRESS,
    "ip.dst": About("a packet to another address", f"IBA 9.6.1; {_TRANSPORT}check-headers"),
}
_CUT = About("a packet that is cut short", f"IBA 9.6.1; {_TRANSPORT}check-headers")
_TOO_SHORT = About(
    "a packet shorter than the headers of its opcode",
    f"IBA 9.6.1; {_TRANSPORT}check-headers",
    group="a packet shorter than its headers",
)
_CUT_HEADERS = replace(_TOO_SHORT, what=_CUT.what)
_VERSION = About("another transport version", f"IBA 9.6.1.1; {_WIRE}transport-version")
_OTHER_QP = About("a packet to another queue pair", f"IBA 9.6.1; {_TRANSPORT}check-headers")
_PKEY = About("a wrong P_Key", f"IBA 10.9.3; {_WIRE}partition-key")
_ICRC = About("a wrong ICRC", f"IBA 7.8.1, 9.6.1; {_TRANSPORT}check-icrc")
_PADDING = About("wrong padding", f"IBA 9.2.4; {_WIRE}padding")
RESERVED_OPCODE = About("a reserved opcode", f"IBA 9.7.4.1.2; {_TRANSPORT}reserved-opcode")
_OTHER_SERVICE = About(
    "an opcode of another service", f"IBA 9.6.1.4; {_TRANSPORT}other-service", is_ignored=True
)
_UNKNOWN_QUEUE = About("an XRCETH with an unknown number", f"IBA A14; {_TRANSPORT}xrc")
_TO_INITIATOR = About("a request to an XRC initiator", f"IBA A14; {_TRANSPORT}xrc", is_ignored=True)
ERROR = "the state after a fatal NAK"
AFTER_ERROR = About("after a fatal NAK", f"IBA 9.9.3; {_TRANSPORT}after-fatal-nak", group=ERROR)
SERVICES = {
    "UC": About("a packet of UC", f"IBA 9.8.2; {_TRANSPORT}uc", is_wrong=False),
    "UD": About("a right datagram", f"IBA 9.8.3; {_TRANSPORT}ud", is_wrong=False),
}
UC_BEGINS = About("a message of UC behind a gap", f"IBA 9.8.2; {_TRANSPORT}uc", is_wrong=False)
_UC_BEGINS_BEHIND = replace(UC_BEGINS, what="a message of UC with an old PSN")
UC_BEGINNINGS = (UC_BEGINS, _UC_BEGINS_BEHIND)
"""Messages of UC that begin with another PSN than the expected one."""

UC_GAP = About("a packet of UC behind a gap", f"IBA 9.8.2; {_TRANSPORT}uc")
UC_BEHIND = replace(UC_GAP, what="a packet of UC with an old PSN")
_LONG_DATAGRAM = About("a datagram longer than the path MTU", SERVICES["UD"].rule, is_ignored=True)
OVERSIZED_DATAGRAM = About(
    "a datagram longer than its receive request", SERVICES["UD"].rule, is_ignored=True
)
_OTHER_QKEY = About("a wrong Q_Key", f"IBA 9.8.3; {_TRANSPORT}ud", is_ignored=True)
WRAP = "PSNs across the wrap"
_WINDOW_EDGE = About(
    "a PSN at the edge of the duplicates",
    f"IBA 9.7.1; {_TRANSPORT}psn-order",
    group="a PSN at the edge of the duplicates",
)
AHEAD = About("a request behind a gap", f"IBA 9.7.5.1.3; {_TRANSPORT}psn-ahead")
_AHEAD_WRAP = About(
    "a request behind a gap across the PSN wrap", f"IBA 9.7.1; {_TRANSPORT}psn-order", group=WRAP
)
_DUPLICATE = About("a duplicate SEND or WRITE", f"IBA 9.7.5.1.5; {_TRANSPORT}duplicate-write")
_DUPLICATE_READ = About("a duplicate READ", f"IBA 9.7.5.1.5; {_TRANSPORT}duplicate-read")
_DUPLICATE_ATOMIC = About("a duplicate atomic", f"IBA 9.7.5.1.5; {_TRANSPORT}duplicate-atomic")
OLDEST_SAVED = ", of the oldest that is saved"
_DUPLICATE_WRAP = About(
    "a duplicate from before the PSN wrap", f"IBA 9.7.1; {_TRANSPORT}psn-order", group=WRAP
)
_SEQUENCE = About("an opcode out of its place", f"IBA 9.7.4.1.3; {_TRANSPORT}opcode-sequence")
RIGHTS = f"IBA 9.7.4.1.5; {_TRANSPORT}access-flags"
_ACCESS = About("a request that the queue pair does not allow", RIGHTS)
_RESOURCES = About(
    "a READ or atomic beyond max_dest_rd_atomic", f"IBA 9.7.4.1.5; {_TRANSPORT}read-resources"
)
NOT_READY = About("no receive request", f"IBA 9.7.5.2.8; {_TRANSPORT}receive-missing")
_TOO_LONG = About("a SEND longer than its receive", f"IBA 9.7.4.1.6; {_TRANSPORT}receive-too-short")
_SIZE = About("a payload that does not fit the path MTU", f"C9-92; {_TRANSPORT}packet-length")
_FILLING = About(
    "a SEND that fills its receive",
    f"IBA 9.7.4.1.6; {_TRANSPORT}receive-too-short",
    is_wrong=False,
)
FULL = About(
    "a SEND that ends with a full packet", f"C9-92; {_TRANSPORT}packet-length", is_wrong=False
)
"""A minimised case has less payload if it does not need all of it."""

_FILLING_FULL = replace(
    _FILLING,
    what="a SEND that fills its receive with a full packet",
    rule=f"C9-92, IBA 9.7.4.1.6; {_TRANSPORT}packet-length, {_TRANSPORT}receive-too-short",
)


RIGHT_SEND = About("a right SEND", f"IBA 9.7.5; {_TRANSPORT}ack-due", is_wrong=False)
UNUSUAL = {
    "bth.pkey": About(
        "the P_Key of a limited member", f"IBA 10.9.3; {_WIRE}partition-key", is_wrong=False
    ),
    "bth.mig_req": About("another MigReq", f"IBA 17.2.8; {_TRANSPORT}migration", is_wrong=False),
    "bth.se": About("a solicited event", f"IBA 9.2.3; {_TRANSPORT}solicited-event", is_wrong=False),
}
"""Fields that are right either way; a minimised case has them only if it needs them."""

EMPTY_RECEIVE_KEY = About(
    "a SEND into a receive whose SGE of 0 bytes has a wrong L_Key", SGE_LIST, is_wrong=False
)
WRONG_LKEY = About(
    "a SEND into a receive with a wrong L_Key", f"IBA 9.9.3 class A; {_TRANSPORT}receive-fault"
)
_FLUSH_FORM = About(
    "a FLUSH with payload or reserved bits", f"IBA A19; {_TRANSPORT}flush-operation"
)
_BAD_INVALIDATE = About(
    "a SEND that invalidates a wrong key", f"IBA 9.9.3; {_TRANSPORT}invalidate-fault"
)
OTHERS_WINDOW = " the window of another queue pair"
_OTHERS_INVALIDATE = replace(_BAD_INVALIDATE, what=f"a SEND that invalidates{OTHERS_WINDOW}")
INVALIDATE = About(
    "a SEND with invalidate", f"IBA 9.4.1.1.3; {_TRANSPORT}invalidate", is_wrong=False
)
_MESSAGE_SIZE = About("a message beyond 2^31 bytes", f"C9-94; {_TRANSPORT}message-size")
_KEY = About("an unknown R_Key", f"IBA 9.7.4.1.5; {_TRANSPORT}remote-key")
_KEY_BYTE = About(
    "an R_Key with another low byte",
    f"IBA 10.6.3.3; {_TRANSPORT}memory-keys",
    treatment=_KEY.rule,
)
_DOMAIN = About("an R_Key of another protection domain", f"IBA 9.7.4.1.5; {_TRANSPORT}remote-key")
_RANGE = (
    About("a range that begins before its region", f"IBA 9.7.4.1.5; {_TRANSPORT}remote-key"),
    About("a range that ends behind its region", f"IBA 9.7.4.1.5; {_TRANSPORT}remote-key"),
    About("a range that passes 2^64", f"IBA 9.7.4.1.5; {_TRANSPORT}remote-key"),
    About("an operation that the region does not permit", f"IBA 9.7.4.1.5; {_TRANSPORT}remote-key"),
)
_OF_WINDOW = f"IBA 9.7.4.1.5, 10.6.7.2; {_TRANSPORT}remote-key, {_TRANSPORT}memory-windows"
_WINDOW_RANGE = (
    About("a range that begins before its window", _OF_WINDOW),
    About("a range that ends behind its window", _OF_WINDOW),
    About("a range that passes 2^64", _OF_WINDOW),
    About("an operation that the window does not permit", _OF_WINDOW),
)
_OTHERS_WINDOW = About(
    "a window of another queue pair", f"IBA 10.6.7.2; {_TRANSPORT}memory-windows"
)
INVALIDATED = About(
    "the key of an invalidated memory window",
    f"IBA 10.6.7.2; {_TRANSPORT}memory-windows, {_TRANSPORT}invalidate",
)
_WINDOW = About(
    "a request through a memory window", f"IBA 10.6.7.2; {_TRANSPORT}memory-windows", is_wrong=False
)
_NO_LENGTH = About(
    "a request of no bytes with a wrong key", f"C9-88; {_TRANSPORT}zero-length", is_wrong=False
)
_NO_LENGTH_OUTSIDE = replace(_NO_LENGTH, what="a request of no bytes outside its memory")
_WRITE_LENGTH = About(
    "a WRITE whose payload does not fit its RETH", f"C9-93; {_TRANSPORT}write-length"
)
_WRITE_SIZE = replace(
    _WRITE_LENGTH, rule=f"C9-92, C9-93; {_TRANSPORT}packet-length, {_TRANSPORT}write-length"
)
_PAYLOAD = About("a READ or atomic with payload", f"IBA 9.4.4; {_TRANSPORT}read-payload")
_ALIGNMENT = About("an atomic at an unaligned address", f"IBA 9.4.5; {_TRANSPORT}atomic-alignment")
_ATOMIC_WRITE_LENGTH = About(
    "an ATOMIC WRITE that is not of 8 bytes", f"IBA A19; {_TRANSPORT}atomic-write"
)
_ATOMIC_WRITE_ALIGNMENT = replace(
    _ATOMIC_WRITE_LENGTH, what="an ATOMIC WRITE at an unaligned address"
)
_RIGHT = {
    Operation.SEND: RIGHT_SEND,
    Operation.WRITE: About("a right WRITE", f"IBA 9.7.5; {_TRANSPORT}write-length", is_wrong=False),
    Operation.READ: About("a right READ", f"IBA 9.7.5; {_TRANSPORT}response-kinds", is_wrong=False),
    Operation.COMPARE_SWAP: About(
        "a right COMPARE SWAP", f"IBA 9.4.5; {_TRANSPORT}atomics", is_wrong=False
    ),
    Operation.FETCH_ADD: About(
        "a right FETCH ADD", f"IBA 9.4.5; {_TRANSPORT}atomics", is_wrong=False
    ),
    Operation.ATOMIC_WRITE: About(
        "a right ATOMIC WRITE", f"IBA A19; {_TRANSPORT}atomic-write", is_wrong=False
    ),
    Operation.FLUSH: About(
        "a right FLUSH", f"IBA A19; {_TRANSPORT}flush-operation", is_wrong=False
    ),
}
