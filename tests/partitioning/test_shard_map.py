"""`shard_map`: the same function without it, and hand-written `jax.shard_map`, tell what is right."""

import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import measure
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import axonym as axn
from axonym import nn
from axonym.errors import OperandError, ShardingError
from tests.partitioning.meshes import KINDS, draw, make_mesh

pytestmark = pytest.mark.sampled

B, E, M, L = axn.make_axes(batch=8, embed=4, mlp=8, layers=3)
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
DATA = {"batch": "data"}
FSDP = axn.Mappings({"embed": "data"}, {"batch": "data"})


@pytest.fixture(params=["auto", "explicit"])
def pure_mesh(request):
    chosen = make_mesh(request.param)
    with axn.set_mesh(chosen):
        yield chosen


def assert_same(got, expected):
    is_named = lambda leaf: isinstance(leaf, axn.NamedArray)  # noqa: E731
    pairs = zip(jax.tree.leaves(got, is_leaf=is_named), jax.tree.leaves(expected, is_leaf=is_named), strict=True)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        if is_named(ours):
            ours, theirs = ours.array, theirs.array
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=1e-6)


x, w = draw(B, E), draw(E, M, seed=1)


def dot(x, w):
    return axn.dot(x, w, axis="embed")


def squares(f):
    return lambda x, w: (f(x, w) ** 2).sum().scalar()


# The references are in numpy: on each of four meshes, JAX would compile a program for each operation.
X, W = np.asarray(x.array, float), np.asarray(w.array, float)
PRODUCT = axn.NamedArray(X @ W, (B, M))
SLOPES = axn.NamedArray(2 * X @ W @ W.T, (B, E)), axn.NamedArray(2 * X.T @ X @ W, (E, M))
TANH = np.tanh(X @ W)
TWICE = axn.NamedArray(2 * X, (B, E))


# values and gradients
MAPPINGS = {
    "batch and columns": {"batch": "data", "mlp": "model"},
    "two mesh axes": {"batch": ("data", "model")},
    "two mesh axes the other way": {"batch": ("model", "data")},
}


@pytest.mark.parametrize("manual", [None, ("data",), ("model",), ()], ids=str)
@pytest.mark.parametrize("mapping", MAPPINGS.values(), ids=MAPPINGS)
def test_a_mapped_function_is_the_function(mesh, mapping, manual):
    f = axn.shard_map(dot, mapping, manual_axes=manual, strict=False)
    got, gradients = jax.jit(lambda x, w: (f(x, w), jax.grad(squares(f), (0, 1))(x, w)))(x, w)
    assert_same(got, PRODUCT)
    assert_same(gradients, SLOPES)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("where", ["given", "current"])
def test_eager_calls_jit_and_named_jit(kind, where):
    mesh, mapping = make_mesh(kind), {"batch": "data", "mlp": "model"}
    f = axn.shard_map(dot, mapping, mesh if where == "given" else None)
    spec = P("data", "model")
    for call in (f, jax.jit(f), axn.named_jit(f)):
        if where == "current":
            with axn.set_mesh(mesh):
                got = call(x, w=w)
        else:
            got = call(x, w=w)
        assert_same(got, PRODUCT)
        assert got.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, spec), 2)


def test_contraction_over_devices(pure_mesh):
    """A matmul whose contracted axis is split, with each of the three collectives."""
    mapping = {"embed": "data"}
    summed = lambda x, w: axn.psum(dot(x, w), "embed")  # noqa: E731
    scattered = lambda x, w: axn.psum_scatter(dot(x, w), "mlp", over="embed")  # noqa: E731
    gathered = lambda x, w: axn.dot(axn.all_gather(x, "embed"), axn.all_gather(w, "embed"), axis="embed")  # noqa: E731
    for f, out in ((summed, None), (scattered, {"mlp": "data"})):
        g = axn.shard_map(f, mapping, out_mapping=out)
        assert_same(g(x, w), PRODUCT)
        assert_same(jax.jit(jax.grad(squares(g), (0, 1)))(x, w), SLOPES)
    everywhere = axn.shard_map(gathered, mapping, check=False)
    assert_same(everywhere(x, w), PRODUCT)


