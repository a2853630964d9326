"""The engines that turn positional functions into named ones, one for each kind of operation.

An engine looks up a *kernel*: the whole operation (check sizes, align by name, compute) as one jitted function of
arrays, cached per function and names. With concrete arrays it is one dispatch; while tracing it is inlined, so that
the jaxpr is that of hand-written code. All errors about axes are raised here, in one wording; sizes are checked while
a kernel is traced, hence once per shape.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.export import is_symbolic_dim

from .. import _constraints, layout, plans
from ..axis import Axis, AxisSelection, AxisSelector, Pairs, selection, selector
from ..core import Core, facts, shape_of, wrap
from ..errors import AxisError, AxisSizeError, OperandError, describe, message
from ..plans import Names
from ._nonempty import check_nonempty

if TYPE_CHECKING:
    from ..array import NamedArray

Function = Callable[..., Any]
Options = tuple[tuple[str, Any, Any], ...]
new: Function = object.__new__
_FLOATS = {float, complex, np.float16, np.float32, np.float64, np.complex64, np.complex128}
NAME_IT = "name it first: axn.named(array, (...)); plain operands must be scalars"
_UFUNC: Any = jnp.ufunc
NUMBERS = {bool, int, float, complex}
_DISALLOWED = "Disallowed host-to-device transfer"
_PLAIN = (int, float, complex, np.generic, np.ndarray, jax.Array)
# Of no elements, these have no result without an initial value.


class Kernel:
    """One operation for given names.

    Attributes:
        names: the names of the result.
        body: the operation on arrays.
        call: the same, jitted; inlined while tracing.
    """

    __slots__ = ("body", "call", "names")

    def __init__(self, names: Names, body: Function) -> None:
        @wraps(body)
        def fetchable(*arrays: Any) -> Any:
            return _constraints.unsplit_if_empty(body(*arrays))

        @wraps(body)
        def on_one_mesh(*arrays: Any) -> Any:
            _constraints.check_one_mesh(jax.tree.leaves(arrays))  # while tracing: later calls run nothing of this
            return fetchable(*arrays)

        self.names = names
        self.body = fetchable
        self.call = jax.jit(on_one_mesh, inline=_constraints.INLINE)


def title(fn: Function | str) -> str:
    """Return the name of a function in errors."""
    if isinstance(fn, str):
        return fn
    return title(fn.func) if isinstance(fn, partial) else fn.__name__.lstrip("_")


def fail(function: str, flaw: AxisError, *operands: Any) -> NoReturn:
    """Raise the error of a plan again, with the axes of the operands."""
    named = {i: x for i, x in enumerate(operands, start=1) if isinstance(x, Core)}
    lines = [f"{'array' if len(named) == 1 else f'operand {i}'} has: {facts(x)}" for i, x in named.items()]
    raise type(flaw)(message(function, str(flaw), *lines, hint=flaw.hint)) from None


def static(fn: Function | str, options: dict[str, Any]) -> Options:
    """Convert options to a cache key that distinguishes equal values with different kernels: 1, 1.0 and True.

    It also distinguishes 0.0 from -0.0.
    """
    try:
        key = tuple([(n, x, repr(x) if x.__class__ in _FLOATS else x.__class__) for n, x in options.items()])
        hash(key)
    except TypeError:
        for name, value in options.items():
            if not isinstance(value, Hashable):
                problem = f"{name} must be a static Python value, not {type(value).__name__}"
                raise OperandError(message(title(fn), problem)) from None
        raise
    return key


def keywords_of(options: Options) -> dict[str, Any]:
    """Convert options back to keyword arguments."""
    return {name: value for name, value, _ in options}


def run(call: Function, *operands: Any) -> Any:
    """Call a function of arrays and Python numbers; under `jax.transfer_guard`, move the numbers explicitly."""
    try:
        return call(*operands)
    except jax.errors.JaxRuntimeError as error:
        return run_moved(error, call, *operands)


def run_moved(error: Exception, call: Function, *operands: Any) -> Any:
    """Call a function again after an error, if a guard against transfers disallowed those of Python numbers.

    The guard is there to find arrays that move in secret: a number is part of the program. Without the guard it moves
    with the call, which is faster.
    """
    numbers = [operand.__class__ in NUMBERS or isinstance(operand, np.generic) for operand in operands]
    if _DISALLOWED not in str(error) or not any(numbers):
        raise error
    return call(*(jax.device_put(x) if moves else x for x, moves in zip(operands, numbers, strict=True)))


def constant(array: Any) -> Any:
    """Move an array that the library computed by NumPy explicitly, unless it becomes part of a program."""
    return array if _constraints.tracing() else jax.device_put(array)


def check_sizes(function: str, operands: Sequence[Names], arrays: Sequence[Any]) -> dict[str, int]:
    """Check that each name has one size in all operands, and return the sizes; a plain operand has no names.

    Raises:
        AxisSizeError: if a name has two.
    """
    shapes = [shape_of(function, a, n) if n else jnp.shape(a) for a, n in zip(arrays, operands, strict=True)]
    return one_size(function, operands, shapes)


def one_size(function: str, operands: Sequence[Names], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Do `check_sizes` for shapes."""
    sizes: dict[str, int] = {}
    for names, shape in zip(operands, shapes, strict=True):
        for name, size in zip(names, shape[len(shape) - len(names) :], strict=True):
            if sizes.setdefault(name, size) != size:
                described = map(describe, operands, shapes)
                lines = [f"operand {i} has: {text}" for i, text in enumerate(described, start=1)]
                problem = f"axis {name!r} has two sizes: {sizes[name]} and {size}"
                raise AxisSizeError(message(function, problem, *lines, hint=f"rename one of the two {name!r} axes"))
    return sizes


