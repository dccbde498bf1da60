"""Times of arrival, of the kernel and of an adapter, from hand-built control messages."""

import errno
import struct
from itertools import pairwise

import pytest

from each_case import each_case
from ibwire.base.errors import LinkError
from ibwire.link import hardware_clock
from ibwire.link.arrival import Stamps, control_messages, stamps
from ibwire.link.hardware_clock import HardwareClock, objection, stamp_all_frames

SOL_SOCKET, SOL_PACKET = 1, 263
SCM_TIMESTAMPNS, SCM_TIMESTAMPING, PACKET_AUXDATA = 35, 37, 8
"""asm-generic/socket.h, linux/socket.h, linux/if_packet.h."""

SECOND = 1_000_000_000

BASE = 1_700_000_000 * SECOND


def message(level: int, kind: int, data: bytes) -> bytes:
    """A struct cmsghdr with its data, as CMSG_SPACE of cmsg(3) has it on a machine of 64 bits."""
    header = struct.pack("@Qii", 16 + len(data), level, kind)
    return header + data + bytes(-len(data) % 8)


def timespecs(*times_ns: int) -> bytes:
    return b"".join(struct.pack("@qq", *divmod(each, SECOND)) for each in times_ns)


def found(*messages: bytes) -> Stamps:
    return stamps(dict(control_messages(memoryview(b"".join(messages)))))


AUXDATA = message(SOL_PACKET, PACKET_AUXDATA, bytes(range(20)))


def test_adapters_time_is_the_third_of_scm_timestamping() -> None:
    """linux/errqueue.h: the second is no longer used."""
    times = message(SOL_SOCKET, SCM_TIMESTAMPING, timespecs(BASE + 5, 0, 77 * SECOND + 3))

    assert found(times, AUXDATA) == (BASE + 5, 77 * SECOND + 3)


def test_without_a_hardware_stamp_the_kernels_time_is_known() -> None:
    plain = message(SOL_SOCKET, SCM_TIMESTAMPNS, timespecs(BASE + 1))
    times = message(SOL_SOCKET, SCM_TIMESTAMPING, timespecs(BASE + 2, 0, 0))
    hardware_alone = message(SOL_SOCKET, SCM_TIMESTAMPING, timespecs(0, 0, 9))

    assert found(plain, times, AUXDATA) == (BASE + 2, None)
    assert found(plain, AUXDATA) == (BASE + 1, None)
    assert found(plain, hardware_alone) == (BASE + 1, 9)
    assert found(AUXDATA) == (None, None)


def test_messages_behind_others_are_found() -> None:
    other = message(SOL_SOCKET, 99, b"12345")

    several = dict(control_messages(memoryview(other + AUXDATA)))

    assert bytes(several[SOL_SOCKET, 99]) == b"12345"
    assert bytes(several[SOL_PACKET, PACKET_AUXDATA]) == bytes(range(20))


@each_case(
    "damaged",
    [
        b"",
        AUXDATA[:15],
        AUXDATA[:30],
        struct.pack("@Qii", 0, SOL_SOCKET, SCM_TIMESTAMPING) + bytes(48),
        struct.pack("@Qii", 1 << 63, SOL_SOCKET, SCM_TIMESTAMPING) + bytes(48),
        message(SOL_SOCKET, SCM_TIMESTAMPING, bytes(8)),
        message(SOL_SOCKET, SCM_TIMESTAMPNS, bytes(8)),
    ],
)
def test_incomplete_messages_have_no_time(damaged: bytes) -> None:
    assert found(damaged) == (None, None)


