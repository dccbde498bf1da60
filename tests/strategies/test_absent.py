"""Without Hypothesis the import fails with a message that names the extra."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_message_without_hypothesis_names_the_extra() -> None:
    script = """
import sys
sys.modules["hypothesis"] = None
try:
    import ibwire.strategies
except ImportError as error:
    print(error)
import ibwire.testing
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'layers'}", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout == ("ibwire.strategies needs Hypothesis: pip install 'ibwire[pytest]'\n")
