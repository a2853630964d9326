"""`fit_mapping`: sizes that do not divide, what it changes, what it costs, and what is impossible."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import axonym as axn
import axonym.nn as nn
from axonym.errors import ShardingError
from axonym.report.fit import fit_mapping
from tests.nn.layouts import draw, fails, halved, made, same_trees

Batch, Pos, Embed, Mlp, Vocab = axn.make_axes(batch=6, pos=8, embed=12, mlp=20, vocab=50257)
KVHeads, Group, HeadDim, Layers = axn.make_axes(kv_heads=2, group=3, head_dim=4, layers=2)
HEADS = {"kv_heads": "model", "mlp": "model"}
MAPPINGS = axn.Mappings({"embed": "data", **HEADS}, {"batch": "data", **HEADS})


def blocks(key):
    make = nn.Stacked.init(Layers, nn.TransformerBlock)
    return make(Embed, (KVHeads, Group), HeadDim, Mlp, key=key, KVHeads=KVHeads)


def step(model, x):
    loss = lambda model: (model.fold(x, nn.causal()) ** 2).mean().scalar()  # noqa: E731
    return jax.value_and_grad(loss)(model)


def abstract(**sizes):
    return axn.NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), jnp.float32), tuple(sizes))


HEADED = {
    "query": abstract(embed=64, heads=8, group=2, head_dim=8),
    "key": abstract(embed=64, heads=8, head_dim=8),
    "up": abstract(embed=64, mlp=256),
    "norm": abstract(embed=64),
}

TABLE = """\
dict, fitted to the mesh data=3, model=16; asked for: {'embed': 'data', 'heads': 'model', 'mlp': 'model'}

mesh axis  split into
model=16   model=8, model_2=2

axis   size  asked            fitted               adds  would divide
embed    64  data (3 ways)    replicated        4.7 KiB            66
heads     8  model (16 ways)  model (8 ways)    1.9 KiB            16
group     2  replicated       model_2 (2 ways)

array  axes                                    layout                        asked  per device  copies
key    embed=64, heads=8, head_dim=8           heads→model                   704 B     2.0 KiB       6
norm   embed=64                                replicated                     88 B       256 B      48
query  embed=64, heads=8, group=2, head_dim=8  heads→model, group→model_2  1.4 KiB     2.0 KiB       3
up     embed=64, mlp=256                       mlp→(model, model_2)        1.4 KiB     4.0 KiB       3

