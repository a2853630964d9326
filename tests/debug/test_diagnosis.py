"""What a look over a model finds."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import debug, nn
from axonym.errors import ArgumentError

L, E, M = axn.make_axes(layers=3, embed=4, mlp=8)
KEY = jax.random.key(0)


def kinds(model, *args, **kwargs):
    return [(finding.kind, finding.paths) for finding in debug.diagnose(model, *args, **kwargs).findings]


def test_nothing_is_found_in_a_sound_model():
    model = nn.Stacked.init(L, nn.MLP)(E, E, M, 1, key=KEY)
    found = debug.diagnose(model, lambda m, x: m.fold(x).sum(), axn.ones(E), strict=True)
    assert not found
    assert str(found) == "nothing found"


def test_reused_arrays():
    norm, plain = nn.LayerNorm.init(E, use_bias=False), jnp.ones(2)
    found = debug.diagnose({"a": norm, "b": [norm, axn.ones(E)], "c": (plain, plain, plain)})
    assert found
    assert str(found) == (
        "reused array: two places hold the same array\n  a.weight\n  b.0.weight\n"
        "  hint: to tie them, hold the array in one place and pass it to the other at the call; otherwise copy it\n\n"
        "reused array: 3 places hold the same array\n  c.0\n  c.1\n  c.2\n"
        "  hint: to tie them, hold the array in one place and pass it to the other at the call; otherwise copy it"
    )
    assert [finding.paths for finding in found.problems] == [("a.weight", "b.0.weight"), ("c.0", "c.1", "c.2")]


class Static(eqx.Module):
    table: tuple = eqx.field(static=True)
    host: axn.NamedArray
    name: str = eqx.field(static=True, default="x")


def test_arrays_that_are_not_trained():
    with pytest.warns(UserWarning, match="A JAX array is being set as static"):  # by Equinox
        static = Static((np.ones(3), axn.ones(E)), axn.NamedArray(np.ones(4), "embed"))
    assert kinds({"m": static}) == [("static array", ("m.table",)), ("host array", ("m.host",))]


def test_arrays_of_numpy_are_trained_but_are_on_no_device():
    model = {"w": np.ones(3, "f4")}
    np.testing.assert_array_equal(eqx.filter_grad(lambda m: (m["w"] ** 2).sum())(model)["w"], np.full(3, 2.0))
    assert str(debug.diagnose(model)) == (
        "host array: NumPy arrays, which are copied to a device at each call\n"
        "  w\n"
        "  hint: convert them to JAX arrays: jnp.asarray(array), axn.named(jnp.asarray(array), names)"
    )


def test_lost_and_stale_axes():
    lost = jax.tree.map(lambda x: x[0], nn.LayerNorm.init(E, use_bias=False))
    assert str(debug.diagnose(lost)).splitlines()[:2] == ["lost axis: names embed on an array of shape ()", "  weight"]
    layer = nn.Linear.init(E, E, key=KEY, use_bias=False)
    stale = eqx.tree_at(lambda m: m.weight, layer, axn.ones((E, axn.Axis("embed.out", 6))))
    found = debug.diagnose([stale])
    assert [(f.kind, f.paths, f.text) for f in found.problems] == [
        ("stale axis", ("0.weight",), "the module declares embed=4, but the array has embed.out=6")
    ]
    stacked = nn.Stacked.init(L, nn.Linear)(E, E, key=KEY)
    assert not debug.diagnose(axn.tree.resize_axis(stacked, "embed", 6))


class Best(NamedTuple):
    """State of a loop of one's own."""

    model: nn.Linear


def test_state_of_an_optimiser_that_has_less_than_the_parameters():
    wide = axn.make_axes(embed=256, out=128)
    model = nn.Linear.init(*wide, key=KEY)
    state = optax.adafactor(1e-3).init(model)
    below = {leaf.array.ndim - len(leaf.names) for leaf in jax.tree.leaves(state, is_leaf=axn.is_named_array)[1:]}
    assert min(below) < 0
    assert "two sizes" not in {kind for kind, _ in kinds({"model": model, "state": state})}
    assert not debug.diagnose((model, state))
    assert not debug.diagnose({"train": (model, optax.MultiSteps(optax.adafactor(1e-3), 2).init(model))})
    lost = jax.tree.map(lambda x: x[0], model)
    assert [(f.kind, f.paths) for f in debug.diagnose((state, Best(lost))).problems] == [
        ("lost axis", ("1.model.weight",)),
        ("lost axis", ("1.model.bias",)),
    ]


def test_elements_that_are_not_finite():
    x = axn.ones((E, M))
    model = {"good": x, "nan": x.at["embed", 0].set(jnp.nan), "inf": jnp.full(3, jnp.inf, jnp.bfloat16)}
    assert kinds(model) == [("not finite", ("inf", "nan"))]


