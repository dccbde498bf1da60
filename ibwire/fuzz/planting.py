"""Faults planted in a private copy of the emulator, to measure what a fuzzer finds.

The emulator has no switch for being wrong. A fault is a snippet of its source and what
stands there instead; the modules are imported a second time with that, under their own
names but out of everybody's sight, and the copy is a target while the original stays the
model of what is right. Classes of the two are different, so what goes from one to the
other is bytes and plain numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from ibwire.base.errors import ScriptError
from ibwire.base.toml import Document, Table, read_content

PRIVATE = (
    "ibwire.rc",
    "ibwire.cm",
    "ibwire.fuzz.targets.emulated_device",
    "ibwire.fuzz.targets.emulated_manager",
)
"""What is copied to make a target: everything that it has state and behaviour from."""

ROLES = ("responder", "requester", "cm")
"""Who is at fault."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A snippet that occurs once in a module, and what stands there instead."""

    module: str
    """File below `ibwire`."""
    old: str
    new: str

    @property
    def module_name(self) -> str:
        """As it is imported."""
        return "ibwire." + self.module.removesuffix(".py").replace("/", ".")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong."""

    name: str
    about: str
    """What is wrong, in the words of the standard."""
    rule: str
    """Where it says so."""
    origin: str
    """The real bug it is modelled on, or the mutation of our own tests."""
    role: str
    patches: tuple[Patch, ...]
    place: tuple[str, int | None]
    """File and line of the table that it was read from."""

    def __str__(self) -> str:
        return self.name


def read_faults(file: Path) -> dict[str, Fault]:
    """The faults of a TOML table by name; raises `ScriptError`."""
    top = Document(read_content(file), str(file)).top
    faults: dict[str, Fault] = {}
    for table in top.tables("fault"):
        fault = _read_fault(table)
        if fault.name in faults:
            raise table.error("name", f"there is a fault {fault.name} already")
        faults[fault.name] = fault
    top.end()
    return faults


def planted(fault: Fault) -> ModuleType:
    """`ibwire.fuzz.targets.emulated_device` on an emulator with this fault; raises `ScriptError`.

    For a fault of a connection manager it is `ibwire.fuzz.targets.emulated_manager`.
    """
    name = "emulated_manager" if fault.role == "cm" else "emulated_device"
    return copy(PRIVATE, fault)[f"ibwire.fuzz.targets.{name}"]


def copy(modules: Sequence[str], fault: Fault) -> dict[str, ModuleType]:
    """Copies by name of modules, and of everything below those that are packages, with a fault.

    They import each other, and the original of everything else. Whoever else asks for a
    module gets the original, as long as no other thread imports meanwhile. Raises
    `ScriptError` when a snippet of the fault does not occur once.
    """
    for name in modules:
        import_module(name)  # and with it all that is shared, which must not see the copies
    sources = _patched_sources(fault, modules)
    with _hidden(modules):
        sys.meta_path.insert(0, _Planter(fault, sources))
        try:
            for name in (*modules, *sources):
                import_module(name)
        except SyntaxError as error:
            raise _misfit(fault, str(error)) from None
        return {name: sys.modules[name] for name in sys.modules if _is_below(name, modules)}


@contextmanager
def _hidden(modules: Sequence[str]) -> Iterator[None]:
    """As if these modules had never been imported; afterwards all is as it was."""
    known, finders = dict(sys.modules), list(sys.meta_path)
    for name in known:
        if _is_below(name, modules):
            del sys.modules[name]
    try:
        yield
    finally:
        sys.meta_path[:] = finders
        for name in set(sys.modules) - set(known):
            del sys.modules[name]
        sys.modules.update(known)
        for name in modules:  # importing a module sets an attribute of its package
            package, _, attribute = name.rpartition(".")
            if package in known:
                setattr(known[package], attribute, known[name])


def _is_below(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def _patched_sources(fault: Fault, modules: Sequence[str]) -> dict[str, str]:
    """The text of each module that a fault changes."""
    sources: dict[str, str] = {}
    for patch in fault.patches:
        name = patch.module_name
        spec = find_spec(name)
        if spec is None or spec.origin is None or not _is_below(name, modules):
            raise _misfit(fault, f"{patch.module} is no module that is copied")
        text = sources.get(name) or Path(spec.origin).read_text("utf-8")
        found = text.count(patch.old)
        if found != 1:
            raise _misfit(fault, f"a snippet occurs {found} times in {patch.module}")
        sources[name] = text.replace(patch.old, patch.new)
    return sources


def _misfit(fault: Fault, why: str) -> ScriptError:
    reason = f"the fault {fault.name} does not fit the emulator any more: {why}"
    return ScriptError(*fault.place, None, reason)


class _Planter(MetaPathFinder):
    """Finds the modules that a fault changes, before anybody else does."""

    def __init__(self, fault: Fault, sources: Mapping[str, str]) -> None:
        self._fault = fault
        self._sources = sources

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The way to import a module with its fault; `None` for one that has none."""
        if name not in self._sources:
            return None
        return spec_from_loader(name, _Loader(self._fault, self._sources[name]))


class _Loader(ExecutionLoader):
    """Loads a text instead of the file; tracebacks show its lines."""

    def __init__(self, fault: Fault, text: str) -> None:
        self._fault = fault
        self._text = text

    def get_filename(self, fullname: str) -> str:
        """One that no file has, so that `linecache` asks for the source."""
        return f"{fullname} with {self._fault.name}"

    def get_source(self, fullname: str) -> str:
        """What is run."""
        return self._text


def _read_fault(table: Table) -> Fault:
    name = _required(table, "name")
    if not _NAME.fullmatch(name):
        raise table.error("name", f"{name!r} is not made of words in lower case and hyphens")
    try:
        return _read_rest(table, name)
    except ScriptError as error:
        reason = f"{error.reason} (fault {name})"
        raise ScriptError(error.path, error.line, error.column, reason) from None


def _read_rest(table: Table, name: str) -> Fault:
    about, rule = _required(table, "about"), _required(table, "rule")
    origin, role = _required(table, "origin"), _required(table, "role")
    patches = table.tables("patch")
    fault = Fault(
        name,
        about,
        rule,
        origin,
        table.name("role", role, ROLES),
        tuple(_read_patch(each) for each in patches or (table,)),
        _place_of(table),
    )
    for each in (*patches, table):
        each.end()
    return fault


def _read_patch(table: Table) -> Patch:
    module, old, new = _required(table, "module"), _required(table, "old"), table.take("new")
    if not _MODULE.fullmatch(module):
        raise table.error("module", f"{module!r} is no file of the emulator such as rc/qp.py")
    if not isinstance(new, str) or new == old:
        raise table.error("new", "not another text, which must stand there instead")
    return Patch(module, old, new)


def _required(table: Table, key: str) -> str:
    text = table.take_text(key, None)
    if text is None:
        raise table.error(None, f"{key} is missing")
    return text


def _place_of(table: Table) -> tuple[str, int | None]:
    error = table.error("name", "")
    return error.path, error.line


_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MODULE = re.compile(r"(?:rc|cm)/(?!__)\w+\.py", re.ASCII)
