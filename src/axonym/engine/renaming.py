"""Kernels that differ by a renaming of axes run one compiled function: a new name compiles nothing.

Most names never reach a compiled program. They matter to errors, and to operations that look up the current mapping.
So the shared function is traced with numbers as names. Where the trace finds something wrong, or looks up what is
current for names, the operation is traced again for its own.
"""

import itertools
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, cast

from ..axis import Axis
from ..current import features
from ..errors import AxonymError
from ..kinds import Payload
from ..names import plans
from ..names.plans import Names
from .checks import Function
from .kernels import Kernel, jitted

P = ParamSpec("P")


def up_to_renaming(*named: str) -> Callable[[Callable[P, Kernel]], Callable[P, Kernel]]:
    """Memoise a function that makes kernels; those that differ by a renaming of axes run one compiled function.

    Args:
        named: the arguments that hold names of axes: all strings in these are names.
    """

    def memoised(make: Callable[P, Kernel]) -> Callable[P, Kernel]:
        places = [make.__code__.co_varnames.index(name) for name in named]
        made: Callable[..., Kernel] = make

        @lru_cache(plans.CACHE)
        def for_any_names(*numbered: Hashable) -> tuple[Names, Function]:
            kernel = made(*numbered)
            return kernel.names, jitted(_nameless(kernel.body))

        @lru_cache(plans.CACHE)
        @wraps(make)
        def for_names(*args: Hashable) -> Kernel:
            kernel = made(*args)
            numbers: dict[str, str] = {}
            numbered = list(args)
            for place in places:
                numbered[place] = _numbered(args[place], numbers)
            names, shared = for_any_names(*numbered)
            # Otherwise, their order depends on more than where they stand in the arguments.
            if names == _numbered(kernel.names, numbers):
                kernel.call = _first_of(shared, kernel.call)
            return kernel

        return cast("Callable[P, Kernel]", for_names)

    return memoised


# The fields of a NamedTuple that hold names; strings elsewhere in it are none.
_NAMED = frozenset(
    ("name", "names", "axes", "steps", "update", "sources", "targets", "pieces", "checked")
)


def _numbered(value: Any, numbers: dict[str, str]) -> Any:
    """Replace each name in a structure of tuples by a number, in the order of their first occurrence."""
    if isinstance(value, str):
        return numbers.setdefault(value, str(len(numbers)))
    if isinstance(value, Axis):
        return Axis(_numbered(value.name, numbers), value.size)
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", ())
        parts: list[Any] = []
        for field, part in itertools.zip_longest(fields, value, fillvalue="names"):
            if field in _NAMED:
                parts.append(_numbered(part, numbers))
            else:
                parts.append(part)
        if fields:
            return value._make(parts)  # type: ignore[attr-defined]  # of a NamedTuple
        return tuple(parts)
    return value


def _nameless(body: Function) -> Function:
    @wraps(body)
    def for_any_names(*arrays: Payload) -> Any:
        with features.nameless():
            return body(*arrays)

    return for_any_names


def _first_of(shared: Function, own: Function) -> Function:
    """Call what is compiled for any names, unless names matter: to an error, or to what is read of a mapping."""
    call = shared

    def for_these_names(*arrays: Payload) -> Any:
        nonlocal call
        try:
            return call(*arrays)
        except AxonymError:
            pass  # numbers instead of names are not to be in the traceback either
        except features.NamesMatter:
            call = own
        return own(*arrays)

    return for_these_names
