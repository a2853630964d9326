"""Claims about permutations."""

import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisNotFoundError
from axonym.testing import ClaimError, assert_equivariant, assert_invariant
from tests.nn.layouts import draw, fails, made

B, P, E, X, M, H, D = axn.make_axes(batch=3, pos=5, embed=8, experts=4, mlp=6, heads=2, head_dim=4)


@pytest.mark.parametrize("options", [{}, {"weighing": "sigmoid", "shared": 4}])
def test_experts_and_heads_can_be_exchanged(options):
    moe = made(lambda *, key: nn.MixtureOfExperts.init(E, X, M, 2, key=key, **options))
    assert_invariant(lambda moe, x: moe(x)[0], "experts", moe, draw(B, E))
    attention = made(lambda *, key: nn.Attention.init(E, H, D, key=key))
    assert_invariant(attention, H, draw(P, E))
    # Without a mask, positions are a set.
    assert_equivariant(attention, P, draw(B, P, E))


def test_a_position_that_is_told_apart_is_found():
    rates = axn.named(np.float32([1, 1, 2, 1, 1]), P)
    with pytest.raises(ClaimError) as error:
        assert_equivariant(lambda x: axn.tanh(x) * rates, P, draw(B, P))
    assert (error.value.claim, error.value.operation, dict(error.value.source)) == ("equivariant", "mul", {"pos": 0})
    assert str(error.value).splitlines()[0] == (
        "assert_equivariant: to exchange pos=0 and pos=2 changes batch=0, pos=0, beyond the same exchange"
    )
    with pytest.raises(ClaimError) as error:
        assert_invariant(lambda x: (x * rates).sum("pos"), P, draw(B, P))
    assert str(error.value).splitlines()[0] == "assert_invariant: to exchange pos=0 and pos=2 changes batch=0"


def test_a_result_without_the_axis_cannot_be_permuted():
    fails(
        AxisNotFoundError,
        "assert_equivariant: no result has axis 'pos'\n  hint: if permutations change nothing, write assert_invariant",
        lambda: assert_equivariant(lambda x: x.sum("pos"), P, draw(P)),
    )
