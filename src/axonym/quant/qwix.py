"""Quantise linear layers by the rules of Qwix; the `quantize_model` of Qwix takes only modules of Flax."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from ..base.kinds import type_text
from ..base.lazy import library
from ..engine.core import wrap
from ..errors import ArgumentError, OperandError, message
from ..layout.assignment import path_text
from ..nn.linear import Linear
from .product import has_weight, is_linear, make_hashable, with_product

__all__ = ["quantize_with_qwix"]

T = TypeVar("T")

FUNCTION = "quantize_with_qwix"
# Statistics, random keys, and what Qwix calls experimental.
_FOR_FLAX = ("act_static_scale", "bwd_stochastic_rounding", "additional_qt_config")


def quantize_with_qwix(tree: T, rules: Sequence[Any], *, store: bool = False) -> T:
    """Quantise the linear layers of a model by the rules of Qwix, as `qwix.quantize_model` does for Flax.

    The first rule whose `module_path` matches the complete path of a layer applies: `blocks/.*/qkv` matches
    `blocks/stacked/attention/qkv`. A rule without `weight_qtype` leaves its layers as they are; a rule whose `op_names`
    lack "dot_general" matches no layer. The page on Qwix has an example.

    Args:
        tree: the model, or a tree of layers.
        rules: a list of `qwix.QuantizationRule` or `qwix.QtRule`.
        store: if true, layers store their weights as `weight_qtype` and cannot be trained, as with
            `qwix.PtqProvider`. By default, they keep their weights and quantise them at each product, for training, as
            with `qwix.QtProvider`.

    Returns:
        The model with other `Linear` layers. A stored weight has the axes that it had before, and its scales are in
        the `dot_general` of the layer.

    Raises:
        ImportError: if Qwix is not installed.
        OperandError: if something in `rules` is not a rule.
        ArgumentError: if a rule matches no linear layer, has a setting that needs a Flax module or a missing gradient,
            or if the weight of a layer is already quantised.
    """
    qwix = library(FUNCTION, "qwix")
    wrong = f"not {type_text(rules)}"
    if isinstance(rules, Sequence):
        others = [rule for rule in rules if not isinstance(rule, qwix.QuantizationRule)]
        wrong = f"not of {type_text(others[0])}" if others else ""
    if wrong:
        problem = f"rules must be a list of qwix.QuantizationRule, {wrong}"
        hint = 'write [qwix.QuantizationRule(module_path=".*", weight_qtype=jnp.int8)]'
        raise OperandError(message(FUNCTION, problem, hint=hint))
    for rule in rules:
        _check_settings(rule, store)
    found, form = jax.tree.flatten_with_path(tree, is_leaf=is_linear)
    layers = {_write_path(path): leaf for path, leaf in found if has_weight(leaf)}
    _check_matches(rules, layers)

    def quantise(path: str, leaf: Any) -> Any:
        rule = _find_rule(rules, path) if has_weight(leaf) else None
        if rule is None or rule.weight_qtype is None:
            return leaf
        dtype = leaf.weight.dtype
        if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize == 1:
            problem = f"the weight of {path} is of {dtype}, so it is quantised already"
            raise ArgumentError(message(FUNCTION, problem, hint="start from the model before"))
        product = _QwixDotGeneral(_simplify_rule(rule))
        return _store(leaf, product) if store else with_product(leaf, product)

    result: T = jax.tree.unflatten(
        form, [quantise(_write_path(path), leaf) for path, leaf in found]
    )
    return result


class _QwixDotGeneral(eqx.Module):
    """Multiply like `jax.lax.dot_general`, by a rule of Qwix; the right operand is the weight.

    Attributes:
        rule: a `qwix.QuantizationRule`.
        scale: the scales of a stored weight, with its dimensions; None if the weight is quantised at each call.
        zero_point: the value that represents zero in a stored weight, if the calibration has one.
    """

    rule: Any = eqx.field(static=True)
    scale: jax.Array | None = None
    zero_point: jax.Array | None = None

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: Sequence[Sequence[Sequence[int]]],
        precision: PrecisionLike = None,
        preferred_element_type: DTypeLike | None = None,
    ) -> jax.Array:
        """Multiply; Qwix takes no `precision`."""
        numbers = make_hashable(dimension_numbers)
        rule = self.rule
        if self.scale is None:
            product = _make_flax_product(rule).apply({"params": {"kernel": rhs}}, lhs, rhs, numbers)
        else:
            qwix = library(FUNCTION, "qwix")
            if rule.act_qtype is not None:
                method = rule.act_calibration_method or "absmax"
                lhs = _quantise(lhs, numbers[0][0], rule, rule.act_qtype, method)
            weight = qwix.QArray(rhs, self.scale, self.zero_point, rule.weight_qtype)
            product = qwix.dot_general(lhs, weight, numbers)
        result: jax.Array = product.astype(preferred_element_type or product.dtype)
        return result


@functools.cache
def _make_flax_product(rule: Any) -> Any:
    """Return a product in the smallest Flax module: Qwix defines quantised gradients only there."""
    linen, qwix = library(FUNCTION, "flax.linen"), library(FUNCTION, "qwix")

    def product(self: Any, lhs: jax.Array, rhs: jax.Array, numbers: Any) -> jax.Array:
        # Qwix takes parameters of the module for weights, and everything else for activations.
        kernel = self.param("kernel", lambda _: rhs)
        # Qwix replaces the function during the call, so that it is looked up here.
        return jax.lax.dot_general(lhs, kernel, numbers)

    module = type("Product", (linen.Module,), {"__call__": linen.compact(product)})
    return qwix.quantize_model(module(), qwix.QtProvider([rule]))


def _quantise(x: jax.Array, contracted: Sequence[int], rule: Any, qtype: Any, method: str) -> Any:
    """Quantise an operand, with scales for each position along the other dimensions, and for each tile."""
    tiled = {contracted[-1]: rule.tile_size} if rule.tile_size and contracted else {}
    others = [at for at in range(x.ndim) if at not in contracted]
    return library(FUNCTION, "qwix").quantize(
        x, qtype, channelwise_axes=others, tiled_axes=tiled, calibration_method=method
    )


def _store(layer: Linear, product: _QwixDotGeneral) -> Linear:
    """Quantise the weight of a layer once and for all."""
    weight, rule = layer.weight, product.rule
    # A layer of a `Stacked` has leading axes, each position of which gets scales of its own.
    contracted = [weight.names.index(axis.name) for axis in layer.In]
    method = rule.weight_calibration_method
    stored = _quantise(weight.array, contracted, rule, rule.weight_qtype, method)
    product = dataclasses.replace(product, scale=stored.scale, zero_point=stored.zero_point)
    weight = wrap(weight, stored.qvalue, weight.names)
    return dataclasses.replace(layer, weight=weight, dot_general=product)


def _write_path(path: Any) -> str:
    """Write the path of a layer as Flax does."""
    return path_text(path).replace(".", "/")


def _find_rule(rules: Sequence[Any], path: str) -> Any:
    """Return the first rule for the product of a layer."""
    own = (rule for rule in rules if not rule.op_names or "dot_general" in rule.op_names)
    return next((rule for rule in own if re.fullmatch(rule.module_path, path)), None)


def _check_matches(rules: Sequence[Any], layers: Mapping[str, Linear]) -> None:
    """Check that the path of each rule matches some layer; Qwix ignores a misspelt path."""
    for rule in rules:
        if any(_find_rule([rule], path) for path in layers):
            continue
        known = f"there are: {', '.join(layers)}" if layers else "there are no linear layers"
        problem = f"the rule for {rule.module_path!r} matches no linear layer"
        hint = "module_path must match a whole path, and op_names, if any, must have 'dot_general'"
        raise ArgumentError(message(FUNCTION, problem, known, hint=hint))


def _check_settings(rule: Any, store: bool) -> None:
    """Refuse settings that would have no effect: a rule that is silently ignored trains another model."""
    for name in _FOR_FLAX:
        if getattr(rule, name, None):
            problem = f"{name}={getattr(rule, name)!r} needs variables or keys of a Flax module"
            hint = "leave it out: scales of activations are then computed at each call"
            raise ArgumentError(message(FUNCTION, problem, hint=hint))
    if store and getattr(rule, "bwd_qtype", None) is not None:
        problem = "bwd_qtype is for gradients, and stored weights have none"
        raise ArgumentError(message(FUNCTION, problem, hint="leave out bwd_qtype or store=True"))


def _simplify_rule(rule: Any) -> Any:
    """Return a hashable rule, without the fields that chose the layer: JAX compiles for it."""
    return dataclasses.replace(rule, module_path=".*", op_names=(), act_batch_axes=())
