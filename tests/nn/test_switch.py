"""`inference` as a switch: `eqx.nn.inference_mode` reaches it in any model, and what walks over arrays does not."""

import copy
import io
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn
from axonym.state_dict import from_state_dict, load_state_dict, save_state_dict, to_state_dict
from tests.nn.layouts import draw, same, same_trees

B, E, L = axn.make_axes(batch=4, embed=3, layers=2)
KEY = jax.random.key(0)
JITS = [lambda fn: fn, jax.jit, eqx.filter_jit, axn.named_jit]


class Block(eqx.Module):
    dropout: nn.Dropout
    weight: axn.NamedArray

    @staticmethod
    def init(seed):
        return Block(nn.Dropout(0.5), axn.random.normal(jax.random.key(seed), E))

    def __call__(self, x, *, key=None):
        return self.dropout(x * self.weight, key=key)


class Model(eqx.Module):
    """One `Dropout` in two places, a stack of blocks that have one, and a `BatchNorm`."""

    first: nn.Dropout
    blocks: nn.Stacked | nn.BlockSeq
    norm: nn.BatchNorm
    last: nn.Dropout

    @staticmethod
    def init(kind=nn.Stacked):
        dropout = nn.Dropout(0.25)
        blocks = kind.init(L, Block)(jnp.arange(2))
        return Model(dropout, blocks, nn.BatchNorm.init(E, "batch"), dropout)

    def __call__(self, x, state, key=None):
        x = self.blocks.fold(self.first(x, key=key), key=key)
        y, state = self.norm(x, state)
        return self.last(y, key=key), state

    @property
    def switches(self):
        layers = [block.dropout for block in self.blocks.unstacked()]
        return [bool(layer.inference) for layer in (self.first, *layers, self.norm, self.last)]


def call(model, *args):
    return model(*args)


def loss(model, x, key):
    return (model(x, model.norm.initial_state(), key)[0] ** 2).sum().scalar()


@pytest.mark.parametrize("kind", [nn.Stacked, nn.BlockSeq])
@pytest.mark.parametrize("jit", JITS)
def test_a_whole_model_is_switched_and_switched_back(jit, kind):
    model, x, run = Model.init(kind), draw(B, E), jit(call)
    state = nn.BatchNormState(axn.full(E, 0.5), axn.full(E, 2.0))
    switched = eqx.nn.inference_mode(model)
    assert (model.switches, switched.switches) == ([False] * 5, [True] * 5)
    y, kept = run(switched, x, state, KEY)
    first, second = (np.asarray(block.weight.array) for block in model.blocks.unstacked())
    same(y, ("batch", "embed"), (np.asarray(x.array) * first * second - 0.5) / np.sqrt(2 + 1e-5))
    same_trees(kept, state, rtol=0, atol=0)
    back = eqx.nn.inference_mode(switched, value=False)
    assert back.switches == [False] * 5
    trained, moved = run(back, x, state, KEY)
    assert (trained == 0).any().item()
    assert (moved.mean != state.mean).all().item()
    same_trees((trained, moved), run(model, x, state, KEY), rtol=0, atol=0)


def test_a_switch_belongs_to_the_structure():
    model = Model.init()
    switched = eqx.nn.inference_mode(model)
    assert jax.tree.structure(switched) != jax.tree.structure(model)
    assert hash(jax.tree.structure(eqx.nn.inference_mode(switched))) == hash(jax.tree.structure(switched))
    assert jax.tree.structure(eqx.nn.inference_mode(switched, value=False)) == jax.tree.structure(model)
    traced = []
    run = jax.jit(lambda model: traced.append(bool(model.last.inference)))
    for each in (model, switched, Model.init(), eqx.nn.inference_mode(Model.init())):
        run(each)
    assert traced == [False, True]


@pytest.mark.parametrize("value", [True, np.True_], ids=["bool", "np.bool"])
def test_one_layer_is_switched(value):
    model = eqx.tree_at(lambda m: (m.last.inference, m.norm.inference), Model.init(), (value, value))
    assert model.switches == [False, False, False, True, True]
    stack = eqx.tree_at(lambda m: m.blocks.stacked.dropout.inference, model, value)
    assert stack.switches == [False, True, True, True, True]
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(stack))
    assert nn.Dropout(0.5, inference=value) == eqx.nn.inference_mode(nn.Dropout(0.5))


def test_gradients_and_optimizers_see_no_switch():
    model, x = Model.init(), draw(B, E)
    optimizer = optax.adamw(1e-2)

    @jax.jit
    def step(model, x):
        gradients = jax.grad(loss)(model, x, KEY)
        return gradients, optimizer.update(gradients, optimizer.init(model), model)[0]

    for each in (model, eqx.nn.inference_mode(model)):
        gradients, updates = step(each, x)
        assert jax.tree.structure(gradients) == jax.tree.structure(each)
        assert eqx.apply_updates(each, updates).switches == each.switches
        same_trees(eqx.filter_jit(eqx.filter_grad(loss))(each, x, KEY), gradients)
        trained, rest = eqx.partition(each, eqx.is_inexact_array)
        assert jax.tree.leaves(rest) == []
        same_trees(eqx.combine(trained, rest), each, rtol=0, atol=0)
        assert jax.tree.map(jnp.zeros_like, each).switches == each.switches
        assert axn.tree.map(lambda x: x * 2, each).switches == each.switches
        assert axn.tree.resize_axis(each, "embed", 5).switches == each.switches


def test_what_lists_or_stores_a_model_sees_no_switch(tmp_path):
    model = Model.init()
    switched = eqx.nn.inference_mode(model)
    paths = ["blocks.stacked.weight", "norm.weight", "norm.bias"]
    for each, other in ((model, switched), (switched, model)):
        assert [parameter.path for parameter in axn.parameters.walk(each)] == paths
        assert [array.path for array in axn.parameters.table(each).arrays] == paths
        assert not axn.debug.diagnose(each)
        state = to_state_dict(each)
        assert all(np.shape(array) == (3,) for array in state.values())
        assert len(state) == 4  # two blocks, and a weight and a bias of the norm
        save_state_dict(state, tmp_path / "model.safetensors")
        filled = from_state_dict(other, load_state_dict(tmp_path / "model.safetensors"))
        same_trees(filled, other, rtol=0, atol=0)
        file = io.BytesIO()
        eqx.tree_serialise_leaves(file, each)
        file.seek(0)
        same_trees(eqx.tree_deserialise_leaves(file, other), other, rtol=0, atol=0)


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize(
    "make", [lambda on: nn.Dropout(0.5, inference=on), lambda on: nn.BatchNorm.init(E, "batch", inference=on)]
)
def test_it_reads_as_a_bool(make, on):
    layer = make(on)
    assert bool(layer.inference) is on
    assert layer.inference == on
    assert layer.inference != (not on)
    assert layer.inference != "on"
    assert hash(layer.inference) == hash(on)
    assert f"inference={on}" in repr(layer)
    for copied in (copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        same_trees(copied, layer, rtol=0, atol=0)
        assert copied.inference == on


def test_a_class_that_inherits_is_switched_too():
    class Gentle(nn.Dropout):
        scale: axn.NamedArray

        def __init__(self):
            super().__init__(0.5)
            self.scale = axn.ones(E)

    layer = eqx.nn.inference_mode({"gentle": Gentle()})["gentle"]
    assert layer.inference == True  # noqa: E712
    assert not layer.is_active
    assert len(jax.tree.leaves(layer)) == 1
