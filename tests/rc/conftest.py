"""A key table, and a protection domain in it."""

from __future__ import annotations

import pytest

from ibwire.rc.memory import KeyTable, ProtectionDomain


@pytest.fixture
def keys() -> KeyTable:
    return KeyTable()


@pytest.fixture
def pd(keys: KeyTable) -> ProtectionDomain:
    return ProtectionDomain(keys)
