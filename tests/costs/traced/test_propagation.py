"""Layouts that results would have, against those of JAX's types."""

import functools

import jax
import jax.numpy as jnp
import pytest

from axonym.costs.traced.equations import find_layout
from axonym.costs.traced.propagation import Sum, propagate
from tests.costs.equations_made import array, equation

X = array((8, 6), "data", "model")


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("transpose", jnp.transpose),
        ("sin", jnp.sin),
        ("mul", lambda x: x * x),
        ("broadcast_in_dim", lambda x: jax.lax.broadcast_in_dim(x, (8, 3, 6), (0, 2))),
        ("reshape", lambda x: x.reshape(8, 2, 3)),
        ("reshape", lambda x: x.reshape(4, 2, 6)),
    ],
)
def test_results_are_laid_out_as_types_say(name, fn):
    one = equation(name, fn, X)
    entries, sums = propagate(one, [find_layout(variable) for variable in one.invars])
    assert tuple(entries) == find_layout(one.outvars[0]).entries
    assert sums == ()


def of(one):
    return propagate(one, [find_layout(variable) for variable in one.invars])


def test_sums_are_in_parts():
    assert of(equation("reduce_sum", lambda x: x.sum(0), X)) == ([("model",)], (Sum(("data",), 8),))
    product = functools.partial(jnp.einsum, "ij,ik->jk", out_sharding=jax.P("model"))
    one = equation("dot_general", product, X, array((8, 3), "data"))
    assert of(one)[1] == (Sum(("data",), 8),)


def test_what_is_looked_up():
    rows = array((8,), "data", dtype=jnp.int32)

    def look_up(table, rows):
        return table.at[rows].get(out_sharding=jax.P("data"))

    one = equation("gather", look_up, array((16, 6)), rows)
    # Its types say nothing: JAX looks up on Auto mesh axes.
    table, places = (find_layout(variable) for variable in one.invars)
    places = places._replace(entries=(("data",), ()))
    assert propagate(one, [table, places]) == ([("data",), ()], ())
    split = table._replace(entries=(("model",), ()))
    assert propagate(one, [split, places]) == ([("data",), ()], (Sum(("model",), 16),))


def test_each_row_looks_up_and_adds_in_a_table_of_its_own():
    def look_up(tables, rows):
        return jax.vmap(lambda table, row: table[row])(tables, rows)

    def gradient(tables, rows):
        return jax.grad(lambda tables: look_up(tables, rows).sum())(tables)

    tables, rows = jnp.ones((8, 16, 6)), jnp.zeros((8, 4), jnp.int32)
    for fn, name, shape in ((look_up, "gather", (8, 4, 6)), (gradient, "scatter-add", (8, 16, 6))):
        equations = jax.make_jaxpr(fn)(tables, rows).eqns
        (one,) = [each for each in equations if each.primitive.name == name]
        given = [find_layout(variable) for variable in one.invars]
        given = [value._replace(entries=(("data",), *value.entries[1:])) for value in given]
        assert one.outvars[0].aval.shape == shape
        assert propagate(one, given) == ([("data",), (), ()], ())