def test_gradients_taken_inside(pure_mesh):
    loss = lambda w, x: (axn.tanh(dot(x, w)) ** 2).mean().scalar()  # noqa: E731
    expected = axn.NamedArray(X.T @ (2 * TANH * (1 - TANH**2)) / TANH.size, (E, M))

    def summed(w, x):  # the gradient of a mean over devices, with respect to what all of them have
        return jax.grad(lambda w: axn.pmean(loss(w, x), "batch"))(w)

    def averaged(w, x):  # of each device alone, averaged by hand
        return axn.pmean(jax.grad(loss)(axn.pcast(w, "batch"), x), "batch")

    def scattered(w, x):  # of what is gathered, which comes back in parts
        return jax.grad(lambda w: axn.pmean(loss(axn.all_gather(w, "data"), x), "batch"))(w)

    for f, mapping in ((summed, DATA), (averaged, DATA), (scattered, FSDP)):
        assert_same(axn.shard_map(f, mapping)(w, x), expected)
        assert_same(axn.shard_map(f, mapping, manual_axes=["data"])(w, x), expected)


def test_a_step_of_fsdp_sends_what_the_hand_written_one_sends(pure_mesh):
    tree = {"up": draw(E, M, seed=1), "bias": draw(M, seed=2), "down": draw(M, E, seed=3)}
    cut = {"up": 0, "bias": None, "down": 1}

    def named(tree, x):
        def loss(tree):
            whole = axn.all_gather(tree, "data")
            hidden = axn.tanh(axn.dot(x, whole["up"], axis="embed") + whole["bias"])
            return axn.pmean(((axn.dot(hidden, whole["down"], axis="mlp") - x) ** 2).mean().scalar(), "batch")

        value, gradients = jax.value_and_grad(loss)(tree)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, tree, gradients)

    def raw(tree, x):
        def loss(tree):
            gather = lambda p, dim: p if dim is None else lax.all_gather(p, "data", axis=dim, tiled=True)  # noqa: E731
            whole = {key: gather(p, cut[key]) for key, p in tree.items()}
            hidden = jnp.tanh(x @ whole["up"] + whole["bias"])
            return lax.pmean(((hidden @ whole["down"] - x) ** 2).mean(), "data")

        value, gradients = jax.value_and_grad(loss)(tree)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, tree, gradients)

    specs = {"up": P("data"), "bias": P(), "down": P(None, "data")}
    arrays = {key: jax.device_put(p.array, specs[key]) for key, p in tree.items()}
    theirs = jax.jit(jax.shard_map(raw, in_specs=(specs, P("data")), out_specs=(P(), specs)))
    compiled = theirs.lower(arrays, jax.device_put(x.array, P("data"))).compile()
    value, updated = compiled(arrays, jax.device_put(x.array, P("data")))
    placed = {key: axn.NamedArray(arrays[key], p.names) for key, p in tree.items()}
    batch = axn.shard(x, DATA)
    ours = jax.jit(axn.shard_map(named, FSDP)).lower(placed, batch).compile()
    assert_same(ours(placed, batch), (value, {key: axn.NamedArray(updated[key], p.names) for key, p in tree.items()}))
    counted = [measure.totals(measure.collectives(step)) for step in (ours, compiled)]
    assert counted[0] == counted[1]
    assert {kind: counted[0][kind].count for kind in ("all-gather", "reduce-scatter")} == {
        "all-gather": 2,
        "reduce-scatter": 2,
    }


# what goes in and out
class Layer(eqx.Module):
    weight: axn.NamedArray
    scale: float
    missing: None = None

    @axn.shard_map(mapping=DATA)
    def __call__(self, x, *, times=1):
        return axn.tanh(dot(x, self.weight)) * self.scale * times


def test_methods_and_modules(pure_mesh):
    layer = Layer(w, 0.5)
    assert_same(layer(x, times=2), axn.NamedArray(TANH, (B, M)))
    loss = lambda layer: (layer(x, times=2) ** 2).sum().scalar()  # noqa: E731
    gradient = eqx.filter_jit(eqx.filter_grad(loss))(layer)
    assert_same(gradient.weight, axn.NamedArray(X.T @ (2 * TANH * (1 - TANH**2)), (E, M)))
    linear = nn.Linear(w, None, (E,), (M,))
    # the arrays of the function itself are laid out too: each device has its columns
    f = axn.shard_map(linear, {"batch": "data", "mlp": "model"})
    assert_same(f(x), PRODUCT)
    assert f(x).sharding.is_equivalent_to(jax.sharding.NamedSharding(pure_mesh, P("data", "model")), 2)
    assert f.__wrapped__ is linear
    assert_same(axn.shard_map(linear.__call__, {"batch": "data", "mlp": "model"})(x), PRODUCT)


