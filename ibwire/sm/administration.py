"""Subnet administration: the records that a subnet manager gives, and those it takes (IBA 15).

Answers with several records go out by RMPP. A requester that gives the SM_Key is trusted: it also
sees P_Key tables and the members of multicast groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, product

from ibwire.base.units import S, Time
from ibwire.fabric.infiniband.multicast import Group
from ibwire.fabric.infiniband.subnet import Node, Port
from ibwire.sm import rmpp
from ibwire.sm.configuration import Settings, broadcast_pkeys
from ibwire.sm.discovery import View
from ibwire.sm.groups import Groups, gids
from ibwire.sm.mads import METHOD, MODIFIER, RESPONSE, TID, Datagram, attribute_of
from ibwire.sm.path_records import (
    DGID,
    DGID_COUNT,
    NUMB_PATH,
    SGID,
    SGID_COUNT,
    gid_of,
    paths,
    read_multi_path,
)
from ibwire.sm.port_tables import Table, unread_tables
from ibwire.sm.records import RECORDS, Layout, selected
from ibwire_layers.attributes import PortInfo, SMInfo
from ibwire_layers.mad import (
    MAD,
    MAD_SIZE,
    ClassPortInfo,
    Method,
    MgmtClass,
    Notice,
    RMPPType,
    SAStatus,
    Status,
    Trap,
)
from ibwire_layers.records import (
    InformInfo,
    InformInfoRecordID,
    MCMemberRecord,
    PathRecord,
    PortInfoRecordID,
    SAAttribute,
    ServiceRecord,
    SMInfoRecordID,
)

DATA = 56
"""Offset of the first record."""
SM_KEY = slice(36, 44)
TRUSTED = 1
"""SM_Key of who may see P_Keys and members; that of opensm by default."""
OFFSET = slice(44, 46)
COMPONENT_MASK = slice(48, 56)
CAPABILITIES = 1 << 1 | 1 << 9 | 1 << 10 | 1 << 12 | 1 << 13
"""CapabilityMask: traps by Get, all records, multicast, several paths, matching of the port's
capabilities."""
RESPONSE_TIME = 18
QKEY = 0x8001_0000
NO_END = 0xFFFF_FFFF
"""Lease of a service that does not end."""
MOST_SEGMENTS = 64
"""Of a request: a MultiPathRecord has at most 510 GIDs, which take 41 (IBA 15.2.5.20)."""
MAXIMUM_KEPT = 100_000
"""Services and subscriptions."""
MAXIMUM_RECORDS = 200_000
"""Of one answer; a request for more gets NO_RESOURCES."""
MAXIMUM_ANSWERS, MAXIMUM_ANSWER_BYTES = 10_000, 64 << 20
"""Answers that are not acknowledged yet; requests beyond get NO_RESOURCES."""
ALL_LIDS, ALL_TRAPS, ALL_TYPES = 0xFFFF, 0xFFFF, 0xFFFF
REPORT_TIMEOUT: Time = 1 * S
REPORT_TRIES = 3

Answer = tuple[int, int, list[bytes]]
"""Status, bytes of a record, records."""
_PORT_MKEY = PortInfoRecordID.SIZE
"""Offset of M_Key in a PortInfoRecord."""
_CAPABILITY_MASK = 7
"""Component of PortInfoRecord."""
_ENOUGH = MAXIMUM_RECORDS + 1
"""Records that show that there are too many."""
_SERVICE_KEY = 1 << 5
"""Component of ServiceRecord."""
_PORT_OF_TABLE: dict[int, int] = {
    SAAttribute.P_KEY_TABLE_RECORD: 1 << 2,
    SAAttribute.VL_ARBITRATION_TABLE_RECORD: 1 << 1,
}
"""Bit of the port in the component mask of a record, whose bit 0 is the LID."""
_LIDS: dict[int, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys((*RECORDS, SAAttribute.SM_INFO_RECORD), ((0, 0),)),
    SAAttribute.LINK_RECORD: ((0, 0), (3, 4)),
}
"""LIDs in a record: bit of the component mask, and offset."""
_SM_INFO: Layout = (SMInfoRecordID, SMInfo)
_SUBSCRIPTION: Layout = (InformInfoRecordID, InformInfo)


@dataclass(slots=True)
class _Service:
    record: ServiceRecord
    ends: Time | None


@dataclass(slots=True)
class _Report:
    """A report that its subscriber has not acknowledged."""

    datagram: Datagram
    due: Time
    tries: int = 1


class Administration:
    """The administration of one subnet.

    send: takes a MAD that leaves the manager's port.
    """

    def __init__(self, settings: Settings, send: Callable[[Datagram], None]) -> None:
        self.settings = settings
        self.view = View()
        self._send = send
        self._groups = Groups(broadcast_pkeys(settings.partitions))
        self._by_lid: dict[int, Port] = {}
        self._by_gid: dict[int, Port] = {}
        self._known: set[int] = set()
        """GIDs of the ports that were there at the last `report_changes`."""
        self.describe: Callable[[], SMInfo] | None = None
        """What the manager itself says of itself."""
        self.managers: dict[Port, SMInfo] = {}
        """Other subnet managers, as they have described themselves."""
        self._services: dict[tuple[int, int, int], _Service] = {}
        self._subscriptions: dict[tuple[int, bytes], tuple[int, InformInfo]] = {}
        self._sending: dict[tuple[int, bytes], tuple[rmpp.Sending, Datagram]] = {}
        self._receiving: dict[tuple[int, bytes], rmpp.Receiving] = {}
        self._reports: dict[int, _Report] = {}
        self._tid = 0

    @property
    def has_changed_groups(self) -> bool:
        """Whether multicast tables must be written."""
        return self._groups.has_changed

    def groups(self) -> dict[int, Group]:
        """Members of multicast groups, by MLID."""
        return self._groups.trees(self._by_gid)

    def take(self, view: View) -> None:
        """The subnet as it is from now on."""
        self.view = view
        ports = view.end_ports()
        self._by_lid = {
            lid: port
            for port in ports
            if port.lid
            for lid in range(port.lid, port.lid + (1 << port.lmc))
        }
        self._by_gid = gids(ports)
        self._groups.drop_missing(self._by_gid)

    def report_changes(self, now: Time) -> None:
        """Tell those who have subscribed which ports have come and gone, and which groups."""
        before, self._known = self._known, set(self._by_gid)
        for gid in sorted(self._known ^ before) if self._subscriptions else ():
            is_new = gid in self._known
            number = Trap.GID_IN_SERVICE if is_new else Trap.GID_OUT_OF_SERVICE
            self._report_gid(number, gid, now)
        self._tell_of_groups(now)

    def deliver(self, datagram: Datagram, now: Time) -> bool:
        """Take a MAD of this class; `False` if it is no request."""
        mad = datagram.mad
        method = mad[METHOD]
        if int.from_bytes(mad[SM_KEY], "big") not in (0, TRUSTED):
            return True  # the key of another subnet: no answer
        if rmpp.is_active(mad):
            if mad[rmpp.TYPE_AT] != RMPPType.DATA:
                return self._acknowledged(datagram, now)
            if method == Method.GET_MULTI:
                self._segment(datagram, now)
                return True
        if method == Method.REPORT_RESP:
            return self._reports.pop(int.from_bytes(mad[TID], "big"), None) is not None
        if method not in (Method.GET, Method.SET, Method.GET_TABLE, Method.DELETE):
            if method & 0x80:
                return False
            self._send(datagram.answer(status=int(Status.METHOD_NOT_SUPPORTED)))
            return True
        status, size, records = self._answer(datagram, now)
        if not any(mad[SM_KEY]):
            records = _without_keys(attribute_of(mad), records)
        if method == Method.GET_TABLE and not status:
            self._table(datagram, size, records, now)
            return True
        if method == Method.GET and not status and len(records) != 1:
            status = SAStatus.TOO_MANY_RECORDS if records else SAStatus.NO_RECORDS
            records = []
        self._single(datagram, status, size, records)
        self._tell_of_groups(now)
        return True

    def unread(self, datagram: Datagram) -> list[Table]:
        """The tables that a request asks for, and that nobody has read yet.

        None if they are too many: such a request is refused.
        """
        mad = datagram.mad
        if mad[METHOD] not in (Method.GET, Method.GET_TABLE) or rmpp.is_active(mad):
            return []
        if attribute_of(mad) == SAAttribute.P_KEY_TABLE_RECORD and not any(mad[SM_KEY]):
            return []
        found = list(islice(self._unread(mad), _ENOUGH))
        return found if len(found) < _ENOUGH else []

    def _unread(self, mad: bytearray) -> Iterator[Table]:
        nodes: Iterable[Node] = self.view.subnet.nodes.values()
        if mad[COMPONENT_MASK][-1] & 1:
            port = self._by_lid.get(int.from_bytes(mad[DATA : DATA + 2], "big"))
            nodes = [] if port is None else [port.node]
        return unread_tables(nodes, attribute_of(mad))

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due."""
        dues = [sending.due for sending, _ in self._sending.values()]
        dues += [receiving.due for receiving in self._receiving.values()]
        dues += [report.due for report in self._reports.values()]
        dues += [each.ends for each in self._services.values() if each.ends is not None]
        return min(dues, default=None)

    def handle_timeout(self, now: Time) -> None:
        """Repeat what was not acknowledged, and end leases."""
        for key, (sending, request) in list(self._sending.items()):
            if sending.due > now:
                continue
            if not sending.repeat():
                del self._sending[key]
                continue
            for segment in sending.take(now):
                self._send(_reply(request, segment))
        for key, receiving in list(self._receiving.items()):
            if receiving.due <= now:
                del self._receiving[key]
        for tid, report in list(self._reports.items()):
            if report.due > now:
                continue
            if report.tries == REPORT_TRIES:
                del self._reports[tid]
                continue
            report.tries += 1
            report.due = now + REPORT_TIMEOUT
            self._send(report.datagram)
        for place, service in list(self._services.items()):
            if service.ends is not None and service.ends <= now:
                del self._services[place]

    def report(self, notice: bytes, now: Time) -> None:
        """Send a notice, without IssuerGID, to everybody who has subscribed to it."""
        own = self.view.own
        if own is None:
            return
        fields = Notice.unpack(notice)
        port = own if fields.issuer_lid == own.lid else self._by_lid.get(fields.issuer_lid)
        issuer = 0 if port is None else gid_of(port)
        notice += issuer.to_bytes(16, "big")
        for lid, wanted in list(self._subscriptions.values()):
            if not _wants(wanted, fields, issuer):
                continue
            self._tid += 1
            header = MAD(
                mgmt_class=MgmtClass.SUBN_ADM,
                class_version=2,
                method=Method.REPORT,
                transaction_id=self._tid,
                attribute_id=SAAttribute.NOTICE,
            )
            mad = bytearray(header.pack().ljust(MAD_SIZE, b"\0"))
            mad[DATA : DATA + len(notice)] = notice
            datagram = Datagram(mad, slid=own.lid, dlid=lid, sqp=1, dqp=wanted.qpn or 1, qkey=QKEY)
            self._reports[self._tid] = _Report(datagram, now + REPORT_TIMEOUT)
            self._send(datagram)

    def _answer(self, datagram: Datagram, now: Time) -> Answer:
        mad = datagram.mad
        attribute, method = attribute_of(mad), mad[METHOD]
        mask = int.from_bytes(mad[COMPONENT_MASK], "big")
        asked = bytes(mad[DATA:])
        if method in (Method.GET, Method.GET_TABLE):
            return self._found(datagram, attribute, mask, asked)
        if attribute == SAAttribute.MC_MEMBER_RECORD:
            return self._membership(method, mask, asked)
        if attribute == SAAttribute.SERVICE_RECORD:
            return self._service(datagram, method, mask, asked, now)
        if attribute == SAAttribute.INFORM_INFO and method == Method.SET:
            return self._subscribe(datagram, asked)
        return int(Status.METHOD_ATTRIBUTE_NOT_SUPPORTED), 0, []

    def _found(self, datagram: Datagram, attribute: int, mask: int, asked: bytes) -> Answer:
        """The records that a Get or GetTable selects."""
        is_trusted = any(datagram.mad[SM_KEY])
        if attribute == SAAttribute.P_KEY_TABLE_RECORD and not is_trusted:
            return SAStatus.REQUEST_INVALID, 0, []
        layout: Layout
        records: Iterable[bytes]
        if attribute == SAAttribute.CLASS_PORT_INFO:
            info = ClassPortInfo(
                class_version=2, capability_mask=CAPABILITIES, resp_time_value=RESPONSE_TIME
            )
            return 0, ClassPortInfo.SIZE, [info.pack()]
        if attribute == SAAttribute.PATH_RECORD:
            return self._paths(datagram, mask, asked)
        if attribute in RECORDS:
            if any(True for _ in self._unread(datagram.mad)):
                return SAStatus.NO_RESOURCES, 0, []
            layout, source = RECORDS[attribute]
            records = source(self.view)
            mask = self._without_port(attribute, mask, asked)
        elif attribute == SAAttribute.SM_INFO_RECORD:
            layout, records = _SM_INFO, self._managers()
        elif attribute == SAAttribute.MC_MEMBER_RECORD:
            layout = (MCMemberRecord,)
            asker = self._by_lid.get(datagram.slid)
            records = self._groups.records(asker, is_trusted=is_trusted or bool(mask & 2))
        elif attribute == SAAttribute.SERVICE_RECORD:
            layout = (ServiceRecord,)
            records = (each.record.pack() for each in self._services.values())
        elif attribute == SAAttribute.INFORM_INFO_RECORD:
            layout, records = _SUBSCRIPTION, self._subscribed()
        else:
            return int(Status.METHOD_ATTRIBUTE_NOT_SUPPORTED), 0, []
        asked = self._with_base_lids(attribute, mask, asked)
        size = sum(header.SIZE for header in layout)
        by_bits = bool(datagram.mad[MODIFIER][0] & 0x80)
        if attribute == SAAttribute.PORT_INFO_RECORD and by_bits and mask >> _CAPABILITY_MASK & 1:
            records = _with_capabilities(asked, records)
            mask &= ~(1 << _CAPABILITY_MASK)
        return 0, size, list(islice(selected(layout, mask, asked, records), _ENOUGH))

    def _with_base_lids(self, attribute: int, mask: int, asked: bytes) -> bytes:
        """The record asked for, with the first LID of a port where any of its LIDs is given."""
        for bit, at in _LIDS.get(attribute, ()):
            port = self._by_lid.get(int.from_bytes(asked[at : at + 2], "big"))
            if mask >> bit & 1 and port is not None:
                asked = asked[:at] + port.lid.to_bytes(2, "big") + asked[at + 2 :]
        return asked

    def _without_port(self, attribute: int, mask: int, asked: bytes) -> int:
        """The component mask without the port, where the LID is that of a port of an adapter.

        It names the port already; osmtest asks for port 0 there, and opensm does not look at it.
        """
        bit = _PORT_OF_TABLE.get(attribute, 0)
        port = self._by_lid.get(int.from_bytes(asked[:2], "big")) if mask & 1 else None
        return mask & ~bit if port is not None and not port.node.is_switch else mask

    def _paths(self, datagram: Datagram, mask: int, asked: bytes) -> Answer:
        request = PathRecord.unpack(asked)
        limit = _ENOUGH
        if datagram.mad[METHOD] == Method.GET:
            # One path is asked for; both ends must be given.
            if not mask & 0b010100 or not mask & 0b101000:
                return SAStatus.INSUFFICIENT_COMPONENTS, 0, []
            limit = 1
        found = paths(self.view, self._by_lid, request, mask)
        return 0, PathRecord.SIZE, [record.pack() for record in islice(found, limit)]

    def _segment(self, datagram: Datagram, now: Time) -> None:
        """Take a segment of a request for several paths, and answer when it is whole."""
        key = datagram.slid, bytes(datagram.mad[TID])
        receiving = self._receiving.get(key)
        if receiving is None:
            while len(self._receiving) >= rmpp.MOST_RECEIVING:
                del self._receiving[next(iter(self._receiving))]
            receiving = self._receiving[key] = rmpp.Receiving(now, MOST_SEGMENTS)
        whole, ack = receiving.receive(datagram.mad)
        if ack is not None:
            self._send(_reply(datagram, ack))
        if whole is None:
            return
        receiving.due = now + rmpp.DONE_TIMEOUT
        status, records = self._multi_paths(whole)
        if status:
            self._single(datagram, status, 0, [])
        else:
            self._table(datagram, PathRecord.SIZE, records, now)

    def _multi_paths(self, message: bytes) -> tuple[int, list[bytes]]:
        mask = int.from_bytes(message[COMPONENT_MASK], "big")
        asked = read_multi_path(message[DATA:], mask)
        if not mask >> SGID_COUNT & 1 or not mask >> DGID_COUNT & 1:
            return SAStatus.INSUFFICIENT_COMPONENTS, []
        if asked is None or not asked.sources or not asked.ends:
            return SAStatus.REQUEST_INVALID, []
        if not self._by_gid.keys() >= {*asked.sources, *asked.ends}:
            return SAStatus.INVALID_GID, []
        found = (
            record.pack()
            for sgid, dgid in product(asked.sources, asked.ends)
            for record in paths(
                self.view,
                self._by_lid,
                asked.path.altered(sgid=sgid, dgid=dgid),
                asked.mask | 1 << SGID | 1 << DGID,
            )
        )
        limit = asked.path.numb_path if asked.mask >> NUMB_PATH & 1 else _ENOUGH
        return 0, list(islice(found, limit))

    def _managers(self) -> Iterable[bytes]:
        own = self.view.own
        for port in self.view.end_ports():
            if port is own and self.describe is not None:
                info = self.describe().altered(sm_key=0)
            elif (found := self.managers.get(port)) is not None:
                info = found.altered(sm_key=0)
            else:
                continue
            yield SMInfoRecordID(lid=port.lid).pack() + info.pack()

    def _membership(self, method: int, mask: int, asked: bytes) -> Answer:
        wanted = MCMemberRecord.unpack(asked)
        if method == Method.SET:
            status, record = self._groups.join(wanted, mask, self._by_gid)
        else:
            status, record = self._groups.leave(wanted)
        return int(status), MCMemberRecord.SIZE, [record.pack()]

    def _service(
        self, datagram: Datagram, method: int, mask: int, asked: bytes, now: Time
    ) -> Answer:
        wanted = ServiceRecord.unpack(asked)
        if not mask >> 1 & 1 or not wanted.service_gid:
            port = self._by_lid.get(datagram.slid)
            wanted = wanted.altered(service_gid=0 if port is None else gid_of(port))
        if method == Method.DELETE:
            return self._delete_services(datagram, mask, asked)
        key = wanted.service_id, wanted.service_gid, wanted.service_pkey
        before = self._services.get(key)
        if before is not None and before.record.service_key not in (0, wanted.service_key):
            return SAStatus.REQUEST_DENIED, 0, []
        if before is None and len(self._services) >= MAXIMUM_KEPT:
            return SAStatus.NO_RESOURCES, 0, []
        lease = wanted.service_lease if mask >> 4 & 1 else NO_END
        wanted = wanted.altered(service_lease=lease)
        ends = None if lease == NO_END else now + lease * S
        self._services[key] = _Service(wanted, ends)
        return 0, ServiceRecord.SIZE, [wanted.pack()]

    def _delete_services(self, datagram: Datagram, mask: int, asked: bytes) -> Answer:
        """Delete the services that a request selects.

        Those of another port only if they have no key, or the key of the request. A port need
        not name the keys of its own: osmtest does not.
        """
        key = ServiceRecord.unpack(asked).service_key
        port = self._by_lid.get(datagram.slid)
        own = 0 if port is None else port.guid

        def may_delete(each: ServiceRecord) -> bool:
            # osmtest registers GIDs without a prefix.
            guid = each.service_gid & (1 << 64) - 1
            is_own = guid == own != 0 and not mask & _SERVICE_KEY
            return is_own or each.service_key in (0, key)

        records = (each.record.pack() for each in self._services.values())
        chosen = list(selected((ServiceRecord,), mask & ~_SERVICE_KEY, asked, records))
        if not chosen:
            return SAStatus.NO_RECORDS, 0, []
        allowed = [each for each in chosen if may_delete(ServiceRecord.unpack(each))]
        if not allowed:
            return SAStatus.REQUEST_DENIED, 0, []
        deleted = list(selected((ServiceRecord,), mask, asked, allowed))
        if not deleted:
            return SAStatus.NO_RECORDS, 0, []
        for packed in deleted:
            gone = ServiceRecord.unpack(packed)
            del self._services[gone.service_id, gone.service_gid, gone.service_pkey]
        return 0, ServiceRecord.SIZE, deleted[:1]

    def _subscribe(self, datagram: Datagram, asked: bytes) -> Answer:
        wanted = InformInfo.unpack(asked)
        # The queue pair is where the request came from, whatever it says.
        wanted = wanted.altered(qpn=datagram.sqp)
        key = datagram.slid, wanted.altered(subscribe=0, qpn=0, resp_time_value=0).pack()
        if wanted.subscribe:
            if wanted.gid and wanted.gid not in self._by_gid:
                refused = wanted.altered(subscribe=0)
                return SAStatus.REQUEST_INVALID, InformInfo.SIZE, [refused.pack()]
            if len(self._subscriptions) >= MAXIMUM_KEPT:
                return SAStatus.NO_RESOURCES, 0, []
            self._subscriptions[key] = datagram.slid, wanted
        elif self._subscriptions.pop(key, None) is None:
            return SAStatus.REQUEST_INVALID, InformInfo.SIZE, [wanted.pack()]
        return 0, InformInfo.SIZE, [wanted.pack()]

    def _subscribed(self) -> Iterable[bytes]:
        for number, (lid, wanted) in enumerate(self._subscriptions.values()):
            port = self._by_lid.get(lid)
            gid = 0 if port is None else gid_of(port)
            yield InformInfoRecordID(subscriber_gid=gid, enum=number).pack() + wanted.pack()

    def _tell_of_groups(self, now: Time) -> None:
        """Reports of groups that were created or deleted."""
        groups = self._groups
        for number, gone in (
            (Trap.MULTICAST_GROUP_CREATED, groups.created),
            (Trap.MULTICAST_GROUP_DELETED, groups.deleted),
        ):
            for mgid in gone:
                self._report_gid(number, mgid, now)
            gone.clear()

    def _report_gid(self, number: Trap, gid: int, now: Time) -> None:
        """Send a notice of the subnet manager about a GID."""
        notice = Notice(
            is_generic=1,
            type=3,
            producer_type=4,
            trap_number=number,
            issuer_lid=0 if self.view.own is None else self.view.own.lid,
            data_details=(bytes(6) + gid.to_bytes(16, "big")).ljust(54, b"\0"),
        )
        self.report(notice.pack(), now)

    def _single(self, datagram: Datagram, status: int, size: int, records: list[bytes]) -> None:
        answer = datagram.answer(status=int(status))
        mad = answer.mad
        mad[24:36] = bytes(12)
        mad[SM_KEY] = bytes(8)
        mad[OFFSET] = (-(-size // 8)).to_bytes(2, "big")
        mad[DATA:] = b"".join(records[:1]).ljust(MAD_SIZE - DATA, b"\0")
        self._send(answer)

    def _table(self, datagram: Datagram, size: int, records: list[bytes], now: Time) -> None:
        """Send all records by RMPP."""
        key = datagram.slid, bytes(datagram.mad[TID])
        self._sending.pop(key, None)
        waiting = sum(len(sending.message) for sending, _ in self._sending.values())
        if (
            len(records) > MAXIMUM_RECORDS
            or len(self._sending) >= MAXIMUM_ANSWERS
            or waiting + size * len(records) > MAXIMUM_ANSWER_BYTES
        ):
            self._single(datagram, SAStatus.NO_RESOURCES, 0, [])
            return
        words = -(-size // 8)
        mad = bytearray(datagram.mad[:DATA])
        mad[METHOD] |= RESPONSE
        mad[4:6] = bytes(2)
        mad[24:36] = bytes(12)
        mad[SM_KEY] = bytes(8)
        mad[OFFSET] = (words if records else 0).to_bytes(2, "big")
        message = bytes(mad) + b"".join(record.ljust(8 * words, b"\0") for record in records)
        sending = rmpp.Sending(message, now)
        self._sending[key] = sending, datagram
        for segment in sending.take(now):
            self._send(_reply(datagram, segment))

    def _acknowledged(self, datagram: Datagram, now: Time) -> bool:
        key = datagram.slid, bytes(datagram.mad[TID])
        found = self._sending.get(key)
        if found is None:
            return False
        sending, request = found
        if datagram.mad[rmpp.TYPE_AT] != RMPPType.ACK:
            del self._sending[key]
            return True
        sending.acknowledge(datagram.mad)
        if sending.is_done:
            del self._sending[key]
            return True
        for segment in sending.take(now):
            self._send(_reply(request, segment))
        return True


def _reply(request: Datagram, mad: bytearray) -> Datagram:
    return Datagram(
        mad,
        slid=request.dlid,
        dlid=request.slid,
        sqp=request.dqp,
        dqp=request.sqp,
        sl=request.sl,
        qkey=request.qkey,
        pkey=request.pkey,
    )


def _without_keys(attribute: int, records: list[bytes]) -> list[bytes]:
    """The records as those see them who may not know the keys in them."""
    if attribute == SAAttribute.SERVICE_RECORD:
        return [ServiceRecord.unpack(each).altered(service_key=0).pack() for each in records]
    if attribute == SAAttribute.PORT_INFO_RECORD:
        return [each[:_PORT_MKEY] + bytes(8) + each[_PORT_MKEY + 8 :] for each in records]
    return records


def _with_capabilities(asked: bytes, records: Iterable[bytes]) -> Iterable[bytes]:
    """PortInfoRecords whose capability mask has all the bits that are asked for."""
    wanted = PortInfo.unpack(asked, PortInfoRecordID.SIZE).capability_mask
    for record in records:
        if PortInfo.unpack(record, PortInfoRecordID.SIZE).capability_mask & wanted == wanted:
            yield record


def _wants(wanted: InformInfo, notice: Notice, issuer: int) -> bool:
    """Whether a subscription is for a notice (IBA 13.4.8.3).

    issuer: its GID. Where a subscription has one, its range of LIDs does not count.
    """
    lids = wanted.lid_range_begin, wanted.lid_range_end
    if wanted.gid:
        comes_from = wanted.gid == issuer
    else:
        comes_from = lids[0] == ALL_LIDS or lids[0] <= notice.issuer_lid <= lids[1]
    return (
        comes_from
        and wanted.is_generic == notice.is_generic
        and wanted.type in (ALL_TYPES, notice.type)
        and wanted.trap_number in (ALL_TRAPS, notice.trap_number)
        and wanted.producer_type in (0xFFFFFF, notice.producer_type)
    )
