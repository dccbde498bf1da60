"""Where each header of many captured frames starts: `ibwire_layers.walk`, a chunk at a time.

The steps have the names and the rules of the scalar walk, and a test holds the
two to the same answers; read that module for the reasons. Here a step takes all
frames that reached it (`rows`) with their positions (`at`) and hands each on.

Columns describe the innermost frame: entering an Ethernet or IP header forgets
what an outer one held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy

import numpy as np
import numpy.typing as npt

from ibwire.base.native import native
from ibwire.capture import RecordBatch
from ibwire_layers import headers as h
from ibwire_layers import opcodes, outer
from ibwire_layers.errors import Fault
from ibwire_layers.outer import ErfType, EtherType, IPProto, LinkType
from ibwire_layers.schema import Header
from ibwire_layers.walk import ERF_ETHERNET, GRH_NEXT_IBA, IPV6_EXTENSIONS, MAX_STEPS, Protocol

Rows = npt.NDArray[np.int64]
"""Row numbers, or positions in the buffer."""

Keys = npt.NDArray[np.integer]

HEADER_SIZE = np.zeros(256, np.int64)
"""Bytes of BTH and extension headers by opcode; 0 for an unknown opcode."""

EXTENSION_OFFSET = {header: np.full(256, -1, np.int64) for header in opcodes.EXTENSION_HEADERS}
"""Extension header -> its offset from the BTH by opcode, -1 where there is none."""

for _info in opcodes.INFO.values():
    HEADER_SIZE[_info.opcode] = _info.header_size
    _offset = h.BTH.SIZE
    for _header in _info.headers:
        EXTENSION_OFFSET[_header][_info.opcode] = _offset
        _offset += _header.SIZE

_NETWORK = (outer.IPv4, outer.IPv6, outer.UDP)
_INNER = (outer.VLAN, *_NETWORK)
_OTHERS = (h.GRH, h.LRH, h.RWH, h.BTH, h.FlowControl, outer.Pause, outer.PFC)


_NOTHING = {
    "start": -1,
    "end": -1,
    "outer_vlan": -1,
    "protocol": 0,
    "fault": 0,
    "has_icrc": False,
    "tunnelled": False,
    "opcode": 0,
}
"""What `Frames` has of a frame of which nothing is known."""


class Frames:
    """Header positions of the frames of one batch, as absolute offsets in its buffer.

    start, end: (n,) what the ICRC covers, as in `ibwire_layers.walk.Walk`.
    outer_vlan: (n,) the first of two or more 802.1Q tags, -1 where there is none.
    """

    def __init__(self, batch: RecordBatch, source: str = "") -> None:
        n = len(batch)
        self.source = source
        self.batch = batch
        self.data = batch.data
        self.limit = batch.offsets + batch.cap_len
        self.start = np.full(n, -1, np.int64)
        self.end = np.full(n, -1, np.int64)
        self.outer_vlan = np.full(n, -1, np.int64)
        self.protocol = np.zeros(n, np.uint8)
        self.fault = np.zeros(n, np.uint8)
        self.has_icrc = np.zeros(n, np.bool_)
        self.tunnelled = np.zeros(n, np.bool_)
        self.kept: dict[object, Rows] = {}
        """Positions that several fields need, by what they are of."""
        self.icrc_status: npt.NDArray[np.uint8] | None = None
        """(n,) what `ibwire.dissect.icrc` has found, or found when the capture was read before."""
        self._at: dict[type[Header], Rows] = {
            header: np.full(n, -1, np.int64) for header in (outer.Ethernet, *_INNER, *_OTHERS)
        }
        # An unaligned big-endian word at every byte of the buffer.
        self._words = np.ndarray((len(self.data) - 1,), ">u2", self.data, strides=(1,))
        self._walk()
        self.bth: Rows = self._at[h.BTH]
        self.opcode = np.where(self.bth >= 0, self.data[self.bth], 0)

    def __len__(self) -> int:
        return len(self.batch)

    def without(self, rows: Rows) -> Frames:
        """The same frames, in which those of these rows have no header."""
        other = copy(self)
        for name, nothing in _NOTHING.items():
            values = getattr(self, name).copy()
            values[rows] = nothing
            setattr(other, name, values)
        other._at = {header: at.copy() for header, at in self._at.items()}
        for at in other._at.values():
            at[rows] = -1
        other.bth = other._at[h.BTH]
        other.kept = {}
        return other

    def position(self, header: type[Header]) -> Rows:
        """(n,) where the header starts in each frame, -1 where there is none or it was cut off."""
        if header not in self._at:
            offset = EXTENSION_OFFSET[header][self.opcode]
            present = (self.bth >= 0) & (offset >= 0)
            present &= self.bth + offset + header.SIZE <= np.minimum(self.payload_end, self.limit)
            self._at[header] = np.where(present, self.bth + offset, -1)
        return self._at[header]

    @property
    def payload_end(self) -> Rows:
        """(n,) end of payload and padding."""
        return self.end - h.ICRC_SIZE * self.has_icrc

    @property
    def payload(self) -> Rows:
        """(n,) where the payload starts, -1 where that is not known."""
        size = HEADER_SIZE[self.opcode]
        known = (self.bth >= 0) & (size > 0)
        known &= self.bth + size <= np.minimum(self.payload_end, self.limit)
        return np.where(known, self.bth + size, -1)

    def _walk(self) -> None:
        batch = self.batch
        rows = np.arange(len(batch), dtype=np.int64) if native is None else self._walk_plain()
        pending = _Pending()
        at, link_types = batch.offsets[rows], batch.link_type[rows]
        unread, _ = self._dispatch(pending, rows, at, link_types, _LINKS)
        self.fault[unread] = Fault.LINK_TYPE
        for _ in range(MAX_STEPS):
            todo, pending = pending, _Pending()
            for step, rows, at in todo.groups():
                step(self, rows, at, pending)
        for _step, rows, _at in pending.groups():
            self.fault[rows] = Fault.NESTING

    def _walk_plain(self) -> Rows:
        """Walk RoCEv2 over Ethernet, with one tag at most and without fault; returns the rest."""
        assert native is not None
        done = np.zeros(len(self), np.bool_)
        native.plain_frames(
            self.data,
            self.batch.offsets,
            self.limit,
            self.batch.link_type,
            HEADER_SIZE,
            Protocol.ROCEV2,
            self.start,
            self.end,
            self.protocol,
            self.has_icrc,
            *(self._at[header] for header in (outer.Ethernet, *_INNER, h.BTH)),
            done,
        )
        return np.flatnonzero(~done)

    def _dispatch(
        self, pending: _Pending, rows: Rows, at: Rows, keys: Keys, table: Mapping[int, _Step]
    ) -> tuple[Rows, Keys]:
        """Hand each row to the step that its key selects; returns the rows without one."""
        for key, step in table.items():
            chosen = keys == key
            if chosen.all():
                pending.add(step, rows, at)
                return rows[:0], keys[:0]
            if chosen.any():
                pending.add(step, rows[chosen], at[chosen])
                rows, at, keys = rows[~chosen], at[~chosen], keys[~chosen]
        return rows, keys

    def _keep(self, good: npt.NDArray[np.bool_], fault: Fault, rows: Rows, at: Rows) -> _Reached:
        """The rows that are good; the others stop here with the fault."""
        if good.all():
            return rows, at
        self.fault[rows[~good]] = fault
        return rows[good], at[good]

    def _whole(self, rows: Rows, at: Rows, size: int | Rows) -> _Reached:
        """The rows that were captured up to `at + size`."""
        return self._keep(at + size <= self.limit[rows], Fault.TRUNCATED, rows, at)

    def _enter(self, header: type[Header], rows: Rows, at: Rows) -> _Reached:
        """The rows that hold this header whole; notes where it is."""
        rows, at = self._whole(rows, at, header.SIZE)
        self._at[header][rows] = at
        return rows, at

    def _forget(self, headers: Iterable[type[Header]], rows: Rows) -> None:
        for header in headers:
            self._at[header][rows] = -1

    def _u8(self, at: Rows) -> Rows:
        return self.data[at].astype(np.int64)

    def _u16(self, at: Rows) -> Rows:
        return self._words[at].astype(np.int64)

    # Link headers.

    def _by_ether_type(self, rows: Rows, at: Rows, types: Keys, pending: _Pending) -> None:
        rows, types = self._dispatch(pending, rows, at, types, _ETHER_TYPES)
        self.protocol[rows] = Protocol.OTHER  # an outer UDP header may have set another value
        self._label(rows, types, _PLAIN_ETHER_TYPES)

    def _label(self, rows: Rows, keys: Keys, table: Mapping[int, Protocol]) -> None:
        for key, protocol in table.items():
            self.protocol[rows[keys == key]] = protocol

    def _ethernet(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._enter(outer.Ethernet, rows, at)
        self._forget(_INNER, rows)
        self.outer_vlan[rows] = -1
        self._by_ether_type(rows, at + 14, self._u16(at + 12), pending)

    def _vlan(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, outer.VLAN.SIZE)
        previous, first = self._at[outer.VLAN][rows], self.outer_vlan[rows]
        self.outer_vlan[rows] = np.where(first < 0, previous, first)
        self._at[outer.VLAN][rows] = at
        self._by_ether_type(rows, at + 4, self._u16(at + 2), pending)

    def _sll(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, outer.SLL.SIZE)
        self._by_ether_type(rows, at + outer.SLL.SIZE, self._u16(at + 14), pending)

    def _sll2(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, outer.SLL2.SIZE)
        self._by_ether_type(rows, at + outer.SLL2.SIZE, self._u16(at), pending)

    def _erf(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, outer.ERF.SIZE)
        kind, size = self._u8(at + 8) & 0x7F, np.full(len(at), outer.ERF.SIZE)
        more = self._u8(at + 8) >> 7
        while more.any():
            whole = (more == 0) | (at + size + 8 <= self.limit[rows])
            self.fault[rows[~whole]] = Fault.TRUNCATED
            rows, at, kind, size, more = (a[whole] for a in (rows, at, kind, size, more))
            following = np.where(more, self._u8(at + np.where(more, size, 0)) >> 7, 0)
            size, more = size + 8 * more, following
        size += 2 * np.isin(kind, ERF_ETHERNET)
        unread, _ = self._dispatch(pending, rows, at + size, kind, _ERF_TYPES)
        self.fault[unread] = Fault.LINK_TYPE

    def _mpls(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        self.tunnelled[rows] = True
        rows, at = self._whole(rows, at, outer.MPLS.SIZE)
        bottom = (self._u8(at + 2) & 1).astype(np.bool_)
        pending.add(Frames._mpls, rows[~bottom], at[~bottom] + 4)
        rows, at = self._whole(rows[bottom], at[bottom] + 4, 2)
        version = self._u8(at) >> 4
        control = self._u16(at) == 0
        four, six = version == 4, version == 6
        pending.add(Frames._ipv4, rows[four], at[four])
        pending.add(Frames._ipv6, rows[six], at[six])
        frame = ~(four | six)
        pending.add(Frames._ethernet, rows[frame], (at + 4 * control)[frame])

    # Network headers.

    def _raw_ip(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, 1)
        six = self._u8(at) >> 4 == 6
        pending.add(Frames._ipv6, rows[six], at[six])
        pending.add(Frames._ipv4, rows[~six], at[~six])

    def _ipv4(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, outer.IPv4.SIZE)
        first = self.data[at]
        good = (first >> 4 == 4) & (first & 0xF >= 5)
        rows, at = self._keep(good, Fault.VERSION, rows, at)
        size = (self._u8(at) & 0xF) * 4
        whole = at + size <= self.limit[rows]
        rows, at = self._keep(whole, Fault.TRUNCATED, rows, at)
        size = size[whole]
        self._forget(_NETWORK, rows)
        self._at[outer.IPv4][rows] = at
        total = self._u16(at + 2)
        self.end[rows] = at + total
        self.start[rows] = at
        good = total >= size
        rows, at = self._keep(good, Fault.LENGTH, rows, at)
        size = size[good]
        fragment = self._u16(at + 6)
        self.fault[rows[fragment & 0x3FFF != 0]] = Fault.FRAGMENT
        later = fragment & 0x1FFF != 0
        self.protocol[rows[later]] = Protocol.IP_FRAGMENT
        rows, at, size = rows[~later], at[~later], size[~later]
        self._by_ip_protocol(rows, at + size, self.data[at + 9], pending)

    def _ipv6(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, outer.IPv6.SIZE)
        rows, at = self._keep(self.data[at] >> 4 == 6, Fault.VERSION, rows, at)
        self._forget(_NETWORK, rows)
        self._at[outer.IPv6][rows] = at
        self.end[rows] = at + outer.IPv6.SIZE + self._u16(at + 4)
        self.start[rows] = at
        following, at = self._u8(at + 6), at + outer.IPv6.SIZE
        for _ in range(MAX_STEPS):
            extended = _IS_EXTENSION[following]
            if not extended.any():
                break
            rows, at, following = self._ipv6_extension(rows, at, following, extended)
        good = ~_IS_EXTENSION[following]
        rows, at = self._keep(good, Fault.NESTING, rows, at)
        following = following[good]
        whole = at <= self.limit[rows]
        rows, at = self._keep(whole, Fault.TRUNCATED, rows, at)
        following = following[whole]
        good = at <= self.end[rows]
        rows, at = self._keep(good, Fault.LENGTH, rows, at)
        self._by_ip_protocol(rows, at, following[good], pending)

    def _ipv6_extension(
        self, rows: Rows, at: Rows, following: Rows, extended: npt.NDArray[np.bool_]
    ) -> tuple[Rows, Rows, Rows]:
        """Step over one extension header in the rows that have one."""
        whole = ~extended | (at + 8 <= self.limit[rows])
        self.fault[rows[~whole]] = Fault.TRUNCATED
        rows, at, following = rows[whole], at[whole], following[whole]
        extended = extended[whole]
        here = np.where(extended, at, 0)
        units, fragment = self._u8(here + 1), self._u16(here + 2)
        fragmented = extended & (following == IPProto.FRAGMENT)
        self.fault[rows[fragmented & (fragment & 0xFFF9 != 0)]] = Fault.FRAGMENT
        later = fragmented & (fragment & 0xFFF8 != 0)
        self.protocol[rows[later]] = Protocol.IP_FRAGMENT
        size = np.where(following == IPProto.AH, (units + 2) * 4, (units + 1) * 8)
        size = np.where(fragmented, 8, size)
        following = np.where(extended, self._u8(here), following)
        at = np.where(extended, at + size, at)
        return rows[~later], at[~later], following[~later]

    def _by_ip_protocol(self, rows: Rows, at: Rows, protocols: Keys, pending: _Pending) -> None:
        rows, protocols = self._dispatch(pending, rows, at, protocols, _IP_PROTOCOLS)
        self.protocol[rows] = Protocol.IP
        self._label(rows, protocols, _PLAIN_IP_PROTOCOLS)

    def _udp(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        self.protocol[rows] = Protocol.UDP
        rows, at = self._enter(outer.UDP, rows, at)
        port = self._u16(at + 2)
        tunnel = port == outer.VXLAN_PORT
        pending.add(Frames._vxlan, rows[tunnel], at[tunnel] + outer.UDP.SIZE)
        roce = port == outer.ROCEV2_PORT
        if not roce.all():
            roce |= (self._u16(at) == outer.ROCEV2_PORT) & ~_IS_LOWER_PORT[port]
        rows, at = rows[roce], at[roce]
        self.protocol[rows] = Protocol.ROCEV2
        lying = (self.fault[rows] == Fault.NONE) & (self._u16(at + 4) != self.end[rows] - at)
        self.fault[rows[lying]] = Fault.UDP_LENGTH
        pending.add(Frames._bth, rows, at + outer.UDP.SIZE)

    # Tunnels.

    def _gre(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        self.tunnelled[rows] = True
        rows, at = self._whole(rows, at, outer.GRE.SIZE)
        flags = self._u16(at)
        size = outer.GRE.SIZE + 4 * (flags >> 15) + 4 * (flags >> 13 & 1) + 4 * (flags >> 12 & 1)
        whole = at + size <= self.limit[rows]
        rows, at = self._keep(whole, Fault.TRUNCATED, rows, at)
        flags, size = flags[whole], size[whole]
        good = flags & 0x4007 == 0
        rows, at = self._keep(good, Fault.NEXT_HEADER, rows, at)
        flags, size = flags[good], size[good]
        protocol = self._u16(at + 2)
        at = at + size
        first = (protocol == EtherType.ERSPAN_II) & (flags & 0x1000 == 0)
        pending.add(Frames._ethernet, rows[first], at[first])
        rows, at, protocol = rows[~first], at[~first], protocol[~first]
        for number, step in _GRE_PROTOCOLS.items():
            chosen = protocol == number
            pending.add(step, rows[chosen], at[chosen])
        rest = ~np.isin(protocol, list(_GRE_PROTOCOLS))
        self._by_ether_type(rows[rest], at[rest], protocol[rest], pending)

    def _erspan2(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, outer.ERSPAN2.SIZE)
        pending.add(Frames._ethernet, rows, at + outer.ERSPAN2.SIZE)

    def _erspan3(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._whole(rows, at, outer.ERSPAN3.SIZE)
        rows, at = self._whole(rows, at + 8 * (self._u8(at + 11) & 1), outer.ERSPAN3.SIZE)
        pending.add(Frames._ethernet, rows, at + outer.ERSPAN3.SIZE)

    def _vxlan(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        self.tunnelled[rows] = True
        rows, at = self._whole(rows, at, outer.VXLAN.SIZE)
        pending.add(Frames._ethernet, rows, at + outer.VXLAN.SIZE)

    def _tunnelled_ipv4(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        self.tunnelled[rows] = True
        pending.add(Frames._ipv4, rows, at)

    def _tunnelled_ipv6(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        self.tunnelled[rows] = True
        pending.add(Frames._ipv6, rows, at)

    # What is carried.

    def _mac_control(self, rows: Rows, at: Rows, _pending: _Pending) -> None:
        self.protocol[rows] = Protocol.MAC_CONTROL
        rows, at = self._whole(rows, at, 2)
        opcode = self._u16(at)
        for number, header, protocol in _MAC_CONTROL:
            chosen = opcode == number
            entered, _ = self._enter(header, rows[chosen], at[chosen])
            self.protocol[entered] = protocol

    def _roce(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        self.start[rows] = at
        rows, at = self._grh(rows, at, Protocol.ROCEV1)
        self.end[rows] = at + h.GRH.SIZE + self._u16(at + 4)
        pending.add(Frames._bth, rows, at + h.GRH.SIZE)

    def _ib_grh(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._grh(rows, at, Protocol.IB)
        pending.add(Frames._bth, rows, at + h.GRH.SIZE)

    def _grh(self, rows: Rows, at: Rows, protocol: Protocol) -> _Reached:
        rows, at = self._enter(h.GRH, rows, at)
        rows, at = self._keep(self.data[at] >> 4 == 6, Fault.VERSION, rows, at)
        good = self.data[at + 6] == GRH_NEXT_IBA
        rows, at = self._keep(good, Fault.NEXT_HEADER, rows, at)
        self.protocol[rows] = protocol
        return rows, at

    def _lrh(self, rows: Rows, at: Rows, pending: _Pending) -> None:
        rows, at = self._enter(h.LRH, rows, at)
        next_header = self._u8(at + 1) & 3
        self.start[rows] = np.where(next_header == 3, at + h.LRH.SIZE, at)
        self.end[rows] = at + (self._u16(at + 4) & 0x7FF) * 4
        at = at + h.LRH.SIZE
        with_grh, local = next_header == 3, next_header == 2
        pending.add(Frames._ib_grh, rows[with_grh], at[with_grh])
        self.protocol[rows[local]] = Protocol.IB
        pending.add(Frames._bth, rows[local], at[local])
        raw = ~(with_grh | local)
        self.protocol[rows[raw]] = Protocol.IB_RAW
        for number, header in ((0, h.RWH), (1, outer.IPv6)):
            chosen = next_header == number
            self._enter(header, rows[chosen], at[chosen])

    def _flow_control(self, rows: Rows, at: Rows, _pending: _Pending) -> None:
        rows, at = self._enter(h.FlowControl, rows, at)
        self.protocol[rows] = Protocol.IB_LINK

    def _bth(self, rows: Rows, at: Rows, _pending: _Pending) -> None:
        end = self.end[rows]
        fragmented = self.fault[rows] == Fault.FRAGMENT
        has_icrc = ~fragmented & (end - at >= h.BTH.SIZE + h.ICRC_SIZE)
        self.has_icrc[rows] = has_icrc
        good = at + h.BTH.SIZE <= end
        rows, at = self._keep(good, Fault.LENGTH, rows, at)
        fragmented, has_icrc = fragmented[good], has_icrc[good]
        whole = at + h.BTH.SIZE <= self.limit[rows]
        rows, at = self._keep(whole, Fault.TRUNCATED, rows, at)
        fragmented, has_icrc = fragmented[whole], has_icrc[whole]
        self._at[h.BTH][rows] = at

        size = HEADER_SIZE[self.data[at]]
        room = self.end[rows] - h.ICRC_SIZE * has_icrc - at - size
        pad = self.data[at + 1] >> 4 & 3
        known = size > 0
        # The last one that applies is the one that stays.
        self.fault[rows[pad > room]] = Fault.PAD_COUNT
        self.fault[rows[~has_icrc & ~fragmented]] = Fault.LENGTH
        self.fault[rows[at + size > self.limit[rows]]] = Fault.TRUNCATED
        self.fault[rows[room < 0]] = Fault.LENGTH
        self.fault[rows[~known]] = Fault.OPCODE


class _Pending:
    """Rows that wait for a step, gathered by step."""

    def __init__(self) -> None:
        self._waiting: dict[_Step, list[_Reached]] = {}

    def add(self, step: _Step, rows: Rows, at: Rows) -> None:
        if len(rows):
            self._waiting.setdefault(step, []).append((rows, at))

    def groups(self) -> Iterator[tuple[_Step, Rows, Rows]]:
        for step, parts in self._waiting.items():
            rows, at = (np.concatenate(column) for column in zip(*parts, strict=True))
            yield step, rows, at


_Reached = tuple[Rows, Rows]
_Step = Callable[[Frames, Rows, Rows, _Pending], None]

_LINKS: dict[int, _Step] = {
    LinkType.ETHERNET: Frames._ethernet,
    LinkType.RAW_IP: Frames._raw_ip,
    LinkType.RAW_OLD: Frames._raw_ip,
    LinkType.RAW_OPENBSD: Frames._raw_ip,
    LinkType.IPV4: Frames._ipv4,
    LinkType.IPV6: Frames._ipv6,
    LinkType.LINUX_SLL: Frames._sll,
    LinkType.LINUX_SLL2: Frames._sll2,
    LinkType.ERF: Frames._erf,
    LinkType.INFINIBAND: Frames._lrh,
}

_ERF_TYPES: dict[int, _Step] = {
    **dict.fromkeys(ERF_ETHERNET, Frames._ethernet),
    ErfType.INFINIBAND: Frames._lrh,
    ErfType.INFINIBAND_LINK: Frames._flow_control,
}

_ETHER_TYPES: dict[int, _Step] = {
    EtherType.IPV4: Frames._ipv4,
    EtherType.VLAN: Frames._vlan,
    EtherType.IPV6: Frames._ipv6,
    EtherType.ROCE: Frames._roce,
    EtherType.MAC_CONTROL: Frames._mac_control,
    EtherType.QINQ: Frames._vlan,
    EtherType.QINQ_OLD: Frames._vlan,
    EtherType.MPLS: Frames._mpls,
    EtherType.MPLS_MULTICAST: Frames._mpls,
}

_PLAIN_ETHER_TYPES: dict[int, Protocol] = {
    EtherType.ARP: Protocol.ARP,
    EtherType.LLDP: Protocol.LLDP,
}

_IP_PROTOCOLS: dict[int, _Step] = {
    IPProto.UDP: Frames._udp,
    IPProto.GRE: Frames._gre,
    IPProto.IPIP: Frames._tunnelled_ipv4,
    IPProto.IPV6: Frames._tunnelled_ipv6,
}

_PLAIN_IP_PROTOCOLS: dict[int, Protocol] = {
    IPProto.TCP: Protocol.TCP,
    IPProto.ICMP: Protocol.ICMP,
    IPProto.ICMPV6: Protocol.ICMPV6,
}

_IS_LOWER_PORT = np.zeros(1 << 16, np.bool_)
_IS_LOWER_PORT[list(outer.LOWER_UDP_PORTS)] = True

_IS_EXTENSION = np.zeros(256, np.bool_)
_IS_EXTENSION[list(IPV6_EXTENSIONS)] = True

_GRE_PROTOCOLS: dict[int, _Step] = {
    EtherType.ERSPAN_II: Frames._erspan2,
    EtherType.ERSPAN_III: Frames._erspan3,
    EtherType.GRE_TEB: Frames._ethernet,
}

_MAC_CONTROL = (
    (0x0001, outer.Pause, Protocol.PAUSE),
    (0x0101, outer.PFC, Protocol.PFC),
)
