"""Options for the header fields of sent packets: `perf`, `pingpong` and `rping`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import click

from ibwire.cli.live import LiveOptions
from ibwire.cli.values import Decorated, as_one
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.packet_fields import PacketFields
from ibwire.rc.profile import PROFILES


@dataclass(frozen=True, slots=True)
class PacketFieldOptions:
    """The options, as given."""

    tclass: int | None
    dscp: int | None
    ecn: int | None
    hop_limit: int | None
    pkey: int
    source_port: int | None

    def fields_for(self, profile: str) -> PacketFields:
        """The fields; raises `UsageError` for those that exclude each other or the profile."""
        if self.tclass is not None and (self.dscp is not None or self.ecn is not None):
            raise click.UsageError("--tclass excludes --dscp and --ecn, which are parts of it")
        chosen = PROFILES[profile]
        if self.hop_limit is not None and chosen.route_hop_limit not in (None, self.hop_limit):
            raise click.UsageError(
                f"--hop-limit: profile {profile} always sends {chosen.route_hop_limit}"
            )
        if chosen.fixed_pkeys and self.pkey != chosen.fixed_pkeys[0]:
            raise click.UsageError(
                f"--pkey: profile {profile} always sends {chosen.fixed_pkeys[0]:#06x}"
            )
        traffic_class = (self.dscp or 0) << 2 | (self.ecn or 0)
        return PacketFields(
            traffic_class=traffic_class if self.tclass is None else self.tclass,
            hop_limit=64 if self.hop_limit is None else self.hop_limit,
            pkey=self.pkey,
            source_port=self.source_port,
        )


class PartitionKey(click.ParamType[int]):
    """A P_Key, decimal or with 0x."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Read a P_Key that some packet may have (IBA 10.9.1.2: 0 is no partition)."""
        try:
            number = int(str(value), 0)
        except ValueError:
            number = 0
        if not 0 < number & 0x7FFF <= number <= 0xFFFF:
            self.fail(f"{value!r} is not a P_Key, such as 0xffff", param, ctx)
        return number


def packet_field_options(function: Decorated) -> Decorated:
    """Add the options as one argument, `packet_fields`."""
    return as_one("packet_fields", PacketFieldOptions, _OPTIONS)(function)


def open_program(
    link: LiveOptions, packet_fields: PacketFieldOptions
) -> AbstractContextManager[Endpoint]:
    """Open an endpoint for a program that talks to a peer, as `LiveOptions.open`."""
    fields = packet_fields.fields_for(link.profile)
    return link.open(controls_congestion=True, packet_fields=fields)


_OPTIONS = (
    click.option(
        "--tclass",
        "-T",
        "--tos",
        "tclass",
        type=click.IntRange(0, 255),
        help="Traffic class, or type of service of IPv4: DSCP and ECN.",
        show_default="0",
    ),
    click.option("--dscp", type=click.IntRange(0, 63), help="DSCP, instead of --tclass."),
    click.option(
        "--ecn",
        type=click.IntRange(0, 3),
        help="ECN, instead of --tclass: 2 is ECT(0), 1 ECT(1), 3 congestion experienced.",
    ),
    click.option(
        "--hop-limit",
        "-L",
        "--hop_limit",
        "hop_limit",
        type=click.IntRange(1, 255),
        help="TTL or hop limit.",
        show_default="64",
    ),
    click.option(
        "--pkey",
        type=PartitionKey(),
        default="0xffff",
        show_default=True,
        help="P_Key; the peer drops packets of another partition.",
    ),
    click.option(
        "--source-port",
        type=click.IntRange(1, 65535),
        help="UDP source port of all queue pairs, which selects the path in a network with "
        "several.",
        show_default="the choice of --profile",
    ),
)
