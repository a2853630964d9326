"""Contractions: sums of products over named axes."""

from functools import lru_cache
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from .. import layout, plans
from ..axis import AxisSelection, AxisSelector
from ..core import Core, wrap
from ..errors import AxisError, AxisNotFoundError
from . import _lift

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..array import NamedArray

__all__ = ["dot"]

Names = tuple[str, ...]
Labels = tuple[str | int, ...]
PartialOrder: TypeAlias = "Sequence[AxisSelector | EllipsisType]"


def dot(
    *arrays: "NamedArray",
    axis: AxisSelection | None,
    out_axes: "PartialOrder | None" = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
) -> "NamedArray":
    """Multiply arrays by name and sum over `axis`; axes that several arrays share and that stay are matched.

    The result is laid out by the current axis mapping.

    Args:
        arrays: one or more arrays.
        axis: the axes to sum over, each of which at least two arrays must have (one, if there is only one array);
            None for all axes, () for none.
        out_axes: the order of the result's axes; `...` stands for those not mentioned. By default the axes stand in
            the order in which they first appear.
        precision: as in `jax.numpy.einsum`.
        preferred_element_type: the dtype to accumulate in and return.

    Raises:
        AxisNotFoundError: if an axis to sum over is missing.
        AxisSizeError: if a name has two sizes.

    Example:
        >>> Batch, Embed, Mlp = axn.make_axes(batch=2, embed=3, mlp=4)
        >>> axn.dot(axn.ones((Batch, Embed)), axn.ones((Embed, Mlp)), axis=Embed).axes
        (Axis(name='batch', size=2), Axis(name='mlp', size=4))
    """
    for x in arrays:
        if not isinstance(x, Core):
            raise _lift.unnamed("dot", x)
    given = None if axis is None else _lift.axes(axis, "dot")
    order = None if out_axes is None else tuple(e if e is ... else _lift.axes(e, "dot")[0][0] for e in out_axes)
    options = (precision, None if preferred_element_type is None else jnp.dtype(preferred_element_type))
    try:
        kernel = _dot(tuple(x.node[1] for x in arrays), given, order, options)
    except AxisError as flaw:
        _lift.fail("dot", flaw, *arrays)
    return wrap(arrays[0], kernel.call(*(x.node[0][0] for x in arrays)), kernel.names)


@lru_cache(plans.CACHE)
def _dot(
    operands: tuple[Names, ...], given: "_lift.Pairs | None", order: Any, options: tuple[Any, Any]
) -> _lift.Kernel:
    """Make the kernel of a contraction."""
    union: Names = ()
    for names in operands:
        union = plans.union(union, names)
    contracted = union if given is None else tuple(name for name, _ in given)
    plans.require(union, contracted)
    if given is not None and len(operands) > 1:
        for name in contracted:
            holders = [names for names in operands if name in names]
            if len(holders) == 1:
                raise AxisNotFoundError(
                    f"axis {name!r} is to be summed over, but only operand {operands.index(holders[0]) + 1} has it",
                    f'if it is meant, sum that operand first: x.sum("{name}")',
                )
    out = plans.without(union, contracted)
    if order is not None:
        out = plans.complete(out, order)

    def body(*arrays: Any) -> Any:
        sizes = _lift.check_sizes("dot", operands, arrays)
        for name, size in given or ():
            if size is not None:
                _lift.check_given("dot", ((name, size),), (name,), (sizes[name],))
        layout.check_result(out, sizes)
        labels = [(*range(len(names) - a.ndim, 0), *names) for a, names in zip(arrays, operands, strict=True)]
        anonymous = tuple(range(-max(a.ndim - len(n) for a, n in zip(arrays, operands, strict=True)), 0))
        result = _product(arrays, labels, contracted, (*anonymous, *out), options)
        return layout.lay_out(result, out)

    return _lift.Kernel(out, body)


def _product(
    arrays: "Sequence[jax.Array]",
    labels: "Sequence[Labels]",
    contracted: Names,
    out: Labels,
    options: tuple[Any, Any],
) -> jax.Array:
    """Contract arrays whose dimensions carry labels; on a mesh with Explicit axes, say where the result goes."""
    precision, dtype = options
    sharding = None
    if any(map(layout.has_explicit_axes, arrays)):
        arrays, sharding = _explicit(arrays, labels, contracted, out)
    if len(arrays) != 2 or not all(label in labels[0] and label in labels[1] for label in contracted):
        equation = plans.letters(labels, out)
        return jnp.einsum(
            equation, *arrays, precision=precision, preferred_element_type=dtype, out_sharding=sharding
        )
    plan = plans.contraction(labels[0], labels[1], contracted, out)
    left, right = arrays
    if left.dtype != right.dtype:
        common = jnp.promote_types(left.dtype, right.dtype)
        left, right = left.astype(common), right.astype(common)
    if sharding is not None and plan.order is not None:
        entries = list(sharding.spec)
        produced = [entries[plan.order.index(at)] for at in range(len(entries))]
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*produced))
    result = lax.dot_general(
        left, right, (plan.contract, plan.batch), precision, preferred_element_type=dtype, out_sharding=sharding
    )
    return result if plan.order is None else lax.transpose(result, plan.order)


def _explicit(
    arrays: "Sequence[jax.Array]", labels: "Sequence[Labels]", contracted: Names, out: Labels
) -> tuple[list[jax.Array], jax.sharding.NamedSharding]:
    """Choose one layout per label, move the operands to it, and give the sharding of the result."""
    entries = [layout.entries_of(array) for array in arrays]
    operands = list(zip(labels, entries, strict=True))
    mapping = layout.current_mapping()
    table = layout.settle((*out, *contracted), operands, mapping)
    moved = [layout.relayout(a, [table[label] for label in own]) for a, own in zip(arrays, labels, strict=True)]
    return moved, layout.sharding_from(arrays[0], [table[label] for label in out])
