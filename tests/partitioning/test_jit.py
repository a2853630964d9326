"""`named_jit`: layouts of arguments and results, donation, static data, traces, and errors before compilation."""

import dataclasses
import functools
import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import axonym as axn
from axonym.errors import ArgumentError, OperandError, ShardingError
from tests.partitioning.meshes import draw, values

pytestmark = pytest.mark.sampled

B, E, M = axn.make_axes(batch=8, embed=4, mlp=6)


@pytest.fixture(params=["auto", "explicit"])
def mesh(request, auto_mesh, explicit_mesh):
    chosen = auto_mesh if request.param == "auto" else explicit_mesh
    with axn.set_mesh(chosen):
        yield chosen


def laid_out(x, spec):
    assert x.sharding.is_equivalent_to(NamedSharding(x.sharding.mesh, spec), x.array.ndim), x.sharding


def counted(fn):
    """Count how often a function is traced."""

    @functools.wraps(fn)
    def counting(*args, **kwargs):
        counting.traces += 1
        return fn(*args, **kwargs)

    counting.traces = 0
    return counting


class Layer(eqx.Module):
    w: axn.NamedArray
    act: object
    name: str = "layer"
    steps: int = eqx.field(static=True, default=1)

    def __call__(self, x, *, train=True):
        y = axn.dot(x, self.w, axis="embed")
        return axn.named(self.act(y.array), y.names) if train else y

    def twice(self, x):
        return self(x) * 2


def layer(act=jnp.tanh, **options):
    return Layer(draw(E, M), act, **options)


# layouts
def test_results_are_laid_out_by_axis_resources(mesh):
    f = axn.named_jit(
        lambda x: {"y": x * 2, "sum": x.sum("embed"), "raw": x.array}, {"batch": "data", "embed": "model"}
    )
    out = f(draw(B, E))
    laid_out(out["y"], P("data", "model"))
    laid_out(out["sum"], P("data"))
    np.testing.assert_allclose(out["raw"], values(B, E))


def test_results_have_a_mapping_of_their_own(mesh):
    seen = []

    def f(x):
        seen.append(dict(axn.current_mapping()))
        return x * 2

    inside, outside = {"batch": "data"}, {"batch": None, "embed": "model"}
    laid_out(axn.named_jit(f, inside, out_axis_resources=outside)(draw(B, E)), P(None, "model"))
    assert seen == [{"batch": ("data",)}]


def test_arguments_are_laid_out_first(mesh):
    seen = []

    def f(x):
        jax.debug.inspect_array_sharding(x.array, callback=seen.append)
        return x.sum()

    axn.named_jit(f, in_axis_resources={"batch": "data", "embed": "model"})(draw(B, E)).array.block_until_ready()
    assert seen[0].is_equivalent_to(NamedSharding(mesh, P("data", "model")), 2)


@pytest.mark.parametrize("placed", [{}, {"batch": "model"}, {"embed": "data"}])
def test_arguments_that_lie_elsewhere_are_moved(mesh, placed):
    x = axn.shard(draw(B, E), placed)
    f = axn.named_jit(lambda x: x * 1, in_axis_resources={"batch": "data"}, out_axis_resources={"batch": "data"})
    laid_out(f(x), P("data", None))
    np.testing.assert_allclose(f(x).array, values(B, E))


def test_the_current_mapping_is_the_default(mesh):
    f = axn.named_jit(lambda x: x * 2)
    with axn.axis_mapping({"batch": "data"}):
        laid_out(f(draw(B, E)), P("data", None))
    laid_out(f(axn.shard(draw(B, E), {})), P())


def test_what_is_made_inside_is_born_where_it_lies(mesh):
    f = axn.named_jit(lambda key: axn.random.normal(key, (B, E)), {"batch": "data", "embed": "model"})
    got = f(jax.random.key(0))
    laid_out(got, P("data", "model"))
    np.testing.assert_allclose(got.array, jax.random.normal(jax.random.key(0), (8, 4)), rtol=1e-6)


def test_constants_are_laid_out_too(mesh):
    constant = axn.NamedArray(values(B, E), (B, E))
    laid_out(axn.named_jit(lambda: constant, {"batch": "data"})(), P("data", None))


