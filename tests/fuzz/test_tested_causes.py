"""A cause is named only if what it foretells of other last steps comes true on the device."""

from __future__ import annotations

import pytest

from fuzz.test_names_and_rules import named
from fuzz.test_naming import READ, SEND, WRITE
from ibwire.fuzz.case import Connection, Packet, Step
from ibwire.fuzz.judge.profiles import without_checking
from ibwire.rc.profile import SPEC
from ibwire_layers.opcodes import OpCode
from mutants.table import Patch

DUPLICATE_READ_COUNTS = Patch(
    "rc/responder.py",
    "                self._replay(*found)\n",
    "                self._replay(*found)\n                self.msn = self.msn + 1 & MASK\n",
)
NAK_STAYS_INSIDE_A_MESSAGE = Patch(
    "rc/responder.py",
    "            if self._nak_sent:\n                self._nak_sent = False\n"
    "                self.replies =",
    "            if self._nak_sent and form.is_last:\n                self._nak_sent = False\n"
    "                self.replies =",
)
WHOLE_READ_TAKES_ONE_MORE = Patch(
    "rc/responder.py",
    "resource = Resource(packet, max(-(-length // qp.mtu), 1), self._pd)",
    "resource = Resource(packet, length // qp.mtu + 1, self._pd)",
)

LONG_READ = READ.altered(fields={"reth.va": ("va", 2306), "reth.dma_len": 3072})
SECOND_PACKET_AGAIN = READ.altered(
    psn=("expected", -2), fields={"reth.va": ("va", 3330), "reth.dma_len": 2048}
)
WHOLE_READ = READ.altered(fields={"reth.dma_len": 1024})
AFTER_READ = " after a READ of an exact multiple of the path MTU: "


def test_an_msn_that_a_duplicate_read_raises_has_nothing_to_do_with_its_psns() -> None:
    """It looks as if the READ had taken one PSN, so that the duplicate were a new request."""
    name = named(
        DUPLICATE_READ_COUNTS, LONG_READ, SECOND_PACKET_AGAIN, connection=Connection(mtu=1024)
    )

    assert name.text == "READ_REQUEST (a duplicate READ): READ_RESPONSE_FIRST with another aeth.msn"
    assert name.rule.endswith("#msn")


def test_a_nak_that_is_not_withdrawn_takes_no_psn() -> None:
    """It looks as if the request that is refused had taken its PSN."""
    refused = Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE), held=True)
    first = Packet(int(OpCode.RC_RDMA_WRITE_FIRST), length=256, fields={"reth.dma_len": 257})

    name = named(NAK_STAYS_INSIDE_A_MESSAGE, refused, first, connection=Connection(receives=0))

    assert "as if" not in name.text


@pytest.mark.parametrize(
    "steps",
    [
        (WHOLE_READ, SEND),
        (WHOLE_READ, WRITE),
        (WHOLE_READ, Packet(int(OpCode.RC_SEND_ONLY_WITH_INVALIDATE))),
    ],
)
def test_psns_of_reads_explain_whatever_follows(steps: tuple[Step, ...]) -> None:
    name = named(WHOLE_READ_TAKES_ONE_MORE, *steps)

    assert AFTER_READ in name.text
    assert name.rule.endswith("#psn-count")


def test_a_field_that_is_not_compared_speaks_against_no_cause() -> None:
    """A WRITE behind the READ is taken for a duplicate: its ACK has another MSN, and no data are
    stored, which is all that counts then.
    """
    profile = without_checking(SPEC, ("aeth.msn",))

    write = WRITE.altered(at=7)
    name = named(WHOLE_READ_TAKES_ONE_MORE, WHOLE_READ, write, profile=profile)

    assert name.text == f"WRITE_ONLY{AFTER_READ}other bytes in its memory"
