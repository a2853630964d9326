"""Internal. Functions of single elements, or of elements matched by name.

`ops.elementwise` and the operators of arrays call it. This is the path that users meet most often, so the usual cases
are written out: look up a kernel by function and names, call it, put the names on the result.
"""

import itertools
from collections.abc import Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from ..base.kinds import Payload
from ..errors import OperandError, message
from ..names import plans
from ..names.plans import Names
from . import primitives
from .checks import (
    NAME_IT,
    NUMBERS,
    Function,
    anonymous_shape,
    check_sizes,
    no_names,
    plain,
    run_plan,
    title,
)
from .core import Core, wrap
from .kernels import (
    Kernel,
    Options,
    align_layouts,
    keywords_of,
    line_up,
    new,
    run,
    run_moved,
    static,
)
from .renaming import share_by_renaming

if TYPE_CHECKING:
    from ..array import NamedArray

_UFUNC: Any = jnp.ufunc


@share_by_renaming("operands")
def _make_elementwise(fn: Function, operands: tuple[Names | None, ...], options: Options) -> Kernel:
    """Make the kernel of an elementwise function; an operand that is None is a plain scalar or array."""
    known = tuple(names or () for names in operands)
    target = plans.broadcast(known)
    function, keywords = title(fn), keywords_of(options)

    def body(*arrays: Payload) -> Any:
        check_sizes(function, known, arrays)
        pairs = list(zip(map(jnp.ndim, arrays), operands, strict=True))
        # A plain array matches anonymous dimensions only: by position, it could meet a named one by accident.
        most = max((ndim for ndim, names in pairs if names is None), default=0)
        anonymous = max(ndim - len(names) for ndim, names in pairs if names is not None)
        if most > anonymous:
            raise _rank_error(function, operands, arrays, anonymous, target)
        if anonymous:
            anonymous_shape(function, known, list(map(jnp.shape, arrays)))
        arrays = tuple(align_layouts(known, arrays, target))
        lined = map(line_up, arrays, known, itertools.repeat(target))
        if anonymous:
            lined = map(_raise_rank, lined, itertools.repeat(anonymous + len(target)))
        return fn(*lined, **keywords)

    return Kernel(target, body)


def _raise_rank(array: Payload, rank: int) -> Payload:
    """Add leading dimensions, even if JAX may not promote ranks; a scalar needs none."""
    # `jax_numpy_rank_promotion` may forbid that JAX adds them.
    missing = rank - jnp.ndim(array)
    if not missing or not jnp.ndim(array):
        return array
    return lax.expand_dims(array, range(missing))


def _rank_error(
    function: str,
    operands: Sequence[Names | None],
    arrays: Sequence[Payload],
    anonymous: int,
    target: Names,
) -> OperandError:
    """Build the error for a plain array with more dimensions than the anonymous dimensions of the others."""
    axes = ", ".join(target)
    shapes = [jnp.shape(a) for a, names in zip(arrays, operands, strict=True) if names is None]
    shape = next(shape for shape in shapes if len(shape) > anonymous)
    problem = f"cannot combine a plain array of shape {shape} with axes {axes}"
    return OperandError(message(function, problem, hint=NAME_IT))


_stand_ins: dict[int, Function] = {}


def _stand_in(fn: Function) -> Function:
    """Wrap a `jnp.ufunc` in a function: the hash of a ufunc runs in Python and would cost a tenth of an operation."""
    # A primitive where there is one, which JAX traces without a jitted function around it.
    call = primitives.BY_FUNCTION.get(fn, fn)

    @wraps(fn)
    def plain_function(*arrays: Payload) -> Any:
        return call(*arrays)

    _stand_ins[id(fn)] = plain_function  # the entry keeps fn alive, and so its id unique
    return plain_function


def unary(fn: Function, x: Core) -> "NamedArray":
    """Apply a function to each element."""
    if not isinstance(x, Core):
        raise no_names(title(fn), x)
    (array,), names = x.node
    try:
        call = _of_one[fn][names]
    except KeyError:
        call = plans.keep(
            _of_one.setdefault(fn, {}), names, _make_elementwise(fn, (names,), ()).call
        )
    made: NamedArray = new(type(x))  # `wrap`, inlined to save a call
    made.node = ((call(array),), names)
    return made


def unary_with(fn: Function, x: Core, **options: object) -> "NamedArray":
    """Apply a function that has options to each element."""
    if not isinstance(x, Core):
        raise no_names(title(fn), x)
    (array,), names = x.node
    return wrap(x, _make_elementwise(fn, (names,), static(fn, options)).call(array), names)


