"""Queue pairs and their attributes under pyverbs' module name."""

from __future__ import annotations

from ibwire.verbs.qp_attributes import (
    ECE,
    QPAttachCompCntrAttr,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPInitAttrEx,
    QPRateLimitAttr,
)
from ibwire.verbs.qp_ex import DataBuffer, QPEx
from ibwire.verbs.queue_pair import QP

__all__ = [
    "ECE",
    "QP",
    "DataBuffer",
    "QPAttachCompCntrAttr",
    "QPAttr",
    "QPCap",
    "QPEx",
    "QPInitAttr",
    "QPInitAttrEx",
    "QPRateLimitAttr",
]
