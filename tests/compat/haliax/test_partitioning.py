"""Layouts by mapping: what goes where, on each kind of mesh, and what happens without one."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import axonym.compat.haliax  # noqa: F401 # isort: skip
import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from haliax import partitioning
from haliax.partitioning import (
    ResourceAxis,
    current_thread_local_mapping,
    fsdp,
    infer_resource_partitions,
    mesh_context,
    named_jit,
    named_pjit,
    physical_axis_name,
    physical_axis_size,
    pspec_for,
    pspec_for_axis,
    round_axis_for_partitioning,
    set_mesh,
    shard_with_axis_mapping,
    sharding_for_axis,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

Batch, Embed, Mlp = hax.make_axes(batch=8, embed=4, mlp=16)
MAPPING = {"batch": "data", "mlp": "model", "nobody has this": "data"}
PARAMETERS = {"embed": "data", "mlp": "model"}
LEGACY = pytest.mark.filterwarnings("ignore:.*context manager has been deprecated:DeprecationWarning")


@pytest.fixture
def legacy() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


@pytest.fixture(params=["auto", "explicit", "legacy"])
def entered(request, auto_mesh, explicit_mesh, legacy) -> Callable[[], AbstractContextManager]:
    """Enter a mesh of any kind, in the way that goes with it."""
    return {
        "auto": lambda: set_mesh(auto_mesh),
        "explicit": lambda: mesh_context(explicit_mesh),
        "legacy": lambda: legacy,
    }[request.param]


def spec(x: hax.NamedArray) -> tuple:
    return tuple(x.array.sharding.spec)


def values(*axes: hax.Axis) -> hax.NamedArray:
    shape = tuple(axis.size for axis in axes)
    return hax.named(np.arange(np.prod(shape), dtype=np.float32).reshape(shape), axes)


# the context
def test_a_mapping_is_current_inside_of_its_context_and_in_its_thread():
    assert current_thread_local_mapping() is None
    with hax.axis_mapping({"batch": "data"}, mlp=("data", "model")):
        assert current_thread_local_mapping() == {"batch": "data", "mlp": ("data", "model")}
        with hax.axis_mapping({"embed": "model"}):
            assert current_thread_local_mapping() == {"embed": "model"}
        with hax.axis_mapping({"batch": "model"}, merge=True):
            assert current_thread_local_mapping() == {"batch": "model", "mlp": ("data", "model")}
        seen = []
        thread = threading.Thread(target=lambda: seen.append(current_thread_local_mapping()))
        thread.start()
        thread.join()
        assert seen == [None]
    assert current_thread_local_mapping() is None


def test_a_mapping_is_a_decorator_too():
    @hax.axis_mapping({"batch": "data"})
    def inside():
        return current_thread_local_mapping()

    assert inside() == {"batch": "data"}


def test_constants():
    assert (ResourceAxis.MODEL, ResourceAxis.DATA, ResourceAxis.REPLICA) == ("model", "data", "replica")
    assert named_pjit is hax.named_pjit
    assert named_jit is hax.named_jit


# where axes go
@LEGACY
def test_axes_go_where_the_mapping_says(entered):
    mapping = {"batch": "data", "embed": ("data", "model")}
    with entered(), hax.axis_mapping(mapping):
        assert physical_axis_name(Batch) == physical_axis_name("batch") == "data"
        assert tuple(physical_axis_name("embed")) == ("data", "model")
        assert physical_axis_name("mlp") is None
        assert (physical_axis_size(Batch), physical_axis_size("embed"), physical_axis_size("mlp")) == (4, 8, None)
        assert physical_axis_size("mlp", {"mlp": "model"}) == 2
        assert pspec_for_axis(Batch) == P("data")
        assert pspec_for_axis((Mlp, "embed")) == P(None, ("data", "model"))
        assert pspec_for_axis({"batch": 8, "mlp": None}) == P("data", None)
        sharding = sharding_for_axis((Batch, Mlp))
        assert isinstance(sharding, NamedSharding)
        assert sharding.spec == P("data", None)
        assert round_axis_for_partitioning(hax.Axis("batch", 9)) == hax.Axis("batch", 12)
        assert round_axis_for_partitioning(hax.Axis("batch", 8)) == Batch
        assert round_axis_for_partitioning(hax.Axis("Z", 9), {"Z": "data"}) == hax.Axis("Z", 12)
        assert round_axis_for_partitioning(hax.Axis("mlp", 9)) == hax.Axis("mlp", 9)
        with pytest.raises(ValueError, match="'rows' is not an axis of the mesh"):
            physical_axis_size("batch", {"batch": "rows"})


def test_without_mapping_or_mesh_axes_go_nowhere():
    assert physical_axis_name(Batch) is None
    assert pspec_for_axis((Batch, Embed)) == P(None, None)
    assert round_axis_for_partitioning(Batch) == Batch
    for fn in (physical_axis_size, round_axis_for_partitioning, sharding_for_axis):
        with pytest.raises(ValueError, match=f"{fn.__name__}: No mesh found"):
            fn(Batch, {"batch": "data"})


class Table(eqx.Module):
    weight: hax.NamedArray
    raw: jax.Array
    told: jax.Array = hax.field(axis_names=("embed", "mlp"))
    name: str = eqx.field(static=True, default="table")
    act: Callable = jnp.tanh


def table() -> Table:
    return Table(values(Embed, Mlp), jnp.ones((8, 3)), jnp.ones((4, 16)))


def test_specs_of_a_tree():
    tree = [table(), 3.0, None, jnp.float32(1), "text"]
    shapes = [eqx.filter_eval_shape(table), 3.0, None, jax.ShapeDtypeStruct((), jnp.float32), "text"]
    wanted = [P("data", "model"), P(None), P("data", "model"), None, P(), None, P(), None]
    is_spec = lambda x: x is None or isinstance(x, P)  # noqa: E731

    for keep, given in ((False, tree), (True, shapes)):
        specs = pspec_for(given, PARAMETERS, keep)
        own = specs[0]
        assert [own.weight, own.raw, own.told, own.act, *specs[1:]] == wanted
    kept = pspec_for(tree, PARAMETERS)
    assert [kept[0].weight, kept[0].raw, kept[0].told] == [None, P(None), None]
    with hax.axis_mapping({"embed": "model"}):
        assert pspec_for(shapes[0]).told == P("model", None)
    assert all(map(is_spec, jax.tree.leaves(specs, is_leaf=is_spec)))
    batched = jax.eval_shape(jax.vmap(lambda row: hax.named(row, "embed")), jnp.ones((3, 4)))
    assert pspec_for(batched, PARAMETERS) == P(None, "data")  # a dimension without a name
    with pytest.raises(ValueError, match="pspec_for: there is no axis mapping"):
        pspec_for(tree)


@LEGACY
def test_shardings_of_a_tree(entered):
    with entered():
        made = infer_resource_partitions(table(), PARAMETERS, preserve_existing_shardings=False)
        assert (made.weight.spec, made.raw.spec, made.told.spec) == (P("data", "model"), P(None), P("data", "model"))
        assert made.act is None
        own = table()
        kept = infer_resource_partitions(own, PARAMETERS)
        assert kept.weight == own.weight.array.sharding
        shapes = infer_resource_partitions(eqx.filter_eval_shape(table), PARAMETERS)
        assert dict(shapes.weight.mesh.shape) == {"data": 4, "model": 2}


def test_shardings_need_a_mesh(auto_mesh):
    assert infer_resource_partitions(values(Embed), PARAMETERS, False, auto_mesh).spec == P("data")
    with pytest.raises(ValueError, match="No mesh found"):
        infer_resource_partitions(values(Embed), PARAMETERS, False)


# laying out
@LEGACY
def test_shard_moves_named_arrays_and_nothing_else(entered):
    raw = jnp.ones(8)
    tree = {"x": values(Batch, Embed), "raw": raw, "text": "text", "none": None}
    with entered():
        out = hax.shard(tree, MAPPING)
        assert shard_with_axis_mapping(tree["x"], {"embed": "model"}).array.sharding.spec == P(None, "model")
        assert type(out["x"]) is hax.NamedArray
        assert spec(out["x"]) == ("data", None)
        assert (out["raw"] is raw, out["text"], out["none"]) == (True, "text", None)
        np.testing.assert_array_equal(out["x"].array, tree["x"].array)
        with hax.axis_mapping({"embed": "data"}):
            assert spec(hax.shard(tree["x"])) == spec(hax.auto_sharded(tree["x"])) == (None, "data")
        assert hax.auto_sharded(tree) is tree
        compiled = jax.jit(lambda x: hax.shard(x * 2, MAPPING))(tree["x"])
        assert spec(compiled)[0] == "data"  # JAX leaves out None at the end

        def inside(x):
            with hax.axis_mapping({"embed": "data"}):
                return hax.auto_sharded(x * 2)

        assert spec(jax.jit(inside)(tree["x"])) == (None, "data")


def test_shard_takes_a_mesh(auto_mesh):
    x = values(Batch, Embed)
    assert spec(hax.shard(x, MAPPING, auto_mesh)) == ("data", None)
    with hax.axis_mapping({"batch": "model"}):
        assert spec(hax.auto_sharded(x, mesh=auto_mesh)) == ("model", None)
    with hax.axis_mapping(MAPPING):
        assert hax.auto_sharded(x) is x


@LEGACY
def test_parts_and_expressions_are_laid_out_by_the_mapping(entered):
    x = values(hax.Axis("pair", 2), Batch)
    with entered(), hax.axis_mapping({"batch": "data", "half": "model"}):
        assert [spec(part) for part in x.unbind("pair")] == [("data",), ("data",)]
        split = x.rearrange("pair (half batch) -> batch half pair", half=2)
        assert spec(split)[:2] == ("data", "model")


def test_shard_without_mapping_or_mesh_warns_outside_of_jit_only(auto_mesh):
    x = values(Batch)
    with pytest.warns(RuntimeWarning, match="no mesh") as caught:
        assert hax.shard(x, MAPPING) is x
    assert caught[0].filename == __file__
    with set_mesh(auto_mesh), pytest.warns(RuntimeWarning, match="no axis mapping"):
        assert hax.shard(x) is x
    jax.make_jaxpr(lambda x: hax.shard(hax.shard(x), MAPPING))(x)


def test_layouts_that_cannot_be_are_errors(auto_mesh):
    with set_mesh(auto_mesh):
        with pytest.raises(ValueError, match="'rows', which is not an axis of the mesh"):
            hax.shard(values(Batch), {"batch": "rows"})
        with pytest.raises(ValueError, match="mesh axis 'data' would shard both 'batch' and 'embed'"):
            hax.shard(values(Batch, Embed), {"batch": "data", "embed": "data"})
        with pytest.raises(ValueError, match="x=3 cannot be split evenly in 4"):
            hax.shard(values(hax.Axis("x", 3)), {"x": "data"})


UNEVEN = hax.Axis("batch", 6)


@pytest.mark.parametrize("enter", [set_mesh, lambda mesh: mesh], ids=["set_mesh", "with mesh"])
@LEGACY
def test_a_size_that_does_not_divide_is_left_to_jax_under_jit(legacy, enter):
    x, table = values(UNEVEN, Embed), values(Embed, Mlp)
    layer = hnn.Linear(table, None, Embed, Mlp)
    product = np.asarray(x.array) @ np.asarray(table.array)
    mapping = {"batch": "data", "mlp": "model"}

    def loss(x):
        return hax.sum(hax.dot(hax.shard(x, mapping), table, axis=Embed) ** 2).scalar()

    results = [
        (lambda x: hax.shard(x, mapping) * 2, 2 * x.array),
        (lambda x: hax.auto_sharded(x) * 2, 2 * x.array),
        (lambda x: hax.dot(x, table, axis=Embed), product),
        (layer, product),
        (lambda x: hax.stack("new", x.unbind("embed")), x.array.T),
        (lambda x: hax.rearrange(x, "b e -> e b"), x.array.T),
        (lambda x: hax.vmap(lambda row: row * 2, UNEVEN)(x), 2 * x.array),
        (lambda x: hax.scan(lambda c, row: (c + row, row), "batch")(hax.zeros(Embed), x)[1], x.array),
        (eqx.filter_grad(loss), 2 * product @ table.array.T),
    ]
    with enter(legacy), hax.axis_mapping(mapping):
        for i, (fn, expected) in enumerate(results):
            np.testing.assert_allclose(eqx.filter_jit(fn)(x).array, expected, err_msg=str(i))
        np.testing.assert_allclose(named_jit(layer, mapping, in_axis_resources=mapping)(x).array, product)
        drawn = eqx.filter_jit(lambda: hax.random.uniform(jax.random.PRNGKey(0), (UNEVEN, Embed)))()
        np.testing.assert_array_equal(drawn.array, jax.random.uniform(jax.random.PRNGKey(0), (6, 4)))
        for eager in (lambda: hax.shard(x, mapping), lambda: hax.auto_sharded(x)):
            with pytest.raises(ValueError, match="batch=6 cannot be split evenly in 4"):
                eager()


def test_a_result_whose_size_does_not_divide_is_whole(legacy):
    mapping = {"batch": "data", "embed": "model"}
    with set_mesh(legacy):
        found = named_jit(lambda x: hax.shard(x * 2, mapping), mapping)(values(UNEVEN, Embed))
        assert found.array.sharding.spec == P(None, "model")


def test_a_size_that_does_not_divide_is_an_error_where_mesh_axes_are_explicit(explicit_mesh):
    with set_mesh(explicit_mesh), pytest.raises(ValueError, match="batch=6 cannot be split evenly in 4"):
        eqx.filter_jit(lambda x: hax.shard(x, {"batch": "data"}))(values(UNEVEN))


# compiling
@LEGACY
def test_named_jit_lays_results_out(entered):
    x = values(Batch, Embed)
    with entered():
        double = named_jit(lambda x: {"x": x * 2, "n": 3, "f": jnp.sum}, axis_resources=MAPPING)
        out = double(x)
        assert (type(out["x"]), out["n"], out["f"]) == (hax.NamedArray, 3, jnp.sum)
        assert spec(out["x"]) == ("data", None)
        np.testing.assert_array_equal(out["x"].array, 2 * np.asarray(x.array))
        with hax.axis_mapping({"embed": "model"}):
            assert spec(named_jit(lambda x: x * 2)(x)) == (None, "model")
        moved = named_jit(
            lambda x: x + 1,
            in_axis_resources={"embed": "data"},
            out_axis_resources={"batch": "data", "embed": "model"},
        )
        assert spec(moved(x)) == ("data", "model")
        assert "sharding" in double.lower(x).as_text()


def test_named_jit_works_without_mesh_where_there_is_no_mapping():
    @named_jit
    def scaled(x, factor, *, power):
        return x * factor**power, power

    assert scaled.__name__ == "scaled"
    assert scaled.__wrapped__(2.0, 3, power=2) == (18.0, 2)
    out, power = scaled(values(Embed), 3, power=2)
    assert (out.array.tolist(), power, type(out)) == ([0.0, 9.0, 18.0, 27.0], 2, hax.NamedArray)
    assert scaled.lower(values(Embed), 3, power=2).compile() is not None
    assert jax.make_jaxpr(named_jit(lambda x: x + 1))(values(Embed)).out_avals[0].shape == (4,)
    for mappings in ({"axis_resources": MAPPING}, {"in_axis_resources": MAPPING}, {"out_axis_resources": MAPPING}):
        with pytest.raises(ValueError, match="named_jit: No mesh found"):
            named_jit(lambda x: x, **mappings)(values(Embed))
    with hax.axis_mapping(MAPPING), pytest.raises(ValueError, match="named_jit: No mesh found"):
        named_jit(lambda x: x)(values(Embed))
    with pytest.raises(TypeError, match="must be hashable"):
        named_jit(lambda x, y: x)(values(Embed), {1, 2})


class Layer(eqx.Module):
    linear: hnn.Linear
    table: jax.Array = hax.field(axis_names=("batch", "embed"))
    size: int = eqx.field(static=True)

    def __init__(self, In: hax.Axis, Out: hax.Axis, size: int, *, key: jax.Array):
        self.linear = hnn.Linear.init(In, Out, key=key)
        self.table = jnp.ones((8, 4))
        self.size = size

    @named_jit(axis_resources=MAPPING)
    def __call__(self, x: hax.NamedArray) -> hax.NamedArray:
        return self.linear(x) * self.size

    def doubled(self, x: hax.NamedArray) -> hax.NamedArray:
        return self.linear(x) * 2


@pytest.mark.parametrize("entered", ["explicit", "legacy"], indirect=True)
@LEGACY
def test_named_jit_compiles_classes_methods_and_modules(entered):
    with entered():
        layer = named_jit(Layer, axis_resources=PARAMETERS)(Embed, Mlp, 3, key=jax.random.PRNGKey(0))
        assert (type(layer), layer.size) == (Layer, 3)
        weight = layer.linear.weight
        assert dict(zip(weight.shape, spec(weight), strict=True)) == {"embed": "data", "mlp": "model"}
        assert layer.table.sharding.spec == P(None, "data")
        x = values(Batch, Embed)
        expected = x.array @ weight.rearrange(("embed", "mlp")).array + layer.linear.bias.array
        for got, factor in ((layer(x), 3), (named_jit(layer.doubled, MAPPING)(x), 2)):
            np.testing.assert_allclose(got.rearrange(("batch", "mlp")).array, factor * expected, rtol=1e-5)
        assert dict(zip(got.shape, spec(got), strict=True)) == {"batch": "data", "mlp": "model"}
        state = named_jit(optax.adam(1e-3).init, axis_resources=PARAMETERS)(layer)
        assert spec(state[0].mu.linear.weight) == spec(weight)


def test_plain_results_are_replicated_and_programs_have_the_name_of_the_function(auto_mesh):
    def both(x):
        return x, x.array

    with set_mesh(auto_mesh):
        fn = named_jit(both, MAPPING)
        named, plain = fn(values(Batch, Embed))
        assert spec(named) == ("data", None)
        assert plain.sharding.is_fully_replicated
        assert "jit_both" in fn.lower(values(Batch, Embed)).as_text()


def test_errors_name_arguments_after_the_parameters():
    fn = named_jit(lambda model, x: model)
    with pytest.raises(TypeError, match=r"was passed to the function at path model\."):
        fn(np.array(["text"]), 1)
    compiled = fn.lower(jnp.ones(3), 1).compile()
    with pytest.raises(TypeError) as caught:
        compiled(2, 1)
    assert str(caught.value) == (
        "named_jit: model is 2; when the function was compiled, it was an array\n"
        "  hint: call the function itself, which compiles for each structure and all static data"
    )


@pytest.mark.parametrize("keyword", ["donate", "donate_args"])
def test_donation(keyword, auto_mesh):
    with set_mesh(auto_mesh):
        x, y, z = (hax.shard(values(Batch) + i, {"batch": "data"}) for i in range(3))
        fn = named_jit(lambda x, y, *, z: (x + 1, y + 1, z + 1), **{keyword: (True, False)}, donate_kwargs={"z": True})
        fn(x, y, z=z)
    assert [a.array.is_deleted() for a in (x, y, z)] == [True, False, True]


@pytest.mark.parametrize("entered", ["explicit", "legacy"], indirect=True)
@LEGACY
def test_fsdp_takes_arguments_from_anywhere_and_stores_by_the_parameter_mapping(entered):
    with entered():
        linear = hnn.Linear.init(Embed, Mlp, key=jax.random.PRNGKey(0))
        x = values(Batch, Embed)

        def step(linear, x):
            assert current_thread_local_mapping() == {"batch": "data"}
            return hax.mean(linear(x)), linear, x

        mean, stored, back = fsdp(step, {"embed": "data"}, {"batch": "data"})(linear, x)
        assert dict(zip(stored.weight.shape, spec(stored.weight), strict=True)) == {"embed": "data", "mlp": None}
        assert spec(back) == (None, "data")
        kernel = linear.weight.rearrange(("embed", "mlp")).array
        np.testing.assert_allclose(mean.array, np.mean(x.array @ kernel + linear.bias.array), rtol=1e-5)


def test_fsdp_is_a_decorator_and_takes_keywords(auto_mesh):
    @fsdp({"embed": "data"}, {"batch": "data"})
    def one(x):
        return x + 1

    two = fsdp(one.__wrapped__, parameter_mapping={"embed": "data"}, compute_mapping={"batch": "data"})
    with set_mesh(auto_mesh):
        assert spec(one(values(Batch, Embed))) == spec(two(values(Batch, Embed))) == (None, "data")
    with pytest.raises(ValueError, match="fsdp: compute_mapping is missing"):
        fsdp(one, {})


@LEGACY
def test_training_with_two_mappings(entered):
    compute, parameters = {"batch": "data", "mlp": "model"}, {"embed": "data", "mlp": "model"}
    x, optimizer = values(Batch, Embed) / 32, optax.adam(1e-2)

    def compute_loss(model, x, key):
        with hax.axis_mapping(compute):
            return hax.mean((model(x, key=key) - x) ** 2)

    def loss_of_batch(model, x, keys):
        return hax.mean(hax.vmap(compute_loss, "batch")(model, x, keys), "batch").scalar()

    def step(model, state, x, keys):
        loss, grads = eqx.filter_value_and_grad(loss_of_batch)(model, x, keys)
        updates, state = optimizer.update(grads, state, params=model)
        return loss, eqx.apply_updates(model, updates), state

    with entered():
        init = named_jit(lambda key: hnn.MLP.init(Embed, Embed, Mlp, 1, key=key), axis_resources=parameters)
        model = init(jax.random.PRNGKey(0))
        state = named_jit(optimizer.init, axis_resources=parameters)(model)
        compiled = named_jit(step, axis_resources=parameters, donate=(True, True, False, False))
        losses = []
        for _ in range(3):
            loss, model, state = compiled(model, state, x, jax.random.split(jax.random.PRNGKey(1), 8))
            losses.append(loss.item())
        weight = model.layers[0].weight
        assert dict(zip(weight.shape, spec(weight), strict=True)) == {"embed": "data", "mlp": "model"}
        assert losses[2] < losses[1] < losses[0]


@LEGACY
def test_the_old_mesh_context(legacy):
    x, y = values(Batch, Embed), values(Embed, Mlp)
    for mesh in (legacy, Mesh(np.array(jax.devices()), ("data",))):
        with mesh:
            with hax.axis_mapping({"batch": "data"}):
                assert spec(hax.dot(x, y, axis=Embed))[0] == "data"
                assert spec(hax.random.normal(jax.random.PRNGKey(0), (Batch, Embed))) == ("data", None)
            assert round_axis_for_partitioning(hax.Axis("batch", 9), {"batch": "data"}).size % mesh.shape["data"] == 0

            def loss(x):  # outside of jit, and with single-device arguments, as in a first draft of a program
                with hax.axis_mapping({"batch": "data"}):
                    return hax.sum(hax.auto_sharded(hax.dot(x, y, axis=Embed))).scalar()

            np.testing.assert_allclose(jax.grad(loss)(x).array, np.tile(y.array.sum(1), (8, 1)))
            np.testing.assert_allclose(jax.grad(named_jit(loss))(x).array, np.tile(y.array.sum(1), (8, 1)))
        with pytest.warns(RuntimeWarning, match="no mesh"):
            hax.shard(x, MAPPING)


@LEGACY
def test_layers_outside_of_jit_take_weights_and_inputs_from_one_device(entered):
    keys, x = jax.random.split(jax.random.PRNGKey(0), 3), values(Batch, Embed) / 32
    linear, table = (
        hnn.Linear.init(Embed, Mlp, key=keys[0]),
        hnn.Embedding.init(hax.Axis("vocab", 8), Embed, key=keys[1]),
    )
    Experts = hax.Axis("experts", 2)
    moe, sizes = hnn.MoELinear.init(Experts, Embed, Mlp, key=keys[2]), hax.named(np.array([3, 5]), Experts)
    layers = (linear, table.unembed, lambda x: moe(x, sizes))
    expected = [layer(x).array for layer in layers]
    by_hand = hnn.linear.gmm_sharded(x.array, moe.weight.array, sizes.array)
    np.testing.assert_allclose(by_hand, expected[2], rtol=1e-5)
    with entered(), hax.axis_mapping(MAPPING):
        for layer, whole in zip(layers, expected, strict=True):
            np.testing.assert_allclose(layer(x).array, whole, rtol=1e-4, atol=1e-5)
        assert spec(linear(x)) == ("data", "model")
    with entered():
        again = hnn.linear.gmm_sharded(jnp.asarray(x.array), moe.weight.array, sizes.array)
        np.testing.assert_allclose(again, by_hand, rtol=1e-5)
        np.testing.assert_allclose(moe(x, sizes).array, expected[2], rtol=1e-4)


def test_what_is_made_need_not_fit_the_mapping(explicit_mesh):
    odd = hax.Axis("batch", 3)
    with set_mesh(explicit_mesh), hax.axis_mapping(MAPPING):
        made = (
            hax.zeros(odd),
            hax.ones((odd, Embed)),
            hax.full(odd, 2.0),
            hax.arange(odd),
            hax.linspace(odd, start=0, stop=1),
        )
        assert [x.axes[0] for x in made] == [odd] * 5
        assert spec(hax.ones((Batch, Embed))) == ("data", None)


@LEGACY
def test_the_old_mesh_context_leaves_plain_jax_alone(legacy):
    x = jax.device_put(jnp.arange(3.0), jax.devices()[1])
    with legacy, hax.axis_mapping({"batch": "data"}):
        assert jnp.array_equal(x, x)
        assert (x + 1).devices() == {jax.devices()[1]}
        assert jax.sharding.get_abstract_mesh().empty
        assert spec(hax.shard(values(Batch)))[0] == "data"
        assert len(hax.zeros(Batch).array.devices()) == 1


@LEGACY
def test_the_current_mesh(legacy, auto_mesh):
    assert partitioning._get_mesh().empty
    with legacy:
        assert partitioning._get_mesh() == legacy
        assert jax.eval_shape(lambda: jnp.zeros(partitioning._get_mesh().size)).shape == (8,)
    with set_mesh(auto_mesh):
        assert partitioning._get_mesh() == auto_mesh
        assert jax.eval_shape(lambda: jnp.zeros(partitioning._get_mesh().size)).shape == (8,)


def test_what_is_not_loaded_yet_is_static(auto_mesh):
    whole = {"embed": values(Embed), "mlp": values(Mlp)}
    partial = whole | {"mlp": eqx.filter_eval_shape(values, Mlp)}

    @named_jit(in_axis_resources=PARAMETERS, out_axis_resources=PARAMETERS)
    def completed(partial):
        missing = lambda given, new: -new if isinstance(given, jax.ShapeDtypeStruct) else given  # noqa: E731
        return jax.tree.map(missing, partial, whole), partial["mlp"]

    with set_mesh(auto_mesh):
        found, still = completed(partial)
        again, _ = completed(whole)
    np.testing.assert_array_equal(found["embed"].array, whole["embed"].array)
    np.testing.assert_array_equal(found["mlp"].array, -whole["mlp"].array)
    np.testing.assert_array_equal(again["mlp"].array, whole["mlp"].array)
    assert (spec(found["embed"])[0], spec(found["mlp"])[0]) == ("data", "model")
    assert isinstance(still.array, jax.ShapeDtypeStruct)


@LEGACY
def test_the_mesh_of_set_mesh_goes_first(legacy, auto_mesh):
    other = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    with legacy, set_mesh(other):
        assert physical_axis_size("batch", {"batch": "data"}) == 2
        assert hax.shard(values(Batch), {"batch": "data"}).array.sharding.mesh == other
        assert hax.shard(values(Batch), {"batch": "data"}, auto_mesh).array.sharding.mesh == auto_mesh
