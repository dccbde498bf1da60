"""The notebooks of docs/notebooks: they are run, and pages of the site are made of the results.

`notebooks.py` runs all of them, and `notebooks.py NAME` some; an error in a cell is an error.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))

SECONDS = 120
"""Longest time that a cell may take."""


def executed(path: Path) -> Any:
    """The notebook with the outputs of its cells, run where it stands."""
    notebook = nbformat.read(path, as_version=4)
    # `ibwire` is the command of this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    asyncio.run(client.async_execute())
    return notebook


def as_markdown(path: Path, pictures: Path) -> str:
    """A page: text, code and what the code prints. Plots become files in `pictures`."""
    parts = []
    for number, cell in enumerate(executed(path).cells, 1):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            parts.append(_shown(output, pictures, f"{path.stem}-{number}"))
    parts.insert(1, f"This page is the notebook `docs/notebooks/{path.name}`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _shown(output: Any, pictures: Path, name: str) -> str:
    """One output of a cell, as Markdown."""
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    if "image/png" in output.data:
        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / f"{name}.png").write_bytes(base64.b64decode(output.data["image/png"]))
        return f"![Plot of the code above]({name}.png)"
    text = output.data.get("text/plain", "").rstrip()
    return f"```text\n{text}\n```" if text else ""


if __name__ == "__main__":
    chosen = [path for path in NOTEBOOKS if not sys.argv[1:] or path.stem in sys.argv[1:]]
    for path in chosen:
        executed(path)
        print(f"{path.name}: all cells ran")
