"""Layers that are applied one after the other."""

import dataclasses
from typing import get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym.compat.haliax

# isort: split
import haliax as hax
import haliax.nn as hnn
import haliax.tree_util as htu
from haliax import NamedArray
from haliax.jax_utils import shaped_rng_split
from haliax.nn.scan import (
    BlockFoldable,
    BlockSeq,
    ScanCheckpointPolicy,
    Stacked,
    _stack_state_dict,
    _unstack_state_dict,
)

from tests.laws import count_kept

Layers, Embed, Batch = hax.make_axes(layers=3, embed=4, batch=2)
KEYS = jax.random.split(jax.random.PRNGKey(0), 3)
X = hax.ones((Batch, Embed))
SPLIT = "each layer takes a key of its own: key=jax.random.split(key, 3)"
BOTH = pytest.mark.parametrize("kind", [Stacked, BlockSeq])


class Block(eqx.Module):
    linear: hnn.Linear
    drop: hnn.Dropout
    act: object
    raw: jax.Array
    inference: bool = False

    @staticmethod
    def init(axis, scale=1.0, *, key):
        linear = hnn.Linear.init(axis, axis.alias("out"), key=key, init_scale=scale)
        return Block(linear, hnn.Dropout(0.5), jnp.tanh, jax.random.normal(key, (2,)))

    def __call__(self, x, shift=0.0, layer=0, flag=False, raw=0.0, *, key=None):
        assert flag is False
        assert self.inference is False
        x = x + hax.tanh(self.linear(x).rename({"out": "embed"}) * (layer + 1)) + shift + raw
        return self.drop(x, key=key) if key is not None else x

    def with_output(self, x, *args, key=None):
        x = self(x, *args, key=key)
        return x, {"mean": x.mean(), "raw": self.raw.sum(), "n": 1}


def _plain(x, keys=None, shift=(0, 0, 0)):
    for i in range(3):
        layer = Block.init(Embed, key=KEYS[i])
        x = layer(x, float(shift[i]), i, False, key=None if keys is None else keys[i])
        yield layer, x


@BOTH
@pytest.mark.parametrize("policy", [False, True, "nested"])
def test_fold(kind, policy):
    layers = kind.init(Layers, Block, gradient_checkpointing=policy)(Embed, key=KEYS)
    shift = hax.arange(Layers) * 0.5

    @eqx.filter_jit
    def fold(layers, x):
        return layers.fold(x, shift, hax.arange(Layers), False, key=KEYS)

    result = fold(layers, X) if policy is True else layers.fold(X, shift, hax.arange(Layers), False, key=KEYS)
    *_, (_, expected) = _plain(X, KEYS, shift.array)
    assert type(result) is NamedArray
    assert result.axes == X.axes
    np.testing.assert_allclose(result.array, expected.array, rtol=1e-5)
    everything = kind.init(Layers, Block)(Embed, key=KEYS).fold
    assert (count_kept(layers.fold, X) < count_kept(everything, X)) is (policy is not False)