def test_elements_on_different_devices():
    first, second, *_ = devices = jax.devices()
    backwards = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,), devices=devices[::-1])
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    bad = np.full(8, np.nan, np.float32)
    model = {
        "one": jax.device_put(jnp.ones(3), first),
        "other": jax.device_put(bad, second),
        "mesh": jax.device_put(bad, jax.NamedSharding(mesh, jax.P("data"))),
        "backwards": jax.device_put(bad, jax.NamedSharding(backwards, jax.P("data"))),
        "anywhere": jnp.asarray(bad),
    }
    expected = [("not finite", ("anywhere", "backwards", "mesh", "other"))]
    assert kinds(model) == expected
    with axn.set_mesh(mesh):
        assert kinds(model) == expected


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap])
def test_a_concrete_model_while_a_function_is_traced(transform):
    model, seen = {"good": jnp.ones(2), "bad": jnp.full(2, jnp.nan)}, []

    def f(x):
        seen.append(kinds(model))
        seen.append(kinds({"bad": model["bad"] * x}))  # of what is traced, no elements are there to see
        return x

    transform(f)(jnp.ones(2) if transform is jax.vmap else 1.0)
    assert seen == [[("not finite", ("bad",))], []]


def test_dtypes():
    with jax.enable_x64(True):
        model = {"wide": jnp.ones(2, np.float64), "narrow": jnp.ones(2, np.float32), "n": jnp.arange(2)}
    found = debug.diagnose(model)
    assert [(f.kind, f.paths, f.is_problem) for f in found.findings] == [
        ("mixed precision", ("wide",), True),
        ("integers", ("n",), False),
    ]
    assert not debug.diagnose({"wide": model["wide"]})


def test_one_name_with_two_sizes_is_no_problem():
    model = {"a": axn.ones((E, M)), "b": axn.ones(E.resize(5))}
    found = debug.diagnose(model, strict=True)
    assert not found
    assert str(found) == (
        "two sizes: axis 'embed' has two sizes\n  a: embed=4\n  b: embed=5\n"
        "  hint: if they mean different things, give them different names"
    )


def test_strict():
    norm = nn.LayerNorm.init(E, use_bias=False)
    with pytest.raises(ArgumentError) as error:
        debug.diagnose([norm, norm, axn.ones(E.resize(5))], strict=True)
    assert str(error.value) == (
        "diagnose: the model has 1 problem\n"
        "  reused array: two places hold the same array\n    0.weight\n    1.weight\n"
        "    hint: to tie them, hold the array in one place and pass it to the other at the call; otherwise copy it"
    )


class Block(eqx.Module):
    used: nn.Linear
    unused: nn.Linear
    stopped: nn.Linear
    compared: nn.Linear
    times_zero: axn.NamedArray
    behind_zero: nn.Linear

    @staticmethod
    def init(*, key):
        keys = jax.random.split(key, 5)
        layers = [nn.Linear.init(E, E, key=k, use_bias=False) for k in keys]
        return Block(*layers[:4], axn.ones(E), layers[4])

    def __call__(self, x):
        zero = axn.zeros((E, E.derive("out")))
        y = eqx.tree_at(lambda m: m.weight, self.used, self.used.weight + 0 * zero)(x)
        y = y + jax.lax.stop_gradient(self.stopped(x)) + axn.where(self.compared(x) > 0, 1.0, 0.0)
        return y + 0.0 * self.times_zero + self.behind_zero(y)


UNREACHED = ["unused.weight", "stopped.weight", "compared.weight", "times_zero"]


@pytest.mark.parametrize("stack", [nn.Stacked, nn.BlockSeq])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_parameters_that_no_gradient_reaches(stack, checkpointing):
    model = jax.eval_shape(lambda: stack.init(L, Block, gradient_checkpointing=checkpointing)(key=KEY))

    def loss(model, x, scale):
        return model.fold(x).sum() * scale, "more"

    parts = ["stacked"] if stack is nn.Stacked else [f"blocks.{i}" for i in range(3)]
    expected = tuple(f"{part}.{path}" for part in parts for path in UNREACHED)
    assert debug.unreached(model, loss, axn.ones(E), scale=2.0) == expected
    assert kinds(model, loss, axn.ones(E), scale=2.0) == [("no gradient", expected)]


def test_what_starts_at_zero_is_reached():
    zero = nn.Linear.init(M, E, key=KEY, initializer=nn.initializer.zeros())
    model = {"first": nn.Linear.init(E, M, key=KEY), "zero": zero, "constant": axn.ones(E)}

    def loss(model, x):
        y = model["zero"](model["first"](x)) + 2 * model["constant"]
        return jax.lax.cond(y.sum().array > 0, lambda m: m["zero"].bias.sum().array, lambda m: 0.0, model) + y.sum()

    assert np.all(jax.grad(lambda m: loss(m, axn.ones(E)).scalar())(model)["first"].weight.array == 0)
    assert debug.unreached(model, loss, axn.ones(E)) == ()


def test_gradients_that_are_zero_through_loops_and_branches():
    model = {"w": jnp.ones(3), "v": jnp.ones(3), "u": jnp.ones(())}

    def loss(model, x):
        def step(carry, w):
            return (carry[0] + jax.lax.stop_gradient(w) * x, carry[1] * model["u"]), w

        (total, _), _ = jax.lax.scan(step, (x, x), model["w"])
        branch = jax.lax.cond(total > 0, lambda v: v.sum() * 0.0, lambda v: 0.0, model["v"])
        return jax.jit(lambda a, b: a + jnp.sin(b) * 0.0)(total, branch)

    assert debug.unreached(model, loss, 1.0) == ("u", "v", "w")
