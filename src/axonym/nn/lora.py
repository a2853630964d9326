"""Low-rank adaptation: small trained matrices beside frozen ones.

`add_lora` wraps the linear layers of a model, `lora_filter` says which leaves to train, and `merge_lora` adds the
products to the weights after training, which gives a plain model again.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Self, TypeVar

import equinox as eqx
import jax

from ..array import NamedArray, is_named_array
from ..axis import Axis, axis_name, shown, sized, without_axes
from ..base.dtypes import at_least_float32
from ..base.kinds import type_text
from ..create import zeros
from ..errors import ArgumentError, AxisClashError, OperandError, message
from ..layout.assignment import path_text
from ..ops.contract import dot
from ..transform.leaves import is_hole
from ..transform.vmap import vmap
from .dropout import Dropout
from .layer import Layer
from .linear import Linear
from .settings import as_axis
from .weights import find_derived_names, find_stored_outputs

__all__ = ["LoraLinear", "add_lora", "lora_filter", "merge_lora"]

T = TypeVar("T")
L = TypeVar("L")


class LoraLinear(Layer):
    """Add a low-rank product to a linear layer: `base(x) + alpha / rank * up(down(x))`.

    `up` starts at zero, so that the layer starts as `base`. To train only `down` and `up`, see `lora_filter`.

    Attributes:
        base: the layer to adapt.
        down: from `In` to `Rank`, without bias.
        up: from `Rank` to `Out`, without bias.
        alpha: the factor of the product, times the rank.
        dropout: applied to the input of `down`.

    Reference:
        Hu et al. (2021), LoRA: low-rank adaptation of large language models.

    Examples:
        >>> base = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
        >>> adapted = axn.nn.LoraLinear.init(base, 2, key=jax.random.key(1))
        >>> adapted.down.weight.shape, adapted.up.weight.shape
        ({'embed': 8, 'lora': 2}, {'lora': 2, 'mlp': 16})
    """

    base: Linear
    down: Linear
    up: Linear
    alpha: float = eqx.field(static=True)
    dropout: Dropout

    @classmethod
    def init(
        cls,
        base: Linear,
        Rank: int | Axis,
        *,
        key: jax.Array,
        alpha: float | None = None,
        dropout: float = 0.0,
    ) -> Self:
        """Wrap a layer.

        Args:
            base: the layer. If its arrays have further axes, as in a `Stacked`, or anonymous dimensions, `down` and
                `up` have them too, with a separate key along them.
            Rank: the axis between `down` and `up`, or its size; it is then called "lora".
            key: for `down`.
            alpha: the factor of the product, times the rank; by default the rank, for a factor of one.
            dropout: the dropout probability of the input of `down`.

        Raises:
            OperandError: if `base` is not a `Linear`.
            ArgumentError: if the rank is smaller than one.
            AxisClashError: if the layer has an axis of the name of `Rank`.
        """
        if not isinstance(base, Linear):
            problem = f"expected a Linear to wrap, got {type_text(base)}"
            hint = "use add_lora for a whole model"
            raise OperandError(message("LoraLinear.init", problem, hint=hint))
        axis = sized(as_axis("lora", Rank), "LoraLinear.init")
        if axis.size < 1:
            problem = f"the rank must be at least 1, got {axis.name}={axis.size}"
            raise ArgumentError(message("LoraLinear.init", problem))
        if axis.name in (*base.weight.names, *axis_name(base.Out)):
            problem = f"the layer already has an axis {axis.name!r}, which cannot also be the rank"
            lines = (f"weight: {shown(*base.weight.axes)}", f"Out: {shown(*base.Out)}")
            hint = f'give the rank another name: Axis("rank", {axis.size})'
            raise AxisClashError(message("LoraLinear.init", problem, *lines, hint=hint))

        def make_pair(key: jax.Array) -> tuple[Linear, Linear]:
            down = Linear.init(base.In, axis, key=key, use_bias=False)
            return down, Linear.init(
                axis, base.Out, key=key, use_bias=False, initializer=_make_zeros
            )

        own = (*base.In, *find_stored_outputs(base.In, base.Out))
        further = without_axes(base.weight.axes, axis_name(own))
        anonymous = base.weight.array.shape[: base.weight.array.ndim - len(base.weight.names)]
        # Anonymous dimensions come first in an array, so `jax.vmap`, which adds them there, is outermost.
        make = vmap(make_pair, further)
        for _ in anonymous:
            make = jax.vmap(make)
        copies = (*anonymous, *(each.size for each in further))
        if copies:  # an unbatched key stays one key
            key = jax.random.split(key, copies)
        down, up = make(key)
        return cls(base, down, up, float(axis.size if alpha is None else alpha), Dropout(dropout))

    @property
    def In(self) -> tuple[Axis, ...]:
        """The axes of the input."""
        return self.base.In

    @property
    def Out(self) -> tuple[Axis, ...]:
        """The axes of the result."""
        return self.base.Out

    @property
    def Rank(self) -> Axis:
        """The axis between `down` and `up`."""
        return self.up.In[0]

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Apply the layer.

        Args:
            x: axes {*In, ...}.
            key: for dropout; without one, nothing is dropped.

        Returns:
            Axes {..., *Out}, in the dtype of `base(x)`.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `In`.
        """
        y = self.base(x)
        # With a key, the dropout layer decides, so that `eqx.nn.inference_mode` works.
        inference = True if key is None else None
        thin = self.up(self.down(self.dropout(x, key=key, inference=inference)))
        # Narrow bases may have adapters in float32: the sum must not widen the activations of the model.
        return y + (thin * (self.alpha / self.Rank.size)).astype(y.dtype)

    def merge(self) -> Linear:
        """Return a plain layer that computes the same up to rounding: the product is added to the weight.

        The sum is computed in float32 or wider, and rounded to the dtype of the weight.

        Examples:
            >>> base = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
            >>> axn.nn.LoraLinear.init(base, 2, key=jax.random.key(1)).merge().weight.shape
            {'embed': 8, 'mlp': 16}
        """
        weight = self.base.weight
        dtype = at_least_float32(weight.dtype)
        # `up` calls its outputs by their plain names, the weight of `base` perhaps `<name>.out`.
        up = self.up.weight.rename(find_derived_names(self.In, self.Out))
        up = up.astype(dtype) * (self.alpha / self.Rank.size)
        product = dot(self.down.weight.astype(dtype), up, axis=self.Rank.name, precision="highest")
        merged = (weight.astype(dtype) + product).astype(weight.dtype)
        return dataclasses.replace(self.base, weight=merged)


