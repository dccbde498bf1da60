"""Addresses: GIDs, routes and address handles, with pyverbs' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ibwire.rc.attributes import AddressVector
from ibwire.verbs.base import PyverbsObject, PyverbsResource, pyverbs_errors, table
from ibwire.verbs.fields import Structure, Unsigned
from ibwire.verbs.libibverbs_enums import ibv_wc_flags
from ibwire.verbs.pyverbs_error import PyverbsUserError
from ibwire.verbs.utils import gid_number, gid_text

if TYPE_CHECKING:
    from ibwire.verbs.pd import PD


class GID(PyverbsObject):
    """A 128-bit GID; as text eight groups of four hexadecimal digits."""

    def __init__(self, val: str | None = None) -> None:
        self.number = 0 if val is None else gid_number(val)
        """The GID as an integer."""

    @property
    def gid(self) -> str:
        """The GID as text."""
        return gid_text(self.number)

    @gid.setter
    def gid(self, val: str) -> None:
        self.number = gid_number(val)

    def __str__(self) -> str:
        return self.gid


class _GIDText:
    """An attribute that stores a GID and is read and set as text."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.slot = f"{name}_number"

    def __get__(self, instance: object, owner: type) -> str:
        return gid_text(instance.__dict__[self.slot])

    def __set__(self, instance: object, value: str) -> None:
        instance.__dict__[self.slot] = gid_number(value)


class GRH(Structure):
    """A global route header as received before a datagram."""

    dgid = _GIDText()
    sgid = _GIDText()
    version_tclass_flow = Unsigned(32)
    paylen = Unsigned(16)
    next_hdr = Unsigned(8)
    hop_limit = Unsigned(8)

    def __init__(
        self,
        sgid: GID | None = None,
        dgid: GID | None = None,
        version_tclass_flow: int = 0,
        paylen: int = 0,
        next_hdr: int = 0,
        hop_limit: int = 1,
    ) -> None:
        self.sgid_number = 0 if sgid is None else sgid.number
        self.dgid_number = 0 if dgid is None else dgid.number
        self.version_tclass_flow = version_tclass_flow
        self.paylen = paylen
        self.next_hdr = next_hdr
        self.hop_limit = hop_limit

    def __str__(self) -> str:
        return table(
            ("DGID", self.dgid),
            ("SGID", self.sgid),
            ("version tclass flow", self.version_tclass_flow),
            ("paylen", self.paylen),
            ("next header", self.next_hdr),
            ("hop limit", self.hop_limit),
        )


class GlobalRoute(Structure):
    """Fields of the network header: `ibv_global_route`."""

    dgid = _GIDText()
    flow_label = Unsigned(32)
    sgid_index = Unsigned(8)
    hop_limit = Unsigned(8)
    traffic_class = Unsigned(8)

    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: int = 0,
        sgid_index: int = 0,
        hop_limit: int = 1,
        traffic_class: int = 0,
    ) -> None:
        self.dgid_number = 0 if dgid is None else dgid.number
        self.flow_label = flow_label
        self.sgid_index = sgid_index
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class

    def __str__(self) -> str:
        return table(
            ("DGID", self.dgid),
            ("flow label", self.flow_label),
            ("sgid index", self.sgid_index),
            ("hop limit", self.hop_limit),
            ("traffic class", self.traffic_class),
        )


