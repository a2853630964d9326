"""What loops, conditions and functions of devices hand to their programs, and get back."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from axonym.costs.traced.bodies import join_entries, pass_arguments, pass_divisions
from axonym.costs.traced.equations import find_layout, list_bodies
from tests.costs.equations_made import array, program


def find_equation(name, fn, *args):
    """Return the equation of a primitive, its body and its operands."""
    (equation,) = [one for one in program(fn, *args).eqns if one.primitive.name == name]
    return equation, list_bodies(equation)[0], list(map(find_layout, equation.invars))


def test_a_loop_slices_what_it_does_not_carry():
    equation, body, inputs = find_equation(
        "scan",
        lambda x, rows: jax.lax.scan(lambda x, row: (x + row, 2 * row), x, rows),
        array((16,), "data"),
        array((5, 16), None, "data"),
    )
    given = pass_arguments(equation, body, inputs)
    assert [(one.shape, one.entries) for one in given] == [((16,), (("data",),))] * 2
    # The next iteration reads the carry whole; the stacked rows are read where the caller divides them.
    assert list(pass_divisions(equation, body, [{"data": -1}, {"model": -1}]).values()) == [{"model": -1}]


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("while", lambda n, x: jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, 2 * c[1]), (0, x))),
        ("cond", lambda n, x: jax.lax.cond(n > 0, lambda n, x: 2 * x, lambda n, x: x, n, x)),
    ],
)
def test_what_decides_is_no_argument_of_the_body(name, fn):
    equation, body, inputs = find_equation(name, fn, jax.ShapeDtypeStruct((), jnp.int32), array((16,), "data"))
    given = pass_arguments(equation, body, inputs)
    assert len(given) == len(body.invars)
    assert given[-1].entries == (("data",),)
    assert pass_divisions(equation, body, [{"data": -1}]) == {}


def test_a_device_sees_its_own_part():
    def run(x):
        return jax.shard_map(lambda x: 2 * x, in_specs=P("data"), out_specs=P("data"))(x)

    equation, body, inputs = find_equation("shard_map", run, array((16,), "data"))
    (given,) = pass_arguments(equation, body, inputs)
    assert (inputs[0].shape, given.shape, given.entries) == ((16,), (4,), ((),))
    assert join_entries(P("data"), [("model",), ()]) == [("data", "model"), ()]
