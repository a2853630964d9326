"""`scan`, `fold` and `map` over a named axis, against raw `lax.scan`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import axonym as axn
from axonym.errors import AxisClashError, AxisError, AxisSizeError, LostAxisError, OperandError
from tests.laws import count_equations

pytestmark = pytest.mark.sampled

B, T, E = axn.make_axes(batch=8, time=6, embed=4)


def draw(*axes: axn.Axis, seed: int = 0) -> axn.NamedArray:
    array = np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)
    # `jnp.asarray` would compile a program for each shape and mesh.
    place = None if jax.sharding.get_abstract_mesh().empty else jax.P()
    return axn.named(jax.device_put(array, place), axes)


def same(x: axn.NamedArray, names: tuple[str, ...], array) -> None:
    assert isinstance(x, axn.NamedArray)
    assert x.names == names
    assert x.array.shape == np.shape(array)
    np.testing.assert_allclose(x.array, array, rtol=1e-5, atol=1e-6)


def step(carry, x):
    carry = axn.tanh(carry + x)
    return carry, carry * 2


def raw_step(carry, x):
    carry = jnp.tanh(carry + x)
    return carry, carry * 2


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 2, 4, 100, True])
@pytest.mark.parametrize("remat", [False, "nested"])
def test_against_lax_scan(reverse, unroll, remat):
    x, init = draw(T, E), draw(E, seed=1)
    last, ys = axn.scan(step, T, reverse=reverse, unroll=unroll, remat=remat)(init, x)
    expected = lax.scan(raw_step, init.array, x.array, reverse=reverse)
    same(last, ("embed",), expected[0])
    same(ys, ("time", "embed"), expected[1])


@pytest.mark.parametrize("order", [(T, B, E), (B, T, E), (B, E, T)])
def test_the_axis_may_stand_anywhere_and_comes_first_in_the_outputs(order):
    x = draw(*order)
    seen = []

    def f(c, part):
        seen.append(part.names)
        return c, part + 1

    _, ys = axn.scan(f, "time")(0.0, x)
    assert seen[0] == ("batch", "embed")
    same(ys, ("time", "batch", "embed"), np.moveaxis(x.array, order.index(T), 0) + 1)


def test_whatever_has_the_axis_is_scanned_and_the_rest_is_passed_whole():
    raw = jnp.arange(12.0).reshape(6, 2)

    def f(c, tree, scale, act, *, shift, mode):
        assert tree["named"].names == ("embed",)
        assert tree["plain"].shape == (2,)
        assert tree["whole"].names == ("batch",)
        assert mode == "train"
        return c + tree["plain"].sum() * scale, act(tree["named"].array) + shift

    tree = {"named": draw(E, T), "plain": raw, "whole": draw(B), "nothing": None}
    last, ys = axn.scan(f, T)(0.0, tree, 2.0, jnp.tanh, shift=jnp.float32(1), mode="train")
    assert float(last) == 2 * raw.sum()
    np.testing.assert_allclose(ys, jnp.tanh(draw(E, T).array.T) + 1, rtol=1e-6)


def test_no_arguments_but_an_axis():
    last, ys = axn.scan(lambda c: (c + 1, c), T)(jnp.int32(0))
    assert int(last) == 6
    np.testing.assert_array_equal(ys, np.arange(6))


def test_anonymous_dimensions_of_arguments_and_outputs_stay_in_front():
    x = draw(B, T, E).untag("batch")
    _, ys = axn.scan(lambda c, part: (c, part * 2), T)(0.0, x)
    same(ys, ("time", "embed"), 2 * x.array)


def test_outputs_of_every_kind():
    def f(c, x):
        return c, {"n": x.sum(), "raw": x.array, "number": 1.5, "none": None, "act": jnp.tanh, "text": "text"}

    _, ys = axn.scan(f, T)(0.0, draw(T, E))
    same(ys["n"], ("time",), draw(T, E).array.sum(1))
    assert ys["raw"].shape == (6, 4)
    np.testing.assert_array_equal(ys["number"], np.full(6, 1.5))  # as lax.scan does
    assert (ys["none"], ys["act"], ys["text"]) == (None, jnp.tanh, "text")


@pytest.mark.parametrize("remat", [False, True, "nested"])
def test_an_empty_axis(remat):
    x = axn.zeros((axn.Axis("time", 0), E))
    last, ys = axn.scan(step, "time", remat=remat)(draw(E), x)
    same(last, ("embed",), draw(E).array)
    same(ys, ("time", "embed"), np.zeros((0, 4)))


def test_is_scanned_chooses_leaves():
    raw, x = jnp.ones((6, 2)), draw(T, E)

    def f(c, a, b):
        return c, (a.sum(), b.sum())

    only_named = lambda leaf: isinstance(leaf, axn.NamedArray)  # noqa: E731
    for is_scanned in (only_named, ((True, False), {}), ((only_named, False), {})):
        _, (a, b) = axn.scan(f, T, is_scanned=is_scanned)(0.0, x, raw)
        same(a, ("time",), x.array.sum(1))
        np.testing.assert_array_equal(b, np.full(6, 12))
    _, (a, b) = axn.scan(f, T, is_scanned=False)(0.0, x, raw)
    same(a, ("time",), np.full(6, x.array.sum()))


# the carry
def test_a_carry_may_be_any_tree():
    def f(c, x):
        return {"n": c["n"] + x, "count": c["count"] + 1, "act": c["act"], "key": jax.random.split(c["key"])[0]}, None

    init = {"n": axn.zeros(E), "count": 0, "act": jnp.tanh, "key": jax.random.key(0)}
    last, _ = axn.scan(f, T)(init, draw(T, E))
    same(last["n"], ("embed",), draw(T, E).array.sum(0))
    assert int(last["count"]) == 6
    assert last["act"] is jnp.tanh
    assert jnp.issubdtype(last["key"].dtype, jax.dtypes.prng_key)


def test_a_carry_may_hold_named_arrays_that_hold_nothing():
    init = (draw(E), axn.NamedArray(None, ("batch",)))
    last = axn.fold(lambda c, x: (c[0] + x, axn.NamedArray(None, ("batch",))), T)(init, draw(T, E))
    assert last[1].array is None
    with pytest.raises(OperandError, match="changes what an entry of the carry is"):
        axn.fold(lambda c, x: (c[0] + x, axn.NamedArray(None, ("other",))), T)(init, draw(T, E))


def test_a_plain_carry_that_changes_its_shape():
    with pytest.raises(AxisSizeError, match=r"before: a plain array of shape \(3,\)\n  after: a plain array of shape"):
        axn.fold(lambda c: jnp.ones(4), T)(jnp.ones(3))


def test_a_carry_keeps_its_order_of_axes():
    init, x = draw(B, E), draw(T, E, B, seed=1)
    last, ys = axn.scan(lambda c, a: (a + c, a + c), T)(init, x)
    assert ys.names == ("time", "embed", "batch")
    same(last, ("batch", "embed"), init.array + x.array.sum(0).T)


def test_a_carry_with_anonymous_dimensions_keeps_its_order_too():
    init = draw(T, B, E).untag("time")
    last = axn.fold(lambda c: c.rearrange(("embed", "batch")), axn.Axis("steps", 3))(init)
    same(last, ("batch", "embed"), init.array)


@pytest.mark.parametrize("loop", ["scan", "fold"])
def test_a_carry_that_changes_its_axes(loop):
    def f(c, x):
        following = x.rename({"embed": "mlp"})
        return following if loop == "fold" else (following, None)

    with pytest.raises(AxisError) as error:
        getattr(axn, loop)(f, T)(draw(E), draw(T, E))
    assert str(error.value) == (
        f"{loop}: a step changes the axes of the carry\n"
        "  before: a NamedArray with embed=4\n"
        "  after: a NamedArray with mlp=4\n"
        "  hint: start with the axes that a step returns, or reduce what it returns"
    )


def test_a_carry_that_changes_a_size():
    with pytest.raises(AxisSizeError) as error:
        axn.fold(lambda c: axn.concatenate("embed", [c, c]), T)(draw(E))
    assert str(error.value) == (
        "fold: a step changes sizes of the carry\n"
        "  before: a NamedArray with embed=4\n"
        "  after: a NamedArray with embed=8"
    )


def test_a_carry_that_changes_its_structure():
    with pytest.raises(OperandError, match=r"^scan: a step changes the structure of the carry\n  before: .*'a'"):
        axn.scan(lambda c: ({"b": c["a"]}, None), T)({"a": jnp.zeros(3)})


def test_a_fold_whose_step_returns_a_pair_is_a_scan():
    with pytest.raises(OperandError, match="\n  hint: use scan for a step that returns a pair of carry and output"):
        axn.fold(lambda c, x: (c + x, x), T)(draw(E), draw(T, E))


NAMED = "\n  hint: start with a named array too, such as axn.zeros((...))"


@pytest.mark.parametrize(
    ("init", "following", "before", "after"),
    [
        (lambda: axn.ones(E), lambda: jnp.ones(4), "a NamedArray with embed=4", "a plain array of shape (4,)"),
        (lambda: jnp.ones(4), lambda: axn.ones(E), "a plain array of shape (4,)", f"a NamedArray with embed=4{NAMED}"),
        (lambda: "train", lambda: "eval", "'train'", "'eval'"),
        (lambda: "train", lambda: 1.0, "'train'", "1.0"),
    ],
)
def test_a_carry_that_changes_its_kind(init, following, before, after):
    with pytest.raises(OperandError) as error:
        axn.scan(lambda c: ((following(), c[1]), None), T)((init(), 0.0))
    assert str(error.value) == (
        f"scan: a step changes what an entry of the carry is\n  before: {before}\n  after: {after}"
    )


def test_a_carry_that_changes_its_dtype():
    with pytest.raises(TypeError, match="float32"):
        axn.fold(lambda c: c.astype(jnp.float32) * 1.5, T)(axn.ones(E, jnp.int32))
    with pytest.raises(OperandError) as error:
        axn.scan(lambda c: (c * 1.5, None), T)(np.int32(1))
    assert str(error.value) == (
        "scan: a step changes the dtype of the carry\n"
        "  before: a plain array of shape (), int32\n"
        "  after: a plain array of shape (), float32\n"
        '  hint: cast what it returns, x.astype("int32"), or start with float32'
    )


@pytest.mark.parametrize("remat", [False, True, "nested"])
def test_the_dtype_that_changes_is_found_by_its_path(remat):
    step = lambda c: {**c, "loss": (c["loss"][0], c["loss"][1].astype(jnp.bfloat16))}  # noqa: E731
    x = draw(E)
    with pytest.raises(OperandError) as error:
        axn.fold(step, T, remat=remat)({"n": x, "loss": (x, x), "last": "text"})
    assert str(error.value) == (
        "fold: a step changes the dtype of carry['loss'][1]\n"
        "  before: a NamedArray with embed=4, float32\n"
        "  after: a NamedArray with embed=4, bfloat16\n"
        '  hint: cast what it returns, x.astype("float32"), or start with bfloat16'
    )


ROWS = axn.Axis("rows", 8)
VARYING = {
    "one that starts the same": (
        {"rows": "data"},
        lambda x: axn.fold(lambda c, row: c + row, E)(axn.zeros(axn.Axis("rows", 2)), x),
        "fold: a step makes the carry differ between the devices of mesh axis 'data'\n"
        "  before: a NamedArray with rows=2, varying over no mesh axis\n"
        "  after: a NamedArray with rows=2, varying over data\n"
        '  hint: let it vary from the start: axn.pcast(x, "rows")',
    ),
    "a number, deep in a tree": (
        {"rows": ("data", "model")},
        lambda x: axn.scan(lambda c, row: ({**c, "n": c["n"] + row.sum().array}, None), E)({"n": 0.0}, x)[0]["n"],
        "scan: a step makes carry['n'] differ between the devices of mesh axis 'data', 'model'\n"
        "  before: a plain array of shape (), varying over no mesh axis\n"
        "  after: a plain array of shape (), varying over data, model\n"
        '  hint: let it vary from the start: axn.pcast(x, "rows")',
    ),
    "one that no axis stands for": (
        {"rows": ("data", "model")},
        lambda x: axn.fold(lambda c, row: c + row, E)(axn.psum(x["embed", 0], "data"), x),
        "fold: a step makes the carry differ between the devices of mesh axis 'data'\n"
        "  before: a NamedArray with rows=1, varying over model\n"
        "  after: a NamedArray with rows=1, varying over data, model\n"
        '  hint: let it vary from the start: axn.pcast(x, "data")',
    ),
    "over two axes": (
        {"rows": "data", "embed": "model"},
        lambda x: axn.fold(lambda c: c + x, T)(axn.zeros(x.axes)),
        "fold: a step makes the carry differ between the devices of mesh axis 'data', 'model'\n"
        "  before: a NamedArray with rows=2, embed=2, varying over no mesh axis\n"
        "  after: a NamedArray with rows=2, embed=2, varying over data, model\n"
        '  hint: let it vary from the start: axn.pcast(x, ("rows", "embed"))',
    ),
    "one that a step makes the same": (
        {"rows": "data"},
        lambda x: axn.fold(lambda c: axn.psum(c, "rows"), T)(x.sum("rows")),
        "fold: a step makes the carry the same on all devices of mesh axis 'data'\n"
        "  before: a NamedArray with embed=4, varying over data\n"
        "  after: a NamedArray with embed=4, varying over no mesh axis\n"
        '  hint: cast what it returns: axn.pcast(x, "rows")',
    ),
    "under two mappings": (
        axn.Mappings({"embed": "data"}, {"batch": "data", "embed": "model", "rows": "data"}),
        lambda x: axn.fold(lambda c: c + x.array.sum(), T)(0.0),
        "fold: a step makes the carry differ between the devices of mesh axis 'data', 'model'\n"
        "  before: a plain array of shape (), varying over no mesh axis\n"
        "  after: a plain array of shape (), varying over data, model\n"
        '  hint: let it vary from the start: axn.pcast(x, ("batch", "model"))',
    ),
}


@pytest.mark.parametrize("case", VARYING.values(), ids=VARYING)
def test_a_carry_that_changes_where_it_varies(case, auto_mesh):
    mapping, f, text = case
    with pytest.raises(OperandError) as error:
        jax.eval_shape(axn.shard_map(f, mapping, auto_mesh, strict=False), axn.ones((ROWS, E)))
    assert str(error.value) == text


def test_a_carry_in_a_raw_shard_map(auto_mesh):
    f = lambda x: axn.fold(lambda c: c + x, T)(jnp.zeros(2))  # noqa: E731
    with pytest.raises(OperandError) as error:
        jax.eval_shape(jax.shard_map(f, mesh=auto_mesh, in_specs=P("data"), out_specs=P("data")), jnp.ones(8))
    assert str(error.value) == (
        "fold: a step makes the carry differ between the devices of mesh axis 'data'\n"
        "  before: a plain array of shape (2,), varying over no mesh axis\n"
        "  after: a plain array of shape (2,), varying over data\n"
        '  hint: let it vary from the start: axn.pcast(x, "data")'
    )


@pytest.mark.parametrize("remat", [False, True, "nested"])
@pytest.mark.parametrize("after", [2, 2.0, 2j, True, *map(np.dtype, ("int8", "int32", "float16", "float32", "bool"))])
@pytest.mark.parametrize("start", [1, 1.0, 1j, True, np.int32(1), np.float32(1), np.float16(1)])
def test_a_weakly_typed_carry_becomes_what_it_becomes_in_raw_jax(start, after, remat):
    step = lambda c: jnp.ones((), after) if isinstance(after, np.dtype) else c * after  # noqa: E731

    def kind(run):
        try:
            found = jax.eval_shape(lambda: run(start))  # the start is no tracer
            return found.shape, found.dtype, found.weak_type
        except TypeError:
            return "refused"

    raw = kind(lambda start: jax.lax.scan(lambda c, _: (step(c), None), start, length=4)[0])
    assert kind(axn.fold(step, T, remat=remat)) == raw


@pytest.mark.parametrize("loop", ["scan", "fold", "map"])
def test_a_loop_goes_along_one_axis(loop):
    for axes, got in ((("time", "embed"), "2: time, embed"), ((), "0: none")):
        with pytest.raises(OperandError) as error:
            getattr(axn, loop)(lambda *_: None, axes)
        assert str(error.value) == f"{loop}: expected one axis, got {got}"


def test_a_step_that_returns_no_pair():
    with pytest.raises(OperandError) as error:
        axn.scan(lambda c, x: c + x, T)(axn.zeros(E), draw(T, E))
    assert str(error.value) == (
        "scan: the step must return a pair of carry and output, not NamedArray\n"
        "  hint: use fold for a step that returns the carry alone"
    )


def test_an_output_that_already_has_the_axis():
    x = draw(T)
    with pytest.raises(AxisClashError, match=r"^map: a result already has axis 'time'"):
        axn.map(lambda: x, T)()


# sizes
def test_two_sizes():
    with pytest.raises(AxisSizeError) as error:
        axn.scan(lambda c, a, b: (c, None), "time")(0.0, draw(T, E), jnp.ones((5, 2)))
    assert str(error.value) == (
        "scan: axis 'time' has two sizes: 6 and 5\n"
        "  argument 0 has: time=6, embed=4\n"
        "  argument 1 has: shape (5, 2), along dimension 0\n"
        "  hint: to pass a plain array whole, say so with is_scanned, or close over it"
    )


def test_a_name_that_nobody_has():
    with pytest.raises(AxisSizeError, match=r"^fold: no argument has axis 'tmie', so its size is unknown"):
        axn.fold(lambda c, x: c, "tmie")(0.0, draw(T))


def test_an_array_that_lost_its_axis():
    lost = jax.tree.map(lambda a: a[0], draw(T, E))
    with pytest.raises(LostAxisError, match=r'use axn.vmap\(f, "time"\) or axn.scan\(f, "time"\)'):
        axn.scan(step, T)(draw(E), lost)


# fold and map
def test_fold_returns_the_carry():
    last = axn.fold(lambda c, x, *, scale: c + x * scale, "time", unroll=2)(axn.zeros(E), draw(T, E), scale=2.0)
    same(last, ("embed",), 2 * draw(T, E).array.sum(0))


@pytest.mark.parametrize("reverse", [False, True])
def test_map_is_vmap_one_after_the_other(reverse):
    x, w = draw(T, E), draw(E, B, seed=1)
    f = lambda a, b: axn.dot(a, b, axis=E)  # noqa: E731
    y, z = axn.map(f, T, reverse=reverse)(x, w), axn.vmap(f, T)(x, w)
    same(y, z.names, z.array)


def test_map_chooses_leaves_and_takes_names():
    y = axn.map(lambda a, *, table: a + table.sum(), T, is_mapped=lambda x: isinstance(x, axn.NamedArray))(
        draw(T), table=jnp.ones((5, 3))
    )
    same(y, ("time",), draw(T).array + 15)


# a stack of modules
class Block(eqx.Module):
    w: axn.NamedArray
    act: object

    @staticmethod
    def init(*, key, act=jnp.tanh):
        return Block(axn.random.normal(key, (E, E.alias("out"))) * 0.3, act)

    def __call__(self, x):
        y = axn.dot(x, self.w, axis=E).rename({"out": "embed"})
        return axn.named(self.act(y.array), y.names)


Layers = axn.Axis("layers", 6)


def stack():
    return axn.vmap(Block.init, Layers)(key=jax.random.split(jax.random.key(0), 6))


def unrolled(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


@pytest.mark.parametrize("remat", [False, True, "nested"])
def test_a_stack_of_layers_is_folded_and_has_the_right_gradient(remat):
    blocks, x = stack(), draw(B, E)

    def loss(blocks, x):
        return (axn.fold(lambda h, block: block(h), Layers, remat=remat)(x, blocks) ** 2).sum().scalar()

    value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(loss))(blocks, x)
    raw = lambda w, x: (unrolled(w, x) ** 2).sum()  # noqa: E731
    expected, expected_gradient = jax.value_and_grad(raw)(blocks.w.array, x.array)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    same(gradient.w, ("layers", "embed", "out"), expected_gradient)


# under other transformations
def test_under_jit_traces_a_step_once():
    calls = []

    def f(c, x):
        calls.append(1)
        return step(c, x)

    jitted = jax.jit(axn.scan(f, T))
    for _ in range(2):
        jitted(draw(E), draw(T, E))
    assert len(calls) == 1


def test_there_are_no_more_equations_than_by_hand():
    named = count_equations(lambda c, x: axn.scan(step, T)(c, x), draw(E), draw(T, E))
    assert named <= count_equations(lambda c, x: lax.scan(raw_step, c, x), draw(E).array, draw(T, E).array)


def test_scans_in_scans():
    x = draw(T, B, E)
    inner = lambda c, row: axn.fold(lambda d, v: d + v, B)(c, row)  # noqa: E731
    last = axn.fold(inner, T)(axn.zeros(E), x)
    same(last, ("embed",), x.array.sum((0, 1)))


def test_inside_of_raw_vmap_over_an_anonymous_dimension():
    x = draw(B, T, E).untag("batch")
    init = axn.zeros((B, E)).untag("batch")
    last, ys = jax.vmap(axn.scan(step, T))(init, x)
    expected = jax.vmap(lambda x: lax.scan(raw_step, jnp.zeros(4), x))(x.array)
    same(last, ("embed",), expected[0])
    same(ys, ("time", "embed"), expected[1])


def test_inside_of_vmap_by_name():
    x = draw(B, T, E)
    last = axn.vmap(lambda a: axn.scan(step, T)(axn.zeros(E), a)[0], B)(x)
    expected = jax.vmap(lambda x: lax.scan(raw_step, jnp.zeros(4), x)[0])(x.array)
    same(last, ("batch", "embed"), expected)


def test_jvp_and_hessian():
    x = draw(T)
    f = lambda x: axn.fold(lambda c, v: axn.tanh(c + v), T)(axn.zeros(()), x).scalar()  # noqa: E731
    raw = lambda x: lax.scan(lambda c, v: (jnp.tanh(c + v), None), 0.0, x)[0]  # noqa: E731
    hessian, expected = jax.jit(jax.hessian(f))(x), jax.jit(jax.hessian(raw))(x.array)
    np.testing.assert_allclose(jax.tree.leaves(hessian)[0], expected, rtol=1e-4, atol=1e-6)


# on a mesh
@pytest.fixture(params=["auto", "explicit"])
def mesh(request, auto_mesh, explicit_mesh):
    chosen = auto_mesh if request.param == "auto" else explicit_mesh
    with axn.set_mesh(chosen):
        yield chosen


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("remat", [False, "nested"])
@pytest.mark.parametrize(
    "mapping", [{"batch": "data"}, {"batch": "data", "embed": "model"}, {"time": "data", "embed": "model"}]
)
def test_sharded_arguments(mesh, jit, remat, mapping):
    x = draw(axn.Axis("time", 8), B, E)
    placed = axn.shard(x, {**mapping}, strict=False)
    f = lambda x: axn.scan(step, "time", remat=remat)(axn.zeros((B, E)), x)  # noqa: E731
    last, ys = (jax.jit(f) if jit else f)(placed)
    expected = lax.scan(raw_step, jnp.zeros((8, 4)), x.array)
    same(last, ("batch", "embed"), expected[0])
    same(ys, ("time", "batch", "embed"), expected[1])


@pytest.mark.parametrize("remat", [False, True, "nested"])
def test_gradients_of_a_sharded_stack(mesh, remat):
    blocks, x = stack(), draw(B, E)
    placed = axn.shard(blocks, {"embed": "data", "out": "model"})
    with axn.axis_mapping({"batch": "data", "out": "model"}):

        @jax.jit
        def gradient(w, x):
            def loss(w):
                layer = lambda h, w: axn.tanh(axn.dot(h, w, axis=E)).rename({"out": "embed"})  # noqa: E731
                return (axn.fold(layer, Layers, remat=remat)(x, w) ** 2).sum().scalar()

            return jax.grad(loss)(w)

        got = gradient(placed.w, axn.shard(x))
    expected = jax.jit(jax.grad(lambda w: (unrolled(w, x.array) ** 2).sum()))(blocks.w.array)
    same(got, ("layers", "embed", "out"), expected)


def test_inside_of_shard_map(mesh):
    def local(x):
        assert x.shape == {"batch": 2, "time": 6}
        return axn.fold(lambda c, v: c + v, T)(x["time", 0] * 0, x)

    f = jax.jit(jax.shard_map(local, in_specs=P("data"), out_specs=P("data")))
    same(f(axn.shard(draw(B, T), {"batch": "data"}, strict=False)), ("batch",), draw(B, T).array.sum(1))
