"""Fields of the structures of libibverbs: integers of a fixed width.

A structure of the verbs interface is a class with `Unsigned` attributes. Setting one to a
number that the C field cannot hold raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Self, SupportsInt, overload

from ibwire.verbs.base import PyverbsObject
from ibwire.verbs.pyverbs_error import PyverbsRangeError, PyverbsUserError


def unsigned(value: SupportsInt, bits: int, name: str) -> int:
    """The number as an integer of `bits` bits; raises `PyverbsRangeError` if it does not fit."""
    if isinstance(value, int):
        number = int(value)
    else:
        # Fractions are truncated, as in Cython; text is rejected, although int() reads it.
        try:
            number = int(value.__int__())
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise PyverbsUserError(f"{name} is {value!r}, not a number") from error
    if not 0 <= number < 1 << bits:
        raise PyverbsRangeError(f"{name} is {number}, which does not fit {bits} bits")
    return number


class Unsigned:
    """An attribute of `bits` bits, 0 by default.

    In its class it is replaced by a property that reads without a call of Python: a message through
    the verbs reads some thirty fields.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.name = ""
        self.slot = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.slot = f"_{name}"
        setattr(owner, self.slot, 0)
        setattr(owner, name, property(attrgetter(self.slot), _setter(self.slot, self.bits, name)))

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type) -> int: ...
        def __get__(self, instance: object | None, owner: type) -> Self | int: ...
        def __set__(self, instance: object, value: SupportsInt) -> None: ...


def _setter(slot: str, bits: int, name: str) -> Callable[[object, SupportsInt], None]:
    """A function that stores a field, which finds these three faster than a method would."""
    limit = 1 << bits

    def store(instance: object, value: SupportsInt) -> None:
        if type(value) is not int or not 0 <= value < limit:
            value = unsigned(value, bits, name)
        # Not by `__dict__`: asking for that makes a dictionary of its own for each object.
        setattr(instance, slot, value)

    return store


class Structure(PyverbsObject):
    """A C structure: copied on assignment, never shared."""

    def copy(self) -> Self:
        """A copy."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin
