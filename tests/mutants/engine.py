"""Puts a mutant into the emulator: into the imported modules, or into a private copy of them.

The emulator has no switch for being wrong. `applied` exchanges the code of the changed
functions in place, so that tables and callers that hold a function run the mutant too:
cheap, for tests of laws and drill scripts. `copied` imports the modules a second time with
the changed source while the original stays as it is: for the fuzzer, which compares the two
in one process. The classes of a copy are not those of the original, so only bytes and plain
numbers may go from one to the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from inspect import CO_OPTIMIZED, getattr_static
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

from ibwire.base.compiled import compiled_modules
from mutants.table import Mutant

EMULATOR = (
    "ibwire.rc",
    "ibwire.cm",
    "ibwire.peer",
    "ibwire.fuzz.targets.emulated_device",
    "ibwire.fuzz.targets.emulated_manager",
)
"""What is copied to make a device under test for the fuzzer: all of its state and behaviour."""


_IS_COMPILED = compiled_modules() > 0


class StaleMutant(Exception):
    """A mutant does not fit the code any more."""


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run the imported modules with a mutant.

    Raises `StaleMutant` when a snippet does not occur exactly once, or is in no function.
    """
    changed: list[tuple[FunctionType, CodeType]] = []
    for name, source in _patched_sources(mutant).items():
        changed += _changed_functions(mutant, import_module(name), source)
    before = [function.__code__ for function, _ in changed]
    try:
        for function, code in changed:
            function.__code__ = code
        yield
    finally:
        for (function, _), code in zip(changed, before, strict=True):
            function.__code__ = code


def copied(mutant: Mutant, modules: Sequence[str] = EMULATOR) -> dict[str, ModuleType]:
    """Copies, by name, of modules and of everything below those that are packages, with a mutant.

    The copies import each other, and the original of everything else. All other importers
    get the originals, as long as no other thread imports meanwhile. Raises `StaleMutant`
    when a snippet does not occur exactly once, or is in no copied module.
    """
    for name in modules:
        import_module(name)  # loads what is shared, which must not see the copies
    sources = _patched_sources(mutant)
    for name in sources:
        if not _is_below(name, modules):
            raise StaleMutant(f"{mutant}: {name} is not copied")
    with _hidden(modules):
        sys.meta_path.insert(0, _Finder(mutant, sources))
        for name in (*modules, *sources):
            import_module(name)
        return {name: sys.modules[name] for name in sys.modules if _is_below(name, modules)}


def _patched_sources(mutant: Mutant) -> dict[str, str]:
    """The text of each module that a mutant changes, by the module's name.

    In a compiled build, whose functions and classes stay as they are, the test is skipped.
    """
    if _IS_COMPILED:
        pytest.skip("a compiled build cannot run a mutant")
    sources: dict[str, str] = {}
    for patch in mutant.patches:
        text = sources.get(patch.module_name) or _source(patch.module_name, mutant)
        found = text.count(patch.old)
        if found != 1:
            raise StaleMutant(f"{mutant}: the snippet occurs {found} times in {patch.module}")
        sources[patch.module_name] = text.replace(patch.old, patch.new)
    return sources


def _source(name: str, mutant: Mutant) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise StaleMutant(f"{mutant}: there is no module {name}")
    return Path(spec.origin).read_text(encoding="utf-8")


# In place.


def _changed_functions(
    mutant: Mutant, module: ModuleType, source: str
) -> list[tuple[FunctionType, CodeType]]:
    """The functions of a module that differ in this source, with their code there."""
    assert module.__file__ is not None
    original, changed = (
        _functions(compile(text, module.__file__, "exec", dont_inherit=True))
        for text in (_source(module.__name__, mutant), source)
    )
    paths = [path for path, code in original.items() if not _same(code, changed.get(path))]
    if not paths:
        raise StaleMutant(f"{mutant}: no function of {module.__name__} differs")
    return [(_function(module, path), changed[path]) for path in paths]


def _functions(code: CodeType, path: str = "") -> dict[str, CodeType]:
    """The functions and methods of a module by name, without those inside others."""
    found: dict[str, CodeType] = {}
    for each in code.co_consts:
        if isinstance(each, CodeType) and not each.co_name.startswith("<"):
            if each.co_flags & CO_OPTIMIZED:
                found[path + each.co_name] = each
            else:  # the body of a class
                found |= _functions(each, f"{path}{each.co_name}.")
    return found


def _same(one: object, other: object) -> bool:
    """Whether two constants are equal, code without its line numbers."""
    if not isinstance(one, CodeType) or not isinstance(other, CodeType):
        return one == other
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same, one.co_consts, other.co_consts))
    )


def _function(module: ModuleType, path: str) -> FunctionType:
    holder: object = module
    *classes, name = path.split(".")
    for each in classes:
        holder = getattr(holder, each)
    found = getattr_static(holder, name)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    assert isinstance(found, FunctionType)
    return found


# In a copy.


@contextmanager
def _hidden(modules: Sequence[str]) -> Iterator[None]:
    """As if these modules had never been imported; afterwards everything is restored."""
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


class _Finder(MetaPathFinder):
    """Finds the modules that a mutant changes, before any other finder."""

    def __init__(self, mutant: Mutant, sources: Mapping[str, str]) -> None:
        self._mutant = mutant
        self._sources = sources

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a changed module; `None` for all others."""
        if name not in self._sources:
            return None
        return spec_from_loader(name, _Loader(self._mutant, self._sources[name]))


class _Loader(ExecutionLoader):
    """Loads a text instead of the file; tracebacks show its lines."""

    def __init__(self, mutant: Mutant, text: str) -> None:
        self._mutant = mutant
        self._text = text

    def get_filename(self, fullname: str) -> str:
        """A name that no file has, so that `linecache` asks for the source."""
        return f"{fullname} with {self._mutant}"

    def get_source(self, fullname: str) -> str:
        """The changed text."""
        return self._text