def test_a_module_is_initialised_by_one_layout_and_used_by_another(mesh):
    parameters, compute = {"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"}
    make = axn.named_jit(lambda key: Layer(axn.random.normal(key, (E, axn.Axis("mlp", 8))), jnp.tanh), parameters)
    module = make(jax.random.key(0))
    assert module.act is jnp.tanh
    laid_out(module.w, P("data", "model"))

    def step(module, x):
        loss = lambda module: (module(x) ** 2).mean().scalar()  # noqa: E731
        value, gradient = eqx.filter_value_and_grad(loss)(module)
        return value, eqx.apply_updates(module, jax.tree.map(lambda g: -0.1 * g, gradient))

    train = axn.named_jit(
        step, compute, in_axis_resources=None, out_axis_resources=parameters, donate_args=(True,), strict=False
    )
    value, after = train(module, axn.shard(draw(B, E), {"batch": "data"}))
    laid_out(after.w, P("data", "model"))
    assert after.act is jnp.tanh
    w = jax.random.normal(jax.random.key(0), (4, 8))
    y = np.tanh(values(B, E) @ np.asarray(w))
    np.testing.assert_allclose(value, (y**2).mean(), rtol=1e-5)
    slope = values(B, E).T @ (2 * y * (1 - y**2)) / y.size
    np.testing.assert_allclose(after.w.array, np.asarray(w) - 0.1 * slope, rtol=1e-4, atol=1e-5)


def test_without_any_mapping_it_is_a_plain_jit_and_needs_no_mesh():
    y = axn.named_jit(lambda x, act: act(x.array))(draw(B, E), jnp.tanh)
    np.testing.assert_allclose(y, np.tanh(values(B, E)), rtol=1e-6)


def test_a_layout_of_mixed_axes():
    mixed = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with axn.set_mesh(mixed):
        f = axn.named_jit(lambda x, w: axn.dot(x, w, axis=E), {"batch": "data", "mlp": "model", "embed": None})
        y = f(draw(B, E), draw(E, M))
        laid_out(y, P("data", "model"))
        np.testing.assert_allclose(y.array, values(B, E) @ values(E, M), rtol=1e-5, atol=1e-6)


# donation
@pytest.mark.parametrize("how", ["tuple", "list", "bool", "tree", "keyword", "keywords"])
def test_donated_arguments_give_their_memory_and_others_keep_it(how):
    tree = {"a": [draw(B, E), draw(B, E, seed=1)], "b": (jnp.ones((8, 4)), None, "text")}
    other = draw(B, E, seed=2)
    f = lambda tree, other: (jax.tree.map(lambda x: x if isinstance(x, str) else x + 1, tree), other * 2)  # noqa: E731
    options, call = {
        "tuple": ({"donate_args": (True,)}, lambda g: g(tree, other)),
        "list": ({"donate_args": [True, False]}, lambda g: g(tree, other)),
        "bool": ({"donate_args": True}, lambda g: g(tree, other)),
        "tree": ({"donate_args": ({"a": [True, False], "b": True},)}, lambda g: g(tree, other)),
        "keyword": ({"donate_kwargs": {"tree": True}}, lambda g: g(tree=tree, other=other)),
        "keywords": ({"donate_kwargs": True}, lambda g: g(tree=tree, other=other)),
    }[how]
    g = axn.named_jit(f, **options)
    result, doubled = call(g)
    np.testing.assert_allclose(result["a"][0].array, values(B, E) + 1)
    np.testing.assert_allclose(doubled.array, 2 * values(B, E, seed=2))
    assert result["b"][1:] == (None, "text")
    assert tree["a"][0].array.is_deleted()
    assert tree["a"][1].array.is_deleted() == (how != "tree")
    assert tree["b"][0].is_deleted()
    assert other.array.is_deleted() == (how in ("bool", "keywords"))


@pytest.mark.parametrize(
    ("options", "donated"),
    [
        # which of a, b, c, each passed by position and by keyword
        ({"donate_args": (True,)}, ("a", "a")),
        ({"donate_args": (False, True)}, ("b", "b")),
        ({"donate_args": ({"x": True},)}, ("a", "a")),
        ({"donate_kwargs": {"b": True}}, ("b", "b")),
        ({"donate_kwargs": {"b": {"x": True}, "c": True}}, ("bc", "bc")),
        ({"donate_args": (True,), "donate_kwargs": {"b": True}}, ("ab", "ab")),
        # each says something else, or how the argument is passed
        ({"donate_args": (False,), "donate_kwargs": {"a": True}}, ("", "a")),
        ({"donate_args": True}, ("abc", "")),
        ({"donate_kwargs": True}, ("", "abc")),
        ({"donate_args": (True,), "donate_kwargs": False}, ("a", "")),
    ],
    ids=str,
)
def test_a_parameter_is_donated_however_it_is_passed(options, donated):
    trees = lambda: {name: {"x": draw(B, E, seed=seed)} for seed, name in enumerate("abc")}  # noqa: E731
    f = axn.named_jit(lambda a, b, c: jax.tree.map(lambda x: x + 1, (a, b, c)), **options)
    for call, expected in zip((lambda t: f(*t.values()), lambda t: f(**t)), donated, strict=True):
        given = trees()
        call(given)
        assert "".join(name for name, tree in given.items() if tree["x"].array.is_deleted()) == expected


