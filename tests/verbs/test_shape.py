"""The face has pyverbs' names: modules, classes, functions, arguments, defaults, attributes."""

from __future__ import annotations

import importlib
import inspect
import re

from each_case import each_case
from verbs.pyverbs_shape import ATTRIBUTES, SIGNATURES


def entries(text: str) -> list[str]:
    """The entries of a listing with indented continuation lines."""
    return text.strip().replace("\n    ", " ").split("\n")


def find(name: str) -> object:
    module, *path = name.split(".")
    found: object = importlib.import_module(f"ibwire.verbs.{module}")
    for part in path:
        found = getattr(found, part)
    return found


def arguments(function: object) -> str:
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        name = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")  # type: ignore[call-overload]
        name += parameter.name
        if parameter.default is not parameter.empty:
            default = parameter.default
            name += f"={default}" if default is None else f"={default!r}"
            if isinstance(default, int) and not isinstance(default, bool):
                name = f"{parameter.name}={int(default)}"
        shown.append(name)
    return ", ".join(shown)


@each_case("entry", entries(SIGNATURES), ids=lambda e: e.split("(")[0])
def test_arguments_and_defaults_are_those_of_pyverbs(entry: str) -> None:
    name, _, rest = entry.partition("(")
    expected = rest[:-1]
    # A class without a constructor has no arguments here either.
    found = arguments(find(name))
    optional_attr = {"cq.CQEX.__init__": "context, init_attr=None"}

    assert found == optional_attr.get(name, expected)


@each_case("entry", entries(ATTRIBUTES), ids=lambda e: e.split(":")[0])
def test_attributes_are_those_of_pyverbs(entry: str) -> None:
    name, _, names = entry.partition(": ")
    kind = find(name)
    ours = [base for base in kind.__mro__ if "ibwire" in base.__module__]  # type: ignore[attr-defined]
    # Plain attributes of objects show only where they are set or declared.
    source = "".join(inspect.getsource(base) for base in ours)
    set_or_declared = set(re.findall(r"(?:self\.|^    )(\w+)(?::[^=\n]*)? =", source, re.M))

    assert {a for a in names.split() if not hasattr(kind, a)} <= set_or_declared


@each_case(
    "module",
    ["pd", "mr", "cq", "qp", "wr", "addr", "srq", "xrcd", "enums", "libibverbs_enums"],
)
def test_module_of_pyverbs_exists(module: str) -> None:
    assert importlib.import_module(f"ibwire.verbs.{module}").__doc__
