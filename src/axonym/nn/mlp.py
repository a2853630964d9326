"""Perceptrons: linear layers with an activation between them (`MLP`), and with a gate (`GatedMLP`)."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSpec
from ..create import arange
from ..errors import ArgumentError, message
from ..ops.where import where
from ..partitioning.padding import PaddedArray, Padding
from .activation import relu, silu
from .initializer import Initializer
from .layer import Layer
from .linear import Linear
from .rings import apply_in_ring, is_pointwise
from .settings import apply_activation, as_axis, check_activation, check_int
from .weights import keep_padding

__all__ = ["MLP", "GatedMLP"]


class MLP(Layer):
    """Apply linear layers with an activation after each but the last.

    Attributes:
        layers: the linear layers.
        activation: the function between them.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=2, embed=4)
        >>> mlp = axn.nn.MLP.init(Embed, Embed, 16, depth=1, activation=axn.nn.gelu, key=jax.random.key(0))
        >>> mlp.layers[0].weight.shape
        {'embed': 4, 'mlp': 16}
        >>> mlp(axn.ones((Batch, Embed))).shape
        {'batch': 2, 'embed': 4}
    """

    layers: tuple[Linear, ...]
    activation: Callable[[NamedArray], NamedArray] = eqx.field(static=True)

    @classmethod
    def init(
        cls,
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
    ) -> Self:
        """Make `depth` hidden layers and one to `Output`.

        All hidden layers have the axis of `width`, called "mlp" if it is an int. A weight between two of them calls its
        output side `mlp.out`, see `Linear`: a mapping for the axis never shards one weight twice.

        Args:
            Input: the axes of the input.
            Output: the axes of the result.
            width: the hidden axis, or its size.
            depth: the number of hidden layers; with 0, the layer is a linear map.
            activation: the function after each hidden layer.
            key: for the weights.
            out_first: see `Linear.init`.
            use_bias: whether hidden layers have a bias.
            use_final_bias: whether the last layer has one.
            init_scale: see `Linear.init`.
            initializer: see `Linear.init`.

        Raises:
            ArgumentError: if `depth` is negative or not an int.
            OperandError: if `activation` is not callable.
        """
        check_activation("MLP.init", activation)
        depth = check_int("MLP.init", "depth", depth)
        if depth < 0:
            raise ArgumentError(message("MLP.init", f"depth must not be negative, got {depth}"))
        hidden = as_axis("mlp", width)
        sides = itertools.pairwise([Input, *[hidden] * depth, Output])
        biases = [*[use_bias] * depth, use_final_bias]
        keys = tuple(jax.random.split(key, depth + 1))

        make = partial(
            Linear.init, out_first=out_first, init_scale=init_scale, initializer=initializer
        )
        layers = [
            make(In, Out, key=own, use_bias=has_bias)
            for (In, Out), has_bias, own in zip(sides, biases, keys, strict=True)
        ]
        return cls(tuple(layers), activation)

    @property
    def In(self) -> tuple[Axis, ...]:
        """The axes of the input."""
        return self.layers[0].In

    @property
    def Out(self) -> tuple[Axis, ...]:
        """The axes of the result."""
        return self.layers[-1].Out

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layers.

        Args:
            x: axes {*In, ...}.
            key: split between the layers; linear ones do not use it.

        Returns:
            Axes {*Out, ...}.
        """
        if len(self.layers) == 2:
            # Each further product would need the positions of the hidden axis again.
            up, down = self.layers
            result = _apply_together(x, (up,), down, self.activation, self.activation)
            if result is not None:
                return result
        *hidden, last = zip(self.layers, _keys(key, len(self.layers)), strict=True)
        for layer, own in hidden:
            x = apply_activation("MLP", self.activation, layer(x, key=own))
        return last[0](x, key=last[1])


