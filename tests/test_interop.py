"""Named arrays under raw JAX, Optax, jmp and Equinox: the same as the same code on raw arrays.

Where raw JAX takes a named dimension away, the first use of the array is an error, never a wrong name.
"""

import copy
import functools
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import axonym as axn
from axonym.errors import LostAxisError

B, E, M = axn.make_axes(batch=8, embed=4, mlp=6)


def draw(*axes, seed=0):
    array = np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)
    # `jnp.asarray` would compile a program for each shape and mesh.
    place = None if jax.sharding.get_abstract_mesh().empty else jax.P()
    return axn.named(jax.device_put(array, place), axes)


class Net(eqx.Module):
    w1: axn.NamedArray
    w2: axn.NamedArray
    bias: axn.NamedArray | None
    scale: jax.Array
    act: object
    rate: float = 0.5
    mode: str = eqx.field(static=True, default="train")

    def __call__(self, x):
        h = axn.dot(x, self.w1, axis=E)
        h = axn.named(self.act(h.array), h.names)
        if self.bias is not None:
            h = h + self.bias
        return axn.dot(h, self.w2, axis=M) * self.scale


def net():
    return Net(draw(E, M), draw(M, E, seed=1), draw(M, seed=2), jnp.float32(2), jnp.tanh)


def raw_net(p, x):
    return (jnp.tanh(x @ p["w1"]) + p["bias"]) @ p["w2"] * p["scale"]


def raw_of(module):
    return {"w1": module.w1.array, "w2": module.w2.array, "bias": module.bias.array, "scale": module.scale}


def loss(module, x):
    return (module(x) ** 2).mean().scalar()


def raw_loss(p, x):
    return (raw_net(p, x) ** 2).mean()


def same(x, names, array, tolerance=1e-5):
    assert isinstance(x, axn.NamedArray)
    assert x.names == names
    assert x.array.shape == np.shape(array)
    np.testing.assert_allclose(x.array, array, rtol=tolerance, atol=tolerance)


def same_net(module, raw, tolerance=1e-5):
    same(module.w1, ("embed", "mlp"), raw["w1"], tolerance)
    same(module.w2, ("mlp", "embed"), raw["w2"], tolerance)
    same(module.bias, ("mlp",), raw["bias"], tolerance)
    np.testing.assert_allclose(module.scale, raw["scale"], rtol=tolerance)


# trees
def test_a_named_array_is_a_node_with_one_leaf():
    x = draw(B, E)
    leaves, tree = jax.tree.flatten({"x": x, "y": [x, None]})
    assert [leaf.shape for leaf in leaves] == [(8, 4), (8, 4)]
    again = jax.tree.unflatten(tree, leaves)
    same(again["y"][0], ("batch", "embed"), x.array)
    assert jax.tree.structure(x) == jax.tree.structure(draw(B.resize(2), E))
    assert jax.tree.structure(x) != jax.tree.structure(draw(E, B))
    assert jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path({"x": x})[0][0]) == "['x'].array"


def test_tree_map_and_transpose():
    x, y = draw(B, E), draw(B, E, seed=1)
    same(jax.tree.map(jnp.add, x, y), ("batch", "embed"), x.array + y.array)
    assert jax.tree.map(lambda a: a.dtype, x).array == jnp.float32
    stacked = jax.tree.transpose(jax.tree.structure(x), jax.tree.structure([0, 0]), jax.tree.map(lambda a: [a, a], x))
    same(stacked[1], ("batch", "embed"), x.array)
    total = jax.tree.reduce(lambda s, a: s + a.size, {"x": x, "y": y}, 0)
    assert total == 64


@pytest.mark.parametrize("leaf", [None, 3, "text", object(), jnp.sin, jax.ShapeDtypeStruct((2,), jnp.int32), (1, 2)])
def test_unflatten_checks_nothing(leaf):
    x = jax.tree.unflatten(jax.tree.structure(draw(B, E)), [leaf])
    assert x.array is leaf
    assert x.names == ("batch", "embed")
    repr(x)


