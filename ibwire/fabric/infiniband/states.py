"""States of a port as plain numbers, which are compared for every packet: an enum costs a call."""

from __future__ import annotations

from typing import Final

from ibwire_layers.attributes import PortState

DOWN: Final = int(PortState.DOWN)
INIT: Final = int(PortState.INIT)
ARMED: Final = int(PortState.ARMED)
ACTIVE: Final = int(PortState.ACTIVE)
ACTIVE_DEFER: Final = int(PortState.ACTIVE_DEFER)