class GatedMLP(Layer):
    """Compute `down(activation(gate(x)) * up(x))`, with three linear layers.

    It is called SwiGLU with `silu`, GeGLU with `gelu`, ReGLU with `relu`, and GLU with `sigmoid`.

    Attributes:
        gate: the linear layer before the activation.
        up: the linear layer that is gated.
        down: the linear layer to the result.
        activation: the function of the gate.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=2, embed=4)
        >>> swiglu = axn.nn.GatedMLP.init(Embed, Embed, 8, key=jax.random.key(0))
        >>> swiglu(axn.ones((Batch, Embed))).shape
        {'batch': 2, 'embed': 4}

    Reference:
        Shazeer (2020), GLU variants improve transformer.
    """

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[NamedArray], NamedArray] = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        Input: AxisSpec,
        Output: AxisSpec,
        width: int | Axis,
        activation: Callable[[NamedArray], NamedArray] = silu,
        *,
        key: jax.Array,
        out_first: bool = False,
        use_bias: bool = False,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make the three layers; the hidden axis is called "mlp" if `width` is an int.

        Args:
            Input: the axes of the input.
            Output: the axes of the result.
            width: the hidden axis, or its size. Two thirds of the width of an `MLP` give as many parameters.
            activation: the function of the gate.
            key: for the weights.
            out_first: see `Linear.init`.
            use_bias: whether the layers have a bias.
            init_scale: see `Linear.init`.
            initializer: see `Linear.init`.

        Raises:
            OperandError: if `activation` is not callable.
        """
        check_activation("GatedMLP.init", activation)
        hidden = as_axis("mlp", width)
        make = partial(
            Linear.init,
            use_bias=use_bias,
            out_first=out_first,
            init_scale=init_scale,
            initializer=initializer,
        )
        gate_key, up_key, down_key = jax.random.split(key, 3)
        gate = make(Input, hidden, key=gate_key)
        up = make(Input, hidden, key=up_key)
        down = make(hidden, Output, key=down_key)
        return cls(gate, up, down, activation)

    @property
    def In(self) -> tuple[Axis, ...]:
        """The axes of the input."""
        return self.up.In

    @property
    def Out(self) -> tuple[Axis, ...]:
        """The axes of the result."""
        return self.down.Out

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layers.

        Args:
            x: axes {*In, ...}.
            key: split between the layers; linear ones do not use it.

        Returns:
            Axes {*Out, ...}.
        """
        first, between = (self.gate, self.up), lambda gate, up: self.activation(gate) * up
        result = _apply_together(x, first, self.down, self.activation, between)
        if result is not None:
            return result
        keys = _keys(key, 3)
        gate = apply_activation("GatedMLP", self.activation, self.gate(x, key=keys[0]))
        hidden = gate * self.up(x, key=keys[1])
        return self.down(hidden, key=keys[2])


def _apply_together(
    x: NamedArray,
    first: Sequence[Linear],
    last: Linear,
    activation: Callable[[NamedArray], NamedArray],
    between: Callable[..., NamedArray],
) -> NamedArray | None:
    """Apply a perceptron in a ring, or with a padded hidden axis; None where layers should be applied one by one.

    Args:
        x: the input.
        first: the layers that read it.
        last: the layer that reads `between` of their results.
        activation: a part of `between`.
        between: the function from the results of `first` to the input of `last`.
    """
    padding = _find_hidden_padding(first, last)
    if padding is None or not is_pointwise(activation):
        return apply_in_ring(x, first, last, activation, between)
    # To cut the hidden axis would gather it on Explicit mesh axes.
    hidden = between(*(keep_padding(layer, padding.name)(x) for layer in first))
    is_real = arange(Axis(padding.name, padding.stored)) < padding.size
    return keep_padding(last, padding.name)(where(is_real, hidden, 0))


def _find_hidden_padding(first: Sequence[Linear], last: Linear) -> Padding | None:
    """Return the padding of the hidden axis, if it is a single axis that all layers pad equally."""
    weights = [getattr(layer, "weight", None) for layer in (*first, last)]  # others have none
    found = [set(own.padding) for own in weights if isinstance(own, PaddedArray)]
    if len(found) < len(weights):
        return None
    others = {axis.name for axes in (*(layer.In for layer in first), last.Out) for axis in axes}
    shared = [own for own in set.intersection(*found) if own.name not in others]
    return shared[0] if len(shared) == 1 and len(last.In) == 1 else None


def _keys(key: jax.Array | None, count: int) -> Sequence[jax.Array | None]:
    return [None] * count if key is None else list(jax.random.split(key, count))