def test_a_tree_whose_leaves_are_something_else_is_a_prefix():
    axes = jax.tree.map(lambda _: 0, draw(B, E))
    assert axes.array == 0
    doubled = jax.tree.map(lambda n, a: a * (n + 2), axes, draw(B, E))
    same(doubled, ("batch", "embed"), 2 * draw(B, E).array)


def test_pickle_and_copy():
    x = draw(B, E)
    for again in (pickle.loads(pickle.dumps(x)), copy.copy(x), copy.deepcopy(x)):
        same(again, ("batch", "embed"), x.array)


# jit and shapes
def test_jit_of_functions_of_named_arrays():
    same(jax.jit(lambda x: x * 2)(draw(B, E)), ("batch", "embed"), 2 * draw(B, E).array)
    x, module = draw(B, E), net()
    same(eqx.filter_jit(module)(x), ("batch", "embed"), raw_net(raw_of(module), x.array))


def test_jit_traces_by_names_and_sizes():
    traces = []
    f = jax.jit(lambda x: traces.append(x.axes) or x)
    for axes in ((B, E), (B, E), (E, B), (B.resize(2), E), (B, M)):
        f(draw(*axes))
    assert len(traces) == 4


def test_a_named_array_with_numpy_inside():
    x = axn.NamedArray(np.ones((8, 4), np.float32), (B, E))
    same(jax.jit(lambda x: x + 1)(x), ("batch", "embed"), np.full((8, 4), 2))
    same(x + 1, ("batch", "embed"), np.full((8, 4), 2))


def test_eval_shape_and_shape_dtype_struct():
    out = jax.eval_shape(lambda x: {"y": axn.dot(x, net().w1, axis=E)}, draw(B, E))["y"]
    assert out.axes == (B, M)
    assert out.dtype == jnp.float32
    assert isinstance(out.array, jax.ShapeDtypeStruct)
    same(jax.jit(lambda x: x).lower(out).compile()(draw(B, M)), ("batch", "mlp"), draw(B, M).array)
    shapes = eqx.filter_eval_shape(net)
    assert shapes.w1.axes == (E, M)


def test_donation_and_device_put():
    x = draw(B, E)
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.array.is_deleted()
    same(jax.device_put(y), ("batch", "embed"), draw(B, E).array + 1)
    same(jax.device_get(y), ("batch", "embed"), draw(B, E).array + 1)
    assert isinstance(jax.device_get(y).array, np.ndarray)
    jax.block_until_ready(y)


# derivatives
def test_grad_and_value_and_grad():
    module, x = net(), draw(B, E)
    value, gradient = eqx.filter_jit(eqx.filter_value_and_grad(loss))(module, x)
    expected, (raw, of_x) = jax.jit(jax.value_and_grad(raw_loss, (0, 1)))(raw_of(module), x.array)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    same_net(gradient, raw)
    same(
        jax.jit(jax.grad(lambda x: loss(module, x)))(x),
        ("batch", "embed"),
        of_x,
    )
    (got,), aux = jax.grad(lambda x: (loss(module, x), x.sum("embed")), argnums=(0,), has_aux=True)(x)
    assert got.names == ("batch", "embed")
    same(aux, ("batch",), x.array.sum(1))


def test_jvp_vjp_and_linearize():
    x, v = draw(B, E), draw(B, E, seed=1)
    f = lambda x: axn.tanh(x).sum("embed")  # noqa: E731
    raw = lambda x: jnp.tanh(x).sum(1)  # noqa: E731
    value, tangent = jax.jvp(f, (x,), (v,))
    expected = jax.jvp(raw, (x.array,), (v.array,))
    same(value, ("batch",), expected[0])
    same(tangent, ("batch",), expected[1])
    _, pull = jax.vjp(f, x)
    same(pull(value)[0], ("batch", "embed"), jax.vjp(raw, x.array)[1](expected[0])[0])
    _, push = jax.linearize(f, x)
    same(push(v), ("batch",), expected[1])


