"""Two programs side by side, layer by layer."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym import debug, nn
from axonym.errors import ArgumentError
from tests.nn.layouts import draw, fails

B, E, M, L = axn.make_axes(batch=4, embed=8, mlp=12, layers=3)
X = draw(B, E)


class Model(eqx.Module):
    blocks: nn.Stacked | nn.BlockSeq
    norm: nn.LayerNorm

    def __call__(self, x):
        return axn.square(self.norm(self.blocks.fold(x))).mean()


STACKED = jax.jit(lambda keys: nn.Stacked.init(L, nn.MLP)(E, E, M, 1, key=keys))(jax.random.split(jax.random.key(1), 3))
MODEL = Model(STACKED, nn.LayerNorm.init(E))
LAYERS = [f"blocks.{i}{rest}" for i in range(3) for rest in (".layers.0", "", ".layers.1")]


def listed(blocks):
    return Model(nn.BlockSeq(blocks.unstacked(), L, blocks.gradient_checkpointing), MODEL.norm)


def test_layers_match_however_they_are_stored_and_the_first_that_differs_is_told():
    found = debug.compare(MODEL, listed(STACKED), X)
    assert [row.path for row in found.rows if row.kind == "layer"] == [*LAYERS, "norm"]
    assert str(found) == f"compare: 0 of {len(found.rows)} differ"
    assert not found
    one, two, three = STACKED.unstacked()
    wrong = eqx.tree_at(lambda block: block.layers[1].weight, two, 1.5 * two.layers[1].weight)
    found = debug.compare(MODEL, listed(STACKED.with_layers([one, wrong, three])), X)
    assert (found.first.path, round(found.first.factor or 0, 3)) in {("blocks.1.layers.1", 1.5), ("blocks.1", 1.5)}
    assert {row.path for row in found.rows if row} >= {"norm", "blocks.2", ""}
    assert not any(row for row in found.rows if row.path.startswith("blocks.0"))
    lines = str(found).splitlines()
    assert lines[0] == f"compare: {sum(map(bool, found.rows))} of {len(found.rows)} differ, first {found.first.name}"
    assert lines[2].split() == ["what", "difference", "factor"]


def test_gradients_alone_may_differ():
    def halved(model, x):
        y = model.norm(model.blocks.fold(x))
        return axn.square((y + jax.lax.stop_gradient(y)) / 2).mean()

    found = debug.compare(lambda model, x: model(x), halved, MODEL, X)
    assert (found.first.kind, found.first.factor) == ("gradient", 0.5)
    # From the last parameter that the program reads to the first.
    paths = [row.path for row in found.rows if row.kind == "gradient"]
    assert paths.index("0.norm.weight") < paths.index("0.blocks.stacked.layers.0.weight")


def test_dtypes_and_devices_differ_by_rounding():
    narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), MODEL)
    assert not debug.compare(MODEL, lambda x: narrow(x.astype(jnp.bfloat16)), X)
    assert debug.compare(MODEL, lambda x: narrow(x.astype(jnp.bfloat16)), X, tolerance=1e-6)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    alone = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))

    def gradient(times):
        @axn.shard_map(mapping={"batch": "data"}, check=False)
        def run(x):
            y = axn.psum(x.sum("batch"), "data")
            return axn.psum(y, "data") if times == 2 else y

        return run

    assert not debug.compare(gradient(1), gradient(1), X, meshes=(alone, mesh))
    assert debug.compare(gradient(2), gradient(2), X, meshes=(alone, mesh)).first.factor == 4.0
    # What a stack does around its loop, such as to lay weights out, is no layer.
    laid_out = axn.named_jit(lambda model, x: model(x), {"batch": "data"})
    found = debug.compare(lambda model, x: model(x), laid_out, MODEL, X, meshes=(None, mesh))
    assert [row.path for row in found.rows if row.kind == "layer"] == [*LAYERS, "norm"]
    assert not found


def test_arrays_that_were_recorded_elsewhere():
    (one, two, _), x = STACKED.unstacked(), X.array
    recorded = {}
    for i, block in enumerate((one, two)):
        up, down = (np.asarray(layer.weight.array) for layer in block.layers)
        hidden = np.maximum(x @ up + block.layers[0].bias.array, 0)
        x = recorded[f"h.{i}"] = np.asarray(hidden @ down + block.layers[1].bias.array)
        recorded[f"h.{i}.up"] = hidden.reshape(2, 2, 12)
    names = {f"h.{i}": f"blocks.{i}" for i in range(2)}
    assert [row.path for row in debug.compare(MODEL, recorded, X, names=names).rows] == ["blocks.0", "blocks.1"]
    assert not debug.compare(MODEL, recorded, X, names=names)
    assert not debug.compare(MODEL, {"blocks.1": recorded["h.1"], "": np.asarray(MODEL(X).array)}, X)
    found = debug.compare(MODEL, recorded | {"h.1": 2 * x[:, :4], "h.0": -recorded["h.0"]}, X, names=names)
    assert str(found).splitlines() == [
        "compare: 2 of 2 differ, first layer blocks.0",
        "",
        "what            difference               factor",
        "layer blocks.0  2                        -1",
        "layer blocks.1  shape (4, 8) and (4, 4)",
    ]
    text = "compare: no layer 'blocks.1.layer.0'\n  hint: did you mean 'blocks.1.layers.0'?"
    fails(ArgumentError, text, lambda: debug.compare(MODEL, {"blocks.1.layer.0": x}, X))
