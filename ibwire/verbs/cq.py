"""Completion queues, completions and completion channels, with pyverbs' names.

Polling an empty queue advances virtual time: see `ibwire.verbs.network`.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ibwire.base.errors import VerbsError
from ibwire.rc import work
from ibwire.rc.cq import CompletionChannel, CompletionQueue
from ibwire.verbs.base import Children, PyverbsCM, PyverbsResource, table
from ibwire.verbs.device import Context
from ibwire.verbs.fields import Structure, Unsigned, unsigned
from ibwire.verbs.libibverbs_enums import (
    ibv_create_cq_attr_flags,
    ibv_create_cq_wc_flags,
    ibv_wc_flags,
)
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from ibwire.verbs.utils import name_of, names_of
from ibwire.verbs.wr import swapped

if TYPE_CHECKING:
    from ibwire.verbs.pd import PD


class CompChannel(PyverbsResource):
    """A completion channel, which receives the events that CQs request with `req_notify`."""

    closing_rank = 5
    cc: CompletionChannel | None = None

    def __init__(self, context: Context) -> None:
        _check_context(context)
        self.context = context
        with context.verb("Failed to create a completion channel"):
            self.cc = context.device.create_channel()
        self._children = Children()
        context.add_ref(self)

    @property
    def fd(self) -> int:
        """Not supported, an emulated channel has no file: EOPNOTSUPP."""
        raise PyverbsRDMAError(
            "An emulated completion channel has no file descriptor", errno.EOPNOTSUPP
        )

    def add_ref(self, obj: PyverbsCM) -> None:
        """Register a CQ to be closed with the channel."""
        self._children.add(obj)

    def get_cq_event(self, expected_cq: CQ | CQEX) -> None:
        """Advance time until the expected CQ has an event.

        Raises EAGAIN if no scheduled event can cause one.
        """
        channel = self.cc
        if channel is None:
            raise PyverbsUserError("The completion channel is closed")
        if not self.context.network.wait(lambda: bool(channel.events)):
            raise PyverbsRDMAError(
                "Failed to get CQ event: no scheduled event can cause a completion", errno.EAGAIN
            )
        cq = channel.poll_event()
        if cq is not expected_cq.cq:
            raise PyverbsRDMAError("Received event on an unexpected CQ", errno.EINVAL)
        expected_cq.num_events += 1

    def close(self) -> None:
        """Close the CQs of the channel, then the channel."""
        if self.cc is not None:
            self._children.close()
            with self.context.closing("Failed to destroy a completion channel"):
                self.cc.close()
            self.cc = None


class _Queue(PyverbsResource):
    """Base of both kinds of completion queues."""

    closing_rank: ClassVar[int] = 4
    cq: CompletionQueue | None = None

    def _create(
        self, context: Context, cqe: int, channel: CompChannel | None, comp_vector: int
    ) -> None:
        _check_context(context)
        failure = "Failed to create a CQ"
        size = unsigned(cqe, 31, "cqe")
        with context.verb(failure):
            if not 0 <= comp_vector < context.num_comp_vectors:
                raise VerbsError(errno.EINVAL, f"completion vector {comp_vector}")
            cc = None if channel is None else channel.cc
            self.cq = context.device.create_cq(size, channel=cc)
        self.context = context
        self.channel = channel
        self.num_events = 0
        """Number of unacknowledged events."""
        self.handle = context.new_handle()
        self._children = Children()
        context.network.subscribe(self.cq, context)
        context.add_ref(self)
        if channel is not None:
            channel.add_ref(self)

    def queue(self) -> CompletionQueue:
        """The device's queue; raises `PyverbsUserError` after closing."""
        if self.cq is None:
            raise PyverbsUserError("The CQ is closed")
        return self.cq

    def add_ref(self, obj: PyverbsCM) -> None:
        """Register an object to be closed with the queue."""
        self._children.add(obj)

    def take(self, count: int) -> list[WC]:
        """Up to `count` completions; advances time while the queue is empty."""
        cq = self.queue()
        network = self.context.network
        if not cq.entries:
            network.poll(cq.entries)
        with network.lock:
            return list(map(WC.from_device, cq.poll(count)))

    def forget(self, qp_num: int) -> None:
        """Drop the completions of a reset or destroyed queue pair, if the profile does so."""
        if self.context.device.profile.reset_discards_completions:
            self.queue().discard(qp_num)

    def req_notify(self, solicited_only: bool = False) -> None:
        """Request an event for the next completion, or the next solicited one."""
        with self.context.verb("Request notify CQ failed"):
            self.queue().arm(bool(solicited_only))

    def ack_events(self, num_events: int) -> None:
        """Acknowledge events."""
        self.num_events -= num_events

    @property
    def comp_channel(self) -> CompChannel | None:
        """The completion channel of the queue."""
        return self.channel

    @property
    def cqe(self) -> int:
        """Capacity in completions."""
        return self.queue().cqe

    def close(self) -> None:
        """Close the queue pairs and SRQs of the queue, then the queue."""
        if self.cq is not None:
            self._children.close()
            with self.context.closing("Failed to close CQ"):
                self.context.network.unsubscribe(self.cq)
                self.cq.close()
            self.cq = None
            self.channel = None

    def __str__(self) -> str:
        return f"{type(self).__name__}:\n" + table(("Handle", self.handle), ("CQEs", self.cqe))


