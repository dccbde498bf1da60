"""Many small cases as one test: pytest takes milliseconds for each test, and these take less."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import groupby
from typing import Any, NamedTuple

import pytest

Names = str | Sequence[str]
Ids = Callable[[Any], object] | Iterable[object] | None

SHOWN = 10
"""Failures that are shown with a traceback."""


class Case(NamedTuple):
    """Values of the arguments."""

    values: tuple[Any, ...]
    marks: tuple[Any, ...]
    name: str


def each_case(
    names: Names, cases: Iterable[Any], *, ids: Ids = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Has a test look at every case, as `pytest.mark.parametrize` does, but in one test.

    All cases are looked at; those that fail are named, the first with their tracebacks. Cases with
    the same marks (`pytest.param`) are a test of their own. No case gets fixtures of its own, and
    one that is skipped counts as passed.
    """
    keys = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names)
    read = _read(list(cases), is_single=isinstance(names, str) and len(keys) == 1, ids=ids)
    groups = [list(group) for _, group in groupby(sorted(read, key=_marks), key=_marks)]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        chosen = f"cases_of_{keys[0]}"

        @wraps(test)
        def all_cases(**fixtures: Any) -> None:
            group: list[Case] = fixtures.pop(chosen, groups[0])
            failures = [
                error
                for case in group
                if (
                    error := _failure(
                        test, case, {**fixtures, **dict(zip(keys, case.values, strict=True))}
                    )
                )
            ]
            if failures:
                title = f"{test.__name__}: {len(failures)} of {len(group)} cases"
                rest = [error.__notes__[-1] for error in failures[SHOWN:]]
                title += f"; without traceback: {', '.join(rest)}" if rest else ""
                raise ExceptionGroup(title, failures[:SHOWN])

        parameters = [
            each for each in inspect.signature(test).parameters.values() if each.name not in keys
        ]
        if len(groups) > 1 or groups[0][0].marks:
            parameters.append(inspect.Parameter(chosen, inspect.Parameter.KEYWORD_ONLY))
            tests = [
                pytest.param(group, marks=group[0].marks, id=_marks(group[0]) or "usual")
                for group in groups
            ]
            pytest.mark.parametrize(chosen, tests)(all_cases)
        all_cases.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return all_cases

    return decorate


def _read(cases: list[Any], *, is_single: bool, ids: Ids) -> list[Case]:
    given = None if ids is None or callable(ids) else list(ids)
    found = []
    for number, case in enumerate(cases):
        marks: tuple[Any, ...] = ()
        name = None if given is None else str(given[number])
        if hasattr(case, "marks") and hasattr(case, "values"):  # of `pytest.param`
            values, marks, name = tuple(case.values), tuple(case.marks), case.id or name
        else:
            values = (case,) if is_single else tuple(case)
        if name is None and callable(ids):
            name = "-".join(str(ids(each)) for each in values)
        found.append(Case(values, marks, name or ", ".join(map(repr, values))))
    return found


def _marks(case: Case) -> str:
    return ",".join(mark.name for mark in case.marks)


def _failure(test: Callable[..., None], case: Case, arguments: dict[str, Any]) -> Exception | None:
    try:
        test(**arguments)
    except pytest.skip.Exception:
        return None
    except pytest.fail.Exception as failed:  # as of `pytest.raises`
        found: Exception = AssertionError(failed.msg)
    except Exception as error:
        found = error
    else:
        return None
    found.add_note(f"case {case.name}")
    return found
