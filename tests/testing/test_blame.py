"""Where a difference first appears."""

import jax.numpy as jnp
import numpy as np
import pytest

from axonym.testing.blame import find_place, is_within, list_views
from axonym.testing.program import Program
from axonym.testing.trace import Trace


def test_an_axis_is_seen_in_each_dimension_that_it_may_be_merged_with():
    views = set(list_views((4, 6), 2))
    assert views == {(1, 2, 12), (2, 2, 6), (4, 2, 3 * 1), (4 * 3, 2, 1)}
    assert not list(list_views((5, 7), 2))


@pytest.mark.parametrize(("shape", "order"), [((3, 4), 0), ((4, 3), 1), ((12,), 0)])
def test_a_change_is_within_its_example_wherever_examples_are(shape, order):
    own = np.arange(3) == 1
    changed = np.zeros((3, 4), bool)
    changed[1] = True
    changed = changed.T if order else changed.reshape(shape)
    assert is_within(changed, 3, own)
    assert not is_within(np.ones(shape, bool), 3, own)
    assert is_within(np.zeros((), bool), 3, own)
    assert not is_within(np.ones((), bool), 3, own)


def test_what_is_put_right_later_is_not_blamed():
    """A first sum over everything comes to nothing; the second one matters."""

    def f(x):
        nothing = (x.sum() * 0) + 1
        return x * nothing + x.max()

    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    program = Program("f", f, (x,))
    trace = Trace(program.run_unwrapped, program.arrays, program)
    changed = x.copy()
    changed[2] += 1
    own = np.arange(3) == 2
    place = find_place(
        trace,
        [jnp.asarray(x)],
        [jnp.asarray(changed)],
        lambda one, other: is_within(np.asarray(one) != np.asarray(other), 3, own),
        lambda results: bool((np.asarray(results[0])[:2] != f(x)[:2]).any()),
    )
    assert place is not None
    assert place[:2] == ("", "reduce_max")