bytes per device: 8.2 KiB, where the mapping asks for 3.5 KiB"""


def test_a_mesh_axis_is_split_in_two_for_heads_and_their_groups():
    asked = {"embed": "data", "heads": "model", "mlp": "model"}
    fitted = fit_mapping(HEADED, asked, {"data": 3, "model": 16}, limit_bytes=8448)
    assert dict(fitted.mapping) == {
        "embed": (),
        "heads": ("model",),
        "group": ("model_2",),
        "mlp": ("model", "model_2"),
    }
    assert isinstance(fitted.mesh, AbstractMesh)
    assert dict(fitted.mesh.shape) == {"data": 3, "model": 8, "model_2": 2}
    copies = {array.layout.path: array.copies for array in fitted.arrays}
    assert copies == {"query": 3, "key": 6, "up": 3, "norm": 48}
    # By hand: the parts of query, key, up and norm on each device, in float32.
    assert fitted.held_bytes == 4 * (64 * 8 + 64 * 8 + 64 * 16 + 64)
    assert fitted.asked_bytes == 4 * (22 * 1 * 2 * 8 + 22 * 1 * 8 + 22 * 16 + 22)
    assert [(one.name, one.larger) for one in fitted.changes] == [("embed", 66), ("heads", 16), ("group", None)]
    assert str(fitted) == TABLE
    # Those of query and key, which heads=8 splits 8 ways.
    assert fitted.changes[1].added_bytes == 4 * (64 * 8 + 64 * 8) - 4 * (22 * 2 * 8 + 22 * 8)


def test_a_mapping_that_fits_stays():
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with axn.axis_mapping({"heads": "model", "mlp": ("data", "model")}):
        fitted = fit_mapping(HEADED, None, mesh)
        assert fitted.mapping == axn.current_mapping()
    assert fitted.mesh is mesh
    text = "dict, fitted to the mesh data=2, model=4; asked for: {'heads': 'model', 'mlp': ('data', 'model')}\n\n"
    text += "nothing to change: all sizes divide\n\n"
    assert str(fitted) == f"{text}bytes per device: 20.2 KiB, where the mapping asks for 20.2 KiB"


def test_only_mesh_axes_that_divide_are_used():
    fitted = fit_mapping({"x": abstract(batch=12)}, {"batch": ("data", "model")}, {"data": 4, "model": 2})
    assert dict(fitted.mapping) == {"batch": ("data",)}
    assert dict(fitted.mesh.shape) == {"data": 4, "model": 2}


def test_overrides_are_fitted_too():
    asked = axn.Mappings({"embed": "data"}, {"batch": "data"}, {"up": {"mlp": "model"}})
    fitted = fit_mapping(HEADED, asked, {"data": 2, "model": 96})
    assert fitted.mapping == axn.Mappings({"embed": "data"}, {"batch": "data"}, {"up": {"mlp": "model"}})
    assert dict(fitted.mesh.shape) == {"data": 2, "model": 32, "model_2": 3}


def test_a_step_computes_the_numbers_of_one_device(auto_mesh, explicit_mesh):
    model, x = halved(made(blocks)), draw(Batch, Pos, Embed)
    expected = jax.jit(step)(model, x)
    for mesh in (auto_mesh, explicit_mesh):
        with pytest.raises(ShardingError, match="batch=6 cannot be split evenly in 4"):
            axn.check(step, MAPPINGS, mesh, model, x, strict=True, quiet=True)
        fitted = fit_mapping(step, MAPPINGS, mesh, model, x)
        assert dict(fitted.mesh.shape) == {"data": 2, "data_2": 2, "model": 2}
        assert fitted.mapping.parameters["embed"] == ("data", "data_2")
        assert fitted.mapping.compute["batch"] == ("data",)
        with axn.set_mesh(fitted.mesh):
            found = axn.named_jit(step, fitted.mapping)(*axn.shard((model, x), fitted.mapping))
        assert found[1].stacked.attention.query.weight.array.sharding.mesh.shape == fitted.mesh.shape
        same_trees(jax.device_get(found), jax.device_get(expected), rtol=2e-5)


def test_sizes_inside_of_a_function_count():
    def half(x):
        return axn.shard(x["batch", :3] * 2, axn.current_mapping())

    fitted = fit_mapping(half, {"batch": "data"}, {"data": 6}, abstract(batch=6))
    assert dict(fitted.mesh.shape) == {"data": 3, "data_2": 2}
    assert fitted.changes[0].size == 3


def test_too_many_bytes_are_an_error():
    model = {"table": abstract(vocab=50257, embed=64)}
    problem = (
        "fit_mapping: each device would hold 12.3 MiB, more than limit_bytes=4194304\n"
        "  vocab=50257, asked for model (8 ways): replicated, which adds 10.7 MiB\n"
        "  mapping: {'vocab': 'model'}\n"
        "  mesh: model=8\n"
        "  hint: sizes that would divide: vocab=50264"
    )
    fails(
        ShardingError,
        problem,
        lambda: fit_mapping(model, {"vocab": "model"}, {"model": 8}, limit_bytes=2**22),
    )
    allowed = fit_mapping(model, {"vocab": "model"}, {"model": 8}, limit_bytes=50257 * 64 * 4)
    assert allowed.held_bytes == 50257 * 64 * 4


def test_axes_are_replicated_where_that_is_cheap():
    mapping, mesh = {"embed": "model", "vocab": "model"}, {"model": 8}
    model = {"big": abstract(embed=64, mlp=1000), "small": abstract(vocab=7)}
    fitted = fit_mapping(model, mapping, mesh)
    assert dict(fitted.mapping) == {"embed": ("model",), "vocab": ()}
    assert fitted.changes[0].added_bytes == 4 * (7 - 1)
    assert fitted.held_bytes == fitted.asked_bytes + 4 * (7 - 1)
    model["small"] = abstract(vocab=101)
    problem = (
        "fit_mapping: axes that no part of a mesh axis divides would be replicated, which adds 352 B per device to the "
        "31.3 KiB that the mapping asks for\n"
        "  vocab=101, asked for model (8 ways): replicated, which adds 352 B\n"
        "  mapping: {'embed': 'model', 'vocab': 'model'}\n"
        "  mesh: model=8\n"
        "  hint: sizes that would divide: vocab=104; to replicate them anyway, pass limit_bytes=32404"
    )
    fails(ShardingError, problem, lambda: fit_mapping(model, mapping, mesh))
    assert fit_mapping(model, mapping, mesh, limit_bytes=32404).held_bytes == 32404


def test_what_is_impossible_is_an_error():
    problem = (
        "fit_mapping: no mapping near the given one fits\n"
        "  mesh axis 'model' would shard both 'embed' and 'mlp' of one array (at up); map one of the two elsewhere, "
        "or rename it there\n"
        "  mapping: {'embed': 'model', 'mlp': 'model'}\n"
        "  mesh: model=8"
    )
    fails(
        ShardingError,
        problem,
        lambda: fit_mapping(HEADED, {"embed": "model", "mlp": "model"}, {"model": 8}),
    )
    fails(
        ShardingError,
        "fit_mapping: there is no axis mapping\n  hint: pass one, or use axn.axis_mapping",
        lambda: fit_mapping(HEADED, None, {"model": 8}),
    )


def test_layers_of_unequal_stages_take_fewer_stages():
    make = nn.Stacked.init(Layers.resize(6), nn.MLP)
    model = made(lambda *, key: make(Embed, Embed, Mlp, 1, key=key))
    x = draw(Batch.resize(8), Embed)

    def run(model, x):
        return model.fold(x)

    mapping = {"layers": "stage", "batch": "stage"}
    with axn.pipelined("batch", 4):
        fitted = fit_mapping(run, mapping, jax.make_mesh((4,), ("stage",)), model, x)
        assert fitted.mapping["layers"] == ("stage",)
        assert dict(fitted.mesh.shape) == {"stage": 2, "stage_2": 2}
        with axn.set_mesh(fitted.mesh):
            found = axn.named_jit(run, fitted.mapping)(*axn.shard((model, x), fitted.mapping))
    np.testing.assert_allclose(found.array, jax.jit(run)(model, x).array, rtol=2e-5, atol=1e-5)