@BOTH
@pytest.mark.parametrize("unroll", [None, 3, True])
def test_unroll(kind, unroll):
    layers = kind.init(Layers, Block)(Embed, key=KEYS)
    *_, (_, expected) = _plain(X)
    np.testing.assert_allclose(layers.fold(X, 0.0, hax.arange(Layers), unroll=unroll).array, expected.array, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("unroll", [0, -1])
def test_unroll_that_makes_no_sense(kind, unroll):
    layers = kind.init(Layers, hnn.LayerNorm)(Embed)
    with pytest.raises(ValueError, match="unroll must be 1 or more"):
        layers.fold(X, unroll=unroll)


@BOTH
def test_scan(kind):
    layers = kind.init(Layers, Block)(Embed, key=KEYS)
    result, outputs = layers.scan_via(lambda block, x: block.with_output(x, 0.0, 0))(X)
    single = [Block.init(Embed, key=key) for key in KEYS]
    x, means = X, []
    for block in single:
        x, out = block.with_output(x, 0.0, 0)
        means.append(out["mean"].item())
    np.testing.assert_allclose(result.array, x.array, rtol=1e-5)
    assert type(outputs["mean"]) is NamedArray
    assert outputs["mean"].axes == (Layers,)
    np.testing.assert_allclose(outputs["mean"].array, means, rtol=1e-5)
    np.testing.assert_allclose(outputs["raw"], [block.raw.sum() for block in single], rtol=1e-5)
    assert outputs["n"].tolist() == [1, 1, 1]


class Counts(eqx.Module):
    weight: NamedArray

    @staticmethod
    def init(weight):
        return Counts(weight)

    def __call__(self, x, part):
        return x + self.weight, part * 2


@BOTH
def test_arguments_with_the_axis_are_passed_layer_by_layer(kind):
    weight = hax.ones((Embed, Layers)) * hax.arange(Layers)
    layers = kind.init(Layers, Counts)(weight)
    assert layers.get_layer(2).weight.tolist() == [2.0] * 4
    carry, parts = layers.scan(X, hax.arange(Layers))
    assert (carry.array == 4).all()
    assert (parts.axes, parts.tolist()) == ((Layers,), [0, 2, 4])
    _, raw = layers.scan(X, part=jnp.arange(6).reshape(3, 2))
    assert raw.tolist() == [[0, 2], [4, 6], [8, 10]]


def test_via_gets_arguments_by_layer_in_stacked_and_whole_in_block_seq():
    seen = []

    def step(layer, x, named, raw, *, keyword):
        seen.append((named.axes, raw.shape, keyword.shape))
        return x

    def mapped(layer, named, raw, *, keyword):
        step(layer, None, named, raw, keyword=keyword)
        return layer.weight

    raw = jnp.ones((3, 5))
    for kind, expected in ((Stacked, ((), (5,), (5,))), (BlockSeq, ((Layers,), (3, 5), (3, 5)))):
        seen.clear()
        layers = kind.init(Layers, Counts)(hax.ones((Layers, Embed)))
        assert layers.fold_via(step)(X, hax.arange(Layers), raw, keyword=raw).axes == X.axes
        weights = layers.vmap_via(mapped)(hax.arange(Layers), raw, keyword=raw)
        assert type(weights) is NamedArray
        assert weights.axes == (Layers, Embed)
        assert set(seen) == {expected}


def test_vmap():
    layers = Stacked.init(Layers, Block)(Embed, key=KEYS)
    results = layers.vmap(X, key=KEYS)
    assert type(results) is NamedArray
    assert results.axes == (Layers, *X.axes)
    for i, key in enumerate(KEYS):
        expected = Block.init(Embed, key=key)(X, key=key)
        np.testing.assert_allclose(results["layers", i].array, expected.array, rtol=1e-5)


@BOTH
def test_parts(kind):
    layers = kind.init(Layers, Block)(Embed, scale=2.0, key=KEYS)
    parts = layers.unstacked()
    assert len(parts) == 3
    for i, part in enumerate(parts):
        expected = Block.init(Embed, 2.0, key=KEYS[i])
        for mine in (part, layers.get_layer(i), layers.get_layer(np.int64(i))):
            assert type(mine.linear.weight) is NamedArray
            assert mine.inference is False
            assert mine.act is jnp.tanh
            np.testing.assert_allclose(mine.linear.weight.array, expected.linear.weight.array, rtol=1e-6)
            np.testing.assert_allclose(mine.raw, expected.raw, rtol=1e-6)
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="layer 7 is out of range"):
            layers.get_layer(7)


def test_fields():
    layers = Stacked.init(Layers, Block, gradient_checkpointing=True)(Embed, key=KEYS)
    assert layers.Layers == layers.Block == Layers
    names = [field.name for field in dataclasses.fields(layers)]
    assert names[:3] == ["stacked", "Block", "gradient_checkpointing"]
    assert (names[3:], layers.rounds, layers.stages) == (
        ["rounds", "stages"],
        1,
        1,
    )  # those of Axonym, which programs do not see
    assert layers.stacked.linear.weight.axes == (Layers, Embed.alias("out"), Embed)
    assert layers.gradient_checkpointing == ScanCheckpointPolicy(simple=True)
    assert Stacked.init(Layers, hnn.LayerNorm, prevent_cse=True)(Embed).gradient_checkpointing.prevent_cse is True
    replaced = dataclasses.replace(layers, gradient_checkpointing=False)
    assert replaced.gradient_checkpointing.disable is True
    again = Stacked(layers.stacked, Layers, layers.gradient_checkpointing)
    assert jax.tree.structure(again) == jax.tree.structure(layers)
    traced = jax.jit(lambda i: layers.get_layer(i).linear.weight)(1)
    np.testing.assert_array_equal(traced.array, layers.get_layer(1).linear.weight.array)
    seq = BlockSeq.init(Layers, Block)(Embed, key=KEYS)
    assert [field.name for field in dataclasses.fields(seq)] == ["blocks", "Block", "gradient_checkpointing"]
    assert type(seq.blocks) is list
    assert BlockSeq(seq.blocks, Layers, ScanCheckpointPolicy()).fold(X).axes == X.axes
    assert isinstance(layers, axonym.nn.Stacked)
    assert isinstance(seq, BlockFoldable)


