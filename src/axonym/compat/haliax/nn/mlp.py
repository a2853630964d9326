"""Multi-layer perceptrons."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax

from axonym import Axis, AxisSpec, NamedArray
from axonym.errors import ArgumentError, message

from ._constructor import TwoSpellings
from .activations import relu
from .linear import Linear

__all__ = ["DEFAULT_WIDTH_NAME", "MLP"]

DEFAULT_WIDTH_NAME = "mlp"


class MLP(eqx.Module, metaclass=TwoSpellings):
    """Linear layers with an activation after all but the last.

    Differs from `axonym.nn.MLP`: hidden axes alternate between two names, "mlp" and "mlp2".

    Attributes:
        activation: the function between the layers.
        layers: the linear layers.
    """

    activation: Callable[..., Any] = eqx.field(static=True)
    layers: Sequence[Linear]

    @staticmethod
    def init(
        Input: AxisSpec,
        Output: AxisSpec,
        width: int | Axis,
        depth: int,
        activation: Callable[..., Any] = relu,
        *,
        out_first: bool = True,
        use_bias: bool = True,
        use_final_bias: bool = True,
        key: jax.Array,
        dot_general: Callable[..., Any] | None = None,
        init_scale: float = 1.0,
    ) -> "MLP":
        """Make `depth` hidden layers of size `width`, and one to `Output`.

        Raises:
            AxisClashError: if input and output of a layer share a name, as if `Input` is named like the hidden axis.
        """
        if depth < 0:
            raise ArgumentError(message("MLP.init", f"depth must not be negative, got {depth}"))
        first = width if isinstance(width, Axis) else Axis(DEFAULT_WIDTH_NAME, width)
        second = first.alias(f"{first.name}2")
        ends = [Input, *itertools.islice(itertools.cycle((first, second)), depth), Output]
        keys = jax.random.split(key, depth + 1)
        biases = [use_bias] * depth + [use_final_bias]
        layers: list[Linear] = []
        for (In, Out), own, has_bias in zip(itertools.pairwise(ends), keys, biases, strict=True):
            layer = Linear.init(
                In,
                Out,
                key=own,
                use_bias=has_bias,
                out_first=out_first,
                dot_general=dot_general,
                init_scale=init_scale,
            )
            layers.append(layer)
        return MLP(activation, tuple(layers))

    @property
    def In(self) -> AxisSpec:  # noqa: N802  # a field of Linear
        """The axes of the input."""
        return self.layers[0].In

    @property
    def Out(self) -> AxisSpec:  # noqa: N802  # the same
        """The axes of the result."""
        return self.layers[-1].Out

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layers; a key is split for those that accept one."""
        count = len(self.layers)
        keys = [None] * count if key is None else list(jax.random.split(key, count))
        for layer, own in zip(self.layers[:-1], keys, strict=False):
            x = self.activation(layer(x, key=own))
        return self.layers[-1](x, key=keys[-1])
