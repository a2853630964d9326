"""Linear layers in low precision."""

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from axonym.engine import spec
from axonym.errors import ArgumentError, message
from axonym.quant import OverwriteWithGradient, apply_updates, partition_for_grad_overwrite

from ._dot_general import DefaultDotGeneralOp, DotGeneralOp, Fp8DotGeneralOp, Int8DotGeneralOp
from .nn.linear import Linear

__all__ = [
    "DefaultDotGeneralOp",
    "DotGeneralOp",
    "Fp8DotGeneralOp",
    "Int8DotGeneralOp",
    "OverwriteWithGradient",
    "QuantizationConfig",
    "T",
    "apply_updates",
    "partition_for_grad_overwrite",
    "quantize_linear_layers",
]

T = TypeVar("T")


class ContradictionError(ArgumentError, AssertionError):
    """Two arguments contradict each other, for which Haliax raises AssertionError."""


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """Which linear layers to quantise, and how.

    Attributes:
        targets: the layers: a list of the names of their fields, or of whole paths; or a regular expression that must
            match the beginning of a path; None for all.
        amax_history_length: the number of steps in the histories of 8-bit floating point.
        compute_dtype: the dtype to which operands are cast before they are rounded, or None.
        fp8: whether to multiply in 8-bit floating point.
        int8: whether to multiply in 8-bit integers.
    """

    targets: list[str] | str | None = None
    amax_history_length: int = 1024
    compute_dtype: DTypeLike | None = None
    fp8: bool = False
    int8: bool = False

    def __post_init__(self) -> None:
        if self.fp8 and self.int8:
            raise ContradictionError(
                message("QuantizationConfig", "fp8 and int8 exclude each other")
            )


def quantize_linear_layers(tree: T, config: QuantizationConfig) -> T:
    """Return a model whose targeted linear layers have quantised products, each with its own state.

    Differs from `axonym.quant.quantize_linear_layers`: a target without matches is not an error. The component
    `stacked` of a path may be omitted.
    """
    make: Callable[[], Any]
    if config.fp8:
        make = lambda: Fp8DotGeneralOp.init(config.amax_history_length, config.compute_dtype)  # noqa: E731
    elif config.int8:
        make = Int8DotGeneralOp.init
    else:
        warnings.warn(
            "quantize_linear_layers: neither fp8 nor int8 is set, so nothing changes", stacklevel=2
        )
        return tree
    found, form = jax.tree.flatten_with_path(tree, is_leaf=_is_linear)
    leaves: list[Any] = []
    for keys, leaf in found:
        if _is_linear(leaf) and _is_meant(keys, config.targets):
            leaf = _with_product(leaf, make())
        leaves.append(leaf)
    quantized: T = jax.tree.unflatten(form, leaves)
    return quantized


def _is_linear(node: Any) -> bool:
    return isinstance(node, Linear)


def _is_meant(keys: Any, targets: list[str] | str | None) -> bool:
    path = jax.tree_util.keystr(keys, simple=True, separator=".")
    spellings = (path, ".".join(part for part in path.split(".") if part != "stacked"))
    if targets is None:
        return True
    if isinstance(targets, str):
        return any(re.match(targets, spelling) for spelling in spellings)
    return any(spelling in targets for spelling in (*spellings, path.rpartition(".")[2]))


def _with_product(layer: Linear, dot_general: Any) -> Linear:
    """Give a layer its product; the axes of stacked layers come before the layer's own."""
    own = len(spec(layer.In)) + len(spec(layer.Out))
    stacked = layer.weight.array.shape[: layer.weight.array.ndim - own]
    state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*stacked, *leaf.shape)), dot_general)
    return dataclasses.replace(layer, dot_general=state)