def add_lora(
    model: T,
    Rank: int | Axis,
    *,
    key: jax.Array,
    where: Callable[[str], bool] | None = None,
    alpha: float | None = None,
    dropout: float = 0.0,
) -> T:
    """Wrap linear layers of a model in `LoraLinear`, also those in a `Stacked`, but none twice.

    Args:
        model: a tree with layers.
        Rank: the axis between `down` and `up`, or its size.
        key: split between the wrapped layers.
        where: a predicate of the path of a layer, such as `blocks.stacked.attention.query`; by default, all layers are
            wrapped.
        alpha: see `LoraLinear.init`.
        dropout: see `LoraLinear.init`.

    Returns:
        A tree like `model`. It computes the same as `model` until `up` is trained.

    Raises:
        ArgumentError: if there is no layer to wrap.

    Examples:
        >>> Embed = axn.Axis("embed", 8)
        >>> mlp = axn.nn.MLP.init(Embed, Embed, 16, 1, key=jax.random.key(0))
        >>> adapted = axn.nn.add_lora(mlp, 2, key=jax.random.key(1), where=lambda path: path == "layers.1")
        >>> [type(layer).__name__ for layer in adapted.layers]
        ['Linear', 'LoraLinear']
    """
    # A layer without a weight is one side of `eqx.partition`.
    paths = [
        path_text(path)
        for path, each in jax.tree.leaves_with_path(model, is_leaf=_is_layer)
        if isinstance(each, Linear) and not is_hole(each.weight)
    ]
    chosen = paths if where is None else list(filter(where, paths))
    if not chosen:
        problem = "`where` chose no linear layer"
        if where is None:
            problem = "there is no linear layer to wrap"
        known = ", ".join(path or "the model itself" for path in paths) or "none"
        raise ArgumentError(message("add_lora", problem, f"linear layers: {known}"))
    # Keys belong to paths, not to layers: a layer that a model holds twice gets two adapters.
    keys = dict(zip(chosen, jax.random.split(key, len(chosen)), strict=True))

    def wrap(path: tuple[object, ...], each: T) -> T | LoraLinear:
        own = keys.get(path_text(path))
        if own is None or not isinstance(each, Linear):
            return each
        return LoraLinear.init(each, Rank, key=own, alpha=alpha, dropout=dropout)

    adapted: T = jax.tree.map_with_path(wrap, model, is_leaf=_is_layer)
    return adapted


