"""Stream files: what they mean, and where they are wrong."""

from contextlib import suppress
from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError, ScriptError
from ibwire.base.units import S
from ibwire.traffic.cycle import Turn
from ibwire.traffic.injection import Injection
from ibwire.traffic.injection_file import (
    INJECTION,
    STREAM,
    make_injection,
    make_stream,
    parse_value,
    read_injection,
)
from ibwire.traffic.pace import Unit
from ibwire.traffic.stream import Icrc, Payload, PortRule, Verb
from ibwire_layers.opcodes import Service

HEAD = 'src = "10.0.0.1"\ndst = "10.0.0.2"\ncount = 10\n'


def read(text: str, **given: Any) -> Injection:
    return read_injection(text.encode(), "s.toml", given, lambda values: values)


def test_a_file_without_a_table_is_one_stream() -> None:
    (stream,) = read(HEAD + "qpn = 0x11\nverb = 'send-imm'\nsize = '4 KiB'\nimm = 7").streams

    assert (stream.verb, stream.size, stream.imm) == (Verb.SEND_IMM, 4096, 7)
    assert stream.qpns == ((0x11, 1),)


def test_keys_at_the_top_hold_for_streams_that_do_not_say_otherwise() -> None:
    one, other = read(
        HEAD + "mtu = 4096\ndscp = 26\n[[stream]]\nqpn = 1\n[[stream]]\nqpn = '2..3'\nmtu = 256"
    ).streams

    assert (one.mtu, one.dscp, other.mtu, other.dscp) == (4096, 26, 256, 26)


def test_what_is_given_elsewhere_counts_more_than_the_top_and_less_than_a_stream() -> None:
    made = read(HEAD + "dscp = 1\n[[stream]]\nqpn = 1\n[[stream]]\nqpn = 2\ndscp = 3",
                dscp=2, count=99)  # fmt: skip

    assert [stream.dscp for stream in made.streams] == [2, 3]
    assert made.count == 99


def test_every_key_can_be_said() -> None:
    made = read(
        HEAD
        + """
        time = "2s"
        rate = "100kpps"
        burst = 4
        turn = "packet"
        seed = 5
        [[stream]]
        verb = "write-imm"
        service = "uc"
        qpn = ["0x11*2", 18]
        weight = 3
        src_mac = "02:00:00:00:00:01"
        src_port = "qpn"
        va = 0x7fff_0000_0000_0000
        va_step = "4 KiB"
        va_window = "1 MiB"
        rkey = "0x1234"
        payload = "counter"
        ce = "5%"
        icrc = "wrong"
        fields = { bth.tver = 3, "infiniband.reth.r_key" = 9 }
        [[stream]]
        qpn = 20
        payload = "00ff"
        ce_every = 10
        ce_run = 2
        src_port = 0xc001
        """
    )

    one, other = made.streams
    assert (one.verb, one.service, one.qpns) == (Verb.WRITE_IMM, Service.UC, ((17, 2), (18, 1)))
    assert (one.weight, one.src_mac, one.src_port) == (3, bytes.fromhex("020000000001"), "qpn")
    assert (one.va, one.va_step, one.va_window) == (0x7FFF << 48, 4096, 1 << 20)
    assert (one.rkey, one.payload, one.ce, one.icrc) == (0x1234, Payload.COUNTER, 0.05, Icrc.WRONG)
    assert one.fields == {"bth.tver": 3, "infiniband.reth.r_key": 9}
    assert (other.payload, other.ce_every, other.src_port) == (b"\0\xff", 10, 0xC001)
    assert other.src_port is not PortRule.FLOW
    assert (made.time, made.turn, made.seed) == (2 * S, Turn.PACKET, 5)
    assert made.pace is not None
    assert (made.pace.unit, made.pace.phases[0].burst) == (Unit.PACKETS, 4)


@each_case(
    ("text", "where", "what"),
    [
        (HEAD + "qpn = 1\nmtu = 1000", "5:7", "mtu: 1000 is not one of 256"),
        (HEAD + "qpn = 1\npsm = 1", "5:1", "psm: unknown; did you mean psn?"),
        (HEAD + "qpn = 'x'", "4:7", "qpn: 'x' is not QP numbers"),
        (HEAD + "[[stream]]\nqpn = 1\nverb = 'sent'", "6:8", "stream[0].verb: 'sent' is not one"),
        (HEAD + "[[stream]]\nqpn = 1\nsize = 0.5", "6:8", "stream[0].size: 0.5 is not bytes"),
        (HEAD + "vlan = 4095\n[[stream]]\nqpn = 1", "4:8", "vlan: 4095 is not a number from 0"),
        (HEAD + "qpn = 1\nrate = '5'", "5:8", "rate: '5' is not a rate such as"),
        (HEAD + "qpn = 1\nburst = 3", "5:9", "burst: 3 is not possible without a rate"),
        (HEAD + "qpn = 1\nfields = {bth.psm = 1}", "5:10", "did you mean bth.psn?"),
        (HEAD + "qpn = 1\nfields = {bth.psn = 'x'}", "5:10", "is not a number"),
        (HEAD + "qpn = 1\nfields = 5", "5:10", "fields: 5 is not a table"),
        (HEAD + "qpn = 1\nsolicited = 1", "5:13", "solicited: 1 is not true or false"),
        (HEAD + "qpn = 1\npayload = 'xyz'", "5:11", "is not hexadecimal digits or one of"),
        (HEAD + "qpn = 1\nsrc_mac = '02:00'", "5:11", "'02:00' is not a MAC address"),
        (HEAD, "1:1", "qpn is required"),
        ("src = '10.0.0.1'\ndst = '10.0.0.2'\nqpn = 1", "1:1", "count or time is required"),
        (HEAD + "qpn = 1\ncount2 = [", "5:11", ""),
        ("stream = 5", "1:10", "5 is not a table"),
        ("\xff", "1:1", ""),
    ],
    ids=str,
)
def test_a_wrong_file_is_pointed_at(text: str, where: str, what: str) -> None:
    with pytest.raises(ScriptError) as caught:
        read(text)

    assert str(caught.value).startswith(f"s.toml:{where}: ")
    assert what in str(caught.value)


ODD: list[object] = [None, [], {}, 1.5, "\x00", True, float("nan"), -1, 1 << 80, ""]


@each_case("key", [*STREAM, *INJECTION])
def test_whatever_stands_under_a_key_raises_nothing_but_encode_errors(key: str) -> None:
    good: dict[str, Any] = {"qpn": ((1, 1),), "src": "10.0.0.1", "dst": "10.0.0.2"}

    for value in ODD:
        with suppress(EncodeError):
            found = {key: parse_value(key, value)}
            stream = make_stream(good | (found if key in STREAM else {}))
            make_injection((stream,), {"count": 1} | (found if key in INJECTION else {}))


@pytest.mark.parametrize(("text", "size"), [("100", 100), ("4KiB", 4096), ("1 MiB", 1 << 20)])
def test_sizes_of_a_command_line_may_have_no_unit(text: str, size: int) -> None:
    assert parse_value("size", text) == size


def test_fields_of_a_command_line_are_pairs() -> None:
    assert parse_value("fields", "bth.psn=5, ip.ttl=0x10") == {"bth.psn": 5, "ip.ttl": 16}


def test_an_injection_ends_at_its_count() -> None:
    made = read(HEAD + "qpn = 1")

    assert [len(block.frames) for block in made.blocks(4)] == [4, 4, 2]
    assert [len(block.frames) for block in made.blocks(5)] == [5, 5]
