"""Optimizers that go through the layers of a model: orthogonalised updates, and learning rates by the layer's width."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import jax.random as jrandom
import optax
from haliax import NamedArray
from haliax.nn import Linear
from haliax.tree_util import scan_aware_tree_map

Embed, Heads, HeadSize, Layers, Classes = hax.make_axes(embed=8, heads=2, head_size=3, layers=2, classes=4)


class Net(eqx.Module):
    inputs: hnn.Linear
    blocks: hnn.Stacked
    head: hnn.Linear
    norm: hnn.LayerNorm

    @staticmethod
    def init(*, key):
        k_in, k_blocks, k_head = jrandom.split(key, 3)
        first, last = hnn.Linear.input_reparam(use_mup=True), hnn.Linear.output_reparam(use_mup=True)
        return Net(
            hnn.Linear.init(Embed, Embed.alias("wide"), key=k_in, reparam_cls=first),
            hnn.Stacked.init(Layers, Residual)(Embed, (Heads, HeadSize), key=jrandom.split(k_blocks, Layers.size)),
            hnn.Linear.init(Embed, Classes, key=k_head, reparam_cls=last),
            hnn.LayerNorm.init(Embed),
        )

    def __call__(self, x):
        x = self.blocks.fold(self.inputs(x).rename({"wide": "embed"}))
        return self.head(self.norm(x))


class Residual(eqx.Module):
    norm: hnn.LayerNorm
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(Embed, heads, *, key):
        k_up, k_down = jrandom.split(key)
        hidden = hnn.Linear.hidden_reparam(use_mup=True)
        up = hnn.Linear.init(Embed, heads, key=k_up, reparam_cls=hidden)
        down = hnn.Linear.init(heads, Embed, key=k_down, use_bias=False, out_first=False, reparam_cls=hidden)
        return Residual(hnn.LayerNorm.init(Embed), up, down)

    def __call__(self, x):
        return x + self.down(hnn.relu_squared(self.up(self.norm(x))))


def is_linear(node: Any) -> bool:
    return isinstance(node, Linear)


def has_weight(node: Any) -> bool:
    return is_linear(node) and isinstance(node.weight, NamedArray) and isinstance(node.weight.array, jax.Array)


def flatten_linear_layers(tree: Any) -> Any:
    def flatten(layer: Any) -> Any:
        if not has_weight(layer):
            return layer
        weight = layer.weight.flatten_axes(layer.Out, "__OUT__").flatten_axes(layer.In, "__IN__")
        weight = weight.rearrange(("__OUT__", "__IN__"))
        In, Out = weight.resolve_axis("__IN__"), weight.resolve_axis("__OUT__")
        return dataclasses.replace(layer, weight=weight, bias=None, In=In, Out=Out)

    return scan_aware_tree_map(flatten, tree, is_leaf=is_linear)


def unflatten_linear_layers(template: Any, tree: Any) -> Any:
    def unflatten(template: Any, layer: Any) -> Any:
        if not has_weight(template):
            return layer
        weight = layer.weight.unflatten_axis("__OUT__", template.Out).unflatten_axis("__IN__", template.In)
        return dataclasses.replace(template, weight=weight.rearrange(template.weight.axes))

    return scan_aware_tree_map(unflatten, template, tree, is_leaf=is_linear)


def orthogonalised(matrix: jax.Array, steps: int) -> jax.Array:
    x = matrix / (jnp.linalg.norm(matrix) + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


class MuonState(NamedTuple):
    momentum: Any


def scale_by_muon(beta: float = 0.9, steps: int = 4) -> optax.GradientTransformation:
    def init(params: Any) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        momentum = jax.tree.map(lambda m, g: beta * m + g, state.momentum, updates)

        def orthogonalise(layer: Any) -> Any:
            if not has_weight(layer):
                return layer
            assert layer.weight.ndim == 2
            weight = dataclasses.replace(layer.weight, array=orthogonalised(layer.weight.array, steps))
            return dataclasses.replace(layer, weight=weight)

        flat = scan_aware_tree_map(orthogonalise, flatten_linear_layers(momentum), is_leaf=is_linear)
        return unflatten_linear_layers(momentum, flat), MuonState(momentum)

    return optax.GradientTransformation(init, update)


def label(params: Any) -> Any:
    """Say which optimizer each parameter is for: muon for weights of hidden layers."""

    def of(path: Any, node: Any) -> Any:
        if not is_linear(node) or any(getattr(key, "name", "") in ("inputs", "head") for key in path):
            return jax.tree.map(lambda _: "adam", node)
        labels = jax.tree.map(lambda _: "adam", node)
        return dataclasses.replace(labels, weight=jax.tree.map(lambda _: "muon", node.weight))

    return jax.tree_util.tree_map_with_path(of, params, is_leaf=is_linear)


def muon(rate: float) -> optax.GradientTransformation:
    return optax.multi_transform(
        {"muon": optax.chain(scale_by_muon(), optax.scale(-rate)), "adam": optax.adam(rate)}, label
    )


def scale_by_width() -> optax.GradientTransformation:
    """Scale the updates of each layer by the learning rate that its parametrisation wants."""

    def scaled(layer: Any) -> Any:
        if not isinstance(layer, hax.nn.mup.ReparamEnabled):
            return layer
        return jax.tree.map(lambda update: update * layer.reparam.lr_scale, layer)

    def is_leaf(node: Any) -> bool:
        return isinstance(node, hax.nn.mup.ReparamEnabled)

    return optax.stateless(lambda updates, _: jax.tree.map(scaled, updates, is_leaf=is_leaf))