def check_given(function: str, given: Pairs, names: Names, shape: tuple[int, ...]) -> None:
    """Check the sizes of axes that were given as `Axis`."""
    sizes = dict(zip(names, shape[len(shape) - len(names) :], strict=True))
    for name, size in given:
        if size is not None and sizes[name] != size:
            problem = f"axis {name!r} was given with size {size}, but has size {sizes[name]}"
            raise AxisSizeError(message(function, problem, f"array has: {describe(names, shape)}"))


def lined_up(array: jax.Array, names: Names, target: Names) -> jax.Array:
    """Permute and expand an array so that its named dimensions are aligned with `target`.

    Missing axes become dimensions of size 1, never full copies, which autodiff would save.
    """
    plan = plans.align(names, target)
    if plan is None or not jnp.ndim(array):
        return array
    anonymous = array.ndim - len(names)
    if plan.order is not None:
        array = lax.transpose(array, (*range(anonymous), *(anonymous + at for at in plan.order)))
    if plan.insert:
        array = lax.expand_dims(array, [anonymous + at for at in plan.insert])
    return array


def agreed(operands: Sequence[Names], arrays: Sequence[jax.Array], target: Names) -> Sequence[jax.Array]:
    """On a mesh with Explicit axes, reshard operands with conflicting shardings to a common one, by name."""
    if not any(map(_constraints.has_explicit_axes, arrays)):
        return arrays
    arrays = _constraints.on_one_mesh(arrays)
    entries = [_constraints.entries_of(array) for array in arrays]
    given = [own[len(own) - len(names) :] if own else () for own, names in zip(entries, operands, strict=True)]
    largest = operands.index(target)
    table = _constraints.settle(target, [(operands[i], given[i]) for i in (largest, *range(len(operands)))])
    moved = []
    for array, names, own in zip(arrays, operands, entries, strict=True):
        if not own:
            moved.append(array)
            continue
        anonymous = len(own) - len(names)
        wanted = [table[name] for name in names]
        moved.append(_constraints.relayout(array, [*own[:anonymous], *wanted], names))
    return moved


