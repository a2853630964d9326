"""Pieces of code around models as users of Haliax write them: partitioning, and the state of a trainer."""

import axonym.compat.haliax  # noqa: F401

# isort: split

import copy
import dataclasses
import functools
import pickle
import threading
from typing import Any

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import haliax.partitioning as hpart
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from haliax import Axis, NamedArray
from haliax.partitioning import ResourceAxis, infer_resource_partitions, named_jit, round_axis_for_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.compat.haliax.clients import draw, lies, same

B, S, E, M = hax.make_axes(batch=8, seq=4, embed=8, mlp=16)
KEY = jax.random.key(0, impl="rbg")
MAPPING = {"batch": ResourceAxis.DATA, "mlp": ResourceAxis.MODEL}


# Partitioning


def test_facts_about_a_mapping(auto_mesh):
    with hax.set_mesh(auto_mesh), hax.axis_mapping(MAPPING):
        assert hpart.current_thread_local_mapping() == MAPPING
        assert hpart.physical_axis_name(B) == "data"
        assert hpart.physical_axis_name("embed") is None
        assert hpart.physical_axis_size("mlp") == 2
        assert hpart.pspec_for_axis((B, S, M)) == PartitionSpec("data", None, "model")
        assert round_axis_for_partitioning(Axis("batch", 9)) == Axis("batch", 12)
        assert round_axis_for_partitioning(Axis("other", 9)) == Axis("other", 9)
        assert hpart.sharding_for_axis(B) == NamedSharding(auto_mesh, PartitionSpec("data"))
        with hax.axis_mapping({"embed": "model"}):
            assert hpart.physical_axis_name("batch") is None
        with hax.axis_mapping({"embed": "model"}, merge=True):
            assert hpart.physical_axis_name("batch") == "data"
            assert hpart.physical_axis_name("embed") == "model"
    assert hpart.current_thread_local_mapping() is None
    assert round_axis_for_partitioning(Axis("Z", 9), {}) == Axis("Z", 9)


@pytest.mark.filterwarnings("ignore:`with mesh.`:DeprecationWarning")
def test_shard_in_and_out_of_jit(auto_mesh):
    x = draw(B, S, M)
    with auto_mesh:
        spread = hax.shard(x, MAPPING)
        assert lies(spread, auto_mesh, "data", None, "model")
        again = hax.shard_with_axis_mapping({"x": x, "n": 3}, MAPPING)
        assert lies(again["x"], auto_mesh, "data", None, "model")
        with hax.axis_mapping(MAPPING):
            assert lies(hax.auto_sharded(x), auto_mesh, "data", None, "model")
            inner = eqx.filter_jit(lambda x: hax.auto_sharded(x * 2))(x)
            assert lies(inner, auto_mesh, "data", None, "model")
            assert lies(hax.random.normal(jax.random.PRNGKey(0), (B, M)), auto_mesh, "data", "model")
    same(spread, (B, S, M), x.array)
    assert hax.auto_sharded(x) is x


def test_specs_of_a_tree(auto_mesh):
    class Raw(eqx.Module):
        named: NamedArray
        raw: jax.Array = hax.field(axis_names=("batch", "mlp"))
        other: jax.Array

    tree = Raw(draw(B, M), jnp.ones((8, 16)), jnp.ones(3))
    with hax.set_mesh(auto_mesh):
        specs = hpart.pspec_for(tree, MAPPING, preserve_existing_shardings=False)
        assert specs.named == specs.raw == PartitionSpec("data", "model")
        shardings = infer_resource_partitions(tree, MAPPING, preserve_existing_shardings=False)
        assert jax.tree.leaves(shardings.named) == [NamedSharding(auto_mesh, PartitionSpec("data", "model"))]


def test_named_jit_in_its_forms(auto_mesh):
    x, w = draw(B, E), draw(E, M)

    @named_jit
    def plain(x, flag, *, power=1):
        return hax.sum(x, E) ** power, flag, None

    result = plain(x, "text", power=2)
    same(result[0], (B,), x.array.sum(1) ** 2)
    assert result[1:] == ("text", None)

    with hax.set_mesh(auto_mesh):
        fn = named_jit(functools.partial(hax.dot, axis=E), axis_resources=MAPPING)
        out = fn(x, w)
        assert lies(out, auto_mesh, "data", "model")
        same(out, (B, M), x.array @ w.array, rtol=1e-4)
        with hax.axis_mapping(MAPPING):
            assert lies(named_jit(lambda x, w: hax.dot(x, w, axis=E))(x, w), auto_mesh, "data", "model")
        text = fn.lower(x, w).compile().as_text()
        assert "HloModule" in text
        layer = named_jit(hnn.Linear.init, axis_resources={"mlp": "model"})(E, M, key=KEY, use_bias=False)
        assert lies(layer.weight, auto_mesh, "model")
        applied = named_jit(layer, MAPPING)(x)
        assert lies(applied, auto_mesh, "data", "model")
        scalar = named_jit(lambda x: hax.mean(x).scalar(), axis_resources=MAPPING)(x)
        np.testing.assert_allclose(scalar, x.array.mean(), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="mesh"):
        named_jit(lambda x: x, axis_resources=MAPPING)(x)


