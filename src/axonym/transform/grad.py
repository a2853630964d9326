"""Derivatives of functions of named arrays: gradients, and Jacobians with the names of both sides.

A gradient has the axes of its argument, and a Jacobian the axes of the output and of the argument. `jax.grad` works on
named arrays too, if the function returns a plain scalar; the functions here also take a named one.
"""

import functools
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..array import NamedArray, is_named_array
from ..base.callers import users_line
from ..base.calls import explain_calls
from ..base.kinds import is_array, type_text
from ..engine.core import facts, shape_of
from ..errors import (
    AxisClashError,
    AxisError,
    AxisNotFoundError,
    AxisSizeError,
    AxonymError,
    OperandError,
    message,
    suggestion,
)
from ..layout import context, explicit
from ..layout.scope import current_scope
from ..names import plans
from .devices import require_own_rows
from .leaves import is_hole, refilled

__all__ = ["grad", "hessian", "jacfwd", "jacrev", "value_and_grad"]

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
Renames = Mapping[str, str]

_NUMBER = (
    "a parameter is an array: jnp.array(0.1). To leave numbers alone, differentiate by eqx.filter_grad, or declare the "
    "field with eqx.field(static=True)"
)
_FILTER = (
    "eqx.filter_grad(fn) takes any model: it differentiates with respect to floating arrays only"
)


def grad(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]:
    """Make the function that computes the gradient of a scalar, which may be a NamedArray without axes.

    A gradient has the axes of its argument. For a function that returns `x.scalar()`, `jax.grad` does the same.
    Inside a `shard_map`, the gradient with respect to a value that several devices share is summed over them.

    Args:
        fn: a function that returns a scalar, or a pair of one and anything else with `has_aux`.
        argnums: the positions of the arguments to differentiate with respect to.
        has_aux: the function returns a pair, whose second part is returned after the gradient.
        holomorphic: as in `jax.grad`.
        allow_int: as in `jax.grad`.

    Returns:
        A function with the arguments of `fn`. It returns the gradient with respect to one argument, a tuple of them for
        several, or a pair of this and the auxiliary data.

    Raises:
        AxisSizeError: if the function returns an array with dimensions.
        ShardingError: inside a `shard_map`, if a `vmap`, `nmap` or `map` asks for the gradient of each row, and the sum
            over devices would mix the rows of several.

    Examples:
        >>> axn.grad(lambda x: (x**2).sum())(axn.named([1.0, 2.0], "x"))
        NamedArray(float32[x=2])
        [2. 4.]
    """
    both = _value_and_grad("grad", fn, argnums, has_aux, holomorphic, allow_int)

    @functools.wraps(fn)
    def gradient(*args: P.args, **kwargs: P.kwargs) -> object:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return gradient


def value_and_grad(
    fn: Callable[P, R],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[R, Any]]:
    """Make the function that computes the value of `fn` and its gradient; arguments and errors are those of `grad`.

    Returns:
        A function with the arguments of `fn` that returns a pair: what `fn` returns, which is a pair itself with
        `has_aux`, and the gradient.

    Examples:
        >>> loss, gradient = axn.value_and_grad(lambda x: (x**2).sum())(axn.named([1.0, 2.0], "x"))
        >>> loss
        NamedArray(float32[])
        5.0
    """
    return _value_and_grad("value_and_grad", fn, argnums, has_aux, holomorphic, allow_int)


def _value_and_grad(
    function: str,
    fn: Function,
    argnums: int | Sequence[int],
    has_aux: bool,
    holomorphic: bool,
    allow_int: bool,
) -> Function:
    @functools.wraps(fn)
    def scalar(*args: object, **kwargs: object) -> Any:
        returned = fn(*args, **kwargs)
        value = _check_aux(function, returned)[0] if has_aux else returned
        if isinstance(value, NamedArray):
            if shape_of(function, value.array, value.names):
                problem, line = "the function must return a scalar", f"it returned: {facts(value)}"
                raise AxisSizeError(message(function, problem, line, hint="reduce it: x.sum()"))
            value = value.array
        scope = current_scope()
        # In a map over rows that are split over devices, reverse mode would add up the rows of all of them.
        if scope is not None and scope.rows:
            taken = [args[number] for number in _list_numbers(argnums)]
            require_own_rows(function, [value], taken, scope.axes_of_rows)
        # JAX differentiates the plain scalar; the value itself goes through as auxiliary data.
        return value, returned

    both = jax.value_and_grad(
        scalar, argnums, has_aux=True, holomorphic=holomorphic, allow_int=allow_int
    )

    @functools.wraps(fn)
    def value_and_gradient(*args: object, **kwargs: object) -> Any:
        if context.get_taken_axes():  # gradients are mapped even if the arguments are not
            called = list(args)
            for number in _list_numbers(argnums):
                if -len(args) <= number < len(args):
                    called[number] = jax.tree.map(_leave_taken_axes, called[number])
            args = tuple(called)
        _warn_of_numbers(function, args, argnums)
        with _explain_leaves(function, args, argnums, allow_int):
            (_, returned), gradients = both(*args, **kwargs)
        return returned, gradients

    return value_and_gradient


