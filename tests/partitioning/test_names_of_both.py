"""Names that both the arrays and the mesh have, and names that neither has, in collectives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError, OperandError, ShardingError

pytestmark = pytest.mark.sampled

B, X, E = axn.make_axes(batch=8, expert=3, embed=4)
VALUES = np.random.default_rng(0).normal(size=(8, 3, 4)).astype(np.float32)
x = axn.named(VALUES, (B, X, E))
KEY = jax.random.key(0)
MAPPINGS = [{"batch": "expert"}, {"batch": ("data", "expert")}]


def make_mesh(kind=AxisType.Auto, names=("data", "expert")):
    return jax.make_mesh((4, 2), names, axis_types=(kind, kind))


def softmax(x):
    e = axn.exp(x - axn.pmax(x.max("expert"), X))
    return e / axn.psum(e.sum("expert"), X)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=str)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_an_axis_object_is_of_the_arrays_and_over_is_of_the_mesh(kind, mapping):
    def f(x):
        assert axn.fold_key(KEY, X) is KEY
        assert axn.pcast(x.sum("expert"), X).array is not None
        assert [axn.collectives.axis_size(X), axn.collectives.axis_size(over="expert")] == [1, 2]
        total = x.sum("expert")
        for collective in (axn.psum, axn.pmean, axn.pmax, axn.pmin, axn.ppermute):
            assert collective(total, X).array is total.array
        for collective in (axn.all_gather, axn.psum_scatter):
            assert collective(x, X).array is x.array
        device, none = (index[None] for index in (axn.axis_index(over="expert"), axn.axis_index(X)))
        ends = axn.named(device + 10 * none, "ends")
        own = axn.named(jax.random.key_data(axn.fold_key(KEY, over="expert"))[None], ("ends", "word"))
        # both devices of a pair add up what they have gathered
        twice = axn.psum_scatter(axn.all_gather(x, over="expert"), over="expert")
        parts = [x.max("batch"), -x.max("batch")]
        sums = [axn.psum(x.sum("batch"), over=axes)]
        sums += [axn.pmax(parts[0], over=axes), -axn.pmin(parts[1], over=axes)]
        return softmax(x), twice, axn.ppermute(x, over="expert"), sums, ends, own

    axes = mapping["batch"] if isinstance(mapping["batch"], tuple) else ("expert",)
    out = {**mapping, "ends": "expert"}
    mapped = axn.shard_map(f, mapping, make_mesh(kind), out_mapping=out, strict=False)
    probabilities, twice, moved, (total, *largest), ends, own = mapped(x)
    e = np.exp(VALUES - VALUES.max(1, keepdims=True))
    np.testing.assert_allclose(probabilities.array, e / e.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(twice.array, 2 * VALUES)
    pairs = VALUES.reshape(4 if len(axes) == 2 else 1, 2, -1, 3, 4)
    np.testing.assert_array_equal(moved.array, pairs[:, ::-1].reshape(8, 3, 4))
    np.testing.assert_allclose(total.array, VALUES.sum(0), rtol=1e-5, atol=1e-6)
    for found in largest:
        np.testing.assert_array_equal(found.array, VALUES.max(0))
    assert ends.array.tolist() == [0, 1]
    expected = [jax.random.key_data(jax.random.fold_in(KEY, i)) for i in range(2)]
    np.testing.assert_array_equal(own.array, expected)


BOTH = {
    "psum": lambda x: axn.psum(x.sum("expert"), "expert"),
    "psum of what has the axis": lambda x: axn.psum(x, "expert"),
    "pmean": lambda x: axn.pmean(x.mean(("batch", "expert")), ("batch", "expert")),
    "pmax": lambda x: axn.pmax({"x": x.max("expert")}, "expert"),
    "pmin": lambda x: axn.pmin(x.min("expert"), {"expert": None}),
    "psum of a row": lambda x: axn.vmap(lambda x: axn.psum(x, "expert"), "expert")(x),
    "psum of a number": lambda x: axn.psum(1, "expert"),
    "ppermute": lambda x: axn.ppermute(x, "expert"),
    "pcast": lambda x: axn.pcast(x.sum("expert"), "expert"),
    "all_gather": lambda x: axn.all_gather(x.sum("expert"), "expert"),
    "all_gather of what has the axis": lambda x: axn.all_gather(x, "expert"),
    "psum_scatter": lambda x: axn.psum_scatter(x, "expert"),
    "axis_index": lambda x: axn.axis_index("expert"),
    "axis_size": lambda x: axn.collectives.axis_size("expert"),
    "fold_key": lambda x: axn.fold_key(KEY, "expert"),
}


@pytest.mark.parametrize("mapping", [*MAPPINGS, {"batch": "data", "expert": None}], ids=str)
def test_a_name_of_both_is_refused(mapping):
    raised = {}

    def f(x):
        for what, call in BOTH.items():
            with pytest.raises(ShardingError) as error:
                call(x)
            raised[what] = str(error.value)
        return x

    jax.eval_shape(axn.shard_map(f, mapping, make_mesh(), manual_axes=["data", "expert"], strict=False), x)
    for what, text in raised.items():
        function = what.split()[0]
        first, *facts, hint = text.splitlines()
        assert first == f"{function}: 'expert' is an axis of arrays and a mesh axis"
        assert facts[-2:] == [f"  mapping: {mapping}", "  mesh: data=4, expert=2"]
        assert hint == '  hint: over="expert" for the mesh axis, or axn.Axis("expert", 3) for the axis of arrays'


def test_where_both_meanings_are_the_same_devices_neither_is_asked_for():
    """The batch lies over a mesh axis of its own name; so do parts of parameters."""
    mesh = make_mesh(names=("batch", "model"))
    both = axn.Mappings({"embed": "batch"}, {"batch": "batch"})
    w = axn.named(VALUES[0], (X, E))

    def f(w, x):
        whole = axn.all_gather(w, "batch")
        assert (whole.shape, axn.collectives.axis_size("batch")) == ({"expert": 3, "embed": 4}, 4)
        parts = axn.psum_scatter(whole, "batch").rename({"embed": "part"})
        return axn.psum((x * whole).sum("batch"), "batch"), parts

    total, parts = axn.shard_map(f, both, mesh, out_mapping={"part": "batch"})(w, x)
    np.testing.assert_allclose(total.array, (VALUES * VALUES[0]).sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(parts.array, 4 * VALUES[0])


def test_layers_know_which_axis_they_mean():
    """Theirs are axes of arrays, whatever the mesh axes are called."""
    mesh = make_mesh(names=("batch", "embed"))
    mapping = {"batch": ("batch", "embed")}
    norm = nn.BatchNorm.init(E, B)
    tall = axn.named(VALUES[:, 0], (B, E))
    state = norm.initial_state()
    got, _ = axn.shard_map(lambda norm, state, x: norm(x, state), mapping, mesh)(norm, state, tall)
    mean, var = VALUES[:, 0].mean(0), VALUES[:, 0].var(0)
    np.testing.assert_allclose(got.array, (VALUES[:, 0] - mean) / np.sqrt(var + norm.eps), rtol=1e-4, atol=1e-5)


def test_a_name_that_is_known_only_to_the_mesh_is_no_axis_object():
    made = axn.Axis("expert", 5)
    f = lambda x: axn.psum(x.broadcast_axis(made).sum("expert"), made)  # noqa: E731
    with pytest.raises(ShardingError) as error:
        axn.shard_map(f, {"batch": "expert"}, make_mesh())(axn.ones(B))
    assert str(error.value) == (
        "psum: 'expert' is a mesh axis, and an axis of neither the arguments nor the mapping\n"
        "  there are: batch, data, expert\n"
        '  hint: over="expert" for the mesh axis; an axis that is made inside needs no collective'
    )


NAMELESS = {
    "psum": lambda x, *a, **k: axn.psum(x, *a, **k),
    "all_gather": lambda x, *a, **k: axn.all_gather(x, *a, **k),
    "psum_scatter": lambda x, *a, **k: axn.psum_scatter(x, *a, **k),
    "ppermute": lambda x, *a, **k: axn.ppermute(x, *a, **k),
    "pcast": lambda x, *a, **k: axn.pcast(x, *a, **k),
    "axis_index": lambda x, *a, **k: axn.axis_index(*a, **k),
    "fold_key": lambda x, *a, **k: axn.fold_key(KEY, *a, **k),
}


@pytest.mark.parametrize("function", NAMELESS)
def test_an_axis_or_mesh_axes_are_needed(function):
    with pytest.raises(OperandError) as error:
        NAMELESS[function](x)
    assert str(error.value) == (
        f"{function}: no axis is given\n" + '  hint: name one, such as "batch", or a mesh axis with over="data"'
    )


# misspelt names where nothing is communicated
@pytest.mark.parametrize("function", NAMELESS)
def test_a_misspelt_name_is_an_error_outside_of_a_shard_map(function):
    call = NAMELESS[function]
    total = x.sum("batch")
    with axn.set_mesh(make_mesh()), axn.axis_mapping({"batch": "data"}):
        if function not in ("all_gather", "psum_scatter"):
            call(total, "batch")
            call(total, "neither of these")  # not mapped, under this mapping
            call(total, axn.Axis("bacth", 8))  # declared somewhere
        with pytest.raises((ShardingError, AxisNotFoundError)) as error:
            call(total, "bacth")
    if function in ("all_gather", "psum_scatter"):
        assert str(error.value) == f"{function}: no array has axis 'bacth'\n  axes of the arrays: embed, expert"
        return
    names = "batch, data, expert" if function in ("axis_index", "fold_key") else "batch, data, embed, expert"
    assert str(error.value) == (
        f"{function}: 'bacth' is an axis of neither the array, the mapping nor the mesh\n  there are: {names}\n"
        "  hint: did you mean 'batch'? Otherwise, give an Axis, or map 'bacth' to None"
    )


def test_a_misspelt_name_is_close_to_one_of_the_array_or_of_the_arguments():
    with pytest.raises(ShardingError, match="did you mean 'embed'"):
        axn.psum(x, "embd")

    @axn.named_jit
    def f(x):
        return axn.psum(x.sum("batch"), name)

    with axn.set_mesh(make_mesh()):
        name = "batch"
        assert jax.eval_shape(f, x).shape == {"expert": 3, "embed": 4}
        name = "bacth"
        with pytest.raises(ShardingError, match="did you mean 'batch'"):
            f(axn.named(jnp.asarray(VALUES), x.names))