@lru_cache(plans.CACHE)
def _elementwise(fn: Function, operands: tuple[Names | None, ...], options: Options) -> Kernel:
    """Make the kernel of an elementwise function; an operand that is None is a plain scalar or array."""
    known = tuple(names or () for names in operands)
    target = plans.broadcast(known)
    function, keywords = title(fn), keywords_of(options)

    def body(*arrays: Any) -> Any:
        check_sizes(function, known, arrays)
        anonymous = max(
            (jnp.ndim(array) - len(names) for array, names in zip(arrays, operands, strict=True) if names is not None),
            default=0,
        )
        for array, names in zip(arrays, operands, strict=True):
            if names is None and jnp.ndim(array) > anonymous:
                problem = f"cannot combine a plain array of shape {jnp.shape(array)} with axes {', '.join(target)}"
                raise OperandError(message(function, problem, hint=NAME_IT))
        arrays = tuple(agreed(known, arrays, target))
        return fn(*(lined_up(a, names, target) for a, names in zip(arrays, known, strict=True)), **keywords)

    return Kernel(target, body)


def plain(function: str, operand: Any) -> Any:
    """Accept a scalar or an array as an operand without names.

    Raises:
        OperandError: for anything else.
    """
    if operand.__class__ in NUMBERS or isinstance(operand, _PLAIN) or is_symbolic_dim(operand):
        return operand
    problem = f"cannot combine a NamedArray and {type(operand).__name__}"
    hint = NAME_IT if isinstance(operand, list | tuple) else "operands are NamedArrays, scalars or 0-d arrays"
    raise OperandError(message(function, problem, hint=hint))


_stand_ins: dict[int, Function] = {}


def _stand_in(fn: Function) -> Function:
    """Wrap a `jnp.ufunc` in a function: the hash of a ufunc runs in Python and would cost a tenth of an operation."""

    @wraps(fn)
    def plain_function(*arrays: Any) -> Any:
        return fn(*arrays)

    _stand_ins[id(fn)] = plain_function  # the entry keeps fn alive, and so its id unique
    return plain_function


def unary(fn: Function, x: Core) -> "NamedArray":
    """Apply a function to each element."""
    try:
        (array,), names = x.node
    except AttributeError:
        raise unnamed(title(fn), x) from None
    try:
        call = _of_one[fn][names]
    except KeyError:
        call = plans.keep(_of_one.setdefault(fn, {}), names, _elementwise(fn, (names,), ()).call)
    made: NamedArray = new(type(x))  # `wrap`, inlined to save a call
    made.node = ((call(array),), names)
    return made


def unary_with(fn: Function, x: Core, **options: Any) -> "NamedArray":
    """Apply a function that has options to each element."""
    if not isinstance(x, Core):
        raise unnamed(title(fn), x)
    (array,), names = x.node
    return wrap(x, _elementwise(fn, (names,), static(fn, options)).call(array), names)


# Caches of kernels, per function and then per key: a microsecond is a fifth of a whole operation. They are plain
# dicts because Python looks up keys in these, unlike in subclasses, without a call.
_of_one: dict[Function, dict[Names, Any]] = {}
_of_two: dict[Function, dict[tuple[Names, Names], Kernel]] = {}
_with_one: dict[Function, dict[Names, Any]] = {}
_with_two: dict[Function, dict[Names, Any]] = {}
_along_one: dict[Function, dict[tuple[Names, Any], Any]] = {}


def unnamed(function: str, x: Any) -> OperandError:
    """Build the error for a first operand without names."""
    problem = f"expected a NamedArray, got {type(x).__name__}"
    shape = getattr(x, "shape", None)
    lines = [] if shape is None else [f"its shape: {tuple(shape)}"]
    return OperandError(message(function, problem, *lines, hint='name it first: axn.named(array, ("batch", ...))'))