@pytest.mark.parametrize("jac", [jax.jacfwd, jax.jacrev])
def test_jacobians_over_anonymous_dimensions(jac):
    x, w = draw(E).untag("embed"), draw(E, M)
    got = jax.jit(jac(lambda a: jnp.tanh(a @ w.array)))(x.array)
    f = lambda a: axn.tanh(axn.dot(a.tag("embed"), w, axis=E)).untag("mlp")  # noqa: E731
    named = jax.jit(jac(f))(x)
    # the result is a tree in a tree: rows of the output, columns of the argument, all anonymous
    assert named.names == ()
    assert named.array.names == ()
    np.testing.assert_allclose(named.array.array, got, rtol=1e-5, atol=1e-6)


def test_hessian_of_a_scalar_over_anonymous_dimensions():
    x = draw(E).untag("embed")
    named = jax.jit(jax.hessian(lambda a: (axn.tanh(a) ** 2).array.sum()))(x)
    expected = jax.jit(jax.hessian(lambda a: (jnp.tanh(a) ** 2).sum()))(x.array)
    np.testing.assert_allclose(jax.tree.leaves(named)[0], expected, rtol=1e-5, atol=1e-6)


def test_checkpoint():
    module, x = net(), draw(B, E)
    f = jax.checkpoint(lambda w, x: axn.tanh(axn.dot(x, w, axis=E)).sum().scalar())
    got = jax.grad(f)(module.w1, x)
    same(got, ("embed", "mlp"), jax.grad(lambda w: jnp.tanh(x.array @ w).sum())(module.w1.array))
    got = eqx.filter_grad(eqx.filter_checkpoint(loss))(module, x)
    same_net(got, jax.grad(raw_loss)(raw_of(module), x.array))


def test_custom_vjp_and_custom_jvp():
    @jax.custom_vjp
    def clip(x, scale):
        return x * scale

    clip.defvjp(lambda x, scale: (x * scale, (x, scale)), lambda kept, g: (g.clip(-1, 1), (g * kept[0]).sum()))
    x, scale = draw(B, E), axn.named(jnp.float32(3), ())
    f = lambda x, s: (clip(x, s) * 5).sum().scalar()  # noqa: E731
    dx, ds = jax.grad(f, argnums=(0, 1))(x, scale)
    same(dx, ("batch", "embed"), np.ones((8, 4)))
    same(ds, (), 5 * x.array.sum(), 1e-4)

    @jax.custom_jvp
    def sine(x):
        return axn.sin(x)

    sine.defjvp(lambda primals, tangents: (sine(*primals), tangents[0] * 7))
    same(jax.grad(lambda x: sine(x).sum().scalar())(x), ("batch", "embed"), np.full((8, 4), 7))


def test_closure_convert_pure_callback_and_debug():
    x = draw(B, E)
    shapes = jax.eval_shape(lambda x: x, x)
    y = jax.jit(lambda x: jax.pure_callback(lambda x: jax.tree.map(lambda a: np.asarray(a) * 2, x), shapes, x))(x)
    same(y, ("batch", "embed"), 2 * x.array)
    seen = []
    jax.jit(lambda x: jax.debug.callback(lambda x: seen.append(x.names), x))(x)
    jax.effects_barrier()
    assert seen == [("batch", "embed")]


# control flow
def test_scan_carries_and_outputs_over_anonymous_dimensions():
    xs, init = draw(B, E).untag("batch"), draw(E, seed=1)
    last, ys = lax.scan(lambda c, x: (axn.tanh(c + x), c * 2), init, xs)
    expected = lax.scan(lambda c, x: (jnp.tanh(c + x), c * 2), init.array, xs.array)
    same(last, ("embed",), expected[0])
    same(ys, ("embed",), expected[1])
    same(ys.tag("batch"), ("batch", "embed"), expected[1])


def test_while_and_fori_loops():
    x = draw(B, E)
    same(lax.fori_loop(0, 3, lambda i, x: x * 2, x), ("batch", "embed"), 8 * x.array)
    _, y = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, axn.sin(c[1])), (0, x))
    same(y, ("batch", "embed"), np.sin(np.sin(np.sin(x.array))))