def test_parameters_without_a_name_or_a_position_are_donated_as_they_are_passed():
    x, y, z = (draw(B, seed=seed) for seed in range(3))
    f = lambda *many, last, **more: jax.tree.map(lambda x: x + 1, (many, last, more))  # noqa: E731
    axn.named_jit(f, donate_args=(False, True), donate_kwargs={"extra": True})(x, y, last=z)
    assert [one.array.is_deleted() for one in (x, y, z)] == [False, True, False]
    x, y, z = (draw(B, seed=seed) for seed in range(3))
    axn.named_jit(f, donate_args=(True,), donate_kwargs={"last": True, "extra": True})(last=x, extra=y, other=z)
    assert [one.array.is_deleted() for one in (x, y, z)] == [True, True, False]
    x, y = draw(B), draw(B)
    axn.named_jit(lambda x, /, **more: (x + 1, more["x"] + 1), donate_args=(True,))(x, x=y)
    assert [one.array.is_deleted() for one in (x, y)] == [True, False]


def test_nothing_is_donated_by_default():
    tree = [draw(B, E), {"x": [draw(B, E)]}]
    axn.named_jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_args=(False,))(tree)
    axn.named_jit(lambda t: jax.tree.map(lambda x: x + 1, t))(tree)
    assert not any(x.is_deleted() for x in jax.tree.leaves(tree))


def test_donation_of_sharded_state(mesh):
    x = axn.shard(draw(B, E), {"batch": "data"})
    y = axn.named_jit(lambda x: x + 1, {"batch": "data"}, donate_args=(True,))(x)
    assert x.array.is_deleted()
    laid_out(y, P("data", None))


def test_the_function_itself_is_never_donated():
    module = Layer(draw(E, E.alias("mlp")), jnp.tanh)
    f = axn.named_jit(module, donate_args=(True,))
    for _ in range(2):
        f(draw(B, E))
    assert not module.w.array.is_deleted()


@pytest.mark.parametrize(
    ("fn", "facts"),
    [
        (lambda state, *, step=0: state, "state, step\n  hint: did you mean 'state'?"),
        (lambda model: model, "model"),
        (lambda state, /, *statee: state, "none"),
        (functools.partial(lambda state, x: x, draw(B)), "x"),
        (layer(), "x, train"),
    ],
    ids=["near", "far", "by position", "partial", "module"],
)
def test_an_unknown_keyword_to_donate(fn, facts):
    with pytest.raises(ArgumentError) as error:
        axn.named_jit(fn, donate_kwargs={"statee": True})
    assert str(error.value) == (
        f"named_jit: donate_kwargs has 'statee', which is not a keyword of the function\n  keywords: {facts}"
    )


@pytest.mark.parametrize(
    ("options", "problem", "hint"),
    [
        ({"donate_args": (0,)}, "not 0", "(True,) for the first one"),
        ({"donate_args": "state"}, "not 'state'", "(True,) for the first one"),
        ({"donate_kwargs": {"state": 1}}, "not 1", '{"state": True}'),
    ],
    ids=str,
)
def test_what_is_donated_is_told_by_bools(options, problem, hint):
    with pytest.raises(OperandError) as error:
        axn.named_jit(lambda state: state, **options)
    (option,) = options
    assert str(error.value) == (
        f"named_jit: {option} must have a bool for each argument, {problem}\n  hint: write {hint}"
    )


@pytest.mark.parametrize(
    "fn", [lambda x, state=1: x + state, lambda x, **more: x + more.get("state", 1)], ids=["default", "any"]
)
def test_a_keyword_to_donate_may_be_left_out(fn):
    f = axn.named_jit(fn, donate_kwargs={"state": True})
    x, state = draw(B), draw(B, seed=1)
    np.testing.assert_allclose(f(x).array, x.array + 1)
    f(x, state=state)
    assert state.array.is_deleted()
    assert not x.array.is_deleted()
    axn.named_jit(max, donate_kwargs={"key": True})  # tells nothing of its parameters


