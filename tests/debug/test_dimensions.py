"""Names of the dimensions inside of a program, against an array that holds its own coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from axonym.debug.dimensions import Part, find_positions, follow, merge, start, take, unknown

SIZES = {"batch": 4, "pos": 6}
# Each moves elements; where a name is left, the coordinate must be that of the element.
MOVES = {
    "transpose": lambda x: x.T,
    "merged": lambda x: x.reshape(24),
    "split": lambda x: x.reshape(2, 2, 3, 2),
    "merged and split": lambda x: x.reshape(8, 3),
    "slice": lambda x: x[1:3, ::2],
    "one position": lambda x: lax.squeeze(lax.slice(x.reshape(2, 2, 6), (1, 0, 0), (2, 2, 6)), (0,)),
    "reverse": lambda x: x[::-1],
    "pad": lambda x: lax.pad(x, x.dtype.type(-1), ((1, 0, 0), (0, 2, 0))),
    "broadcast": lambda x: lax.broadcast_in_dim(x, (3, 4, 6), (1, 2)),
    "split in parts": lambda x: lax.split(x, (1, 3))[1],
    "concatenate": lambda x: lax.concatenate([x, x], 1),
    "choice of unknown": lambda x: lax.dynamic_slice(x.reshape(2, 2, 6), (jnp.int32(1), 0, 0), (1, 2, 6)),
    "rows": lambda x: x[jnp.array([3, 0])],
    "sort": lambda x: lax.sort(-x, dimension=1),
    "sum over a part": lambda x: x.reshape(2, 2, 6).max(0),
}


@pytest.mark.parametrize("name", MOVES)
def test_names_are_those_of_the_elements(name):
    ids = jnp.arange(24).reshape(4, 6)
    program = jax.make_jaxpr(MOVES[name])(ids)
    found = {var: start(tuple(SIZES), (4, 6)) for var in program.jaxpr.invars}
    for equation in program.jaxpr.eqns:
        operands = [
            found.get(var, unknown(np.shape(getattr(var, "val", 0)))) if not hasattr(var, "val") else unknown(())
            for var in equation.invars
        ]
        if equation.primitive.name in {"jit", "pjit"}:
            operands = [merge(operands, var.aval.shape) for var in equation.outvars]
            found |= zip(equation.outvars, [unknown(var.aval.shape) for var in equation.outvars], strict=True)
            continue
        shapes = [var.aval.shape for var in equation.outvars]
        found |= zip(equation.outvars, follow(equation, operands, shapes), strict=True)
    dimensions, values = found[program.jaxpr.outvars[0]], np.abs(np.asarray(MOVES[name](ids)))
    for at in np.ndindex(values.shape):
        mask = np.zeros(values.shape, bool)
        mask[at] = True
        positions = find_positions(dimensions, mask)
        batch, pos = divmod(int(values[at]), 6)
        if name == "pad" and (at[0] == 0 or at[1] > 5):
            continue
        for axis, position in (("batch", batch), ("pos", pos)):
            if axis in positions:
                assert positions[axis][0] == (position,), (name, at)
    has_names = {part.name for parts in dimensions for part in parts} & {*SIZES}
    lost = {
        "concatenate": {"batch"},
        "choice of unknown": {"pos"},
        "rows": {"pos"},
        "sort": {"batch"},
        "sum over a part": {"pos"},
    }
    assert has_names == lost.get(name, {*SIZES})


def test_two_dimensions_of_one_name_are_two_axes():
    scores = (*start(("pos",), (3,)), *start(("pos",), (3,)))
    mask = np.zeros((3, 3), bool)
    mask[1, 2] = True
    assert find_positions(scores, mask) == {"pos": ((1,), 3), "pos of dimension 1": ((2,), 3)}
    assert find_positions(unknown((3, 3)), mask) == {"dimension 0": ((1,), 3), "dimension 1": ((2,), 3)}


def test_a_choice_of_a_part_moves_the_rest():
    halves = ((Part("batch", 2, 3),), (Part("batch", 3),))
    assert take(halves, 0, 1) == ((Part("batch", 3, 1, 3),),)
