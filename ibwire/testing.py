"""What a test needs of a transport: two connected devices, or one whose peer is the test.

    pair = Pair(mtu=256)
    pair.b.post_recv(4096)
    pair.a.post_send(WROpcode.SEND, 1000)
    pair.run()
    assert [wc.status for wc in pair.a.sent()] == [WCStatus.SUCCESS]

Everything is emulated and in virtual time. docs/pytest.md has the fixtures that give a
test these objects.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ibwire.base.errors import DecodeError, VerbsError
from ibwire.base.node import Frame
from ibwire.base.trace import RECEIVED, SENT, ObservedNode
from ibwire.base.units import GBPS, NS, US, Time
from ibwire.fabric.sim import Outcome, Simulator
from ibwire.impair import build_pipe
from ibwire.rc.attributes import MTU_CODES, AddressVector, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device, DeviceLimits, gid_of, mac_of
from ibwire.rc.path import ethernet_route, ib_route
from ibwire.rc.profile import Profile
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, WC, RecvWR, SendFlags, SendWR, WROpcode
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet, Route, with_lengths
from ibwire_layers.schema import Header
from ibwire_layers.syndrome import describe

QKEY = 0x11111111
"""Of the datagram queue pairs made here."""

_DEPTH = 1024
"""Work requests that fit in each queue."""


class Seen(NamedTuple):
    """A frame that a device has sent or received."""

    time: Time
    device: str
    event: str
    """`sent` or `received`."""
    frame: Frame
    link_type: int = LinkType.ETHERNET

    def __str__(self) -> str:
        return (
            f"{self.time // US:>10}.{self.time % US // NS:03} us  {self.device} "
            f"{self.event:<8} {in_words(self.frame, self.link_type)}"
        )


class End:
    """A device with one queue pair, a completion queue for each half of it, and memory."""

    def __init__(
        self,
        name: str,
        address: str,
        *,
        qp_type: QPType = QPType.RC,
        size: int = 1 << 16,
        key_start: int = 0,
        qpn: int | None = None,
        **device: Any,
    ) -> None:
        self.name = name
        self.device = Device(name, address, key_start=key_start, **device)
        self.pd = self.device.alloc_pd()
        self.mr = self.pd.register(size, int(ALL_ACCESS))
        self.send_cq = self.device.create_cq(4 * _DEPTH)
        self.recv_cq = self.device.create_cq(4 * _DEPTH)
        cap = QPCap(_DEPTH, _DEPTH, max_inline_data=DeviceLimits().max_inline_data)
        init = QPInit(qp_type, self.pd, self.send_cq, self.recv_cq, cap=cap)
        self.qp = self.device.create_qp(init, qpn)
        self.remote: dict[str, Any] = {}
        """Address and R_Key of the peer's memory, where it is known, as fields of `SendWR`."""
        self.datagram: dict[str, Any] = {}
        """Where a datagram goes, as fields of `SendWR`; empty on what is no UD queue pair."""

    def sge(self, offset: int, length: int) -> SGE:
        """A piece of its memory."""
        return SGE(self.mr.iova + offset, length, self.mr.lkey)

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes into its memory."""
        self.mr.write(self.mr.iova + offset, data)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of its memory."""
        return self.mr.read(self.mr.iova + offset, length)

    def post_send(
        self,
        opcode: WROpcode = WROpcode.SEND,
        length: int = 0,
        *,
        offset: int = 0,
        remote: int = 0,
        wr_id: int = 0,
        flags: int = SendFlags.SIGNALED,
        **given: Any,
    ) -> SendWR:
        """Post a send request for `length` bytes of its memory; returns it.

        remote: offset in the memory of the peer. given: other fields of `SendWR`. Raises
        `VerbsError` for what cannot be sent.
        """
        if self.remote:
            given.setdefault("remote_addr", self.remote["remote_addr"] + remote)
            given.setdefault("rkey", self.remote["rkey"])
        given = {**self.datagram, **given}
        sges = [self.sge(offset, length)] if length else []
        wr = SendWR(opcode, sges, flags, wr_id, **given)
        self.qp.post_send(wr)
        return wr

    def post_recv(self, length: int, *, offset: int = 0, wr_id: int = 0) -> None:
        """Post a receive request for `length` bytes of its memory."""
        self.qp.post_recv(RecvWR([self.sge(offset, length)] if length else [], wr_id))

    def sent(self) -> list[WC]:
        """Completions of its send requests since last asked."""
        return self.send_cq.poll(4 * _DEPTH)

    def received(self) -> list[WC]:
        """Completions of its receive requests since last asked."""
        return self.recv_cq.poll(4 * _DEPTH)

    def aim(
        self, ah: AddressVector, qpn: int, *, psn: int, peer_psn: int, mtu: int, **attr: Any
    ) -> None:
        """Bring the queue pair to RTS, with a peer at this address; raises `VerbsError`.

        psn: of its first request; peer_psn: of the first that it expects.
        """
        if mtu not in MTU_CODES:
            raise VerbsError(
                errno.EINVAL, f"mtu {mtu}, not one of {', '.join(map(str, MTU_CODES))}"
            )
        if self.qp.qp_type is QPType.UD:
            attr.setdefault("qkey", QKEY)
            self.datagram = {"ah": ah, "remote_qpn": qpn, "remote_qkey": attr["qkey"]}
        bring_up(
            self.qp,
            ah,
            dest_qp_num=qpn,
            sq_psn=psn,
            rq_psn=peer_psn,
            path_mtu=MTU_CODES[mtu],
            **attr,
        )


