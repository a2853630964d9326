"""How JAX names the arguments of a `named_jit`: like those of the function itself, spelled as identifiers."""

import functools
import inspect
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as axn
import axonym.nn as nn
from axonym.errors import ArgumentError, ShardingError
from tests.partitioning.meshes import draw

B, E = axn.make_axes(batch=8, embed=4)


def message_of(call):
    with pytest.raises(Exception) as error:  # noqa: PT011  # of which kind is for JAX to say
        call()
    return str(error.value)


def with_identifiers(text):
    """Spell the paths in a message of `jax.jit` as `named_jit` does: `model_bias` for `model.bias.array`."""
    return re.sub(
        r"\b(?!float)\w+(?:\.[a-z]\w*|\[[^\]]*\])+",
        lambda path: "_".join(re.findall(r"\w+", path[0].removesuffix(".array"))),
        text,
    )


def branch(*values):
    return sum(1 for value in jax.tree.leaves(values) if value.sum() > 0)


FUNCTIONS = {
    "position": (lambda x, y: branch(y), lambda g: g(draw(B), {"a": draw(E), "b": [draw(E)]})),
    "keyword": (lambda x, *, z, y: branch(z), lambda g: g(draw(B), z=draw(E), y=draw(E))),
    "many": (lambda x, *rest: branch(rest[1]), lambda g: g(draw(B), draw(B), (draw(E), draw(B)))),
    "module": (lambda model, x: branch(model.layers[1].bias), lambda g: g(MLP, draw(B))),
}
MLP = nn.MLP.init(E, E, 8, 2, key=jax.random.key(0))


@pytest.mark.parametrize("donate", [None, (False, True), (True,)], ids=str)
@pytest.mark.parametrize("case", list(FUNCTIONS))
@pytest.mark.parametrize("step", ["call", "lower", "trace"])
def test_a_value_that_is_not_there_while_tracing(case, donate, step):
    fn, call = FUNCTIONS[case]
    jitted = axn.named_jit(fn, donate_args=donate)
    step = {"call": jitted, "lower": jitted.lower, "trace": jitted.trace}[step]
    tail = lambda text: text[text.index(f"at {__file__}:") : text.index("See https")]  # noqa: E731
    text, expected = tail(message_of(lambda: call(step))), tail(message_of(lambda: call(jax.jit(fn))))
    place, _, arguments = expected.partition("because it depends")
    assert text == f"{place}because it depends{with_identifiers(arguments)}"


@pytest.mark.parametrize("donate", [None, (True,)], ids=str)
@pytest.mark.parametrize("step", ["call", "lower"])
def test_an_argument_on_other_devices(auto_mesh, donate, step):
    model = jax.device_put(MLP, jax.devices()[0])
    f = lambda model, x: model(x)  # noqa: E731
    with axn.set_mesh(auto_mesh):
        x = axn.shard(draw(B, E), {"batch": "data"})
        jitted = axn.named_jit(f, donate_args=donate)
        text = message_of(lambda: (jitted if step == "call" else jitted.lower)(model, x))
        expected = message_of(lambda: jax.jit(f)(model, x))
    assert "model_layers_0_weight of " in text
    owner = "test_an_argument_on_other_devices.<locals>."
    assert text.replace(owner, "") == with_identifiers(expected.replace(owner, ""))


def test_arrays_of_the_function_itself():
    class Model(eqx.Module):
        w: axn.NamedArray

        def __call__(self, x):
            return x if self.w.sum() > 0 else -x

    text = message_of(lambda: axn.named_jit(Model(draw(E)))(draw(B)))
    assert "depends on the value of the argument fn_w." in text


def test_the_arguments_of_the_function_around_it_are_not_mixed_up():
    def outer(y, x):
        positive = (y.sum() > 0).scalar()

        def inner(z):
            return z if positive else -z

        return axn.named_jit(inner)(x)

    for jit in (axn.named_jit, jax.jit):
        text = message_of(lambda jit=jit: jit(outer)(draw(E), draw(B)))
        assert "while tracing the function outer" in text
        assert re.search(r"depends on the value of the argument y(\.array)?\.$", text, re.MULTILINE)


def test_programs_and_profiles_name_arrays_by_their_paths():
    f = lambda model, x, *, scale, act: act(model(x) * scale)  # noqa: E731
    args, kwargs = (MLP, draw(B, E)), {"scale": jnp.ones(()), "act": axn.tanh}
    text = axn.named_jit(f, donate_args=(False, True)).lower(*args, **kwargs).compile().as_text()
    named = set(re.findall(r'parameter\(\d+\),.*op_name="(\w+)"', text))
    layers = [f"model_layers_{i}_{part}" for i in range(3) for part in ("weight", "bias")]
    assert named == {*layers, "x", "scale"}


def test_paths_that_are_spelled_alike_get_distinct_names():
    tree = {"a.b": draw(B), "a": {"b": draw(E)}, "a_b": jnp.ones(2), "class": jnp.ones(3)}
    f = axn.named_jit(lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(x)))
    text = f.lower(tree).compile().as_text()
    named = re.findall(r'= f32\[(\d)\]\S* parameter.*op_name="(\w+)"', text)
    # in the order of sorted keys: `a`, `a.b`, `a_b`, `class`
    assert dict(named) == {"4": "x_a_b", "8": "x_a_b_1", "2": "x_a_b_2", "3": "x_class"}


def test_errors_of_the_function_come_through_as_they_are():
    class OddError(Exception):
        pass

    for error in (OddError(), OddError(3, "kept_arrays[0]"), OddError("kept_arrays[7]"), KeyError("x")):

        def f(x, error=error):
            raise error

        args = error.args
        with pytest.raises(type(error)) as raised:
            axn.named_jit(f)(jnp.ones(2))
        assert raised.value is error
        assert error.args == args


