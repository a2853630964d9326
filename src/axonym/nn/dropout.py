"""Dropout."""

import equinox as eqx
import jax

from .. import random
from ..array import NamedArray
from ..axis import Axis, AxisSelection, selection
from ..core import Core, facts, shape_of
from ..errors import ArgumentError, AxisNotFoundError, OperandError, message, suggestion
from ..ops import _lift
from ..ops.select import where

__all__ = ["Dropout"]


class Dropout(eqx.Module):
    """Set elements to zero at random and scale up the others, so that the expectation stays.

    What is dropped depends on the key and the axes alone, never on the layout.

    Attributes:
        pdrop: the probability of zero.
        broadcast_axes: axes along which all elements are dropped together.
        inference: whether to do nothing; `__call__` can override it.

    Reference:
        Srivastava et al. (2014), Dropout: a simple way to prevent neural networks from overfitting.
    """

    pdrop: float = eqx.field(static=True)
    broadcast_axes: tuple[str, ...] = eqx.field(static=True)
    inference: bool = eqx.field(static=True)

    def __init__(
        self, pdrop: float = 0.5, broadcast_axes: AxisSelection | None = None, inference: bool = False
    ) -> None:
        if not 0 <= pdrop <= 1:
            raise ArgumentError(message("Dropout", f"pdrop is a probability, from 0 to 1, not {pdrop}"))
        self.pdrop = pdrop
        self.broadcast_axes = tuple(name for name, _ in selection(broadcast_axes or (), "Dropout"))
        self.inference = inference

    def __call__(self, x: NamedArray, *, inference: bool | None = None, key: jax.Array | None = None) -> NamedArray:
        """Drop elements of `x`.

        Raises:
            OperandError: if there is something to drop and no key.
            AxisNotFoundError: if `x` lacks one of `broadcast_axes`.
        """
        if not isinstance(x, Core):
            raise _lift.unnamed("Dropout", x)
        if self.pdrop == 0 or (self.inference if inference is None else inference):
            return x
        if key is None:
            hint = "pass key=..., or inference=True"
            raise OperandError(message("Dropout", f"dropping with probability {self.pdrop} needs a key", hint=hint))
        for name in self.broadcast_axes:
            if name not in x.names:
                problem = f"the input lacks axis {name!r}, along which to drop together"
                near = suggestion(name, x.names)
                raise AxisNotFoundError(message("Dropout", problem, f"input has: {facts(x)}", hint=near))
        keep = 1 - self.pdrop
        return where(self._mask(x, key, keep), x / keep if keep else x, 0)

    def _mask(self, x: NamedArray, key: jax.Array, keep: float) -> NamedArray:
        """Draw what to keep; anonymous dimensions of `x` are named for the draw, so that each element has its own."""
        shape = shape_of("Dropout", x.array, x.names)
        anonymous = tuple(Axis(f"anonymous {i}", size) for i, size in enumerate(shape[: len(shape) - len(x.names)]))
        axes = tuple(axis for axis in x.axes if axis.name not in self.broadcast_axes)
        drawn = random.bernoulli(key, (*anonymous, *axes), keep)
        return drawn.untag(*(axis.name for axis in anonymous)) if anonymous else drawn
