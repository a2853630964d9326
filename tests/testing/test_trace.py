"""A program as a flat list of operations, which gives the same numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.testing.program import Program
from axonym.testing.trace import Trace
from tests.nn.layouts import draw, made

B, E, M = axn.make_axes(batch=3, embed=4, mlp=5)


class Own(eqx.Module):
    """A module that Axonym does not know."""

    mlp: nn.MLP

    def __call__(self, x):
        return self.spread(axn.tanh(x)) + self.mlp(x)

    def spread(self, x):
        return x - x.mean("batch")


class Outer(eqx.Module):
    """A module with modules in lists."""

    parts: list

    def __call__(self, x):
        for part in self.parts:
            x = part(x)
        return axn.exp(x)


def model():
    return made(lambda *, key: Outer([Own(nn.MLP.init(E, E, M, 1, key=key)), Own(nn.MLP.init(E, E, M, 1, key=key))]))


def test_all_modules_name_their_operations_and_keep_their_classes():
    before = dict(vars(Own))
    program = Program("f", model(), (draw(B, E),))
    trace = Trace(program.run_unwrapped, program.arrays, program)
    layers = {".".join(each.layer) for each in trace.operations}
    own = ["", ".mlp.layers.0", ".mlp.layers.1", ".mlp"]
    assert layers == {"", *(f"parts.{i}{rest}" for i in range(2) for rest in own)}
    assert dict(vars(Own)) == before
    assert [each.layer for each in trace.operations if each.name == "tanh"] == [("parts", "0"), ("parts", "1")]
    with pytest.raises(ZeroDivisionError):
        Trace(lambda arrays: 1 / 0, program.arrays, program)
    assert dict(vars(Own)) == before


def loops(x, y):
    """Loops, branches, checkpoints and rules of gradients."""

    def turn(carry, own):
        carry = jax.checkpoint(jnp.sin)(carry) + own * y
        return carry, jax.nn.relu(carry)

    last, outs = jax.lax.scan(turn, x[0], x, reverse=True)
    chosen = jax.lax.cond(last[0] > 0, lambda a: a, lambda a: -a, last)
    count = jax.lax.while_loop(lambda i: i < 3, lambda i: i + 1, jnp.int32(0))
    return jax.jit(lambda a: jnp.cumsum(a, 0))(outs) + chosen, jax.grad(lambda a: jax.nn.gelu(a).sum())(last), count


def test_a_flat_program_gives_the_same_numbers():
    arrays = (draw(B, E).array, draw(E).array)
    program = Program("f", loops, arrays)
    trace = Trace(program.run_unwrapped, program.arrays, program)
    values = trace.run(program.arrays)
    for i, expected in zip(trace.outputs, loops(*arrays), strict=True):
        np.testing.assert_allclose(values[i], expected, rtol=1e-5, atol=1e-6)
    assert {each.turns for each in trace.operations} == {(), (0,), (1,), (2,)}
    assert {"while", "cond"} < {each.name for each in trace.operations}


def test_a_run_goes_on_from_other_numbers():
    program = Program("f", lambda x: jnp.cos(jnp.sin(x)), (jnp.ones(2),))
    trace = Trace(program.run_unwrapped, program.arrays, program)
    sin, *rest = trace.operations
    found = trace.resume({sin.results[0]: jnp.zeros(2)}, rest)
    assert found[trace.outputs[0]].tolist() == [1, 1]


def test_the_line_is_one_of_the_user():
    program = Program("f", lambda x: axn.softmax(x, "embed"), (draw(E),))
    trace = Trace(program.run_unwrapped, program.arrays, program)
    assert {each.line.partition(":")[0] for each in trace.operations} == {"test_trace.py"}