@contextmanager
def _explain_leaves(
    function: str, args: Sequence[object], argnums: int | Sequence[int], allow_int: bool
) -> Generator[None]:
    """Name the leaf of an argument for which JAX refuses to differentiate."""
    try:
        yield
    except TypeError as flaw:
        if isinstance(flaw, AxonymError):
            raise
        # JAX looks at these leaves before it calls the function, so one that it refuses is the reason.
        kind = np.number if allow_int else np.inexact
        for number in _list_numbers(argnums):
            asked = args[number] if -len(args) <= number < len(args) else None
            for path, leaf in jax.tree_util.tree_leaves_with_path(asked, is_named_array):
                for value in jax.tree.leaves(leaf):
                    has = type_text(value)
                    if is_array(value):
                        has = (
                            f"{value.dtype}, {facts(leaf) if is_named_array(leaf) else value.shape}"
                        )
                    elif isinstance(value, int | float | complex):
                        value = np.asarray(value)
                    if not is_array(value) or not jnp.issubdtype(value.dtype, kind):
                        place = f"argument {number}{jax.tree_util.keystr(path)}"
                        problem = f"{place} has no derivatives: {has}"
                        raise OperandError(message(function, problem, hint=_FILTER)) from flaw
        raise


def _warn_of_numbers(function: str, args: Sequence[object], argnums: int | Sequence[int]) -> None:
    """Warn of a Python number within a model: it gets a gradient, so an optimiser would train it."""
    for number in _list_numbers(argnums):
        asked = args[number] if -len(args) <= number < len(args) else None
        for path, leaf in jax.tree_util.tree_leaves_with_path(asked):
            # A number that is an argument by itself is intended. NumPy's float64 numbers are Python floats too.
            if path and isinstance(leaf, float | complex) and not isinstance(leaf, np.generic):
                place = f"argument {number}{jax.tree_util.keystr(path)}"
                problem = f"{place} is the Python number {leaf!r}, and gets a gradient as a parameter does"
                warnings.warn(message(function, problem, hint=_NUMBER), stacklevel=users_line()[1])


def _leave_taken_axes(leaf: object) -> Any:
    return explicit.remove_taken_axes(leaf) if isinstance(leaf, jax.Array) else leaf


def _list_numbers(argnums: int | Sequence[int]) -> tuple[int, ...]:
    """Return the argument numbers as a tuple; a single one may be given as an int."""
    return (int(argnums),) if isinstance(argnums, int | Integral) else tuple(argnums)


def jacfwd(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    holomorphic: bool = False,
    rename: Renames | None = None,
) -> Callable[P, Any]:
    """Make the function that computes the Jacobian by forward mode, one pass per element of the argument.

    Forward mode is faster than `jacrev` if the output has more elements than the argument.

    Args:
        fn: a function of arrays, which returns arrays.
        argnums: the positions of the arguments to differentiate with respect to.
        has_aux: the function returns a pair, whose second part is returned after the Jacobian.
        holomorphic: as in `jax.jacfwd`.
        rename: other names for axes of the arguments; needed for axes that the output has too.

    Returns:
        A function with the arguments of `fn`. The Jacobian has the axes of the output and then those of the argument.
        For trees, it is the tree of outputs whose leaves are trees of arguments, as in `jax.jacfwd`. Dimensions without
        names come first; if neither side is a NamedArray, the result is a plain array.

    Raises:
        AxisClashError: if an output and an argument have an axis of the same name that `rename` lacks.
        AxisNotFoundError: if `rename` has an axis that no argument has.

    Examples:
        >>> X = axn.Axis("x", 3)
        >>> axn.jacfwd(lambda x: x**2, rename={"x": "x_in"})(axn.arange(X, dtype=float)).shape
        {'x': 3, 'x_in': 3}
    """
    return _jacobian("jacfwd", jax.jacfwd, fn, argnums, has_aux, rename, holomorphic=holomorphic)


