"""Scripts here are tests: each case runs on the emulator with the profile `spec`."""

from ibwire.drill.pytest_plugin import pytest_collect_file

__all__ = ["pytest_collect_file"]
