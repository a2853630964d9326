"""Give the linear layers of a model a quantised product."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..errors import ArgumentError, OperandError, message, suggestion
from ..layout import path_text
from ..nn.linear import Linear
from .fp8 import Fp8DotGeneral

__all__ = ["QuantizationConfig", "quantize_linear_layers"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """Which linear layers multiply in which way.

    Attributes:
        dot_general: a function that makes the product of a layer, called once for each, such as `Fp8DotGeneral.init` or
            `Int8DotGeneral`; one that returns None removes a quantised product.
        targets: the layers. A string is a regular expression that must match the path of a layer, or what follows one
            of its dots: "qkv" matches `blocks.stacked.attention.qkv`, for example. Of several strings, one must match.
            A function of path and layer returns a bool. None stands for all layers.
    """

    dot_general: Callable[[], Any] = Fp8DotGeneral.init
    targets: str | Sequence[str] | Callable[[str, Linear], bool] | None = None


def quantize_linear_layers(tree: T, config: QuantizationConfig) -> T:
    """Return a model whose target `Linear` layers have a quantised product.

    In layers that are stored along an axis, as in `Stacked`, the state has a leading dimension for it.

    Args:
        tree: the model, or a tree of layers.
        config: the product and the target layers.

    Raises:
        ArgumentError: if a target matches no layer, or is not a regular expression.
        OperandError: if `config` is not a `QuantizationConfig`, or its `dot_general` is a product, not a function that
            makes one.

    Example:
        >>> In, Out = axn.make_axes(embed=4, mlp=8)
        >>> model = {"up": axn.nn.Linear.init(In, Out, key=jax.random.key(0))}
        >>> quantised = axn.quant.quantize_linear_layers(model, axn.quant.QuantizationConfig(axn.quant.Int8DotGeneral))
        >>> quantised["up"].dot_general
        Int8DotGeneral()
    """
    if not isinstance(config, QuantizationConfig):
        problem = f"config must be a QuantizationConfig, not {type(config).__name__}"
        hint = "write QuantizationConfig(Int8DotGeneral)"
        raise OperandError(message("quantize_linear_layers", problem, hint=hint))
    make = config.dot_general
    if not callable(make) or not jax.tree_util.all_leaves([make]):
        problem = f"dot_general must be a function that makes a product, not {type(make).__name__}"
        hint = "write Fp8DotGeneral.init, or a lambda: each layer needs a state of its own"
        raise OperandError(message("quantize_linear_layers", problem, hint=hint))
    found, form = jax.tree.flatten_with_path(tree, is_leaf=_is_linear)
    layers = {path_text(path): leaf for path, leaf in found if _is_linear(leaf)}
    chosen = _chosen(layers, config.targets)
    leaves = [_with_product(leaf, make()) if path_text(path) in chosen else leaf for path, leaf in found]
    quantised: T = jax.tree.unflatten(form, leaves)
    return quantised


def _is_linear(node: Any) -> bool:
    return isinstance(node, Linear)


def _chosen(layers: dict[str, Linear], targets: Any) -> set[str]:
    """Return the paths of the target layers."""
    if targets is None or callable(targets):
        return {path for path, layer in layers.items() if targets is None or targets(path, layer)}
    chosen: set[str] = set()
    for target in [targets] if isinstance(targets, str) else targets:
        try:
            re.compile(target)
        except re.error as flaw:
            problem = f"the target {target!r} is not a regular expression: {flaw}"
            raise ArgumentError(message("quantize_linear_layers", problem)) from None
        matches = {path for path in layers if re.fullmatch(rf"(?:.*\.)?(?:{target})", path)}
        if not matches:
            known = [f"there are: {', '.join(layers)}" if layers else "there are no linear layers"]
            near = suggestion(target, {part for path in layers for part in (path, path.rpartition(".")[2])})
            problem = f"the target {target!r} matches no linear layer"
            raise ArgumentError(message("quantize_linear_layers", problem, *known, hint=near))
        chosen |= matches
    return chosen


def _with_product(layer: Linear, dot_general: Any) -> Linear:
    """Give a layer its product; the axes of stacked layers come before the layer's own."""
    own = len(layer.In) + len(layer.Out)
    stacked = layer.weight.array.shape[: layer.weight.array.ndim - own]
    if jax.tree_util.all_leaves([dot_general]):  # a function, which transformations reject as a leaf
        dot_general = jax.tree_util.Partial(dot_general)
    state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*stacked, *jnp.shape(leaf))), dot_general)
    return dataclasses.replace(layer, dot_general=state)
