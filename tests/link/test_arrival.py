"""Times of arrival, of the kernel and of an adapter, from hand-built control messages."""

import errno
import struct

import pytest

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


@pytest.mark.parametrize(
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


def test_hardware_times_keep_their_distances_by_the_systems_clock() -> None:
    """The adapter's clock shows the time since power-on; the second frame is seen at once."""
    clock = HardwareClock()
    arrived = [1000, 2000, 3000]
    delays = [40_000, 7_000, 90_000]

    times = [
        clock.system_ns(Stamps(BASE + at + delay, 500 + at))
        for at, delay in zip(arrived, delays, strict=True)
    ]

    # From the second frame on the clocks differ by BASE - 500 and the smallest delay.
    assert times == [BASE + 1000 + 40_000, BASE + 2000 + 7_000, BASE + 3000 + 7_000]


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