class Pair:
    """Two devices, `a` and `b`, a wire, and a connection between them, in virtual time.

    profile: how both behave, itself or by name, unless `peer_profile` says another for `b`.
    link: `rocev2`, `rocev1` or `ib`. mtu: of the path, bytes. psn_a, psn_b: of the first
    request of each. size: bytes of memory of each. faults: for frames that `a` or `b`
    sends, rules as in the table `[from]` of a plan (docs/tap.md); what is random in them depends on
    `seed`. qp_type: RC, UC or UD. attr: fields of `QPAttr` that both shall have, otherwise as
    `ibwire.rc.connect` has them.

    Raises `VerbsError` and `PlanError` for what cannot be.
    """

    MAXIMUM_FRAMES = 100_000
    """Frames in a run without another limit: some ends would talk for ever."""

    def __init__(
        self,
        *,
        profile: Profile | str = "spec",
        peer_profile: Profile | str | None = None,
        link: str = "rocev2",
        mtu: int = 1024,
        psn_a: int = 0,
        psn_b: int = 0,
        size: int = 1 << 16,
        faults: Mapping[str, Sequence[Any]] | None = None,
        seed: int = 0,
        qp_type: QPType = QPType.RC,
        addresses: tuple[str, str] = ("10.0.0.1", "10.0.0.2"),
        rate_bps: int = 100 * GBPS,
        delay: Time = 1 * US,
        **attr: Any,
    ) -> None:
        unknown = set(faults or ()) - {"a", "b"}
        if unknown:
            raise VerbsError(errno.EINVAL, f"faults of {', '.join(map(str, unknown))}, not a or b")
        common: dict[str, Any] = {"qp_type": qp_type, "size": size, "link": link}
        # Numbers and keys that tell the two apart wherever one is mistaken for the other.
        self.a = End("a", addresses[0], profile=profile, lid=1, qpn=0x11, key_start=10, **common)
        peer_profile = profile if peer_profile is None else peer_profile
        self.b = End(
            "b", addresses[1], profile=peer_profile, lid=2, qpn=0x22, key_start=20, **common
        )
        psns = {"a": psn_a, "b": psn_b}
        for end, peer in ((self.a, self.b), (self.b, self.a)):
            ah = AddressVector(
                dgid=peer.device.gids[0], dlid=peer.device.lid, is_global=link != "ib"
            )
            end.remote = {"remote_addr": peer.mr.iova, "rkey": peer.mr.rkey}
            end.aim(
                *(ah, peer.qp.number),
                psn=psns[end.name],
                peer_psn=psns[peer.name],
                mtu=mtu,
                **attr,
            )
        self.link_type = _link_type(link)
        self.log: list[Seen] = []
        """Every frame as it leaves a device and as it arrives, so what a fault has removed is
        only sent."""
        stages = {
            name: build_pipe(
                (faults or {}).get(name, ()),
                seed=seed,
                name=name,
                path=("from", name),
                link_type=self.link_type,
            )
            for name in ("a", "b")
        }
        self.sim = Simulator(seed)
        self.wire = self.sim.connect(
            ObservedNode("a", self.a.device, (self._see,)),
            ObservedNode("b", self.b.device, (self._see,)),
            rate_bps=rate_bps,
            delay=delay,
            a_to_b=stages["a"],
            b_to_a=stages["b"],
        )

    @property
    def now(self) -> Time:
        """The time."""
        return self.sim.now

    def run(self, time: Time | None = None) -> Outcome:
        """Let some time pass; without one, let everything happen that will."""
        until = None if time is None else self.sim.now + time
        return self.sim.run(until, max_frames=self.MAXIMUM_FRAMES)

    def packets(self, sender: str | None = None) -> list[Packet]:
        """What has left `a`, or `b`, or both, in order."""
        return [
            Packet.parse(seen.frame, self.link_type)
            for seen in self.log
            if seen.event == SENT and sender in (None, seen.device)
        ]

    def _see(self, device: str, event: str, frame: Frame, now: Time) -> None:
        self.log.append(Seen(now, device, event, frame, self.link_type))


