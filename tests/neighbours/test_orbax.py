"""Orbax v1 beside Orbax v1 on plain arrays: states of named arrays on any mesh."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from orbax.checkpoint import v1 as ocp

import axonym as axn
from tests.optim import table

Embed, Mlp = axn.make_axes(embed=8, mlp=16)
OPTIMIZER = optax.adamw(1e-2)


def init(key: jax.Array) -> dict[str, Any]:
    model = axn.nn.MLP.init(Embed, Embed, Mlp, depth=1, key=key)
    return {"model": model, "optimizer": OPTIMIZER.init(model), "table": axn.ones(Mlp, jnp.bfloat16)}


def test_a_state_is_read_on_another_mesh(
    tmp_path: Path, auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh
) -> None:
    with axn.set_mesh(explicit_mesh):
        state = axn.named_jit(init, {"embed": "data", "mlp": "model"})(jax.random.key(0))
        ocp.save(tmp_path / "named", state)
    plain = dict(enumerate(map(np.asarray, jax.tree.leaves(state))))
    ocp.save(tmp_path / "plain", plain)
    expected = ocp.load(tmp_path / "plain", plain)
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            abstract = axn.shard(jax.eval_shape(init, jax.random.key(0)), {"mlp": "data"})
            read = ocp.load(tmp_path / "named", abstract)
        assert jax.tree.structure(read) == jax.tree.structure(state)
        assert read["model"].layers[0].weight.sharding.is_equivalent_to(abstract["model"].layers[0].weight.sharding, 2)
        for x, y in zip(jax.tree.leaves(read), expected.values(), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def test_states_of_optimisers_are_read_on_another_mesh(
    tmp_path: Path, auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh
) -> None:
    """After a step, those of a table, which keep arrays in other shapes than those of the parameters, too."""

    def step(model: Any, target: Any) -> dict[str, Any]:
        each: dict[str, Any] = {}
        for name in table.ON_MESHES:
            tx = table.transformation(name, is_named=True)
            each[name] = table.train(tx, table.begin(tx, model, name == "lookahead"), target, 1)
        return each

    given = [table.in_rounds(table.drawn(seed)) for seed in (0, 1)]
    with axn.set_mesh(explicit_mesh):
        states = axn.named_jit(step, table.MAPPING, strict=False)(*axn.shard(given, table.MAPPING))
        ocp.save(tmp_path / "states", states)
    with axn.set_mesh(auto_mesh):
        abstract = axn.shard(jax.eval_shape(step, *given), {"embed": "data", "layers": "model"}, strict=False)
        read = ocp.load(tmp_path / "states", abstract)
    assert jax.tree.structure(read) == jax.tree.structure(states)
    for x, y, like in zip(*map(jax.tree.leaves, (read, states, abstract)), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.sharding.is_equivalent_to(like.sharding, x.ndim)


def test_part_of_a_state_is_read(tmp_path: Path) -> None:
    x = axn.arange({"a": 2, "b": 3})
    ocp.save(tmp_path / "state", {"x": x, "y": axn.ones({"c": 2})})
    read = ocp.load(tmp_path / "state", {"x": x, "y": axn.NamedArray(ocp.PLACEHOLDER, ("c",))})
    assert axn.array_equal(read["x"], x)
    assert read["y"].array is ocp.PLACEHOLDER


def test_without_a_template_names_are_gone(tmp_path: Path) -> None:
    ocp.save(tmp_path / "state", {"x": axn.arange({"a": 2, "b": 3})})
    with pytest.warns(UserWarning, match="Sharding info not provided"):
        read = ocp.load(tmp_path / "state")
    np.testing.assert_array_equal(read["x"]["array"], np.arange(6).reshape(2, 3))


def test_other_sizes_and_structures_are_errors(tmp_path: Path) -> None:
    ocp.save(tmp_path / "state", {"x": axn.arange({"a": 2, "b": 3})})
    for wrong in ({"z": axn.arange({"a": 2, "b": 3})}, {"x": jnp.zeros((2, 3))}):
        with pytest.raises((ValueError, KeyError)):
            ocp.load(tmp_path / "state", wrong)
