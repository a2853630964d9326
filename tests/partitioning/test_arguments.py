"""How messages of JAX name the arguments of a `named_jit`: as the ones of the same function under `jax.jit`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as axn
import axonym.nn as nn
from tests.partitioning.meshes import draw

B, E = axn.make_axes(batch=8, embed=4)


def message_of(call):
    with pytest.raises(Exception) as error:  # noqa: PT011  # of which kind is for JAX to say
        call()
    return str(error.value)


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
    tail = lambda text: text[text.index("because it depends") :]  # noqa: E731
    assert tail(message_of(lambda: call(step))) == tail(message_of(lambda: call(jax.jit(fn))))


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
    assert "model.layers[0].weight.array of " in text
    assert text.replace("test_an_argument_on_other_devices.<locals>.", "") == expected.replace(
        "test_an_argument_on_other_devices.<locals>.", ""
    )


def test_arrays_of_the_function_itself():
    class Model(eqx.Module):
        w: axn.NamedArray

        def __call__(self, x):
            return x if self.w.sum() > 0 else -x

    text = message_of(lambda: axn.named_jit(Model(draw(E)))(draw(B)))
    assert "depends on the value of the argument fn.w.array." in text


def test_the_arguments_of_the_function_around_it_are_not_mixed_up():
    def outer(y, x):
        positive = (y.sum() > 0).scalar()

        def inner(z):
            return z if positive else -z

        return axn.named_jit(inner)(x)

    for jit in (axn.named_jit, jax.jit):
        text = message_of(lambda jit=jit: jit(outer)(draw(E), draw(B)))
        assert "while tracing the function outer" in text
        assert "depends on the value of the argument y.array." in text


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