def test_any_tree_goes_in_and_comes_out(pure_mesh):
    seen = []

    @axn.shard_map(mapping=DATA, in_specs=(None, {"raw": P("data"), "whole": None}), out_specs=[None, P("data"), None])
    def f(x, arrays, *, flag, options):
        seen.append((x.shape, arrays["raw"].shape, arrays["whole"].shape, flag, options))
        return [{"x": x, "none": None, "n": 3, "text": "a", "empty": ()}, arrays["raw"] + 1, arrays["whole"]]

    arrays = {"raw": np.arange(8, dtype=np.float32), "whole": np.ones((2, 3), np.float32)}
    (tree, raw, whole) = f(x, arrays, flag=True, options=("a", None, 2))
    assert_same((tree["x"], raw, whole), (x, arrays["raw"] + 1, arrays["whole"]))
    assert {key: value for key, value in tree.items() if key != "x"} == {"none": None, "n": 3, "text": "a", "empty": ()}
    assert seen == [({"batch": 2, "embed": 4}, (2,), (2, 3), True, ("a", None, 2))]
    assert axn.shard_map(lambda x: None, DATA)(x) is None
    assert axn.shard_map(lambda x: (), DATA)(x) == ()
    assert axn.shard_map(lambda: axn.pcast(axn.ones(B), "batch"), DATA)().array.tolist() == [1.0] * 32


def test_anonymous_dimensions_are_not_split(pure_mesh):
    y = draw(axn.Axis("three", 3), B).untag("three")
    doubled = axn.shard_map(lambda y: 2 * y, DATA)(y)
    assert (doubled.names, doubled.array.tolist()) == (("batch",), (2 * np.asarray(y.array)).tolist())


def test_results_have_a_layout_of_their_own(pure_mesh):
    @axn.shard_map(mapping=DATA, out_mapping={"embed": "data"})
    def turned(x):
        return axn.all_to_all(x, split="embed", concat="batch")

    got = turned(x)
    assert_same(got, x)
    assert got.sharding.is_equivalent_to(jax.sharding.NamedSharding(pure_mesh, P(None, "data")), 2)

    f = axn.shard_map(lambda w, x: (w, x), FSDP)
    parameter, data = f(w, x)
    assert_same((parameter, data), (w, x))
    assert parameter.sharding.is_equivalent_to(jax.sharding.NamedSharding(pure_mesh, P("data")), 2)
    assert data.sharding.is_equivalent_to(jax.sharding.NamedSharding(pure_mesh, P("data")), 2)


def test_donated_arguments_are_given_away(pure_mesh):
    given = axn.shard(draw(B, E), DATA)
    got = axn.named_jit(axn.shard_map(lambda x: x * 2, DATA), donate_args=(True,))(given)
    assert given.array.is_deleted()
    assert_same(got, TWICE)


# other transformations
def test_maps_and_loops_around(mesh):
    f = axn.shard_map(dot, {"batch": "data", "mlp": "model"})
    several = draw(L, B, E, seed=4)
    expected = axn.NamedArray(np.asarray(several.array) @ np.asarray(w.array), (L, B, M))
    assert_same(axn.vmap(f, "layers")(several, w), expected)
    assert_same(jax.vmap(f, (0, None))(several.untag("layers"), w).tag("layers"), expected)
    assert_same(axn.scan(lambda c, x: (c, f(x, w)), "layers")(0.0, several)[1], expected)
    assert_same(lax.scan(lambda c, x: (c, f(x, w)), 0.0, several.untag("layers"))[1].tag("layers"), expected)


@pytest.mark.parametrize(
    "mapping", [{"embed": "model"}, {"batch": "data"}, {"batch": "data", "embed": "model"}], ids=str
)
@pytest.mark.parametrize("typed", [False, True])
def test_a_map_that_has_a_mesh_axis_for_itself(pure_mesh, mapping, typed):
    """The mapped axis lies over `data`: inside, that mesh axis splits nothing else."""
    several = draw(L.resize(4), B, E, seed=4)
    several = axn.shard(several, {"layers": "data"}) if typed else several
    f = axn.shard_map(lambda x: axn.psum(axn.tanh(x).sum(), ("batch", "embed")), mapping)

    def total(several, f):
        with axn.axis_mapping({"layers": "data"}):
            return axn.vmap(f, "layers")(several)

    values = np.tanh(np.asarray(several.array, float))
    sums = values.sum((1, 2))
    assert_same(total(several, f), axn.NamedArray(sums, several.names[:1]))
    slope = axn.NamedArray(2 * sums[:, None, None] * (1 - values**2), several.names)
    assert_same(jax.jit(jax.grad(lambda x: (total(x, f) ** 2).sum().scalar()))(several), slope)