def test_cond_and_switch():
    x = draw(B, E)
    for flag in (True, False):
        got = jax.jit(lambda flag: lax.cond(flag, axn.sin, axn.cos, x))(flag)
        same(got, ("batch", "embed"), (np.sin if flag else np.cos)(x.array))
    branches = [axn.sin, axn.cos, lambda x: x * 0]
    same(jax.jit(lambda i: lax.switch(i, branches, x))(1), ("batch", "embed"), np.cos(x.array))
    with pytest.raises(TypeError):
        lax.cond(True, lambda x: x.rearrange((E, B)), lambda x: x, x)


def test_associative_scan_and_lax_map_over_anonymous_dimensions():
    x = draw(B, E).untag("batch")
    same(jax.jit(lambda x: lax.associative_scan(axn.add, x))(x), ("embed",), np.cumsum(x.array, 0))
    same(lax.map(lambda row: row.sum(), x), (), x.array.sum(1))


def test_a_loop_over_a_module():
    module, x = net(), draw(B, E)
    arrays, static = eqx.partition(module, eqx.is_array)

    def step(arrays, x):
        value, gradient = jax.value_and_grad(lambda a: loss(eqx.combine(a, static), x))(arrays)
        return jax.tree.map(lambda a, g: a - 0.1 * g, arrays, gradient), value

    def raw_step(p, x):
        value, gradient = jax.value_and_grad(raw_loss)(p, x)
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, gradient), value

    xs = axn.named(np.stack([x.array, x.array * 2, x.array * 3]), ("step", B, E))
    last, values = lax.scan(step, arrays, xs.untag("step"))
    raw_last, raw_values = lax.scan(raw_step, raw_of(module), xs.array)
    np.testing.assert_allclose(values, raw_values, rtol=1e-4)
    same_net(last, raw_last, 1e-4)


# vmap and shard_map
def test_vmap_over_anonymous_dimensions():
    x, w = draw(M, B, E), draw(E, seed=1)
    f = lambda x, w: (x * w).sum("embed")  # noqa: E731
    got = jax.vmap(f, in_axes=(0, None))(x.untag("mlp"), w)
    same(got.tag("mlp"), ("mlp", "batch"), (x.array * w.array).sum(-1))
    twice = jax.vmap(jax.vmap(lambda x: x.sum()))(x.untag("mlp", "batch"))
    same(twice.tag("mlp", "batch"), ("mlp", "batch"), x.array.sum(-1))


def test_vmap_of_gradients_per_example():
    module, x = net(), draw(B, E)
    arrays, static = eqx.partition(module, eqx.is_array)
    got = jax.vmap(jax.grad(lambda a, x: loss(eqx.combine(a, static), x)), in_axes=(None, 0))(arrays, x.untag("batch"))
    expected = jax.vmap(jax.grad(raw_loss), in_axes=(None, 0))(raw_of(module), x.array)
    same(got.w1.tag("batch"), ("batch", "embed", "mlp"), expected["w1"])


def test_vmap_with_axis_names_and_collectives():
    x = draw(B, E).untag("batch")
    got = jax.vmap(lambda x: jax.tree.map(lambda a: lax.pmean(a, "i"), x), axis_name="i")(x)
    same(got, ("embed",), np.tile(x.array.mean(0), (8, 1)))


@pytest.fixture(params=["auto", "explicit"])
def mesh(request, auto_mesh, explicit_mesh):
    chosen = auto_mesh if request.param == "auto" else explicit_mesh
    with axn.set_mesh(chosen):
        yield chosen


def test_shard_map_sees_local_sizes(mesh):
    def local(x, w):
        assert x.shape == {"batch": 2, "embed": 4}
        assert w.shape == {"embed": 4, "mlp": 3}
        y = axn.dot(x, w, axis=E)
        return y, jax.tree.map(lambda a: lax.psum(a, ("data", "model")), (y**2).sum())

    f = jax.jit(jax.shard_map(local, in_specs=(P("data"), P(None, "model")), out_specs=(P("data", "model"), P())))
    x, w = draw(B, E), draw(E, M)
    y, total = f(axn.shard(x, {"batch": "data"}), axn.shard(w, {"mlp": "model"}))
    expected = x.array @ w.array
    same(y, ("batch", "mlp"), expected)
    same(total, (), (expected**2).sum(), 1e-4)
    assert y.sharding.spec == P("data", "model")