def binary(fn: Function, x: Any, y: Any) -> "NamedArray":
    """Apply a function of two operands, at least one of them named, to each pair of elements by name."""
    if fn.__class__ is _UFUNC:
        fn = _stand_ins.get(id(fn)) or _stand_in(fn)
    if isinstance(x, Core):
        (a,), left = x.node
        if y.__class__ not in NUMBERS:
            if isinstance(y, Core):
                (b,), right = y.node
                try:
                    kernel = _of_two[fn][left, right]
                except KeyError:
                    kernel = _paired(fn, x, y)
                return wrap(x, kernel.call(a, b), kernel.names)
            plain(title(fn), y)
        try:
            call = _with_one[fn][left]
        except KeyError:
            call = plans.keep(_with_one.setdefault(fn, {}), left, _elementwise(fn, (left, None), ()).call)
        made: NamedArray = new(type(x))
        try:
            made.node = ((call(a, y),), left)
        except jax.errors.JaxRuntimeError as error:
            made.node = ((run_moved(error, call, a, y),), left)
        return made
    if not isinstance(y, Core):
        raise unnamed(title(fn), x)
    (b,), right = y.node
    if x.__class__ not in NUMBERS:
        plain(title(fn), x)
    return wrap(y, run(_elementwise(fn, (None, right), ()).call, x, b), right)


def _paired(fn: Function, x: Core, y: Core) -> Kernel:
    names = x.names, y.names
    try:
        kernel = _elementwise(fn, names, ())
    except AxisError as flaw:
        fail(title(fn), flaw, x, y)
    return plans.keep(_of_two.setdefault(fn, {}), names, kernel)


def between(fn: Function, x: Core, low: Any, high: Any) -> "NamedArray":
    """Apply a function that takes two Python numbers to each element."""
    try:
        (array,), names = x.node
    except AttributeError:
        raise unnamed(title(fn), x) from None
    try:
        call = _with_two[fn][names]
    except KeyError:
        call = plans.keep(_with_two.setdefault(fn, {}), names, _elementwise(fn, (names, None, None), ()).call)
    made: NamedArray = new(type(x))
    made.node = ((run(call, array, low, high),), names)
    return made


def parted(fn: Function, operands: Sequence[Any]) -> tuple[Core, tuple[Names | None, ...], list[Any]]:
    """Split operands into the first that has names, the names of each (None for a plain one), and the arrays."""
    like: Core | None = None
    named: list[Names | None] = []
    arrays: list[Any] = []
    for x in operands:
        if x.__class__ in NUMBERS:
            named.append(None)
            arrays.append(x)
        elif isinstance(x, Core):
            like = x if like is None else like
            (array,), names = x.node
            named.append(names)
            arrays.append(array)
        else:
            named.append(None)
            arrays.append(plain(title(fn), x))
    if like is None:
        raise unnamed(title(fn), operands[0])
    return like, tuple(named), arrays


def nary(fn: Function, *operands: Any, **options: Any) -> "NamedArray":
    """Apply a function of any number of operands, at least one of them named, to elements by name."""
    like, named, arrays = parted(fn, operands)
    try:
        kernel = _elementwise(fn, named, static(fn, options) if options else ())
    except AxisError as flaw:
        fail(title(fn), flaw, *operands)
    return wrap(like, run(kernel.call, *arrays), kernel.names)


@lru_cache(plans.CACHE)
def _reduction(fn: Function, names: Names, axis: Any, where: Names | None, removes: bool, options: Options) -> Kernel:
    """Make the kernel of a function over axes that may have a mask; `axis` None means all of them."""
    function, keywords = title(fn), keywords_of(options)
    given = _pairs(axis, function, names)
    removed = tuple(name for name, _ in given)
    at = plans.positions(names, removed)
    if where is not None:
        plans.require(names, where)

    def body(array: Any, *rest: Any) -> Any:
        shape = shape_of(function, array, names)
        check_given(function, given, names, shape)
        check_nonempty(function, names, shape, at, keywords)
        if where is None:
            return fn(array, *rest, axis=at, **keywords)
        mask, *numbers = rest
        if not where and jnp.ndim(mask) > array.ndim - len(names):
            problem = f"the mask has shape {jnp.shape(mask)} and no names"
            raise OperandError(message(function, problem, f"array has: {describe(names, array.shape)}", hint=NAME_IT))
        check_sizes(function, (names, where), (array, mask))
        array, mask = agreed((names, where), (array, mask), names)
        return fn(array, *numbers, axis=at, where=lined_up(mask, where, names), **keywords)

    return Kernel(plans.without(names, removed) if removes else names, body)