# static data
@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    act: object = jnp.tanh


@pytest.mark.parametrize(
    ("first", "equal", "other"),
    [
        (True, True, False),
        ("train", "".join(["tr", "ain"]), "eval"),
        (jnp.tanh, jnp.tanh, jnp.sin),
        (Config(3), Config(3), Config(4)),
        (2, 2, 2.0),
        (1, 1, True),
        (None, None, "none"),
        ({"a": [1, "b"]}, {"a": [1, "b"]}, {"a": [2, "b"]}),
        (B, axn.Axis("batch", 8), axn.Axis("batch", 9)),
    ],
    ids=["bool", "str", "callable", "config", "int", "one", "none", "tree", "axis"],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_what_is_no_array_is_static(first, equal, other, by_name):
    seen = []

    def f(x, option):
        seen.append(option)
        return x + 1, option

    jitted = axn.named_jit(f)
    call = (lambda option: jitted(draw(B), option=option)) if by_name else (lambda option: jitted(draw(B), option))
    for option in (first, equal, other, first, other):
        y, returned = call(option)
        assert type(returned) is type(option)
        assert returned == option
        np.testing.assert_allclose(y.array, values(B) + 1)
    assert len(seen) == 2
    assert seen[0] == first
    assert seen[1] == other


def test_arrays_may_come_after_numbers_and_numbers_after_arrays():
    f = axn.named_jit(lambda x: x * 2)
    assert f(2) == 4
    np.testing.assert_allclose(f(np.float32(2)), 4)
    np.testing.assert_allclose(f(jnp.arange(2)), [0, 2])
    assert f(2.5) == 5
    np.testing.assert_allclose(f(np.arange(2)), [0, 2])


def test_zeros_of_both_signs_are_different_static_values():
    f = axn.named_jit(lambda x, number: x * 0 + np.copysign(1.0, number.real))
    x = axn.ones(axn.Axis("batch", 2))
    for number in (0.0, -0.0, 0.0, 0j, complex(-0.0, 0)):
        assert f(x, number).tolist() == [np.copysign(1.0, number.real)] * 2
        assert f(x, number=number).tolist() == [np.copysign(1.0, number.real)] * 2
    angle = axn.named_jit(lambda x, number: x * 0 + np.angle(number))
    for number in (complex(-1, 0.0), complex(-1, -0.0), complex(0.0, 1), complex(-0.0, 1)):
        np.testing.assert_allclose(angle(x, number).array, np.angle(number), rtol=1e-6)


def test_what_stands_for_an_array_is_static_in_a_call_and_an_array_ahead_of_time():
    abstract = axn.NamedArray(jax.ShapeDtypeStruct((B.size,), jnp.float32), B)
    f = counted(lambda parts: [axn.zeros(B) if isinstance(x.array, jax.ShapeDtypeStruct) else x + 1 for x in parts])
    jitted = axn.named_jit(f)
    for _ in range(2):
        new, changed = jitted([abstract, draw(B)])
        np.testing.assert_array_equal(new.array, np.zeros(B.size))
        np.testing.assert_array_equal(changed.array, values(B) + 1)
    assert f.traces == 1
    other, _ = jitted([axn.NamedArray(jax.ShapeDtypeStruct((B.size,), jnp.int32), B), draw(B)])
    assert (f.traces, other.axes) == (2, (B,))
    compiled = jitted.lower([abstract, abstract]).compile()
    for result in compiled([draw(B), draw(B)]):
        np.testing.assert_array_equal(result.array, values(B) + 1)
    assert axn.named_jit(lambda x: x)(abstract).array == abstract.array


def test_an_unhashable_static_is_an_error():
    @dataclasses.dataclass
    class Options:
        width: int

    with pytest.raises(OperandError) as error:
        axn.named_jit(lambda x, o: x)(draw(B), Options(3))
    assert str(error.value) == (
        "named_jit: static (non-array) arguments must be hashable; got Options\n"
        "  hint: make it a tree of arrays, or hashable"
    )


def test_static_fields_of_modules_are_part_of_the_key():
    class Sizes(eqx.Module):
        w: axn.NamedArray
        sizes: object = eqx.field(static=True)

    f = counted(lambda m: m.w * m.sizes[0])
    jitted = axn.named_jit(f)
    for sizes in ((1, 2), (3, 2), (1, 2), [5, 2], [7, 2]):
        np.testing.assert_allclose(jitted(Sizes(draw(B), sizes)).array, values(B) * sizes[0], rtol=1e-6)
    assert f.traces == 4


def test_results_that_are_no_arrays_come_back_as_they_are():
    marker = object()
    out = axn.named_jit(lambda x: {"x": x, "f": jnp.tanh, "n": 3, "s": "s", "o": marker, "none": None})(draw(B))
    assert (out["f"], out["n"], out["s"], out["o"], out["none"]) == (jnp.tanh, 3, "s", marker, None)
    assert axn.named_jit(lambda: "text")() == "text"
    assert axn.named_jit(lambda x: None)(draw(B)) is None


# traces
@pytest.mark.parametrize("mapping", [None, {"batch": "data", "embed": None}])
def test_one_trace_for_the_first_call_and_none_for_the_second(mesh, mapping):
    f = counted(lambda x, y, flag, *, z: (x + y["y"], z) if flag else x)
    jitted = axn.named_jit(f, mapping, in_axis_resources=mapping, out_axis_resources=mapping, donate_kwargs={"z": True})
    for seed in range(3):
        jitted(draw(B, E, seed=seed), {"y": draw(B, E)}, True, z=draw(E))
    assert f.traces == 1
    jitted(draw(B, E), {"y": draw(B, E)}, False, z=draw(E))
    assert f.traces == 2


def test_other_shapes_names_dtypes_and_trees_trace_again():
    f = counted(lambda x: x)
    jitted = axn.named_jit(f)
    arguments = [draw(B, E), draw(B, M), draw(E, B), draw(B, E).astype(jnp.bfloat16), [draw(B, E)], draw(B, E).array]
    for _ in range(2):
        for argument in arguments:
            jitted(argument)
    assert f.traces == len(arguments)


def test_another_mapping_or_mesh_is_another_trace(auto_mesh, explicit_mesh):
    f = counted(lambda x: axn.auto_sharded(x * 2))
    jitted = axn.named_jit(f)
    x = np.asarray(draw(B, E))
    expected = 0
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            for mapping, spec in [({"batch": "data"}, P("data", None)), ({"batch": "model"}, P("model", None))]:
                expected += 1
                for _ in range(2):
                    with axn.axis_mapping(mapping):
                        laid_out(jitted(axn.NamedArray(x, (B, E))), spec)
    assert f.traces == expected


def test_a_function_is_forgotten_with_its_jit():
    module = layer()
    seen = weakref.ref(module)
    axn.named_jit(module)(draw(B, E))
    del module
    gc.collect()
    assert seen() is None


def test_inside_of_other_transformations():
    module, x = layer(), draw(B, E)
    f = axn.named_jit(lambda m, x: m(x))
    expected = np.tanh(x.array @ module.w.array)
    np.testing.assert_allclose(eqx.filter_jit(f)(module, x).array, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda x: f(module, x))(x.untag("batch")).array, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(axn.vmap(f, B)(module, x).array, expected, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: f(module, x).sum().scalar())(x)
    np.testing.assert_allclose(gradient.array, (1 - expected**2) @ module.w.array.T, rtol=1e-4, atol=1e-5)
    again = axn.named_jit(lambda x: f(module, x))
    np.testing.assert_allclose(again(x).array, expected, rtol=1e-5, atol=1e-6)


# what can be compiled
def test_a_module_and_its_methods_are_functions_whose_arrays_are_traced():
    module = layer()
    x = draw(B, E)
    expected = np.tanh(x.array @ module.w.array)
    np.testing.assert_allclose(axn.named_jit(module)(x).array, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(axn.named_jit(module.twice)(x).array, 2 * expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(axn.named_jit(module.__call__)(x).array, expected, rtol=1e-5, atol=1e-6)
    for method in (module.twice, module.__call__):
        text = axn.named_jit(method).lower(x).as_text()
        assert "tensor<4x6xf32>" in text.split("->")[0]


def test_a_decorated_method():
    class Model(eqx.Module):
        w: axn.NamedArray

        @axn.named_jit
        def __call__(self, x):
            return axn.dot(x, self.w, axis=E)

        @axn.named_jit(donate_args=(False, True))
        def other(self, x):
            return x * 2

    model, x = Model(draw(E, M)), draw(B, E)
    np.testing.assert_allclose(model(x).array, x.array @ model.w.array, rtol=1e-5, atol=1e-6)
    model.other(x)
    assert x.array.is_deleted()
    assert not model.w.array.is_deleted()


def test_decorator_forms(mesh):
    @axn.named_jit
    def plain(x):
        """Say what it does."""
        return x * 2

    @axn.named_jit(axis_resources={"batch": "data"}, donate_args=(True,))
    def laid(x):
        return x * 2

    assert plain.__name__ == "plain"
    assert plain.__doc__ == "Say what it does."
    assert plain.__wrapped__(3) == 6
    laid_out(laid(axn.shard(draw(B), {"batch": "data"})), P("data"))


def test_partial_and_lambda_and_builtin():
    np.testing.assert_allclose(axn.named_jit(functools.partial(jnp.sum, axis=0))(jnp.ones((2, 3))), [2, 2, 2])
    assert axn.named_jit(axn.sin)(draw(B)).names == ("batch",)


def test_lower_and_trace_with_arrays_and_shapes(mesh):
    f = axn.named_jit(lambda x, n: x * n, {"batch": "data"})
    shapes = axn.NamedArray(jax.ShapeDtypeStruct((8, 4), jnp.float32), (B, E))
    for x in (draw(B, E), shapes):
        assert isinstance(f.lower(x, 3), jax.stages.Lowered)
        assert isinstance(f.trace(x, 3), jax.stages.Traced)
        compiled = f.lower(x, 3).compile()
        assert compiled.cost_analysis()["flops"] > 0
        assert jax.tree.leaves(compiled.output_shardings)[0].is_equivalent_to(NamedSharding(mesh, P("data")), 2)
    tree = jax.eval_shape(lambda: {"x": draw(B, E), "y": [draw(E)]})
    axn.named_jit(lambda t: t, {"batch": "data", "embed": "model"}).lower(tree)


def test_lowering_before_the_call_costs_no_second_trace():
    f = counted(lambda x: x * 2)
    jitted = axn.named_jit(f)
    jitted.lower(draw(B))
    jitted(draw(B))
    assert f.traces == 1


def test_options_of_jit():
    assert axn.named_jit(lambda x: x, keep_unused=True, inline=True)(draw(B)).names == ("batch",)
    with pytest.raises(Exception, match="xla_no_such_option"):
        axn.named_jit(lambda x: x + 1, compiler_options={"xla_no_such_option": True})(draw(B))


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("static_argnums", "arguments that are not arrays are static automatically"),
        ("static_argnames", "arguments that are not arrays are static automatically"),
        ("donate_argnums", "use donate_args and donate_kwargs"),
        ("donate_argnames", "use donate_args and donate_kwargs"),
        ("in_shardings", "use in_axis_resources"),
        ("out_shardings", "use out_axis_resources"),
    ],
)
def test_options_that_are_decided(option, hint):
    with pytest.raises(OperandError) as error:
        axn.named_jit(lambda x: x, **{option: 0})
    assert str(error.value) == f"named_jit: {option} of jax.jit is set automatically\n  hint: {hint}"


def test_options_that_there_are_not():
    with pytest.raises(OperandError) as error:
        axn.named_jit(lambda x: x, {"batch": "data"}, donate_arg=(True,))
    first, known, hint = str(error.value).splitlines()
    assert first == "named_jit: there is no option 'donate_arg'"
    assert known.startswith("  options: in_axis_resources, out_axis_resources, donate_args, ")
    assert "donate_argnums" not in known
    assert hint == "  hint: did you mean 'donate_args'?"


# dispatch
class Pair(eqx.Module):
    a: axn.NamedArray
    b: tuple[axn.NamedArray, ...]


@pytest.mark.parametrize(
    ("state", "flattened"),
    [
        # A dict can change between calls, so it is taken apart each time.
        ({f"w{i}": draw(E, seed=i) for i in range(20)}, 1),
        # A module that the call before returned is known.
        (Pair(draw(E), tuple(draw(E, seed=i) for i in range(20))), 0),
    ],
    ids=["dict", "module"],
)
def test_a_call_takes_its_arguments_apart_once_at_most(monkeypatch, state, flattened):
    f = axn.named_jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_args=(True,))
    state = f(f(jax.tree.map(jnp.copy, state)))
    calls = {"flatten": 0, "unflatten": 0}

    def counted(name, original):
        def call(*args, **kwargs):
            calls[name] += 1
            return original(*args, **kwargs)

        return call

    for name in calls:
        monkeypatch.setattr(jax.tree, name, counted(name, getattr(jax.tree, name)))
    for name in ("map", "leaves", "structure"):
        monkeypatch.setattr(jax.tree, name, lambda *a, name=name, **k: pytest.fail(f"a call uses jax.tree.{name}"))
    for name in ("partition", "combine", "filter", "is_array"):
        monkeypatch.setattr(eqx, name, lambda *a, name=name, **k: pytest.fail(f"a call uses eqx.{name}"))
    f(state)
    assert calls == {"flatten": flattened, "unflatten": 1}


