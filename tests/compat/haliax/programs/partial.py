"""A model of which a checkpoint has only a part: a new head on a body that was trained, which starts from its file."""

from typing import Any

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
from haliax import Axis, NamedArray
from haliax._src.state_dict import from_state_dict
from haliax.partitioning import ResourceMapping, named_jit
from haliax.state_dict import load_state_dict

Embed, Mlp = hax.make_axes(embed=8, mlp=16)


class Block(eqx.Module):
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(*, key) -> "Block":
        k_up, k_down = jax.random.split(key)
        return Block(hnn.Linear.init(Embed, Mlp, key=k_up), hnn.Linear.init(Mlp, Embed, key=k_down))

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.down(hnn.gelu(self.up(x)))


class Body(eqx.Module):
    blocks: hnn.Stacked[Block]
    norm: hnn.LayerNorm

    @staticmethod
    def init(layers: int, *, key) -> "Body":
        blocks = hnn.Stacked.init(Axis("layers", layers), Block)
        return Body(blocks(key=jax.random.split(key, layers)), hnn.LayerNorm.init(Embed))

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.norm(self.blocks.fold(x))


class Tagger(eqx.Module):
    body: Body
    head: hnn.Linear
    scale: jax.Array

    @staticmethod
    def init(layers: int, Tags: Axis, *, key) -> "Tagger":
        k_body, k_head = jax.random.split(key)
        head = hnn.Linear.init(Embed, Tags, key=k_head)
        return Tagger(Body.init(layers, key=k_body), head, jax.numpy.ones(()))

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.head(self.body(x)) * self.scale


def is_missing(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def load_part(shapes: Tagger, path: str) -> Tagger:
    """Load what the file has; the rest stays abstract."""
    state = load_state_dict(path)
    return eqx.tree_at(lambda model: model.body, shapes, from_state_dict(shapes.body, state, prefix="body"))


def start(layers: int, Tags: Axis, path: str, mapping: ResourceMapping, *, key) -> Tagger:
    """Initialise on all devices only what is missing in the file."""
    shapes = eqx.filter_eval_shape(Tagger.init, layers, Tags, key=key)
    with hax.axis_mapping(mapping):
        partial = load_part(shapes, path)

    @named_jit(axis_resources=mapping, out_axis_resources=mapping)
    def complete(partial: Tagger) -> Tagger:
        fresh = Tagger.init(layers, Tags, key=key)
        return jax.tree.map(lambda have, new: new if is_missing(have) else have, partial, fresh)

    return complete(partial)
