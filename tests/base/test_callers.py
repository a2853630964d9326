"""The path of the layer in which an error is raised."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisError, message

Layers, Embed, Mlp = axn.make_axes(layers=3, embed=4, mlp=8)
X = axn.ones(Embed)


class Probe(eqx.Module):
    """A layer that always fails."""

    scale: jax.Array

    @classmethod
    def init(cls, *, key: jax.Array) -> "Probe":
        return cls(jnp.ones(()))

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        raise AxisError(message("Probe", "it fails"))


class Block(eqx.Module):
    norm: nn.LayerNorm
    inner: dict[str, Probe]

    @classmethod
    def init(cls, *, key: jax.Array) -> "Block":
        return cls(nn.LayerNorm.init(Embed), {"up": Probe.init(key=key), "down": Probe.init(key=key)})

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return self.inner["down"](self.norm(x))


class Model(eqx.Module):
    blocks: nn.BlockFoldable[Block] | tuple[Block, ...]

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        if isinstance(self.blocks, tuple):
            return self.blocks[1](x)
        return self.blocks.fold(x)


def layer_in(call: Callable[[], object]) -> str:
    with pytest.raises(AxisError) as raised:
        call()
    *_, last = str(raised.value).split("\n")
    return last.strip()


KEY = jax.random.key(0)
TUPLE = Model((Block.init(key=KEY), Block.init(key=KEY)))
SEQUENCE = Model(jax.jit(nn.BlockSeq.init(Layers, Block))(key=KEY))
STACK = Model(jax.jit(nn.Stacked.init(Layers, Block))(key=KEY))
PLACES = [
    (TUPLE, "in the layer: blocks.1.inner.down"),
    (SEQUENCE, "in the layer: blocks.blocks.0.inner.down"),
    (STACK, "in the layer: blocks.stacked.inner.down"),
]


@pytest.mark.parametrize(("model", "place"), PLACES)
def test_a_message_has_the_path_of_the_layer(model: Model, place: str) -> None:
    assert layer_in(lambda: model(X)) == place


@pytest.mark.parametrize("transform", [jax.jit, axn.named_jit, jax.checkpoint, axn.grad])
def test_transformations_keep_the_path(transform: Callable[..., Callable[..., object]]) -> None:
    assert layer_in(lambda: transform(lambda model, x: model(x))(TUPLE, X)) == PLACES[0][1]


def test_a_function_that_calls_a_layer_of_a_model() -> None:
    def loss(model: Model) -> axn.NamedArray:
        assert isinstance(model.blocks, tuple)
        return model.blocks[0].inner["up"](X)

    assert layer_in(lambda: loss(TUPLE)) == "in the layer: blocks.0.inner.up"


def test_a_layer_that_nothing_holds_has_no_path() -> None:
    assert layer_in(lambda: Probe.init(key=KEY)(X)) == "Probe: it fails"


def test_a_function_that_calls_no_layer_is_in_none() -> None:
    def loss(model: Model) -> axn.NamedArray:
        first = model.blocks
        assert first is not None
        return X.sum("mlp")

    assert layer_in(lambda: loss(TUPLE)) == "array has: embed=4"


@pytest.mark.parametrize("transform", [lambda fn: fn, jax.jit])
def test_a_layer_is_not_looked_for_in_models_that_only_have_its_type(
    transform: Callable[..., Callable[..., object]],
) -> None:
    other = STACK  # whose only block has an axis of layers
    block = Block.init(key=KEY)
    assert layer_in(lambda: transform(lambda block, x: block(x))(block, X)) == "in the layer: inner.down"
    assert other is STACK


class Pair(eqx.Module):
    first: Probe
    second: Probe

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return jax.checkpoint(lambda layer, x: layer(x))(self.second, x)


def test_a_rebuilt_layer_that_could_be_several_is_not_guessed() -> None:
    assert layer_in(lambda: Pair(Probe.init(key=KEY), Probe.init(key=KEY))(X)) == "Probe: it fails"
