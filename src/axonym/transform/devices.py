"""Internal. Derivatives inside a shard_map; `grad` calls it.

For a value that devices share, reverse mode adds up the cotangents of all of them. This gives the gradient of the sum
of their outputs. It is wrong if each device has its own output, which is an error here.
"""

from collections.abc import Iterable, Set
from typing import Any

import jax
import jax.numpy as jnp

from ..array import NamedArray, is_named_array
from ..base.kinds import is_array
from ..engine.core import facts
from ..errors import ShardingError, message
from ..layout import tracing


def require_own_rows(
    function: str, outputs: Iterable[Any], arguments: Any, axes: Set[str] | None = None
) -> None:
    """Raise if gradients of rows on different devices would be added up.

    Args:
        function: the name for errors.
        outputs: the arrays that are differentiated.
        arguments: the trees to differentiate with respect to.
        axes: the mesh axes over which a surrounding map splits its rows; by default, each output is a row.

    Raises:
        ShardingError: if an argument is the same on devices whose rows differ.
    """
    # JAX notes in types over which mesh axes values differ.
    varying = frozenset[str]().union(*map(tracing.varying_over, outputs))
    if axes is not None:
        varying &= axes
    if not varying:
        return
    # Integers have no gradient, so that nothing is added up for them.
    for leaf in jax.tree.leaves(arguments, is_leaf=is_named_array):
        array = leaf.array if isinstance(leaf, NamedArray) else leaf
        if not is_array(array) or not jnp.issubdtype(array.dtype, jnp.inexact):
            continue
        same = sorted(varying - tracing.varying_over(array))
        if same:
            raise _rows_error(function, leaf, same[0], is_row=axes is not None)


def _rows_error(function: str, argument: Any, mesh_axis: str, *, is_row: bool) -> ShardingError:
    known = facts(argument) if isinstance(argument, NamedArray) else f"shape {argument.shape}"
    over = f"mesh axis {mesh_axis!r}"
    problem = f"the argument is the same on all devices of {over}, and the output is not: "
    problem += "reverse mode would add up the Jacobians of all devices"
    hint = f'for the Jacobian of each device, cast the argument: axn.pcast(x, over="{mesh_axis}"), '
    hint += "or use axn.jacfwd; "
    hint += f'for that of a sum, let the function return it: axn.psum(..., over="{mesh_axis}")'
    if is_row:
        problem = f"the argument is the same on all devices of {over}, and the rows of a "
        problem += (
            "surrounding map are split over it: the gradient would add up rows of all devices"
        )
        hint = "for the gradient of each row, cast the argument: "
        hint += f'axn.pcast(x, over="{mesh_axis}"); for that of a sum, map inside of the gradient'
    return ShardingError(message(function, problem, f"argument has: {known}", hint=hint))
