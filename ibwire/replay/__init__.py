"""Replays recorded connections with one side emulated, and compares the two."""

from ibwire.replay.conversation import ROLES, Conversation
from ibwire.replay.output import ReplayCapture
from ibwire.replay.report import Difference, Inference, ReplayReport

__all__ = [
    "ROLES",
    "Conversation",
    "Difference",
    "Inference",
    "ReplayCapture",
    "ReplayReport",
]
