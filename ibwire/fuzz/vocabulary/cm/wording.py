"""What is other about a message of a case, in words for names and for lines of reports."""

from __future__ import annotations

from collections.abc import Mapping

from ibwire.fuzz.case import Mad


def otherness(step: Mad) -> str:
    """What is other in a message with one wrong field; empty where its name has to do."""
    if len(step.fields) != 1:
        return ""
    ((name, value),) = step.fields.items()
    if name == QPN_OF_SENDER and isinstance(value, tuple) and value[0] == _OWN_QPN:
        return f"the queue pair of #{step.exchange + value[1]}"
    return _OTHER.get(name) or _BY_END.get(name.rpartition(".")[2], "")


def message_text(step: Mad) -> str:
    """A message with what is other in it; empty where the name of the field has to do."""
    other = otherness(step)
    if not other:
        return ""
    if other == _ADDRESS:
        return f"{step.message} from another address"
    preposition = "of" if other == _CA else "with"
    return f"{step.message} {preposition} {other}"


OTHER_ID_THAN = "another communication ID of its sender than in the"
"""What a name says of a right message, before the one that has another ID."""

QPN_OF_SENDER = "req.local_qpn"
_OWN_QPN = "own.qpn"
_ADDRESS, _CA = "another address", "another CA"
_OTHER: Mapping[str, str] = {
    "dreq.remote_qpn": "another QPN",
    "rep.local_comm_id": "another communication ID",
    "req.local_ca_guid": _CA,
    "ip.src": _ADDRESS,
    "mad.transaction_id": "another transaction ID",
}
_BY_END: Mapping[str, str] = {
    "local_comm_id": "another communication ID of its sender",
    "remote_comm_id": "another communication ID of its receiver",
}
