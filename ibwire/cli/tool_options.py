"""Options of perftest and of ibv_*_pingpong on the commands that replace these tools.

A command line of a tool works here as it is, or is refused with the reason: options that have no
effect are accepted with a note, others name what to use instead.

Source: perftest perftest_parameters.c parser; rdma-core libibverbs/examples/rc_pingpong.c,
srq_pingpong.c.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ibwire.cli.messages import print_note

Decorated = TypeVar("Decorated", bound=Callable[..., object])

RDMA_DEVICES = Path("/sys/class/infiniband")


class InterfaceName(click.ParamType[str]):
    """A network interface, or an RDMA device, which stands for its interface."""

    name = "iface"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The name of the interface; an unknown name stays as it is."""
        name = str(value)
        if "/" in name or name in (each for _, each in socket.if_nameindex()):
            return name
        try:
            return (RDMA_DEVICES / name / "ports/1/gid_attrs/ndevs/0").read_text().strip() or name
        except (OSError, ValueError):
            return name


class MessageSize(click.IntRange):
    """Bytes of a message: a number, decimal or with 0x, perhaps with the suffix K or M."""

    name = "bytes"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number of bytes."""
        found = _SIZE.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is not a number of bytes, such as 65536 or 64K", param, ctx)
        number = int(found["number"], 0) * _FACTORS[found["suffix"]]
        return int(super().convert(number, param, ctx))


def tool_options(
    without_effect: Mapping[str, bool],
    refused: Mapping[str, tuple[bool, str]],
    *,
    has_host: bool = True,
) -> Callable[[Decorated], Decorated]:
    """Add hidden options of a tool, and HOST, for `connected_host`.

    without_effect: names of options, and whether they have a value. refused: the same, and the
    reason.
    """

    def decorate(function: Decorated) -> Decorated:
        for names, has_value in without_effect.items():
            function = _hidden(names, has_value, _note)(function)
        for names, (has_value, reason) in refused.items():
            function = _hidden(names, has_value, _refusing(reason))(function)
        if not has_host:
            return function
        host = click.argument("host", required=False, expose_value=False, callback=_host)
        return host(function)

    return decorate


def _hidden(
    names: str, has_value: bool, callback: Callable[..., None]
) -> Callable[[Decorated], Decorated]:
    first = names.split()[-1].lstrip("-").replace("-", "_")
    flag: dict[str, Any] = {} if has_value else {"is_flag": True}
    return click.option(
        *names.split(),
        f"tool_{first}",
        hidden=True,
        expose_value=False,
        callback=callback,
        **flag,
    )


def _note(_: click.Context, option: click.Parameter, value: object) -> None:
    if value:
        print_note(f"{option.opts[0]} has no effect here")


def _refusing(reason: str) -> Callable[[click.Context, click.Parameter, object], None]:
    def refuse(_: click.Context, option: click.Parameter, value: object) -> None:
        if value:
            raise click.UsageError(f"{option.opts[0]} is not supported: {reason}")

    return refuse


def _host(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Use HOST as --connect, wherever it stands on the command line."""
    if value is not None:
        context.meta[_HOST] = value


def connected_host(connect: str | None) -> str | None:
    """The host of --connect or HOST; raises `UsageError` for both."""
    host = click.get_current_context().meta.get(_HOST)
    if host is not None and connect is not None:
        raise click.UsageError("--connect and HOST are the same: use one of them")
    return connect if host is None else str(host)


_HOST = "ibwire.host"

_SIZE = re.compile(r"(?P<number>0[xX][0-9a-fA-F]{1,8}|0|[1-9][0-9]{0,9})(?P<suffix>[KM]?)")
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20}

_LIMITED = "packets are sent as fast as the peer keeps up with; ibwire inject has --rate"
_RAW = "raw Ethernet packets are no RDMA traffic; see ibwire inject"
_MEMORY = "messages are in the memory of this process"
_SUMMARY = "only the summary is printed; --json has all of it"
_LIMITS = "compare the result of --json with the limit"