class CQ(_Queue):
    """A completion queue."""

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        self._create(context, cqe, channel, comp_vector)
        self.cq_context = cq_context

    def resize(self, cqe: int) -> None:
        """Change the capacity."""
        with self.context.verb("Failed to resize CQ"):
            if cqe > self.context.device.limits.max_cqe:
                raise VerbsError(errno.EINVAL, f"{cqe} completions")
            self.queue().resize(cqe)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """The number of polled completions, at most `num_entries`, and the completions."""
        wcs = self.take(num_entries) if num_entries > 0 else []
        return len(wcs), wcs


class CqInitAttrEx(Structure):
    """Attributes of an extended CQ."""

    cqe = Unsigned(32)
    comp_vector = Unsigned(32)
    wc_flags = Unsigned(64)
    comp_mask = Unsigned(32)
    flags = Unsigned(32)

    def __init__(
        self,
        cqe: int = 100,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
        wc_flags: int = 0,
        comp_mask: int = 0,
        flags: int = 0,
        parent_domain: PD | None = None,
    ) -> None:
        self.cqe = cqe
        self.comp_channel = channel
        self.comp_vector = comp_vector
        self.wc_flags = wc_flags
        self.comp_mask = comp_mask
        self.flags = flags
        self.parent_domain = parent_domain
        self.cq_context: object = None

    def __str__(self) -> str:
        return table(
            ("Number of CQEs", self.cqe),
            ("WC flags", create_wc_flags_to_str(self.wc_flags)),
            ("comp mask", self.comp_mask),
            ("flags", self.flags),
        )


class PollCqAttr(Structure):
    """Attributes of a poll; it has none."""

    comp_mask = Unsigned(32)


class WcTmInfo(Structure):
    """Tag matching information of a message."""

    tag = Unsigned(64)
    priv = Unsigned(32)


