"""What a step of a case is about, and the rule for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """A description of a packet or another step."""

    what: str
    rule: str
    is_wrong: bool = True
    """Whether the specification allows only one treatment of it, so that any other is one
    finding.
    """
    group: str = ""
    """What all differences at such a packet have in common, if they have one cause."""
    is_ignored: bool = False
    """Whether a right device does nothing because of it, now or later: a minimised case that needs
    it shows that this device does.
    """
    treatment: str = ""
    """The rule of what is done with it, where that is not part of `rule`: broken by a device that
    notices what is wrong.
    """
    implies_nak: bool = False
    """Whether it is a response from which follows that another one is lost."""
    detail: str = ""
    """What it is in a name, if that says more than `what`, by which findings are grouped."""

    @property
    def text(self) -> str:
        """What it is in a name."""
        return self.detail or self.what


SGE_LIST = (
    "IBA 9.7.2; docs/reference/transport.md#sge-list, docs/reference/transport.md#segmentation"
)
"""The rule of data in several SGEs."""