def test_maps_and_loops_inside(pure_mesh):
    def f(x, w):
        rows = axn.vmap(lambda row: axn.tanh(dot(row, w)), "batch")(x)
        start = axn.pcast(axn.zeros(M), "batch")
        total = axn.fold(lambda total, row: total + row, "batch")(start, rows)
        steps = axn.scan(lambda n, row: (n + 1, row.sum()), "batch")(0, rows)[1]
        largest = axn.vmap(lambda row: axn.pmax(row.max(), "data"), "batch")(rows)
        return axn.psum(total, "batch"), steps, axn.pmax(largest.max("batch"), "batch")

    expected = (TANH.sum(0), M), (TANH.sum(1), B), (TANH.max(), ())
    assert_same(axn.shard_map(f, DATA)(x, w), tuple(axn.NamedArray(*each) for each in expected))


class Block(eqx.Module):
    weight: axn.NamedArray
    inner: bool = eqx.field(static=True)

    @staticmethod
    def init(seed, inner):
        weight = draw(E, E.alias("embed.out"), seed=0) * (0.1 + axn.named(seed, ()))
        return Block(weight, inner)

    def __call__(self, x):
        if not self.inner:
            return step(self.weight, x)
        return axn.shard_map(lambda w, x: step(axn.all_gather(w, "data"), x), FSDP)(self.weight, x)


def step(weight, x):
    return axn.tanh(dot(x, weight).rename({"embed.out": "embed"})) + x


@pytest.mark.parametrize("checkpointing", [False, True])
def test_stacked_layers_inside_and_outside(pure_mesh, checkpointing):
    make = lambda inner: nn.Stacked.init(L, Block, gradient_checkpointing=checkpointing)(jnp.arange(3.0), inner)  # noqa: E731
    loss = lambda layers, x: (layers.fold(x) ** 2).mean().scalar()  # noqa: E731
    expected = jax.jit(jax.value_and_grad(loss))(make(False), x)

    def inside(layers, x):
        return jax.value_and_grad(lambda layers: axn.pmean(loss(axn.all_gather(layers, "data"), x), "batch"))(layers)

    value, gradients = axn.shard_map(inside, FSDP)(make(False), x)
    assert_same((value, gradients.stacked.weight), (expected[0], expected[1].stacked.weight))
    value, gradients = jax.jit(jax.value_and_grad(loss))(make(True), x)
    assert_same((value, gradients.stacked.weight), (expected[0], expected[1].stacked.weight))


def test_checkpointed_functions(pure_mesh):
    f = axn.shard_map(lambda w, x: axn.tanh(dot(x, axn.all_gather(w, "data"))), FSDP)
    expected = axn.NamedArray(X.T @ (2 * TANH * (1 - TANH**2)), (E, M))
    for g in (jax.checkpoint(f), axn.shard_map(jax.checkpoint(f._f), FSDP)):
        assert_same(jax.jit(jax.grad(lambda w, g=g: squares(g)(w, x)))(w), expected)


def test_dropout_with_a_key_for_each_block(pure_mesh):
    drop, key = nn.Dropout(0.5), jax.random.key(0)
    ones = axn.ones((B, axn.Axis("embed", 64)))
    f = axn.shard_map(lambda x, key: drop(x, key=axn.fold_key(key, "batch")), DATA)
    parts = [
        drop(axn.ones((B.resize(2), ones.resolve_axis("embed"))), key=jax.random.fold_in(key, i)) for i in range(4)
    ]
    assert_same(f(ones, key), axn.concatenate(B, parts))


