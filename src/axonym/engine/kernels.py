"""Internal. Kernels: a whole operation for given names as one jitted function of arrays.

All kinds of operations make kernels and keep them in caches. A kernel knows names, checks and layouts; a call only
passes arrays. So an eager operation is one dispatch of JAX, and in a program it leaves nothing but its equations.
"""

import operator
from collections.abc import Hashable, Sequence
from functools import lru_cache, partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..base.kinds import Payload, type_text
from ..errors import OperandError, message
from ..faults import empty_arrays
from ..layout import constraints, explicit, tracing
from ..names import plans
from ..names.plans import Names
from .checks import NUMBERS, Function, anonymous_shape, title
from .core import Order

Options = tuple[tuple[str, Any, Any], ...]

# Makes a NamedArray without `__init__`, whose checks a result does not need.
new: Function = object.__new__

_FLOATS = {float, complex, np.float16, np.float32, np.float64, np.complex64, np.complex128}

_DISALLOWED = "Disallowed host-to-device transfer"


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
        def fetchable(*arrays: Payload) -> Any:
            # In each kernel, since any operation may have a result without elements.
            return empty_arrays.replicate_empty(body(*arrays))

        self.names = Order(names)
        self.body = fetchable
        self.call = jit_body(fetchable)


def jit_body(body: Function) -> Function:
    """Compile an operation on arrays; while tracing, inline it."""

    @wraps(body)
    def on_one_mesh(*arrays: Payload) -> Any:
        # While tracing: later calls run nothing of this.
        constraints.check_one_mesh(jax.tree.leaves(arrays))
        return body(*arrays)

    return jax.jit(on_one_mesh, inline=tracing.INLINE)


def static(fn: Function | str, options: dict[str, Any]) -> Options:
    """Convert options to a cache key that distinguishes equal values with different kernels: 1, 1.0 and True.

    It also distinguishes 0.0 from -0.0.
    """
    if not options:  # as usual
        return ()
    # A loop: in Python 3.11, a comprehension is a call, which an eager operation would feel.
    key: list[tuple[str, Any, Hashable]] = []
    for name, value in options.items():
        kind = value.__class__
        key.append((name, value, repr(value) if kind in _FLOATS else kind))
    found = tuple(key)
    try:
        # A value without a hash would fail in the cache, far from its name.
        hash(found)
    except TypeError:
        for name, value in options.items():
            if not isinstance(value, Hashable):
                problem = f"{name} must be a static Python value, not {type_text(value)}"
                raise OperandError(message(title(fn), problem)) from None
        raise
    return found


def keywords_of(options: Options) -> dict[str, Any]:
    """Convert options back to keyword arguments."""
    return {name: value for name, value, _ in options}


def run(call: Function, *operands: Payload) -> Any:
    """Call a function of arrays and Python numbers; under `jax.transfer_guard`, move the numbers explicitly."""
    try:
        return call(*operands)
    except jax.errors.JaxRuntimeError as error:
        return run_moved(error, call, *operands)


def run_moved(error: Exception, call: Function, *operands: Payload) -> Any:
    """Call a function again after an error, if a transfer guard disallowed the transfer of Python numbers.

    The guard is meant to find hidden transfers of arrays, but a number is part of the program. Other calls pass numbers
    as they are, which is faster.
    """
    moved = [
        jax.device_put(operand)
        if operand.__class__ in NUMBERS or isinstance(operand, np.generic)
        else operand
        for operand in operands
    ]
    is_unmoved = all(map(operator.is_, moved, operands))
    if _DISALLOWED not in str(error) or is_unmoved:
        raise error
    return call(*moved)


def constant(array: Payload) -> Any:
    """Explicitly move an array that the library computed with NumPy, unless it becomes part of a program."""
    return array if tracing.tracing() else jax.device_put(array)


def line_up(array: jax.Array, names: plans.Labels, target: plans.Labels) -> jax.Array:
    """Permute and expand an array so that its named dimensions are aligned with `target`.

    Missing axes become dimensions of size 1, never full copies, which autodiff would save.
    """
    plan = plans.align(names, target)
    # A scalar broadcasts as it is.
    if plan is None or not jnp.ndim(array):
        return array
    anonymous = array.ndim - len(names)
    if plan.order is not None:
        order = plans.shift_places(plan.order, anonymous)
        array = lax.transpose(array, (*range(anonymous), *order))
    if plan.insert:
        array = lax.expand_dims(array, plans.shift_places(plan.insert, anonymous))
    return array


def repeat_anonymous(
    function: str, operands: Sequence[Names], arrays: Sequence[jax.Array]
) -> tuple[list[jax.Array], tuple[int, ...]]:
    """Repeat anonymous dimensions of size 1 as often as other operands have them, as `jax.numpy` does.

    Returns:
        The arrays, and the shape of the anonymous dimensions of a result.
    """
    whole = anonymous_shape(function, operands, list(map(jnp.shape, arrays)))
    repeated: list[jax.Array] = []
    for array, names in zip(arrays, operands, strict=True):
        count = array.ndim - len(names)
        wanted = (*whole[len(whole) - count :], *array.shape[count:])
        # Named dimensions stay: names are never stretched.
        if array.shape != wanted:
            array = jnp.broadcast_to(array, wanted)
        repeated.append(array)
    return repeated, whole


def align_layouts(
    operands: Sequence[Names], arrays: Sequence[jax.Array], target: Names
) -> Sequence[jax.Array]:
    """On a mesh with Explicit axes, reshard operands with conflicting shardings to a common one, by name."""
    # The operand with all axes keeps its layout: it is mostly the largest one.
    moved, _ = explicit.agree(target, operands, arrays, first=operands.index(target))
    return moved


@lru_cache(plans.CACHE)
def with_options(fn: Any, **options: Any) -> Any:
    """Bind options to a function; equal options give the same object, and so one cached kernel."""
    return partial(fn, **options)