def test_a_mapping_belongs_to_its_thread(auto_mesh):
    seen = []
    with hax.axis_mapping(MAPPING):
        thread = threading.Thread(target=lambda: seen.append(hpart.current_thread_local_mapping()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_gradients_of_microbatches(auto_mesh):
    Micro, Each = Axis("microbatches", 2), Axis("batch", 4)
    layer, x = hnn.Linear.init(E, M, key=KEY), draw(B, E)

    def loss_fn(layer, x):
        return hax.mean(hax.square(layer(x))).scalar()

    def accumulated(layer, x):
        x = hax.auto_sharded(x.rename({"batch": "all"}).unflatten_axis("all", (Micro, Each)))

        def step(carry, part):
            loss, grads = eqx.filter_value_and_grad(loss_fn)(layer, part)
            return jax.tree.map(lambda a, b: a + b / Micro.size, carry, (loss, grads))

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, layer))
        with jax.named_scope("microbatches"):
            return hax.fold(step, Micro)(zero, x)

    with hax.set_mesh(auto_mesh):
        loss, grads = named_jit(accumulated, axis_resources=MAPPING)(layer, x)
    expected_loss, expected = eqx.filter_value_and_grad(loss_fn)(layer, x)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)
    same(grads.weight, (M, E), expected.weight.array, rtol=1e-3)


# The state of a trainer


class TrainerState(eqx.Module):
    step: jax.Array
    model: Any
    opt_state: Any
    training_key: jax.Array
    optimizer: optax.GradientTransformation = eqx.field(static=True)
    is_trainable: Any = eqx.field(static=True, default=True)

    @staticmethod
    def init(optimizer, model, *, key):
        trainable = eqx.filter(model, eqx.is_inexact_array)
        return TrainerState(jnp.array(0), model, optimizer.init(trainable), key, optimizer)

    def take_step(self, grads):
        updates, opt_state = self.optimizer.update(grads, self.opt_state, params=self.model)
        model = eqx.apply_updates(self.model, updates)
        return dataclasses.replace(self, model=model, opt_state=opt_state, step=self.step + 1)


@pytest.mark.filterwarnings("ignore:`with mesh.`:DeprecationWarning")
def test_a_train_state(auto_mesh):
    optimizer = optax.adamw(optax.linear_schedule(1e-2, 0.0, 10), weight_decay=0.1, mask=weight_decay_mask)

    def make():
        return TrainerState.init(optimizer, hnn.MLP.init(E, E, M, 1, key=KEY), key=jax.random.PRNGKey(0))

    x, y = draw(B, E), draw(B, E, seed=1)

    @named_jit(donate_args=(True,), axis_resources=MAPPING)
    def train_step(state, x, y):
        loss, grads = eqx.filter_value_and_grad(lambda model: hax.mean((model(x) - y) ** 2).scalar())(state.model)
        return loss, state.take_step(grads)

    with auto_mesh:
        shapes = eqx.filter_eval_shape(make)
        assert shapes.model.layers[0].weight.axes == (M, E)
        shardings = infer_resource_partitions(shapes, MAPPING, preserve_existing_shardings=False)
        assert jax.tree.leaves(shardings.model.layers[0].weight)[0].spec == PartitionSpec("model", None)
        state = named_jit(make, axis_resources=MAPPING)()
        losses = []
        for _ in range(3):
            loss, state = train_step(state, x, y)
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert state.step == 3
    assert lies(state.opt_state[0].mu.layers[0].weight, auto_mesh, "model")
    assert type(state.opt_state[0].mu.layers[0].weight) is NamedArray


def weight_decay_mask(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params, is_leaf=hax.is_named_array)


def test_checkpoints_of_leaves(tmp_path):
    model = hnn.MLP.init(E, E, M, 1, key=KEY)
    path = str(tmp_path / "model.eqx")
    eqx.tree_serialise_leaves(path, model)
    blank = eqx.filter_eval_shape(lambda: hnn.MLP.init(E, E, M, 1, key=KEY))
    assert eqx.tree_equal(eqx.tree_deserialise_leaves(path, blank), model)
    x = draw(B, E)
    for clone in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.copy(x), x.copy()):
        same(clone, (B, E), x.array)
    average = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, model, model)
    same(average.layers[0].weight, (M, E), model.layers[0].weight.array)
    assert jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(model)[0][0]).startswith(".layers[0].weight")
    shapes = {
        f"{jax.tree_util.keystr(path)}": leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(model, is_leaf=hax.is_named_array)
    }
    assert shapes[".layers[0].weight"] == {"mlp": 16, "embed": 8}


@pytest.mark.filterwarnings("ignore:`with mesh.`:DeprecationWarning")
def test_two_meshes_of_processes():
    mesh = Mesh(np.array(jax.devices()).reshape(1, 4, 2), ("replica", "data", "model"))
    mapping = {"batch": ("replica", "data"), "mlp": "model"}
    with mesh:
        x = hax.shard(draw(B, M), mapping)
        assert lies(x, mesh, ("replica", "data"), "model")
        with hax.axis_mapping(mapping):
            assert hpart.physical_axis_size(B) == 4


def test_training_without_compilation():
    target = hnn.Linear.init(E, M, key=jax.random.PRNGKey(5))
    model = {"linear": hnn.Linear.init(E, M, key=KEY), "dropout": hnn.Dropout(0.1), "scale": hax.ones(M)}
    x = draw(B, E)

    def compute_loss(model, x, key, inference):
        y = model["dropout"](model["linear"](x) * model["scale"], key=key, inference=inference)
        return hax.mean(hax.square(y - target(x)))

    def batch_loss(model, x, keys):
        return hax.mean(hax.vmap(compute_loss, "batch")(model, x, keys, inference=False), "batch").scalar()

    grad_loss = eqx.filter_value_and_grad(batch_loss)
    optimizer, trained, losses = optax.adamw(1e-1), model, []
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    for key in jax.random.split(KEY, 4):
        loss, grads = grad_loss(trained, x, jax.random.split(key, 8))
        updates, opt_state = optimizer.update(grads, opt_state, params=trained)
        trained = eqx.apply_updates(trained, updates)
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert type(trained["linear"].weight) is type(opt_state[0].nu["scale"]) is NamedArray
    assert trained["dropout"].inference is False
