"""Internal. Functions that remove axes, perhaps under a mask: sums, means, norms; `ops.reduce` calls this module.

`normalization` is the sibling for functions that keep the axes, such as a softmax. The function gets dimensions as
`axis`, and the mask as `where`, already aligned.
"""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ..axis import AxisSelection, names_in
from ..base.kinds import Payload, Tree
from ..errors import AxisError, OperandError, describe, message
from ..names import plans
from ..names.plans import Names
from .checks import (
    NAME_IT,
    Function,
    check_given,
    check_sizes,
    make_axis_key,
    no_names,
    plain,
    resolve_axis,
    title,
    with_operands,
)
from .core import Core, shape_of, wrap
from .kernels import Kernel, Options, align_layouts, keywords_of, line_up, run, static
from .nonempty import check_nonempty
from .renaming import share_by_renaming

if TYPE_CHECKING:
    from ..array import NamedArray


@share_by_renaming("names", "axis", "where")
def _make_reduction(
    fn: Function, names: Names, axis: object, where: Names | None, removes: bool, options: Options
) -> Kernel:
    """Make the kernel of a function over axes that may have a mask; `axis` None means all of them."""
    function, keywords = title(fn), keywords_of(options)
    given = resolve_axis(axis, function, names)
    removed = names_in(given)
    at = plans.positions(names, removed)
    if where is not None:
        plans.require(names, where)

    def body(array: Payload, *rest: Tree) -> Any:
        shape = shape_of(function, array, names)
        check_given(function, given, names, shape)
        check_nonempty(function, names, shape, at, keywords)
        if where is None:
            return fn(array, *rest, axis=at, **keywords)
        # The mask is one more operand: its axes must be axes of the array.
        mask, *numbers = rest
        check_sizes(function, (names, where), (array, mask))
        if jnp.ndim(mask) - len(where) > array.ndim - len(names):
            raise _too_large(function, names, where, array, mask)
        # Aligned by name first, the mask broadcasts by position.
        array, mask = align_layouts((names, where), (array, mask), names)
        return fn(array, *numbers, axis=at, where=line_up(mask, where, names), **keywords)

    return Kernel(plans.without(names, removed) if removes else names, body)


def _too_large(
    function: str, names: Names, where: Names, array: Payload, mask: Payload
) -> OperandError:
    """Build the error for a mask with more anonymous dimensions than the array.

    Some functions of JAX would accept it and reduce the wrong dimensions.
    """
    held = f"array has: {describe(names, array.shape)}"
    if not where:
        problem = f"the mask has shape {jnp.shape(mask)} and no names"
        return OperandError(message(function, problem, held, hint=NAME_IT))
    problem = "the mask has more anonymous dimensions than the array"
    lines = held, f"mask has: {describe(where, mask.shape)}"
    return OperandError(message(function, problem, *lines, hint="name them: mask.tag(...)"))


def reduction(
    fn: Function, x: Core, axis: AxisSelection | None, where: object = None, **options: object
) -> "NamedArray":
    """Apply a function that removes `axis`, over the elements where `where` is true."""
    return _reduce(fn, x, axis, where, True, options)


def normalization(
    fn: Function, x: Core, axis: AxisSelection | None, where: object = None, *numbers: float
) -> "NamedArray":
    """Apply a function of an array and numbers over `axis` that keeps it, over the elements where `where` is true."""
    return _reduce(fn, x, axis, where, False, {}, *numbers)


def _reduce(
    fn: Function,
    x: Core,
    axis: AxisSelection | None,
    where: object,
    removes: bool,
    options: dict[str, object],
    *numbers: float,
) -> "NamedArray":
    if not isinstance(x, Core):
        raise no_names(title(fn), x)
    (array,), names = x.node
    arrays: tuple[object, ...] = (array,)
    masked: Names | None = None
    if isinstance(where, Core):
        (mask,), masked = where.node
        arrays = (array, mask)
    elif where is not None:
        # A mask without names must be a scalar, or match anonymous dimensions.
        arrays, masked = (array, plain(title(fn), where)), ()
    key, settings = make_axis_key(axis, fn), static(fn, options)
    try:  # `run_plan` and `run`, which would add 9 % to a sum
        kernel = _make_reduction(fn, names, key, masked, removes, settings)
    except AxisError as flaw:
        raise with_operands(flaw, fn, (x, where)) from None
    # Only numbers move between host and device, so that only they need the care of `run`.
    result = run(kernel.call, *arrays, *numbers) if numbers else kernel.call(*arrays)
    return wrap(x, result, kernel.names)
