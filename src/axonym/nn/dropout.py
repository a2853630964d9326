"""Dropout."""

import equinox as eqx
import jax

from .. import random
from ..array import NamedArray
from ..axis import Axis, AxisSelection, Pairs, axis_name, names_in, selection, without_axes
from ..core import Core, shape_of
from ..engine import checks
from ..errors import OperandError, message
from ..kinds import type_text
from ..ops.where import where
from .layer import Layer
from .settings import fraction
from .switch import switchable

__all__ = ["Dropout", "dropout"]


@switchable
class Dropout(Layer):
    """Set elements to zero at random and scale up the others, which keeps the expectation.

    What is dropped depends on the key and on the axes in their order, never on the layout.

    Attributes:
        pdrop: the probability that an element is dropped.
        broadcast_axes: the names of axes along which elements are dropped together.
        inference: whether to do nothing; `__call__` can override it, and `eqx.nn.inference_mode` switch it.

    Reference:
        Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting.
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
        self.pdrop = fraction("Dropout", "pdrop", pdrop)
        self.broadcast_axes = names_in(_pairs("Dropout", broadcast_axes))
        self.inference = inference

    @property
    def is_active(self) -> bool:
        """Whether a call drops elements by default."""
        return not self.inference and self.pdrop > 0

    def __call__(
        self, x: NamedArray, *, inference: bool | None = None, key: jax.Array | None = None
    ) -> NamedArray:
        """Drop elements of `x`.

        Raises:
            OperandError: if a key is needed and missing.
            AxisNotFoundError: if `x` lacks one of `broadcast_axes`.
        """
        if inference is None:
            inference = self.inference
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
        key: what is dropped depends on it and on the axes in their order, never on the layout.

    Raises:
        ArgumentError: if `pdrop` is not a probability.
        OperandError: if a key is needed and missing.
        AxisNotFoundError: if `x` lacks one of `broadcast_axes`.
        AxisSizeError: if one has another size.
    """
    rate = fraction("dropout", "pdrop", pdrop)
    return _drop("dropout", x, rate, _pairs("dropout", broadcast_axes), inference, key)


def _pairs(function: str, broadcast_axes: AxisSelection | None) -> Pairs:
    if hasattr(broadcast_axes, "dtype") and not isinstance(broadcast_axes, str):
        problem = f"broadcast_axes must be axes, not {type_text(broadcast_axes)}"
        raise OperandError(message(function, problem, hint="pass a key by its name: key=..."))
    if broadcast_axes is None:
        return ()
    return selection(broadcast_axes, function)


def _drop(
    function: str,
    x: NamedArray,
    pdrop: float,
    together: Pairs,
    inference: bool,
    key: jax.Array | None,
) -> NamedArray:
    if not isinstance(x, Core):
        raise checks.unnamed(function, x)
    if pdrop == 0 or inference:
        return x
    if key is None:
        hint = "pass key=..., or inference=True"
        raise OperandError(
            message(function, f"dropout with probability {pdrop} needs a key", hint=hint)
        )
    checks.require(function, x, dict(together), "input", role=" of broadcast_axes")
    keep = 1 - pdrop
    kept = _mask(function, x, together, key, keep)
    if keep:
        x = x / keep
    return where(kept, x, 0)


def _mask(function: str, x: NamedArray, together: Pairs, key: jax.Array, keep: float) -> NamedArray:
    """Draw what to keep; anonymous dimensions of `x` are named for the draw, so that each element has its own draw."""
    shape = shape_of(function, x.array, x.names)
    unnamed = shape[: len(shape) - len(x.names)]
    named = tuple(Axis(f"anonymous {i}", size) for i, size in enumerate(unnamed))

    drawn = random.bernoulli(key, (*named, *without_axes(x.axes, dict(together))), keep)
    return drawn.untag(*axis_name(named))
