"""Steps of a case in the words of a name."""

from __future__ import annotations

from ibwire.fuzz.case import Connect, Packet, Pause, Post, Receive, Step, Wait, packet_text
from ibwire.fuzz.judge.request_names import NOT_READY, SERVICES
from ibwire.fuzz.judge.setting import AT_WRAP
from ibwire.fuzz.judge.subject import About
from ibwire.rc.work import WROpcode


def described(step: Step, about: About) -> str:
    """A step with what it is about, unless that is nothing but right."""
    plain = about.what.removesuffix(AT_WRAP)
    is_named = about.what and not plain.startswith("a right") and plain not in _PLAIN
    if about.what.endswith(AT_WRAP) and not is_named:
        return f"{step_text(step)} ({AT_WRAP.strip()})"
    return f"{step_text(step)} ({about.text})" if is_named else step_text(step)


def step_text(step: Step) -> str:
    """A step."""
    if isinstance(step, Packet):
        return packet_text(step)
    if isinstance(step, Post):
        return f"a posted {WROpcode(step.opcode).name}"
    return {Wait: "a wait", Receive: "a posted receive", Pause: "PFC", Connect: "a new connection"}[
        type(step)
    ]


def said_before(about: About) -> str:
    """What an earlier packet was about, behind `after`."""
    is_refused = about.what == NOT_READY.what
    return "a request without a receive request" if is_refused else about.text


_PLAIN = [each.what for each in SERVICES.values()]
"""What packets are about of services without further names for what is right."""