def keyed(axis: AxisSelection | None, fn: Function) -> str | Pairs | None:
    """Convert an axis argument to a cache key, cheaply in the usual cases."""
    if axis is None or isinstance(axis, str):
        return axis
    if isinstance(axis, Axis):
        return ((axis.name, axis.size),)
    return selection(axis, title(fn))


def _pairs(axis: Any, function: str, names: Names) -> Pairs:
    """Normalise the axis argument in the key of a kernel; None means all axes."""
    if axis is None:
        return tuple((name, None) for name in names)
    return axis if isinstance(axis, tuple) else selection(axis, function)


def reduction(fn: Function, x: Core, axis: AxisSelection | None, where: Any = None, **options: Any) -> "NamedArray":
    """Apply a function that removes `axis`, over the elements where `where` is true."""
    return _over(fn, x, axis, where, True, options)


def normalization(
    fn: Function, x: Core, axis: AxisSelection | None, where: Any = None, *numbers: float
) -> "NamedArray":
    """Apply a function of an array and numbers over `axis` that keeps it, over the elements where `where` is true."""
    return _over(fn, x, axis, where, False, {}, *numbers)


def _over(
    fn: Function,
    x: Core,
    axis: AxisSelection | None,
    where: Any,
    removes: bool,
    options: dict[str, Any],
    *numbers: float,
) -> "NamedArray":
    if not isinstance(x, Core):
        raise unnamed(title(fn), x)
    (array,), names = x.node
    arrays: tuple[Any, ...] = (array,)
    masked: Names | None = None
    if isinstance(where, Core):
        (mask,), masked = where.node
        arrays = (array, mask)
    elif where is not None:
        arrays, masked = (array, plain(title(fn), where)), ()
    key = keyed(axis, fn)
    try:
        kernel = _reduction(fn, names, key, masked, removes, static(fn, options) if options else ())
    except AxisError as flaw:
        fail(title(fn), flaw, x, where)
    result = run(kernel.call, *arrays, *numbers) if numbers else kernel.call(*arrays)
    return wrap(x, result, kernel.names)


@lru_cache(plans.CACHE)
def _along(
    fn: Function, names: Names, axis: Any, removes: bool, to: tuple[str, int | None] | None, options: Options
) -> Kernel:
    """Make the kernel of a function along one whole axis, or along several, flattened."""
    function, keywords = title(fn), keywords_of(options)
    given = _pairs(axis, function, names)
    chosen = tuple(name for name, _ in given)
    at = plans.positions(names, chosen)
    rest = plans.without(names, chosen)
    if len(at) != 1 and not removes:
        raise AxisError(f"needs one axis, got {len(at)}", "flatten the axes first: x.flatten_axes(...)")
    target = rest if removes else names if to is None else plans.rename(names, ((chosen[0], to[0]),))

    def body(array: Any) -> Any:
        shape = shape_of(function, array, names)
        check_given(function, given, names, shape)
        check_nonempty(function, names, shape, at, keywords)
        if len(at) == 1:
            call = partial(fn, axis=at[0], **keywords)
            if removes:
                return call(array)
            array = whole(array, at, names)
            result = local(call, [array], list(_constraints.entries_of(array)))
            if to is not None:
                check_given(function, (to,), target, result.shape)
            return result
        kept = shape[: len(shape) - len(names)] + tuple(shape[i] for i in plans.positions(names, rest))
        array = lined_up(whole(array, at), names, (*rest, *chosen))
        return fn(lax.reshape(array, (*kept, math.prod(shape[i] for i in at))), axis=-1, **keywords)

    return Kernel(target, body)


