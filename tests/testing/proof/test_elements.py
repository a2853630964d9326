"""Element by element: what operands depend on, results depend on there."""

import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.testing.proof.claims import Claim, prove

T, E = axn.make_axes(time=5, embed=3)
X = axn.ones((T, E), jnp.float32)
INDEPENDENT, EQUIVARIANT = Claim("independent", "time"), Claim("equivariant", "time")


@pytest.mark.parametrize("fn", [axn.exp, lambda x: x * 2 + 1, lambda x: axn.where(x > 0, x, -x), axn.isnan])
def test_positions_stay_apart_and_alike(fn) -> None:
    assert prove(fn, [X], INDEPENDENT)
    assert prove(fn, [X], EQUIVARIANT)


def test_numbers_of_positions_keep_them_apart_and_not_alike() -> None:
    number = lambda x: x * axn.arange(T)  # noqa: E731
    assert prove(number, [X], INDEPENDENT)
    assert not prove(number, [X], EQUIVARIANT)


def test_a_causal_mask_is_known_by_its_comparison() -> None:
    def weigh(x, hides):
        scores = axn.dot(x, x.rename({"time": "key"}), axis="embed")
        visible = hides(axn.arange(T).broadcast_axis(T.alias("key")), axn.arange(T.alias("key")))
        weights = axn.softmax(axn.where(visible, scores, -1e30), "key")
        return axn.dot(weights, x.rename({"time": "key"}), axis="key")

    causal = Claim("causal", "time")
    assert prove(lambda x: weigh(x, lambda at, key: at >= key), [X], causal)
    for wrong in (lambda at, key: at <= key, lambda at, key: at + 1 >= key, lambda at, key: at != key):
        assert not prove(lambda x, wrong=wrong: weigh(x, wrong), [X], causal)