def jacrev(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    rename: Renames | None = None,
) -> Callable[P, Any]:
    """Make the function that computes the Jacobian by reverse mode, one pass per element of the output.

    Arguments, results and errors are those of `jacfwd`; `allow_int` is that of `jax.jacrev`.

    Raises:
        ShardingError: inside a `shard_map`, if devices have the same argument and different outputs, whose rows would
            be summed over the devices.

    Examples:
        >>> x = axn.named([1.0, 2.0, 3.0], "x")
        >>> axn.jacrev(lambda x: (x * x).sum())(x).tolist()
        [2.0, 4.0, 6.0]
    """
    options = {"holomorphic": holomorphic, "allow_int": allow_int}
    return _jacobian("jacrev", jax.jacrev, fn, argnums, has_aux, rename, **options)


def hessian(
    fn: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    holomorphic: bool = False,
    rename: Renames | tuple[Renames, Renames] | None = None,
) -> Callable[P, Any]:
    """Make the function that computes second derivatives, the Jacobian of the Jacobian.

    Errors are those of `jacrev`.

    Args:
        fn: a function of arrays, which returns arrays.
        argnums: as in `jacfwd`.
        has_aux: as in `jacfwd`.
        holomorphic: as in `jax.hessian`.
        rename: other names for the second appearance of the argument's axes. If the output has axes of the argument
            too, a pair of mappings, for the first and the second appearance.

    Returns:
        A function with the arguments of `fn`. The result has the axes of the output, those of the argument, and those
        of the argument again under their other names.

    Examples:
        >>> x = axn.named([1.0, 2.0, 3.0], "x")
        >>> axn.hessian(lambda x: (x**3).sum(), rename={"x": "x_2"})(x).shape
        {'x': 3, 'x_2': 3}
    """
    first, second = rename if isinstance(rename, tuple) else (None, rename)
    options = {"holomorphic": holomorphic}
    # Forward over reverse: the gradient costs one pass, and each of its derivatives another.
    inner = _jacobian("hessian", jax.jacrev, fn, argnums, has_aux, first, **options)
    return _jacobian("hessian", jax.jacfwd, inner, argnums, has_aux, second, **options)


def _jacobian(
    function: str,
    transform: Function,
    fn: Function,
    argnums: int | Sequence[int],
    has_aux: bool,
    rename: Renames | None,
    **options: object,
) -> Function:
    """Differentiate as a function of plain arrays, and name the result; JAX would nest named arrays."""
    # Like JAX, a sequence of one argument gives a tuple of one Jacobian.
    numbers, is_one = _list_numbers(argnums), isinstance(argnums, int | Integral)
    renames = dict(rename or {})

    @functools.wraps(fn)
    def jacobian(*args: object, **kwargs: object) -> Any:
        for number in numbers:
            if not -len(args) <= number < len(args):
                problem = f"argument {number} is to be differentiated, but {len(args)} were given by position"
                raise OperandError(message(function, problem))
        taken = [_flatten(args[number]) for number in numbers]
        _check_renames(function, renames, [leaf for leaves, _ in taken for leaf in leaves])
        # JAX differentiates plain arrays; `positional` gives `fn` the named ones, and notes what its output was.
        raw = list(args)
        for number, (leaves, tree) in zip(numbers, taken, strict=True):
            raw[number] = tree.unflatten([_take_array(function, leaf) for leaf in leaves])
        outputs: list[tuple[list[_Side], Any]] = []

        def positional(*args: object, **kwargs: object) -> Any:
            called = list(args)
            for number, (leaves, tree) in zip(numbers, taken, strict=True):
                arrays = tree.flatten_up_to(args[number])
                called[number] = tree.unflatten(map(refilled, leaves, arrays))
            returned = fn(*called, **kwargs)
            value, aux = _check_aux(function, returned) if has_aux else (returned, None)
            leaves, tree = _flatten(value)
            arrays = [_take_array(function, leaf) for leaf in leaves]
            # Forward mode keeps devices apart: only reverse mode sums over them.
            if transform is jax.jacrev:
                require_own_rows(function, arrays, [called[number] for number in numbers])
            # Names are no values, so they need not pass through the transformation, which calls this once or more.
            outputs[:] = [(list(map(_make_side, leaves, arrays)), tree)]
            return tree.unflatten(arrays), aux

        with _explain_leaves(function, args, numbers, bool(options.get("allow_int"))):
            blocks, aux = transform(positional, numbers, has_aux=True, **options)(*raw, **kwargs)
        ((sides, tree),) = outputs
        # JAX nests the blocks: a tree of outputs, in each the arguments, and in each the leaves of one.
        rows: list[Any] = []
        for side, row in zip(sides, tree.flatten_up_to(blocks), strict=True):
            parts: list[Any] = []
            for (leaves, below), part in zip(taken, row, strict=True):
                arrays = zip(leaves, below.flatten_up_to(part), strict=True)
                named = [
                    _name_block(function, side, _find_names(leaf), x, renames) for leaf, x in arrays
                ]
                parts.append(below.unflatten(named))
            rows.append(parts[0] if is_one else tuple(parts))
        jacobians = tree.unflatten(rows)
        return (jacobians, aux) if has_aux else jacobians

    return jacobian