def whole(array: jax.Array, at: Sequence[int], names: Names = ()) -> jax.Array:
    """On a mesh with Explicit axes, gather the given dimensions, which an operation cannot process in shards."""
    if not _constraints.has_explicit_axes(array):
        return array
    entries = list(_constraints.entries_of(array))
    for position in at:
        entries[position] = ()
    return _constraints.relayout(array, entries, names)


def local(fn: Function, arrays: Sequence[jax.Array], results: Any) -> Any:
    """Call a function of arrays with Explicit shardings as on Auto axes.

    Many operations of JAX do not support Explicit shardings; within the function the compiler decides on layouts.

    Args:
        fn: a function of arrays.
        arrays: its arguments.
        results: the mesh axes of each dimension of the result; a tuple of such lists for several results.
    """
    typed = next((array for array in arrays if _constraints.has_explicit_axes(array)), None)
    if typed is None:
        return fn(*arrays)
    mesh = jax.typeof(typed).sharding.mesh
    several = isinstance(results, tuple)
    shardings = [_constraints.sharding_from(typed, entries) for entries in (results if several else (results,))]
    out = tuple(shardings) if several else shardings[0]
    return _constraints.untyped(fn, mesh, out)(*map(_with_typed_gradient, arrays))


def _with_typed_gradient(value: Any) -> Any:
    """Multiply an array made before the mesh by one: its gradient then has the mesh's type, not that in `local`.

    In an eager gradient, the types do not show whether this is needed.
    """
    if not isinstance(value, Tracer) or not jnp.issubdtype(value.dtype, jnp.inexact):
        return value
    return value * 1 if jax.typeof(value).sharding.mesh.empty or not _constraints.tracing() else value


def broadcast_entries(arrays: Sequence[Any]) -> list[layout.Entry]:
    """Return the mesh axes of each dimension after broadcasting arrays of agreed layouts by position."""
    entries: list[layout.Entry] = [()] * max(map(jnp.ndim, arrays))
    for array in arrays:
        for at, entry in enumerate(reversed(_constraints.entries_of(array)), start=1):
            entries[-at] = entry or entries[-at]
    return entries


def along(fn: Function, x: Core, axis: AxisSelection | None) -> "NamedArray":
    """Apply a function along one axis, which the result has too, perhaps with another size."""
    if type(axis) is not str:
        return along_with(fn, x, axis)
    try:
        (array,), names = x.node
    except AttributeError:
        raise unnamed(title(fn), x) from None
    try:
        call = _along_one[fn][names, axis]
    except KeyError:
        try:
            kernel = _along(fn, names, axis, False, None, ())
        except AxisError as flaw:
            fail(title(fn), flaw, x)
        call = plans.keep(_along_one.setdefault(fn, {}), (names, axis), kernel.call)
    made: NamedArray = new(type(x))
    made.node = ((call(array),), names)
    return made


def along_with(
    fn: Function, x: Core, axis: AxisSelection | None, *, to: AxisSelector | None = None, **options: Any
) -> "NamedArray":
    """Apply a function with options along one axis, which the result may rename to `to`."""
    return _apply_along(fn, x, axis, False, to, options)


def search(fn: Function, x: Core, axis: AxisSelection | None, **options: Any) -> "NamedArray":
    """Apply a function that finds a position along an axis, or along several, flattened."""
    return _apply_along(fn, x, axis, True, None, options)


def _apply_along(
    fn: Function,
    x: Core,
    axis: AxisSelection | None,
    removes: bool,
    to: AxisSelector | None,
    options: dict[str, Any],
) -> "NamedArray":
    if not isinstance(x, Core):
        raise unnamed(title(fn), x)
    (array,), names = x.node
    key: Any = axis if axis.__class__ is str else keyed(axis, fn)
    new = None if to is None else selector(to, title(fn))
    try:
        kernel = _along(fn, names, key, removes, new, static(fn, options) if options else ())
    except AxisError as flaw:
        fail(title(fn), flaw, x)
    return wrap(x, kernel.call(array), kernel.names)
