"""A function and its arguments as flat arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisSizeError, OperandError
from axonym.testing.program import Fresh, Program, Pullback, along, is_loss
from tests.nn.layouts import draw, fails, made

B, E, M = axn.make_axes(batch=3, embed=4, mlp=5)


def test_arrays_of_the_function_and_of_arguments_have_paths():
    layer = made(lambda *, key: nn.Linear.init(E, M, key=key))
    program = Program("f", layer, (draw(B, E),))
    assert [(place.path, place.names, place.is_held) for place in program.places] == [
        ("weight", ("embed", "mlp"), True),
        ("bias", ("mlp",), True),
        ("0", ("batch", "embed"), False),
    ]
    (y,) = program(program.arrays)
    np.testing.assert_allclose(y, layer(draw(B, E)).array, rtol=1e-6)
    assert program.results[0].names == ("batch", "mlp")
    assert program.carriers("embed") == [2]
    assert program.carriers("embed", with_held=True) == [0, 2]


def test_other_content_is_other_everywhere_and_in_range():
    tokens = axn.named(np.arange(12).reshape(3, 4) % 5 + 2, (B, E))
    arrays = (tokens, draw(B, E), tokens > 3, draw(B, E).astype(jnp.bfloat16), jax.random.key(0))
    program = Program("f", lambda *args: args, arrays)
    fresh = Fresh.of(program, range(4)).arrays
    assert all((np.asarray(x) != np.asarray(y)).all() for x, y in zip(fresh[:4], program.arrays[:4], strict=True))
    assert set(np.unique(fresh[0])) <= set(range(2, 7))
    assert [x.dtype for x in fresh] == [x.dtype for x in program.arrays]
    mask = along((3, 4), 0, np.arange(3) == 1)
    mixed = Fresh.of(program, [0]).within(program, {0: mask})[0]
    assert (np.asarray(mixed) != tokens.array).tolist() == [[False] * 4, [True] * 4, [False] * 4]


def test_numbers_that_are_drawn_are_not_those_of_a_user():
    """A user's arrays often come from a generator with seed 0."""
    for seed in range(3):
        program = Program("f", lambda x: x, (draw(B, E, seed=seed),))
        assert np.abs(np.asarray(Fresh.of(program, [0]).arrays[0]) - program.arrays[0]).min() > 1e-3


def test_one_name_has_one_size():
    program = Program("f", lambda *args: args, (draw(B), draw(B.resize(2))))
    fails(
        AxisSizeError,
        "f: axis 'batch' has several sizes among the arguments: 2, 3",
        lambda: program.size_of("batch", program.carriers("batch")),
    )


def test_pullbacks_are_those_of_jax():
    x, ids = draw(B, E), axn.arange(B)
    program = Program("f", lambda x, ids: (axn.sin(x), ids + 1), (x, ids))
    pull = Pullback(program, range(2))
    assert (pull.inputs, pull.outs) == ([0], [0])
    (found,) = pull(program.arrays, [np.ones((3, 4), np.float32)])
    np.testing.assert_allclose(found, np.cos(x.array), rtol=1e-5)


@pytest.mark.parametrize("wrap", [jax.jit, eqx.filter_jit, axn.named_jit, lambda f: f])
def test_the_jit_around_a_function_is_no_part_of_it(wrap):
    program = Program("f", wrap(lambda x: x.sum("embed")), (draw(B, E),))
    names = [each.primitive.name for each in jax.make_jaxpr(program.run_unwrapped)(program.arrays).eqns]
    assert names == ["reduce_sum"]


def test_what_else_wraps_a_function_stays():
    program = Program("f", eqx.filter_grad(lambda x: axn.square(x).sum().scalar()), (draw(B, E),))
    (found,) = program.run_unwrapped(program.arrays)
    np.testing.assert_allclose(found, 2 * draw(B, E).array, rtol=1e-6)


def test_a_loss_is_a_real_number():
    assert [is_loss(x) for x in (np.float32(1), np.complex64(1), np.int32(1), np.ones(2), "x")] == [True] + [False] * 4


def test_something_else_than_a_function_is_an_error():
    fails(
        OperandError,
        "locate: the first argument must be a function or a module, not NamedArray\n"
        "  hint: locate(function, *its_arguments)",
        lambda: axn.debug.locate(axn.ones({"batch": 2})),
    )