def _check_aux(function: str, returned: object) -> tuple[Any, Any]:
    if isinstance(returned, tuple | list) and len(returned) == 2:
        return returned[0], returned[1]
    kind = type(returned).__name__
    got = f"a {kind} of {len(returned)}" if isinstance(returned, tuple | list) else kind
    problem = "with has_aux, the function must return a pair of value and auxiliary data, "
    raise OperandError(message(function, f"{problem}not {got}"))


class _Side(NamedTuple):
    """The names of an output, None for a plain array, and its number of dimensions."""

    names: tuple[str, ...] | None
    ndim: int


def _make_side(leaf: Any, array: Any) -> _Side:
    return _Side(_find_names(leaf), jnp.ndim(array))


def _flatten(tree: object) -> tuple[list[Any], Any]:
    # A hole is a node with its content, which JAX takes as it is.
    return jax.tree.flatten(tree, is_leaf=lambda x: is_named_array(x) and not is_hole(x))


def _find_names(leaf: object) -> tuple[str, ...] | None:
    return leaf.names if isinstance(leaf, NamedArray) else None


def _take_array(function: str, leaf: object) -> Any:
    if not isinstance(leaf, NamedArray):
        return leaf
    shape_of(function, leaf.array, leaf.names)
    return leaf.array


def _check_renames(function: str, renames: Renames, inputs: Sequence[object]) -> None:
    known = dict.fromkeys(name for leaf in inputs for name in _find_names(leaf) or ())
    # A name that no argument has is misspelled, and would rename nothing.
    for name in renames:
        if name not in known:
            problem = f"rename has axis {name!r}, which no argument has"
            lines = f"axes of the arguments: {', '.join(known) or 'none'}"
            raise AxisNotFoundError(message(function, problem, lines, hint=suggestion(name, known)))


def _name_block(
    function: str, output: _Side, argument: tuple[str, ...] | None, array: Any, renames: Renames
) -> Any:
    """Name the derivatives of one output with respect to one argument."""
    if output.names is None and argument is None:
        return array
    left, right = output.names or (), argument or ()
    lines = (
        f"the output has: {', '.join(left) or 'no axes'}",
        f"the argument has: {', '.join(right) or 'no axes'}",
    )
    # Another argument may have the other axes of `rename`.
    own = tuple((old, new) for old, new in renames.items() if old in right)
    try:
        # A new name may be that of another axis of the argument.
        inner = plans.rename(right, own)
    except AxisError as flaw:
        raise type(flaw)(message(function, f"with rename, {flaw}", *lines)) from None
    for old, name in zip(right, inner, strict=True):
        if name in left:
            problem = f"the output and the argument both have axis {name!r}"
            hint = f'give that of the argument another name: rename={{"{old}": "{old}_in"}}'
            raise AxisClashError(message(function, problem, *lines, hint=hint))
    # Anonymous dimensions lead: first those of the output, then those of the argument.
    outer, start = output.ndim - len(left), array.ndim - len(right)
    order = (
        *range(outer),
        *range(output.ndim, start),
        *range(outer, output.ndim),
        *range(start, array.ndim),
    )
    return NamedArray(jnp.transpose(array, order), (*left, *inner))


explain_calls(globals(), __all__)
