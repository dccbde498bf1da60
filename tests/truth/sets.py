"""Where the sets are."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
