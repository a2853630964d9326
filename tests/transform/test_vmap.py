"""`vmap` over named axes, against raw `jax.vmap`."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import AxisType, PartitionSpec as P

import axonym as axn
from axonym.errors import AxisClashError, AxisSizeError, LostAxisError, OperandError, ShardingError
from tests.laws import count_equations
from tests.sample import in_ninth
from tests.together import list_beside, together

pytestmark = pytest.mark.sampled

B, S, E = axn.make_axes(batch=8, seq=3, embed=4)


def draw(*axes: axn.Axis, seed: int = 0) -> axn.NamedArray:
    array = np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)
    # `jnp.asarray` would compile a program for each shape and mesh.
    place = None if jax.sharding.get_abstract_mesh().empty else jax.P()
    return axn.named(jax.device_put(array, place), axes)


def same(x: axn.NamedArray, names: tuple[str, ...], array) -> None:
    assert isinstance(x, axn.NamedArray)
    assert x.names == names
    assert x.array.shape == np.shape(array)
    np.testing.assert_allclose(x.array, array, rtol=1e-6, atol=1e-6)


# what is mapped, and where it ends up
@given(order=st.permutations([B, S, E]), axis=st.sampled_from([B, S, E]), by_name=st.booleans())
def test_the_function_does_not_see_the_axis_and_the_result_has_it_first(order, axis, by_name):
    x = draw(*order)
    seen = []

    def f(part):
        seen.append(part.names)
        return part * 2

    y = axn.vmap(f, axis.name if by_name else axis)(x)
    rest = tuple(a.name for a in order if a != axis)
    assert seen == [rest]
    same(y, (axis.name, *rest), 2 * np.moveaxis(x.array, order.index(axis), 0))


def test_named_arrays_without_the_axis_are_passed_whole():
    x, w = draw(B, E), draw(E, S, seed=1)
    y = axn.vmap(lambda a, b: axn.dot(a, b, axis=E), B)(x, w)
    same(y, ("batch", "seq"), x.array @ w.array)


def test_several_axes_with_the_first_outermost():
    x = draw(E, S, B)
    seen = []
    y = axn.vmap(lambda a: (seen.append(a.names), a + 1)[1], (B, "seq"))(x)
    assert seen == [("embed",)]
    same(y, ("batch", "seq", "embed"), np.transpose(x.array, (2, 1, 0)) + 1)


def test_several_axes_take_leading_dimensions_of_a_plain_array_one_after_the_other():
    raw = jnp.arange(24.0).reshape(8, 3)
    y = axn.vmap(lambda a, r: a * r, (B, S))(draw(B, S), raw)
    same(y, ("batch", "seq"), draw(B, S).array * raw)


def test_a_mapping_of_axes():
    y = axn.vmap(lambda a: a.sum(), {"batch": 8, "seq": None})(draw(B, S, E))
    same(y, ("batch", "seq"), draw(B, S, E).array.sum(-1))


def test_one_argument_has_the_first_axis_and_the_other_the_second():
    x, y = draw(B, E), draw(S, E, seed=1)
    both = axn.vmap(lambda a, b: axn.dot(a, b, axis=E), (B, S))(x, y)
    same(both, ("batch", "seq"), x.array @ y.array.T)


def test_no_axes_at_all_calls_the_function():
    same(axn.vmap(lambda a: a + 1, ())(draw(E)), ("embed",), draw(E).array + 1)


def test_a_new_axis_that_no_argument_has():
    y = axn.vmap(lambda a: a * 2, axn.Axis("copy", 5))(draw(E))
    same(y, ("copy", "embed"), np.broadcast_to(2 * draw(E).array, (5, 4)))
    same(axn.vmap(lambda: axn.ones(E), axn.Axis("copy", 5))(), ("copy", "embed"), np.ones((5, 4)))


def test_results_of_every_kind():
    class Both(NamedTuple):
        a: object
        b: object

    def f(x):
        return Both({"sum": x.sum(), "raw": x.array * 2}, [jnp.float32(7), np.arange(2), None, "text", jnp.tanh])

    out = axn.vmap(f, B)(draw(B, E))
    same(out.a["sum"], ("batch",), draw(B, E).array.sum(1))
    np.testing.assert_allclose(out.a["raw"], 2 * draw(B, E).array)
    assert out.b[0].shape == (8,)
    np.testing.assert_array_equal(out.b[1], np.tile(np.arange(2), (8, 1)))
    assert out.b[2:] == [None, "text", jnp.tanh]


def test_python_numbers_in_results_stay_what_they_are():
    assert axn.vmap(lambda x: (3, 0.5, True), B)(draw(B)) == (3, 0.5, True)


# plain arrays
def test_plain_arrays_are_mapped_over_dimension_0_and_come_back_there():
    raw = jnp.arange(16.0).reshape(8, 2)
    y, r = axn.vmap(lambda a, b: (a + b.sum(), b * 2), B)(draw(B), raw)
    same(y, ("batch",), draw(B).array + raw.sum(1))
    np.testing.assert_array_equal(r, raw * 2)


def test_numpy_arrays_and_plain_scalars():
    y = axn.vmap(lambda a, b, c, d: a * b.sum() + c + d, "batch")(draw(B), np.ones((8, 2)), jnp.float32(2), 1.0)
    same(y, ("batch",), draw(B).array * 2 + 3)


@pytest.mark.parametrize("default", [1, -1, lambda x: x.ndim - 1, lambda x: 1 if x.ndim == 2 else None])
def test_default_chooses_the_dimension_of_plain_arrays(default):
    raw = jnp.arange(16.0).reshape(2, 8)
    y = axn.vmap(lambda a, b: b.sum() + a * 0, B, default=default)(draw(B), raw)
    same(y, ("batch",), raw.sum(0))


def test_default_none_passes_plain_arrays_whole_but_not_named_ones():
    raw = jnp.arange(5.0)
    y = axn.vmap(lambda a, b: a * b.sum(), B, default=None)(draw(B), raw)
    same(y, ("batch",), draw(B).array * 10)


def test_args_and_kwargs_choose_one_by_one():
    x, r0, r1, whole = draw(B), jnp.arange(16.0).reshape(8, 2), jnp.arange(16.0).reshape(2, 8), jnp.arange(5.0)

    def f(a, b, c, *, d):
        return a + b.sum() + c.sum() + d.sum()

    expected = x.array + r0.sum(1) + r1.sum(0) + whole.sum()
    same(axn.vmap(f, B, args=(0, 0, 1), kwargs={"d": None})(x, r0, r1, d=whole), ("batch",), expected)
    same(axn.vmap(f, B, args=[0, 0], default=1, kwargs={"d": None})(x, r0, r1, d=whole), ("batch",), expected)


def test_args_reach_arguments_that_are_passed_by_name_and_kwargs_those_by_position():
    def f(a, table, scale):
        return a + table.sum() * scale.sum()

    x, table, scale = draw(B), jnp.arange(5.0), jnp.ones(3)
    expected = x.array + 30
    same(axn.vmap(f, B, args=(0, None, None))(x, scale=scale, table=table), ("batch",), expected)
    same(axn.vmap(f, B, kwargs={"table": None, "scale": None})(x, table, scale), ("batch",), expected)


def test_args_may_be_tree_prefixes():
    tree = {"whole": jnp.arange(3.0), "mapped": (jnp.arange(8.0), draw(B), draw(E))}
    spec = ({"whole": None, "mapped": 0},)
    y = axn.vmap(lambda t: t["mapped"][0] + t["whole"].sum() + t["mapped"][1], B, args=spec)(tree)
    same(y, ("batch",), jnp.arange(8.0) + 3 + draw(B).array)


def test_named_arrays_are_mapped_by_name_whatever_args_say():
    same(axn.vmap(lambda a: a + 1, B, args=(None,))(draw(E, B)), ("batch", "embed"), draw(E, B).array.T + 1)


def test_default_arguments_of_the_function():
    def f(a, scale=2.0):
        return a * scale

    same(axn.vmap(f, B)(draw(B)), ("batch",), draw(B).array * 2)
    same(axn.vmap(f, B, args=(0, None))(draw(B)), ("batch",), draw(B).array * 2)


def test_variadic_arguments():
    y = axn.vmap(lambda *xs, **named: sum(xs) + named["z"].sum(), B, args=(0, None), kwargs={"z": None})(
        draw(B), draw(B), z=jnp.ones(3)
    )
    same(y, ("batch",), 2 * draw(B).array + 3)


# anonymous dimensions
def test_anonymous_dimensions_stay_in_front_of_the_axis():
    x = draw(S, B, E).untag("seq")
    assert x.array.shape == (3, 8, 4)
    seen = []
    y = axn.vmap(lambda a: (seen.append((a.array.shape, a.names)), a * 2)[1], B)(x)
    assert seen == [((3, 4), ("embed",))]
    same(y, ("batch", "embed"), x.array * 2)


def test_an_array_of_anonymous_dimensions_only_is_passed_whole():
    x = draw(S, E).untag("seq", "embed")
    y = axn.vmap(lambda a, b: a + b.array.sum(), B)(draw(B), x)
    same(y, ("batch",), draw(B).array + x.array.sum())


# what is static
class Layer(eqx.Module):
    weight: axn.NamedArray
    act: object
    dropout: eqx.nn.Dropout
    heads: int
    causal: bool
    name: str = eqx.field(static=True)

    @staticmethod
    def init(axis, *, key, act=jax.nn.gelu, name="layer"):
        return Layer(axn.random.normal(key, axis), act, eqx.nn.Dropout(0.1), 4, True, name)

    def __call__(self, x):
        return axn.named(self.act((x * self.weight).array), x.names)


def test_the_constructor_of_a_module_is_vmapped_over_keys():
    Layers = axn.Axis("layers", 3)
    keys = jax.random.split(jax.random.key(0), 3)
    stacked = axn.vmap(Layer.init, Layers)(E, key=keys, act=jnp.tanh, name="first")
    assert stacked.act is jnp.tanh
    assert (stacked.heads, stacked.causal, stacked.name) == (4, True, "first")
    assert (stacked.dropout.p, stacked.dropout.inference) == (0.1, False)
    expected = jnp.stack([jax.random.normal(key, (4,)) for key in keys])
    same(stacked.weight, ("layers", "embed"), expected)
    y = axn.vmap(lambda layer, x: layer(x), Layers)(stacked, draw(E))
    same(y, ("layers", "embed"), jnp.tanh(expected * draw(E).array))


def test_each_of_named_keys_is_one_that_jax_takes():
    Layers = axn.Axis("layers", 3)
    keys = axn.random.split(jax.random.key(0), (B, Layers))
    expected = jax.vmap(jax.vmap(lambda key: jax.random.normal(jax.random.split(key)[0], 4)))(keys.array)

    def drawn(key):
        return axn.named(jax.random.normal(jax.random.split(key)[0], 4), "embed")

    same(axn.vmap(drawn, (B, Layers))(keys), ("batch", "layers", "embed"), expected)
    one_row = keys["batch", 0]
    same(axn.map(drawn, Layers)(one_row), ("layers", "embed"), expected[0])
    last, rows = axn.scan(lambda total, *, key: (total + drawn(key), drawn(key)), Layers)(axn.zeros(E), key=one_row)
    same(rows, ("layers", "embed"), expected[0])
    same(last, ("embed",), expected[0].sum(0))
    stacked = axn.nn.Stacked.init(Layers, axn.nn.Linear)(E, B, key=one_row)
    raw = axn.nn.Stacked.init(Layers, axn.nn.Linear)(E, B, key=one_row.array)
    np.testing.assert_array_equal(stacked.stacked.weight.array, raw.stacked.weight.array)


def test_keys_inside_of_a_tree_keep_its_structure():
    keys = axn.random.split(jax.random.key(0), B)
    (same_keys,) = axn.vmap(lambda tree: tree, B)((keys,))
    assert same_keys.axes == keys.axes


def test_a_module_that_is_the_function():
    layer = Layer.init(E, key=jax.random.key(1), act=jnp.tanh)
    same(axn.vmap(layer, B)(draw(B, E)), ("batch", "embed"), jnp.tanh(draw(B, E).array * layer.weight.array))


def test_an_equinox_layer_without_names():
    linears = axn.vmap(lambda key: eqx.nn.Linear(2, 3, key=key), axn.Axis("layers", 4))(
        jax.random.split(jax.random.key(0), 4)
    )
    assert linears.weight.shape == (4, 3, 2)
    assert linears.use_bias is True
    raw = eqx.filter_vmap(lambda key: eqx.nn.Linear(2, 3, key=key))(jax.random.split(jax.random.key(0), 4))
    assert eqx.tree_equal(linears, raw)


def test_static_arguments_are_passed_whole():
    def f(x, act, mode, nothing, *, flag):
        assert mode == "train"
        assert nothing is None
        return axn.named(act(x.array), x.names) if flag else x

    same(axn.vmap(f, B)(draw(B), jnp.tanh, "train", None, flag=True), ("batch",), jnp.tanh(draw(B).array))


def test_named_arrays_that_hold_nothing():
    tree = {"a": draw(B), "b": axn.NamedArray(None, ("embed",))}
    out = axn.vmap(lambda t: {"a": t["a"] + 1, "b": t["b"]}, B)(tree)
    assert out["b"].array is None
    assert out["b"].names == ("batch", "embed")


# sizes
def test_an_empty_axis():
    y = axn.vmap(lambda a: a.sum(), "batch")(axn.zeros((axn.Axis("batch", 0), E)))
    same(y, ("batch",), np.zeros(0))


def test_two_sizes_are_an_error_that_names_the_arguments():
    with pytest.raises(AxisSizeError) as error:
        axn.vmap(lambda a, *, b: a, "batch")(draw(B, E), b={"w": axn.ones({"batch": 7})})
    assert str(error.value) == (
        "vmap: axis 'batch' has two sizes: 8 and 7\n  argument 0 has: batch=8, embed=4\n  argument b['w'] has: batch=7"
    )


def test_a_given_size_is_checked():
    with pytest.raises(AxisSizeError) as error:
        axn.vmap(lambda a: a, axn.Axis("batch", 5))(draw(B))
    assert str(error.value) == (
        "vmap: axis 'batch' has two sizes: 5 and 8\n  asked for: batch=5\n  argument 0 has: batch=8"
    )


def test_a_plain_array_of_another_size_is_told_how_to_stay_whole():
    with pytest.raises(AxisSizeError) as error:
        axn.vmap(lambda a, table: a, B)(draw(B), jnp.ones((5, 2)))
    assert str(error.value) == (
        "vmap: axis 'batch' has two sizes: 8 and 5\n"
        "  asked for: batch=8\n"
        "  argument 0 has: batch=8\n"
        "  argument 1 has: shape (5, 2), along dimension 0\n"
        "  hint: to pass a plain array whole, give None for it: args=(None, ...), or default=None for all"
    )


def test_a_name_that_nobody_has():
    with pytest.raises(AxisSizeError) as error:
        axn.vmap(lambda a: a, "bacth")(draw(B, E))
    assert str(error.value) == (
        "vmap: no argument has axis 'bacth', so its size is unknown\n"
        "  an argument has: batch=8, embed=4\n"
        "  hint: did you mean 'batch'? Or, for a new axis, give its size: Axis(\"bacth\", size)"
    )


def test_a_dimension_that_does_not_exist():
    with pytest.raises(
        OperandError, match=r"^vmap: dimension 2 of argument 1 is to be mapped, but its shape is \(8, 2\)$"
    ):
        axn.vmap(lambda a, b: a, B, args=(0, 2))(draw(B), jnp.ones((8, 2)))


def test_args_that_do_not_fit_the_function():
    def f(x, mask):
        return x

    with pytest.raises(OperandError, match="did you mean 'mask'"):
        axn.vmap(f, B, kwargs={"maks": None})
    with pytest.raises(OperandError, match="too many positional arguments"):
        axn.vmap(f, B, args=(0, None, None))


def test_args_that_are_no_prefix():
    with pytest.raises(OperandError, match=r"^vmap: the value for the arguments must be a tree prefix of them"):
        axn.vmap(lambda t: t, B, args=({"a": 0},))({"b": jnp.ones(8)})


def test_a_result_that_already_has_the_axis_is_an_error():
    x = draw(B)
    with pytest.raises(AxisClashError) as error:
        axn.vmap(lambda: x, B)()
    assert str(error.value) == (
        "vmap: a result already has axis 'batch', along which results are stacked\n"
        "  the result of one step has: batch=8\n"
        '  hint: pass arrays with axis "batch" as arguments, so that the function gets a part of them, or rename it'
    )


def test_an_array_that_lost_its_axis_is_an_error():
    lost = jax.tree.map(lambda a: a[0], draw(B, E))
    with pytest.raises(LostAxisError):
        axn.vmap(lambda a: a, E)(lost)


# under other transformations
def loss(x, w):
    return axn.vmap(lambda a: axn.dot(a, w, axis=E).sum() ** 2, B)(x).sum().scalar()


def raw_loss(x, w):
    return (jax.vmap(lambda a: (a @ w).sum() ** 2)(x)).sum()


def test_under_jit_and_grad():
    x, w = draw(B, E), draw(E, S, seed=1)
    got = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, w)
    expected = jax.grad(raw_loss, argnums=(0, 1))(x.array, w.array)
    same(got[0], ("batch", "embed"), expected[0])
    same(got[1], ("embed", "seq"), expected[1])


def test_inside_of_raw_vmap_over_an_anonymous_dimension():
    x = draw(S, B, E).untag("seq")
    y = jax.vmap(axn.vmap(lambda a: a.sum(), B))(x)
    same(y, ("batch",), x.array.sum(-1))
    assert y.array.shape == (3, 8)


def test_inside_of_itself_and_of_scan():
    x = draw(S, B, E)
    _, y = axn.scan(lambda c, part: (c, axn.vmap(lambda a: axn.vmap(lambda s: s * 2, E)(a), B)(part)), S)(0.0, x)
    same(y, ("seq", "batch", "embed"), 2 * x.array)


def test_there_are_no_more_equations_than_by_hand():
    x = draw(B, E)
    assert count_equations(axn.vmap(lambda a: axn.sin(a), B), x) <= count_equations(jax.vmap(jnp.sin), x.array)


# on a mesh
@pytest.fixture(params=["auto", "explicit"])
def mesh(request, auto_mesh, explicit_mesh):
    chosen = auto_mesh if request.param == "auto" else explicit_mesh
    with axn.set_mesh(chosen):
        yield chosen


@pytest.mark.parametrize("jit", [False, True])
def test_the_mapped_axis_may_be_sharded(mesh, jit):
    x = axn.shard(draw(B, E), {"batch": "data"})
    f = axn.vmap(lambda a: a * 2, B)
    y = (jax.jit(f) if jit else f)(x)
    same(y, ("batch", "embed"), 2 * draw(B, E).array)
    assert y.sharding.spec[0] == "data"


@pytest.mark.parametrize("jit", [False, True])
def test_arguments_that_are_laid_out_differently(mesh, jit):
    x = axn.shard(draw(B, E), {"batch": "data", "embed": "model"})
    y = axn.shard(draw(E, B, seed=1), {"embed": "data"})
    f = axn.vmap(lambda a, b: a + b, B)
    got = (jax.jit(f) if jit else f)(x, y)
    same(got, ("batch", "embed"), draw(B, E).array + draw(E, B, seed=1).array.T)


def test_constraints_inside_keep_the_mapped_axis_where_the_mapping_has_it(mesh):
    with axn.axis_mapping({"batch": "data", "embed": "model"}):
        y = jax.jit(axn.vmap(lambda a: axn.auto_sharded(a * 2), B))(draw(B, E))
    same(y, ("batch", "embed"), 2 * draw(B, E).array)
    assert y.sharding.spec == P("data", "model")


@pytest.mark.parametrize("mapping", [None, {"batch": "data"}, {"batch": "data", "embed": None, "seq": "model"}])
def test_parameters_that_are_sharded_over_the_mesh_axis_of_the_batch(mesh, mapping):
    x, w = draw(B, E), draw(E, S.resize(4), seed=1)
    placed = axn.shard(x, {"batch": "data"}), axn.shard(w, {"embed": "data"})

    def f(x, w):
        return axn.vmap(lambda a: axn.tanh(axn.dot(a, w, axis=E) + w["embed", 0]), B)(x)

    if mapping is None:
        y = jax.jit(f)(*placed)
    else:
        with axn.axis_mapping(mapping):
            y = jax.jit(f)(*placed)
    inputs, weight = np.asarray(x.array), np.asarray(w.array)
    expected = np.tanh(inputs @ weight + weight[0])
    same(y, ("batch", "seq"), expected)
    assert y.sharding.spec[0] == "data"
    gradient = jax.jit(jax.grad(lambda w: f(placed[0], w).sum().scalar()))(placed[1])
    slopes = 1 - expected**2
    of_product = inputs.T @ slopes
    of_product[0] += slopes.sum(0)
    same(gradient, ("embed", "seq"), of_product)


def test_a_new_axis_with_a_mapping(mesh):
    with axn.axis_mapping({"copy": "data", "embed": "model"}):
        y = jax.jit(axn.vmap(lambda a: axn.auto_sharded(a * 2), axn.Axis("copy", 4)))(draw(E))
    same(y, ("copy", "embed"), np.tile(2 * draw(E).array, (4, 1)))


def test_several_mapped_axes(mesh):
    with axn.axis_mapping({"batch": "data", "embed": "model"}):
        y = jax.jit(axn.vmap(lambda a: axn.auto_sharded(a.sum()), (B, E)))(draw(B, S, E))
    same(y, ("batch", "embed"), draw(B, S, E).array.sum(1))


def test_a_mapped_size_that_does_not_divide(mesh):
    with axn.axis_mapping({"seq": "data"}), pytest.raises(ShardingError) as error:
        axn.vmap(lambda a: a, S)(draw(S))
    assert str(error.value) == (
        "vmap: seq=3 cannot be split evenly in 4 over mesh axis data\n"
        "  array has: seq=3\n"
        "  mapping: {'seq': 'data'}\n"
        "  mesh: data=4, model=2\n"
        "  hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'seq' to None"
    )


@pytest.mark.parametrize("manual", [{"data"}, {"data", "model"}])
def test_inside_of_shard_map(mesh, manual):
    def local(x):
        assert x.shape == {"batch": 2, "embed": 4}
        return axn.vmap(lambda a: axn.auto_sharded(a * 2), "batch")(x)

    with axn.axis_mapping({"batch": "data", "embed": None}):
        f = jax.shard_map(local, in_specs=P("data"), out_specs=P("data"), axis_names=manual)
        y = jax.jit(f)(axn.shard(draw(B, E)))
    same(y, ("batch", "embed"), 2 * draw(B, E).array)


@pytest.mark.parametrize("entry", ["model", ("data", "model")])
def test_the_mapped_axis_on_an_auto_mesh_axis_inside_of_a_shard_map(entry, auto_mesh):
    mapping, x = {"batch": entry}, draw(B, E)
    f = axn.shard_map(
        axn.vmap(lambda a: axn.auto_sharded(a * a) + axn.vmap(lambda b: b, "embed")(a), "batch"),
        mapping,
        manual_axes="data",
    )
    with axn.set_mesh(auto_mesh):
        y = jax.jit(f)(x)
        assert y.sharding.spec[0] == entry
        for g in (f, jax.jit(f)):
            gradient = jax.grad(lambda x, g=g: g(x).sum().scalar())(x)
            same(gradient, ("batch", "embed"), 2 * x.array + 1)
    same(y, ("batch", "embed"), x.array**2 + x.array)


def test_what_a_shard_map_closes_over_is_mapped_beside_auto_mesh_axes(auto_mesh):
    w, numbers = draw(B, seed=1), np.arange(4.0, dtype=np.float32)
    mapping = {"batch": "model", "copy": "model", "embed": None}

    def f(x):
        scaled, text = axn.vmap(lambda row, w, key: (row * w, key), "batch")(x, w, "text")
        assert text == "text"
        copies = axn.vmap(lambda n: axn.named(numbers, E) * n, axn.Axis("copy", 4))(2.0)
        return scaled, copies, axn.vmap(lambda n, r: n + r, "copy", default=0)(numbers, copies)

    scaled, copies, sums = axn.shard_map(f, mapping, auto_mesh, manual_axes="data", strict=False)(draw(B, E))
    same(scaled, ("batch", "embed"), draw(B, E).array * w.array[:, None])
    same(copies, ("copy", "embed"), np.stack([2 * numbers] * 4))
    same(sums, ("copy", "embed"), np.stack([2 * numbers] * 4) + numbers[:, None])


def test_on_a_mesh_of_mixed_axes():
    mixed = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with axn.set_mesh(mixed), axn.axis_mapping({"batch": "data", "embed": "model"}):
        y = jax.jit(axn.vmap(lambda a: axn.auto_sharded(a * 2), B))(draw(B, E))
    same(y, ("batch", "embed"), 2 * draw(B, E).array)
    assert y.sharding.spec == P("data", "model")


# Of a part of x, of what is not mapped (a vector w and a table t), and of a mapped position i: the same in raw JAX.
F = axn.Axis("feature", 16)
UNMAPPED = {
    "a sum": (lambda x, w, t, i: x + w, lambda x, w, t, i: x + w),
    "as it is": (lambda x, w, t, i: (x, w, [t]), lambda x, w, t, i: (x, w, [t])),
    "without its axes": (lambda x, w, t, i: w.array * 2, lambda x, w, t, i: w * 2),
    "a position": (lambda x, w, t, i: t["feature", i], lambda x, w, t, i: t[i]),
    "two positions": (lambda x, w, t, i: t["feature", i, "embed", i], lambda x, w, t, i: t[i].at[i].get(mode="clip")),
    "a slice": (
        lambda x, w, t, i: t.slice("feature", start=i, length=4),
        lambda x, w, t, i: jax.lax.dynamic_slice_in_dim(t, i, 4),
    ),
    "a window over an end": (
        lambda x, w, t, i: t["feature", axn.dslice(i - 2, 4)],
        lambda x, w, t, i: jax.lax.dynamic_slice_in_dim(jnp.pad(t, [(2, 0), (0, 0)]), i, 4),
    ),
    "blocks of both": (
        lambda x, w, t, i: (t["feature", axn.dblock(i, 2)].sum("embed"), x["feature", axn.dblock(i, 2)]),
        lambda x, w, t, i: (jax.lax.dynamic_slice_in_dim(t, 2 * i, 2).sum(1), jax.lax.dynamic_slice(x, (2 * i,), (2,))),
    ),
    "a window beside positions": (
        lambda x, w, t, i: t["feature", axn.dslice(i, 4), "embed", axn.named(np.array([3, 1]), "k")],
        lambda x, w, t, i: jax.lax.dynamic_slice_in_dim(t, i, 4)[:, np.array([3, 1])],
    ),
    "written to an element": (
        lambda x, w, t, i: w.at["feature", 1].set(x.sum("feature")),
        lambda x, w, t, i: w.at[1].set(x.sum()),
    ),
    "written to a position": (
        lambda x, w, t, i: t.at["feature", i].add(x["feature", :4].rename({"feature": "embed"})),
        lambda x, w, t, i: t.at[i].add(x[:4]),
    ),
    "updated_slice": (
        lambda x, w, t, i: axn.updated_slice(w, {"feature": i}, x["feature", :4]),
        lambda x, w, t, i: jax.lax.dynamic_update_slice(w, x[:4], (i,)),
    ),
    "put_along_axis": (
        lambda x, w, t, i: axn.put_along_axis(w, axn.zeros(F, dtype=int) + i, 1.0, "feature"),
        lambda x, w, t, i: w.at[i].set(1.0),
    ),
    "along an axis": (lambda x, w, t, i: axn.sort(t, "embed"), lambda x, w, t, i: jnp.sort(t, 1)),
    "stacked": (lambda x, w, t, i: axn.stack("n", [x, w]), lambda x, w, t, i: jnp.stack([x, w])),
    "gradients": (
        lambda x, w, t, i: axn.value_and_grad(lambda t, w: (w * x * w * t).sum(), (0, -1))(t, w)[1],
        lambda x, w, t, i: jax.grad(lambda t, w: (w[:, None] * x[:, None] * w[:, None] * t).sum(), (0, 1))(t, w),
    ),
    "a carry that becomes mapped": (
        lambda x, w, t, i: axn.fold(lambda carry, row: carry + x, "embed")(w, t),
        lambda x, w, t, i: w + 4 * x,
    ),
    "a fold from it": (
        lambda x, w, t, i: axn.fold(lambda carry, row: carry * 2 + row, "embed")(w, t),
        lambda x, w, t, i: functools.reduce(lambda carry, row: carry * 2 + row, t.T, w),
    ),
    "a vmap over it": (
        lambda x, w, t, i: axn.vmap(lambda row, w: (row * x, row, w), "embed")(t, w),
        lambda x, w, t, i: (t.T * x, t.T, jnp.broadcast_to(w, (4, 16))),
    ),
}


POSITIONS = axn.named(np.arange(8, dtype=np.int32), B)


def passed(name, x, w, t, i):
    return axn.vmap(UNMAPPED[name][0], "batch")(x, w, t, i)


def closed_over(name, x, w, t, i):
    return axn.vmap(lambda x, i: UNMAPPED[name][0](x, w, t, i), "batch")(x, i)


def in_raw_jax(name, x, w, t, i):
    return jax.vmap(UNMAPPED[name][1], in_axes=(0, None, None, 0))(x, w, t, i)


def squared(f, name):
    """Differentiate the sum of squares of all results, which come along."""

    def total(x, w, t, i):
        result = f(name, x, w, t, i)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(result)), result

    return jax.grad(total, (0, 1, 2), has_aux=True)


@functools.cache
def split_parts(mesh, split):
    """Lay out x and i along the mapped axis, and w and t along others, if any, over the same mesh axis."""
    with axn.set_mesh(mesh):
        x, i = axn.shard(jax.device_get((draw(B, F), POSITIONS)), {"batch": "data"})
        vector, table = jax.device_get((draw(F, seed=1), draw(F, E, seed=2)))
        w, t = axn.shard((vector, table), dict.fromkeys(split, "data"), strict=False)
    return x, w, t, i


def of_split_parts(name, mesh, split):
    """Make a job for `together`, as all of this is twelve times as many programs otherwise."""
    return lambda *parts: [squared(f, name)(*parts) for f in (passed, closed_over)], split_parts(mesh, split)


def of_raw_parts(name):
    return squared(in_raw_jax, name), [
        part.array for part in (draw(B, F), draw(F, seed=1), draw(F, E, seed=2), POSITIONS)
    ]


@pytest.mark.parametrize("name", UNMAPPED)
def test_what_is_not_mapped_may_be_split_over_the_mesh_axis_of_the_mapped_axis(
    name, explicit_mesh, mixed_mesh, request
):
    """A ninth of the rows also run op by op."""
    is_eager = request.config.getoption("--all-rows") or in_ninth(name)
    beside = list_beside(request, "name")
    expected = jax.tree.leaves(together(of_raw_parts, beside, name))
    for mesh in (explicit_mesh, mixed_mesh):
        for split in (("feature",), ("embed",), ()):
            parts = split_parts(mesh, split)
            with axn.set_mesh(mesh):
                both = together(of_split_parts, beside, name, mesh, split)
                eager = [(both[0][0], passed(name, *parts))] if is_eager else []
            for gradients, result in both:
                assert list(map(jax.typeof, jax.tree.leaves(gradients))) == [jax.typeof(y.array) for y in parts[:3]]
                assert {jax.typeof(leaf).sharding.spec[0] for leaf in jax.tree.leaves(result)} == {"data"}
            for found in (*both, *eager):
                for mine, theirs in zip(jax.tree.leaves(found), expected, strict=True):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_arrays_that_were_made_outside_of_the_mesh_meet_those_inside(auto_mesh, explicit_mesh):
    outside = draw(E, B, seed=1)
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            x = axn.shard(draw(B, E), {"batch": "data"})
            y = jax.jit(axn.vmap(lambda a, b: a + b, B))(x, outside)
            same(y, ("batch", "embed"), draw(B, E).array + outside.array.T)
            z = jax.jit(axn.nmap(jnp.add))(x, outside)
            same(z, ("batch", "embed"), draw(B, E).array + outside.array.T)
            last = jax.jit(axn.fold(lambda c, a: c + a, B))(axn.zeros(E), outside)
            same(last, ("embed",), outside.array.sum(1))


def test_one_mapped_function_serves_calls_of_all_kinds():
    f = axn.vmap(lambda x, y, scale=1.0: x * scale + y, "batch")
    for _ in range(2):
        same(f(draw(B, E), draw(B, E)), ("batch", "embed"), 2 * draw(B, E).array)
        same(f(draw(E, B), draw(E), scale=3.0), ("batch", "embed"), 3 * draw(E, B).array.T + draw(E).array)
        same(f(draw(E), draw(B, E), scale=2.0), ("batch", "embed"), 2 * draw(E).array + draw(B, E).array)
