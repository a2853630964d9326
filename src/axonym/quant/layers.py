"""Give the linear layers of a model a quantised product."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from ..base.kinds import type_text
from ..errors import ArgumentError, OperandError, message, suggestion
from ..layout.assignment import path_text
from ..nn.linear import Linear
from .fp8 import Fp8DotGeneral
from .product import has_weight, is_linear, with_product

__all__ = ["QuantizationConfig", "quantize_linear_layers"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """The linear layers to quantise, and the product to give them.

    Attributes:
        dot_general: a function that makes the product of a layer, called once for each, such as `Fp8DotGeneral.init` or
            `Int8DotGeneral`; one that returns None removes a quantised product.
        targets: the layers. A string is a regular expression that must match the path of a layer, or what follows one
            of its dots: "qkv" matches `blocks.stacked.attention.qkv`, for example. One of several strings must match.
            A function of path and layer returns a bool. None stands for all layers.

    Examples:
        >>> config = axn.quant.QuantizationConfig(axn.quant.Int8DotGeneral, targets=["qkv", "up"])
        >>> config.dot_general()
        Int8DotGeneral()
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

    Examples:
        >>> In, Out = axn.make_axes(embed=4, mlp=8)
        >>> model = {"up": axn.nn.Linear.init(In, Out, key=jax.random.key(0))}
        >>> quantised = axn.quant.quantize_linear_layers(model, axn.quant.QuantizationConfig(axn.quant.Int8DotGeneral))
        >>> quantised["up"].dot_general
        Int8DotGeneral()
    """
    if not isinstance(config, QuantizationConfig):
        problem = f"config must be a QuantizationConfig, not {type_text(config)}"
        hint = "write QuantizationConfig(Int8DotGeneral)"
        raise OperandError(message("quantize_linear_layers", problem, hint=hint))
    make = config.dot_general
    # A module is callable, too: `QuantizationConfig(Fp8DotGeneral.init())` would share one state.
    if not callable(make) or not jax.tree_util.all_leaves([make]):
        problem = f"dot_general must be a function that makes a product, not {type_text(make)}"
        hint = "write Fp8DotGeneral.init, or a lambda: each layer needs a state of its own"
        raise OperandError(message("quantize_linear_layers", problem, hint=hint))
    found, form = jax.tree.flatten_with_path(tree, is_leaf=is_linear)
    layers = {path_text(path): leaf for path, leaf in found if has_weight(leaf)}
    chosen = _find_targets(layers, config.targets)
    # A product for each layer: a state, such as that of FP8, belongs to one.
    leaves = [
        with_product(leaf, make()) if path_text(path) in chosen else leaf for path, leaf in found
    ]
    quantised: T = jax.tree.unflatten(form, leaves)
    return quantised


def _find_targets(layers: dict[str, Linear], targets: Any) -> set[str]:
    """Return the paths of the target layers."""
    if targets is None:
        return set(layers)
    if callable(targets):
        return {path for path, layer in layers.items() if targets(path, layer)}
    if isinstance(targets, str):
        targets = [targets]

    chosen: set[str] = set()
    for target in targets:
        try:
            re.compile(target)
        except re.error as flaw:
            problem = f"the target {target!r} is not a regular expression: {flaw}"
            raise ArgumentError(message("quantize_linear_layers", problem)) from None
        matches = {path for path in layers if re.fullmatch(rf"(?:.*\.)?(?:{target})", path)}
        if not matches:
            known = f"there are: {', '.join(layers)}" if layers else "there are no linear layers"
            # Users mistype the last component, which is far from any whole path.
            last = [path.rpartition(".")[2] for path in layers]
            near = suggestion(target, {*layers, *last})
            problem = f"the target {target!r} matches no linear layer"
            raise ArgumentError(message("quantize_linear_layers", problem, known, hint=near))
        chosen |= matches
    return chosen
