"""One function serves many layouts: collectives under two mappings, over several mesh axes and over none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import axonym as axn
from axonym.errors import ArgumentError, AxisSizeError, ShardingError
from tests.partitioning.meshes import draw, make_mesh

pytestmark = pytest.mark.sampled

B, T, F = axn.make_axes(batch=8, time=4, features=16)
Out = F.derive("out")
x, w = draw(B, T, F), draw(F, Out, seed=1)
COMPUTE = {"batch": "data", "features": "model"}
# The parameters of FSDP and tensor parallelism, of FSDP by name, and of tensor parallelism with whole features.
STORED = [{"features": ("model", "data")}, {"features": ("data", "model")}, {"features": "data"}, {"features": None}]


# functions of data, without looking at the batch, and what they are in numpy
def norm(x, w):
    return axn.psum((x * x).sum("features"), "features")


def mean(x, w):
    return axn.pmean(x.mean("features"), "features")


def largest(x, w):
    return axn.pmax(x.max("features"), "features")


def shifted(x, w):
    return axn.ppermute(x, "features")


def gathered(x, w):
    whole = axn.all_gather(x, "features")
    assert whole.axis_size("features") == 16
    return axn.pmean((whole * axn.arange(F)).sum("features"), "model")


def product(x, w):
    whole = axn.all_gather(w, "features")  # a parameter in the same scope, cut otherwise
    assert whole.axis_size("features") == 16
    rows = whole["features", axn.dblock(axn.axis_index("features"), x.axis_size("features"))]
    y = axn.psum_scatter(axn.dot(x, rows, axis="features"), "features.out")
    return y.rename({"features.out": "features"})


def turned(x, w):
    y = axn.all_to_all(x, split="time", concat="features")
    assert y.shape["time"] == 2
    assert y.shape["features"] == 16
    return axn.all_to_all(y, split="features", concat="time", over="model")


FUNCTIONS = {
    norm: lambda x, w: (x**2).sum(-1),
    mean: lambda x, w: x.mean(-1),
    largest: lambda x, w: x.max(-1),
    shifted: lambda x, w: np.roll(x, 8, -1),
    gathered: lambda x, w: (x * np.arange(16.0)).sum(-1),
    product: lambda x, w: x @ w,
    turned: lambda x, w: x,
}
WAYS = {
    "batched": lambda f: f,
    "vmap": lambda f: lambda x, w: axn.vmap(lambda x: f(x, w), "batch")(x),
    "map": lambda f: lambda x, w: axn.map(lambda x: f(x, w), "batch")(x),
    "scan": lambda f: lambda x, w: axn.scan(lambda n, x: (n + 1, f(x, w)), "batch")(0, x)[1],
    "vmap of map": lambda f: lambda x, w: axn.vmap(axn.map(lambda x: f(x, w), "time"), "batch")(x),
}


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_row_of_the_batch_is_data_as_the_batch_is(auto_mesh, way, stored):
    inner = way is WAYS["vmap of map"]  # which has no axis `time` to cut
    functions = {f: want for f, want in FUNCTIONS.items() if not (inner and f is turned)}

    def all_of_them(x, w):
        return [way(f)(x, w) for f in functions]

    mapped = axn.shard_map(all_of_them, axn.Mappings(stored, COMPUTE), auto_mesh, out_mapping=COMPUTE, strict=False)
    for (f, want), got in zip(functions.items(), mapped(x, w), strict=True):
        names = ("batch", "time", "features")[: len(got.names)]
        expected = want(np.asarray(x.array), np.asarray(w.array))
        np.testing.assert_allclose(got.rearrange(names).array, expected, rtol=1e-4, atol=1e-4, err_msg=f.__name__)


@pytest.mark.parametrize("stored", STORED[:3], ids=str)
def test_the_size_of_a_block_tells_parameters_from_data(auto_mesh, stored):
    """Rows that no map has made, beside parameters."""

    def f(x, w):
        moved = axn.stack(B.resize(2), [axn.ppermute(x["batch", i], "features") for i in range(2)])
        # what is the same on devices that hold other blocks of a parameter is none
        total = axn.psum(axn.pmean((x * x).sum("features").mean("batch"), "batch"), "features")
        return moved.rename({"features": "moved"}), total, axn.ppermute(w, "features")

    out = {"batch": "data", "moved": "model", **stored}
    f = axn.shard_map(f, axn.Mappings(stored, COMPUTE), auto_mesh, out_mapping=out, strict=False)
    moved, total, parameter = f(x, w)
    np.testing.assert_array_equal(moved.rearrange(("batch", "time", "moved")).array, np.roll(x.array, 8, -1))
    np.testing.assert_allclose(total.array, (x.array**2).sum(-1).mean(0), rtol=1e-5)
    ways = 4 if stored == {"features": "data"} else 8
    np.testing.assert_array_equal(parameter.array, np.roll(w.array, 16 // ways, 0))


def test_without_data_among_the_arguments_all_are_parameters(auto_mesh):
    def f(w):
        assert axn.collectives.axis_size("features") == 8
        return axn.psum((w * w).sum(), "features"), axn.psum((w * w).sum("features"), "features")

    both = axn.Mappings(STORED[0], COMPUTE)
    total, each = axn.shard_map(f, both, auto_mesh, out_mapping={}, strict=False)(w)
    np.testing.assert_allclose(total.array, (w.array**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(each.array, (w.array**2).sum(0), rtol=1e-5)
    # a row that a map around the shard_map has made is laid out as a parameter
    rows = axn.vmap(axn.shard_map(lambda x: norm(x, w), both, auto_mesh, strict=False), "batch")(x)
    np.testing.assert_allclose(rows.array, (x.array**2).sum(-1), rtol=1e-5)


def test_a_sum_over_all_devices_asks_nothing(auto_mesh):
    """Over the mesh axes of both names, it is the same for parameters and for data."""

    def f(x, w):
        return axn.psum((x * x).sum(), ("batch", "features")), axn.psum((x * x).sum(), ("features", "data"))

    for total in axn.shard_map(f, axn.Mappings(STORED[0], COMPUTE), auto_mesh, strict=False)(x, w):
        np.testing.assert_allclose(total.array, (x.array**2).sum(), rtol=1e-5)


ASK = (
    "cannot tell whether the array is a parameter, whose axis 'features' is split over other mesh axes\n"
    "  array has: {has}\n"
    "  parameters: {{'features': {stored}}}\n"
    "  compute: {{'batch': 'data', 'features': 'model'}}\n"
    "  hint: name the mesh axes: {computed} for what is computed, {told} for a parameter"
)
TWICE = "('model', 'data')"
UNCLEAR = {
    "a sum of parameters or of data": (
        STORED[0],
        lambda x, w: axn.psum((x * x).sum("features").mean("batch"), "features"),
        "psum: " + ASK.format(has="time=4", stored=TWICE, computed='"model"', told='("model", "data")'),
    ),
    "a mean that no axes are left of": (
        STORED[2],
        lambda x, w: axn.pmean((x * x).mean(), "features"),
        "pmean: " + ASK.format(has="no axes", stored="'data'", computed='"model"', told='"data"'),
    ),
    "a whole to be cut": (
        STORED[0],
        lambda x, w: axn.psum_scatter(axn.all_gather(w, "features"), "features"),
        "psum_scatter: "
        + ASK.format(
            has="features=16, features.out=16",
            stored=TWICE,
            computed='over="model"',
            told='over=("model", "data")',
        ),
    ),
    "half a block": (
        STORED[0],
        lambda x, w: axn.ppermute(w["features", :1], "features"),
        "ppermute: "
        + ASK.format(has="features=1, features.out=16", stored=TWICE, computed='"model"', told='("model", "data")'),
    ),
    "partial sums that go around": (
        STORED[3],
        lambda x, w: axn.ppermute(x["batch", 0].sum("features"), "features"),
        "ppermute: " + ASK.format(has="time=4", stored="None", computed='"model"', told="no axn.ppermute"),
    ),
    "gathered twice over one of two mesh axes": (
        STORED[0],
        lambda x, w: axn.all_gather(axn.all_gather(w, "data"), "data"),
        "all_gather: axis 'features' is already gathered over data: it is split only over model\n"
        "  array has: features=8, features.out=16\n"
        '  hint: if these are blocks, name their mesh axis: axn.all_gather(..., over="data")',
    ),
    "a row gathered where parameters lie": (
        STORED[0],
        lambda x, w: axn.vmap(lambda row: axn.all_gather(row, "data"), "batch")(x),
        "all_gather: axis 'features' is already gathered over data: it is split only over model\n"
        "  array has: time=4, features=8\n"
        '  hint: if these are blocks, name their mesh axis: axn.all_gather(..., over="data")',
    ),
}


@pytest.mark.parametrize("mistake", UNCLEAR.values(), ids=UNCLEAR)
def test_what_nothing_tells_is_asked_for(auto_mesh, mistake):
    stored, f, text = mistake
    with pytest.raises(ShardingError) as caught:
        jax.eval_shape(axn.shard_map(f, axn.Mappings(stored, COMPUTE), auto_mesh, strict=False), x, w)
    assert str(caught.value) == text


def test_parameters_of_fsdp_are_gathered_once(auto_mesh):
    f = lambda x, w: axn.all_gather(axn.all_gather(w, "features"), "features")  # noqa: E731
    with pytest.raises(ShardingError) as caught:
        axn.shard_map(f, axn.Mappings({"features": "data"}, {"batch": "data"}), auto_mesh)(x, w)
    assert str(caught.value) == (
        "all_gather: axis 'features' is already whole: it has size 16 in the arguments\n"
        "  array has: features=16, features.out=16\n"
        '  hint: if these are blocks, name their mesh axis: axn.all_gather(..., over="data")'
    )


# results
@pytest.mark.parametrize("stored", STORED[:3], ids=str)
def test_a_result_that_has_lost_its_batch_is_laid_out_as_out_mapping_says(auto_mesh, stored):
    f = axn.shard_map(
        lambda x: axn.pmean(x.mean("batch"), "batch"),
        axn.Mappings(stored, COMPUTE),
        auto_mesh,
        out_mapping={"features": "model"},
    )
    np.testing.assert_allclose(f(x).array, x.array.mean(0), rtol=1e-5, atol=1e-6)


def test_a_result_that_has_lost_its_batch_is_no_parameter(auto_mesh):
    both = axn.Mappings(STORED[0], COMPUTE)
    for f in (lambda x: axn.pmean(x.mean("batch"), "batch"), lambda x: x.mean("batch")):
        with pytest.raises(ShardingError) as caught:
            axn.shard_map(f, both, auto_mesh)(x)
        assert str(caught.value) == (
            "shard_map: the result has axis 'features' split over model, as it is computed, but its layout, that of "
            "parameters, splits it over model, data\n"
            "  it has: time=4, features=8\n"
            "  mapping of the results: {'features': ('model', 'data')}\n"
            "  mesh: data=4, model=2\n"
            "  assembled, it would have 8 times 8\n"
            '  hint: name the mesh axes of its blocks: out_mapping={"features": "model", ...}'
        )


def test_the_block_of_a_whole_result(auto_mesh):
    @axn.shard_map(mapping=axn.Mappings(STORED[0], COMPUTE), mesh=auto_mesh, strict=False)
    def f(x, w):
        whole = axn.all_gather(x, "batch")
        return whole["batch", axn.dblock(axn.axis_index("data"), 2)], w

    np.testing.assert_array_equal(f(x, w)[0].array, x.array)


# several mesh axes, one after the other
@pytest.mark.parametrize("over", [("model", "data"), ("data", "model")], ids=str)
def test_gathered_over_one_mesh_axis_and_cut_again(mesh, over):
    outer, inner = over

    def f(w):
        partly = axn.all_gather(w, inner)
        whole = axn.all_gather(partly, outer)
        assert (partly.axis_size("features"), whole.axis_size("features")) == (16 // mesh.shape[outer], 16)
        once, twice = axn.psum_scatter(partly, inner), axn.psum_scatter(axn.psum_scatter(whole, outer), inner)
        return once / mesh.shape[inner], twice / 8

    for layout in ({"features": over}, axn.Mappings({"features": over}, COMPUTE)):
        for got in axn.shard_map(f, layout, strict=False)(w):
            np.testing.assert_array_equal(got.array, w.array)


def test_a_size_that_may_be_whole_does_not_tell_the_order(auto_mesh):
    short = draw(F.resize(8))
    f = lambda w, short: axn.psum_scatter(axn.all_gather(w, "data"), "data")  # noqa: E731
    with pytest.raises(ShardingError) as caught:
        axn.shard_map(f, {"features": ("model", "data")}, auto_mesh)(w, short)
    assert str(caught.value) == (
        "psum_scatter: axis 'features' is split over model, data: 'model' comes before 'data'\n"
        '  hint: take all by "features"; or model first, and then axn.psum_scatter(x, "features", over="data")'
    )


# dtypes
@pytest.mark.parametrize("dtype", [bool, np.int8, np.int32, np.float32, jnp.bfloat16], ids=str)
def test_a_reduction_has_one_dtype_whatever_the_layout(auto_mesh, dtype):
    totals = {}
    for name in ("psum", "pmean", "pmax", "pmin"):
        reduce, raw = getattr(axn, name), getattr(lax, name)
        total = lambda x, reduce=reduce: reduce(x.max("batch").astype(dtype), "batch")  # noqa: E731
        over = jax.shard_map(
            lambda x, raw=raw: raw(x.astype(dtype), "data"), mesh=auto_mesh, in_specs=P("data"), out_specs=P()
        )
        expected = jax.eval_shape(over, jnp.ones(8)).dtype
        mapped = [axn.shard_map(total, {"batch": entry}, auto_mesh) for entry in ("data", None)]
        totals[name] = [*mapped, total], expected
    run = lambda x: {name: [call(x) for call in calls] for name, (calls, _) in totals.items()}  # noqa: E731
    for name, got in jax.jit(run)(axn.ones(B)).items():
        assert [y.dtype for y in got] == [totals[name][1]] * 3, name
        assert name == "psum" or [y.item() for y in got] == [1, 1, 1]


# devices of a permutation
def test_pairs_come_as_an_array_too(auto_mesh):
    for pairs in (np.array([[0, 1], [1, 0]]), jnp.array([[0, 1], [1, 0]])):
        got = axn.shard_map(lambda x, pairs=pairs: axn.ppermute(x, "batch", pairs), {"batch": "data"}, auto_mesh)
        assert got(axn.arange(B)).tolist() == [2, 3, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("shift", "got"),
    [
        (lambda i: 1.5, "1.5"),
        (lambda i: None, "None"),
        (lambda i: [(0, 1.5)], "[(0, 1.5)]"),
        (lambda i: i, "a traced value"),
        (lambda i: i[None], "a traced value"),
    ],
)
def test_devices_are_told_by_integers_that_are_known(auto_mesh, shift, got):
    f = lambda x: axn.ppermute(x, "batch", shift(axn.axis_index("batch")))  # noqa: E731
    with pytest.raises(ArgumentError) as caught:
        axn.shard_map(f, {"batch": "data"}, auto_mesh)(axn.arange(B))
    assert str(caught.value) == f"ppermute: shift must be an int or pairs of ints; got {got}"


# beside mesh axes that are not Manual
def test_an_axis_is_cut_evenly_beside_explicit_mesh_axes():
    f = lambda x: axn.psum_scatter(x, "features", over="data")  # noqa: E731
    out = {"features": ("data", "model")}
    f = axn.shard_map(f, COMPUTE, manual_axes=["data"], out_mapping=out, strict=False)
    with axn.set_mesh(make_mesh("explicit")):
        y = draw(B, F)
        np.testing.assert_allclose(f(y).array, y.array.reshape(4, 2, 16).sum(0), rtol=1e-5)
        with pytest.raises(AxisSizeError) as caught:
            f(draw(B, F.resize(4)))
    assert str(caught.value) == (
        "psum_scatter: features=4 cannot be split evenly in 8 over mesh axis data, model\n"
        "  array has: batch=2, features=4"
    )
