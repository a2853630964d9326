"""Losses."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
from jax import lax

from .. import plans
from ..array import NamedArray
from ..axis import AxisSelection, AxisSelector, selection
from ..core import Core, facts, wrap
from ..errors import AxisError, AxisNotFoundError, OperandError, message, suggestion
from ..ops import _lift, select
from ..ops.reduce import mean

__all__ = ["cross_entropy_loss", "cross_entropy_loss_and_log_normalizers", "reduce_loss"]

Reduction = Callable[..., NamedArray]
Names = tuple[str, ...]


def cross_entropy_loss(
    logits: NamedArray,
    Label: AxisSelector,
    targets: NamedArray,
    reduction: Reduction | None = mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
) -> NamedArray:
    """Return minus the logarithm of the probability that softmax of `logits` gives to the targets, in nats.

    Args:
        logits: axes {Label, ...}.
        Label: the axis of classes.
        targets: integers, the class numbers, axes {...}; or probabilities, axes {Label, ...}. A number that is no class
            gives NaN, unless `where` leaves it out.
        reduction: what to do with the losses, such as `axn.mean` or `axn.sum`; None leaves one for each target.
        where: axes among those of the losses; those that count.
        reduction_axis: the axes to reduce; by default all.

    Raises:
        AxisNotFoundError: if `logits` lack `Label`.
        OperandError: if targets without `Label` are no integers.
    """
    losses, _ = cross_entropy_loss_and_log_normalizers(logits, Label, targets)
    return reduce_loss(losses, reduction, reduction_axis, where)


def cross_entropy_loss_and_log_normalizers(
    logits: NamedArray, Label: AxisSelector, targets: NamedArray
) -> tuple[NamedArray, NamedArray]:
    """Return the losses of `cross_entropy_loss`, one for each target, and the logarithms of sums of exponentials."""
    for x in (logits, targets):
        if not isinstance(x, Core):
            raise _lift.unnamed("cross_entropy_loss", x)
    ((label, size),) = selection(Label, "cross_entropy_loss")
    if label not in logits.names:
        problem = f"the logits lack axis {label!r}"
        hint = suggestion(label, logits.names)
        raise AxisNotFoundError(message("cross_entropy_loss", problem, f"logits have: {facts(logits)}", hint=hint))
    if label not in targets.names and not jnp.issubdtype(targets.dtype, jnp.integer):
        problem = f"the targets have dtype {targets.dtype} and lack axis {label!r}"
        hint = "class numbers must be integers, probabilities must have the axis of classes"
        lines = (f"logits have: {facts(logits)}", f"targets have: {facts(targets)}")
        raise OperandError(message("cross_entropy_loss", problem, *lines, hint=hint))
    try:
        kernel = _cross_entropy(logits.names, targets.names, (label, size))
    except AxisError as flaw:
        _lift.fail("cross_entropy_loss", flaw, logits, targets)
    losses, normalizers = kernel.call(logits.array, targets.array)
    return wrap(logits, losses, kernel.names), wrap(logits, normalizers, kernel.names)


@lru_cache(plans.CACHE)
def _cross_entropy(names: Names, targets: Names, label: tuple[str, int | None]) -> _lift.Kernel:
    """Make the kernel of a cross entropy."""
    (at,) = plans.positions(names, (label[0],))
    plans.require(names, targets)
    soft = label[0] in targets
    result = plans.without(names, (label[0],))

    def body(logits: Any, wanted: Any) -> Any:
        _lift.check_sizes("cross_entropy_loss", (names, targets), (logits, wanted))
        _lift.check_given("cross_entropy_loss", (label,), names, logits.shape)
        logits, wanted = _lift.agreed((names, targets), (logits, wanted), names)
        wanted = _lift.lined_up(wanted, targets, names)
        # Differences to the largest logit are exact where the logits themselves are large.
        largest = lax.stop_gradient(logits).max(at, keepdims=True)
        largest = jnp.where(jnp.isfinite(largest), largest, 0)
        normalizers = jnp.log(jnp.exp(logits - largest).sum(at))
        offset = largest.squeeze(at)
        if soft:
            return normalizers * wanted.sum(at) - ((logits - largest) * wanted).sum(at), normalizers + offset
        # A comparison in the place of a gather: the sum stays local where the classes are sharded, and the backward
        # pass needs no scatter.
        wanted = wanted.astype(jnp.result_type(wanted.dtype, jnp.int32))  # uint8 would not count to the last
        classes = lax.broadcasted_iota(wanted.dtype, logits.shape, at % logits.ndim)
        picked = jnp.where(classes == wanted, logits, 0).sum(at) - offset
        wanted = wanted.squeeze(at) if wanted.ndim else wanted
        known = (wanted >= 0) & (wanted < logits.shape[at])
        return jnp.where(known, normalizers - picked, jnp.nan), normalizers + offset

    return _lift.Kernel(result, body)


def reduce_loss(
    losses: NamedArray,
    reduction: Reduction | None = mean,
    reduction_axis: AxisSelection | None = None,
    where: NamedArray | None = None,
) -> NamedArray:
    """Reduce losses that count; without a reduction or axes for it, those that do not count become zero."""
    if reduction is None or (reduction_axis is not None and not selection(reduction_axis, "reduce_loss")):
        return losses if where is None else select.where(where, losses, 0)
    return reduction(losses, reduction_axis, where=where)
