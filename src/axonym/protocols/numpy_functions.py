"""Internal. Answers of NumPy's functions to named arrays: those that only read work; others would lose the names.

NumPy asks `__array_function__` of `NamedArray` and calls the result, see NEP 18.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..base.foreign import FUNCTIONS
from ..base.places import NAMES
from ..engine.checks import facts_by_number
from ..engine.core import Core, facts
from ..errors import OperandError, message

# These need no values: an array may be traced.
_OF_SHAPES: dict[str, Callable[..., Any]] = {
    "ndim": lambda a: a.ndim,
    "shape": lambda a: a.shape,
    "size": lambda a, axis=None: a.size if axis is None else a.shape[axis],
}
# These print or store the same for any names.
_OF_VALUES = (
    "array2string array_repr array_str can_cast common_type iscomplexobj isrealobj may_share_memory "
    "min_scalar_type result_type save savetxt savez savez_compressed shares_memory"
)
# These compare by position, which is right for arrays with the same names in the same order.
_COMPARISONS = ("allclose", "array_equal", "array_equiv")


class ArrayFunction:
    """The attribute `__array_function__`, on the class only, where NumPy looks for it; instances lack it.

    Other libraries look for it on an instance: xarray would keep an array that has it as data, and read its shape by
    position.
    """

    def __get__(self, x: object, cls: type) -> Callable[..., Any]:
        if x is not None:
            raise AttributeError("__array_function__")
        return _answer


def _answer(
    x: Core, function: Any, types: object, args: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """Apply a function of NumPy to arguments that include named arrays.

    Raises:
        OperandError: if it would answer by position.
    """
    name = function.__name__
    leaves = jax.tree.leaves((list(args), dict(options)), is_leaf=_is_named)
    named = [leaf for leaf in leaves if isinstance(leaf, Core)]
    if name in _OF_SHAPES:
        return _OF_SHAPES[name](*args, **options)
    are_alike = len({x.names for x in named}) == 1
    if name in _OF_VALUES.split() or (name in _COMPARISONS and are_alike):
        args, options = jax.tree.map(_to_numpy, (list(args), dict(options)), is_leaf=_is_named)
        return function(*args, **options)
    raise _refuse_position(function, named or [x])  # np.zeros(3, like=x) leaves x out


def _is_named(leaf: object) -> bool:
    return isinstance(leaf, Core)


def _to_numpy(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, Core) else leaf


def _refuse_position(function: Any, named: Sequence[Core]) -> OperandError:
    module, name = function.__module__.replace("numpy", "np", 1), function.__name__
    lines = facts_by_number(named) if len(named) > 1 else [f"array has: {facts(named[0])}"]
    form = _suggest_form(module, name)
    plain = "np.asarray(x) is the array without its names, in storage order"
    problem = "functions of NumPy work by position, and return arrays without names"
    hint = f"{form}; {plain}" if form else plain
    return OperandError(message(f"{module}.{name}", problem, *lines, hint=hint))


def _suggest_form(module: str, name: str) -> str | None:
    """Say what to write in place of a function of NumPy; None if there is no counterpart."""
    from ..ops import linalg  # slow to import

    if module == "np.linalg" and name in linalg.__all__:
        return f"write axn.linalg.{name}"
    if name in " ".join(NAMES["axonym"].values()).split():
        return f"write axn.{name}"
    return FUNCTIONS.get(name)
