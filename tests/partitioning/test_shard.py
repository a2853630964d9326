"""`shard`, `auto_sharded`, `pspec_for`, `round_axis_for_partitioning` and `axis_mapping`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as axn
from axonym.errors import LostAxisError, OperandError, ShardingError
from axonym.layout import context
from axonym.partitioning.trees import find_static_axes
from tests.partitioning.meshes import KINDS, draw, make_mesh, values

pytestmark = pytest.mark.sampled

B, E, M = axn.make_axes(batch=8, embed=4, mlp=6)


def laid_out(x, spec):
    # on a mesh of mixed axes JAX may put Explicit mesh axes before Auto ones where they share a dimension
    turned = P(*(part[::-1] if isinstance(part, tuple) else part for part in spec))
    allowed = [spec, turned] if len(set(x.sharding.mesh.axis_types)) == 2 else [spec]
    shardings = [NamedSharding(x.sharding.mesh, spec) for spec in allowed]
    assert any(x.sharding.is_equivalent_to(sharding, x.array.ndim) for sharding in shardings), x.sharding
    assert len(x.sharding.device_set) == 8


# laying out
@pytest.mark.parametrize("where", ["eager", "jit", "vmap"])
@pytest.mark.parametrize(
    ("mapping", "spec"),
    [
        ({"batch": "data"}, P("data", None)),
        ({"batch": "data", "embed": "model"}, P("data", "model")),
        ({"batch": ("data", "model")}, P(("data", "model"), None)),
        ({"batch": ["model"], "embed": ("data",)}, P("model", "data")),
        ({"batch": None, "embed": ()}, P()),
        ({}, P()),
    ],
    ids=str,
)
def test_arrays_are_laid_out(mesh, mapping, spec, where):
    x = draw(B, E)
    if where == "vmap":
        spec = P(None, *spec)
        y = jax.vmap(lambda x: axn.shard(x, mapping))(draw(M, B, E).untag("mlp"))
    else:
        f = lambda x: axn.shard(x, mapping)  # noqa: E731
        y = (jax.jit(f) if where == "jit" else f)(x)
        np.testing.assert_array_equal(y.array, x.array)
    assert y.names == ("batch", "embed")
    laid_out(y, spec)


@pytest.mark.parametrize("jit", [False, True])
def test_arrays_are_moved_from_one_layout_to_another(mesh, jit):
    x = axn.shard(draw(B, E), {"batch": "data", "embed": "model"})
    f = lambda x: axn.shard(x, {"embed": "data", "batch": "model"})  # noqa: E731
    y = (jax.jit(f) if jit else f)(x)
    laid_out(y, P("model", "data"))
    np.testing.assert_array_equal(y.array, values(B, E))


@pytest.mark.parametrize("jit", [False, True])
def test_trees_keep_what_is_no_named_array(mesh, jit):
    class Module(eqx.Module):
        w: axn.NamedArray
        raw: jax.Array
        act: object

    module = Module(draw(E, M), draw(axn.Axis("raw", 3)).array, jnp.tanh)
    f = lambda tree: axn.shard(tree, {"embed": "data", "mlp": "model"})  # noqa: E731
    out = (eqx.filter_jit(f) if jit else f)({"m": module, "n": None, "s": "x", "f": 1.5})
    laid_out(out["m"].w, P("data", "model"))
    assert out["m"].raw.shape == (3,)
    assert out["m"].act is jnp.tanh
    assert (out["n"], out["s"]) == (None, "x")


def test_named_arrays_that_hold_no_array_stay(mesh):
    model = {"w": draw(E, M), "b": draw(M)}
    optimizer = optax.masked(optax.adam(1e-3), jax.tree.map(lambda x: x.ndim == 2, model))
    state = axn.shard(optimizer.init(model), {"embed": "data"})
    laid_out(state.inner_state[0].mu["w"], P("data", None))
    assert state.inner_state[0].mu["b"].array == optax.MaskedNode()
    assert axn.pspec_for(state, {"embed": "data"}).inner_state[0].mu == {"w": P("data", None), "b": None}


@pytest.mark.parametrize("where", ["numpy", "constant in jit", "numpy in jit"])
def test_constants_are_laid_out(mesh, where):
    x = draw(B, E) if where == "constant in jit" else axn.NamedArray(values(B, E), (B, E))
    f = lambda: axn.shard(x, {"batch": "data"})  # noqa: E731
    y = (f if where == "numpy" else jax.jit(f))()
    laid_out(y, P("data", None))
    np.testing.assert_array_equal(y.array, x.array)


def test_arrays_that_were_made_without_a_mesh():
    x = draw(B, E)
    for kind in KINDS:
        mesh = make_mesh(kind)
        laid_out(axn.shard(x, {"batch": "data"}, mesh), P("data", None))
        if kind == "auto":  # JAX wants jax.set_mesh around a jit on Explicit axes
            laid_out(jax.jit(lambda x, mesh=mesh: axn.shard(x, {"batch": "model"}, mesh))(x), P("model", None))


def test_gradients_go_through(mesh):
    f = lambda x: (axn.shard(x, {"batch": "data"}) ** 2).sum().scalar()  # noqa: E731
    gradient = jax.jit(jax.grad(f))(axn.shard(draw(B, E), {"batch": "data"}))
    np.testing.assert_allclose(gradient.array, 2 * values(B, E))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_outside_of_jit_go_through_what_is_on_one_device(kind):
    x = draw(B, E)
    assert len(x.devices()) == 1
    with axn.set_mesh(make_mesh(kind)), axn.axis_mapping({"batch": "data"}):
        gradient = jax.grad(lambda x: (axn.auto_sharded(x) ** 2).sum().scalar())(x)
    np.testing.assert_array_equal(gradient.array, 2 * np.asarray(x.array))


def test_anonymous_dimensions_are_not_sharded(mesh):
    x = draw(M, B, E).untag("mlp")
    laid_out(axn.shard(x, {"batch": "data"}), P(None, "data", None))


def test_the_current_mapping_is_the_default(mesh):
    with axn.axis_mapping({"batch": "data", "of_another_array": "model"}):
        laid_out(axn.shard(draw(B, E)), P("data", None))
        laid_out(axn.auto_sharded(draw(B, E)), P("data", None))


def test_auto_sharded_does_nothing_without_mapping_or_mesh(mesh):
    x = {"x": draw(B, E), "f": jnp.sin}
    assert axn.auto_sharded(x) is x


def test_auto_sharded_does_nothing_without_mesh():
    x = draw(B, E)
    with axn.axis_mapping({"batch": "data"}):
        assert axn.auto_sharded(x) is x
        jax.jit(axn.auto_sharded)(x)
        laid_out(axn.auto_sharded(x, make_mesh("auto")), P("data", None))


# inside of shard_map
@pytest.mark.parametrize("jit", [False, True])
def test_constraints_vanish_where_mesh_axes_are_manual(mesh, jit):
    constant = axn.NamedArray(values(E), E)  # JAX refuses to close over arrays that are sharded by type

    def local(x):
        assert x.shape == {"batch": 2, "embed": 4}
        y = axn.shard(x * 2, {"batch": "data", "embed": "model"})
        z = axn.auto_sharded(axn.shard(constant, {"embed": "data"}))
        return axn.dot(y, z, axis=())

    with axn.axis_mapping({"batch": "data", "embed": "model"}):
        f = jax.shard_map(local, in_specs=P("data"), out_specs=P("data"))
        y = (jax.jit(f) if jit else f)(axn.shard(draw(B, E), {"batch": "data"}, strict=False))
    np.testing.assert_allclose(y.array, values(B, E) * values(E) * 2, rtol=1e-6)


def test_constraints_stay_where_only_some_mesh_axes_are_manual(mesh):
    inside = []

    def local(x):
        y = axn.shard(x, {"batch": "data", "embed": "model"})
        inside.append(jax.typeof(y.array).sharding.spec)
        return y

    f = jax.jit(jax.shard_map(local, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}))
    y = f(axn.shard(draw(B, E), {"batch": "data"}))
    explicit = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))["model"] is AxisType.Explicit
    assert inside == [P(None, "model" if explicit else None)]
    if mesh.axis_types != KINDS["auto-explicit"]:  # there jax 0.10 loses the type on the way out
        laid_out(y, P("data", "model"))


def test_one_manual_mesh_axis_may_stand_twice(mesh):
    f = jax.shard_map(
        lambda x: axn.shard(x, {"batch": "data", "embed": "data"}), in_specs=P("data"), out_specs=P("data")
    )
    jax.jit(f)(axn.shard(draw(B, E), {"batch": "data"}))


# errors
def test_no_mapping(mesh):
    with pytest.raises(ShardingError) as error:
        axn.shard(draw(B))
    assert str(error.value) == "shard: there is no axis mapping\n  hint: pass one, or use axn.axis_mapping"


def test_no_mesh():
    with pytest.raises(ShardingError) as error:
        axn.shard(draw(B), {"batch": "data"})
    assert str(error.value) == (
        "shard: there is no mesh\n"
        "  mapping: {'batch': 'data'}\n"
        '  hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))'
    )


@pytest.mark.parametrize("jit", [False, True])
def test_an_unknown_key(mesh, jit):
    Z = axn.Axis("zeta_one", 8)
    f = lambda x: axn.shard(x, {"zeta_onne": "data", "embed": "model"})  # noqa: E731
    with pytest.raises(ShardingError) as error:
        (jax.jit(f) if jit else f)(draw(Z, E))
    assert str(error.value) == (
        "shard: the mapping has axis 'zeta_onne', which no array here has\n"
        "  mapping: {'zeta_onne': 'data', 'embed': 'model'}\n"
        "  axes of the arrays: embed, zeta_one\n"
        "  hint: did you mean 'zeta_one'?"
    )
    y = axn.shard(draw(Z, E), {"zeta_onne": "data", "embed": "model"}, strict=False)
    laid_out(y, P(None, "model"))


def test_an_unknown_key_near_nothing(mesh):
    with pytest.raises(ShardingError, match=r"hint: pass strict=False where one mapping serves several models$"):
        axn.shard(draw(B), {"batch": "data", "qqqqq": None})


@pytest.mark.parametrize("jit", [False, True])
def test_an_unknown_mesh_axis(mesh, jit):
    f = lambda x: axn.shard(x, {"batch": "dta"}, strict=False)  # noqa: E731
    with pytest.raises(ShardingError) as error:
        (jax.jit(f) if jit else f)(draw(B, E))
    assert str(error.value) == (
        "shard: axis 'batch' is mapped to 'dta', which is not an axis of the mesh\n"
        "  array has: batch=8, embed=4\n"
        "  mapping: {'batch': 'dta'}\n"
        "  mesh: data=4, model=2\n"
        "  hint: did you mean 'data'?"
    )


@pytest.mark.parametrize("jit", [False, True])
def test_one_mesh_axis_twice(mesh, jit):
    f = lambda x: axn.shard(x, {"batch": ("data", "model"), "embed": "model"})  # noqa: E731
    with pytest.raises(ShardingError) as error:
        (jax.jit(f) if jit else f)(draw(B, E))
    assert str(error.value) == (
        "shard: mesh axis 'model' would shard both 'batch' and 'embed' of one array\n"
        "  array has: batch=8, embed=4\n"
        "  mapping: {'batch': ('data', 'model'), 'embed': 'model'}\n"
        "  mesh: data=4, model=2\n"
        "  hint: map one of the two elsewhere, or rename it on this array: x.rename({'embed': ...})"
    )


def test_one_mesh_axis_twice_in_one_entry(mesh):
    with pytest.raises(OperandError, match="axis 'batch' is mapped to mesh axis 'data' twice"):
        axn.shard(draw(B), {"batch": ("data", "data")})


@pytest.mark.parametrize("jit", [False, True])
def test_a_size_that_does_not_divide(mesh, jit):
    f = lambda x: axn.shard(x, {"mlp": ("data", "model"), "batch": None})  # noqa: E731
    with pytest.raises(ShardingError) as error:
        (jax.jit(f) if jit else f)(draw(B, M))
    assert str(error.value) == (
        "shard: mlp=6 cannot be split evenly in 8 over mesh axis data, model\n"
        "  array has: batch=8, mlp=6\n"
        "  mapping: {'mlp': ('data', 'model'), 'batch': None}\n"
        "  mesh: data=4, model=2\n"
        "  hint: use a multiple of 8, as pad_axes and pad_batch do, or map 'mlp' to None"
    )


def test_an_array_that_lost_its_axis(mesh):
    with pytest.raises(LostAxisError):
        axn.shard(jax.tree.map(lambda a: a[0], draw(B, E)), {"batch": "data"})


# state of optimisers: less than the parameter, under the names of the parameter
def test_an_entry_with_fewer_dimensions_than_names_is_whole(mesh):
    tree = {"w": draw(B, E), "row": jax.tree.map(lambda a: a[:, 0], draw(B, E))}
    mapping = {"batch": "data", "embed": "model"}
    for f in (axn.shard, jax.jit(axn.shard, static_argnums=1)):
        out = f(tree, context.resolve_mapping(mapping))
        laid_out(out["w"], P("data", "model"))
        laid_out(out["row"], P(None))
        assert out["row"].names == ("batch", "embed")
        np.testing.assert_array_equal(out["row"].array, tree["row"].array)
    assert axn.pspec_for(tree, mapping) == {"w": P("data", "model"), "row": P(None)}
    for f in (axn.shard, axn.pspec_for):
        with pytest.raises(LostAxisError) as error:
            f(tree["row"], mapping)
        assert str(error.value) == (
            f"{f.__name__}: an array of shape (8,) cannot have the 2 axes batch, embed\n"
            "  raw jax.vmap, lax.scan and indexing remove the leading dimension, but not its name\n"
            '  hint: use axn.vmap(f, "batch") or axn.scan(f, "batch"), or make the axis anonymous first: '
            'x.untag("batch")'
        )


def test_an_axis_of_one_element_is_whole_where_the_tree_has_more_of_it(mesh):
    one = axn.Axis("embed", 1)
    tree = {"v": draw(E), "v_row": draw(one), "both": draw(B, one), "derived": draw(one.derive("out"), E)}
    mapping = {"batch": "data", "embed": "model"}
    for f in (axn.shard, jax.jit(axn.shard, static_argnums=1)):
        out = f(tree, context.resolve_mapping(mapping))
        for key, spec in {"v": P("model"), "v_row": P(), "both": P("data"), "derived": P(None, "model")}.items():
            laid_out(out[key], spec)
    expected = {"v": P("model"), "v_row": P(None), "both": P("data", None), "derived": P(None, "model")}
    assert axn.pspec_for(tree, mapping) == expected


@pytest.mark.parametrize("more", [{}, {"v": draw(E), "row": axn.NamedArray(jnp.ones(8), ("embed",))}], ids=len)
def test_an_axis_that_has_one_element_everywhere_cannot_be_split(mesh, more):
    with pytest.raises(ShardingError) as error:
        axn.shard({"x": draw(axn.Axis("batch", 1), E), **more}, {"batch": "data"})
    assert str(error.value) == (
        "shard: batch=1 cannot be split evenly in 4 over mesh axis data\n"
        "  array has: batch=1, embed=4\n"
        "  mapping: {'batch': 'data'}\n"
        "  mesh: data=4, model=2\n"
        "  at: x\n"
        "  hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'batch' to None"
    )


# mappings
@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({"batch": 3}, "axis mapping: axis 'batch' is mapped to 3"),
        ({"batch": ("data", 1)}, r"axis mapping: axis 'batch' is mapped to \('data', 1\)"),
        ({3: "data"}, "axis mapping: a mapping must be a dict from axis names to mesh axes"),
        ([("batch", "data")], "axis mapping: a mapping must be a dict from axis names to mesh axes"),
        ("batch", "axis mapping: a mapping must be a dict from axis names to mesh axes"),
    ],
    ids=str,
)
def test_a_mapping_of_wrong_kinds(auto_mesh, mapping, text):
    with axn.set_mesh(auto_mesh):
        with pytest.raises(OperandError, match=text):
            axn.shard(draw(B), mapping)
        with pytest.raises(OperandError, match=text), axn.axis_mapping(mapping):
            pass
        with pytest.raises(OperandError, match=text):
            axn.named_jit(lambda x: x, mapping)


@pytest.mark.parametrize("mesh", [{"data": 8}, 8], ids=str)
def test_what_is_no_mesh(mesh):
    x, mapping = draw(B), {"batch": "data"}
    for call in (
        lambda: axn.shard(x, mapping, mesh),
        lambda: axn.auto_sharded(x, mesh),
        lambda: axn.pspec_for(x, mapping, mesh),
        lambda: axn.round_axis_for_partitioning(B, mapping, mesh),
        lambda: axn.partitioning.show(x, mapping, mesh),
        lambda: axn.shard_map(lambda x: x, mapping, mesh)(x),
        lambda: axn.from_callback(B, lambda at: np.ones(8)[at["batch"]], mapping, mesh),
    ):
        with pytest.raises(OperandError) as error:
            call()
        assert str(error.value) == (
            f"mesh: a mesh must be a Mesh or an AbstractMesh, not {mesh!r}\n"
            '  hint: write jax.make_mesh((4, 2), ("data", "model"))'
        )


def test_mappings_nest_replace_and_merge():
    assert axn.current_mapping() is None
    with axn.axis_mapping({"a": "x", "b": "y"}, c=("x", "y")):
        assert dict(axn.current_mapping()) == {"a": ("x",), "b": ("y",), "c": ("x", "y")}
        with axn.axis_mapping({"a": None}):
            assert dict(axn.current_mapping()) == {"a": ()}
        with axn.axis_mapping({"a": "z"}, merge=True, d="x"):
            assert dict(axn.current_mapping()) == {"a": ("z",), "b": ("y",), "c": ("x", "y"), "d": ("x",)}
        assert str(axn.current_mapping()) == "{'a': 'x', 'b': 'y', 'c': ('x', 'y')}"
    with axn.axis_mapping({"a": "x"}, merge=True):
        assert dict(axn.current_mapping()) == {"a": ("x",)}
    assert axn.current_mapping() is None


def test_a_mapping_ends_with_an_exception():
    with pytest.raises(KeyError), axn.axis_mapping({"a": "x"}):
        raise KeyError
    assert axn.current_mapping() is None


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_raw_jit_traces_again_under_another_mapping(kind):
    traces = []

    @jax.jit
    def f(x):
        traces.append(1)
        return axn.auto_sharded(x)

    with axn.set_mesh(make_mesh(kind)):
        x = axn.shard(draw(B, E), {})
        for mesh_axis in ("data", "model", ("data", "model"), "data"):
            with axn.axis_mapping({"batch": mesh_axis}):
                laid_out(f(x), P(mesh_axis, None))
        laid_out(f(x), P())
    assert len(traces) == 4


# specs without arrays being moved
def test_pspec_for():
    tree = {"x": draw(B, E), "raw": np.ones(3), "act": jnp.tanh, "n": 2, "anonymous": draw(M, B).untag("mlp")}
    specs = axn.pspec_for(tree, {"batch": "data", "embed": ("x", "y")})
    assert specs == {"x": P("data", ("x", "y")), "raw": P(), "act": None, "n": None, "anonymous": P(None, "data")}
    shapes = jax.eval_shape(lambda: draw(B, E))
    assert axn.pspec_for(shapes, {"batch": "data"}) == P("data", None)
    with axn.axis_mapping({"embed": "model"}):
        assert axn.pspec_for(draw(B, E)) == P(None, "model")
    with pytest.raises(ShardingError, match=r"^pspec_for: there is no axis mapping"):
        axn.pspec_for(draw(B))


def test_pspec_for_checks_against_a_mesh(auto_mesh):
    abstract = AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
    for mesh in (auto_mesh, abstract):
        assert axn.pspec_for(draw(B), {"batch": "data"}, mesh) == P("data")
        with pytest.raises(ShardingError, match=r"^pspec_for: mlp=6 cannot be split evenly in 4 over mesh axis data"):
            axn.pspec_for(draw(M), {"mlp": "data"}, mesh)
    with axn.set_mesh(auto_mesh), pytest.raises(ShardingError, match="'pipe', which is not an axis of the mesh"):
        axn.pspec_for(draw(B), {"batch": "pipe"})


def test_round_axis_for_partitioning(auto_mesh):
    abstract = AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
    Z = axn.Axis("Z", 9)
    for mesh in (auto_mesh, abstract):
        assert axn.round_axis_for_partitioning(Z, {"Z": "data"}, mesh) == axn.Axis("Z", 12)
        assert axn.round_axis_for_partitioning(Z, {"Z": ("data", "model")}, mesh) == axn.Axis("Z", 16)
        assert axn.round_axis_for_partitioning(Z, {"Z": None}, mesh) == Z
        assert axn.round_axis_for_partitioning(Z, {"Y": "data"}, mesh) == Z
        assert axn.round_axis_for_partitioning(axn.Axis("Z", 12), {"Z": "data"}, mesh).size == 12
        with pytest.raises(ShardingError, match="which is not an axis of the mesh"):
            axn.round_axis_for_partitioning(Z, {"Z": "dat"}, mesh)
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"Z": "model"}):
        assert axn.round_axis_for_partitioning(Z).size == 10
    assert axn.round_axis_for_partitioning(Z) == Z
    with pytest.raises(ShardingError, match=r"^round_axis_for_partitioning: there is no mesh"):
        axn.round_axis_for_partitioning(Z, {"Z": "data"})
    with pytest.raises(OperandError) as error:
        axn.round_axis_for_partitioning("Z", {"Z": "data"}, auto_mesh)
    assert (
        str(error.value) == "round_axis_for_partitioning: axis 'Z' needs a size here\n  hint: write Axis(\"Z\", size)"
    )


def test_set_mesh_takes_abstract_meshes():
    abstract = AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
    x = draw(B)
    with axn.set_mesh(abstract):
        assert axn.pspec_for(x, {"batch": "data"}) == P("data")
        with pytest.raises(ShardingError, match="which is not an axis of the mesh"):
            axn.pspec_for(x, {"batch": "pipe"})
    assert jax.sharding.get_abstract_mesh().empty


# operations under a mapping
@pytest.mark.parametrize(
    "mapping", [{"batch": "data", "mlp": "model"}, {"embed": "data"}, {"batch": ("data", "model")}]
)
def test_contractions_are_laid_out(mesh, mapping):
    E8, M8 = axn.make_axes(embed=8, mlp=8)
    x, w = draw(B, E8), draw(E8, M8, seed=1)
    expected = values(B, E8) @ values(E8, M8, seed=1)
    with axn.axis_mapping(mapping):
        for f in (jax.jit(lambda x, w: axn.dot(x, w, axis="embed")), lambda x, w: axn.dot(x, w, axis="embed")):
            for layout in ({}, {"embed": "data"}, {"embed": "model"}, mapping):
                y = f(axn.shard(x, layout, strict=False), axn.shard(w, layout, strict=False))
                np.testing.assert_allclose(y.array, expected, rtol=1e-5, atol=1e-5)
                laid_out(y, P(mapping.get("batch"), mapping.get("mlp")))


def test_a_contracted_size_that_does_not_divide(mesh):
    x, w = axn.shard(draw(B, M), {}), axn.shard(draw(M, E), {})
    with axn.axis_mapping({"mlp": "data"}):
        y = jax.jit(lambda x, w: axn.dot(x, w, axis="mlp"))(x, w)
    np.testing.assert_allclose(y.array, values(B, M) @ values(M, E), rtol=1e-5, atol=1e-6)


def test_static_axes():
    layer = axn.nn.Linear.init(E, (B, M), key=jax.random.key(0))
    assert find_static_axes(layer) == {"In": (E,), "Out": (B, M)}
    assert find_static_axes(axn.nn.Dropout(0.5)) == {"broadcast_axes": ()}


@pytest.mark.parametrize("own", [AxisType.Auto, AxisType.Explicit])
def test_plain_arrays_of_an_abstract_tree_get_a_place_too(own):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(own,) * 2)
    elsewhere = NamedSharding(jax.make_mesh((8,), ("data",)), P("data"))

    def init():
        state = {"count": jnp.zeros(()), "table": draw(B, E)}
        return state | {"rows": jax.lax.with_sharding_constraint(jnp.zeros(4), P())}

    with axn.set_mesh(mesh):
        abstract = jax.eval_shape(init) | {"placed": jax.ShapeDtypeStruct((8,), "float32", sharding=elsewhere)}
        found = axn.shard(abstract, {"batch": "data"})
        assert found["table"].array.sharding == NamedSharding(mesh, P("data", None))
        for path in ("count", "rows"):
            assert found[path].sharding.mesh == mesh
            assert found[path].sharding.is_fully_replicated
            assert (found[path].shape, found[path].dtype) == (abstract[path].shape, abstract[path].dtype)
        assert found["placed"].sharding == elsewhere
        typed = jax.ShapeDtypeStruct((4,), "float32", sharding=NamedSharding(mesh.abstract_mesh, P("model")))
        assert axn.shard(typed, {}).sharding == NamedSharding(mesh, P("model"))
    # Types of another mesh say nothing about this one.
    assert axn.shard(typed, {}, jax.make_mesh((8,), ("x",))).sharding.spec == P()


def test_an_abstract_array_is_placed_on_the_mesh_asked_for(mesh):
    shapes = jax.eval_shape(lambda: draw(B))
    turned = jax.sharding.Mesh(mesh.devices[::-1], mesh.axis_names, axis_types=mesh.axis_types)
    without_devices = AbstractMesh((4, 2), mesh.axis_names, axis_types=mesh.axis_types)
    with axn.set_mesh(mesh):
        assert axn.shard(shapes, {"batch": "data"}).array.sharding.mesh == mesh
        for other in (mesh, mesh.abstract_mesh, turned, without_devices):
            expected = mesh if other == mesh.abstract_mesh else other
            assert axn.shard(shapes, {"batch": "data"}, other).array.sharding.mesh == expected
