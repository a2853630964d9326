"""Internal. Kernels that differ by a renaming of axes run one compiled function: a new name compiles nothing.

It decorates all functions that make kernels. Most names never reach a compiled program. Names only matter to errors,
and to operations that look up the current mapping. So the shared function is traced with numbers as names. If the trace
finds an error, or looks up the current mapping, the operation is traced again with its own names. For 30 new names of
three operations, this takes 0.1 seconds instead of 4.7.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, cast

from ..axis import Axis
from ..base.kinds import Payload
from ..current import features
from ..errors import AxonymError
from ..names import plans
from ..names.plans import Names
from .checks import Function
from .kernels import Kernel, jit_body

P = ParamSpec("P")


def share_by_renaming(*named: str) -> Callable[[Callable[P, Kernel]], Callable[P, Kernel]]:
    """Memoise a function that makes kernels; those that differ by a renaming of axes run one compiled function.

    Args:
        named: the arguments that hold names of axes: all strings in these are names.
    """

    def decorate(make: Callable[P, Kernel]) -> Callable[P, Kernel]:
        # The cached functions below are called by position.
        places = [make.__code__.co_varnames.index(name) for name in named]
        made: Callable[..., Kernel] = make

        @lru_cache(plans.CACHE)
        def for_any_names(*numbered: Hashable) -> tuple[Names, Function]:
            kernel = made(*numbered)
            return kernel.names, jit_body(_hide_names(kernel.body))

        @lru_cache(plans.CACHE)
        @wraps(make)
        def for_names(*args: Hashable) -> Kernel:
            kernel = made(*args)
            numbers: dict[str, str] = {}
            numbered = list(args)
            for place in places:
                numbered[place] = _number_names(args[place], numbers)
            names, shared = for_any_names(*numbered)
            # If not, the order of the result depends on the names themselves, and no function can be shared.
            if names == _number_names(kernel.names, numbers):
                kernel.call = _prefer(shared, kernel.call)
            return kernel

        return cast("Callable[P, Kernel]", for_names)

    return decorate


def _number_names(value: Any, numbers: dict[str, str]) -> Any:
    """Replace each name in a structure of tuples by a number, in the order of their first occurrence.

    A NamedTuple lists the fields that hold names in its attribute `AXIS_FIELDS`; strings in other fields are no names.
    """
    if isinstance(value, str):
        return numbers.setdefault(value, str(len(numbers)))
    if isinstance(value, Axis):
        return Axis(_number_names(value.name, numbers), value.size)
    if not isinstance(value, tuple):
        return value
    if not hasattr(value, "_fields"):
        return tuple(_number_names(part, numbers) for part in value)
    fields: tuple[str, ...] = getattr(value, "AXIS_FIELDS", ())
    changed = {field: _number_names(getattr(value, field), numbers) for field in fields}
    return value._replace(**changed)  # type: ignore[attr-defined]  # of a NamedTuple


def _hide_names(body: Function) -> Function:
    @wraps(body)
    def for_any_names(*arrays: Payload) -> Any:
        with features.nameless():
            return body(*arrays)

    return for_any_names


def _prefer(shared: Function, own: Function) -> Function:
    """Call the program shared by all names, unless an error or the mapping needs the names."""
    # Once names have mattered to this kernel, they always will.
    call = shared

    def for_these_names(*arrays: Payload) -> Any:
        nonlocal call
        try:
            return call(*arrays)
        except AxonymError:
            pass  # the call below raises it with names; the traceback must not show numbers either
        except features.NamesMatter:
            call = own
        return own(*arrays)

    return for_these_names