# partial manual
def test_other_mesh_axes_stay_what_they_are(mesh):
    def f(x, w):
        assert (x.shape, w.shape) == ({"batch": 2, "embed": 4}, {"embed": 4, "mlp": 8})
        y = axn.auto_sharded(axn.tanh(dot(x, w)))
        types = dict(zip(mesh.axis_names, jax.typeof(y.array).sharding.mesh.axis_types, strict=True))
        assert types == {"data": AxisType.Manual, "model": mesh.axis_types[1]}
        if mesh.axis_types[1] is EXPLICIT:
            assert jax.typeof(y.array).sharding.spec == P(None, "model")
        return y, axn.psum(y.sum("batch"), "batch")

    g = jax.jit(axn.shard_map(f, {"batch": "data", "mlp": "model"}, manual_axes=["data"]))
    y, total = g(x, w)
    assert_same((y, total), (axn.NamedArray(TANH, (B, M)), axn.NamedArray(TANH.sum(0), M)))
    if mesh.axis_types == (AUTO, EXPLICIT) and jax.__version__.startswith("0.10."):
        return  # this JAX has the right type inside of jit, and then returns the array without its Explicit axes
    assert y.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P("data", "model")), 2)


def test_no_tracer_outlives_its_trace(pure_mesh):
    f = axn.shard_map(lambda x: (axn.psum(x.sum("batch"), "batch"), {"two": [2 * x], "none": None}), DATA)
    total = lambda x: (f(x)[0].sum() + f(x)[1]["two"][0].sum()).scalar()  # noqa: E731
    with jax.checking_leaks():
        assert_same(f(x), (axn.NamedArray(X.sum(0), E), {"two": [TWICE], "none": None}))
        assert_same(jax.jit(jax.grad(total))(x), axn.NamedArray(np.full(X.shape, 3.0), x.names))


def test_one_map_inside_of_another(pure_mesh):
    inner = lambda y: axn.psum(y.sum("embed"), "embed")  # noqa: E731
    outer = lambda x: axn.shard_map(inner, {"embed": "model"}, manual_axes="model")(x)  # noqa: E731
    rows = axn.NamedArray(X.sum(1), B)
    assert_same(axn.shard_map(outer, DATA, manual_axes="data")(x), rows)
    given = lambda x: axn.shard_map(inner, {"embed": "model"}, pure_mesh, manual_axes="model")(x)  # noqa: E731
    assert_same(axn.shard_map(given, DATA, pure_mesh, manual_axes="data")(x), rows)
    # where nothing is left to map over, the function sees the blocks as they are
    again = lambda x: axn.shard_map(lambda y: axn.psum(y.sum(), "batch"), DATA)(x)  # noqa: E731
    assert_same(axn.shard_map(again, DATA)(x), axn.NamedArray(X.sum(), ()))


def test_a_pod_from_a_laptop():
    pod = AbstractMesh((64, 8), ("data", "model"), (AUTO, AUTO))
    big = axn.NamedArray(jax.ShapeDtypeStruct((512, 16), jnp.float32), ("batch", "embed"))
    shapes = []
    f = axn.shard_map(lambda x: (shapes.append(x.shape), x * 2)[1], {"batch": "data", "embed": "model"}, pod)
    assert jax.eval_shape(f, big).shape == big.shape
    with axn.set_mesh(pod):
        g = axn.shard_map(f.__wrapped__, {"batch": ("model", "data")})
        assert jax.eval_shape(g, big).shape == big.shape
    assert shapes == [{"batch": 8, "embed": 2}, {"batch": 1, "embed": 16}]


# one function, many calls
def test_a_function_is_traced_once_for_what_is_the_same(pure_mesh):
    traced = []
    f = axn.shard_map(lambda x: (traced.append(axn.current_mapping()), x * 2)[1])
    # made on the mesh, as JAX traces again for arrays without one
    x, y, wide = draw(B, E), draw(B, E, seed=5), draw(B, axn.Axis("embed", 8))
    with axn.axis_mapping(DATA):
        for each in (x, y, wide):
            assert_same(f(each), axn.NamedArray(2 * np.asarray(each.array), each.names))
        assert len(traced) == 2
    with axn.axis_mapping({"embed": "model"}):
        first = f(x)
    assert (len(traced), first.sharding.shard_shape((8, 4))) == (3, (8, 2))
    with axn.axis_mapping(DATA):
        assert f(x).sharding.shard_shape((8, 4)) == (2, 4)
        for each in (x, y):  # an eager gradient is one of the same program
            slope = jax.grad(lambda x: f(x).sum().scalar())(each)
            assert_same(slope, axn.NamedArray(np.full(X.shape, 2.0), x.names))
    assert len(traced) == 3
    assert [dict(mapping) for mapping in traced] == [{"batch": ("data",)}] * 2 + [{"embed": ("model",)}]