# errors, raised before anything is compiled
def test_the_fixture_sees_what_is_compiled(compiles):
    jax.jit(lambda x: x * 3 + 1)(np.ones(7)).block_until_ready()
    assert compiles


def refused(f, *args, compiles):
    before = len(compiles)
    with pytest.raises(ShardingError) as error:
        f(*args)
    assert len(compiles) == before
    return str(error.value)


@pytest.mark.parametrize("where", ["axis_resources", "in_axis_resources", "out_axis_resources", "context", "nested"])
def test_a_typo_in_a_key(mesh, compiles, where):
    typo = {"batch": "data", f"embd_{where}": "model"}
    x = axn.shard(draw(B, E).rename({"embed": f"embed_{where}"}), {})

    def body(x):
        if where == "nested":
            with axn.axis_mapping(typo):
                return axn.auto_sharded(x)
        return x

    def call(**options):
        f = axn.named_jit(body, **options, **({where: typo} if where.endswith("resources") else {}))
        if where == "context":
            with axn.axis_mapping(typo):
                return f(x)
        return f(x)

    assert refused(call, compiles=compiles) == (
        f"named_jit: the mapping has axis 'embd_{where}', which no array here has\n"
        f"  mapping: {{'batch': 'data', 'embd_{where}': 'model'}}\n"
        f"  axes of the arrays: batch, embed_{where}\n"
        f"  hint: did you mean 'embed_{where}'?"
    )
    assert call(strict=False).names == x.names


