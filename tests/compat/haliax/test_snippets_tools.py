"""Small pieces of typical Haliax: trees, state dicts, low precision, debugging, references, annotations."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import dataclasses
import functools

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import haliax.tree_util as htu
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import Axis, NamedArray
from haliax.jax_utils import is_jax_array_like
from haliax.nn.scan import Stacked
from haliax.quantization import (
    Fp8DotGeneralOp,
    QuantizationConfig,
    apply_updates,
    partition_for_grad_overwrite,
    quantize_linear_layers,
)
from haliax.state_dict import ModuleWithStateDictSerialization, from_state_dict, to_state_dict, with_prefix
from jax.random import split

from tests.compat.haliax.clients import draw, same

B, S, E, M = hax.make_axes(batch=2, seq=3, embed=4, mlp=6)
Layers = Axis("layers", 3)
KEY = jax.random.PRNGKey(0)


class Layer(eqx.Module):
    linear: hnn.Linear
    scale: jax.Array
    name: str = eqx.field(static=True, default="layer")

    @staticmethod
    def init(Embed, *, key):
        return Layer(hnn.Linear.init(Embed, Embed.alias("out"), key=key), jnp.ones(()))

    def __call__(self, x, offset=0.0, *, key=None):
        return x + hax.tanh(self.linear(x)).rename({"out": "embed"}) * self.scale + offset


# Trees


def test_trees():
    tree = {"a": hax.ones((B, E)), "b": [jnp.zeros(3), hax.zeros(E)]}
    doubled = htu.tree_map(lambda leaf: leaf * 2, tree)
    same(doubled["a"], (B, E), np.full((2, 4), 2.0))
    assert len(hax.tree_util.tree_leaves(tree)) == 3
    leaves, treedef = htu.tree_flatten(tree)
    assert htu.tree_structure(tree) == treedef
    assert type(htu.tree_unflatten(treedef, leaves)["a"]) is NamedArray
    same(hax.tree.map(lambda leaf: leaf + 1, tree["a"]), (B, E), np.full((2, 4), 2.0))
    resized = htu.resize_axis(tree, "embed", 2)
    assert resized["a"].axes == (B, Axis("embed", 2))
    blocks = Stacked.init(Layers, Layer)(E, key=split(KEY, 3))
    inner = []
    hax.tree.scan_aware_map(lambda leaf: inner.append(leaf.axes) or leaf if hax.is_named_array(leaf) else leaf, blocks)
    assert (E.alias("out"), E) in inner
    assert is_jax_array_like(jnp.ones(3))
    masked = jax.tree.map(lambda leaf: leaf.ndim > 1, blocks, is_leaf=hax.is_named_array)
    assert masked.stacked.linear.weight is True
    count = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(blocks, eqx.is_inexact_array)))
    assert count == 3 * (16 + 4 + 1)


# State dicts


class Renamed(ModuleWithStateDictSerialization):
    linear: hnn.Linear
    inner: list
    flag: int = eqx.field(static=True, default=1)

    def _state_dict_key_map(self):
        return {"linear": "proj", "inner": None}


def test_state_dicts():
    model = Renamed(hnn.Linear.init(E, M, key=KEY), [hnn.LayerNorm.init(E), hax.ones(E)])
    saved = to_state_dict(model, prefix="m")
    assert set(saved) == {"m.proj.weight", "m.proj.bias", "m.0.weight", "m.0.bias", "m.1"}
    assert saved["m.proj.weight"].shape == (6, 4)
    blank = jax.tree.map(jnp.zeros_like, model)
    assert eqx.tree_equal(from_state_dict(blank, saved, prefix="m"), model)
    on_host = {key: np.asarray(value) for key, value in saved.items()}
    assert eqx.tree_equal(from_state_dict(blank, on_host, prefix="m"), model)
    with pytest.raises(KeyError):
        from_state_dict(model, {}, prefix="m")
    with pytest.raises(ValueError, match="has shape"):
        from_state_dict(model, saved | {"m.proj.weight": np.zeros((3, 3))}, prefix="m")
    assert with_prefix("a", "b") == "a.b"
    assert with_prefix(None, "b") == "b"
    heads = hnn.Linear.init(E, (Axis("heads", 2), Axis("d", 3)), key=KEY)
    exported = hax.state_dict.to_torch_compatible_state_dict(heads, prefix="attn")
    assert exported["attn.weight"].shape == (6, 4)
    assert exported["attn.bias"].shape == (6,)
    back = hax.state_dict.from_torch_compatible_state_dict(jax.tree.map(jnp.zeros_like, heads), exported, prefix="attn")
    assert eqx.tree_equal(back, heads)


# Low precision


@pytest.mark.parametrize("stacked", [False, True])
def test_fp8_trains(stacked):
    In = Axis("embed", 16)
    kind = functools.partial(Stacked.init(Layers, Layer), In) if stacked else functools.partial(Layer.init, In)
    model = quantize_linear_layers(kind(key=split(KEY, 3) if stacked else KEY), QuantizationConfig(fp8=True))
    linear = model.stacked.linear if stacked else model.linear
    assert isinstance(linear.dot_general, Fp8DotGeneralOp)
    assert linear.dot_general.input_scale.shape == ((3, 1) if stacked else (1,))
    x = draw(B, In)

    def loss(model):
        return hax.mean(hax.square((model.fold if stacked else model)(x))).scalar()

    @eqx.filter_jit
    def step(model):
        value, grads = eqx.filter_value_and_grad(loss)(model)
        overwrites, grads = partition_for_grad_overwrite(grads)
        updates = jax.tree.map(lambda g: -0.1 * g, grads)
        return value, apply_updates(model, updates, overwrites)

    first, model = step(model)
    _, model = step(model)
    last, model = step(model)
    assert last < first
    linear = model.stacked.linear if stacked else model.linear
    assert (linear.dot_general.input_amax_history > 0).any()


# Debugging, references, annotations


def test_debugging(capsys):
    layer = hnn.Linear.init(E, M, key=KEY)
    hax.debug.visualize_shardings(layer)
    assert "mlp" in capsys.readouterr().out
    assert "\n" not in hax.debug.describe_array(layer.weight)
    hax.debug.diagnose_common_issues(layer)
    assert isinstance(eqx.tree_pformat(layer), str)


def test_references():
    ref = hax.new_ref(hax.zeros((B, E)))
    ref["batch", 0] = hax.ones(E)
    same(ref["batch", 0], (E,), np.ones(4))
    same(ref[...], (B, E), [[1] * 4, [0] * 4])
    view = ref.slice({"batch": 1})
    assert view.axes == (E,)
    view[...] = hax.full(E, 3.0)
    old = hax.swap(ref, ("batch", 1), hax.zeros(E))
    same(old, (E,), [3] * 4)
    same(hax.get(ref), (B, E), [[1] * 4, [0] * 4])
    same(hax.freeze(ref), (B, E), [[1] * 4, [0] * 4])
    same(ref.value(), (B, E), [[1] * 4, [0] * 4])

    @jax.jit
    def count(ref):
        ref["embed", 0] = ref["embed", 0] + hax.ones(B)
        return ref["embed", 0].sum().scalar()

    assert count(ref) == 3


def test_annotations():
    from haliax.haxtyping import Named, bf16, f32

    x = hax.ones((B, E))
    assert x.matches_axes("batch embed")
    assert not x.matches_axes("embed batch")
    assert x.matches_axes({"embed", "batch"})
    assert x.matches_axes(("batch", ...))
    assert x.matches_axes(NamedArray["batch ..."])
    assert x.matches_axes(f32["batch embed"])
    assert not x.matches_axes(bf16["batch embed"])

    @dataclasses.dataclass
    class Example:
        tokens: NamedArray["batch seq"]
        weights: Named[NamedArray, "batch"]

    assert Example(x, x).tokens is x