class CQEX(_Queue):
    """An extended completion queue, whose completions are read one after the other in place.

    `status`, `wr_id` and the `read_*` functions are about the completion that `start_poll` or
    `poll_next` found last.
    """

    def __init__(self, context: Context, init_attr: CqInitAttrEx | None = None) -> None:
        attr = CqInitAttrEx() if init_attr is None else init_attr
        if attr.wc_flags & ~_SUPPORTED_WC_FLAGS:
            raise PyverbsRDMAError("Failed to create extended CQ", errno.EOPNOTSUPP)
        if attr.flags & ibv_create_cq_attr_flags.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN:
            raise PyverbsRDMAError("Failed to create extended CQ", errno.EOPNOTSUPP)
        if attr.parent_domain is not None:
            raise PyverbsRDMAError("Failed to create extended CQ", errno.EOPNOTSUPP)
        self._create(context, attr.cqe, attr.comp_channel, attr.comp_vector)
        self._wc: WC | None = None

    def start_poll(self, attr: PollCqAttr | None) -> int:
        """Begin a poll: Begin a poll: 0 if there is a completion, else ENOENT."""
        return self.poll_next()

    def poll_next(self) -> int:
        """Read the next completion: 0 if there is one, else ENOENT."""
        found = self.take(1)
        if not found:
            return errno.ENOENT
        self._wc = found[0]
        return 0

    def end_poll(self) -> None:
        """End the poll."""

    def _newest(self) -> WC:
        if self._wc is None:
            raise PyverbsUserError("No completion has been polled")
        return self._wc

    @property
    def status(self) -> int:
        """Completion status."""
        return self._newest().status

    @status.setter
    def status(self, val: int) -> None:
        self._newest().status = val

    @property
    def wr_id(self) -> int:
        """ID of the completed work request."""
        return self._newest().wr_id

    @wr_id.setter
    def wr_id(self, val: int) -> None:
        self._newest().wr_id = val

    def read_opcode(self) -> int:
        """Completion opcode."""
        return self._newest().opcode

    def read_vendor_err(self) -> int:
        """Vendor error code."""
        return self._newest().vendor_err

    def read_byte_len(self) -> int:
        """Number of received bytes."""
        return self._newest().byte_len

    def read_imm_data(self) -> int:
        """Immediate data as stored in memory, in network order."""
        return self._newest().imm_data

    def read_qp_num(self) -> int:
        """Queue pair number."""
        return self._newest().qp_num

    def read_src_qp(self) -> int:
        """Queue pair number of the peer."""
        return self._newest().src_qp

    def read_wc_flags(self) -> int:
        """Flags that say which other fields are valid."""
        return self._newest().wc_flags

    def read_slid(self) -> int:
        """The peer's LID."""
        return self._newest().slid

    def read_sl(self) -> int:
        """Service level."""
        return self._newest().sl

    def read_dlid_path_bits(self) -> int:
        """Low bits of the destination LID."""
        return self._newest().dlid_path_bits

    def read_timestamp(self) -> int:
        """Not supported: EOPNOTSUPP."""
        raise _unsupported("a timestamp")

    def read_completion_wallclock_ns(self) -> int:
        """Not supported: EOPNOTSUPP."""
        raise _unsupported("a timestamp")

    def read_cvlan(self) -> int:
        """Not supported: EOPNOTSUPP."""
        raise _unsupported("a VLAN tag")

    def read_flow_tag(self) -> int:
        """Not supported: EOPNOTSUPP."""
        raise _unsupported("a flow tag")

    def read_tm_info(self) -> WcTmInfo:
        """Not supported: EOPNOTSUPP."""
        raise _unsupported("a matched tag")


_WITH_IMM = int(ibv_wc_flags.IBV_WC_WITH_IMM)


