"""Losses, with Haliax's arguments `reduction` and `where`; targets may also be class numbers."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp

import axonym as axn
from axonym import AxisSelection, AxisSelector
from axonym.engine import selection

from .._adapt import adapted
from .._elementwise import boolean
from .._reduce import mean
from ..util import UNSPECIFIED, Unspecified

__all__ = [
    "binary_cross_entropy_loss",
    "cross_entropy_loss",
    "cross_entropy_loss_and_log_normalizers",
    "maybe_reduce_loss",
    "reduce_loss",
]

Reduction: TypeAlias = Callable[..., Any] | Unspecified | None


def binary_cross_entropy_loss(
    logits: axn.NamedArray,
    targets: axn.NamedArray,
    reduction: Reduction = UNSPECIFIED,
    where: axn.NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
) -> Any:
    """Return the negative log-likelihood of binary targets under the sigmoid of `logits`."""
    return maybe_reduce_loss(
        _binary_losses(logits, targets, None), reduction, reduction_axis, where
    )


def cross_entropy_loss(
    logits: axn.NamedArray,
    Label: AxisSelector,
    targets: axn.NamedArray,
    reduction: Reduction = UNSPECIFIED,
    where: axn.NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
) -> Any:
    """Return the cross-entropy of the targets under the softmax of `logits`.

    Targets are probabilities over `Label`, or integers without that axis; for integers, Haliax gives wrong results. The
    mean over no losses is NaN, as in Haliax.
    """
    losses, _ = cross_entropy_loss_and_log_normalizers(logits, Label, targets)
    return maybe_reduce_loss(losses, reduction, reduction_axis, where)


@adapted
def cross_entropy_loss_and_log_normalizers(
    pred_y: axn.NamedArray, Label: AxisSelector, target_y: axn.NamedArray
) -> tuple[axn.NamedArray, axn.NamedArray]:
    """Return the loss of each target, and the logarithms of sums of exponentials; targets may have further axes.

    Losses have the dtype to which logits and targets promote.
    """
    if not isinstance(pred_y, axn.NamedArray) or not isinstance(target_y, axn.NamedArray):
        return axn.nn.cross_entropy_loss_and_log_normalizers(pred_y, Label, target_y)
    own = pred_y.dtype if jnp.issubdtype(pred_y.dtype, jnp.inexact) else jnp.result_type(float)
    pred_y = pred_y.astype(jnp.result_type(own, target_y.dtype))
    pred_y = axn.broadcast_axis(
        pred_y, [axis for axis in target_y.axes if axis.name not in pred_y.names]
    )
    losses, normalizers = axn.nn.cross_entropy_loss_and_log_normalizers(pred_y, Label, target_y)
    return losses, normalizers.astype(own)


def maybe_reduce_loss(
    arr: Any, reduction: Reduction, reduction_axis: AxisSelection | None, where: Any
) -> Any:
    """Reduce losses like `reduce_loss`, but without defaults."""
    where = boolean(where)
    if reduction is None or (
        reduction_axis is not None and not selection(reduction_axis, "reduce_loss")
    ):
        return arr if where is None else _where(where, arr, 0)
    chosen: Any = mean if isinstance(reduction, Unspecified) else reduction
    return chosen(arr, axis=reduction_axis, where=where)


def reduce_loss(
    arr: Any,
    reduction: Reduction = UNSPECIFIED,
    reduction_axis: AxisSelection | None = None,
    where: axn.NamedArray | None = None,
) -> Any:
    """Reduce the losses selected by `where`, by default to their mean; without a reduction, the others become zero."""
    return maybe_reduce_loss(arr, reduction, reduction_axis, where)


_binary_losses, _where = adapted(axn.nn.binary_cross_entropy_loss), adapted(axn.where)
