"""Low-rank updates of a model that was loaded: chosen by the paths of layers, trained alone, merged for export."""

import dataclasses
import re
from typing import Any

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
from haliax import Axis, NamedArray
from haliax.jax_utils import maybe_rng_split
from haliax.state_dict import ModuleWithStateDictSerialization, to_torch_compatible_state_dict


class LoraLinear(ModuleWithStateDictSerialization):
    wrapped: hnn.Linear
    down: hnn.Linear
    up: hnn.Linear
    dropout: hnn.Dropout
    scale: float = eqx.field(static=True)

    @staticmethod
    def init(wrapped: hnn.Linear, rank: int, alpha: float, *, key) -> "LoraLinear":
        Rank = Axis("rank", rank)
        k_down, k_up = jax.random.split(key)
        down = hnn.Linear.init(wrapped.In, Rank, key=k_down, use_bias=False)
        up = hnn.Linear.init(Rank, wrapped.Out, key=k_up, use_bias=False, init_scale=0.1)
        return LoraLinear(wrapped, down, up, hnn.Dropout(0.0), alpha / rank)

    def __call__(self, x: NamedArray, *, key=None) -> NamedArray:
        k_base, k_drop = maybe_rng_split(key, 2)
        y = self.wrapped(x, key=k_base)
        return y + self.up(self.down(self.dropout(x, key=k_drop))) * self.scale

    def merged(self) -> hnn.Linear:
        delta = hax.dot(self.up.weight, self.down.weight, axis="rank") * self.scale
        weight = self.wrapped.weight + delta.rearrange(self.wrapped.weight.axes)
        return dataclasses.replace(self.wrapped, weight=weight)

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"wrapped": None, "down": "lora_A", "up": "lora_B"}


def is_layer(node: Any) -> bool:
    return isinstance(node, hnn.Linear | hnn.Stacked | LoraLinear)


def adapt(model: Any, pattern: str, rank: int, alpha: float, *, key, path: str = "") -> Any:
    """Wrap each linear layer whose path matches, those inside of stacks one for each layer."""
    nodes, structure = jax.tree_util.tree_flatten_with_path(model, is_leaf=is_layer)

    def one(where: str, node: Any, key) -> Any:
        if isinstance(node, hnn.Stacked):
            wrap = lambda layer, key: adapt(layer, pattern, rank, alpha, key=key, path=where)  # noqa: E731
            keys = jax.random.split(key, node.Block.size)
            return dataclasses.replace(node, stacked=hax.vmap(wrap, node.Block)(node.stacked, keys))
        if isinstance(node, hnn.Linear) and re.search(pattern, where):
            return LoraLinear.init(node, rank, alpha, key=key)
        return node

    keys = jax.random.split(key, len(nodes))
    done = [one(path + jax.tree_util.keystr(p), node, k) for (p, node), k in zip(nodes, keys, strict=True)]
    return jax.tree.unflatten(structure, done)


def merge(model: Any) -> Any:
    def one(node: Any) -> Any:
        if isinstance(node, hnn.Stacked):
            return dataclasses.replace(node, stacked=hax.vmap(merge, node.Block)(node.stacked))
        return node.merged() if isinstance(node, LoraLinear) else node

    return jax.tree.map(one, model, is_leaf=is_layer)


def trainable(model: Any) -> Any:
    """Return a tree of bools that is true for the low-rank parts."""

    def one(node: Any) -> Any:
        if isinstance(node, hnn.Stacked):
            return dataclasses.replace(node, stacked=trainable(node.stacked))
        base = jax.tree.map(lambda _: False, node)
        if not isinstance(node, LoraLinear):
            return base
        own = jax.tree.map(lambda _: True, (node.down, node.up))
        return eqx.tree_at(lambda lora: (lora.down, lora.up), base, own)

    return jax.tree.map(one, model, is_leaf=is_layer)


def adapter_state(model: Any) -> dict[str, Any]:
    """Return the file of the low-rank parts alone, with the keys that the torch library has."""
    own = eqx.filter(model, trainable(model))
    return to_torch_compatible_state_dict(own, prefix="base_model.model")