class WC(Structure):
    """A work completion. `imm_data` is the word as stored in memory, or the invalidated key."""

    wr_id = Unsigned(64)
    status = Unsigned(32)
    opcode = Unsigned(32)
    vendor_err = Unsigned(32)
    byte_len = Unsigned(32)
    qp_num = Unsigned(32)
    src_qp = Unsigned(32)
    imm_data = Unsigned(32)
    wc_flags = Unsigned(32)
    pkey_index = Unsigned(16)
    slid = Unsigned(16)
    sl = Unsigned(8)
    dlid_path_bits = Unsigned(8)

    def __init__(
        self,
        wr_id: int = 0,
        status: int = 0,
        opcode: int = 0,
        vendor_err: int = 0,
        byte_len: int = 0,
        qp_num: int = 0,
        src_qp: int = 0,
        imm_data: int = 0,
        wc_flags: int = 0,
        pkey_index: int = 0,
        slid: int = 0,
        sl: int = 0,
        dlid_path_bits: int = 0,
    ) -> None:
        self.wr_id = wr_id
        self.status = status
        self.opcode = opcode
        self.vendor_err = vendor_err
        self.byte_len = byte_len
        self.qp_num = qp_num
        self.src_qp = src_qp
        self.imm_data = imm_data
        self.wc_flags = wc_flags
        self.pkey_index = pkey_index
        self.slid = slid
        self.sl = sl
        self.dlid_path_bits = dlid_path_bits

    @classmethod
    def from_device(cls, wc: work.WC) -> WC:
        """A completion of a device."""
        # An invalidated key is a number in host order, whichever flag marks it.
        with_word = wc.wc_flags & _WITH_IMM
        made = cls.__new__(cls)
        # Past the checks of `Unsigned`: numbers of the device fit their fields.
        made.__dict__ = {
            "_wr_id": wc.wr_id,
            "_status": int(wc.status),
            "_opcode": int(wc.opcode),
            "_vendor_err": wc.vendor_err,
            "_byte_len": wc.byte_len,
            "_qp_num": wc.qp_num,
            "_src_qp": wc.src_qp,
            "_imm_data": swapped(wc.imm_data) if with_word else wc.imm_data,
            "_wc_flags": int(wc.wc_flags),
            "_pkey_index": wc.pkey_index,
            "_slid": wc.slid,
            "_sl": wc.sl,
        }
        return made

    def __str__(self) -> str:
        return table(
            ("WR ID", self.wr_id),
            ("status", cqe_status_to_str(self.status)),
            ("opcode", cqe_opcode_to_str(self.opcode)),
            ("vendor error", self.vendor_err),
            ("byte length", self.byte_len),
            ("QP num", self.qp_num),
            ("source QP", self.src_qp),
            ("WC flags", cqe_flags_to_str(self.wc_flags)),
            ("pkey index", self.pkey_index),
            ("slid", self.slid),
            ("sl", self.sl),
            ("imm_data", self.imm_data),
            ("dlid path bits", self.dlid_path_bits),
        )


def cqe_status_to_str(status: int) -> str:
    """Name of a completion status."""
    return name_of({s.value: _words(s.name) for s in work.WCStatus}, status)


def cqe_opcode_to_str(opcode: int) -> str:
    """Name of a completion opcode."""
    return name_of({o.value: _words(o.name) for o in work.WCOpcode}, opcode)


def flags_to_str(flags: int, dictionary: Mapping[int, str]) -> str:
    """Names of the set flags."""
    return names_of(dictionary, flags)


def cqe_flags_to_str(flags: int) -> str:
    """Names of completion flags."""
    return names_of({f.value: _words(str(f.name)[7:]) for f in ibv_wc_flags}, flags)


def create_wc_flags_to_str(flags: int) -> str:
    """Names of the fields that an extended CQ reports."""
    return names_of({f.value: str(f.name) for f in ibv_create_cq_wc_flags}, flags)


def _words(name: str) -> str:
    """An enumeration's name as words: `RETRY_EXC_ERR` as "retry exc err"."""
    return name.replace("_", " ").lower()


def _check_context(context: object) -> None:
    if not isinstance(context, Context):
        raise PyverbsUserError(f"a Context is needed, not {type(context).__name__}")


def _unsupported(what: str) -> PyverbsRDMAError:
    return PyverbsRDMAError(f"Completions do not carry {what}", errno.EOPNOTSUPP)


_SUPPORTED_WC_FLAGS = 0x7F
"""IBV_WC_STANDARD_FLAGS: byte length to DLID path bits."""
