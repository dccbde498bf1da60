"""States of a port as plain numbers, which are compared for every packet: an enum costs a call.

Source: `PortState` in ibwire_layers.attributes, which has more of them (IBA 14.2.5.6).
"""

from __future__ import annotations

from typing import Final

DOWN: Final = 1
INIT: Final = 2
ARMED: Final = 3
ACTIVE: Final = 4
ACTIVE_DEFER: Final = 5