def test_axes_that_live_inside_only_are_no_typos(mesh):
    inner = axn.Axis("inner_only", 8)

    def f(x):
        h = axn.random.normal(jax.random.key(0), (E, inner))
        mapped = axn.vmap(lambda a: a * 2, axn.Axis("mapped_only", 4))(x.sum())
        return axn.dot(axn.dot(x, h, axis=E), h, axis=inner) + mapped.sum()

    mapping = {"batch": "data", "inner_only": "model", "embed": None, "mapped_only": "data"}
    laid_out(axn.named_jit(f, mapping)(draw(B, E)), P("data", None))
    laid_out(axn.named_jit(lambda x: f(x), mapping)(draw(B, E)), P("data", None))


def test_an_unknown_mesh_axis(mesh, compiles):
    f = axn.named_jit(lambda x: x * 2, {"batch": "dta"}, strict=False)
    assert refused(f, axn.shard(draw(B, E), {}), compiles=compiles) == (
        "named_jit: axis 'batch' is mapped to 'dta', which is not an axis of the mesh\n"
        "  mapping: {'batch': 'dta'}\n"
        "  mesh: data=4, model=2\n"
        "  hint: did you mean 'data'?"
    )


@pytest.mark.parametrize("where", ["axis_resources", "in_axis_resources", "out_axis_resources", "context"])
def test_an_unknown_mesh_axis_for_an_axis_that_is_laid_out_nowhere(mesh, compiles, where):
    typo = {"embed": "modle"}
    if where == "context":
        f = axn.named_jit(lambda x: x.sum("embed"))

        def call(x):
            with axn.axis_mapping(typo):
                return f(x)
    else:
        call = axn.named_jit(lambda x: x.sum("embed"), **{where: typo})
    text = refused(call, axn.shard(draw(B, E), {}), compiles=compiles)
    assert "axis 'embed' is mapped to 'modle', which is not an axis of the mesh" in text
    assert text.endswith("hint: did you mean 'model'?")