class Old(eqx.Module):
    """A module of the time before `init`."""

    weight: NamedArray
    config: object = eqx.field(static=True)

    def __init__(self, config, *, key):
        self.weight = hax.random.normal(key, config.Embed)
        self.config = config

    def __call__(self, x, inference, layer, *, key=None):
        assert inference is True
        return x + self.weight * layer


class OldTransformer(eqx.Module):
    blocks: Stacked[Old]

    def __init__(self, config, *, key):
        self.blocks = Stacked(Layers, Old, config, key=shaped_rng_split(key, 3), gradient_checkpointing=True)


def test_the_older_constructor():
    @dataclasses.dataclass(frozen=True)
    class Config:
        Embed: hax.Axis

    key = jax.random.PRNGKey(1)
    blocks = OldTransformer(Config(Embed), key=key).blocks
    assert blocks.Layers == Layers
    assert blocks.gradient_checkpointing.simple is True
    result = blocks.fold(X, True, hax.arange(Layers), key=KEYS)
    weights = [hax.random.normal(k, Embed).array for k in jax.random.split(key, 3)]
    np.testing.assert_allclose(result.array, X.array + weights[1] + 2 * weights[2], rtol=1e-5)
    assert get_type_hints(OldTransformer)["blocks"] == Stacked[Old]
    linears = Stacked(Layers, hnn.Linear, Embed, Batch, key=KEYS)
    assert linears.stacked.weight.axes == (Layers, Batch, Embed)


@BOTH
def test_gradients(kind):
    layers = kind.init(Layers, Block, gradient_checkpointing=True)(Embed, key=KEYS)

    @eqx.filter_grad
    def loss(layers):
        return layers.fold(X, 0.0, hax.arange(Layers)).sum().scalar()

    @eqx.filter_grad
    def plain(blocks):
        x = X
        for i, block in enumerate(blocks):
            x = block(x, 0.0, i)
        return x.sum().scalar()

    grads, expected = loss(layers).unstacked(), plain([Block.init(Embed, key=key) for key in KEYS])
    for one, other in zip(grads, expected, strict=True):
        np.testing.assert_allclose(one.linear.weight.array, other.linear.weight.array, rtol=1e-4, atol=1e-6)


@BOTH
def test_one_key_for_all_layers(kind):
    layers = kind.init(Layers, Block)(Embed, key=KEYS)
    single = f"axis 'layers' has two sizes: 3 and 2\n  key has: shape (2,)\n  hint: {SPLIT}"
    calls = {
        f"{kind.__name__}.init": lambda: kind.init(Layers, Block)(Embed, key=KEYS[0]),
        f"{kind.__name__}.fold": lambda: layers.fold(X, key=KEYS[0]),
    }
    for function, call in calls.items():
        with pytest.raises(RuntimeError) as caught:
            call()
        assert str(caught.value) == f"{function}: {single}"
    with pytest.raises(ValueError, match="each layer takes a key of its own"):
        Stacked(Layers, Block, Embed, key=KEYS[0])