def test_gradients_through_shard_map(mesh):
    def local(w, x):
        return jax.tree.map(lambda a: lax.pmean(a, "data"), (axn.dot(x, w, axis=E) ** 2).mean())

    f = jax.shard_map(local, in_specs=(P(), P("data")), out_specs=P())
    w, x = axn.shard(draw(E, M), {}), axn.shard(draw(B, E), {"batch": "data"})
    got = jax.jit(jax.grad(lambda w: f(w, x).scalar()))(w)
    inputs, weight = np.asarray(draw(B, E).array), np.asarray(draw(E, M).array)
    expected = 2 * inputs.T @ (inputs @ weight) / (B.size * M.size)
    same(got, ("embed", "mlp"), expected)


def test_shardings_of_jit_as_prefixes(auto_mesh):
    with axn.set_mesh(auto_mesh):
        y = jax.jit(lambda x: {"y": x * 2}, out_shardings=P("data"))(draw(B, E))["y"]
        assert y.sharding.spec == P("data")
        y = jax.device_put(draw(B, E), P("data", "model"))
        same(y, ("batch", "embed"), draw(B, E).array)
        assert y.sharding.spec == P("data", "model")


# names that lost their axis
def uses(x):
    return {
        "add": lambda: x + x,
        "number": lambda: x * 2,
        "unary": lambda: axn.tanh(x),
        "sum": lambda: x.sum("embed"),
        "sum all": lambda: x.sum(),
        "dot": lambda: axn.dot(x, x, axis="embed"),
        "axes": lambda: x.axes,
        "index": lambda: x["embed", 0],
        "rename": lambda: x.rename({"embed": "other"}),
        "rearrange": lambda: x.rearrange(("embed", "batch")),
        "softmax": lambda: axn.softmax(x, "embed"),
        "vmap": lambda: axn.vmap(lambda a: a, "embed")(x),
        "scan": lambda: axn.fold(lambda c, a: c, "embed")(0.0, x),
        "nmap": lambda: axn.nmap(jnp.sin)(x),
        "pspec": lambda: axn.pspec_for(x, {"embed": None}),
        "tag": lambda: x.tag("more"),
        "untag": lambda: x.untag("embed"),
    }


LOST = {
    "vmap": lambda use: jax.vmap(use)(draw(B, E)),
    "vmap of the last axis": lambda use: jax.vmap(use, in_axes=1)(draw(B, E)),
    "scan": lambda use: lax.scan(lambda c, x: (c, use(x)), 0, draw(B, E)),
    "map": lambda use: lax.map(use, draw(B, E)),
    "index": lambda use: use(jax.tree.map(lambda a: a[0], draw(B, E))),
    "sum": lambda use: use(jax.tree.map(lambda a: a.sum(0), draw(B, E))),
    "jit": lambda use: jax.jit(jax.vmap(use))(draw(B, E)),
}


@pytest.mark.parametrize("use", list(uses(None)))
def test_every_use_of_a_lost_axis_is_an_error(use):
    with pytest.raises(LostAxisError):
        LOST["index"](lambda x: uses(x)[use]())


@pytest.mark.parametrize("how", list(LOST))
def test_every_way_to_lose_an_axis_is_an_error(how):
    with pytest.raises(LostAxisError) as error:
        LOST[how](lambda x: x * 2)
    assert str(error.value).split("\n")[1:] == [
        "  raw jax.vmap, lax.scan and indexing remove the leading dimension, but not its name",
        '  hint: use axn.vmap(f, "batch") or axn.scan(f, "batch"), or make the axis anonymous first: x.untag("batch")',
    ]


