"""A port over libpcap, with pcapy-ng: any filter expression, and no right but libpcap's.

For what `AFPacketPort` does not do; that one is the better where it can be used. libpcap
hands frames over a block at a time, and pcapy-ng has no immediate mode, so an arrival may
wait for a millisecond, which a closed loop feels; and frames leave one by one.

Source: pcap(3PCAP), pcap-filter(7), pcapy-ng 2.1.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ibwire.base.errors import LinkError, MissingExtra
from ibwire.base.node import Frame
from ibwire.link.afpacket import held_ports
from ibwire.link.interface import OnInterface, interface, notes, too_long
from ibwire_layers.outer import ROCEV2_PORT, EtherType

ROCE = f"udp dst port {ROCEV2_PORT} or ether proto {EtherType.ROCE:#x}"
"""The filter expression of what a RoCE node needs, without VLAN tags."""

NEIGHBOURS = (
    f"{ROCE} or arp or icmp[icmptype] == icmp-echo "
    "or (icmp6 and (ip6[40] == 128 or ip6[40] == 135 or ip6[40] == 136))"
)
"""Additional frames for a node with its own addresses: ARP, ND, and echo requests."""


def with_tag(expression: str) -> str:
    """An expression for the same frames, with and without a VLAN tag."""
    # `vlan` moves the offsets of everything to its right, so it has to come last.
    return f"({expression}) or (vlan and ({expression}))"


class PcapPort(OnInterface):
    """An interface through libpcap; a context manager.

    filter: which frames arrive, as tcpdump has it; by default what a RoCE node needs, with
    and without a VLAN tag. neighbours, promiscuous, hold_port, addresses: as for `AFPacketPort`.

    Raises `LinkError` when there is no such interface, it is down, libpcap may not open it,
    does not know the filter, or another program has the UDP port, and `MissingExtra` without
    pcapy-ng.
    """

    BATCH = 64
    """Frames that are received in a row."""

    WAIT_MS = 1
    """Milliseconds that libpcap lets a frame wait for more to come."""

    def __init__(
        self,
        name: str,
        *,
        filter: str | None = None,
        neighbours: bool = False,
        promiscuous: bool = False,
        hold_port: bool = True,
        addresses: Sequence[str] = (),
        receive_buffer: int = 8 << 20,
    ) -> None:
        library = _pcapy()
        self.interface = interface(name)
        if not self.interface.is_up:
            raise LinkError(name, f"is down: ip link set {name} up")
        if not self.interface.has_carrier:
            raise LinkError(
                name, "is up, but has no carrier: nothing is connected at the other end"
            )
        self.counters: Counter[str] = Counter()
        """`received`, `sent`; `too_long`: received frames longer than the MTU; `not_sent`:
        frames that the interface's queue has refused; `no_room`: frames that the kernel had
        no room to keep, as `notes` has last found."""
        self.arrival_ns: list[int] = []
        """Nanoseconds since the epoch for each frame of the last `receive`."""
        self.arrival_clock = "libpcap's, in microseconds"
        expression = with_tag(NEIGHBOURS if neighbours else ROCE) if filter is None else filter
        self._error: type[Exception] = library.PcapError
        with ExitStack() as opened:
            try:
                self._reader = library.create(name)
                opened.callback(self._reader.close)
                self._reader.set_snaplen(self.mtu + _ETHERNET_SIZE + _TAG_SIZE)
                self._reader.set_promisc(promiscuous)
                self._reader.set_timeout(self.WAIT_MS)
                self._reader.set_buffer_size(receive_buffer)
                self._activate(library)
                self._reader.setfilter(expression)
            except self._error as error:
                raise LinkError(name, f"libpcap: {error}") from None
            if hold_port:
                opened.enter_context(held_ports(self.interface, addresses))
            self._closing = opened.pop_all()

    def receive(self) -> Sequence[Frame]:
        """Frames that have arrived, at most `BATCH`; never waits."""
        frames: list[Frame] = []
        self.arrival_ns = []

        def take(header: Any, data: bytes) -> None:
            if header.getcaplen() < header.getlen():
                self.counters["too_long"] += 1
            else:
                frames.append(data)
                seconds, microseconds = header.getts()
                self.arrival_ns.append(seconds * 1_000_000_000 + microseconds * 1000)

        try:
            self._reader.dispatch(self.BATCH, take)
        except self._error as error:
            raise LinkError(self.name, _reason(error)) from None
        self.counters["received"] += len(frames)
        return frames

    def send(self, frames: Sequence[Frame]) -> int:
        """Send frames, never waiting; how many were taken."""
        for taken, frame in enumerate(frames):
            try:
                self._reader.sendpacket(frame)
            except self._error as error:
                if os.strerror(errno.EAGAIN) in str(error):
                    return taken
                self._check(error, frame)
            else:
                self.counters["sent"] += 1
        return len(frames)

    def notes(self) -> list[str]:
        """What a user should know about the interface and about what has happened on it so far,
        a sentence each."""
        self.counters["no_room"] = self._reader.stats()[1]
        sentences = notes(self.interface)
        for counter, reason in _LOSSES.items():
            if self.counters[counter]:
                sentences.append(f"{self.name}: {self.counters[counter]} {reason}")
        return sentences

    def fileno(self) -> int:
        """The descriptor that libpcap has for waiting."""
        return int(self._reader.getfd())

    def close(self) -> None:
        """Close libpcap's socket and let the UDP port go."""
        self._closing.close()

    def _activate(self, library: Any) -> None:
        result = self._reader.activate()
        if result < 0:
            reason = f"libpcap cannot open it (error {result})"
            raise LinkError(self.name, _NOT_ALLOWED if result == _PERMISSION_DENIED else reason)
        if self._reader.datalink() != library.DLT_EN10MB:
            raise LinkError(self.name, "is not an Ethernet interface for libpcap")
        self._reader.setdirection(library.PCAP_D_IN)
        self._reader.setnonblock(1)

    def _check(self, error: Exception, frame: Frame) -> None:
        """Raise what an error of sending means, unless the frame is lost as on any wire."""
        if os.strerror(errno.ENOBUFS) in str(error):
            self.counters["not_sent"] += 1
            return
        if os.strerror(errno.EMSGSIZE) in str(error):
            raise LinkError(self.name, too_long(self.interface, len(frame) - _ETHERNET_SIZE))
        raise LinkError(self.name, _reason(error))


def _pcapy() -> Any:
    try:
        import pcapy
    except ImportError:
        raise MissingExtra("the pcap port", "live") from None
    return pcapy


def _reason(error: Exception) -> str:
    """What an error of libpcap means, which gives it as text only."""
    text = str(error)
    if "went down" in text or os.strerror(errno.ENETDOWN) in text:
        return "has gone down"
    if any(os.strerror(code) in text for code in (errno.ENXIO, errno.ENODEV)):
        return "has gone: there is no such interface any more"
    return f"libpcap: {text}"


_LOSSES = {
    "too_long": "received frames were longer than the MTU and are lost",
    "no_room": "received frames are lost: they came faster than they were taken",
    "not_sent": "frames were refused by the interface's queue and are lost",
}
"""What the counters of lost frames mean."""

_ETHERNET_SIZE = 14
_TAG_SIZE = 4
"""Of a VLAN tag, which libpcap puts back."""
_NOT_ALLOWED = (
    "needs the capability CAP_NET_RAW: run as root, or without any rights on the interfaces of "
    "`ibwire lab`"
)
_PERMISSION_DENIED = -8
"""pcap/pcap.h PCAP_ERROR_PERM_DENIED."""