@BOTH
def test_mistakes(kind):
    class NoInit(eqx.Module):
        pass

    for error in (AttributeError, TypeError, ValueError):
        with pytest.raises(error, match="NoInit has no constructor `init`"):
            kind.init(Layers, NoInit)
        if error is not AttributeError:
            with pytest.raises(error, match="Block must be an Axis"):
                kind.init(3, Block)
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="two sizes: 3 and 2"):
            kind.init(Layers, Block)(Embed, key=KEYS[0])
        with pytest.raises(error, match="two sizes: 3 and 5"):
            kind.init(Layers, hnn.LayerNorm)(Embed).fold(X, jnp.ones(5))
    with pytest.raises(TypeError, match="a step changes the axes of the carry"):
        Stacked.init(Layers, hnn.Linear)(Embed, Embed.alias("out"), key=KEYS).fold(X)
    with pytest.raises(ValueError, match="pair of carry and output"):
        kind.init(Layers, hnn.LayerNorm)(Embed).scan(X)


@pytest.mark.parametrize(("nested", "error"), [(3, None), (2, "cannot be split")])
def test_nested(nested, error):
    layers = Stacked.init(Layers, Block, gradient_checkpointing=ScanCheckpointPolicy(nested=nested))(Embed, key=KEYS)
    if error is None:
        assert layers.fold(X).axes == X.axes
        return
    with pytest.raises(ValueError, match=error):
        layers.fold(X)


def test_layers_of_which_parameters_are_filtered_out():
    layers = Stacked.init(Layers, Block)(Embed, key=KEYS)
    whole = hax.state_dict.to_torch_compatible_state_dict(layers)
    bias_only = eqx.tree_at(lambda s: s.stacked.linear.weight.array, layers, None)
    state = hax.state_dict.to_torch_compatible_state_dict(bias_only)
    assert set(state) == {f"{i}.{name}" for i in range(3) for name in ("linear.bias", "raw")}
    assert all(np.array_equal(value, whole[key]) for key, value in state.items())
    zeros = jax.tree.map(lambda leaf: leaf * 0 if eqx.is_array(leaf) else leaf, bias_only)
    for template in (zeros, eqx.filter_eval_shape(lambda: zeros)):
        loaded = hax.state_dict.from_torch_compatible_state_dict(template, state)
        assert eqx.tree_equal(loaded, bias_only)

    bias = bias_only.stacked.linear.bias
    for layer in (
        bias_only.get_layer(1),
        bias_only.unstacked()[1],
        eqx.filter_jit(lambda layers, i: layers.get_layer(i))(bias_only, jnp.asarray(1)),
    ):
        assert layer.linear.weight.array is None
        assert layer.linear.weight.axes == (Embed.alias("out"), Embed)
        np.testing.assert_array_equal(layer.linear.bias.array, bias.array[1])
    total = bias_only.fold_via(lambda layer, x: x + layer.linear.bias)(hax.zeros(Embed.alias("out")))
    np.testing.assert_allclose(total.array, bias.array.sum(0))
    mapped = htu.scan_aware_tree_map(lambda x: x, bias_only)
    assert mapped.stacked.linear.weight.axes == layers.stacked.linear.weight.axes
    assert eqx.tree_equal(mapped, bias_only)


def test_state_dicts_are_stacked_and_split_by_layer() -> None:
    listed = {
        "block.0.weight": np.array([1, 2]), "block.1.weight": np.array([4, 5]), "block.1.in.bias": np.array([6.0]),
        "block.0.in.bias": np.array([3.0]), "blocked.0.weight": np.array([7]),
    }  # fmt: skip
    stacked = _stack_state_dict(listed, "block")
    assert {key: value.tolist() for key, value in stacked.items()} == {
        "block.weight": [[1, 2], [4, 5]], "block.in.bias": [[3.0], [6.0]], "blocked.0.weight": [7],
    }  # fmt: skip
    assert isinstance(stacked["block.weight"], jax.Array)
    apart = _unstack_state_dict(stacked, "block")
    assert {key: value.tolist() for key, value in apart.items()} == {
        key: value.tolist() for key, value in listed.items()
    }
    bare = {"0.w": np.array([1]), "1.w": np.array([2]), "0.b": np.array([3]), "1.b": np.array([4])}
    whole = _stack_state_dict(bare)
    assert {key: value.tolist() for key, value in whole.items()} == {"w": [[1], [2]], "b": [[3], [4]]}
    assert _unstack_state_dict(whole).keys() == bare.keys()
    with pytest.raises(ValueError, match=r"'block\.w' of layer 0 is missing"):
        _stack_state_dict({"block.1.w": np.ones(2)}, "block")