def test_one_mesh_axis_twice(mesh, compiles):
    f = axn.named_jit(lambda x: x * 2, {"batch": "data", "embed": "data"})
    assert refused(f, axn.shard(draw(B, E), {}), compiles=compiles) == (
        "named_jit: mesh axis 'data' would shard both 'batch' and 'embed' of one array\n"
        "  array has: batch=8, embed=4\n"
        "  mapping: {'batch': 'data', 'embed': 'data'}\n"
        "  mesh: data=4, model=2\n"
        "  at: result\n"
        "  hint: map one of the two elsewhere, or rename it on this array: x.rename({'embed': ...})"
    )


@pytest.mark.parametrize("where", ["axis_resources", "in_axis_resources", "out_axis_resources"])
def test_a_size_that_does_not_divide(mesh, compiles, where):
    f = axn.named_jit(lambda x: x * 2, **{where: {"mlp": "data", "batch": None}})
    assert refused(f, axn.shard(draw(B, M), {}), compiles=compiles) == (
        "named_jit: mlp=6 cannot be split evenly in 4 over mesh axis data\n"
        "  array has: batch=8, mlp=6\n"
        "  mapping: {'mlp': 'data', 'batch': None}\n"
        "  mesh: data=4, model=2\n"
        f"  at: {'x' if where == 'in_axis_resources' else 'result'}\n"
        "  hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'mlp' to None"
    )