class AHAttr(Structure):
    """A path to a peer: `ibv_ah_attr`. Without `is_global` its route reads as `None`."""

    dlid = Unsigned(16)
    sl = Unsigned(8)
    src_path_bits = Unsigned(8)
    static_rate = Unsigned(8)
    is_global = Unsigned(8)
    port_num = Unsigned(8)

    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        self.dlid = dlid
        self.sl = sl
        self.src_path_bits = src_path_bits
        self.static_rate = static_rate
        self.is_global = is_global
        self.port_num = port_num
        if is_global and gr is None:
            raise PyverbsUserError("A global AHAttr needs gr, a GlobalRoute")
        self._route = GlobalRoute() if gr is None or not is_global else gr.copy()

    def copy(self) -> AHAttr:
        """A copy with its own route."""
        twin = super().copy()
        twin._route = self._route.copy()
        return twin

    @property
    def dgid(self) -> str | None:
        """Destination GID as text."""
        return self._route.dgid if self.is_global else None

    @dgid.setter
    def dgid(self, val: str) -> None:
        if self.is_global:
            self._route.dgid = val

    @property
    def flow_label(self) -> int | None:
        """Flow label of the route."""
        return self._route.flow_label if self.is_global else None

    @flow_label.setter
    def flow_label(self, val: int) -> None:
        self._route.flow_label = val

    @property
    def sgid_index(self) -> int | None:
        """Index of the source GID in the port's table."""
        return self._route.sgid_index if self.is_global else None

    @sgid_index.setter
    def sgid_index(self, val: int) -> None:
        self._route.sgid_index = val

    @property
    def hop_limit(self) -> int | None:
        """Maximum number of routers on the way."""
        return self._route.hop_limit if self.is_global else None

    @hop_limit.setter
    def hop_limit(self, val: int) -> None:
        self._route.hop_limit = val

    @property
    def traffic_class(self) -> int | None:
        """DSCP and ECN on Ethernet."""
        return self._route.traffic_class if self.is_global else None

    @traffic_class.setter
    def traffic_class(self, val: int) -> None:
        self._route.traffic_class = val

    def vector(self) -> AddressVector:
        """The path as a device attribute."""
        return AddressVector(
            dgid=self._route.dgid_number,
            sgid_index=self._route.sgid_index,
            traffic_class=self._route.traffic_class,
            flow_label=self._route.flow_label,
            hop_limit=self._route.hop_limit,
            sl=self.sl,
            dlid=self.dlid,
            src_path_bits=self.src_path_bits,
            is_global=bool(self.is_global),
            port_num=self.port_num,
        )

    @classmethod
    def from_vector(cls, vector: AddressVector) -> AHAttr:
        """A path reported by a device."""
        attr = cls(
            dlid=vector.dlid,
            sl=vector.sl,
            src_path_bits=vector.src_path_bits,
            port_num=vector.port_num,
        )
        attr.is_global = int(vector.is_global)
        attr._route.dgid_number = vector.dgid
        attr._route.flow_label = vector.flow_label
        attr._route.sgid_index = vector.sgid_index
        attr._route.hop_limit = vector.hop_limit
        attr._route.traffic_class = vector.traffic_class
        return attr

    def __str__(self) -> str:
        local = (
            ("port num", self.port_num),
            ("sl", self.sl),
            ("source path bits", self.src_path_bits),
            ("dlid", self.dlid),
            ("static rate", self.static_rate),
            ("is global", self.is_global),
        )
        route = (
            ("dgid", self.dgid),
            ("flow label", self.flow_label),
            ("sgid index", self.sgid_index),
            ("hop limit", self.hop_limit),
            ("traffic class", self.traffic_class),
        )
        return table(*local, *(route if self.is_global else ()), indent="  ")


class AH(PyverbsResource):
    """An address handle, for datagrams.

    Made from `attr`, an `AHAttr`, or from `wc`, `grh` and `port_num`: the return path of a
    received datagram, whose first 40 bytes are at the address `grh`.
    """

    closing_rank = 1
    vector: AddressVector | None = None

    def __init__(self, pd: PD, **kwargs: object) -> None:
        if len(kwargs) == 1:
            attr = kwargs.get("attr")
            if not isinstance(attr, AHAttr):
                raise PyverbsUserError("AH needs attr=AHAttr(...), or wc=, grh= and port_num=")
        else:
            attr = _return_path(pd, kwargs)
        with pd.context.verb("Failed to create AH"):
            pd.context.check_path(attr.vector())
            pd.pd.attach()
        self.pd: PD | None = pd
        self._domain = pd.pd
        self.vector = attr.vector()
        pd.add_ref(self)

    def close(self) -> None:
        """Destroy the handle; posted work requests that use it continue."""
        if self.vector is not None:
            self.vector = None
            self._domain.detach()
            self.pd = None


def _return_path(pd: PD, given: dict[str, object]) -> AHAttr:
    """The path to the sender of a datagram (`ibv_init_ah_from_wc`)."""
    from ibwire.verbs.cq import WC

    wc, grh, port_num = given.get("wc"), given.get("grh"), given.get("port_num")
    if not (isinstance(wc, WC) and isinstance(grh, int) and isinstance(port_num, int)):
        raise PyverbsUserError("AH needs wc=WC, grh=address and port_num=number")
    attr = AHAttr(dlid=wc.slid, sl=wc.sl, src_path_bits=wc.dlid_path_bits, port_num=port_num)
    if wc.wc_flags & ibv_wc_flags.IBV_WC_GRH:
        with pyverbs_errors("Failed to create AH"):
            header = bytes(pd.context.network.memory.at(grh, 40))
            attr = AHAttr.from_vector(pd.context.return_path(header, attr.vector()))
    return attr