def test_errors_of_jax_are_about_the_users_function():
    def choose(x):
        return x if x.sum() > 0 else -x

    line = choose.__code__.co_firstlineno
    with pytest.raises(jax.errors.TracerBoolConversionError, match=rf"choose at .*{__file__}:{line} for jit"):
        axn.named_jit(choose)(axn.ones(B))


class Choosing(eqx.Module):
    w: axn.NamedArray

    def __call__(self, x):
        return x if (x * self.w).sum() > 0 else -x


@pytest.mark.parametrize("made", [lambda model: model, lambda model: functools.partial(Choosing.__call__, model)])
def test_errors_of_jax_are_about_the_method_of_a_module(made):
    line = inspect.unwrap(Choosing.__call__).__code__.co_firstlineno
    with pytest.raises(jax.errors.TracerBoolConversionError, match=rf"{__file__}:{line} for jit"):
        axn.named_jit(made(Choosing(axn.ones(B))))(axn.ones(B))


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_an_argument_that_was_donated_before_is_named(mesh, request):
    with axn.set_mesh(request.getfixturevalue(mesh)):
        check_donated()


def check_donated():
    step = axn.named_jit(lambda state, x: {name: one * x for name, one in state.items()}, donate_args=(True,))
    state = axn.shard({name: axn.ones(B) for name in "vw"}, {"batch": "data"})
    step(state, axn.ones(B))
    with pytest.raises(ArgumentError) as error:
        step(state, axn.ones(B))
    assert str(error.value) == (
        "named_jit: argument state['v'] was donated to an earlier call, which reused its memory\n"
        "  so were: state['w']\n"
        "  hint: go on with what that call returned, or keep its arguments: donate_args=False"
    )


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_what_was_donated_is_named_wherever_it_is_given(mesh, request):
    step = axn.named_jit(lambda state, x: (state + 1, x + 1), donate_args=(True, True))
    evaluate = axn.named_jit(lambda model, factor, x: model["w"] * factor * x)
    with axn.set_mesh(request.getfixturevalue(mesh)):
        new = lambda: axn.shard(axn.ones(B), {"batch": "data"})  # noqa: E731
        gone = new()
        step(new(), gone)
        evaluate({"u": new(), "w": new()}, 2, new())

        calls = {
            "x": lambda: step(new(), gone),
            "model['w']": lambda: evaluate({"u": new(), "w": gone}, 2, new()),
            "args[1]": lambda: axn.shard_map(lambda x, y: x * y, {"batch": "data"})(new(), gone),
        }
        for name, call in calls.items():
            with pytest.raises(ArgumentError, match=re.escape(f": argument {name} was donated to an earlier call")):
                call()


@pytest.mark.parametrize("donate_args", [(True, True), (True,), (False, True)])
def test_an_array_that_is_given_twice_is_not_donated(auto_mesh, donate_args):
    step = axn.named_jit(lambda model, average: (model + 1, average["w"] + 2), donate_args=donate_args)
    x = axn.shard(axn.ones(B), {"batch": "data"}, auto_mesh)
    for _ in range(2):
        assert message_of(lambda: step(x, {"w": x})) == (
            "named_jit: arguments model and average['w'] are one array, whose memory is donated\n"
            "  hint: give a copy for one of them: jax.tree.map(jnp.copy, x)"
        )
    first, second = step(x, {"w": x + 0})
    assert (first.array == 2).all()
    assert (second.array == 3).all()


def test_what_is_not_donated_or_has_no_memory_yet_may_be_given_twice():
    step = axn.named_jit(lambda x, y, z: (x + y, z + 1), donate_args=(False, False, True))
    x = axn.ones(B)
    assert (step(x, x, axn.ones(B))[0].array == 2).all()
    alone = axn.named_jit(lambda x, y: x + 1, donate_args=(False, True))  # what is not used is not given away
    assert (alone(x, x).array == 2).all()
    both = jax.jit(lambda x: axn.named_jit(lambda x, y: x + y, donate_args=(True, True))(x, x))
    assert (both(x).array == 2).all()


@pytest.mark.parametrize(
    ("options", "name"),
    [({"donate_args": ({"a": True},)}, "donate_args"), ({"donate_kwargs": {"tree": {"a": True}}}, "donate_kwargs")],
)
def test_bools_for_a_tree_of_another_structure(options, name):
    step = axn.named_jit(lambda tree: tree, **options)
    call = step
    if name == "donate_kwargs":
        call = lambda tree: step(tree=tree)  # noqa: E731
    assert message_of(lambda: call({"a": axn.ones(B), "b": axn.ones(B)})) == (
        f"named_jit: {name} does not match the structure of argument tree\n"
        "  hint: give a bool for each part of it, in the same tuples and dicts, or one for all"
    )


def test_a_mesh_axis_that_is_not_there_is_an_error_of_named_jit_before_the_function_runs(auto_mesh):
    with axn.set_mesh(auto_mesh), pytest.raises(ShardingError, match="named_jit: axis 'batch' is mapped to 'dta'"):
        axn.named_jit(lambda x: 1 / 0, {"batch": "dta"})(axn.ones(B))


class Triple(eqx.Module):
    factor: axn.NamedArray

    def __call__(self, x):
        return self.factor * x


class Doubled(Triple):
    def __call__(self, x):
        return 2 * super().__call__(x)

    def single(self):
        return super().__call__


def test_a_call_of_a_class_above_is_not_that_of_the_module():
    module, x = Doubled(3 * axn.ones(B)), draw(B)
    assert (axn.named_jit(module.single())(x).array == 3 * x.array).all()
    assert (axn.named_jit(module.__call__)(x).array == 6 * x.array).all()