PERFTEST_WITHOUT_EFFECT = {
    "-F --CPU-freq": False,
    "-I --inline_size": True,
    "-Q --cq-mod": True,
    "-l --post_list": True,
    "--recv_post_list": True,
    "-e --events": False,
    "-X --vector": True,
    "-N --noPeak": False,
    "-i --ib-port": True,
    "-x --gid-index": True,
    "-f --margin": True,
    "-o --outs": True,
    "--ipv6": False,
    "--ipv6-addr": False,
    "--use-srq": False,
    "--no_lock": False,
    "--odp": False,
    "--use_hugepages": False,
    "--use_old_post_send": False,
    "--perform_warm_up": False,
    "--disable_pcie_relaxed": False,
    "--mr_per_qp": False,
    "--cqe_poll": True,
    "--pin_cores": True,
    "--numa_node": True,
    "--disable_numa": False,
    "--wait_destroy": True,
    "--force-link": True,
}
"""Options of perftest that change nothing on the wire, and whether they have a value."""

PERFTEST_REFUSED = {
    "-a --all": (False, "a run has one size; start both ends once for each -s"),
    "-z --comm_rdma_cm": (
        False,
        "parameters are exchanged over TCP, or with -R by connections of the RDMA connection "
        "manager; start both ends with -R, or with neither",
    ),
    "--reversed": (False, "the client sends; start the server and the client the other way round"),
    "-g --mcg": (False, "there is no multicast"),
    "-M --MGID": (True, "there is no multicast"),
    "-O --dualport": (False, "a device has one port"),
    "-S --sl": (True, "RoCE has no service level on the wire; --dscp sets the traffic class"),
    "-V --version": (False, "ibwire --version prints the version"),
    "-H --report-histogram": (False, _SUMMARY),
    "-U --report-unsorted": (False, _SUMMARY),
    "-C --report-cycles": (False, _SUMMARY),
    "-W --report-counters": (True, "there is no RDMA device; --json has the counters of ibwire"),
    "-w --limit_bw": (True, _LIMITS),
    "-y --limit_msgrate": (True, _LIMITS),
    "--cpu_util": (False, _SUMMARY),
    "--output": (True, _SUMMARY),
    "--out_json": (False, "--json prints the result"),
    "--out_json_file": (True, "--json prints the result"),
    "--report_gbits": (False, "results are in MiB per second, which both ends exchange"),
    "--report-both": (False, "results of both directions are added"),
    "--run_infinitely": (False, "-D sets a duration"),
    "--latency_gap": (True, "messages follow each other without a pause"),
    "--write_with_imm": (False, "messages have no immediate data"),
    "--send_with_imm": (False, "messages have no immediate data"),
    "--retry_count": (True, "a queue pair always retries 7 times"),
    "--pkey_index": (True, "--pkey sets the P_Key itself"),
    "--flow_label": (True, "--source-port selects the path"),
    "--bind_source_ip": (True, "--address selects the own address"),
    "--dlid": (True, "RoCE has no LIDs"),
    "--vlan_en": (False, "--vlan sets the VLAN of an own address"),
    "--vlan_pcp": (True, "--vlan sets the VLAN of an own address"),
    "--dont_xchg_versions": (False, "versions and path MTU are always exchanged"),
    "--tcp": (False, "the traffic is RDMA"),
    "--rate_limit": (True, _LIMITED),
    "--rate_units": (True, _LIMITED),
    "--rate_limit_type": (True, _LIMITED),
    "--burst_size": (True, _LIMITED),
    "--typical_pkt_size": (True, _LIMITED),
    "--use_cuda": (True, _MEMORY),
    "--use_rocm": (True, _MEMORY),
    "--mmap": (True, _MEMORY),
    "--use-null-mr": (False, _MEMORY),
    "-B --source_mac": (True, _RAW),
    "-E --dest_mac": (True, _RAW),
    "-J --dest_ip": (True, _RAW),
    "-j --source_ip": (True, _RAW),
    "-K --dest_port": (True, _RAW),
    "-k --source_port": (True, _RAW),
    "-Y --ethertype": (True, _RAW),
    "-G --use_rss": (False, _RAW),
    "-v --mac_fwd": (False, _RAW),
}
"""Options of perftest that are refused: whether they have a value, and the reason."""

PINGPONG_WITHOUT_EFFECT = {
    "-i --ib-port": True,
    "-r --rx-depth": True,
    "-e --events": False,
    "-g --gid-idx": True,
    "-c --chk": False,
    "-N --new_send": False,
    "-o --odp": False,
    "-O --iodp": False,
    "-P --prefetch": False,
    "-j --dm": False,
}
"""As above, of ibv_*_pingpong."""

PINGPONG_REFUSED = {
    "-q --num-qp": (
        True,
        "it is an option of ibv_srq_pingpong, whose queue pairs share a receive queue, "
        "and a ping-pong here has one; perf send -q has several",
    ),
    "--ts": (False, "completions have no time stamps; --tap has the time of each packet"),
}