# Caches of kernels, per function and then per key: a microsecond is a fifth of a whole operation. They are plain
# dicts because Python looks up keys in these, unlike in subclasses, without a call.
_of_one: dict[Function, dict[Names, Any]] = {}

_of_two: dict[Function, dict[tuple[Names, Names], Kernel]] = {}

_with_one: dict[Function, dict[Names, Any]] = {}

_with_two: dict[Function, dict[Names, Any]] = {}


def binary(fn: Function, x: Payload, y: object) -> "NamedArray":
    """Apply a function of two operands, at least one of them named, to each pair of elements by name."""
    if fn.__class__ is _UFUNC:
        try:
            fn = _stand_ins[id(fn)]
        except KeyError:
            fn = _stand_in(fn)
    if isinstance(x, Core):
        (a,), left = x.node
        if y.__class__ not in NUMBERS:
            if isinstance(y, Core):
                (b,), right = y.node
                try:
                    kernel = _of_two[fn][left, right]
                except KeyError:
                    kernel = _pair_kernel(fn, x, y)
                paired: NamedArray = new(type(x))  # `wrap`, inlined to save a call
                paired.node = ((kernel.call(a, b),), kernel.names)
                return paired
            plain(title(fn), y)  # raises unless it may be an operand
        try:
            call = _with_one[fn][left]
        except KeyError:
            call = plans.keep(
                _with_one.setdefault(fn, {}), left, _make_elementwise(fn, (left, None), ()).call
            )
        made: NamedArray = new(type(x))
        try:
            made.node = ((call(a, y),), left)
        except jax.errors.JaxRuntimeError as error:  # `run`, inlined too
            made.node = ((run_moved(error, call, a, y),), left)
        return made
    if not isinstance(y, Core):
        raise no_names(title(fn), x)
    (b,), right = y.node
    if x.__class__ not in NUMBERS:
        plain(title(fn), x)
    return wrap(y, run(_make_elementwise(fn, (None, right), ()).call, x, b), right)


def _pair_kernel(fn: Function, x: Core, y: Core) -> Kernel:
    names = x.names, y.names
    kernel = run_plan(fn, (x, y), _make_elementwise, fn, names, ())
    return plans.keep(_of_two.setdefault(fn, {}), names, kernel)


def between(fn: Function, x: Core, low: object, high: object) -> "NamedArray":
    """Apply a function that takes two Python numbers to each element."""
    if not isinstance(x, Core):
        raise no_names(title(fn), x)
    (array,), names = x.node
    try:
        call = _with_two[fn][names]
    except KeyError:
        call = plans.keep(
            _with_two.setdefault(fn, {}), names, _make_elementwise(fn, (names, None, None), ()).call
        )
    made: NamedArray = new(type(x))
    made.node = ((run(call, array, low, high),), names)
    return made


def separate_operands(
    fn: Function, operands: Sequence[Payload]
) -> tuple[Core, tuple[Names | None, ...], list[Payload]]:
    """Return the first operand that has names, the names of each (None for a plain one), and the arrays."""
    like: Core | None = None
    named: list[Names | None] = []
    arrays: list[Payload] = []
    for x in operands:
        # The class of a number is one look-up; the check of other plain operands takes longer.
        if x.__class__ in NUMBERS:
            named.append(None)
            arrays.append(x)
        elif isinstance(x, Core):
            if like is None:
                like = x
            (array,), names = x.node
            named.append(names)
            arrays.append(array)
        else:
            named.append(None)
            arrays.append(plain(title(fn), x))
    if like is None:
        raise no_names(title(fn), operands[0])
    return like, tuple(named), arrays


def nary(fn: Function, *operands: Payload, **options: object) -> "NamedArray":
    """Apply a function of any number of operands, at least one of them named, to elements by name.

    Args:
        fn: a function of arrays that broadcasts by position, such as one of `jax.numpy`.
        operands: named arrays, scalars, and 0-d arrays.
        options: keyword arguments of `fn`, static and hashable.

    Returns:
        An array with the axes of the operand that has all others.

    Raises:
        AxisSizeError: if a name has two sizes.
        BroadcastError: if no operand has the axes of all others.
        OperandError: if no operand is a NamedArray, or one has the wrong type.

    Examples:
        >>> from axonym.engine import nary
        >>> nary(jnp.hypot, axn.named([3.0, 5.0], "x"), axn.named([4.0, 12.0], "x")).tolist()
        [5.0, 13.0]
    """
    like, named, arrays = separate_operands(fn, operands)
    kernel = run_plan(fn, operands, _make_elementwise, fn, named, static(fn, options))
    return wrap(like, run(kernel.call, *arrays), kernel.names)
