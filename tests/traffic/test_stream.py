"""What a stream cannot be, and how queue pairs are written."""

from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.traffic.stream import Link, Stream, Verb, format_qpns, parse_qpns
from ibwire_layers.opcodes import Service

GOOD: dict[str, Any] = {"qpns": ((1, 1),), "src": "10.0.0.1", "dst": "10.0.0.2"}


@each_case(
    ("wrong", "field"),
    [
        ({"qpns": ()}, "qpn"),
        ({"qpns": ((1 << 24, 1),)}, "qpn"),
        ({"qpns": ((1, 0),)}, "qpn"),
        ({"qpns": ((1, 1), (1, 2))}, "qpn"),
        ({"src_qpn": 0xFFFFFF, "qpns": ((1, 1), (2, 1))}, "src_qpn"),
        ({"weight": 0}, "weight"),
        ({"size": -1}, "size"),
        ({"size": (1 << 31) + 1}, "size"),
        ({"size": 1025, "verb": Verb.SEND, "service": Service.UD}, "size"),
        ({"mtu": 1000}, "mtu"),
        ({"psn": 1 << 24}, "psn"),
        ({"ack_every": -1}, "ack_every"),
        ({"service": Service.UD}, "service"),
        ({"service": Service.UC, "verb": Verb.READ}, "service"),
        ({"src": ""}, "src"),
        ({"dst": "10.0.0"}, "dst"),
        ({"dst": "fd00::1"}, "dst"),
        ({"src_mac": bytes(5)}, "src_mac"),
        ({"vlan": 0xFFF}, "vlan"),
        ({"dscp": 64}, "dscp"),
        ({"ecn": True}, "ecn"),
        ({"src_port": 65536}, "src_port"),
        ({"va_step": 64}, "va_window"),
        ({"va_step": 64, "va_window": 1023}, "va_window"),
        ({"va": (1 << 64) - 1}, "va"),
        ({"ce": 1.1}, "ce"),
        ({"ce": 0.1, "ce_every": 5}, "ce_every"),
        ({"ce_every": 5, "ce_run": 6}, "ce_run"),
        ({"ce": 0.1, "link": Link.ROCEV1}, "ce"),
        ({"payload": b""}, "payload"),
    ],
    ids=str,
)
def test_a_stream_that_cannot_be_names_the_key(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        Stream(**{**GOOD, **wrong})

    assert caught.value.field == field


@each_case(
    ("text", "pairs"),
    [
        (17, ((17, 1),)),
        ("0x11", ((17, 1),)),
        ("0x11..0x13", ((17, 1), (18, 1), (19, 1))),
        ("0x11*3, 5", ((17, 3), (5, 1))),
        ([1, "2..3"], ((1, 1), (2, 1), (3, 1))),
    ],
    ids=str,
)
def test_queue_pairs_are_numbers_ranges_and_weights(text: object, pairs: object) -> None:
    assert parse_qpns(text) == pairs


@each_case(
    "text",
    ["", "x", "5..3", "0..0x10000", "1,,2", "1*", True, None, "0..0xffff,70000"],
    ids=str,
)
def test_what_are_no_queue_pairs_is_refused(text: object) -> None:
    with pytest.raises(EncodeError):
        parse_qpns(text)


def test_few_queue_pairs_are_shown_whole_and_many_by_their_ends() -> None:
    assert format_qpns(parse_qpns("1*3, 2")) == "0x1*3, 0x2"
    assert format_qpns(parse_qpns("1..9")) == "0x1 ... 0x9"


def test_messages_take_the_packets_and_psns_of_the_specification() -> None:
    write = Stream(**GOOD, size=4097)
    read = Stream(**GOOD, size=4097, verb=Verb.READ)
    empty = Stream(**GOOD, size=0)

    assert (write.packets, write.psns) == (5, 5)
    assert (read.packets, read.psns) == (1, 5)
    assert (empty.packets, empty.psns) == (1, 1)


def test_the_last_place_of_a_window_holds_a_whole_message() -> None:
    made = Stream(**GOOD, size=1024, va_step=512, va_window=2100)

    assert made.places == 3  # at 0, 512 and 1024, which ends at 2048