def test_the_same_function_on_other_meshes():
    f = axn.shard_map(lambda x: axn.psum(x.sum("batch"), "batch"), DATA)
    for ways in (8, 4, 2):
        mesh = jax.make_mesh((ways,), ("data",), axis_types=(AUTO,), devices=jax.devices()[:ways])
        with axn.set_mesh(mesh):
            assert_same(f(x), axn.NamedArray(X.sum(0), E))


def test_jax_reads_the_layouts_of_results_after_tracing(pure_mesh):
    # What a result is called is known only then, so `out_specs` is a list that the function fills.
    out_specs = []

    def f(x):
        out_specs[:] = [P("data"), P()]
        return [x, lax.psum(x, "data")]

    x = jax.device_put(jnp.ones(8), jax.sharding.NamedSharding(pure_mesh, P("data")))
    rows, total = jax.jit(jax.shard_map(f, in_specs=P("data"), out_specs=out_specs, axis_names={"data"}))(x)
    assert (rows.shape, total.shape) == ((8,), (2,))


def test_threads_have_their_own_mapping(pure_mesh):
    f = axn.shard_map(lambda x: x * axn.collectives.axis_size("batch"))
    got, ones = {}, axn.NamedArray(np.ones(X.shape, np.float32), (B, E))

    def work(i):
        mapping = [{"batch": "data"}, {"batch": "model"}, {"embed": "data"}][i % 3]
        with axn.set_mesh(pure_mesh), axn.axis_mapping(mapping):
            got[i] = np.asarray(f(ones).array).max()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert got == {i: [4, 2, 1][i % 3] for i in range(6)}


