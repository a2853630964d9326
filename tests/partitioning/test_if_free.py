"""Entries that yield to the other axes of an array: positions between the products of tensor parallelism."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import OperandError, ShardingError
from axonym.partitioning import if_free

Batch, Pos, Embed, Heads, HeadDim, Mlp = axn.make_axes(batch=8, pos=16, embed=16, heads=4, head_dim=8, mlp=64)
TENSOR = {"batch": "data", "heads": "model", "mlp": "model"}
SPREAD = {**TENSOR, "pos": if_free("model")}
SIZES = {"data": 2, "model": 4}


def spec(names, mapping):
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
    return axn.pspec_for(axn.ones(dict.fromkeys(names, 8)), mapping, mesh, strict=False)


def test_an_entry_yields_to_others_in_any_order():
    assert spec(["batch", "pos", "embed"], SPREAD) == jax.P("data", "model", None)
    assert spec(["batch", "pos", "mlp"], SPREAD) == jax.P("data", None, "model")
    assert spec(["mlp", "pos", "batch"], SPREAD) == jax.P("model", None, "data")
    # It takes those of several mesh axes that are free, and a derived name does not get more than its base.
    several = {**TENSOR, "pos": if_free(("data", "model"))}
    assert spec(["batch", "pos"], several) == jax.P("data", "model")
    assert spec(["pos", "embed"], several) == jax.P(("data", "model"), None)
    assert spec(["heads", "pos", "pos.key"], SPREAD) == jax.P("model", None, None)
    assert spec(["pos", "pos.key"], SPREAD) == jax.P("model", None)
    both = {"pos": if_free("model"), "group": if_free("model")}
    assert spec(["pos", "group"], both) == jax.P(None, "model")
    assert spec(["group", "pos"], both) == jax.P("model", None)


def test_blocks_replace_it_and_text_shows_it():
    with axn.axis_mapping(SPREAD):
        assert str(axn.current_mapping()) == (
            "{'batch': 'data', 'heads': 'model', 'mlp': 'model', 'pos': if_free('model')}"
        )
        assert spec(["pos", "mlp"], axn.current_mapping()) == jax.P(None, "model")
        with axn.axis_mapping({"pos": "model"}, merge=True), pytest.raises(ShardingError) as error:
            spec(["pos", "mlp"], axn.current_mapping())
    assert "mesh axis 'model' would shard both 'pos' and 'mlp' of one array" in str(error.value)
    for wrong in ((), None):
        with pytest.raises(OperandError) as error:
            if_free(wrong)
        assert str(error.value) == (
            f'if_free: it takes a mesh axis or a tuple of them, not {wrong!r}\n  hint: write if_free("model")'
        )


@pytest.fixture(scope="module")
def problem():
    key = jax.random.key(0)
    init = nn.Stacked.init(axn.Axis("layers", 8), nn.TransformerBlock, gradient_checkpointing=True)
    blocks = init(Embed, Heads, HeadDim, Mlp, key=key, norm=nn.RmsNorm.init, use_bias=False)
    x = axn.random.normal(key, (Batch, Pos, Embed))

    def step(blocks, x):
        return jax.value_and_grad(lambda blocks: (blocks.fold(x, nn.causal()) ** 2).mean().scalar())(blocks)

    return step, blocks, x, jax.jit(step)(blocks, x)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_numbers_are_those_of_one_device_and_carries_need_less(problem, kind):
    step, blocks, x, wanted = problem
    mesh = jax.make_mesh((2, 4), ("data", "model"), (getattr(jax.sharding.AxisType, kind),) * 2)
    stored = {"heads": "model", "mlp": "model"}
    with axn.set_mesh(mesh):
        run = axn.named_jit(step, axn.Mappings(stored, SPREAD))
        found = run(blocks, x)
    for own, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(own, other, rtol=2e-4, atol=2e-6)

    def cost(mapping):
        return axn.cost(step, axn.Mappings(stored, mapping), mesh, blocks, x)

    whole, spread = cost(TENSOR), cost(SPREAD)
    _check_carries(spread, whole)
    # Positions are gathered before the products.
    assert _count(spread, "all-gather", "model") > _count(whole, "all-gather", "model")


CARRY = Batch.size // 2 * Pos.size * Embed.size * 4


def _check_carries(spread, whole):
    # Each device keeps a quarter of the carry of each layer.
    assert whole.memory.temporary - spread.memory.temporary >= 8 * CARRY * 3 // 4


def _count(report, kind, mesh_axis):
    return sum(one.count for one in report.communication if one.kind == kind and mesh_axis in one.mesh_axes)


def test_accelerators_scatter_and_gather_in_place_of_sums(problem):
    step, blocks, x, _ = problem

    def cost(mapping):
        stored = {"heads": "model", "mlp": "model"}
        mappings = axn.Mappings(stored, mapping)
        return axn.cost(step, mappings, SIZES, blocks, x, target="h100", depth="traced")

    whole, spread = cost(TENSOR), cost(SPREAD)

    # Each layer sums after attention and after the perceptron, also in its second pass; and so does its gradient.
    def sums(report):
        return [one for one in report.communication if one.kind == "all-reduce" and one.nbytes >= CARRY]

    assert sum(one.count for one in sums(whole)) >= 32
    assert not sums(spread)
    assert _count(spread, "reduce-scatter", "model") >= 32
    _check_carries(spread, whole)


def test_a_plan_tries_it():
    sizes = {Batch: 4, Pos: 4096, Embed: 1024}
    x = axn.NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), "float32"), tuple(one.name for one in sizes))
    wide = Embed.resize(1024)
    layer = jax.eval_shape(lambda key: nn.MLP.init(wide, wide, 4096, 1, key=key), jax.random.key(0))
    step = jax.grad(lambda layer, x: ((x + layer(x)) ** 2).mean().scalar())
    hidden = next(name for name in layer.layers[0].weight.names if name != "embed")
    fixed = axn.Mappings({hidden: "model"}, {"batch": "data", hidden: "model"})
    found = axn.plan(step, SIZES, layer, x, target="h100", verify=0, fixed=fixed, limit=20)
    assert found.mappings.compute.spell("pos") == if_free("model")
    assert "pos→if_free(model)" in str(found)