class Peer(End):
    """A device with one queue pair in RTS, whose peer is the test.

    Its requests begin with `psn`, and it expects `peer_psn` first. Its peer has the QPN
    `peer_qpn` and the address `peer_address`; `mac` is the device's and `peer_mac` its peer's,
    by default those that `ibwire.rc.device.mac_of` makes of the addresses. The rest is as for
    `Pair`.

    Time stands still but in `wait`. Raises `VerbsError` for what cannot be.
    """

    def __init__(
        self,
        *,
        profile: Profile | str = "spec",
        link: str = "rocev2",
        mtu: int = 1024,
        psn: int = 500,
        peer_psn: int = 100,
        qpn: int = 0x11,
        peer_qpn: int = 0x77,
        address: str = "10.0.0.2",
        peer_address: str = "10.0.0.1",
        mac: bytes | None = None,
        peer_mac: bytes | None = None,
        size: int = 1 << 16,
        qp_type: QPType = QPType.RC,
        **attr: Any,
    ) -> None:
        super().__init__(
            *("device", address),
            qp_type=qp_type,
            size=size,
            key_start=40,
            qpn=qpn,
            profile=profile,
            link=link,
            mac=mac,
            lid=2,
        )
        self.link_type = _link_type(link)
        self.now: Time = 0
        self.psn, self.peer_psn, self.peer_qpn = psn, peer_psn, peer_qpn
        self.log: list[Seen] = []
        """Every frame that it has received or sent."""
        self._heard = 0
        """Entries of the log that `heard` has been asked about."""
        gid = gid_of(peer_address)
        peer_mac = mac_of(gid) if peer_mac is None else peer_mac
        ah = AddressVector(dgid=gid, dlid=1, is_global=link != "ib", dmac=peer_mac)
        self.aim(ah, peer_qpn, psn=psn, peer_psn=peer_psn, mtu=mtu, **attr)
        own = self.device.gids[0]
        self._route: Route
        if link == "ib":
            self._route = ib_route(source=gid, destination=own, slid=1, dlid=2)
        else:
            self._route = ethernet_route(
                source=gid,
                destination=own,
                source_mac=peer_mac,
                destination_mac=self.device.mac,
                source_port=0xC000,
                version=1 if link == "rocev1" else 2,
            )

    def packet(
        self, opcode: int, psn: int | None = None, payload: bytes = b"", **said: Any
    ) -> Packet:
        """A packet of its peer, right in what is not said otherwise.

        psn: the first that the device expects, of a response the first of its own, unless given.
        said: fields of the BTH and of the extension headers that the opcode has, by name; and
        `padding`, bytes. Keys and addresses are those of the device's memory, lengths those of
        the payload. Raises `VerbsError` for a field that the packet does not have.
        """
        info = INFO.get(opcode)
        kinds: tuple[type[Header], ...] = info.headers if info else ()
        if psn is None:
            psn = self.psn if info and info.is_response else self.peer_psn
        padding = bytes(said.pop("padding", bytes(-len(payload) % 4)))
        defaults = {
            "mig_req": 1,
            "dest_qp": self.qp.number,
            "pad_count": len(padding),
            "rkey": self.mr.rkey,
            "va": self.mr.iova,
            "dma_len": len(payload),
            "qkey": QKEY,
            "src_qp": self.peer_qpn,
        }
        known = set[str]()
        made: list[Header] = []
        headers: tuple[type[Header], ...] = (h.BTH, *kinds)
        for kind in headers:
            names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
            known |= names
            values = {name: value for name, value in {**defaults, **said}.items() if name in names}
            if kind is h.BTH:
                values |= {"opcode": opcode, "psn": psn}
            made.append(kind(**values))
        if set(said) - known:
            name = info.opcode.name if info else f"opcode {opcode:#04x}"
            wrong = ", ".join(sorted(set(said) - known))
            raise VerbsError(
                errno.EINVAL, f"{name} has no {wrong}, only {', '.join(sorted(known))}"
            )
        size = sum(header.SIZE for header in made) + len(payload) + len(padding)
        bth, *extensions = made
        assert isinstance(bth, h.BTH)
        route = with_lengths(self._route, size)
        return Packet(route, bth, tuple(extensions), payload, padding)

    def say(self, said: Packet | Frame) -> None:
        """Let a packet, or a frame of whatever bytes, arrive at the device."""
        frame = said.build() if isinstance(said, Packet) else bytes(said)
        self._note(RECEIVED, frame)
        self.device.receive(frame, self.now)
        self._listen()

    def heard(self) -> list[Packet]:
        """What the device has sent since last asked, in order; `build` gives the frames."""
        self._listen()
        new, self._heard = self.log[self._heard :], len(self.log)
        return [Packet.parse(seen.frame, self.link_type) for seen in new if seen.event == SENT]

    def wait(self, time: Time) -> None:
        """Let time pass, picoseconds, with every timeout of the device that falls into it."""
        end = self.now + time
        self._listen()
        while (due := self.device.poll_timeout()) is not None and due <= end:
            self.now = max(self.now, due)
            self.device.handle_timeout(self.now)
            self._listen()
        self.now = max(self.now, end)

    def _listen(self) -> None:
        while (frame := self.device.poll_transmit(self.now)) is not None:
            self._note(SENT, frame)

    def _note(self, event: str, frame: Frame) -> None:
        self.log.append(Seen(self.now, self.name, event, frame, self.link_type))


def in_words(frame: Frame, link_type: int = LinkType.ETHERNET) -> str:
    """Opcode, PSN, destination, length and answer of a packet, for a reader."""
    try:
        packet = Packet.parse(frame, link_type, strict=False)
    except DecodeError as error:
        return f"{len(frame)} bytes: {error}"
    text = f"{packet.opcode_name} psn={packet.bth.psn} to {packet.bth.dest_qp:#x}"
    if packet.payload:
        text += f" len={len(packet.payload)}"
    aeth = packet.extension(h.AETH)
    if aeth is not None:
        text += f" {describe(aeth.syndrome)} msn={aeth.msn}"
    status = packet.icrc_status()
    return text if status == "good" else f"{text} icrc {status}"


def _link_type(link: str) -> int:
    return LinkType.INFINIBAND if link == "ib" else LinkType.ETHERNET
