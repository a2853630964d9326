"""Collectives inside of `shard_map`, against numpy on blocks (`blocks.py`) and against raw JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import axonym as axn
from axonym.errors import ArgumentError, AxisNotFoundError, AxisSizeError, BroadcastError, OperandError, ShardingError
from tests.partitioning.blocks import Grid

pytestmark = pytest.mark.sampled

B, E, M = axn.make_axes(batch=8, embed=4, mlp=8)
GRIDS = [Grid(p=8), Grid(p=4, q=2), Grid(p=2, q=2, r=2)]
DTYPES = [np.float32, np.int32, jnp.bfloat16]


def make_mesh(grid, kind=AxisType.Auto):
    return jax.make_mesh(tuple(grid.sizes.values()), tuple(grid.sizes), axis_types=(kind,) * len(grid.sizes))


@st.composite
def cases(draw):
    """Draw a mesh, and an array whose axis `a` lies over some mesh axes, `b` over the next or none, `c` over none."""
    grid = draw(st.sampled_from(GRIDS))
    mesh_axes = draw(st.permutations(list(grid.sizes)))
    first = draw(st.integers(1, len(mesh_axes)))
    second = draw(st.integers(first, min(first + 1, len(mesh_axes))))
    mapping = {"a": tuple(mesh_axes[:first]), "b": tuple(mesh_axes[first:second])}
    names = tuple(draw(st.permutations(["a", "b", "c"])))
    sizes = {"a": 8, "b": 4, "c": 8}
    lead = draw(st.sampled_from([(), (3,)]))
    # Small integers, so that every dtype holds every sum exactly.
    seed = draw(st.integers(0, 2**16))
    values = np.random.default_rng(seed).integers(-1, 2, (*lead, *(sizes[name] for name in names)))
    return grid, mapping, names, values, draw(st.sampled_from(DTYPES))


def of_each_device(y, grid):
    """Show what each device has: along a first axis that lies over the whole mesh."""
    y = y if isinstance(y, axn.NamedArray) else axn.NamedArray(y, ())
    apart = axn.pcast(y, tuple(grid.sizes))
    return axn.NamedArray(apart.array[None], ("device", *(f"_{i}" for i in range(apart.ndim))))


def run(grid, kind, mapping, f, *args):
    """Call a function on blocks; list for each of its results what each device got."""
    shown = lambda *args: {name: of_each_device(y, grid) for name, y in f(*args).items()}  # noqa: E731
    out = {"device": tuple(grid.sizes)}
    got = axn.shard_map(shown, mapping, make_mesh(grid, kind), out_mapping=out)(*args)
    return {name: np.asarray(y.array) for name, y in got.items()}


def each_collective(x, grid, over, shift, pairs):
    last = over[-1]
    weight = (1 + axn.axis_index(("a", "b"))).astype(x.dtype)
    tree = axn.psum({"x": x.sum("a"), "y": (None, x.sum().array)}, "a")
    gathered = axn.all_gather(x, "a")
    return {
        "psum": tree["x"],
        "psum 0-d": tree["y"][1],
        "psum over mesh axes": axn.psum(x, over),
        "psum of nothing mapped": axn.psum(x.sum("c"), "c"),
        "pmean": axn.pmean(x.sum("a"), "a"),
        "pmax": axn.pmax(x.max("a"), axn.Axis("a", x.resolve_axis("a").size)),
        "pmin": axn.pmin(x.min("a"), "a"),
        "all_gather": gathered,
        "all_gather over the last mesh axis": axn.all_gather(x, last),
        "all_gather of nothing mapped": axn.all_gather(x, "c"),
        "psum_scatter": axn.psum_scatter(gathered * weight, "a"),
        "psum_scatter over": axn.psum_scatter(x, "c", over="a"),
        "all_to_all": axn.all_to_all(x, split="c", concat="a"),
        "all_to_all back": axn.all_to_all(axn.all_to_all(x, "c", "a"), "a", "c"),
        "ppermute": axn.ppermute(x, "a", shift),
        "ppermute pairs": axn.ppermute(x, "a", pairs),
        "axis_index": axn.axis_index("a"),
        "axis_index of mesh axes": axn.axis_index(tuple(grid.sizes)[::-1]),
        "axis_index of nothing mapped": axn.axis_index("c"),
        "axis_size": jnp.asarray(axn.collectives.axis_size("a")),
        "axis_size of both": jnp.asarray(axn.collectives.axis_size(("a", "b"))),
    }


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@settings(max_examples=3)
@given(case=cases(), shift=st.integers(-3, 9))
def test_collectives_do_to_blocks_what_numpy_does(kind, case, shift):
    grid, mapping, names, values, dtype = case
    over, lead = mapping["a"], values.ndim - 3
    a, c = (lead + names.index(name) for name in "ac")
    pairs = [(0, 1), (grid.axis_size(over) - 1, 0)] if grid.axis_size(over) > 2 else [(0, 1)]
    last = over[-1]

    f = lambda x: each_collective(x, grid, over, shift, pairs)  # noqa: E731
    got = run(grid, kind, mapping, f, axn.NamedArray(jnp.asarray(values, dtype), names))
    blocks = grid.cut(values, [()] * lead + [mapping.get(name, ()) for name in names])
    whole = grid.all_gather(blocks, over, a)
    weights = [1 + i for i in grid.axis_index((*over, *mapping["b"]))]
    total = [block.sum(a) for block in blocks]
    # Without the anonymous dimensions, which a sum over all axes leaves.
    entire = [block.sum(tuple(range(lead, block.ndim))) for block in blocks]
    crossed = grid.all_to_all(blocks, over, c, a)
    expected = {
        "psum": grid.psum(total, over),
        "psum 0-d": grid.psum(entire, over),
        "psum over mesh axes": grid.psum(blocks, over),
        "psum of nothing mapped": [block.sum(c) for block in blocks],
        "pmean": grid.pmean(total, over),
        "pmax": grid.pmax([block.max(a) for block in blocks], over),
        "pmin": grid.pmin([block.min(a) for block in blocks], over),
        "all_gather": whole,
        "all_gather over the last mesh axis": grid.all_gather(blocks, (last,), a),
        "all_gather of nothing mapped": blocks,
        "psum_scatter": grid.psum_scatter([x * w for x, w in zip(whole, weights, strict=True)], over, a),
        "psum_scatter over": grid.psum_scatter(blocks, over, c),
        "all_to_all": crossed,
        "all_to_all back": grid.all_to_all(crossed, over, a, c),
        "ppermute": grid.ppermute(blocks, over, grid.ring(over, shift)),
        "ppermute pairs": grid.ppermute(blocks, over, pairs),
        "axis_index": grid.axis_index(over),
        "axis_index of mesh axes": grid.axis_index(tuple(grid.sizes)[::-1]),
        "axis_index of nothing mapped": [0] * 8,
        "axis_size": [grid.axis_size(over)] * 8,
        "axis_size of both": [grid.axis_size((*over, *mapping["b"]))] * 8,
    }
    assert got.keys() == expected.keys()
    for name, value in got.items():
        np.testing.assert_array_equal(value.astype(np.float64), np.stack(expected[name]), err_msg=name)
        if not name.startswith("axis_") and (name, dtype) != ("pmean", np.int32):
            assert value.dtype == dtype, name


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@settings(max_examples=2)
@given(case=cases(), shift=st.integers(-3, 9))
def test_the_gradient_of_a_collective_sends_back_what_it_sent(kind, case, shift):
    grid, mapping, names, values, _ = case
    over, lead = mapping["a"], values.ndim - 3
    a, c = (lead + names.index(name) for name in "ac")
    rng = np.random.default_rng(int(np.abs(values).sum()))
    blocks = grid.cut(values, [()] * lead + [mapping.get(name, ()) for name in names])
    shapes = {
        "same": blocks,
        "gathered": grid.all_gather(blocks, over, a),
        "crossed": grid.all_to_all(blocks, over, c, a),
    }
    shapes |= {"cut": grid.psum_scatter(blocks, over, c)}
    back = {key: [rng.integers(-2, 3, block.shape).astype(np.float32) for block in of] for key, of in shapes.items()}

    def f(x, back):
        def pulled(collective, key):
            mine = axn.NamedArray(back[key].array[0], x.names)
            return jax.grad(lambda x: (collective(x) * mine).array.sum())(axn.pcast(x, tuple(grid.sizes)))

        return {
            "psum": pulled(lambda x: axn.psum(x, over), "same"),
            "pmean": pulled(lambda x: axn.pmean(x, over), "same"),
            "ppermute": pulled(lambda x: axn.ppermute(x, "a", shift), "same"),
            "all_gather": pulled(lambda x: axn.all_gather(x, "a"), "gathered"),
            "psum_scatter": pulled(lambda x: axn.psum_scatter(x, "c", over="a"), "cut"),
            "all_to_all": pulled(lambda x: axn.all_to_all(x, "c", "a"), "crossed"),
        }

    x = axn.NamedArray(jnp.asarray(values, jnp.float32), names)
    stacked = {key: axn.NamedArray(jnp.stack(of), ("device", *map(str, range(of[0].ndim)))) for key, of in back.items()}
    got = run(grid, kind, {**mapping, "device": tuple(grid.sizes)}, f, x, stacked)
    forth = [(j, i) for i, j in grid.ring(over, shift)]
    expected = {
        "psum": grid.psum(back["same"], over),
        "pmean": grid.pmean(back["same"], over),
        "ppermute": grid.ppermute(back["same"], over, forth),
        "all_gather": grid.psum_scatter(back["gathered"], over, a),
        "psum_scatter": grid.all_gather(back["cut"], over, c),
        "all_to_all": grid.all_to_all(back["crossed"], over, a, c),
    }
    for name, value in got.items():
        np.testing.assert_array_equal(value, np.stack(expected[name]), err_msg=name)


# what is no communication
def test_axes_that_are_not_mapped_and_numbers(auto_mesh):
    tree = {"n": 2, "x": 1.5, "text": "a", "none": None, "flag": True}

    def f(x):
        assert axn.psum(tree, "embed") == tree
        assert axn.psum({"n": 2, "none": None}, "batch") == {"n": 8, "none": None}
        assert axn.pmean(1.5, "batch") == 1.5
        assert axn.pmax(tree, "batch") == axn.pmin(tree, "batch") == tree
        assert axn.all_gather({"none": None, "text": "a"}, "batch") == {"none": None, "text": "a"}
        for g in (axn.all_gather, axn.ppermute, axn.pcast, axn.psum_scatter):
            assert g(x, "embed").array is x.array
        assert axn.all_to_all(x, "embed", "embed").array is x.array
        key = jax.random.key(0)
        assert axn.fold_key(key, "embed") is key
        return x

    axn.shard_map(f, {"batch": "data"}, auto_mesh)(axn.ones((B, E)))


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_axes_of_no_elements(kind, request):
    """XLA neither gathers nor scatters along these."""
    mesh, none, x = request.getfixturevalue(kind), B.resize(0), axn.ones((B.resize(0), E))

    def f(x):
        whole = axn.all_gather(x, "batch", to="invarying")
        block = axn.psum_scatter(axn.all_gather(x, "batch"), "batch")
        turned = axn.all_to_all(axn.all_to_all(x, "embed", "batch"), "batch", "embed")
        total = axn.psum(whole.sum() + axn.pcast(block.sum() + axn.ppermute(turned, "batch").sum(), "data"), "batch")
        return whole, block, turned, total

    with axn.set_mesh(mesh):
        run = axn.shard_map(f, {"batch": "data"})
        for call in (run, jax.jit(run)):
            *arrays, total = call(x)
            assert [y.axes for y in arrays] == [(none, E)] * 3
            assert total.item() == 0
        gradient = jax.grad(lambda x: run(x)[0].sum().scalar())(x)
    assert gradient.axes == x.axes


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_sums_of_bfloat16_in_a_mesh_of_which_some_axes_are_manual(kind, request):
    """On CPUs, XLA aborts the process at them."""
    values = np.arange(32).reshape(8, 4)
    x = axn.named(jnp.asarray(values, jnp.bfloat16), ("batch", "embed"))

    def f(x):
        total, still = x.sum("batch"), axn.stop_gradient(x)
        largest, least = axn.pmax(still.max("batch"), "batch"), axn.pmin(still.min("batch"), "batch")
        block = axn.psum_scatter(total, "embed", over="data")
        scattered = axn.all_gather(block, "embed", over="data", to="invarying")
        gathered = axn.all_gather(x, "batch").sum("batch")
        mean = axn.pmean(gathered, "batch")
        return axn.psum(total, "batch"), axn.pmean(total, "batch"), largest, least, scattered, mean

    def loss(x):
        parts = axn.shard_map(f, {"batch": "data"}, manual_axes=["data"])(x)
        return parts[-1].sum().scalar(), parts

    with axn.set_mesh(request.getfixturevalue(kind)):
        slope, parts = jax.jit(jax.grad(loss, has_aux=True))(x)
    total = values.sum(0)
    expected = total, total / 4, values.max(0), values.min(0), total, total
    for part, right in zip(parts, expected, strict=True):
        assert part.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(part.array, float), right)
    np.testing.assert_array_equal(np.asarray(slope.array, float), 1)


def test_nan_is_the_largest_and_the_smallest_value(auto_mesh):
    x = axn.named(jnp.array([0, jnp.nan, 2, 3]), "batch")
    extrema = lambda x: (axn.pmax(x.max("batch"), "batch"), axn.pmin(x.min("batch"), "batch"))  # noqa: E731
    for values in (x, axn.nan_to_num(x, 1.0)):
        highest, lowest = axn.shard_map(extrema, {"batch": "data"}, auto_mesh)(values)
        np.testing.assert_array_equal([highest.item(), lowest.item()], [values.max().item(), values.min().item()])


def test_outside_of_shard_map_everything_is_whole(auto_mesh):
    x, key = axn.ones((B, E)), jax.random.key(0)
    for mapping in ({}, {"batch": "data"}):
        with axn.set_mesh(auto_mesh), axn.axis_mapping(mapping):
            total = x.sum("batch")
            for g in (axn.psum, axn.pmean, axn.pmax, axn.pmin):
                assert g(total, "batch").array is total.array
            for g in (axn.all_gather, axn.ppermute, axn.pcast, axn.psum_scatter):
                assert g(x, "batch").array is x.array
            assert axn.all_to_all(x, "embed", "batch").array is x.array
            assert axn.fold_key(key, "batch") is key
            assert (axn.axis_index("batch").item(), axn.collectives.axis_size("batch")) == (0, 1)


def test_what_is_the_same_everywhere_has_a_maximum(auto_mesh):
    f = lambda x: (axn.pmax(x, "data"), axn.pmin(x.sum("embed"), ("model", "batch")))  # noqa: E731
    x = axn.arange(E) + 1.0
    largest, least = axn.shard_map(f, {"batch": "data"}, auto_mesh, strict=False)(x)
    np.testing.assert_array_equal(largest.array, x.array)
    assert least.item() == 10.0


def test_a_mesh_axis_stands_for_the_axis_that_lies_over_it(auto_mesh):
    mapping = {"embed": "data", "mlp": ("model",)}
    tree = {"w": axn.arange(E).broadcast_axis(M), "b": axn.arange(M), "c": axn.ones(B), "none": None, "n": 3}

    def f(tree):
        whole = axn.all_gather(tree, "data")
        assert [whole["w"].shape, whole["b"].shape] == [{"mlp": 4, "embed": 4}, {"mlp": 4}]
        assert whole["b"].array is tree["b"].array
        parts = axn.psum_scatter(axn.pcast(whole, "data"), "data")
        return parts

    got = axn.shard_map(f, mapping, auto_mesh)(tree)
    # each of 4 devices added the same to the sum, which for arrays without the axis stays whole
    for name in "wbc":
        np.testing.assert_array_equal(got[name].array, 4 * tree[name].array)
    assert (got["none"], got["n"]) == (None, 3)


def test_derived_names_have_the_blocks_of_their_base(auto_mesh):
    Out = axn.Axis("embed.out", 4)

    def f(square, alone):
        assert (square.shape, alone.shape) == ({"embed": 1, "embed.out": 4}, {"batch": 8, "embed.out": 1})
        assert axn.all_gather(square, "embed.out").array is square.array
        assert axn.collectives.axis_size("embed.out") == 4
        return axn.all_gather((square, alone), "data", to="invarying")

    square = axn.ones((E, Out))
    alone = axn.arange(Out).broadcast_axis(B)
    whole, parts = axn.shard_map(f, {"embed": "data"}, auto_mesh, out_mapping={})(square, alone)
    np.testing.assert_array_equal(whole.array, square.array)
    np.testing.assert_array_equal(parts.array, alone.array)


def test_keys_differ_between_blocks_and_are_those_of_their_numbers(auto_mesh):
    key, D = jax.random.key(3), axn.Axis("draw", 4)
    f = lambda key, x: axn.random.uniform(axn.fold_key(key, "batch"), axn.Axis("draw", 1))  # noqa: E731
    got = axn.shard_map(f, {"batch": "data", "draw": "data"}, auto_mesh)(key, axn.ones(B))
    expected = [axn.random.uniform(jax.random.fold_in(key, i), axn.Axis("draw", 1)).item() for i in range(4)]
    assert got.axes == (D,)
    assert got.array.tolist() == expected


# mistakes
MISTAKES = {
    "a sum of blocks": (
        {"batch": "data"},
        lambda x, w: axn.psum(x, "batch"),
        ShardingError,
        "psum: the array has axis 'batch' itself, so its blocks would be reduced into one\n"
        "  array has: batch=2, embed=4\n"
        '  hint: reduce it first: axn.psum(x.sum("batch"), "batch"); or name the mesh axis',
    ),
    "a sum under a vmap": (
        {"batch": "data"},
        lambda x, w: axn.vmap(lambda row: axn.pmean(row, "batch"), "batch")(x),
        ShardingError,
        "pmean: a surrounding vmap or nmap maps over axis 'batch', so the reduction would be only over devices\n"
        "  array has: embed=4\n"
        "  hint: reduce outside of it; or name the mesh axis",
    ),
    "a maximum under an nmap": (
        {"batch": "data"},
        lambda x, w: axn.nmap(lambda row: axn.pmax(row, "batch"))(x.untag("embed")),
        ShardingError,
        "pmax: a surrounding vmap or nmap maps over axis 'batch', so the reduction would be only over devices\n"
        "  array has: anonymous (4,)\n"
        "  hint: reduce outside of it; or name the mesh axis",
    ),
    "a permutation that is none": (
        {"batch": "data"},
        lambda x, w: axn.ppermute(x, "batch", "1"),
        ArgumentError,
        "ppermute: ['1'] is not a list of pairs\n"
        "  hint: give an int to shift along the ring, or pairs of a source and a destination: [(0, 1), (1, 0)]",
    ),
    "a sum over devices that hold other blocks": (
        axn.Mappings({"embed": None, "mlp": "model"}, {"batch": "data", "embed": "model", "mlp": "model"}),
        lambda x, w: axn.psum(axn.dot(axn.all_gather(x, "embed"), w, axis="embed"), "embed"),
        ShardingError,
        "psum: 'mlp' is split over mesh axis 'model', like 'embed': its blocks would be reduced into one\n"
        "  array has: batch=2, mlp=4\n"
        '  hint: gather it or reduce over it first; or name the mesh axis: axn.psum(x, "model")',
    ),
    "a sum over what only parameters are split by": (
        axn.Mappings({"embed": "data"}, {"batch": "data"}),
        lambda x, w: axn.psum(axn.dot(x, axn.all_gather(w, "embed"), axis="embed"), "embed"),
        ShardingError,
        "psum: only the mapping of parameters has axis 'embed', so there are no partial sums over it\n"
        "  array has: batch=2, mlp=8\n"
        "  parameters: {'embed': 'data'}\n"
        "  compute: {'batch': 'data'}\n"
        '  hint: for a sum over blocks of parameters, name the mesh axis: axn.psum(x, "data")',
    ),
    "a sum of what is the same": (
        {"batch": "data"},
        lambda x, w: axn.psum(w, "batch"),
        ShardingError,
        "psum: the array is the same on all devices of mesh axis 'data'\n"
        "  array has: embed=4, mlp=8\n"
        "  hint: it needs no sum: a gradient with respect to a replicated value is summed already. "
        'For a multiple, write x * axn.collectives.axis_size("data")',
    ),
    "a mean of what is the same on one mesh axis": (
        {"batch": "data"},
        lambda x, w: axn.pmean(x.sum("batch"), ("data", "model")),
        ShardingError,
        "pmean: the array is the same on all devices of mesh axis 'model'\n"
        "  array has: embed=4\n"
        "  hint: it needs no sum: a gradient with respect to a replicated value is summed already. "
        'For a multiple, write x * axn.collectives.axis_size("model")',
    ),
    "a scattered sum of what is the same": (
        {"batch": "data"},
        lambda x, w: axn.psum_scatter(w, "embed", over="data"),
        ShardingError,
        "psum_scatter: the array is the same on all devices of mesh axis 'data'\n"
        "  array has: embed=4, mlp=8\n"
        "  hint: it needs no sum: a gradient with respect to a replicated value is summed already. "
        'For a multiple, write x * axn.collectives.axis_size("data")',
    ),
    "a gathered whole": (
        {"batch": "data"},
        lambda x, w: axn.all_gather(w, "embed", over="data"),
        ShardingError,
        "all_gather: axis 'embed' is already whole: the array is the same on all devices of mesh axis 'data'\n"
        "  array has: embed=4, mlp=8",
    ),
    "gathered twice": (
        {"batch": "data"},
        lambda x, w: axn.all_gather(axn.all_gather(x, "batch"), "batch"),
        ShardingError,
        "all_gather: axis 'batch' is already whole: it has size 8 in the arguments\n"
        "  array has: batch=8, embed=4\n"
        '  hint: if these are blocks, name their mesh axis: axn.all_gather(..., over="data")',
    ),
    "scattered twice": (
        {"mlp": "model"},
        lambda x, w: axn.psum_scatter(w, "mlp"),
        ShardingError,
        "psum_scatter: axis 'mlp' is already split: it has size 8 in the arguments\n"
        "  array has: embed=4, mlp=4\n"
        '  hint: for the sum of blocks, axn.psum(x, "model"); to split them again, over="model"',
    ),
    "all_to_all in the wrong direction": (
        {"mlp": "model"},
        lambda x, w: axn.all_to_all(w, "mlp", "embed"),
        ShardingError,
        "all_to_all: axis 'embed' is already whole: it has size 4 in the arguments\n"
        "  array has: embed=4, mlp=4\n"
        '  hint: if these are blocks, name their mesh axis: axn.all_to_all(..., over="model")',
    ),
    "all_to_all of two mesh axes": (
        {"batch": "data", "embed": "model"},
        lambda x, w: axn.all_to_all(x, "embed", "batch"),
        ShardingError,
        "all_to_all: axis 'batch' is split over data, and 'embed' over model\n"
        "  array has: batch=2, embed=2\n"
        "  hint: name the mesh axes of the blocks with over=",
    ),
    "the outer blocks gathered first": (
        {"mlp": ("data", "model")},
        lambda x, w: axn.all_gather(w, "data"),
        ShardingError,
        "all_gather: axis 'mlp' is split over data, model: 'model' comes before 'data'\n"
        '  hint: take all by "mlp"; or model first, and then axn.all_gather(x, "mlp", over="data")',
    ),
    "the outer blocks gathered first, as over= says": (
        {"mlp": ("data", "model")},
        lambda x, w: axn.all_gather(w, "mlp", over="data"),
        ShardingError,
        "all_gather: axis 'mlp' is split over data, model: 'model' comes before 'data'\n"
        '  hint: take all by "mlp"; or model first, and then axn.all_gather(x, "mlp", over="data")',
    ),
    "the outer blocks gathered first for others": (
        {"mlp": ("data", "model")},
        lambda x, w: axn.all_to_all(w, "embed", "mlp", over="data"),
        ShardingError,
        "all_to_all: axis 'mlp' is split over data, model: 'model' comes before 'data'\n"
        '  hint: take all by "mlp"; or model first, and then axn.all_to_all(..., over="data")',
    ),
    "the inner blocks cut first": (
        {"mlp": ("data", "model")},
        lambda x, w: axn.psum_scatter(axn.all_gather(w, "mlp"), "model"),
        ShardingError,
        "psum_scatter: axis 'mlp' is split over data, model: 'data' comes before 'model'\n"
        '  hint: take all by "mlp"; or data first, and then axn.psum_scatter(x, "mlp", over="model")',
    ),
    "an unknown axis": (
        {"batch": "data"},
        lambda x, w: axn.psum(x.sum("batch"), "bacth"),
        ShardingError,
        "psum: 'bacth' is an axis of neither the arguments, the mapping nor the mesh\n"
        "  there are: batch, data, embed, mlp, model\n"
        "  hint: did you mean 'batch'?",
    ),
    "an unknown axis to look up": (
        {"batch": "data"},
        lambda x, w: axn.axis_index("mdoel"),
        ShardingError,
        "axis_index: 'mdoel' is an axis of neither the arguments, the mapping nor the mesh\n"
        "  there are: batch, data, embed, mlp, model\n"
        "  hint: did you mean 'model'?",
    ),
    "an unknown axis to gather": (
        {"batch": "data"},
        lambda x, w: axn.all_gather(x, "date"),
        AxisNotFoundError,
        "all_gather: no array has axis 'date'\n  axes of the arrays: batch, embed\n  hint: did you mean 'data'?",
    ),
    "an axis that is gone": (
        {"batch": "data"},
        lambda x, w: axn.psum_scatter({"x": x.sum("batch")}, "batch"),
        AxisNotFoundError,
        "psum_scatter: no array has axis 'batch'\n  axes of the arrays: embed",
    ),
    "an unknown axis to cut": (
        {"batch": "data"},
        lambda x, w: axn.all_to_all(x, "embd", "batch"),
        AxisNotFoundError,
        "all_to_all: no axis named 'embd'\n  array has: batch=2, embed=4\n  hint: did you mean 'embed'?",
    ),
    "plain arrays": (
        {"batch": "data"},
        lambda x, w: axn.all_gather([x.array], "data"),
        OperandError,
        "all_gather: there is no NamedArray, and plain arrays do not name the dimension to gather\n"
        "  hint: name their axes with axn.named, or use jax.lax.all_gather",
    ),
    "an uneven scattered sum": (
        {"batch": "data"},
        lambda x, w: axn.psum_scatter(x["embed", :3], "embed", over="batch"),
        AxisSizeError,
        "psum_scatter: embed=3 cannot be split evenly in 4 over mesh axis data\n  array has: batch=2, embed=3",
    ),
    "an uneven cut": (
        {"batch": "data"},
        lambda x, w: axn.all_to_all(x["embed", :3], "embed", "batch"),
        AxisSizeError,
        "all_to_all: embed=3 cannot be split evenly in 4 over mesh axis data\n  array has: batch=2, embed=3",
    ),
    "two to one device": (
        {"batch": "data"},
        lambda x, w: axn.ppermute(x, "batch", [(0, 1), (2, 1)]),
        ArgumentError,
        "ppermute: sources and destinations are 1, 1\n"
        "  mesh axis data: devices 0 to 3, each at most once on either side",
    ),
    "no such device": (
        {"batch": "data"},
        lambda x, w: axn.ppermute(x, "batch", [(0, 4)]),
        ArgumentError,
        "ppermute: sources and destinations are 4\n  mesh axis data: devices 0 to 3, each at most once on either side",
    ),
    "a sum over an axis of another size": (
        {"batch": "data"},
        lambda x, w: axn.psum(x.sum("batch"), axn.Axis("batch", 3)),
        AxisSizeError,
        "psum: axis 'batch' was given with size 3, but has size 2 here and 8 outside\n  array has: embed=4",
    ),
    "an axis of another size gathered": (
        {"batch": "data"},
        lambda x, w: axn.all_gather(x, axn.Axis("batch", 3)),
        AxisSizeError,
        "all_gather: axis 'batch' was given with size 3, but has size 2 here and 8 outside\n"
        "  array has: batch=2, embed=4",
    ),
    "an axis of another size gathered over devices": (
        {"batch": "data"},
        lambda x, w: axn.all_gather(x, axn.Axis("batch", 3), over="data"),
        AxisSizeError,
        "all_gather: axis 'batch' was given with size 3, but has size 2 here and 8 outside\n"
        "  array has: batch=2, embed=4",
    ),
    "an axis of another size cut": (
        {"batch": "data"},
        lambda x, w: axn.all_to_all(x, axn.Axis("embed", 3), "batch"),
        AxisSizeError,
        "all_to_all: axis 'embed' was given with size 3, but has size 4\n  array has: batch=2, embed=4",
    ),
    "a ring of another size": (
        {"batch": "data"},
        lambda x, w: axn.ppermute(x["batch", :1], axn.Axis("batch", 3)),
        AxisSizeError,
        "ppermute: axis 'batch' was given with size 3, but has size 1 here and 8 outside\n"
        "  array has: batch=1, embed=4",
    ),
    "a block of an axis of another size": (
        {"batch": "data"},
        lambda x, w: axn.axis_index(axn.Axis("batch", 3)),
        AxisSizeError,
        "axis_index: axis 'batch' was given with size 3, but has size 2 here and 8 outside",
    ),
    "rows over nothing": (
        {"batch": "data"},
        lambda x, w: axn.ragged_all_to_all(w, w, "embed", *[jnp.ones(4, int)] * 4),
        ShardingError,
        "ragged_all_to_all: axis 'embed' is mapped to no Manual mesh axis\n"
        "  hint: name the mesh axis to send rows over with over=",
    ),
    "rows of different things": (
        {"batch": "data"},
        lambda x, w: axn.ragged_all_to_all(x, x.rename({"embed": "mlp"}), "batch", *[jnp.ones(4, int)] * 4),
        BroadcastError,
        "ragged_all_to_all: the two arrays have different axes\n  operand has: batch, embed\n  output has: batch, mlp",
    ),
    "rows for other devices": (
        {"batch": "data"},
        lambda x, w: axn.ragged_all_to_all(x, x, "batch", *[jnp.ones(n, int) for n in (4, 3, 4, 4)]),
        ArgumentError,
        "ragged_all_to_all: send_sizes has shape (3,), but data has 4 devices",
    ),
}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_have_names(mistake, kind):
    mapping, f, error, text = mistake
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    with pytest.raises(error) as caught:
        jax.eval_shape(axn.shard_map(f, mapping, mesh, strict=False), axn.ones((B, E)), axn.ones((E, M)))
    assert str(caught.value) == text


@pytest.mark.parametrize("where", ["partial", "outside"])
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_mesh_axes_that_are_not_manual(request, kind, where):
    mesh = request.getfixturevalue(f"{kind}_mesh")
    f = lambda x: axn.psum(x, "model")  # noqa: E731
    if where == "partial":
        f = axn.shard_map(f, {"batch": "data"}, manual_axes=["data"])
    with axn.set_mesh(mesh), pytest.raises(ShardingError) as caught:
        f(axn.ones((B, E)))
    assert str(caught.value) == (
        f"psum: mesh axis 'model' is {kind.title()}, but collectives need a Manual axis, inside of shard_map\n"
        "  mesh: data=4, model=2"
    )


@pytest.mark.parametrize("over", [("data", "model"), ("model", "data")], ids=str)
def test_mesh_axes_are_gathered_and_cut_one_by_one_in_their_order(auto_mesh, over):
    outer, inner = over

    def f(x):
        whole = axn.all_gather(axn.all_gather(x, inner), "batch", over=outer)
        again = axn.psum_scatter(axn.psum_scatter(whole, outer), "batch", over=inner)
        return again / 8

    np.testing.assert_array_equal(
        axn.shard_map(f, {"batch": over}, auto_mesh)(axn.arange(B) + 1.0).array, np.arange(8) + 1
    )


def test_over_tells_what_sizes_do_not(auto_mesh):
    def f(x):
        whole = axn.all_gather(x, "batch")
        again = axn.all_gather(whole, "batch", over="data")
        assert (whole.shape, again.shape) == ({"batch": 8}, {"batch": 32})
        cut = axn.psum_scatter(again, "batch", over="batch")
        return axn.psum_scatter(cut, "batch", over="data")

    got = axn.shard_map(f, {"batch": "data"}, auto_mesh)(axn.arange(B))
    # 4 devices have 4 equal copies each: the sum is 4 times the copy, and the second sum adds up different copies
    assert got.array.tolist() == [16 * i for i in range(8)]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_an_axis_may_be_given_with_the_size_of_its_block_or_of_the_whole(auto_mesh, size):
    """Of a part of the batch, also with the sizes that the part has."""
    Given = axn.Axis("batch", size)

    def f(x):
        part = x["batch", :1]
        other = axn.all_gather(part.rename({"batch": "other"}), axn.Axis("other", size), over="data")
        if size not in (2, 8):
            return axn.all_gather(part, Given), other
        assert axn.collectives.axis_size(Given) == 4
        assert axn.psum(x.sum("batch"), Given).shape == axn.pmax(x.sum("batch"), Given).shape == {"embed": 4}
        turned = axn.all_to_all(axn.ppermute(x, Given), E, Given)
        assert axn.all_to_all(turned, Given, E, over="data").shape == {"batch": 2, "embed": 4}
        return axn.all_gather(axn.psum_scatter(axn.all_gather(x, Given), Given), Given)["batch", ::2], other

    got = jax.eval_shape(axn.shard_map(f, {"batch": "data"}, auto_mesh, out_mapping={}, check=False), axn.ones((B, E)))
    assert [y.shape for y in got] == [{"batch": 4, "embed": 4}, {"other": 4, "embed": 4}]


def test_the_size_of_an_axis_is_checked_where_it_is_whole():
    x = axn.ones((B, E))
    assert axn.all_gather(x, B).array is x.array
    with pytest.raises(AxisSizeError) as caught:
        axn.all_gather(x, axn.Axis("batch", 3))
    assert str(caught.value) == (
        "all_gather: axis 'batch' was given with size 3, but has size 8\n  array has: batch=8, embed=4"
    )


# eager gradients, where types know the mesh axes beside the Manual ones
def cut_and_joined(x):
    whole = axn.all_gather(x, "batch")
    return axn.psum_scatter(whole * whole, "batch") * x


def test_an_eager_gradient_beside_explicit_mesh_axes(explicit_mesh):
    """Each of 4 devices adds the squares of the whole, so that f(x) = 4 x^3."""
    f = axn.shard_map(cut_and_joined, {"batch": "data", "embed": "model"}, manual_axes="data")
    values = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    with axn.set_mesh(explicit_mesh):
        x = axn.shard(axn.named(values, (B, E)), {"batch": "data", "embed": "model"})
        for grad in (jax.grad, lambda f: jax.jit(jax.grad(f))):
            np.testing.assert_array_equal(grad(lambda x: f(x).sum().scalar())(x).array, 12 * values**2)


def test_axes_are_read_once(auto_mesh):
    def both(x, axes):
        tree = (x, x * 2)
        sums = axn.psum(tuple(one.sum("batch") for one in tree), axes("batch"))
        swapped = axn.all_to_all(tree, "embed", "batch", over=axes("data"))
        return sums, swapped, axn.psum_scatter(axn.pcast(sums, axes("data")), "embed", over=axes("data"))

    run = lambda axes: axn.shard_map(lambda x: both(x, axes), {"batch": "data"}, auto_mesh, check=False)  # noqa: E731
    x = axn.arange((B, E))
    given, expected = (run(axes)(x) for axes in (lambda *names: iter(names), lambda *names: names))
    jax.tree.map(np.testing.assert_array_equal, given, expected)
    np.testing.assert_array_equal(given[0][1].array, 2 * np.arange(32).reshape(8, 4).sum(0))


def test_values_can_only_become_varying():
    with pytest.raises(ArgumentError) as error:
        axn.pcast(axn.ones(B), "batch", to="reduced")
    assert str(error.value) == "pcast: to must be 'varying', not 'reduced'"


def test_without_the_check_nothing_is_known_of_values(auto_mesh):
    f = lambda x: axn.psum(x, "model")  # noqa: E731
    got = axn.shard_map(f, {"batch": "data"}, auto_mesh, check=False)(axn.arange(B))
    assert got.array.tolist() == [2 * i for i in range(8)]


def test_rows_of_any_number_lower_to_what_raw_jax_makes(auto_mesh):
    """XLA for CPU cannot run it."""
    rows = jnp.ones((32, 4))
    offsets = jnp.arange(4) * 2
    counts = jnp.full(4, 2)

    def named(operand, output, offsets, counts):
        return axn.ragged_all_to_all(operand, output, "batch", offsets, counts, offsets, counts)

    def raw(operand, output, offsets, counts):
        return lax.ragged_all_to_all(operand, output, offsets, counts, offsets, counts, axis_name="data")

    x = axn.named(rows, ("batch", "embed"))
    f = axn.shard_map(named, {"batch": "data"}, auto_mesh)
    g = jax.shard_map(raw, mesh=auto_mesh, in_specs=(P("data"), P("data"), P(), P()), out_specs=P("data"))
    lowered = [jax.jit(h).lower(x, x, offsets, counts) for h, x in ((f, x), (g, rows))]
    operations = [
        [line.split("=")[1].split("(")[0] for line in h.as_text().splitlines() if "ragged" in line] for h in lowered
    ]
    assert operations[0] == operations[1] != []
    assert jax.eval_shape(f, x, x, offsets, counts).axes == x.axes
    # the axis of the rows is brought to the front and back
    turned = jax.eval_shape(f, x.rearrange(("embed", "batch")), x, offsets, counts)
    assert turned.names == ("batch", "embed")
