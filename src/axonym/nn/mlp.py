"""Multi-layer perceptrons."""

import itertools
from collections.abc import Callable

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSpec
from ..errors import ArgumentError, message
from .activation import relu
from .initializer import Initializer
from .linear import Linear

__all__ = ["MLP"]


class MLP(eqx.Module):
    """Linear layers with an activation after each but the last.

    Attributes:
        layers: the linear layers.
        activation: the function between them.
    """

    layers: tuple[Linear, ...]
    activation: Callable[[NamedArray], NamedArray] = eqx.field(static=True)

    @staticmethod
    def init(
        Input: AxisSpec,
        Output: AxisSpec,
        width: int | Axis,
        depth: int,
        activation: Callable[[NamedArray], NamedArray] = relu,
        *,
        key: jax.Array,
        out_first: bool = False,
        use_bias: bool = True,
        use_final_bias: bool = True,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
    ) -> "MLP":
        """Make `depth` hidden layers of a width, and one to `Output`.

        All hidden layers have the axis of `width`, called "mlp" if it is an int. A weight between two of them keeps the
        second one as `out_mlp`, see `Linear`: a mapping for the axis never shards one weight twice.

        Args:
            Input: the axes of the input.
            Output: the axes of the result.
            width: the hidden axis, or its size.
            depth: how many hidden layers there are; none makes a linear map.
            activation: the function after each hidden layer.
            key: for the weights.
            out_first: see `Linear.init`.
            use_bias: whether hidden layers have a bias.
            use_final_bias: whether the last layer has one.
            init_scale: see `Linear.init`.
            initializer: see `Linear.init`.

        Raises:
            ArgumentError: if `depth` is negative.
        """
        if depth < 0:
            raise ArgumentError(message("MLP.init", f"depth must not be negative, got {depth}"))
        hidden = Axis("mlp", width) if isinstance(width, int) else width
        ends = [Input, *[hidden] * depth, Output]
        keys = jax.random.split(key, depth + 1)
        layers = tuple(
            Linear.init(
                In,
                Out,
                key=keys[i],
                use_bias=use_final_bias if i == depth else use_bias,
                out_first=out_first,
                init_scale=init_scale,
                initializer=initializer,
            )
            for i, (In, Out) in enumerate(itertools.pairwise(ends))
        )
        return MLP(layers, activation)

    @property
    def In(self) -> tuple[Axis, ...]:
        """The axes of the input."""
        return self.layers[0].In

    @property
    def Out(self) -> tuple[Axis, ...]:
        """The axes of the result."""
        return self.layers[-1].Out

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layers to `x`, axes {In, ...}."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)