def moved(frames: list[tuple[int, int]]) -> list[int]:
    """Times less BASE of frames with a time of arrival and a delay until the kernel sees them.

    The adapter's clock shows the time since power-on, half a second at BASE.
    """
    clock = HardwareClock()
    times = [
        clock.system_ns(Stamps(BASE + at + delay, SECOND // 2 + at)) or 0 for at, delay in frames
    ]
    return [each - BASE for each in times]


def test_hardware_times_keep_their_distances() -> None:
    """By 500 ppm two frames at a distance of 10 us are off by 5 ns, and 1 ns by rounding."""
    delays = [50_000, 20_000, 90_000, 5_000, 0, 70_000, 400_000, 3_000]

    times = moved([(number * 10_000, delay) for number, delay in enumerate(delays)])

    assert times[0] == 50_000
    assert all(abs(b - a - 10_000) <= 6 for a, b in pairwise(times))


def test_hardware_times_keep_their_order_at_any_distance() -> None:
    """Each frame is seen sooner than the one before it; at 1 ns a change shows at once."""
    times = moved([(at, 9_000_000 - 300 * at) for at in range(30_000)])

    assert all(0 <= b - a <= 1 for a, b in pairwise(times))


def test_frame_that_is_out_of_order_changes_nothing() -> None:
    """Two receive queues: the third frame arrived 100 ns before the second."""
    times = moved([(0, 50_000), (11_000, 49_000), (10_900, 59_100), (11_500, 59_500)])

    # 500 ppm of 11 us are 5 ns.
    assert times == [50_000, 11_000 + 49_995, 10_900 + 49_995, 11_500 + 49_995]


def test_hardware_times_approach_the_smallest_delay() -> None:
    """By 500 ppm 100 us are made up in 0.2 s."""
    frames = [(0, 107_000), *((at, 7_000) for at in range(1_000_000, SECOND, 1_000_000))]

    times = dict(zip((at for at, _ in frames), moved(frames), strict=True))

    assert times[199_000_000] == 199_000_000 + 7_000 + 500
    assert times[200_000_000] == 200_000_000 + 7_000
    assert times[999_000_000] == 999_000_000 + 7_000


@pytest.mark.parametrize("step", [-300_000_000, 300_000_000])
def test_clock_that_is_set_by_a_part_of_a_second_is_noticed(step: int) -> None:
    """The system's clock; at the latest when the last second has only frames since then."""
    frames = [(at, 0 if at < SECOND else step) for at in range(0, 3 * SECOND, 10_000_000)]

    times = moved(frames)

    assert times[99] == frames[99][0]
    assert times[202] == frames[202][0] + step


def test_difference_of_the_clocks_is_that_of_the_last_second() -> None:
    """The adapter's clock is slower by 100 ppm: after 10 s by 1 ms."""
    clock = HardwareClock()
    times = {}
    for at in range(0, 10 * SECOND, SECOND // 4):
        times[at] = clock.system_ns(Stamps(BASE + at, at - at // 10_000))

    assert all(0 <= BASE + at - (found or 0) <= 100_000 for at, found in times.items())


@pytest.mark.parametrize("new", [5, 500 * SECOND])
def test_clock_that_is_set_begins_again(new: int) -> None:
    clock = HardwareClock()
    clock.system_ns(Stamps(BASE, 100 * SECOND))

    assert clock.system_ns(Stamps(BASE + 1000, new)) == BASE + 1000


@pytest.mark.parametrize("known", [Stamps(None, 5), Stamps(5, None), Stamps(None, None)])
def test_one_time_alone_says_nothing_of_the_other_clock(known: Stamps) -> None:
    assert HardwareClock().system_ns(known) is None


def info(flags: int, filters: int) -> bytes:
    """struct ethtool_ts_info (linux/ethtool.h): eleven numbers of 32 bits."""
    return struct.pack("=IIi8I", 0x41, flags, 0, 0b11, 0, 0, 0, filters, 0, 0, 0)


ALL, PTP = 1 << 1, 1 << 12
"""HWTSTAMP_FILTER_ALL, and one of those for PTP."""


def test_adapter_must_stamp_all_frames() -> None:
    """RX_HARDWARE is 4 and RAW_HARDWARE 64 (linux/net_tstamp.h); 0x18 is what lo has."""
    assert objection(info(0x5F, ALL)) == ""
    assert "driver gives no hardware time stamps" in objection(info(0x18, 0))
    assert "driver gives no hardware time stamps" in objection(info(0x04, ALL))
    assert "(PTP) only" in objection(info(0x5F, PTP))


def test_loopback_interface_is_refused() -> None:
    with pytest.raises(LinkError, match=r"lo: its driver gives no .*: leave out --hardware-time"):
        stamp_all_frames("lo")


class Driver:
    """Answers ioctl requests as a driver."""

    def __init__(self, config: bytes, refuses: int = 0) -> None:
        self.config = config
        self.refuses = refuses
        self.was_set = False

    def __call__(self, asking: object, name: str, request: int, argument: bytes) -> bytes:
        if request == 0x8946:  # SIOCETHTOOL
            return info(0x5F, ALL | 1)
        if request == 0x89B0:  # SIOCSHWTSTAMP
            if self.refuses:
                raise OSError(self.refuses, "no")
            self.config = argument
            self.was_set = True
        return self.config


def config(sends: int, receives: int) -> bytes:
    return struct.pack("=iii", 0, sends, receives)


def test_stamps_of_all_frames_are_turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set for sending stays."""
    driver = Driver(config(1, 12))
    monkeypatch.setattr(hardware_clock, "_ioctl", driver)

    stamp_all_frames("eth1")

    assert driver.config == config(1, 1)


def test_setting_that_suffices_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(config(0, 1), refuses=errno.EPERM)
    monkeypatch.setattr(hardware_clock, "_ioctl", driver)

    stamp_all_frames("eth1")

    assert not driver.was_set


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EPERM, "eth1: hardware time stamps need the capability CAP_NET_ADMIN"),
        (errno.ERANGE, "eth1: hardware time stamps cannot be turned on: no"),
    ],
)
def test_refusal_of_the_system_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    monkeypatch.setattr(hardware_clock, "_ioctl", Driver(config(0, 0), refuses=code))

    with pytest.raises(LinkError, match=reason):
        stamp_all_frames("eth1")