def test_a_lost_axis_that_nobody_uses_and_that_comes_back_is_no_error():
    same(jax.vmap(lambda x: x)(draw(B, E)), ("batch", "embed"), draw(B, E).array)
    same(jax.vmap(lambda x: jax.tree.map(jnp.sin, x))(draw(B, E)), ("batch", "embed"), np.sin(draw(B, E).array))


def test_a_dimension_that_came_on_top_is_anonymous():
    x = jax.tree.map(lambda a: jnp.stack([a, a]), draw(B, E))
    assert x.axes == (B, E)
    same(x.sum("embed"), ("batch",), np.stack([draw(B, E).array.sum(1)] * 2))


# Optax
OPTIMISERS = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adam(optax.cosine_decay_schedule(1e-2, 10))),
    "masked": lambda: optax.adamw(1e-2, mask=lambda tree: jax.tree.map(lambda a: a.ndim > 1, tree)),
    "accumulated": lambda: optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=1e-2),
    "lion": lambda: optax.lion(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2),
}


@pytest.mark.parametrize("name", list(OPTIMISERS))
def test_optimisers_do_to_named_arrays_what_they_do_to_raw_ones(name):
    optimiser = OPTIMISERS[name]()
    x = draw(B, E)
    arrays, static = eqx.partition(net(), eqx.is_array)
    raw = raw_of(net())
    state, raw_state = optimiser.init(arrays), optimiser.init(raw)

    @jax.jit
    def step(p, s):
        updates, s = optimiser.update(jax.grad(lambda a: loss(eqx.combine(a, static), x))(p), s, p)
        return optax.apply_updates(p, updates), s

    @jax.jit
    def raw_step(p, s):
        updates, s = optimiser.update(jax.grad(raw_loss)(p, x.array), s, p)
        return optax.apply_updates(p, updates), s

    for _ in range(3):
        arrays, state = step(arrays, state)
        raw, raw_state = raw_step(raw, raw_state)
    same_net(arrays, raw, 1e-4)


def test_tree_utilities_of_optax():
    tree = {"a": draw(B, E), "b": draw(E, seed=1)}
    raw = {"a": tree["a"].array, "b": tree["b"].array}
    np.testing.assert_allclose(optax.tree.norm(tree), optax.tree.norm(raw), rtol=1e-6)
    scaled = optax.tree.scale(2.0, tree)
    same(scaled["a"], ("batch", "embed"), 2 * raw["a"])
    same(optax.tree.zeros_like(tree)["b"], ("embed",), np.zeros(4))


# jmp
def test_policies_of_jmp():
    policy = jmp.get_policy("params=float32,compute=bfloat16,output=float16")
    tree = {"x": draw(B, E), "ids": axn.named(np.arange(4), E), "net": net()}
    cast = policy.cast_to_compute(tree)
    assert cast["x"].dtype == jnp.bfloat16
    assert cast["x"].names == ("batch", "embed")
    assert cast["ids"].dtype == jnp.int32
    assert cast["net"].w1.dtype == jnp.bfloat16
    assert cast["net"].act is jnp.tanh
    assert policy.cast_to_output(cast["x"]).dtype == jnp.float16
    assert policy.cast_to_param(cast)["x"].dtype == jnp.float32


def test_loss_scale_and_finiteness_of_jmp():
    scale = jmp.DynamicLossScale(jnp.float32(8), period=1)
    x = draw(B, E)
    same(scale.unscale(scale.scale(x)), ("batch", "embed"), x.array)
    assert bool(jmp.all_finite({"x": x}))
    bad = jax.tree.map(lambda a: a.at[0, 0].set(jnp.nan), x)
    assert not bool(jmp.all_finite({"x": bad}))
    same(jmp.select_tree(jnp.array(False), bad, x), ("batch", "embed"), x.array)


# Equinox
def test_filters():
    module, x = net(), draw(B, E)
    gradient = eqx.filter_jit(eqx.filter_grad(loss))(module, x)
    assert gradient.act is None
    same_net(gradient, jax.grad(raw_loss)(raw_of(module), x.array))
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    assert static.w1.array is None
    assert static.w1.names == ("embed", "mlp")
    assert eqx.tree_equal(eqx.combine(arrays, static), module)
    only = eqx.filter(module, jax.tree.map(lambda _: False, module))
    assert jax.tree.leaves(only) == []