def lora_filter(model: T) -> T:
    """Return a tree like a model that is true at `down` and `up` of its `LoraLinear` layers, and false elsewhere.

    Pass it to `eqx.partition`, `eqx.filter` or `optax.masked`.

    Examples:
        >>> Embed = axn.Axis("embed", 8)
        >>> linear = axn.nn.Linear.init(Embed, Embed, key=jax.random.key(0))
        >>> adapted = axn.nn.add_lora(linear, 2, key=jax.random.key(1))
        >>> trained, frozen = eqx.partition(adapted, axn.nn.lora_filter(adapted))
        >>> trained.base.weight.array is None
        True
    """
    if not any(map(_is_lora, jax.tree.leaves(model, is_leaf=_is_lora))):
        problem = "the model has no LoraLinear, so that nothing is selected"
        hint = "adapt it first: axn.nn.add_lora(model, rank, key=key)"
        warnings.warn(message("lora_filter", problem, hint=hint), stacklevel=2)

    def mark(each: object) -> object:
        if not isinstance(each, LoraLinear):
            return False
        nothing = jax.tree.map(lambda _: False, each)
        thin = jax.tree.map(lambda _: True, (each.down, each.up))
        return eqx.tree_at(lambda layer: (layer.down, layer.up), nothing, thin)

    chosen: T = jax.tree.map(mark, model, is_leaf=_is_lora)
    return chosen


def merge_lora(model: T) -> T:
    """Replace each `LoraLinear` of a model by its `LoraLinear.merge`, a plain `Linear`.

    A layer that lacks some of its weights, as after `eqx.partition`, stays as it is.

    Examples:
        >>> Embed = axn.Axis("embed", 8)
        >>> mlp = axn.nn.MLP.init(Embed, Embed, 16, 1, key=jax.random.key(0))
        >>> adapted = axn.nn.add_lora(mlp, 2, key=jax.random.key(1))
        >>> [type(layer).__name__ for layer in axn.nn.merge_lora(adapted).layers]
        ['Linear', 'Linear']
    """

    def merge(each: L) -> L | Linear:
        if not isinstance(each, LoraLinear) or any(
            is_hole(own.weight) for own in (each.base, each.down, each.up)
        ):
            return each
        return each.merge()

    merged: T = jax.tree.map(merge, model, is_leaf=_is_lora)
    return merged


def _make_zeros(key: jax.Array, axes: tuple[Axis, ...]) -> NamedArray:
    return zeros(axes)


def _is_layer(each: object) -> bool:
    """Return whether to stop at a subtree: a `LoraLinear` has linear layers inside that are not wrapped again."""
    return isinstance(each, Linear | LoraLinear) or is_named_array(each)


def _is_lora(each: object) -> bool:
    return isinstance(each, LoraLinear)