def test_a_layout_that_cannot_be_names_the_parameter_and_what_was_called(mesh, compiles):
    class Model(eqx.Module):
        layers: tuple[Layer, ...]

    model = Model(tuple(Layer(axn.shard(draw(E, size), {}), jnp.tanh) for size in (M.resize(8), M)))
    facts = (
        "mlp=6 cannot be split evenly in 4 over mesh axis data\n"
        "  array has: embed=4, mlp=6\n"
        "  mapping: {{'mlp': 'data'}}\n"
        "  mesh: data=4, model=2\n"
        "  at: {}\n"
        "  hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'mlp' to None"
    )
    stored = {"mlp": "data"}
    calls = {
        "fsdp: " + facts.format("state.0.layers.1.w"): axn.fsdp(lambda state: state, stored, {}),
        "named_jit: " + facts.format("result.0.layers.1.w"): axn.named_jit(lambda x: x, out_axis_resources=stored),
        "shard: " + facts.format("0.layers.1.w"): lambda state: axn.shard(state, stored),
        "pspec_for: " + facts.format("0.layers.1.w"): lambda state: axn.pspec_for(state, stored),
    }
    for text, call in calls.items():
        with pytest.raises(ShardingError) as error:
            call((model, 1))
        assert str(error.value) == text


def test_a_size_that_does_not_divide_in_the_middle(mesh, compiles):
    f = axn.named_jit(lambda x, w: axn.dot(x, w, axis=E).sum(), {"mlp": "data", "embed": None})
    text = refused(f, axn.shard(draw(B, E), {}), axn.shard(draw(E, M), {}), compiles=compiles)
    assert "mlp=6 cannot be split evenly in 4 over mesh axis data" in text


@pytest.mark.parametrize("where", ["axis_resources", "in_axis_resources", "out_axis_resources"])
def test_no_mesh(compiles, where):
    x = draw(B)
    assert refused(axn.named_jit(lambda x: x * 2, **{where: {"batch": "data"}}), x, compiles=compiles) == (
        "named_jit: there is no mesh\n"
        "  mapping: {'batch': 'data'}\n"
        '  hint: run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))'
    )


def test_an_error_leaves_no_mapping_behind(mesh):
    f = axn.named_jit(lambda x: x["nobody", 0], {"batch": "data"})
    with pytest.raises(ValueError, match="nobody"):
        f(draw(B))
    assert axn.current_mapping() is None


# with an optimiser
def test_a_training_step(mesh):
    optimiser = optax.adamw(1e-2)
    module = layer(steps=2)

    def step(state, x):
        module, opt = state
        loss = lambda m: (m(x) ** 2).mean().scalar()  # noqa: E731
        value, gradient = eqx.filter_value_and_grad(loss)(module)
        updates, opt = optimiser.update(gradient, opt, eqx.filter(module, eqx.is_array))
        return (eqx.apply_updates(module, updates), opt), value

    counting = counted(step)
    jitted = axn.named_jit(
        counting, {"batch": "data", "embed": None}, out_axis_resources={"embed": "data"}, donate_args=(True,)
    )
    state = (module, optimiser.init(eqx.filter(module, eqx.is_array)))
    state = axn.shard(state, {"embed": "data"})
    losses = []
    for _ in range(4):
        state, loss = jitted(state, axn.shard(draw(B, E), {"batch": "data"}))
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert counting.traces == 1
    laid_out(state[0].w, P("data", None))
