"""Two emulated ends, a wire between them and a connection, in virtual time."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ibwire.base.errors import VerbsError
from ibwire.base.node import Frame, Pipe, Stage
from ibwire.base.trace import SENT, ObservedNode
from ibwire.base.units import GBPS, US, Time
from ibwire.fabric.sim import Outcome, Simulator
from ibwire.impair import build_pipe
from ibwire.peer.end import End
from ibwire.peer.log import LoggedFrame, link_type_of
from ibwire.rc.attributes import QPType
from ibwire.rc.connect import address_of
from ibwire.rc.profile import Profile
from ibwire_layers.packet import Packet


class Pair:
    """Two devices, `a` and `b`, a wire, and a connection between them, in virtual time.

    profile: how both behave, itself or by name, unless `peer_profile` names another for `b`.
    link: `rocev2`, `rocev1` or `ib`. mtu: of the path, bytes. psn_a, psn_b: of the first
    request of each. size: bytes of memory of each. faults: for frames that `a` or `b` sends,
    rules as in the table `[from]` of a plan (docs/tap.md); what is random in them depends on
    `seed`. qp_type: RC, UC or UD. init: further fields of `QPInit` for both queue pairs.
    attr: fields of `QPAttr` for both, the rest as in `ibwire.rc.connect`.

    Raises `VerbsError` and `PlanError` for values that cannot be.
    """

    MAXIMUM_FRAMES = 100_000
    """Frames in a run without another limit: some exchanges never end by themselves."""

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
        init: Mapping[str, Any] | None = None,
        **attr: Any,
    ) -> None:
        faults = faults or {}
        unknown = set(faults) - {"a", "b"}
        if unknown:
            raise VerbsError(errno.EINVAL, f"faults of {', '.join(map(str, unknown))}, not a or b")
        common: dict[str, Any] = {"qp_type": qp_type, "size": size, "link": link, "init": init}
        # Different numbers and keys, so that a confusion of the two ends shows.
        self.a = End("a", addresses[0], profile=profile, lid=1, qpn=0x11, key_start=10, **common)
        peer_profile = profile if peer_profile is None else peer_profile
        self.b = End(
            "b", addresses[1], profile=peer_profile, lid=2, qpn=0x22, key_start=20, **common
        )
        psns = {"a": psn_a, "b": psn_b}
        for end, peer in ((self.a, self.b), (self.b, self.a)):
            end.remote = {"remote_addr": peer.mr.iova, "rkey": peer.mr.rkey}
            own, other = psns[end.name], psns[peer.name]
            ah = address_of(peer.device)
            end.connect_to(ah, peer.qp.number, psn=own, peer_psn=other, mtu=mtu, **attr)
        self.link_type = link_type_of(link)
        self.log: list[LoggedFrame] = []
        """Every frame as it leaves a device and as it arrives; a lost frame is only sent."""
        self._sent = {"a": 0, "b": 0}
        self.sim = Simulator(seed)
        self.wire = self.sim.connect(
            ObservedNode("a", self.a.device, (self._record,)),
            ObservedNode("b", self.b.device, (self._record,)),
            rate_bps=rate_bps,
            delay=delay,
        )
        for name, rules in faults.items():
            path = ("from", name)
            pipe = build_pipe(rules, seed=seed, name=name, path=path, link_type=self.link_type)
            self.add_stage(name, pipe)

    @property
    def now(self) -> Time:
        """The time."""
        return self.sim.now

    def run(self, time: Time | None = None) -> Outcome:
        """Let a time pass; without one, run until nothing is left to happen."""
        until = None if time is None else self.sim.now + time
        return self.sim.run(until, max_frames=self.MAXIMUM_FRAMES)

    def packets(self, sender: str | None = None) -> list[Packet]:
        """The packets that have left `a`, or `b`, or both, in order."""
        return [
            entry.packet
            for entry in self.log
            if entry.event == SENT and sender in (None, entry.device)
        ]

    # Faults on the wire.

    def add_stage(self, sender: str, stage: Stage) -> None:
        """Send the frames of `a` or `b` from now on also through a stage, after those before."""
        line = self.wire.a_to_b if sender == "a" else self.wire.b_to_a
        line.stage = stage if line.stage is None else Pipe(line.stage, stage)

    def drop(self, sender: str, *numbers: int) -> None:
        """Drop these frames of `a` or `b`, counted from 1 from the first that it has sent."""

        def is_dropped(_: Packet) -> bool:
            return self._sent[sender] in numbers

        self.drop_if(sender, is_dropped)

    def drop_if(self, sender: str, condition: Callable[[Packet], bool]) -> None:
        """Drop the frames of `a` or `b` whose packet meets a condition."""

        def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
            return [] if condition(Packet.parse(frame, self.link_type)) else [(0, frame)]

        self.add_stage(sender, stage)

    def _record(self, device: str, event: str, frame: Frame, now: Time) -> None:
        if event == SENT:
            self._sent[device] += 1
        self.log.append(LoggedFrame(now, device, event, frame, self.link_type))
