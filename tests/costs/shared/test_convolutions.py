"""Which products of a convolution meet elements of the image, against a convolution of ones."""

import jax.numpy as jnp
import pytest
from jax import lax

from axonym.costs.shared.convolutions import Sliding, count_meetings


@pytest.mark.parametrize(
    "sliding",
    [Sliding(), Sliding(before=2), Sliding(stride=2, before=1), Sliding(dilation=2), Sliding(spread=3, before=1)],
)
def test_pairs_against_a_convolution_of_ones(sliding):
    stride, dilation, spread, before = sliding
    ones = lax.conv_general_dilated(
        jnp.ones((1, 1, 7)), jnp.ones((1, 1, 3)), (stride,), [(before, 2)], (spread,), (dilation,)
    )
    assert count_meetings(7, 3, ones.size, sliding) == ones.sum()
