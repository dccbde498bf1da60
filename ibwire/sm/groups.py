"""Multicast groups of a subnet: who creates, joins and leaves them (IBA 15.2.5.17)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ibwire.fabric.infiniband.multicast import FIRST_MLID, Group
from ibwire.fabric.infiniband.subnet import Port
from ibwire.sm.path_records import EXACTLY, RATES, gid_of, rate_code
from ibwire_layers.mad import SAStatus
from ibwire_layers.records import MCMemberRecord

MGID, PORT_GID, QKEY, MLID, MTU_SELECTOR, MTU, TCLASS, PKEY = range(8)
RATE_SELECTOR, RATE, LIFE_SELECTOR, LIFE, SL, FLOW_LABEL, HOP_LIMIT, SCOPE = range(8, 16)
JOIN_STATE = 16
"""Bits of the component mask of MCMemberRecord."""

FULL, NON, SEND_ONLY, SEND_ONLY_FULL = 1, 2, 4, 8
"""Bits of JoinState."""

JOINING = 1 << MGID | 1 << PORT_GID | 1 << JOIN_STATE
CREATING = JOINING | 1 << QKEY | 1 << TCLASS | 1 << PKEY | 1 << FLOW_LABEL | 1 << SL
BROADCAST = 0xFF12_401B_FFFF_0000_0000_0000_FFFF_FFFF
"""The IPv4 broadcast group of IP over InfiniBand in the default partition (RFC 4391, 4)."""
_PKEY_AT = 80
"""Bits of an MGID of IP over InfiniBand behind the P_Key."""
_FULL_MEMBER = 0x8000
LAST_MLID = FIRST_MLID + 0x3FF
LIFE_TIME = 18
LINK_LOCAL = 2
"""Scope of an MGID."""
_OWN_SIGNATURE = 0xA01B
_SAME = {
    QKEY: "qkey",
    TCLASS: "tclass",
    PKEY: "pkey",
    SL: "sl",
    FLOW_LABEL: "flow_label",
    HOP_LIMIT: "hop_limit",
    MLID: "mlid",
}
"""Components that a join must have as the group has them."""


@dataclass(slots=True)
class _Group:
    record: MCMemberRecord
    members: dict[int, int] = field(default_factory=dict)
    """JoinState by GID of the port."""
    stays: bool = False


def broadcast_group(pkey: int) -> int:
    """The MGID of the IPv4 broadcast group of a partition: with the P_Key of a full member."""
    return BROADCAST & ~(0xFFFF << _PKEY_AT) | (pkey | _FULL_MEMBER) << _PKEY_AT


class Groups:
    """The groups of a subnet.

    broadcast: P_Keys of the partitions with a broadcast group of IP over InfiniBand, the default
    one first.
    """

    def __init__(self, broadcast: Sequence[int]) -> None:
        self.has_changed = True
        """Whether somebody has joined or left since `trees`."""
        self.created: list[int] = []
        self.deleted: list[int] = []
        """MGIDs since they were last looked at."""
        self._groups: dict[int, _Group] = {}
        for mlid, pkey in enumerate(broadcast, FIRST_MLID):
            record = MCMemberRecord(
                mgid=broadcast_group(pkey),
                qkey=0xB1B,
                mlid=mlid,
                mtu_selector=EXACTLY,
                mtu=4,
                pkey=pkey | _FULL_MEMBER,
                rate_selector=EXACTLY,
                rate=3,
                packet_life_time_selector=EXACTLY,
                packet_life_time=LIFE_TIME,
                scope=2,
            )
            self._groups[record.mgid] = _Group(record, stays=True)

    def trees(self, by_gid: dict[int, Port]) -> dict[int, Group]:
        """Members and senders by MLID."""
        self.has_changed = False
        found: dict[int, Group] = {}
        for group in self._groups.values():
            tree = found.setdefault(group.record.mlid, Group())
            for gid, state in group.members.items():
                port = by_gid.get(gid)
                if port is not None:
                    receives = state & (FULL | NON)
                    (tree.members if receives else tree.senders).append(port)
        return found

    def drop_missing(self, by_gid: dict[int, Port]) -> None:
        """Take out ports that are gone."""
        for group in list(self._groups.values()):
            for gid in [gid for gid in group.members if gid not in by_gid]:
                if group.record.mgid in self._groups:  # it ends with its last full member
                    self._leave(group, gid, 0xF)

    def records(self, asker: Port | None, *, is_trusted: bool) -> Iterator[bytes]:
        """The record of each group whose partition the asker has; with members for those who may
        know them."""
        for group in self._groups.values():
            if asker is None or not asker.passes_pkey(group.record.pkey):
                continue
            if not is_trusted:
                yield group.record.pack()
                continue
            for gid, state in group.members.items():
                yield group.record.altered(port_gid=gid, join_state=state).pack()

    def join(
        self, asked: MCMemberRecord, mask: int, by_gid: dict[int, Port]
    ) -> tuple[int, MCMemberRecord]:
        """Join a group, or create it; the status and the record to answer with."""
        if mask & JOINING != JOINING:
            return SAStatus.INSUFFICIENT_COMPONENTS, asked
        port = by_gid.get(asked.port_gid)
        if port is None or not asked.join_state:
            return SAStatus.REQUEST_INVALID, asked
        group = self._groups.get(asked.mgid)
        if group is None:
            if not asked.join_state & FULL:
                return SAStatus.REQUEST_INVALID, asked
            if mask & CREATING != CREATING:
                return SAStatus.INSUFFICIENT_COMPONENTS, asked
            if not port.passes_pkey(asked.pkey):
                return SAStatus.REQUEST_INVALID, asked
            group = self._create(asked, mask, port)
            if group is None:
                return SAStatus.REQUEST_INVALID, asked
        elif not _agrees(group.record, asked, mask) or not _reaches(port, group.record):
            return SAStatus.REQUEST_INVALID, asked
        state = group.members.get(asked.port_gid, 0) | asked.join_state
        self.has_changed |= group.members.get(asked.port_gid) != state
        group.members[asked.port_gid] = state
        return 0, group.record.altered(port_gid=asked.port_gid, join_state=state)

    def leave(self, asked: MCMemberRecord) -> tuple[int, MCMemberRecord]:
        """Leave a group, with some bits of JoinState or all.

        The member must have them (o15-0.1.14).
        """
        group = self._groups.get(asked.mgid)
        has = group.members.get(asked.port_gid, 0) if group is not None else 0
        if group is None or not asked.join_state or asked.join_state & ~has:
            return SAStatus.REQUEST_INVALID, asked
        state = self._leave(group, asked.port_gid, asked.join_state)
        return 0, group.record.altered(port_gid=asked.port_gid, join_state=state or 0)

    def _leave(self, group: _Group, gid: int, bits: int) -> int:
        state = group.members[gid] & ~bits
        self.has_changed = True
        if state:
            group.members[gid] = state
        else:
            del group.members[gid]
        has_full = any(each & FULL for each in group.members.values())
        if not has_full and not group.stays:
            del self._groups[group.record.mgid]
            self.deleted.append(group.record.mgid)
        return state

    def _create(self, asked: MCMemberRecord, mask: int, port: Port) -> _Group | None:
        mgid = asked.mgid or self._free_mgid(asked.scope if mask >> SCOPE & 1 else LINK_LOCAL)
        mlids = {group.record.mlid for group in self._groups.values()}
        mlid = next((mlid for mlid in range(FIRST_MLID, LAST_MLID + 1) if mlid not in mlids), None)
        if not _is_allowed(mgid, asked.mgid) or mlid is None:
            return None
        mtu = _chosen(
            mask, MTU_SELECTOR, MTU, asked.mtu_selector, asked.mtu, range(1, port.mtu_cap + 1)
        )
        top = RATES[rate_code(port)]
        rates = sorted((code for code in RATES if RATES[code] <= top), key=RATES.__getitem__)
        rate = _chosen(mask, RATE_SELECTOR, RATE, asked.rate_selector, asked.rate, rates)
        life = _chosen(
            mask,
            LIFE_SELECTOR,
            LIFE,
            asked.packet_life_time_selector,
            asked.packet_life_time,
            range(LIFE_TIME + 1),
        )
        if mtu is None or rate is None or life is None or not asked.pkey & 0x7FFF:
            return None
        group = _Group(
            asked.altered(
                mgid=mgid,
                port_gid=0,
                join_state=0,
                mlid=mlid,
                mtu_selector=EXACTLY,
                mtu=mtu,
                rate_selector=EXACTLY,
                rate=rate,
                packet_life_time_selector=EXACTLY,
                packet_life_time=life,
                hop_limit=asked.hop_limit if mask >> HOP_LIMIT & 1 else 0,
                scope=mgid >> 112 & 0xF,
            )
        )
        self._groups[mgid] = group
        self.created.append(mgid)
        return group

    def _free_mgid(self, scope: int) -> int:
        prefix = 0xFF10 << 112 | scope << 112 | _OWN_SIGNATURE << 96
        number = 1
        while prefix | number in self._groups:
            number += 1
        return prefix | number


def _is_allowed(mgid: int, asked: int) -> bool:
    """Whether a group may have an MGID: FF, and no flag but transient.

    Those of the administration itself have a signature, with which nobody may ask for a group of
    link-local scope (o15-0.1.6).
    """
    is_own = mgid >> 96 & 0xFFFF == _OWN_SIGNATURE
    is_link_local = mgid >> 112 & 0xF == LINK_LOCAL
    has_reserved_flags = mgid >> 112 & 0xE0
    return (
        mgid >> 120 == 0xFF and not has_reserved_flags and not (asked and is_own and is_link_local)
    )


def _chosen(
    mask: int, at: int, bit: int, selector: int, asked: int, supported: range | list[int]
) -> int | None:
    """The value of a group that fits a selector: the largest; `None` if there is none."""
    values = list(supported)
    if not mask >> at & 1 or not mask >> bit & 1 or selector == 3:
        return values[-1]
    if asked not in values:
        if selector == 1 and values and asked > values[-1] and isinstance(supported, range):
            return values[-1]
        return None
    place = values.index(asked)
    if selector == 0:
        return values[-1] if place < len(values) - 1 else None
    if selector == 1:
        return values[place - 1] if place else None
    return asked


def _agrees(group: MCMemberRecord, asked: MCMemberRecord, mask: int) -> bool:
    """Whether a join says nothing that the group is not."""
    for bit, name in _SAME.items():
        if mask >> bit & 1 and getattr(group, name) != getattr(asked, name):
            return False
    ranked = RATES.get(asked.rate, 0), RATES[group.rate]
    return (
        _compares(mask, MTU_SELECTOR, MTU, asked.mtu_selector, asked.mtu, group.mtu)
        and _compares(mask, RATE_SELECTOR, RATE, asked.rate_selector, *ranked)
        and _compares(
            mask,
            LIFE_SELECTOR,
            LIFE,
            asked.packet_life_time_selector,
            asked.packet_life_time,
            group.packet_life_time,
        )
    )


def _compares(mask: int, at: int, bit: int, selector: int, asked: object, value: object) -> bool:
    if not mask >> at & 1 or not mask >> bit & 1:
        return True
    a: int = asked  # type: ignore[assignment]
    b: int = value  # type: ignore[assignment]
    return (b > a, b < a, a == b, True)[selector]


def _reaches(port: Port, group: MCMemberRecord) -> bool:
    """Whether a port can take the packets of a group, and has its partition.

    Source: docs/reference/infiniband.md#subnet-administration.
    """
    is_fast = port.mtu_cap >= group.mtu and RATES[rate_code(port)] >= RATES[group.rate]
    return is_fast and port.passes_pkey(group.pkey)


def gids(ports: list[Port]) -> dict[int, Port]:
    """Ports by their GID."""
    return {gid_of(port): port for port in ports}
