"""Trees with holes and with leaves of every kind, in each collective: what is no array comes back as it is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as axn
from axonym import nn

pytestmark = pytest.mark.sampled

B, E, M = axn.make_axes(batch=8, embed=4, mlp=8)
FSDP = axn.Mappings({"embed": "data"}, {"batch": "data"})
VALUES = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
x = axn.named(VALUES, (B, E))


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=str)
def mesh(request):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(request.param,) * 2)


class Model(eqx.Module):
    """All that a filter treats apart: trained and frozen floats, integers, numbers, texts and functions."""

    weight: axn.NamedArray
    frozen: axn.NamedArray
    steps: jax.Array
    table: axn.NamedArray
    scale: float
    name: str
    activation: object
    missing: axn.NamedArray | None = None

    def __call__(self, x):
        return self.activation(x * self.weight * self.frozen) * self.scale


weight, frozen = axn.named(VALUES[0], E), axn.named(VALUES[1], E)
model = Model(weight, frozen, jnp.int32(3), axn.arange(E, dtype=int), 0.5, "a", axn.tanh)


def with_holes(model):
    """Make holes in each way in which libraries do."""
    trained, rest = eqx.partition(model, eqx.is_inexact_array)
    is_frozen = eqx.tree_at(lambda m: m.frozen.array, jax.tree.map(lambda _: False, model), True)
    return {
        "trained": trained,
        "rest": rest,
        "one": eqx.filter(model, is_frozen),
        "masked": jax.tree.map(lambda leaf: leaf if eqx.is_inexact_array(leaf) else (), model),
        "no arrays": {
            "none": None,
            "holes": [axn.NamedArray(hole, ("embed",)) for hole in (None, False, ())],
            "text": "a",
            "f": axn.tanh,
        },
    }


# The collectives that change no shape, and what NumPy makes of values that are the same on four devices.
SAME_SHAPE = {
    "pcast": (lambda tree: axn.pcast(tree, "batch"), 1),
    "psum": (lambda tree: axn.psum(axn.pcast(tree, "batch"), "batch"), 4),
    "pmean": (lambda tree: axn.pmean(axn.pcast(tree, "batch"), "batch"), 1),
    "pmax": (lambda tree: axn.pmax(tree, "batch"), 1),
    "pmin": (lambda tree: axn.pmin(tree, "batch"), 1),
    "ppermute": (lambda tree: axn.ppermute(tree, "batch"), 1),
}


def is_array(leaf):
    return hasattr(leaf, "dtype")


def test_holes_and_all_that_is_no_array_come_back(mesh):
    others = {}

    def f(model):
        found = {}
        for what, tree in with_holes(model).items():
            for name, (collective, _) in SAME_SHAPE.items():
                got = collective(tree)
                found[what, name], rest = eqx.partition(jax.tree.leaves(got), is_array)
                others[what, name] = rest, jax.tree.structure(got)
        return list(found.values())

    found = axn.shard_map(f, {"batch": "data"}, mesh, strict=False, check=False)(model)
    kept = with_holes(model)
    for ((what, name), (rest, structure)), arrays in zip(others.items(), found, strict=True):
        assert structure == jax.tree.structure(kept[what])
        for own, before, after in zip(rest, jax.tree.leaves(kept[what]), arrays, strict=True):
            if is_array(before):
                np.testing.assert_allclose(after, SAME_SHAPE[name][1] * np.asarray(before), err_msg=name)
            elif name == "psum" and isinstance(before, float):
                assert own == 4 * before
            else:
                assert own is before or own == before


def test_parts_are_gathered_and_scattered_beside_holes(mesh):
    """Adapters whose frozen base is all holes, and one of the two axes of a batch turned."""
    linear = nn.add_lora(nn.Linear.init(E, M, key=jax.random.key(0)), 2, key=jax.random.key(1))
    adapters, _ = eqx.partition(linear, nn.lora_filter(linear))

    def f(adapters, x):
        whole = axn.all_gather(adapters, "data")
        assert whole.down.weight.shape == {"embed": 4, "lora": 2}
        turned = axn.all_to_all({"x": x, "hole": adapters.base.weight}, "embed", "batch")
        assert turned["hole"].array is None
        back = axn.all_to_all(turned["x"], "batch", "embed")
        return axn.psum_scatter(axn.pcast(whole, "data"), "data"), back

    again, back = axn.shard_map(f, FSDP, mesh)(adapters, x)
    for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(adapters), strict=True):
        np.testing.assert_allclose(ours, 4 * np.asarray(theirs))
    assert len(jax.tree.leaves(again)) == 2
    np.testing.assert_array_equal(back.array, VALUES)


def test_a_step_with_filtered_gradients_is_that_of_one_device(mesh):
    loss = lambda model, x: (model(x) ** 2).mean().scalar()  # noqa: E731
    hidden = np.tanh(VALUES * VALUES[0] * VALUES[1])
    inner = 0.25 * 2 * hidden * (1 - hidden**2) / VALUES.size
    expected = (inner * VALUES * VALUES[1]).sum(0), (inner * VALUES * VALUES[0]).sum(0)

    def averaged(model, x):
        gradients = eqx.filter_grad(loss)(axn.pcast(model, "batch"), x)
        return axn.pmean(gradients, "batch")

    def in_parts(model, x):
        trained, rest = eqx.partition(model, eqx.is_inexact_array)
        gathered = lambda tree: axn.all_gather(eqx.combine(tree, rest), "data")  # noqa: E731
        return eqx.filter_grad(lambda tree: axn.pmean(loss(gathered(tree), x), "batch"))(trained)

    for f, mapping in ((averaged, {"batch": "data"}), (in_parts, FSDP)):
        got = axn.shard_map(lambda model, x, f=f: eqx.filter(f(model, x), is_array), mapping, mesh)(model, x)
        for ours, theirs in zip((got.weight.array, got.frozen.array), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        assert (got.steps, got.table.array) == (None, None)


def test_keys_and_gradients_of_integers(mesh):
    """JAX has arrays of dtypes that no operation takes."""
    tree = {"key": jax.random.key(0), "x": x}

    def f(tree, table):
        moved = axn.ppermute(axn.all_gather(axn.pcast(tree, "model"), "batch", to="invarying"), "model")
        slope = jax.grad(lambda t: (t[0] * t[1]).sum().scalar(), allow_int=True)((tree["x"], table))
        mean = axn.pmean(slope, over="data")
        assert mean[1].array.dtype == jax.dtypes.float0
        return jax.random.key_data(moved["key"]), mean[0]

    run = axn.shard_map(f, {"batch": "data"}, mesh, out_mapping={}, check=False)
    data, slope = run(tree, axn.arange(B))
    np.testing.assert_array_equal(data, jax.random.key_data(tree["key"]))
    np.testing.assert_array_equal(slope.array, np.repeat([[3.0], [4.0]], 4, 1))
