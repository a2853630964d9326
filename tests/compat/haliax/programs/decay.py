"""Weight decay and learning rates by the paths of parameters, and frozen parts, on top of Optax."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import optax
from haliax.tree_util import tree_flatten, tree_unflatten


@dataclass(frozen=True)
class Groups:
    """Settings by patterns of paths; the first that matches counts."""

    decayed: tuple[str, ...] = (r"\.weight$",)
    kept: tuple[str, ...] = (r"norm", r"embed")
    frozen: tuple[str, ...] = ()


def paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree, hax.is_named_array)[0]]


def decay_mask(groups: Groups) -> Callable[[Any], Any]:
    """Return a function that makes a tree of bools, one for each named array."""

    def mask(params: Any) -> Any:
        leaves, structure = tree_flatten(params)
        found = [
            not any(re.search(kept, path) for kept in groups.kept)
            and any(re.search(decayed, path) for decayed in groups.decayed)
            for path in paths(params)
        ]
        assert len(found) == len(leaves)
        return tree_unflatten(structure, found)

    return mask


def labels(groups: Groups) -> Callable[[Any], Any]:
    """Return a function that puts a string in place of each leaf, those that are no arrays too."""

    def label(params: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten_with_path(params)
        names = ["frozen" if any(re.search(p, jax.tree_util.keystr(path)) for p in groups.frozen) else "trained"
                 for path, _ in leaves]  # fmt: skip
        return jax.tree.unflatten(structure, names)

    return label


def optimizer(groups: Groups, learning_rate: float, weight_decay: float) -> optax.GradientTransformation:
    parts = [
        optax.scale_by_adam(),
        optax.add_decayed_weights(weight_decay, decay_mask(groups)),
        optax.scale(-learning_rate),
    ]
    return optax.multi_transform({"trained": optax.chain(*parts), "frozen": optax.set_to_zero()}, labels(groups))


Vocab, Embed, Classes = hax.make_axes(vocab=6, embed=4, classes=3)


class Net(eqx.Module):
    embed: hnn.Embedding
    norm: hnn.LayerNorm
    dropout: hnn.Dropout
    layers: list[hnn.Linear]

    @staticmethod
    def init(*, key) -> "Net":
        k_embed, k_first, k_second = jax.random.split(key, 3)
        first = hnn.Linear.init(Embed, Embed.alias("hidden"), key=k_first)
        second = hnn.Linear.init(Embed.alias("hidden"), Classes, key=k_second)
        embed = hnn.Embedding.init(Vocab, Embed, key=k_embed)
        return Net(embed, hnn.LayerNorm.init(Embed), hnn.Dropout(0.0), [first, second])

    def __call__(self, ids: hax.NamedArray, *, key=None) -> hax.NamedArray:
        x = self.dropout(self.norm(self.embed(ids)), key=key)
        return self.layers[1](hnn.relu(self.layers[0](x)))


def step(tx: optax.GradientTransformation, net: Net, state: Any, ids: hax.NamedArray, targets: hax.NamedArray) -> Any:
    def loss_fn(net: Net) -> Any:
        return hnn.cross_entropy_loss(net(ids), Classes, hnn.one_hot(targets, Classes)).scalar()

    params = eqx.filter(net, eqx.is_inexact_array)
    loss, grads = eqx.filter_value_and_grad(loss_fn)(net)
    updates, state = tx.update(grads, state, params)
    return loss, eqx.apply_updates(net, updates), state