def test_filter_specs_that_choose_whole_named_arrays():
    module = net()
    spec = eqx.tree_at(lambda m: (m.w1, m.scale), jax.tree.map(lambda _: False, module), (True, True))
    trained, frozen = eqx.partition(module, spec)
    assert trained.w2.array is None
    assert frozen.w1 is None or frozen.w1.array is None
    again = eqx.combine(trained, frozen)
    same(again.w1, ("embed", "mlp"), module.w1.array)


def test_tree_at():
    module = net()
    changed = eqx.tree_at(lambda m: m.w1, module, module.w1 * 2)
    same(changed.w1, ("embed", "mlp"), 2 * module.w1.array)
    changed = eqx.tree_at(lambda m: m.w1.array, module, jnp.zeros((4, 6)))
    same(changed.w1, ("embed", "mlp"), np.zeros((4, 6)))
    changed = eqx.tree_at(lambda m: m.bias, module, None)
    assert changed.bias is None
    back = eqx.tree_at(lambda m: m.bias, changed, draw(M), is_leaf=lambda leaf: leaf is None)
    same(back.bias, ("mlp",), draw(M).array)


def test_tree_equal():
    assert eqx.tree_equal(draw(B, E), draw(B, E))
    assert not eqx.tree_equal(draw(B, E), draw(B, E, seed=1))
    assert not eqx.tree_equal(draw(B, B.alias("c")), draw(B, B.alias("d")))


def test_serialisation(tmp_path):
    module = net()
    path = tmp_path / "net.eqx"
    eqx.tree_serialise_leaves(path, module)
    empty = jax.tree.map(lambda a: jnp.zeros_like(a) if eqx.is_array(a) else a, module)
    again = eqx.tree_deserialise_leaves(path, empty)
    same_net(again, raw_of(module))
    again = eqx.tree_deserialise_leaves(path, eqx.filter_eval_shape(net))
    same_net(again, raw_of(module))


def test_filter_vmap_over_anonymous_dimensions_and_an_ensemble():
    keys = jax.random.split(jax.random.key(0), 3)
    make = lambda key: eqx.tree_at(lambda m: m.w1, net(), axn.random.normal(key, (E, M)))  # noqa: E731
    ensemble = eqx.filter_vmap(make)(keys)
    assert ensemble.w1.names == ("embed", "mlp")
    assert ensemble.w1.array.shape == (3, 4, 6)
    got = eqx.filter_vmap(lambda m, x: m(x), in_axes=(eqx.if_array(0), None))(ensemble, draw(B, E))
    expected = [make(key)(draw(B, E)).array for key in keys]
    same(got.tag("ensemble"), ("ensemble", "batch", "embed"), np.stack(expected))


def test_error_if_apply_updates_and_tree_pformat():
    x = draw(B, E)
    same(eqx.error_if(x, jnp.array(False), "no"), ("batch", "embed"), x.array)
    module = net()
    same(eqx.apply_updates(module, eqx.filter(module, eqx.is_array)).w1, ("embed", "mlp"), 2 * module.w1.array)
    assert "w1" in eqx.tree_pformat(module)
    assert "w1" in repr(module)


def test_debug_printing_shows_no_values_of_tracers():
    jax.jit(lambda x: repr(x) == "NamedArray(float32[batch=8, embed=4])" or pytest.fail(repr(x)))(draw(B, E))


def test_functools_partial_and_tree_util_partial():
    f = jax.tree_util.Partial(lambda w, x: axn.dot(x, w, axis=E), draw(E, M))
    got = jax.jit(lambda f, x: f(x))(f, draw(B, E))
    same(got, ("batch", "mlp"), draw(B, E).array @ draw(E, M).array)
    assert functools.partial(f)(draw(B, E)).names == ("batch", "mlp")