# mistakes
ON = "  mesh: data=4, model=2"
MISTAKES = {
    "an unknown mesh axis": (
        lambda: axn.shard_map(lambda x: x, {"batch": "date"}),
        ShardingError,
        "shard_map: axis 'batch' is mapped to 'date', which is not an axis of the mesh\n"
        f"  array has: batch=8, embed=4\n  mapping: {{'batch': 'date'}}\n{ON}\n  hint: did you mean 'data'?",
    ),
    "an unknown name": (
        lambda: axn.shard_map(lambda x: x, {"batchh": "data"}),
        ShardingError,
        "shard_map: the mapping has axis 'batchh', which no array here has\n"
        "  mapping: {'batchh': 'data'}\n  axes of the arrays: batch, embed\n  hint: did you mean 'batch'?",
    ),
    "an unknown name of results": (
        lambda: axn.shard_map(lambda x: x, DATA, out_mapping={"batch": "data", "emebd": "model"}),
        ShardingError,
        "shard_map: the mapping has axis 'emebd', which no array here has\n"
        "  mapping: {'batch': 'data', 'emebd': 'model'}\n  axes of the arrays: batch, embed\n"
        "  hint: did you mean 'embed'?",
    ),
    "one mesh axis twice": (
        lambda: axn.shard_map(lambda x: x, {"batch": "data", "embed": "data"}),
        ShardingError,
        "shard_map: mesh axis 'data' would shard both 'batch' and 'embed' of one array\n"
        f"  array has: batch=8, embed=4\n  mapping: {{'batch': 'data', 'embed': 'data'}}\n{ON}\n"
        "  hint: map one of the two elsewhere, or rename it on this array: x.rename({'embed': ...})",
    ),
    "a size that does not divide": (
        lambda: axn.shard_map(lambda x: x, {"embed": ("data", "model")}),
        ShardingError,
        "shard_map: embed=4 cannot be split evenly in 8 over mesh axis data, model\n"
        f"  array has: batch=8, embed=4\n  mapping: {{'embed': ('data', 'model')}}\n{ON}\n"
        "  hint: use a multiple of 8, as pad_axes and pad_batch do, or map 'embed' to None",
    ),
    "an unknown manual axis": (
        lambda: axn.shard_map(lambda x: x, DATA, manual_axes=["date"]),
        ShardingError,
        f"shard_map: manual axis 'date' is not an axis of the mesh\n{ON}\n  hint: did you mean 'data'?",
    ),
    "a result that varies": (
        lambda: axn.shard_map(lambda x: {"loss": x.sum("batch")}, DATA),
        ShardingError,
        "shard_map: the result at ['loss'] differs between the devices of mesh axis 'data', but is not split over it\n"
        f"  it has: embed=4\n  mapping of the results: {{'batch': 'data'}}\n{ON}\n"
        '  hint: axn.psum(x, "batch") or axn.pmean for a part of a sum, axn.all_gather(x, "batch", to="invarying") '
        "for a block; or map an axis of the result to 'data' with out_mapping",
    ),
    "a plain result that varies": (
        lambda: axn.shard_map(lambda x: x.sum().array, {"batch": "data", "embed": "model"}),
        ShardingError,
        "shard_map: the result differs between the devices of mesh axis 'data', but is not split over it\n"
        f"  it has: no axes\n  mapping of the results: {{'batch': 'data', 'embed': 'model'}}\n{ON}\n"
        '  hint: axn.psum(x, "batch") or axn.pmean for a part of a sum, axn.all_gather(x, "batch", to="invarying") '
        "for a block; or map an axis of the result to 'data' with out_mapping",
    ),
    "a whole result": (
        lambda: axn.shard_map(lambda x: axn.all_gather(x, "batch"), DATA),
        ShardingError,
        "shard_map: the result has axis 'batch' whole, but its layout splits it over data\n"
        f"  it has: batch=8, embed=4\n  mapping of the results: {{'batch': 'data'}}\n{ON}\n"
        "  assembled, it would have 4 times 8\n"
        '  hint: axn.psum_scatter(x, "batch") for a part of a sum, x["batch", axn.dblock(axn.axis_index("data"), 2)] '
        'for a whole; or pass out_mapping={"batch": None, ...}',
    ),
    "a new size that is the same everywhere": (
        lambda: axn.shard_map(lambda x: axn.ones(E.resize(3)), {"embed": "model"}),
        ShardingError,
        "shard_map: the result is the same on all devices of mesh axis 'model', but split over it by 'embed'\n"
        f"  it has: embed=3\n  mapping of the results: {{'embed': 'model'}}\n{ON}\n"
        "  assembled, it would have 2 times 3\n"
        '  hint: if it is a block, axn.pcast(x, "model"); or pass out_mapping={"embed": None, ...}',
    ),
    "an axis made inside": (
        lambda: axn.shard_map(lambda x: axn.ones(M) * axn.psum(x.sum(), "batch"), {"batch": "data", "mlp": "model"}),
        ShardingError,
        "shard_map: the result is the same on all devices of mesh axis 'model', but split over it by 'mlp'\n"
        f"  it has: mlp=8\n  mapping of the results: {{'batch': 'data', 'mlp': 'model'}}\n{ON}\n"
        "  assembled, it would have 2 times 8\n"
        '  hint: if it is a block, axn.pcast(x, "model"); or pass out_mapping={"mlp": None, ...}',
    ),
    "specs of another form": (
        lambda: axn.shard_map(lambda x: x, DATA, in_specs=(None, P("data"))),
        OperandError,
        "shard_map: in_specs does not match the structure of its tree\n"
        "  hint: give one PartitionSpec or None for each part of the tree, in the same tuples, lists and dicts",
    ),
    "a string for a spec": (
        lambda: axn.shard_map(lambda x: x.array, DATA, out_specs="data"),
        OperandError,
        "shard_map: out_specs takes a PartitionSpec for a plain array, and None elsewhere; got 'data'",
    ),
    "a spec for a named array": (
        lambda: axn.shard_map(lambda x: x, DATA, in_specs=(P("model"),)),
        OperandError,
        "shard_map: in_specs takes a PartitionSpec for a plain array, and None elsewhere; "
        "got a NamedArray, which the mapping lays out",
    ),
    "an unknown mesh axis in a spec": (
        lambda: axn.shard_map(lambda x: x.array, DATA, out_specs=P("date")),
        ShardingError,
        "shard_map: out_specs has P('date',), but 'date' is not an axis of the mesh\n"
        f"  array has: shape (2, 4)\n{ON}\n  hint: did you mean 'data'?",
    ),
    "a mesh axis twice in a spec": (
        lambda: axn.shard_map(lambda x: x.array, DATA, out_specs=P("data", "data")),
        ShardingError,
        "shard_map: out_specs has P('data', 'data'), but mesh axis 'data' is used twice\n"
        f"  array has: shape (2, 4)\n{ON}",
    ),
    "a spec that is too long": (
        lambda: axn.shard_map(lambda x: x.array, DATA, out_specs=P("data", None, None)),
        ShardingError,
        "shard_map: out_specs has P('data', None, None), but it is for at least 3 dimensions\n"
        f"  array has: shape (2, 4)\n{ON}",
    ),
    "no mapping": (
        lambda: axn.shard_map(lambda x: x),
        ShardingError,
        "shard_map: there is no axis mapping\n  hint: pass one, or use axn.axis_mapping",
    ),
    "another mesh": (
        lambda: axn.shard_map(lambda x: x, DATA, jax.make_mesh((8,), ("data",), axis_types=(AUTO,))),
        ShardingError,
        "shard_map: the given mesh is not the current one\n"
        "  given: data=8 (Auto)\n  current: data=4, model=2 (Auto, Auto)\n"
        "  hint: leave the mesh out, or call outside of axn.set_mesh and of other shard_maps",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_have_names(auto_mesh, mistake):
    make, error, text = mistake
    with axn.set_mesh(auto_mesh):
        for call in (make(), jax.jit(make())):
            with pytest.raises(error) as caught:
                call(x)
            assert str(caught.value) == text


def test_mistakes_without_a_mesh(auto_mesh):
    with pytest.raises(ShardingError) as caught:
        axn.shard_map(lambda x: x, DATA)(x)
    assert str(caught.value) == (
        "shard_map: there is no mesh\n  mapping: {'batch': 'data'}\n"
        '  hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))'
    )
    with pytest.raises(OperandError) as caught:
        axn.shard_map(DATA, auto_mesh)
    assert str(caught.value) == (
        "shard_map: the first argument is the function; got dict\n  hint: as a decorator: @axn.shard_map(mapping={...})"
    )
    f = axn.shard_map(lambda x, raw: x, DATA, auto_mesh, in_specs=(None, P("data")))
    with pytest.raises(ShardingError) as caught:
        f(x, jnp.ones(6))
    assert str(caught.value) == (
        "shard_map: in_specs has P('data',), but 6 cannot be split evenly in 4 over mesh axis data\n"
        f"  array has: shape (6,)\n{ON}"
    )


def test_what_is_not_strict_or_not_checked(auto_mesh):
    with axn.set_mesh(auto_mesh):
        assert_same(axn.shard_map(lambda x: x, {"batch": "data", "heads": "model"}, strict=False)(x), x)
        whole = axn.shard_map(lambda x: axn.all_gather(x, "batch"), DATA, check=False)(x)
        assert whole.shape == {"batch": 32, "embed": 4}
        # two arrays with one name and other sizes: the block of one is as long as the whole of the other
        long = draw(B.resize(32))
        assert_same(axn.shard_map(lambda x, y: (x, y), DATA)(x, long), (x, long))


def test_arguments_decide_between_alternatives(auto_mesh, explicit_mesh):
    first = axn.partitioning.first_fitting
    several = {"batch": first("data", "model", None), "embed": first("data", None)}
    x = np.arange(18, dtype=np.float32).reshape(6, 3)

    def total(x):
        assert x.axis_size("batch") == 3
        return axn.psum(x.sum("batch"), "batch")

    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            summed = axn.shard_map(total, several)(axn.named(x, ("batch", "embed")))
        np.testing.assert_allclose(summed.array, x.sum(0))
    with axn.set_mesh(auto_mesh), pytest.raises(ShardingError) as caught:
        axn.shard_map(lambda x, y: x, several)(axn.ones({"batch": 6}), {"y": axn.ones({"batch.key": 8})})
    assert str(caught.value) == (
        "shard_map: batch=6 and batch.key=8 need different mesh axes of first_fitting('data', 'model', None)\n"
        "  mapping: {'batch': first_fitting('data', 'model', None), 'embed': first_fitting('data', None)}\n"
        "  hint: devices know only parts of axes inside: give one entry"
    )


def test_what_is_written_over_all_of_a_block_still_varies(auto_mesh):
    """It is the block of a device, whatever the values: a sum over devices counts all of them."""

    def total(x):
        return axn.psum(x.at["embed", :].set(1.0).sum(), "batch")

    assert axn.shard_map(total, {"batch": "data"}, auto_mesh, out_mapping={})(x).item() == 32
