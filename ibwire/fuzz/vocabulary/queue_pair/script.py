"""A case as a drill script: the same exchange, with the reference's responses as expected ones.

A case may have been found against a reference that makes some choices otherwise than its
profile. The script accepts either. It states the significant fields of a response; of the last
one also every field in which the target differed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace

from ibwire.base.node import Frame
from ibwire.base.units import NS, Time
from ibwire.drill.language.literals import MAXIMUM_PAYLOAD, short_name
from ibwire.drill.packets import icrc_text, pattern
from ibwire.drill.targets.emulated import PKEYS as PKEY_NAMES
from ibwire.fuzz.case import (
    GOOD,
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Pause,
    Post,
    Receive,
    Step,
    Value,
    Wait,
    value_text,
)
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import part_of, wrong_fields
from ibwire.fuzz.judge.profiles import profile_of, unchecked_in
from ibwire.fuzz.recording import REGIONS, place_of
from ibwire.fuzz.targets.emulated_device import (
    INBOX,
    OUTBOX,
    OWN_QKEY,
    PEER_QPN,
    PEER_RKEY,
    PEER_VA,
    PKEYS,
    RECEIVES,
    SENDS,
    SIZE,
    WINDOW_SIZE,
    WINDOW_START,
    pieces,
)
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols, encode
from ibwire.fuzz.vocabulary.queue_pair.execution import Moment, moments
from ibwire.rc.attributes import EventType
from ibwire.rc.memory import Access
from ibwire.rc.sge import SGE
from ibwire.rc.work import WCOpcode, WCStatus, WROpcode
from ibwire_layers import headers as h
from ibwire_layers import syndrome as aeth
from ibwire_layers.errors import DecodeError
from ibwire_layers.opcodes import INFO
from ibwire_layers.outer import UDP, Ethernet, IPv4, IPv6
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.psn import distance
from ibwire_layers.schema import Header
from ibwire_layers.syndrome import AckKind, NakCode

LONGEST_DATA = 256
"""Bytes of a response that are written out: lines of scripts are not long. Of more only how many
there are is said, where they are no piece of the test pattern."""


class CannotSay(Exception):
    """A drill script cannot express a case; the text gives the reason."""


def script(case: Case, difference: Difference | None, rule: str, section: str = "") -> str:
    """The script; raises `CannotSay`.

    difference: of the last step; with `None` the script takes whatever the device does. rule: the
    text of the first comment. section: the source of the rule.
    """
    profile = profile_of(case.profile, {})
    chosen = list(moments(case, profile_of(case.profile, case.choices)))
    usual = list(moments(case, profile)) if difference is not None else chosen
    writer = Writer(case.connection, unchecked_in(case.choices))
    writer.receive_everywhere()
    for number, step in enumerate(case.steps):
        is_last = number == len(case.steps) - 1
        if difference is None:
            writer.stimulus(step, chosen[number])
        else:
            writer.step(step, usual[number], chosen[number], difference if is_last else None)
    lines = [f"// {line}" for line in rule.split("\n")]
    lines += [f"section {section}"] * bool(section)
    lines += [f"origin {case.origin}"] * bool(case.origin)
    lines += [f"reference {case.profile}"]
    lines += [f"choice {name}={value}" for name, value in case.choices.items()]
    return "\n".join([*lines, "", *_head(case, writer.lines), "", *writer.lines]) + "\n"


def _head(case: Case, body: Sequence[str]) -> Iterator[str]:
    """The connection, and the memory that the following lines use."""
    connection, text = case.connection, "\n".join(body)
    words = [f"size={SIZE} max_recv_wr=4096 send_cqe=4096 recv_cqe=4096"]
    if any(each.pkey_index for each in connections_of(case)):
        table = zip(("pkey", *PKEY_NAMES), PKEYS, strict=True)
        words += [f"{name}={number:#x}" for name, number in table]
    yield f"  qp {' '.join([*words, *attributes(connection, Connection())])}"
    for number in range(1, connection.pairs):
        yield f"  qp {_name(number)} rq_psn={connection.rq_psn} sq_psn={connection.sq_psn}"
    if connection.srq_limit and connection.shares_receive_queue:
        yield f"  srq_limit limit={connection.srq_limit}"
    # Keys count up as regions are registered: one that is made from another needs them all.
    every = any(
        name.endswith("rkey") and (isinstance(value, int) or value[1])
        for step in case.steps
        if isinstance(step, Packet)
        for name, value in step.fields.items()
    )
    at = SIZE
    stores = [f"  store va len={SIZE} at=0"]
    for name, size, access in REGIONS:
        if every or f"{name}." in text:
            yield f"  mr {name} len={size} access={access}"
            stores.append(f"  store {name}.va len={size} at={at}")
        at += size
    if every or "mw." in text:
        yield f"  mw mw va=va+{WINDOW_START} len={WINDOW_SIZE} access=REMOTE_WRITE+REMOTE_READ"
    yield from stores


def connections_of(case: Case) -> Iterator[Connection]:
    """The connections of a case, in order."""
    yield case.connection
    yield from (step.connection for step in case.steps if isinstance(step, Connect))


def attributes(connection: Connection, usual: Connection) -> Iterator[str]:
    """What is not as usual about a connection, and what drill would have otherwise."""
    for entry in fields(Connection):
        value = getattr(connection, entry.name)
        is_said = entry.name in ("mtu", "rq_psn", "sq_psn", "timeout")
        if entry.name in NOT_OF_A_PAIR or (value == getattr(usual, entry.name) and not is_said):
            continue
        if entry.name == "rtr":
            yield "state=RTR" if value else "state=RTS"
            continue
        name = {"service": "type", "rearmed": "rearm"}.get(entry.name, entry.name)
        yield f"{name}={_access(value) if entry.name == 'access' else value}"


def _name(pair: int) -> str:
    """The name of a queue pair in a script; the first one has none."""
    return f"qp{pair + 1}" if pair else ""


class Writer:
    """The lines of a script. unchecked: fields of responses that are not compared."""

    def __init__(self, connection: Connection, unchecked: Collection[str] = ()) -> None:
        self.lines: list[str] = []
        self._unchecked = unchecked
        self._connection = self._first = connection
        self._last = dict.fromkeys(range(connection.pairs), connection)
        """The last connection of each queue pair."""
        self._posted = self._received = 0
        self._posters: dict[tuple[int, int], int] = {}
        """The queue pair of each request, by the queue of its completion and its number."""

    def step(
        self, step: Step, usual: Moment, chosen: Moment, difference: Difference | None
    ) -> None:
        """A step and what comes of it; difference: that of the last step."""
        self._action(step, usual)
        if usual.psn != chosen.psn:
            raise CannotSay("its PSNs depend on a choice of the device")
        self._answers(step, usual, chosen, difference)
        self._completions(usual, chosen)
        if usual.events != chosen.events:
            raise CannotSay("its events depend on a choice of the device")
        self.lines += [f"  event {EventType(event).name}" for event in usual.events]
        if difference is not None and difference.kind == Kind.MEMORY:
            self.lines.append(f"  memory {_memory(difference)}")

    def stimulus(self, step: Step, moment: Moment) -> None:
        """A step, and whatever comes of it."""
        self._action(step, moment)
        if isinstance(step, Wait):
            self.lines.append(f"  +{_time(step.time)} anything")
        elif not isinstance(step, Packet) or not step.held:
            self.lines.append("  anything")

    def _action(self, step: Step, moment: Moment) -> None:
        """What the device receives, or its application does."""
        if isinstance(step, Packet):
            self._line(f"  {self._owner(step.pair)}< {self._said(step, moment)}", step.why)
        elif isinstance(step, Post):
            self._post(step, moment)
        elif isinstance(step, Receive):
            self.receive(step.count, step.pair)
        elif isinstance(step, Pause):
            self.lines.append(f"  pfc priorities={step.priorities:#x} quanta={step.quanta}")
        elif isinstance(step, Connect):
            self._reconnect(step.connection)

    def _reconnect(self, connection: Connection) -> None:
        """Another connection of the same device, whose memory is as at the beginning."""
        if connection.version != self._connection.version:
            raise CannotSay("its connections go over other versions of IP")
        if connection.is_xrc or self._connection.is_xrc:
            raise CannotSay("XRC queue pairs are those of one connection")
        if connection.srq or self._connection.srq:
            raise CannotSay("a shared receive queue is that of one connection")
        before, self._connection = self._connection.pairs, connection
        self.lines.append("")
        for number in range(connection.pairs):
            made, name = self._last.get(number), _name(number)
            verb = f"qp {name}" if made is None else f"{name} reconnect".strip()
            words = " ".join(attributes(connection, made or self._first))
            self.lines.append(f"  {verb} {words}")
            self._last[number] = connection
        left = range(connection.pairs, before)
        self.lines += [f"  {_name(number)} modify state=RESET" for number in left]
        self.lines.append(f"  store va len={SIZE} at=0")
        at = SIZE
        for name, size, _ in REGIONS:
            self.lines.append(f"  store {name}.va len={size} at={at}")
            at += size
        self._posted = self._received = 0
        self._posters.clear()
        self.receive_everywhere()

    def receive_everywhere(self) -> None:
        """The receive requests at the beginning of a connection."""
        for number in range(self._connection.pairs):
            self.receive(self._connection.receives, number)

    def _owner(self, pair: int) -> str:
        """What a line about a queue pair begins with."""
        name = _name(pair % self._connection.pairs)
        return f"{name} " if name else ""

    def _line(self, text: str, comment: str = "") -> None:
        self.lines.append(f"{text}  // {comment}" if comment else text)

    # What the device receives and its application does.

    def _said(self, packet: Packet, moment: Moment) -> str:
        if packet.length > MAXIMUM_PAYLOAD:
            raise CannotSay(f"a packet of {packet.length} bytes")
        info, symbols = INFO.get(packet.opcode), moment.symbols
        kinds: list[type[Header]] = [h.BTH, *(info.headers if info else ())]
        is_response = info is not None and info.is_response
        words = [short_name(packet.opcode), self._psn(moment.psn, own=is_response)]
        given = dict(packet.fields)
        words.append("!ack" if given.pop("bth.ack_req", 1) == 0 else "ack")
        for kind, name, usual in _UNLIKE_DRILL:
            if kind in kinds:
                given.setdefault(name, usual)
        known = {f"{kind.KEY}.{entry.name}": entry.width for kind in kinds for entry in kind.FIELDS}
        for part, header in _OUTER[self._connection.version].items():
            known |= {f"{part}.{entry.name}": entry.width for entry in header.FIELDS}
        words += [
            f"{name}={_value(value, known[name], symbols)}"
            for name, value in given.items()
            if name in known
        ]
        words += [f"len={packet.length}"] * bool(packet.length)
        words += [f"at={packet.at}"] * bool(packet.at and packet.length)
        words += odd_ends(packet, len(encode(replace(packet, cut=None), 0, symbols)))
        return " ".join(words)

    def _psn(self, psn: int, *, own: bool) -> str:
        """A PSN, counted from the first of the requests: its own, or those that it receives."""
        ahead = distance(self._connection.sq_psn if own else self._connection.rq_psn, psn)
        return f"psn{ahead:+d}" if ahead else "psn"

    def _post(self, post: Post, moment: Moment) -> None:
        opcode = WROpcode(post.opcode)
        if opcode is WROpcode.LOCAL_INV:
            words = [f"post_send {opcode.name} wr_id={self._posted} invalidate_rkey=mw.rkey"]
            self._add_post(post, words, moment)
            return
        length = 8 if opcode in _ATOMICS else min(post.length, OUTBOX)
        start = self._posted * 256 % (OUTBOX - length + 1) & ~7
        words = [f"post_send {opcode.name} wr_id={self._posted} len={length}"]
        sges = pieces(start, length, 0, post.sges, post.wrong_lkey)
        if post.sges > 1 or post.wrong_lkey:
            words = [f"post_send {opcode.name} wr_id={self._posted}", *_sges(sges, "outbox", "")]
        else:
            words += [f"addr=outbox.va+{start} lkey=outbox.lkey"] * bool(length)
        words.append(f"remote_addr={PEER_VA + post.remote:#x} rkey={PEER_RKEY:#x}")
        words += [text for name, text in _POSTS.items() if name in opcode.name]
        if self._connection.service == "UD":
            qkey = OWN_QKEY if post.remote & 8 else moment.symbols["qkey"] + post.remote
            words.append(f"remote_qkey={qkey:#x}")
        self._add_post(post, words, moment)

    def _add_post(self, post: Post, words: list[str], moment: Moment) -> None:
        """The line of a send request. words: what is in front of its flags."""
        flags = ["SIGNALED"] * post.signaled + ["FENCE"] * post.fence
        flags += ["SOLICITED"] * post.solicited
        if flags != ["SIGNALED"]:
            words.append(f"flags={'+'.join(flags) or 'NONE'}")
        words += ["fails=EINVAL"] * (not moment.accepted)
        self.lines.append(f"  {self._owner(post.pair)}{' '.join(words)}")
        if moment.accepted:
            self._posters[SENDS, self._posted] = post.pair
            self._posted += 1

    def receive(self, count: int, pair: int = 0) -> None:
        """Receive requests, round the inbox."""
        if self._connection.service == "XRC_SEND":
            return  # which takes none
        room = min(self._connection.room, INBOX)
        slots = INBOX // room if room else count
        end = self._received + count
        while self._received < end:
            first = self._received
            last = min(end, first - first % slots + slots) - 1
            place = f"inbox.va+$i*{room}" + f"-{first - first % slots}*{room}" * (first >= slots)
            where = f"len={room} addr={place} lkey=inbox.lkey" if room else "len=0"
            connection = self._connection
            if connection.sges > 1 or connection.wrong_lkey:
                sges = pieces(0, room, 0, connection.sges, connection.wrong_lkey)
                where = " ".join(_sges(sges, "inbox", place.removeprefix("inbox.va")))
            self.lines += [
                f"  for i in {first}..{last} {{",
                f"    {self._owner(pair)}post_recv wr_id=$i {where}",
                "  }",
            ]
            for number in range(first, last + 1):
                self._posters[RECEIVES, number] = pair
            self._received = last + 1

    # What comes of it.

    def _answers(
        self, step: Step, usual: Moment, chosen: Moment, difference: Difference | None
    ) -> None:
        wrong = [] if difference is None else wrong_fields(difference)
        clocks = [0, 0]
        pairs = list(zip(usual.answers, chosen.answers, strict=False))
        for number, ((one, frame), (other, its)) in enumerate(pairs):
            extra = wrong[number] if number < len(wrong) else ()
            owner = self._sender(frame)
            if owner != self._sender(its):
                raise CannotSay("which queue pair sends first depends on a choice of the device")
            texts = dict.fromkeys([self._answer_line(frame, extra), self._answer_line(its, extra)])
            gaps = [one - clocks[0], other - clocks[1]]
            clocks = [one, other]
            time = _time(min(gaps)) + f"..{_time(max(gaps))}" * (gaps[0] != gaps[1])
            before = f"  +{time} " if any(gaps) else "  "
            self.lines.append(f"{before}{owner}> {' | '.join(texts)}")
        longer = max(usual.answers, chosen.answers, key=len)
        for when, frame in longer[len(pairs) :]:
            if when:
                raise CannotSay("what the device sends in time depends on a choice")
            self.lines.append(f"  {self._sender(frame)}>? {self._answer_line(frame, ())}")
        if isinstance(step, Wait):
            rest = step.time - max(clocks)
            self.lines += [f"  +{_time(rest)} silence"] * (rest >= NS)
        elif not usual.answers and not (isinstance(step, Packet) and step.held):
            self.lines += ["  silence"] * (
                isinstance(step, Packet | Post) or difference is not None
            )

    def _sender(self, frame: Frame) -> str:
        """What a line about a packet of the device begins with."""
        if self._connection.pairs == 1:
            return ""
        try:
            number = WholePacket.parse(frame).bth.dest_qp - PEER_QPN
        except DecodeError as error:
            raise CannotSay(f"a response that is not a packet: {error}") from None
        return self._owner(number) if 0 <= number < self._connection.pairs else ""

    def _answer_line(self, frame: Frame, extra: Sequence[tuple[str, str]]) -> str:
        try:
            packet = WholePacket.parse(frame)
        except DecodeError as error:
            raise CannotSay(f"a response that is not a packet: {error}") from None
        info = INFO.get(packet.bth.opcode)
        is_response = info is not None and info.is_response
        words = [short_name(packet.bth.opcode), self._psn(packet.bth.psn, own=not is_response)]
        said = {"bth.psn"}
        for header in packet.extensions:
            for entry in header.FIELDS:
                name = f"{header.KEY}.{entry.name}"
                if name == "aeth.syndrome":
                    words += _syndrome(getattr(header, entry.name))
                elif name in _COUNTS and name not in self._unchecked:
                    words.append(f"{name}={value_text(getattr(header, entry.name))}")
                    said.add(name)
        for part, name in extra:
            its = part_of(packet, part)
            if its is not None and f"{part}.{name}" not in (*said, "bth.opcode"):
                if part == "aeth" and name == "syndrome":
                    words = [word for word in words if not word.startswith(("nak=", "rnr="))]
                words.append(f"{part}.{name}={value_text(getattr(its, name))}")
        payload = packet.payload
        at = _PATTERN.find(payload) if len(payload) >= 4 else -1
        if at >= 0:
            words.append(f"len={len(payload)} at={at}")
        elif len(payload) > LONGEST_DATA:
            words.append(f"len={len(payload)}")
        elif payload:
            words.append(f'data="{payload.hex()}"')
        return " ".join(words)

    def _completions(self, usual: Moment, chosen: Moment) -> None:
        if len(usual.completions) != len(chosen.completions):
            raise CannotSay("how much completes depends on a choice of the device")
        for one, other in zip(usual.completions, chosen.completions, strict=True):
            if one[:2] != other[:2] or len(one) != len(other):
                raise CannotSay("what completes depends on a choice of the device")
            queue, number = ("send", "recv")[one[0]], one[1]
            request = one[0], number
            pair = self._posters.get(request, 0)
            if one[0] == RECEIVES and self._connection.shares_receive_queue:
                # Those of XRC are in the queue of the first queue pair, whichever has taken one.
                pair = 0 if self._connection.is_xrc else usual.takers.get(request, 0)
            words = [f"  {self._owner(pair)}poll {queue} wr_id={number}"]
            for name, first, second in zip(_COMPLETION, one[2:], other[2:], strict=False):
                if name == "status" and first == second == WCStatus.SUCCESS:
                    continue
                texts = dict.fromkeys(
                    _completion(name, value, usual.symbols) for value in (first, second)
                )
                words.append(f"{name}=" + ("{%s}" if len(texts) > 1 else "%s") % ", ".join(texts))
            self.lines.append(" ".join(words))


def odd_ends(packet: Packet, whole: int) -> list[str]:
    """Words for unusual bytes after the payload. whole: bytes from the BTH on, if none are cut."""
    words = [f"pad={packet.pad}"] * (packet.pad is not None)
    words += [f"more={packet.more}"] * bool(packet.more)
    if packet.cut is not None and packet.cut < whole:
        words.append(f"cut={packet.cut}")
    if packet.icrc != GOOD:
        words.append(f"icrc={icrc_text(packet.icrc)}")
    return words


def _value(value: Value, width: int, symbols: Symbols) -> str:
    """A value with its name in drill, cut to its field."""
    if isinstance(value, int):
        return value_text(value & (1 << width) - 1)
    if value[0] not in symbols:
        raise CaseError(f"this connection has no {value[0]}")
    number = symbols[value[0]] + value[1]
    if value[0] in ("ssn", "qkey", "pkey") or not 0 <= number < 1 << width:
        return value_text(number & (1 << width) - 1)
    return value_text(value)


def _sges(sges: Sequence[SGE], region: str, place: str) -> list[str]:
    """Pieces of memory. place: what is added to each address."""
    if not any(each.length for each in sges) and len(sges) < 2:
        raise CannotSay("an empty piece of memory with a wrong key")
    keys = [f"{region}.lkey" + f"+{each.lkey:#x}" * bool(each.lkey) for each in sges]
    keys = keys if len(set(keys)) > 1 else keys[:1]
    lists = {
        "len": [str(each.length) for each in sges],
        "addr": [f"{region}.va{place}+{each.addr}" for each in sges],
        "lkey": keys,
    }
    return [f"{name}={{{','.join(texts)}}}" for name, texts in lists.items()]


def _syndrome(value: int) -> list[str]:
    """A positive answer needs no words, and its credits do not count."""
    kind, code = aeth.kind(value), aeth.code(value)
    if kind is AckKind.ACK:
        return []
    if kind is AckKind.RNR_NAK:
        return [f"rnr={code}"]
    if kind is AckKind.NAK and code in set(NakCode):
        return [f"nak={NakCode(code).name}"]
    return [f"syndrome={value:#x}"]


def _completion(name: str, value: int, symbols: Symbols) -> str:
    if name == "status":
        return WCStatus(value).name
    if name == "opcode":
        return WCOpcode(value).name
    if name == "imm_data":  # of a SEND WITH INVALIDATE the invalidated key
        keys = {number: key for key, number in symbols.items() if key.endswith("rkey")}
        return keys.get(value, hex(value))
    return str(value)


def _memory(difference: Difference) -> str:
    """The bytes that the memory of the device should hold where it first does not."""
    at, data = difference.expected
    assert isinstance(at, int)
    assert isinstance(data, bytes)
    place, left = place_of(at)
    return f'{place} data="{data[:left].hex()}"'


def _time(time: Time) -> str:
    unit = next(name for name, size in _UNITS.items() if time % size == 0)
    return f"{time // _UNITS[unit]}{unit}"


def _access(value: int) -> str:
    names = [flag.name for flag in Access if value & flag and flag.name]
    return "+".join(names) if sum(Access[name] for name in names) == value else hex(value)


_UNITS = {"s": 10**12, "ms": 10**9, "us": 10**6, "ns": 1000, "ps": 1}
_UNLIKE_DRILL: Sequence[tuple[type[Header], str, Value]] = (
    (h.ImmDt, "immdt.imm_data", 0x1A2B3C4D),
    (h.IETH, "ieth.rkey", ("mw.rkey", 0)),
)
"""Fields whose default in a case differs from that in a script."""

_OUTER: Mapping[int, Mapping[str, type[Header]]] = {
    version: {"eth": Ethernet, "ip": header, "udp": UDP}
    for version, header in ((4, IPv4), (6, IPv6))
}
"""Headers before the BTH, by version of IP."""
NOT_OF_A_PAIR = frozenset({"receives", "room", "pairs", "sges", "wrong_lkey", "srq_limit"})
"""What a script says of a connection elsewhere than in `qp` and `reconnect`."""

_COUNTS = frozenset(
    {
        "aeth.msn",
        "xrceth.xrc_srq",
        "reth.va",
        "reth.rkey",
        "reth.dma_len",
        "atomiceth.va",
        "atomiceth.rkey",
        "atomiceth.swap",
        "atomiceth.compare",
        "atomicacketh.orig",
        "immdt.imm_data",
        "ieth.rkey",
        "feth.sel",
        "feth.plt",
    }
)
"""What an answer is made of."""

_COMPLETION = ("status", "opcode", "byte_len", "imm_data", "flags")
_ATOMICS = (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)
_POSTS = {
    "WITH_IMM": "imm_data=0x1a2b3c4d",
    "WITH_INV": f"invalidate_rkey={PEER_RKEY:#x}",
    "_AND_": "compare_add=3 swap=5",
    "ATOMIC_WRITE": "u64=0x0706050403020100",
}
"""What a request has besides, by what its name has in it."""

_PATTERN = pattern(0, 2 << 16)
