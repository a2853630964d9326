"""Dropout, as a layer and as a function.

Both draw by key and named axes, so the result does not depend on the layout.
"""

import equinox as eqx
import jax

from .. import random
from ..array import NamedArray
from ..axis import Axis, AxisSelection, Pairs, axis_name, names_in, selection, without_axes
from ..base.calls import explain_calls
from ..base.kinds import type_text
from ..engine import checks
from ..engine.core import Core, shape_of
from ..errors import OperandError, message
from ..ops.where import where
from .layer import Layer
from .settings import check_fraction
from .switch import switchable

__all__ = ["Dropout", "dropout"]


@switchable
class Dropout(Layer):
    """Set elements to zero at random and scale up the others, which keeps the expectation.

    The choice depends on the key and on the axes in their order, never on the layout.

    Attributes:
        pdrop: the probability that an element is dropped.
        broadcast_axes: the names of axes along which elements are dropped together.
        inference: whether to do nothing; `__call__` can override it, and `eqx.nn.inference_mode` switch it.

    Reference:
        Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting.

    Examples:
        >>> x, drop = axn.ones({"batch": 2, "embed": 50}), axn.nn.Dropout(0.5, broadcast_axes="batch")
        >>> y = drop(x, key=jax.random.key(0))
        >>> sorted(set(y.array.flatten().tolist())), bool((y["batch", 0] == y["batch", 1]).all())
        ([0.0, 2.0], True)
        >>> drop(x, inference=True) is x
        True
    """

    pdrop: float = eqx.field(static=True)
    broadcast_axes: tuple[str, ...] = eqx.field(static=True)
    inference: bool

    def __init__(
        self,
        pdrop: float = 0.5,
        broadcast_axes: AxisSelection | None = None,
        inference: bool = False,
    ) -> None:
        self.pdrop = check_fraction("Dropout", "pdrop", pdrop)
        self.broadcast_axes = names_in(_parse_broadcast_axes("Dropout", broadcast_axes))
        self.inference = inference

    @property
    def is_active(self) -> bool:
        """Whether a call drops elements by default."""
        return not self.inference and self.pdrop > 0

    def __call__(
        self, x: NamedArray, *, inference: bool | None = None, key: jax.Array | None = None
    ) -> NamedArray:
        """Drop elements of `x`.

        Args:
            x: any axes.
            inference: whether to return `x` itself; by default what the field `inference` says.
            key: for the choice; needed unless `pdrop` is 0 or `inference` is true.

        Returns:
            The same axes.

        Raises:
            OperandError: if a key is needed and missing.
            AxisNotFoundError: if `x` lacks one of `broadcast_axes`.
        """
        inference = self.inference if inference is None else inference
        together = tuple((name, None) for name in self.broadcast_axes)
        return _drop("Dropout", x, self.pdrop, together, inference, key)


def dropout(
    x: NamedArray,
    pdrop: float,
    broadcast_axes: AxisSelection | None = None,
    *,
    inference: bool = False,
    key: jax.Array | None = None,
) -> NamedArray:
    """Set elements to zero at random and scale up the others, as the layer `Dropout` does.

    Args:
        x: any axes.
        pdrop: the probability that an element is dropped.
        broadcast_axes: axes along which elements are dropped together.
        inference: whether to return `x` as it is.
        key: for the choice, which also depends on the axes in their order, but never on the layout.

    Returns:
        The axes of `x`.

    Raises:
        ArgumentError: if `pdrop` is not a probability.
        OperandError: if a key is needed and missing.
        AxisNotFoundError: if `x` lacks one of `broadcast_axes`.
        AxisSizeError: if one has another size.

    Examples:
        >>> sorted(set(axn.nn.dropout(axn.ones({"embed": 50}), 0.75, key=jax.random.key(0)).tolist()))
        [0.0, 4.0]
    """
    rate = check_fraction("dropout", "pdrop", pdrop)
    together = _parse_broadcast_axes("dropout", broadcast_axes)
    return _drop("dropout", x, rate, together, inference, key)


def _parse_broadcast_axes(function: str, broadcast_axes: AxisSelection | None) -> Pairs:
    # A key by position lands here, where other libraries have it.
    if hasattr(broadcast_axes, "dtype") and not isinstance(broadcast_axes, str):
        problem = f"broadcast_axes must be axes, not {type_text(broadcast_axes)}"
        raise OperandError(message(function, problem, hint="pass a key by its name: key=..."))
    return () if broadcast_axes is None else selection(broadcast_axes, function)


def _drop(
    function: str,
    x: NamedArray,
    pdrop: float,
    together: Pairs,
    inference: bool,
    key: jax.Array | None,
) -> NamedArray:
    if not isinstance(x, Core):
        raise checks.no_names(function, x)
    # Before the check of the key: neither case needs one.
    if pdrop == 0 or inference:
        return x
    if key is None:
        hint = "pass key=..., or inference=True"
        raise OperandError(
            message(function, f"dropout with probability {pdrop} needs a key", hint=hint)
        )
    checks.require(function, x, dict(together), "input", role=" of broadcast_axes")
    keep = 1 - pdrop
    mask = _draw_mask(function, x, together, key, keep)
    # A probability of 1 drops everything; a division by zero would leave NaN in the gradients.
    return where(mask, x / keep if keep else x, 0)


def _draw_mask(
    function: str, x: NamedArray, together: Pairs, key: jax.Array, keep: float
) -> NamedArray:
    """Draw which elements to keep, together along the axes `together`."""
    shape = shape_of(function, x.array, x.names)
    unnamed = shape[: len(shape) - len(x.names)]
    # Anonymous dimensions get names for the draw: without one, all their positions would share a draw.
    named = tuple(Axis(f"anonymous {i}", size) for i, size in enumerate(unnamed))

    mask = random.bernoulli(key, (*named, *without_axes(x.axes, dict(together))), keep)
    return mask.untag(*axis_name(named))


explain_calls(globals(), __all__)
